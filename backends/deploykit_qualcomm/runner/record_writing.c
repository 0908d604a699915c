#include "record_writing.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static struct {
  FILE *lines, *bytes;
  uint64_t written; /* to bytes */
  char *text;       /* of the line under way */
  size_t used, room;
} record;

typedef struct { uint64_t hash, offset; uint32_t size; } chunk;
static chunk *chunks;
static size_t chunk_count, chunk_room;

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void put(const char *format, ...) {
  for (;;) {
    va_list values;
    va_start(values, format);
    size_t room = record.room - record.used;
    int length = vsnprintf(record.text + record.used, room, format, values);
    va_end(values);
    if (length < 0) return;
    if ((size_t)length < room) {
      record.used += (size_t)length;
      return;
    }
    record.room = (record.room + (size_t)length + 1) * 2;
    record.text = room_for(record.text, record.room);
  }
}

static void put_quoted(const char *text) {
  put("\"");
  for (const unsigned char *p = (const unsigned char *)(text ? text : ""); *p; p++)
    put(*p == '"' || *p == '\\' ? "\\%c" : *p < 32 ? "\\u%04x" : "%c", *p);
  put("\"");
}

void put_number(const char *key, uint64_t value) { put(",\"%s\":%" PRIu64, key, value); }

void put_text(const char *key, const char *text) {
  put(",\"%s\":", key);
  put_quoted(text);
}

void put_texts(const char *key, const char *const *texts, int count) {
  put(",\"%s\":[", key);
  for (int i = 0; i < count; i++) {
    if (i) put(",");
    put_quoted(texts[i]);
  }
  put("]");
}

void put_version(const char *key, qnn_version version) {
  put(",\"%s\":[%u,%u,%u]", key, version.major, version.minor, version.patch);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static FILE *open_in(const char *folder, const char *name) {
  size_t length = strlen(folder) + strlen(name) + 2;
  char *path = room_for(NULL, length);
  snprintf(path, length, "%s/%s", folder, name);
  FILE *file = file_open(path, "wb");
  free(path);
  return file;
}

static void give_up(void) {
  if (record.lines) fclose(record.lines);
  record.lines = NULL;
}

int record_open(const char *folder) {
  record.text = room_for(NULL, record.room = 1 << 12);
  record.lines = open_in(folder, "record.jsonl");
  record.bytes = open_in(folder, "record.bin");
  if (!record.bytes) give_up();
  return record.lines != NULL;
}

void record_begin(const char *call) {
  record.used = 0;
  put("{\"call\":\"%s\"", call);
}

void record_end(qnn_status answer) {
  put(",\"answer\":%" PRIu64 "}\n", answer);
  if (!record.lines) return;
  if (fwrite(record.text, 1, record.used, record.lines) != record.used || fflush(record.lines)) give_up();
}

static uint64_t hash_of(const unsigned char *data, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ data[i]) * 1099511628211u;
  return hash;
}

/* Where the bytes lie in record.bin. */
static uint64_t keep(const void *data, uint32_t size) {
  if (!record.lines) return 0;
  uint64_t hash = hash_of(data, size);
  for (size_t i = 0; i < chunk_count; i++)
    if (chunks[i].hash == hash && chunks[i].size == size) return chunks[i].offset;
  if (chunk_count == chunk_room) chunks = room_for(chunks, (chunk_room = chunk_room * 2 + 64) * sizeof *chunks);
  uint64_t offset = record.written;
  chunks[chunk_count++] = (chunk){hash, offset, size};
  record.written += size;
  if (fwrite(data, 1, size, record.bytes) != size || fflush(record.bytes)) give_up();
  return offset;
}

/* ---- structures -------------------------------------------------------------------------------------------------- */

static void put_grids(const qnn_grid *grids, uint64_t count) {
  put(",\"scales\":[");
  for (uint64_t i = 0; i < count; i++) put(i ? ",%.9g" : "%.9g", (double)grids[i].scale);
  put("],\"offsets\":[");
  for (uint64_t i = 0; i < count; i++) put(i ? ",%d" : "%d", grids[i].offset);
  put("]");
}

static void put_bits_axis(const qnn_quant *quant) {
  put(",\"bits\":%u,\"axis\":%d,\"scales\":[", quant->bits_axis.bits, quant->bits_axis.axis);
  for (uint32_t i = 0; i < quant->bits_axis.count; i++) put(i ? ",%.9g" : "%.9g", (double)quant->bits_axis.scales[i]);
  put("],\"offsets\":[");
  for (uint32_t i = 0; quant->bits_axis.offsets && i < quant->bits_axis.count; i++)
    put(i ? ",%d" : "%d", quant->bits_axis.offsets[i]);
  put("]");
}

