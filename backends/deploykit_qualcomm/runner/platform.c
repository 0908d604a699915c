#include "platform.h"

#include <stdlib.h>
#include <string.h>

static void (*crash_told)(const char *code);

#ifdef _WIN32
#include <windows.h>

#include "json.h"

void *library_open(const char *path) {
  const wchar_t *wide = file_path(path);
  int whole = strchr(path, ':') || *path == '/' || *path == '\\';
  /* with a whole path, the library's own folder comes first for what it imports */
  return (void *)LoadLibraryExW(wide, NULL, whole ? LOAD_WITH_ALTERED_SEARCH_PATH : 0);
}

const char *library_error(void) {
  static char text[32];
  snprintf(text, sizeof text, "error %lu", GetLastError());
  return text;
}

int library_function(void *library, const char *name, void *function) {
  FARPROC found = GetProcAddress((HMODULE)library, name);
  memcpy(function, &found, sizeof found);
  return found != NULL;
}

int is_code(const void *address) {
  MEMORY_BASIC_INFORMATION about;
  const DWORD runs = PAGE_EXECUTE | PAGE_EXECUTE_READ | PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY;
  return address && VirtualQuery(address, &about, sizeof about) && about.State == MEM_COMMIT && (about.Protect & runs);
}

const char *environment(const char *name) {
  wchar_t wide_name[64], wide[4096];
  if (!MultiByteToWideChar(CP_UTF8, 0, name, -1, wide_name, 64)) return "";
  DWORD length = GetEnvironmentVariableW(wide_name, wide, 4096);
  if (!length || length >= 4096) return "";
  char *text = room_for(NULL, 3 * (size_t)length + 1);
  return WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, (int)(3 * length + 1), NULL, NULL) ? text : "";
}

double seconds_now(void) {
  LARGE_INTEGER now, rate;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&rate);
  return (double)now.QuadPart / (double)rate.QuadPart;
}

static LONG WINAPI on_crash(EXCEPTION_POINTERS *found) {
  char code[16];
  snprintf(code, sizeof code, "0x%08lx", found->ExceptionRecord->ExceptionCode);
  crash_told(code);
  leave(4);
}

void catch_crashes(void (*told)(const char *code)) {
  crash_told = told;
  SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX | SEM_NOOPENFILEERRORBOX);
  SetUnhandledExceptionFilter(on_crash);
}

_Noreturn void leave(int status) {
  fflush(NULL);
  TerminateProcess(GetCurrentProcess(), (UINT)status);
  abort();
}
#else
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>
#include <time.h>

void *library_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

const char *library_error(void) {
  const char *text = dlerror();
  return text ? text : "";
}

int library_function(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  return found != NULL;
}

/* The system keeps a list of what is mapped where; asking it is slow, and is done a few times only. */
int is_code(const void *address) {
  FILE *maps = address ? fopen("/proc/self/maps", "r") : NULL;
  char line[4352], rights[8];
  unsigned long long from, to;
  int found = 0;
  while (maps && !found && fgets(line, sizeof line, maps))
    found = sscanf(line, "%llx-%llx %7s", &from, &to, rights) == 3 && rights[2] == 'x' &&
            (unsigned long long)(size_t)address >= from && (unsigned long long)(size_t)address < to;
  if (maps) fclose(maps);
  return found;
}

const char *environment(const char *name) {
  const char *value = getenv(name);
  return value ? value : "";
}

double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void on_signal(int number) {
  char code[16];
  snprintf(code, sizeof code, "signal %d", number);
  crash_told(code);
  leave(4);
}

void catch_crashes(void (*told)(const char *code)) {
  static const int deadly[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  crash_told = told;
  for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++) signal(deadly[i], on_signal);
}

_Noreturn void leave(int status) {
  fflush(NULL);
  _Exit(status);
}
#endif
