#include "record_reading.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_AXES = 32, MOST_ITEMS = 1 << 20, MOST_TENSORS = 4096 };

static void *zeroed(size_t count, size_t size) {
  void *room = room_for(NULL, count * size); /* both are bounded by the callers */
  memset(room, 0, count * size);
  return room;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static int whole(const json *value, int64_t least, int64_t most, int64_t *number) {
  if (!value || value->kind != JSON_NUMBER || value->number < (double)least || value->number > (double)most) return 0;
  *number = value->integer;
  return (double)*number == value->number;
}

static int take_u32(const json *from, const char *key, uint32_t *number) {
  int64_t value;
  if (!whole(json_get(from, key), 0, UINT32_MAX, &value)) return 0;
  *number = (uint32_t)value;
  return 1;
}

static int take_i32(const json *from, const char *key, int32_t *number) {
  int64_t value;
  if (!whole(json_get(from, key), INT32_MIN, INT32_MAX, &value)) return 0;
  *number = (int32_t)value;
  return 1;
}

static int take_name(const json *from, const char *key, const char **name) {
  *name = json_text(from, key, "");
  return **name != 0;
}

/* ---- quantization ------------------------------------------------------------------------------------------------ */

/* As many grids as `scales` has members, or, with `wanted`, exactly so many. */
static qnn_grid *read_grids(const json *from, size_t wanted, uint32_t *count) {
  const json *scales = json_get(from, "scales"), *offsets = json_get(from, "offsets");
  size_t number = json_count(scales);
  if (!number || number > MOST_ITEMS || (wanted && number != wanted) || json_count(offsets) != number) return NULL;
  qnn_grid *grids = zeroed(number, sizeof *grids);
  for (size_t i = 0; i < number; i++) {
    int64_t offset;
    if (scales->items[i].kind != JSON_NUMBER || !whole(&offsets->items[i], INT32_MIN, INT32_MAX, &offset)) return NULL;
    grids[i] = (qnn_grid){(float)scales->items[i].number, (int32_t)offset};
  }
  if (count) *count = (uint32_t)number;
  return grids;
}

static int read_bits_axis(const json *from, qnn_quant *quant) {
  const json *scales = json_get(from, "scales"), *offsets = json_get(from, "offsets");
  size_t number = json_count(scales);
  if (!number || number > MOST_ITEMS || (json_count(offsets) && json_count(offsets) != number)) return 0;
  quant->bits_axis.count = (uint32_t)number;
  quant->bits_axis.scales = zeroed(number, sizeof(float));
  quant->bits_axis.offsets = json_count(offsets) ? zeroed(number, sizeof(int32_t)) : NULL;
  for (size_t i = 0; i < number; i++) {
    int64_t offset = 0;
    if (scales->items[i].kind != JSON_NUMBER) return 0;
    quant->bits_axis.scales[i] = (float)scales->items[i].number;
    if (!quant->bits_axis.offsets) continue;
    if (!whole(&offsets->items[i], INT32_MIN, INT32_MAX, &offset)) return 0;
    quant->bits_axis.offsets[i] = (int32_t)offset;
  }
  return take_u32(from, "bits", &quant->bits_axis.bits) && take_i32(from, "axis", &quant->bits_axis.axis);
}

/* The backend reads as many channels as the tensor has along the axis. */
static int read_lpbq(const json *from, const qnn_tensor *tensor, qnn_quant *quant) {
  qnn_lpbq *lpbq = quant->lpbq = zeroed(1, sizeof *lpbq);
  const json *scales = json_get(from, "block_scales");
  if (!take_i32(from, "axis", &lpbq->axis) || !take_u32(from, "blocks", &lpbq->blocks) ||
      !take_u32(from, "scale_bits", &lpbq->scale_bits) || !take_i32(from, "storage", &lpbq->storage))
    return 0;
  int64_t axis = lpbq->axis < 0 ? lpbq->axis + (int64_t)tensor->rank : lpbq->axis;
  if (axis < 0 || axis >= (int64_t)tensor->rank || !tensor->dims[axis] || (uint32_t)lpbq->storage > 1) return 0;
  lpbq->channels = read_grids(from, tensor->dims[axis], NULL);
  size_t number = json_count(scales);
  if (!lpbq->channels || !number || number > MOST_ITEMS || number != (uint64_t)tensor->dims[axis] * lpbq->blocks) return 0;
  lpbq->scales = zeroed(number, 2);
  for (size_t i = 0; i < number; i++) {
    int64_t value;
    if (!whole(&scales->items[i], 0, lpbq->storage ? UINT16_MAX : UINT8_MAX, &value)) return 0;
    if (lpbq->storage)
      ((uint16_t *)lpbq->scales)[i] = (uint16_t)value;
    else
      ((uint8_t *)lpbq->scales)[i] = (uint8_t)value;
  }
  return 1;
}

static int read_quant(const json *from, qnn_tensor *tensor) {
  qnn_quant *quant = &tensor->quant;
  qnn_grid *grid;
  quant->defined = from ? 1 : UNDEFINED;
  quant->encoding = UNDEFINED;
  if (!from) return 1;
  if (!take_i32(from, "encoding", &quant->encoding)) return 0;
  switch (quant->encoding) {
    case ENCODING_TENSOR:
      if (!(grid = read_grids(from, 1, NULL))) return 0;
      quant->tensor = *grid;
      return 1;
    case ENCODING_AXIS:
      quant->axis.items = read_grids(from, 0, &quant->axis.count);
      return quant->axis.items && take_i32(from, "axis", &quant->axis.axis);
    case ENCODING_BITS_TENSOR:
      if (!(grid = read_grids(from, 1, NULL))) return 0;
      quant->bits_tensor.scale = grid->scale;
      quant->bits_tensor.offset = grid->offset;
      return take_u32(from, "bits", &quant->bits_tensor.bits);
    case ENCODING_BITS_AXIS: return read_bits_axis(from, quant);
    case ENCODING_LPBQ: return read_lpbq(from, tensor, quant);
    default: return 0; /* one that the recorder wrote the number of only */
  }
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

uint32_t tensor_bytes(const qnn_tensor *tensor) {
  uint64_t bytes = qnn_element_bytes(tensor->dtype);
  for (uint32_t i = 0; i < tensor->rank; i++) {
    bytes *= tensor->dims[i];
    if (bytes > UINT32_MAX) return 0;
  }
  return (uint32_t)bytes;
}

static int read_dims(const json *from, qnn_tensor *tensor) {
  size_t rank = json_count(from);
  if (!from || from->kind != JSON_LIST || rank > MOST_AXES) return 0;
  tensor->rank = (uint32_t)rank;
  tensor->dims = zeroed(rank ? rank : 1, sizeof *tensor->dims);
  for (size_t i = 0; i < rank; i++) {
    int64_t side;
    if (!whole(&from->items[i], 0, UINT32_MAX, &side)) return 0;
    tensor->dims[i] = (uint32_t)side;
  }
  return 1;
}

/* The values must be those that type and shape ask for: the backend reads so many. */
static int read_data(const json *from, raw_data data, qnn_tensor *tensor) {
  int64_t offset, size;
  if (!from) return 1;
  if (json_count(from) != 2 || !whole(&from->items[0], 0, INT64_C(1) << 50, &offset)) return 0;
  if (!whole(&from->items[1], 1, UINT32_MAX, &size) || (uint64_t)offset > data.size) return 0;
  if ((uint64_t)size > data.size - (uint64_t)offset || (uint32_t)size != tensor_bytes(tensor)) return 0;
  tensor->data.bytes = room_for(NULL, (size_t)size); /* a copy: a backend may write, and wants it aligned */
  memcpy(tensor->data.bytes, data.bytes + offset, (size_t)size);
  tensor->data.size = (uint32_t)size;
  return 1;
}

const char *read_tensor(const json *from, raw_data data, qnn_tensor *tensor) {
  memset(tensor, 0, sizeof *tensor);
  tensor->sparse.layout = UNDEFINED;
  if (!take_name(from, "name", &tensor->name)) return "a tensor without a name";
  if (!take_u32(from, "version", &tensor->version) || tensor->version < 1 || tensor->version > 2) return "a tensor's version";
  if (!take_i32(from, "role", &tensor->role) || !take_u32(from, "format", &tensor->format) ||
      !take_u32(from, "dtype", &tensor->dtype))
    return "a tensor's role, format or type";
  if (!read_dims(json_get(from, "dims"), tensor)) return "a tensor's shape";
  if (!read_quant(json_get(from, "quant"), tensor)) return "a tensor's encoding";
  if (!read_data(json_get(from, "data"), data, tensor)) return "a tensor's values";
  return NULL;
}

void tensor_list_add(tensor_list *list, const qnn_tensor *tensor) {
  if (list->count == list->room) list->items = room_for(list->items, (list->room = list->room * 2 + 64) * sizeof *list->items);
  list->items[list->count++] = *tensor;
}

const qnn_tensor *tensor_list_find(const tensor_list *list, const char *name) {
  for (size_t i = list->count; i-- > 0;)
    if (!strcmp(list->items[i].name, name)) return &list->items[i];
  return NULL;
}

/* One that the graph has, by its name; or, where none is known, one that is described. */
static const char *find_or_read(const json *from, raw_data data, const tensor_list *known, qnn_tensor *tensor) {
  if (!known) return read_tensor(from, data, tensor);
  const char *name = from && from->kind == JSON_TEXT ? from->text : json_text(from, "name", "");
  const qnn_tensor *found = tensor_list_find(known, name);
  if (!found) return "a tensor that the graph does not have";
  *tensor = *found;
  return NULL;
}

const char *read_tensors(const json *from, raw_data data, const tensor_list *known, uint32_t *count, qnn_tensor **tensors) {
  size_t number = json_count(from);
  if (number > MOST_TENSORS) return "too many tensors";
  *tensors = zeroed(number ? number : 1, sizeof **tensors);
  *count = (uint32_t)number;
  for (size_t i = 0; i < number; i++) {
    const char *wrong = find_or_read(&from->items[i], data, known, &(*tensors)[i]);
    if (wrong) return wrong;
  }
  return NULL;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static const char *read_scalar(const json *from, qnn_scalar *scalar) {
  if (!take_u32(from, "dtype", &scalar->dtype)) return "a parameter's type";
  if (scalar->dtype == QNN_TEXT) return take_name(from, "text", &scalar->text) ? NULL : "a parameter's text";
  const char *bits = json_text(from, "bits", "");
  if (!*bits || strlen(bits) > 16 || strspn(bits, "0123456789abcdef") != strlen(bits)) return "a parameter's value";
  scalar->bits = strtoull(bits, NULL, 16);
  return NULL;
}

static const char *read_param(const json *from, raw_data data, const tensor_list *known, qnn_param *param) {
  const json *scalar = json_get(from, "scalar");
  if (!take_name(from, "name", &param->name)) return "a parameter without a name";
  param->is_tensor = !scalar;
  return scalar ? read_scalar(scalar, &param->scalar) : find_or_read(json_get(from, "tensor"), data, known, &param->tensor);
}

static int is_left_out(const left_out_list *without, const qnn_node *node, const qnn_param *param) {
  for (size_t i = 0; i < without->count; i++)
    if (!strcmp(without->items[i].type, node->type) && !strcmp(without->items[i].param, param->name))
      return !param->is_tensor && param->scalar.dtype != QNN_TEXT && param->scalar.bits == 0;
  return 0;
}

const char *read_node(const json *from, raw_data data, const tensor_list *known, const left_out_list *without, qnn_node *node) {
  const json *params = json_get(from, "params");
  memset(node, 0, sizeof *node);
  node->version = 1;
  if (!take_name(from, "name", &node->name) || !take_name(from, "package", &node->package) || !take_name(from, "type", &node->type))
    return "a node's name, package or type";
  if (json_count(params) > MOST_TENSORS) return "too many parameters";
  node->params = zeroed(json_count(params) + 1, sizeof *node->params);
  for (size_t i = 0; i < json_count(params); i++) {
    qnn_param *param = &node->params[node->param_count];
    const char *wrong = read_param(&params->items[i], data, known, param);
    if (wrong) return wrong;
    if (!is_left_out(without, node, param)) node->param_count++;
  }
  const char *wrong = read_tensors(json_get(from, "inputs"), data, known, &node->input_count, &node->inputs);
  return wrong ? wrong : read_tensors(json_get(from, "outputs"), data, known, &node->output_count, &node->outputs);
}

void free_node(qnn_node *node) {
  free(node->params);
  free(node->inputs);
  free(node->outputs);
}