/* This structure alone does not say how many channels it has: the tensor does. */
static void put_lpbq(const qnn_tensor *tensor, const qnn_lpbq *lpbq) {
  int64_t axis = lpbq->axis < 0 ? lpbq->axis + (int64_t)tensor->rank : lpbq->axis;
  uint64_t channels = axis >= 0 && axis < (int64_t)tensor->rank ? tensor->dims[axis] : 0;
  put(",\"axis\":%d,\"blocks\":%u,\"scale_bits\":%u,\"storage\":%d", lpbq->axis, lpbq->blocks, lpbq->scale_bits, lpbq->storage);
  put_grids(lpbq->channels, channels);
  put(",\"block_scales\":[");
  for (uint64_t i = 0; i < channels * lpbq->blocks; i++)
    put(i ? ",%u" : "%u", lpbq->storage ? ((uint16_t *)lpbq->scales)[i] : ((uint8_t *)lpbq->scales)[i]);
  put("]");
}

static void put_quant(const qnn_tensor *tensor) {
  const qnn_quant *quant = &tensor->quant;
  if (quant->defined != 1) return;
  put(",\"quant\":{\"encoding\":%d", quant->encoding);
  switch (quant->encoding) {
    case ENCODING_TENSOR: put_grids(&quant->tensor, 1); break;
    case ENCODING_AXIS:
      put(",\"axis\":%d", quant->axis.axis);
      put_grids(quant->axis.items, quant->axis.count);
      break;
    case ENCODING_BITS_TENSOR:
      put(",\"bits\":%u,\"scales\":[%.9g],\"offsets\":[%d]", quant->bits_tensor.bits, (double)quant->bits_tensor.scale,
          quant->bits_tensor.offset);
      break;
    case ENCODING_BITS_AXIS: put_bits_axis(quant); break;
    case ENCODING_LPBQ: put_lpbq(tensor, quant->lpbq); break;
    default: break; /* its number alone: a replayer refuses it */
  }
  put("}");
}

static void put_members(const qnn_tensor *tensor) {
  put("{\"version\":%u,\"name\":", tensor->version);
  put_quoted(tensor->name);
  put(",\"role\":%d,\"format\":%u,\"dtype\":%u,\"dims\":[", tensor->role, tensor->format, tensor->dtype);
  for (uint32_t i = 0; tensor->dims && i < tensor->rank; i++) put(i ? ",%u" : "%u", tensor->dims[i]);
  put("]");
  put_quant(tensor);
  if (tensor->memory == 0 && tensor->data.bytes && tensor->data.size)
    put(",\"data\":[%" PRIu64 ",%u]", keep(tensor->data.bytes, tensor->data.size), tensor->data.size);
  put("}");
}

static void put_one(const qnn_tensor *tensor, int name_only) {
  if (name_only)
    put_quoted(tensor->name);
  else
    put_members(tensor);
}

void put_tensor(const char *key, const qnn_tensor *tensor) {
  put(",\"%s\":", key);
  put_members(tensor);
}

static void put_list(const char *key, const qnn_tensor *tensors, uint32_t count, int names_only) {
  put(",\"%s\":[", key);
  for (uint32_t i = 0; i < count; i++) {
    if (i) put(",");
    put_one(&tensors[i], names_only);
  }
  put("]");
}

void put_tensors(const char *key, const qnn_tensor *tensors, uint32_t count) { put_list(key, tensors, count, 0); }

static void put_scalar(const qnn_scalar *scalar) {
  put("{\"dtype\":%u,", scalar->dtype);
  if (scalar->dtype == QNN_TEXT) {
    put("\"text\":");
    put_quoted(scalar->text);
  } else { /* the value's own bytes only: behind them lies what was there before; hexadecimal, since it may be a float */
    uint32_t bytes = qnn_element_bytes(scalar->dtype);
    uint64_t mask = bytes >= 8 ? UINT64_MAX : ((uint64_t)1 << 8 * bytes) - 1;
    put("\"bits\":\"%" PRIx64 "\"", scalar->bits & mask);
  }
  put("}");
}

void put_node(const qnn_node *node, int names_only) {
  put_text("name", node->name);
  put_text("package", node->package);
  put_text("type", node->type);
  put(",\"params\":[");
  for (uint32_t i = 0; i < node->param_count; i++) {
    const qnn_param *param = &node->params[i];
    put(i ? ",{\"name\":" : "{\"name\":");
    put_quoted(param->name);
    put(param->is_tensor ? ",\"tensor\":" : ",\"scalar\":");
    if (param->is_tensor)
      put_one(&param->tensor, names_only);
    else
      put_scalar(&param->scalar);
    put("}");
  }
  put("]");
  put_list("inputs", node->inputs, node->input_count, names_only);
  put_list("outputs", node->outputs, node->output_count, names_only);
}

/* Of a backend's own structure, so many words as every version of it has. */
void put_configs(const qnn_config *const *configs, uint32_t words) {
  put(",\"configs\":[");
  for (size_t i = 0; configs && configs[i]; i++) {
    put(i ? ",{\"option\":%d" : "{\"option\":%d", configs[i]->option);
    const htp_config *own = configs[i]->option == 0 ? configs[i]->custom : NULL;
    if (own) {
      put(",\"custom\":%d,\"words\":[", own->option);
      for (uint32_t word = 0; word < words; word++) put(word ? ",%u" : "%u", own->words[word]);
      put("]");
    }
    put("}");
  }
  put("]");
}
