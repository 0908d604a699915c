/* Builds a recorded QNN graph again through the QNN API, with any backend library.
 *
 *   replayer REQUEST.json
 *
 * The request, paths relative to the working folder:
 *   backend      the backend library                record     the folder with record.jsonl and record.bin
 *   soc_model, htp_arch   the chip, where the backend lets it be chosen; 0 or left out: not asked for
 *   device_word  at which word of its structure this version has a device option's value: 0, or 1 (from ../data/qnn_api.toml)
 *   leave_out    list of {"type", "param"}: parameters that this version does not know, left out where they are 0
 *   build        false: only ask about every recorded node; else build the graphs, too
 *   binary       where to write the context binary
 *   execute      true: repeat the recorded executions, and compare the outputs with the recorded ones
 *
 * Every line is one object with "event": "backend", "call", "verdict" (a node), "left", "binary", "output", "failure",
 * "crash", and at the end "result", whose "failures" is 0 where everything asked for was done. A node that is refused
 * is no failure where it is only asked about, and is one in a graph that is built. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "platform.h"
#include "record_reading.h"

enum { MOST_GRAPHS = 1024, MOST_LEFT_OUT = 64, MOST_CONFIGS = 16, MOST_SAID = 8, LEVEL_ERROR = 1 };

typedef struct {
  qnn_handle handle;
  int made;
  tensor_list tensors;
} graph;

static struct {
  const json *request;
  const qnn_interface *q;
  qnn_handle log, backend, device, context;
  graph graphs[MOST_GRAPHS];
  raw_data data;
  left_out_list without;
  tensor_list nothing;
  const char **refused;
  size_t refused_count;
  int failures;
} R;

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void begin(const char *event) { printf("\n{\"event\":\"%s\"", event); } /* a library may have left its line open */

static void text_field(const char *name, const char *text) {
  printf(",\"%s\":", name);
  json_print_text(stdout, text);
}

static void end(void) {
  puts("}");
  fflush(stdout);
}

static void failure(const char *what, const char *why) {
  R.failures++;
  begin("failure");
  text_field("what", what);
  text_field("why", why);
  end();
}

static void on_crash(const char *code) {
  begin("crash");
  text_field("code", code);
  end();
}

/* What the backend says while it judges a node. */
static char said[MOST_SAID][512];
static int said_count, listening;

static void on_log(const char *format, int32_t level, uint64_t time, va_list values) {
  (void)time;
  if (listening && level == LEVEL_ERROR && said_count < MOST_SAID) vsnprintf(said[said_count++], sizeof *said, format, values);
}

static void listen(void) {
  said_count = 0;
  listening = 1;
}

static void put_said(void) {
  listening = 0;
  printf(",\"said\":[");
  for (int i = 0; i < said_count; i++) {
    if (i) printf(",");
    json_print_text(stdout, said[i]);
  }
  printf("]");
}

static int called(const char *name, qnn_status answer, double since) {
  const char *message = NULL;
  begin("call");
  text_field("name", name);
  printf(",\"answer\":%" PRIu64 ",\"seconds\":%.3f", answer, seconds_now() - since);
  end();
  if (!answer) return 1;
  int known = R.q->f.error_message && R.q->f.error_message(answer, &message) == 0 && message;
  failure(name, known ? message : "the backend refuses");
  return 0;
}

static void say_node(const char *event, const qnn_node *node, qnn_status answer) {
  begin(event);
  text_field("name", node->name);
  text_field("type", node->type);
  printf(",\"answer\":%" PRIu64, answer);
  put_said();
  end();
}

/* ---- configurations ---------------------------------------------------------------------------------------------- */

/* Of a graph's options those whose value is a number in every version: optimization, precision, VTCM, foldings and
 * threads. Others may be pointers, which a record does not hold. */
enum { FIRST_PLAIN = 1, LAST_PLAIN = 6 };

static void say_left(const char *what, int64_t option) {
  begin("left");
  text_field("what", what);
  printf(",\"option\":%" PRId64, option);
  end();
}

