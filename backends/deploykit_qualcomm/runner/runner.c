/* Opens a model with ONNX Runtime and its QNN provider as a request file says, and answers with JSON lines.
 *
 *   runner.exe REQUEST.json
 *
 * onnxruntime.dll and the provider's libraries lie beside this program. The request, paths relative to the working folder:
 *   model              the .onnx file; left out: ONNX Runtime is loaded, and nothing else is done
 *   provider_options   object of texts for the QNN provider
 *   session_config     object of texts, such as ep.context_enable
 *   optimization       ONNX Runtime's own level: 0, 1, 2 or 99 (the default)
 *   log_severity       0 verbose .. 4 fatal; default 2, at which the provider names the nodes that it refuses, and why
 *   runs               list of {"inputs": {name: .npy}, "outputs": prefix}; output number N becomes PREFIX + N + ".npy"
 *
 * Every line is one object with "event": "runtime", "log", "session", "run", "failure", "crash", and at the end "result",
 * whose "failures" is 0 where everything asked for was done. Libraries print lines of their own between them.
 *
 * ONNX Runtime's C API is a table of functions in a fixed order that only grows; the numbers below are places in it. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <windows.h>

#include "json.h"
#include "npy.h"

typedef void *handle;
typedef handle status; /* NULL where all is well */
typedef void (*log_function)(void *, int, const char *, const char *, const char *, const char *);

/* name, place in the table, result, arguments */
#define FUNCTIONS(F)                                                                                       \
  F(GetErrorMessage, 2, const char *, (status))                                                            \
  F(CreateEnvWithCustomLogger, 4, status, (log_function, void *, int, const char *, handle *))             \
  F(CreateSession, 7, status, (handle, const wchar_t *, handle, handle *))                                 \
  F(Run, 9, status,                                                                                        \
    (handle, handle, const char *const *, const handle *, size_t, const char *const *, size_t, handle *))  \
  F(CreateSessionOptions, 10, status, (handle *))                                                          \
  F(SetSessionLogSeverityLevel, 22, status, (handle, int))                                                 \
  F(SetSessionGraphOptimizationLevel, 23, status, (handle, int))                                           \
  F(SessionGetInputCount, 30, status, (handle, size_t *))                                                  \
  F(SessionGetOutputCount, 31, status, (handle, size_t *))                                                 \
  F(SessionGetInputName, 36, status, (handle, size_t, handle, char **))                                    \
  F(SessionGetOutputName, 37, status, (handle, size_t, handle, char **))                                   \
  F(CreateTensorWithDataAsOrtValue, 49, status, (handle, void *, size_t, const int64_t *, size_t, int, handle *)) \
  F(GetTensorMutableData, 51, status, (handle, void **))                                                   \
  F(GetTensorElementType, 60, status, (handle, int *))                                                     \
  F(GetDimensionsCount, 61, status, (handle, size_t *))                                                    \
  F(GetDimensions, 62, status, (handle, int64_t *, size_t))                                                \
  F(GetTensorTypeAndShape, 65, status, (handle, handle *))                                                 \
  F(CreateCpuMemoryInfo, 69, status, (int, int, handle *))                                                 \
  F(GetAllocatorWithDefaultOptions, 78, status, (handle *))                                                \
  F(AddSessionConfigEntry, 130, status, (handle, const char *, const char *))                              \
  F(SessionOptionsAppendExecutionProvider, 216, status,                                                    \
    (handle, const char *, const char *const *, const char *const *, size_t))
#define PLACE(name, place, result, arguments) AT_##name = place,
#define TYPE(name, place, result, arguments) typedef result(*name##_type) arguments;
#define API(name) ((name##_type)api[AT_##name])

enum { FUNCTIONS(PLACE) NEWEST_API = 22, OLDEST_API = 16, MOST = 64 };
FUNCTIONS(TYPE)

typedef struct { void *const *(*get_api)(uint32_t version); const char *(*get_version)(void); } api_base;
typedef const api_base *(*get_api_base)(void);

static void *const *api;
static const json *request;
static int failures;
static CRITICAL_SECTION printing;

/* ---- answers: one line at a time, whichever thread it comes from --------------------------------------------- */

static void begin(const char *event) {
  EnterCriticalSection(&printing);
  printf("\n{\"event\":\"%s\"", event); /* a library may have left its own line open */
}

static void text_field(const char *name, const char *text) {
  printf(",\"%s\":", name);
  json_print_text(stdout, text);
}

