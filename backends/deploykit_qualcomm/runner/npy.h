/* Reading and writing NumPy's .npy files: version 1, C order, little endian. */
#ifndef DEPLOYKIT_NPY_H
#define DEPLOYKIT_NPY_H

#include <stddef.h>
#include <stdint.h>

enum { NPY_MOST_AXES = 16 };

typedef struct {
  char type[4]; /* "f4", "u2", ... without the byte order */
  size_t rank;
  int64_t dims[NPY_MOST_AXES];
  void *data;
  size_t bytes;
} npy;

/* Bytes that the type and the dimensions need; 0 for a negative dimension. */
size_t npy_bytes(const npy *array);

/* False where the file cannot be read, or holds fewer bytes than its header says. */
int npy_load(const char *path, npy *array);
int npy_store(const char *path, const npy *array);

#endif