static const qnn_config **graph_configs(const json *list) {
  static htp_config own[MOST_CONFIGS];
  static qnn_config configs[MOST_CONFIGS];
  static const qnn_config *taken[MOST_CONFIGS + 1];
  size_t count = 0;
  for (size_t i = 0; i < json_count(list); i++) {
    const json *from = &list->items[i], *words = json_get(from, "words");
    int option = json_int(from, "custom", 0);
    if (json_count(words) != HTP_GRAPH_WORDS || option < FIRST_PLAIN || option > LAST_PLAIN || count == MOST_CONFIGS) {
      say_left("graph configuration", words ? option : json_int(from, "option", 0));
      continue;
    }
    memset(&own[count], 0, sizeof *own);
    own[count].option = option;
    for (size_t word = 0; word < HTP_GRAPH_WORDS; word++) own[count].words[word] = (uint32_t)words->items[word].integer;
    configs[count] = (qnn_config){.option = 0, .custom = &own[count]};
    taken[count] = &configs[count];
    count++;
  }
  taken[count] = NULL;
  return taken;
}

static int create_device(void) {
  htp_config soc = {.option = HTP_DEVICE_SOC}, arch = {.option = HTP_DEVICE_ARCH};
  qnn_config configs[] = {{.option = 0, .custom = &soc}, {.option = 0, .custom = &arch}};
  const qnn_config *asked[3] = {NULL};
  int place = json_int(R.request, "device_word", 0) ? 1 : 0, count = 0;
  soc.words[place] = (uint32_t)json_int(R.request, "soc_model", 0);
  arch.words[place + 1] = (uint32_t)json_int(R.request, "htp_arch", 0); /* before it stands the device's number */
  if (soc.words[place]) asked[count++] = &configs[0];
  if (arch.words[place + 1]) asked[count++] = &configs[1];
  double since = seconds_now();
  return called("device", R.q->f.device_create(R.log, count ? asked : NULL, &R.device), since);
}

/* ---- the calls of a record --------------------------------------------------------------------------------------- */

static int building(void) { return json_int(R.request, "build", 1); }

static graph *graph_of(const json *line, int made) {
  const json *number = json_get(line, "graph");
  if (!number || number->kind != JSON_NUMBER || number->integer < 0 || number->integer >= MOST_GRAPHS) return NULL;
  graph *found = &R.graphs[number->integer];
  return found->made == made ? found : NULL;
}

static const char *validate(const json *line) {
  qnn_node node;
  const char *wrong = read_node(line, R.data, NULL, &R.without, &node);
  if (wrong) return wrong;
  listen();
  qnn_status answer = R.q->f.backend_validate(R.backend, node);
  say_node("verdict", &node, answer);
  if (answer) {
    R.refused = room_for(R.refused, (R.refused_count + 1) * sizeof *R.refused);
    R.refused[R.refused_count++] = node.name;
  }
  free_node(&node);
  return NULL;
}

static const char *create_graph(const json *line) {
  graph *made = graph_of(line, 0);
  if (!made) return "a graph's number";
  double since = seconds_now();
  qnn_status answer = R.q->f.graph_create(R.context, json_text(line, "name", "graph"), graph_configs(json_get(line, "configs")),
                                          &made->handle);
  made->made = called("graph", answer, since);
  return NULL;
}

static const char *add_tensor(const json *line) {
  graph *owner = graph_of(line, 1);
  qnn_tensor tensor;
  const char *wrong = owner ? read_tensor(json_get(line, "tensor"), R.data, &tensor) : "a tensor of no graph";
  if (wrong) return wrong;
  qnn_status answer = R.q->f.tensor_create_graph(owner->handle, &tensor);
  if (answer) failure("a tensor is refused", tensor.name);
  tensor_list_add(&owner->tensors, &tensor);
  return NULL;
}

static int was_refused(const char *name) {
  for (size_t i = 0; i < R.refused_count; i++)
    if (!strcmp(R.refused[i], name)) return 1;
  return 0;
}