static void end(void) {
  puts("}");
  fflush(stdout);
  LeaveCriticalSection(&printing);
}

static void failure(const char *what, const char *why) {
  failures++;
  begin("failure");
  text_field("what", what);
  text_field("why", why);
  end();
}

static void on_log(void *param, int severity, const char *category, const char *id, const char *where, const char *text) {
  (void)param, (void)category, (void)id;
  begin("log");
  printf(",\"severity\":%d", severity);
  text_field("where", where);
  text_field("text", text);
  end();
}

static LONG WINAPI on_crash(EXCEPTION_POINTERS *found) {
  begin("crash");
  printf(",\"code\":\"0x%08lx\"", found->ExceptionRecord->ExceptionCode);
  end();
  TerminateProcess(GetCurrentProcess(), 4);
  return EXCEPTION_EXECUTE_HANDLER;
}

static int good(const char *what, status answer) {
  if (answer) failure(what, API(GetErrorMessage)(answer));
  return !answer;
}

static double seconds_now(void) {
  LARGE_INTEGER now, rate;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&rate);
  return (double)now.QuadPart / (double)rate.QuadPart;
}

/* ---- a session ------------------------------------------------------------------------------------------------ */

static int open_runtime(void) {
  HMODULE library = LoadLibraryW(L"onnxruntime.dll");
  get_api_base base = library ? (get_api_base)(void *)GetProcAddress(library, "OrtGetApiBase") : NULL;
  if (!base) {
    char code[32];
    snprintf(code, sizeof code, "error %lu", GetLastError());
    failure("onnxruntime.dll cannot be loaded", code);
    return 0;
  }
  uint32_t version = NEWEST_API;
  while (version >= OLDEST_API && !(api = base()->get_api(version))) version--;
  if (!api) {
    failure("onnxruntime.dll offers no API that is known here", base()->get_version());
    return 0;
  }
  begin("runtime");
  text_field("version", base()->get_version());
  printf(",\"api\":%u", version);
  end();
  return 1;
}

static int add_configs(handle options) {
  const json *configs = json_get(request, "session_config");
  for (size_t i = 0; i < json_count(configs); i++) {
    const char *key = configs->keys[i];
    if (!good(key, API(AddSessionConfigEntry)(options, key, json_text(configs, key, "")))) return 0;
  }
  return 1;
}

static int add_provider(handle options) {
  const json *given = json_get(request, "provider_options");
  const char *keys[MOST], *values[MOST];
  size_t count = json_count(given);
  if (count > MOST) {
    failure("provider options", "too many");
    return 0;
  }
  for (size_t i = 0; i < count; i++) {
    keys[i] = given->keys[i];
    values[i] = json_text(given, keys[i], "");
  }
  return good("QNN provider", API(SessionOptionsAppendExecutionProvider)(options, "QNN", keys, values, count));
}

