/* Our own declarations of the parts of the QNN C API that recorder and replayer touch.
 *
 * Only layouts matter here, so the names are ours. They hold for core API 2.15 to 2.40 (QAIRT 2.22 to 2.51), as
 * running them against those libraries shows: the table of functions only grows at its end, a tensor keeps its size.
 * What differs between versions is data: ../data/qnn_api.toml. */
#ifndef DEPLOYKIT_QNN_API_H
#define DEPLOYKIT_QNN_API_H

#include <stdarg.h>
#include <stdint.h>

typedef uint64_t qnn_status; /* 0 where all is well */
typedef void *qnn_handle;
typedef struct { uint32_t major, minor, patch; } qnn_version;

enum { QNN_NOT_SUPPORTED = 1000 };

/* ---- quantization ------------------------------------------------------------------------------------------------ */

enum {
  ENCODING_TENSOR = 0,
  ENCODING_AXIS = 1,
  ENCODING_BITS_TENSOR = 2,
  ENCODING_BITS_AXIS = 3,
  ENCODING_LPBQ = 5,
  UNDEFINED = 0x7FFFFFFF
};

typedef struct { float scale; int32_t offset; } qnn_grid;

typedef struct {
  int32_t axis;
  qnn_grid *channels;
  uint32_t blocks; /* per channel */
  uint32_t scale_bits;
  int32_t storage; /* 0: a block's scale is a byte, 1: two */
  void *scales;
} qnn_lpbq;

typedef struct {
  int32_t defined; /* 1: the encoding counts */
  int32_t encoding;
  union {
    qnn_grid tensor;
    struct { uint32_t bits; float scale; int32_t offset; } bits_tensor;
    struct { int32_t axis; uint32_t count; qnn_grid *items; } axis;
    struct { uint32_t bits; int32_t axis; uint32_t count; float *scales; int32_t *offsets; } bits_axis;
    qnn_lpbq *lpbq;
    uint64_t room[4];
  };
} qnn_quant;

/* ---- tensors and nodes ------------------------------------------------------------------------------------------- */

enum { TENSOR_INPUT = 0, TENSOR_OUTPUT = 1, TENSOR_NATIVE = 3, TENSOR_STATIC = 4, TENSOR_NONE = 5 };

/* Version 1 ends behind `data`; version 2 has every member. The size is that of version 2 in both. */
typedef struct {
  uint32_t version, unused;
  uint32_t id;
  const char *name;
  int32_t role;
  uint32_t format;
  uint32_t dtype;
  qnn_quant quant;
  uint32_t rank;
  uint32_t *dims;
  int32_t memory; /* 0: plain bytes */
  struct { void *bytes; uint32_t size; } data;
  uint8_t *dynamic_dims;
  struct { int32_t layout; uint32_t elements, dims; } sparse;
  uint8_t is_produced;
} qnn_tensor;

typedef struct {
  uint32_t dtype;
  union { uint64_t bits; const char *text; };
} qnn_scalar;

typedef struct {
  int32_t is_tensor;
  const char *name;
  union { qnn_scalar scalar; qnn_tensor tensor; };
} qnn_param;

typedef struct {
  int32_t version; /* 1 */
  const char *name, *package, *type;
  uint32_t param_count;
  qnn_param *params;
  uint32_t input_count;
  qnn_tensor *inputs;
  uint32_t output_count;
  qnn_tensor *outputs;
} qnn_node;

enum { QNN_TEXT = 0x0608 }; /* the data type of a text */

/* Bytes of one element: the data type's low byte holds the bits in decimal digits (0x0416: 16). Values of fewer than
 * eight bits come one in a byte. */
static inline uint32_t qnn_element_bytes(uint32_t dtype) {
  uint32_t low = dtype & 0xFF, bits = (low >> 4) * 10 + (low & 15);
  return bits < 8 ? 1 : bits / 8;
}

/* ---- configurations ---------------------------------------------------------------------------------------------- */

typedef struct {
  int32_t option; /* 0: a structure of the backend's own */
  union { const void *custom; uint64_t value; };
} qnn_config;

