#include "json.h"

#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#endif

enum { DEEPEST = 32, LONGEST_PATH = 4096 };

void *room_for(void *old, size_t bytes) {
  void *room = realloc(old, bytes ? bytes : 1);
  if (!room) {
    fputs("out of memory\n", stderr);
    exit(3);
  }
  return room;
}

static const char *parse_value(const char *p, json *out, int depth);

static const char *skip_space(const char *p) { return p + strspn(p, " \t\r\n"); }

static char *put_utf8(char *to, unsigned code) {
  if (code < 0x80) {
    *to++ = (char)code;
  } else if (code < 0x800) {
    *to++ = (char)(0xC0 | code >> 6);
    *to++ = (char)(0x80 | (code & 63));
  } else {
    *to++ = (char)(0xE0 | code >> 12);
    *to++ = (char)(0x80 | (code >> 6 & 63));
    *to++ = (char)(0x80 | (code & 63));
  }
  return to;
}

/* After the backslash. Pairs of surrogates are refused: requests are written with ensure_ascii off. */
static const char *parse_escape(const char *p, char **to) {
  static const char names[] = "nrtbf\"\\/", bytes[] = "\n\r\t\b\f\"\\/";
  if (*p == 'u') {
    char digits[5] = {0};
    if (strspn(p + 1, "0123456789abcdefABCDEF") < 4) return NULL;
    memcpy(digits, p + 1, 4);
    unsigned code = (unsigned)strtoul(digits, NULL, 16);
    if (!code || (code >= 0xD800 && code < 0xE000)) return NULL;
    *to = put_utf8(*to, code);
    return p + 5;
  }
  const char *known = *p ? strchr(names, *p) : NULL;
  if (!known) return NULL;
  *(*to)++ = bytes[known - names];
  return p + 1;
}

static const char *parse_text(const char *p, char **out) {
  const char *end = p + 1;
  while (*end && *end != '"') end += (*end == '\\' && end[1]) ? 2 : 1;
  if (*p != '"' || !*end) return NULL;
  char *to = *out = room_for(NULL, (size_t)(end - p) + 1); /* an escape is never shorter than what it stands for */
  for (p++; p && p < end;) {
    if (*p == '\\')
      p = parse_escape(p + 1, &to);
    else
      *to++ = *p++;
  }
  *to = 0;
  return p ? end + 1 : NULL;
}

static void grow(json *list) {
  list->items = room_for(list->items, (list->count + 1) * sizeof *list->items);
  list->keys = room_for(list->keys, (list->count + 1) * sizeof *list->keys);
  list->keys[list->count] = NULL;
}

static const char *parse_members(const char *p, json *out, char end, int depth) {
  p = skip_space(p + 1);
  while (*p != end) {
    grow(out);
    if (end == '}') {
      if (!(p = parse_text(p, &out->keys[out->count]))) return NULL;
      p = skip_space(p);
      if (*p++ != ':') return NULL;
    }
    if (!(p = parse_value(p, &out->items[out->count++], depth))) return NULL;
    p = skip_space(p);
    if (*p == ',') {
      p = skip_space(p + 1);
      if (*p == end) return NULL;
    } else if (*p != end) {
      return NULL;
    }
  }
  return p + 1;
}

static const char *parse_word(const char *p, json *out) {
  static const struct { const char *word; json_kind kind; int value; } words[] = {
      {"true", JSON_BOOL, 1}, {"false", JSON_BOOL, 0}, {"null", JSON_NULL, 0}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t length = strlen(words[i].word);
    if (strncmp(p, words[i].word, length)) continue;
    out->kind = words[i].kind;
    out->integer = words[i].value;
    return p + length;
  }
  return NULL;
}

static const char *parse_number(const char *p, json *out) {
  char *end;
  double number = strtod(p, &end);
  if (end == p) return NULL;
  out->kind = JSON_NUMBER;
  out->number = number;
  out->integer = number > -1e15 && number < 1e15 ? (int64_t)number : 0;
  return end;
}

static const char *parse_value(const char *p, json *out, int depth) {
  memset(out, 0, sizeof *out);
  if (depth <= 0) return NULL;
  p = skip_space(p);
  if (*p == '"') {
    out->kind = JSON_TEXT;
    return parse_text(p, &out->text);
  }
  if (*p == '[' || *p == '{') {
    out->kind = *p == '[' ? JSON_LIST : JSON_OBJECT;
    return parse_members(p, out, *p == '[' ? ']' : '}', depth - 1);
  }
  return *p && strchr("tfn", *p) ? parse_word(p, out) : parse_number(p, out);
}

json *json_parse(const char *text) {
  json *value = room_for(NULL, sizeof *value);
  const char *rest = text ? parse_value(text, value, DEEPEST) : NULL;
  return rest && !*skip_space(rest) ? value : NULL;
}

const json *json_get(const json *object, const char *key) {
  if (!object || object->kind != JSON_OBJECT) return NULL;
  for (size_t i = 0; i < object->count; i++)
    if (!strcmp(object->keys[i], key)) return &object->items[i];
  return NULL;
}

const char *json_text(const json *object, const char *key, const char *otherwise) {
  const json *value = json_get(object, key);
  return value && value->kind == JSON_TEXT ? value->text : otherwise;
}

int json_int(const json *object, const char *key, int otherwise) {
  const json *value = json_get(object, key);
  return value && (value->kind == JSON_NUMBER || value->kind == JSON_BOOL) ? (int)value->integer : otherwise;
}

size_t json_count(const json *list) { return list ? list->count : 0; }

void json_print_text(FILE *out, const char *text) {
  fputc('"', out);
  for (const unsigned char *p = (const unsigned char *)(text ? text : ""); *p; p++) {
    if (*p == '"' || *p == '\\')
      fprintf(out, "\\%c", *p);
    else if (*p < 32 || *p == 127)
      fprintf(out, "\\u%04x", *p);
    else
      fputc(*p, out);
  }
  fputc('"', out);
}

#ifdef _WIN32
const wchar_t *file_path(const char *path) {
  wchar_t *wide = room_for(NULL, LONGEST_PATH * sizeof *wide);
  if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, LONGEST_PATH)) *wide = 0;
  return wide;
}

FILE *file_open(const char *path, const char *mode) {
  const wchar_t wide[] = {(wchar_t)mode[0], (wchar_t)mode[1], 0};
  return path && *path ? _wfopen(file_path(path), wide) : NULL;
}
#else
FILE *file_open(const char *path, const char *mode) { return path && *path ? fopen(path, mode) : NULL; }
#endif

char *file_load(const char *path, size_t *size) {
  FILE *in = file_open(path, "rb");
  if (!in) return NULL;
  size_t room = 1 << 16, used = 0, got;
  char *bytes = room_for(NULL, room);
  while ((got = fread(bytes + used, 1, room - used - 1, in)) > 0) {
    used += got;
    if (used + 1 == room) bytes = room_for(bytes, room *= 2);
  }
  int bad = ferror(in);
  fclose(in);
  bytes[used] = 0;
  if (size) *size = used;
  return bad ? NULL : bytes;
}
