#include "npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

enum { PREFIX = 10, ALIGNED = 64, LONGEST_HEADER = 512 };

size_t npy_bytes(const npy *array) {
  size_t bytes = (size_t)(array->type[1] - '0');
  for (size_t i = 0; i < array->rank; i++) {
    if (array->dims[i] < 0) return 0;
    bytes *= (size_t)array->dims[i];
  }
  return bytes;
}

static int read_shape(const char *p, npy *array) {
  for (array->rank = 0; *p != ')'; array->rank++) {
    char *end;
    if (array->rank == NPY_MOST_AXES) return 0;
    array->dims[array->rank] = strtoll(p, &end, 10);
    if (end == p || array->dims[array->rank] < 0) return 0;
    p = end + strspn(end, ", ");
  }
  return 1;
}

static int read_header(const char *header, npy *array) {
  const char *type = strstr(header, "'descr': '"), *shape = strstr(header, "'shape': (");
  if (!type || !shape || !strstr(header, "'fortran_order': False")) return 0;
  type += strlen("'descr': '");
  if ((*type != '<' && *type != '|') || type[3] != '\'') return 0;
  memcpy(array->type, type + 1, 2);
  array->type[2] = 0;
  return read_shape(shape + strlen("'shape': ("), array);
}

int npy_load(const char *path, npy *array) {
  size_t size = 0;
  char *file = file_load(path, &size);
  if (!file || size < PREFIX || memcmp(file, "\x93NUMPY\x01", 7)) return 0;
  size_t header = (unsigned char)file[8] | (size_t)(unsigned char)file[9] << 8;
  if (!header || PREFIX + header > size) return 0;
  file[PREFIX + header - 1] = 0; /* the header ends with a newline */
  if (!read_header(file + PREFIX, array)) return 0;
  array->data = file + PREFIX + header;
  array->bytes = size - PREFIX - header;
  return array->bytes == npy_bytes(array);
}

int npy_store(const char *path, const npy *array) {
  char header[LONGEST_HEADER];
  int n = snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                   array->type[1] == '1' ? '|' : '<', array->type);
  for (size_t i = 0; i < array->rank; i++)
    n += snprintf(header + n, sizeof header - (size_t)n, "%lld, ", (long long)array->dims[i]);
  n += snprintf(header + n, sizeof header - (size_t)n, "), }");
  while ((PREFIX + n + 1) % ALIGNED) header[n++] = ' ';
  header[n++] = '\n';
  unsigned char prefix[PREFIX] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
  FILE *out = file_open(path, "wb");
  if (!out) return 0;
  int good = fwrite(prefix, 1, PREFIX, out) == PREFIX && fwrite(header, 1, (size_t)n, out) == (size_t)n &&
             fwrite(array->data, 1, array->bytes, out) == array->bytes;
  return !fclose(out) && good;
}