enum { HTP_DEVICE_SOC = 0, HTP_DEVICE_ARCH = 1, HTP_DEVICE_WORDS = 2, HTP_GRAPH_WORDS = 3, HTP_MOST_WORDS = 7 };

/* The backend's own structure: which option, then words. At which word a value starts differs by version. */
typedef struct {
  int32_t option;
  uint32_t words[HTP_MOST_WORDS];
} htp_config;

/* ---- the table of functions -------------------------------------------------------------------------------------- */

typedef void (*qnn_log)(const char *format, int32_t level, uint64_t time, va_list values);
typedef void (*qnn_other)(void); /* a function that is only handed on */

typedef struct {
  qnn_status (*property_has_capability)(uint32_t key);
  qnn_status (*backend_create)(qnn_handle log, const qnn_config **configs, qnn_handle *backend);
  qnn_other backend_set_config, backend_api_version;
  qnn_status (*backend_build_id)(const char **id);
  qnn_other backend_register_package, backend_operations;
  qnn_status (*backend_validate)(qnn_handle backend, qnn_node node);
  qnn_status (*backend_free)(qnn_handle backend);
  qnn_status (*context_create)(qnn_handle backend, qnn_handle device, const qnn_config **configs, qnn_handle *context);
  qnn_other context_set_config;
  qnn_status (*context_binary_size)(qnn_handle context, uint64_t *size);
  qnn_status (*context_binary)(qnn_handle context, void *room, uint64_t size, uint64_t *written);
  qnn_status (*context_from_binary)(qnn_handle backend, qnn_handle device, const qnn_config **configs, const void *data,
                                    uint64_t size, qnn_handle *context, qnn_handle profile);
  qnn_status (*context_free)(qnn_handle context, qnn_handle profile);
  qnn_status (*graph_create)(qnn_handle context, const char *name, const qnn_config **configs, qnn_handle *graph);
  qnn_other graph_create_subgraph, graph_set_config;
  qnn_status (*graph_add_node)(qnn_handle graph, qnn_node node);
  qnn_status (*graph_finalize)(qnn_handle graph, qnn_handle profile, qnn_handle signal);
  qnn_status (*graph_retrieve)(qnn_handle context, const char *name, qnn_handle *graph);
  qnn_status (*graph_execute)(qnn_handle graph, const qnn_tensor *inputs, uint32_t input_count, qnn_tensor *outputs,
                              uint32_t output_count, qnn_handle profile, qnn_handle signal);
  qnn_other graph_execute_async;
  qnn_status (*tensor_create_context)(qnn_handle context, qnn_tensor *tensor);
  qnn_status (*tensor_create_graph)(qnn_handle graph, qnn_tensor *tensor);
  qnn_status (*log_create)(qnn_log callback, int32_t level, qnn_handle *log);
  qnn_other log_set_level, log_free, profile[7], memory[2], device_platform[3];
  qnn_status (*device_create)(qnn_handle log, const qnn_config **configs, qnn_handle *device);
  qnn_other device_set_config, device_info;
  qnn_status (*device_free)(qnn_handle device);
  qnn_other signal[4];
  qnn_status (*error_message)(qnn_status code, const char **text);
} qnn_functions;

enum { QNN_LATER = 40 }; /* more functions than any version so far has behind these */

typedef struct {
  uint32_t backend_id;
  const char *provider;
  struct { qnn_version core, backend; } api;
  qnn_functions f;
  qnn_other later[QNN_LATER];
} qnn_interface;

typedef qnn_status (*qnn_get_providers)(const qnn_interface ***list, uint32_t *count);

_Static_assert(sizeof(qnn_quant) == 40, "quantization");
_Static_assert(sizeof(qnn_tensor) == 144, "tensor");
_Static_assert(sizeof(qnn_node) == 80, "node");
_Static_assert(sizeof(qnn_param) == 160, "parameter");
_Static_assert(sizeof(qnn_functions) == 49 * sizeof(void *), "functions");

#endif
