/* Turns the lines of a record back into the structures of the QNN API. A record may be damaged or hostile: every number
 * is checked before it becomes a length, and a pointer is never read from it. */
#ifndef DEPLOYKIT_RECORD_READING_H
#define DEPLOYKIT_RECORD_READING_H

#include <stddef.h>

#include "json.h"
#include "qnn_api.h"

typedef struct { const unsigned char *bytes; size_t size; } raw_data; /* record.bin */

/* Tensors that a graph has, by name. */
typedef struct {
  qnn_tensor *items;
  size_t count, room;
} tensor_list;

void tensor_list_add(tensor_list *list, const qnn_tensor *tensor);
const qnn_tensor *tensor_list_find(const tensor_list *list, const char *name);

/* A parameter that an older backend does not know: left out where its value is 0, which says nothing. */
typedef struct { const char *type, *param; } left_out;
typedef struct { left_out *items; size_t count; } left_out_list;

/* All answer NULL where the structure was made, and otherwise what is wrong with it. Names live as long as the JSON. */
const char *read_tensor(const json *from, raw_data data, qnn_tensor *tensor);
const char *read_tensors(const json *from, raw_data data, const tensor_list *known, uint32_t *count, qnn_tensor **tensors);
const char *read_node(const json *from, raw_data data, const tensor_list *known, const left_out_list *without, qnn_node *node);
void free_node(qnn_node *node);

/* Bytes of a tensor's values, 0 where there are none or too many. */
uint32_t tensor_bytes(const qnn_tensor *tensor);

#endif