static handle open_session(void) {
  handle env = NULL, options = NULL, session = NULL;
  int severity = json_int(request, "log_severity", 2), level = json_int(request, "optimization", 99);
  if (!good("environment", API(CreateEnvWithCustomLogger)(on_log, NULL, severity, "deploykit", &env)) ||
      !good("session options", API(CreateSessionOptions)(&options)) ||
      !good("log severity", API(SetSessionLogSeverityLevel)(options, severity)) ||
      !good("optimization", API(SetSessionGraphOptimizationLevel)(options, level)) || !add_configs(options) ||
      !add_provider(options))
    return NULL;
  double since = seconds_now();
  const wchar_t *model = file_path(json_text(request, "model", ""));
  if (!good("session", API(CreateSession)(env, model, options, &session))) return NULL;
  begin("session");
  printf(",\"seconds\":%.3f", seconds_now() - since);
  end();
  return session;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

/* The place in this list is ONNX's number of the element type; "" is not read or written. */
static const char *const type_names[] = {"", "f4", "u1", "i1", "u2", "i2", "i4", "i8", "", "b1", "f2", "f8", "u4", "u8"};
enum { TYPE_COUNT = sizeof type_names / sizeof *type_names };

static int type_number(const char *name) {
  for (int i = 1; i < TYPE_COUNT; i++)
    if (!strcmp(type_names[i], name)) return i;
  return 0;
}

static handle load_value(const char *name, const char *path) {
  static handle memory;
  npy array = {0};
  handle value = NULL;
  if (!memory && !good("memory", API(CreateCpuMemoryInfo)(1, 0, &memory))) return NULL;
  if (!npy_load(path, &array) || !type_number(array.type)) {
    failure("an input cannot be read", name);
    return NULL;
  }
  status made = API(CreateTensorWithDataAsOrtValue)(memory, array.data, array.bytes, array.dims, array.rank,
                                                    type_number(array.type), &value);
  return good(name, made) ? value : NULL;
}

static void store_value(handle value, const char *prefix, size_t place) {
  npy array = {0};
  int type = 0;
  handle shape = NULL;
  char path[1024];
  if (!good("shape", API(GetTensorTypeAndShape)(value, &shape)) || !good("type", API(GetTensorElementType)(shape, &type)) ||
      !good("rank", API(GetDimensionsCount)(shape, &array.rank)))
    return;
  if (type <= 0 || type >= TYPE_COUNT || !*type_names[type] || array.rank > NPY_MOST_AXES) {
    failure("an output has a type that is not written", prefix);
    return;
  }
  if (!good("dimensions", API(GetDimensions)(shape, array.dims, array.rank)) ||
      !good("data", API(GetTensorMutableData)(value, &array.data)))
    return;
  strcpy(array.type, type_names[type]);
  array.bytes = npy_bytes(&array);
  int length = snprintf(path, sizeof path, "%s%zu.npy", prefix, place);
  if (length < 0 || (size_t)length >= sizeof path || !npy_store(path, &array)) failure("cannot be written", prefix);
}

/* ---- runs --------------------------------------------------------------------------------------------------------- */

typedef struct { size_t count; char *names[MOST]; } name_list;

static int read_names(handle session, name_list *inputs, name_list *outputs) {
  handle allocator = NULL;
  if (!good("allocator", API(GetAllocatorWithDefaultOptions)(&allocator)) ||
      !good("inputs", API(SessionGetInputCount)(session, &inputs->count)) ||
      !good("outputs", API(SessionGetOutputCount)(session, &outputs->count)))
    return 0;
  if (inputs->count > MOST || outputs->count > MOST) {
    failure("model", "too many inputs or outputs");
    return 0;
  }
  for (size_t i = 0; i < inputs->count; i++)
    if (!good("input", API(SessionGetInputName)(session, i, allocator, &inputs->names[i]))) return 0;
  for (size_t i = 0; i < outputs->count; i++)
    if (!good("output", API(SessionGetOutputName)(session, i, allocator, &outputs->names[i]))) return 0;
  return 1;
}

static int run_once(handle session, const json *asked, const name_list *inputs, const name_list *outputs) {
  handle ins[MOST] = {0}, outs[MOST] = {0};
  const json *files = json_get(asked, "inputs");
  for (size_t i = 0; i < inputs->count; i++)
    if (!(ins[i] = load_value(inputs->names[i], json_text(files, inputs->names[i], "")))) return 0;
  status done = API(Run)(session, NULL, (const char *const *)inputs->names, ins, inputs->count,
                         (const char *const *)outputs->names, outputs->count, outs);
  if (!good("run", done)) return 0;
  for (size_t i = 0; i < outputs->count; i++) store_value(outs[i], json_text(asked, "outputs", ""), i);
  return 1;
}

static void run_all(handle session) {
  const json *runs = json_get(request, "runs");
  name_list inputs = {0}, outputs = {0};
  if (!json_count(runs) || !read_names(session, &inputs, &outputs)) return;
  for (size_t i = 0; i < runs->count; i++) {
    if (!run_once(session, &runs->items[i], &inputs, &outputs)) return;
    begin("run");
    printf(",\"number\":%zu", i + 1);
    end();
  }
}

int main(int count, char **arguments) {
  InitializeCriticalSection(&printing);
  SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX | SEM_NOOPENFILEERRORBOX); /* no window, ever */
  SetUnhandledExceptionFilter(on_crash);
  request = count == 2 ? json_parse(file_load(arguments[1], NULL)) : NULL;
  if (!request || request->kind != JSON_OBJECT) {
    fputs("usage: runner.exe REQUEST.json, a JSON object\n", stderr);
    return 2;
  }
  handle session = open_runtime() && json_get(request, "model") ? open_session() : NULL;
  if (session) run_all(session);
  begin("result");
  printf(",\"failures\":%d", failures);
  end();
  /* Unloading the vendor's libraries gives nothing here, and was seen to abort. */
  TerminateProcess(GetCurrentProcess(), failures ? 1 : 0);
}
