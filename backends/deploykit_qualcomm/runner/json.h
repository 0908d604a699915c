/* A small JSON reader for requests, and the one way texts are printed. Values live until the program ends. */
#ifndef DEPLOYKIT_JSON_H
#define DEPLOYKIT_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_LIST, JSON_OBJECT } json_kind;

typedef struct json {
  json_kind kind;
  int64_t integer; /* of a number, cut to an integer; 1 or 0 of a truth value */
  double number;
  char *text;
  size_t count;       /* items of a list or an object */
  struct json *items; /* values */
  char **keys;        /* names of an object's values, NULL in a list */
} json;

/* Parses one value and nothing after it. NULL where the text is no JSON. */
json *json_parse(const char *text);

/* Look-ups that never fail: what is missing, or of another kind, is answered with the given default. */
const json *json_get(const json *object, const char *key);
const char *json_text(const json *object, const char *key, const char *otherwise);
int json_int(const json *object, const char *key, int otherwise);
size_t json_count(const json *list);

/* Prints a text as a JSON string, with its quotes. */
void json_print_text(FILE *out, const char *text);

/* The whole file, ended by a zero byte; NULL where it cannot be read. Paths are UTF-8. */
char *file_load(const char *path, size_t *size);
FILE *file_open(const char *path, const char *mode); /* two letters: "rb", "wb" */
#ifdef _WIN32
const wchar_t *file_path(const char *path);
#endif

/* Memory, or the end of the program. */
void *room_for(void *old, size_t bytes);

#endif
