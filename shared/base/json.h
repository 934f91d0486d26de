// Strict JSON over json-c, with exact numbers.
//
// json-c would accept NaN, 'single quotes', `1.`, control characters, surrogates in UTF-8 and NULs in keys; here they
// are errors. Numbers keep their text: integers that do not fit into 64 bits, and -0, come out as doubles with the
// number's own text. Print values with json_print, never with json-c's printer.
#ifndef SHARED_BASE_JSON_H
#define SHARED_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <json-c/json.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/base/string.h"

// ---- reading ----

// Parses one JSON value with white space around it. The caller releases *out with json_object_put; a JSON null is
// *out == NULL. DATAERR says what is wrong and at which byte: not JSON, not UTF-8, nested deeper than 500. A lone
// \ud800 reads as U+FFFD; of a key given twice the last value counts.
status json_parse(json_object **out, const char *data, size_t size);

// Parses one JSON object. DATAERR with `name` in front of the message.
status json_parse_object(json_object **out, const char *text, size_t size, const char *name);

// Parses a file that holds one JSON object. DATAERR with the path in front.
status json_parse_file(json_object **out, const char *path);

// *out = the value of a key, NULL if the key is missing or null. DATAERR if the value is of another type.
status json_get(json_object *object, const char *key, enum json_type type, json_object **out);

// *out = a key's boolean, `otherwise` if the key is missing or null. DATAERR if the value is of another type.
status json_get_bool(json_object *object, const char *key, bool otherwise, bool *out);

// Replaces the keys of `object` by those of `changes`; nested objects are merged key by key.
void json_merge(json_object *object, json_object *changes);

// Returns the value's string, valid as long as the value; absent unless the value is a string.
struct string json_string(json_object *value);

// Whether the value is an integral number that fits: 1, 1.0 and 1e2 are; 1.5, "1" and true are not.
bool json_int(json_object *value, int64_t *out);

// Whether the value is a number that is finite as a double.
bool json_double(json_object *value, double *out);

// Whether the value is a number that is finite as a float32. Its text is rounded once.
bool json_float(json_object *value, float *out);

// ---- writing ----

// Appends the value as compact JSON without line ends: numbers by their exact text, keys in their order.
void json_print(struct buf *out, json_object *value);

// Appends data[0..size) as a quoted and escaped string. It must be UTF-8 and may contain NULs.
void json_print_string(struct buf *out, const char *data, size_t size);

// Appends the shortest text that reads back as the same float32, directly or by way of a double; null for NaN and
// infinities.
void json_print_float(struct buf *out, float value);

// Appends the shortest text that reads back as the same double; null for NaN and infinities.
void json_print_double(struct buf *out, double value);

// The longest number that the next functions write is shorter than this.
enum { JSON_NUMBER_SIZE = 32 };

// Writes an integer, without a NUL, at `at`, where JSON_NUMBER_SIZE bytes must be free. Returns where it ends.
char *json_put_int(char *at, int64_t value);

// Writes `count` integers with commas between them, where JSON_NUMBER_SIZE bytes must be free for each and for one
// more. Returns where they end.
char *json_put_ints(char *at, const int64_t *values, size_t count);

// The same for a float32, as json_print_float prints it.
char *json_put_float(char *at, float value);

// The same for a double, as json_print_double prints it.
char *json_put_double(char *at, double value);

#endif
