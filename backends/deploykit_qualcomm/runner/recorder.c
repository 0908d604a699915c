/* A QNN backend library that stands between a provider and a backend: it hands every call on and writes down what passes.
 *
 * The provider is given this library as its backend_path. The backend may be of another version than the provider was
 * made for: so a provider compiles with the exact backend of an older release, and partitions by what that one takes.
 * What cannot be seen through the provider's options is set in the environment:
 *   DEPLOYKIT_QNN_BACKEND  the backend library
 *   DEPLOYKIT_QNN_RECORD   an existing folder for the record; not set: nothing is recorded
 *   DEPLOYKIT_QNN_CORE     the minor number of the core API that the provider asks for, where the backend's is lower */
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "platform.h"
#include "record_writing.h"

enum { MOST_GRAPHS = 1024 };

static qnn_interface real, shown;
static const qnn_interface *shown_list[] = {&shown};
static qnn_handle graphs[MOST_GRAPHS];
static uint32_t graph_count;

/* Graphs are numbered in the order of their making: handles differ from run to run. Contexts have no number. */
static uint64_t number_of(qnn_handle graph) {
  for (uint32_t i = graph_count; i-- > 0;)
    if (graphs[i] == graph) return i;
  return MOST_GRAPHS;
}

/* ---- what the backend says about a node -------------------------------------------------------------------------- */

enum { LEVEL_ERROR = 1, MOST_SAID = 8 };

static qnn_log provider_log;
static int32_t provider_level;
static char said[MOST_SAID][512];
static int said_count, listening; /* listening only where the backend answers on the thread that asks */

static void on_log(const char *format, int32_t level, uint64_t time, va_list values) {
  if (listening && level == LEVEL_ERROR && said_count < MOST_SAID) {
    va_list copy;
    va_copy(copy, values);
    vsnprintf(said[said_count++], sizeof *said, format, copy);
    va_end(copy);
  }
  if (provider_log && level <= provider_level) provider_log(format, level, time, values);
}

static qnn_status log_create(qnn_log callback, int32_t level, qnn_handle *log) {
  provider_log = callback;
  provider_level = level;
  return real.f.log_create(on_log, level > LEVEL_ERROR ? level : LEVEL_ERROR, log);
}

static void listen(void) {
  said_count = 0;
  listening = 1;
}