/* A node that is refused when it is asked about may be taken here, and what comes out is then nobody's promise. */
static const char *add_node(const json *line) {
  graph *owner = graph_of(line, 1);
  qnn_node node;
  const char *wrong = owner ? read_node(line, R.data, &owner->tensors, &R.without, &node) : "a node of no graph";
  if (wrong) return wrong;
  if (was_refused(node.name)) {
    failure("a node is refused", node.name);
  } else {
    listen();
    qnn_status answer = R.q->f.graph_add_node(owner->handle, node);
    if (answer) {
      say_node("verdict", &node, answer);
      failure("a node is refused", node.name);
    }
    listening = 0;
  }
  free_node(&node);
  return NULL;
}

static const char *finalize(const json *line) {
  graph *owner = graph_of(line, 1);
  if (!owner) return "an end of no graph";
  double since = seconds_now();
  called("finalize", R.q->f.graph_finalize(owner->handle, NULL, NULL), since);
  return NULL;
}

/* The recorded tensors carry the data; the ids are those of this graph. */
static const char *with_ids(const graph *owner, qnn_tensor *tensors, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    const qnn_tensor *known = tensor_list_find(&owner->tensors, tensors[i].name);
    if (!known || !tensors[i].data.bytes) return "an execution's tensors";
    tensors[i].id = known->id;
  }
  return NULL;
}

static void compare(const qnn_tensor *made, const unsigned char *wanted) {
  uint32_t different = 0;
  for (uint32_t i = 0; i < made->data.size; i++) different += ((unsigned char *)made->data.bytes)[i] != wanted[i];
  begin("output");
  text_field("name", made->name);
  printf(",\"bytes\":%u,\"different\":%u", made->data.size, different);
  end();
}

static const char *execute(const json *line) {
  graph *owner = graph_of(line, 1);
  qnn_tensor *inputs, *outputs;
  uint32_t input_count, output_count;
  if (!owner) return "an execution of no graph";
  const char *wrong = read_tensors(json_get(line, "inputs"), R.data, NULL, &input_count, &inputs);
  if (!wrong) wrong = read_tensors(json_get(line, "outputs"), R.data, NULL, &output_count, &outputs);
  if (!wrong) wrong = with_ids(owner, inputs, input_count);
  if (!wrong) wrong = with_ids(owner, outputs, output_count);
  if (wrong) return wrong;
  unsigned char **wanted = room_for(NULL, output_count * sizeof *wanted);
  for (uint32_t i = 0; i < output_count; i++) {
    wanted[i] = outputs[i].data.bytes;
    outputs[i].data.bytes = room_for(NULL, outputs[i].data.size);
    memset(outputs[i].data.bytes, 0, outputs[i].data.size);
  }
  double since = seconds_now();
  qnn_status answer = R.q->f.graph_execute(owner->handle, inputs, input_count, outputs, output_count, NULL, NULL);
  if (called("execute", answer, since))
    for (uint32_t i = 0; i < output_count; i++) compare(&outputs[i], wanted[i]);
  return NULL;
}

static const char *replay_line(const json *line) {
  const char *call = json_text(line, "call", "");
  if (!strcmp(call, "validate")) return validate(line);
  if (!building()) return NULL;
  if (!strcmp(call, "context-tensor")) return "a tensor shared by graphs, which is not replayed";
  if (!strcmp(call, "graph")) return create_graph(line);
  if (!strcmp(call, "tensor")) return add_tensor(line);
  if (!strcmp(call, "node")) return add_node(line);
  if (!strcmp(call, "finalize")) return finalize(line);
  if (!strcmp(call, "execute") && json_int(R.request, "execute", 0)) return execute(line);
  return NULL;
}

/* ---- a whole request --------------------------------------------------------------------------------------------- */

static char *load(const char *folder, const char *name, size_t *size) {
  size_t length = strlen(folder) + strlen(name) + 2;
  char *path = room_for(NULL, length);
  snprintf(path, length, "%s/%s", folder, name);
  char *text = file_load(path, size);
  if (!text) failure("cannot be read", path);
  return text;
}

