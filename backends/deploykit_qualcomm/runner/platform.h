/* What Windows and Linux do differently: libraries, environment, time, and the end of a program. */
#ifndef DEPLOYKIT_PLATFORM_H
#define DEPLOYKIT_PLATFORM_H

#include <stdio.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* A library by its path, found beside the program too where it is a bare name on Windows; NULL where it cannot be loaded. */
void *library_open(const char *path);
const char *library_error(void);

/* Puts the address of a library's function into *function; false where it has none. */
int library_function(void *library, const char *name, void *function);

/* Whether an address lies in code that can be run: not every word behind a table of functions is one. */
int is_code(const void *address);

/* A variable of the environment, "" where it is not set. The text stays. */
const char *environment(const char *name);

double seconds_now(void);

/* Calls `told` with the system's code before the program dies of a fault, and shows no window. */
void catch_crashes(void (*told)(const char *code));

/* Ends the program at once: unloading the vendor's libraries gives nothing, and was seen to abort. */
_Noreturn void leave(int status);

#endif