static void put_said(void) {
  listening = 0;
  const char *lines[MOST_SAID];
  for (int i = 0; i < said_count; i++) lines[i] = said[i];
  put_texts("said", lines, said_count);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static qnn_status ended(qnn_status answer) {
  record_end(answer);
  return answer;
}

static qnn_status property_has_capability(uint32_t key) {
  qnn_status answer = real.f.property_has_capability(key);
  record_begin("property");
  put_number("key", key);
  return ended(answer);
}

static qnn_status backend_create(qnn_handle log, const qnn_config **configs, qnn_handle *backend) {
  qnn_status answer = real.f.backend_create(log, configs, backend);
  record_begin("backend");
  return ended(answer);
}

static qnn_status device_create(qnn_handle log, const qnn_config **configs, qnn_handle *device) {
  qnn_status answer = real.f.device_create(log, configs, device);
  record_begin("device");
  put_configs(configs, HTP_DEVICE_WORDS);
  return ended(answer);
}

static qnn_status context_create(qnn_handle backend, qnn_handle device, const qnn_config **configs, qnn_handle *context) {
  qnn_status answer = real.f.context_create(backend, device, configs, context);
  record_begin("context");
  put_configs(configs, HTP_GRAPH_WORDS);
  return ended(answer);
}

static qnn_status graph_create(qnn_handle context, const char *name, const qnn_config **configs, qnn_handle *graph) {
  qnn_status answer = real.f.graph_create(context, name, configs, graph);
  record_begin("graph");
  if (!answer && graph_count < MOST_GRAPHS) graphs[graph_count++] = *graph;
  put_number("graph", answer ? MOST_GRAPHS : number_of(*graph));
  put_text("name", name);
  put_configs(configs, HTP_GRAPH_WORDS);
  return ended(answer);
}

static qnn_status tensor_create_graph(qnn_handle graph, qnn_tensor *tensor) {
  qnn_status answer = real.f.tensor_create_graph(graph, tensor);
  record_begin("tensor");
  put_number("graph", number_of(graph));
  put_tensor("tensor", tensor);
  return ended(answer);
}

static qnn_status tensor_create_context(qnn_handle context, qnn_tensor *tensor) {
  qnn_status answer = real.f.tensor_create_context(context, tensor);
  record_begin("context-tensor");
  put_tensor("tensor", tensor);
  return ended(answer);
}

static qnn_status backend_validate(qnn_handle backend, qnn_node node) {
  listen();
  qnn_status answer = real.f.backend_validate(backend, node);
  record_begin("validate");
  put_node(&node, 0);
  put_said();
  return ended(answer);
}

static qnn_status graph_add_node(qnn_handle graph, qnn_node node) {
  listen();
  qnn_status answer = real.f.graph_add_node(graph, node);
  record_begin("node");
  put_number("graph", number_of(graph));
  put_node(&node, 1);
  put_said();
  return ended(answer);
}

static qnn_status graph_finalize(qnn_handle graph, qnn_handle profile, qnn_handle signal) {
  qnn_status answer = real.f.graph_finalize(graph, profile, signal);
  record_begin("finalize");
  put_number("graph", number_of(graph));
  return ended(answer);
}

static qnn_status context_binary(qnn_handle context, void *room, uint64_t size, uint64_t *written) {
  qnn_status answer = real.f.context_binary(context, room, size, written);
  record_begin("binary");
  put_number("bytes", answer ? 0 : *written);
  return ended(answer);
}

static qnn_status graph_execute(qnn_handle graph, const qnn_tensor *inputs, uint32_t input_count, qnn_tensor *outputs,
                                uint32_t output_count, qnn_handle profile, qnn_handle signal) {
  qnn_status answer = real.f.graph_execute(graph, inputs, input_count, outputs, output_count, profile, signal);
  record_begin("execute");
  put_number("graph", number_of(graph));
  put_tensors("inputs", inputs, input_count);
  put_tensors("outputs", outputs, output_count);
  return ended(answer);
}

/* ---- getting in between ------------------------------------------------------------------------------------------ */

static qnn_status not_supported(void) { return QNN_NOT_SUPPORTED; }

/* What the backend has behind the functions that every version has: its table ends where a word is no function. */
static void copy_later(const qnn_interface *from) {
  uint32_t count = 0;
  for (; count < QNN_LATER; count++) {
    const void *address;
    memcpy(&address, &from->later[count], sizeof address);
    if (!is_code(address)) break;
    real.later[count] = from->later[count];
  }
  for (; count < QNN_LATER; count++) real.later[count] = (qnn_other)not_supported;
}

static void stand_between(void) {
  const char *core = environment("DEPLOYKIT_QNN_CORE");
  uint32_t minor = (uint32_t)strtoul(core, NULL, 10);
  shown = real;
  if (minor > shown.api.core.minor) shown.api.core.minor = minor;
  shown.f.log_create = log_create;
  shown.f.property_has_capability = property_has_capability;
  shown.f.backend_create = backend_create;
  shown.f.backend_validate = backend_validate;
  shown.f.device_create = device_create;
  shown.f.context_create = context_create;
  shown.f.context_binary = context_binary;
  shown.f.graph_create = graph_create;
  shown.f.graph_add_node = graph_add_node;
  shown.f.graph_finalize = graph_finalize;
  shown.f.graph_execute = graph_execute;
  shown.f.tensor_create_graph = tensor_create_graph;
  shown.f.tensor_create_context = tensor_create_context;
}

EXPORT qnn_status QnnInterface_getProviders(const qnn_interface ***list, uint32_t *count) {
  const char *path = environment("DEPLOYKIT_QNN_BACKEND"), *folder = environment("DEPLOYKIT_QNN_RECORD"), *build = "";
  void *library = *path ? library_open(path) : NULL;
  qnn_get_providers ask = NULL;
  const qnn_interface **found = NULL;
  uint32_t number = 0;
  if (!library || !library_function(library, "QnnInterface_getProviders", &ask)) {
    fprintf(stderr, "deploykit: cannot load the backend %s: %s\n", path, library_error());
    return QNN_NOT_SUPPORTED;
  }
  qnn_status answer = ask(&found, &number);
  if (answer || !number) return answer ? answer : QNN_NOT_SUPPORTED;
  memcpy(&real, found[0], offsetof(qnn_interface, later));
  copy_later(found[0]);
  stand_between();
  if (*folder && !record_open(folder)) {
    fprintf(stderr, "deploykit: cannot write a record to %s\n", folder);
    return QNN_NOT_SUPPORTED; /* a provider that ran on would leave no trace of what was asked for */
  }
  real.f.backend_build_id(&build);
  record_begin("interface");
  put_version("core", real.api.core);
  put_version("backend", real.api.backend);
  put_text("build", build);
  record_end(0);
  *list = shown_list;
  *count = 1;
  return 0;
}