static void replay(void) {
  const char *folder = json_text(R.request, "record", "");
  char *data = load(folder, "record.bin", &R.data.size), *text = load(folder, "record.jsonl", NULL);
  if (!data || !text) return;
  R.data.bytes = (const unsigned char *)data;
  for (char *line = text, *next; *line && !R.failures; line = next) {
    size_t length = strcspn(line, "\n");
    if (!line[length]) return; /* the recorder died within this line */
    next = line + length + 1;
    line[length] = 0;
    const json *value = json_parse(line);
    const char *wrong = value ? replay_line(value) : "a line that is no JSON";
    if (wrong) failure("the record is damaged", wrong);
  }
}

static void read_left_out(void) {
  const json *list = json_get(R.request, "leave_out");
  R.without.items = room_for(NULL, MOST_LEFT_OUT * sizeof *R.without.items);
  for (size_t i = 0; i < json_count(list) && i < MOST_LEFT_OUT; i++)
    R.without.items[R.without.count++] =
        (left_out){json_text(&list->items[i], "type", ""), json_text(&list->items[i], "param", "")};
}

static int open_backend(void) {
  const char *path = json_text(R.request, "backend", ""), *build = "";
  void *library = *path ? library_open(path) : NULL;
  qnn_get_providers ask = NULL;
  const qnn_interface **list = NULL;
  uint32_t count = 0;
  if (!library || !library_function(library, "QnnInterface_getProviders", &ask)) {
    failure("the backend cannot be loaded", library_error());
    return 0;
  }
  if (ask(&list, &count) || !count) {
    failure("the backend offers no interface", path);
    return 0;
  }
  R.q = list[0];
  R.q->f.backend_build_id(&build);
  begin("backend");
  printf(",\"core\":[%u,%u,%u]", R.q->api.core.major, R.q->api.core.minor, R.q->api.core.patch);
  printf(",\"api\":[%u,%u,%u]", R.q->api.backend.major, R.q->api.backend.minor, R.q->api.backend.patch);
  text_field("build", build);
  end();
  return 1;
}

static int create_all(void) {
  double since = seconds_now();
  if (!called("log", R.q->f.log_create(on_log, LEVEL_ERROR, &R.log), since)) return 0;
  since = seconds_now();
  if (!called("backend", R.q->f.backend_create(R.log, NULL, &R.backend), since) || !create_device()) return 0;
  since = seconds_now();
  return called("context", R.q->f.context_create(R.backend, R.device, NULL, &R.context), since);
}

static void take_binary(const char *path) {
  uint64_t size = 0, written = 0;
  double since = seconds_now();
  if (!called("binary size", R.q->f.context_binary_size(R.context, &size), since)) return;
  void *room = room_for(NULL, (size_t)size);
  since = seconds_now();
  if (!called("binary", R.q->f.context_binary(R.context, room, size, &written), since)) return;
  FILE *out = file_open(path, "wb");
  size_t stored = out ? fwrite(room, 1, (size_t)written, out) : 0;
  if (!out || fclose(out) || stored != written) {
    failure("cannot be written", path);
    return;
  }
  begin("binary");
  printf(",\"bytes\":%" PRIu64, written);
  end();
}

int main(int count, char **arguments) {
  catch_crashes(on_crash);
  R.request = count == 2 ? json_parse(file_load(arguments[1], NULL)) : NULL;
  if (!R.request || R.request->kind != JSON_OBJECT) {
    fputs("usage: replayer REQUEST.json, a JSON object\n", stderr);
    return 2;
  }
  read_left_out();
  const char *binary = json_text(R.request, "binary", "");
  if (open_backend() && create_all()) {
    replay();
    if (!R.failures && building() && *binary) take_binary(binary);
  }
  begin("result");
  printf(",\"failures\":%d,\"refused\":%zu", R.failures, R.refused_count);
  end();
  leave(R.failures ? 1 : 0);
}
