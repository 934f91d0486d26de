// Strict JSON: trees of values, and printing. json_reader.h has the grammar.
//
// A value lies in an arena with all that is in it; every text of it is NUL-terminated. Numbers keep their text.
#ifndef SHARED_BASE_JSON_H
#define SHARED_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/base/string.h"

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    bool boolean;
    struct string key;  // of a member of an object
    struct string text; // a string; the text of a number
    struct json *items; // of an array or an object, in their order
    size_t count, capacity;
};

// Runs through the elements or members of an array or object: JSON_EACH(item, array) {...}. A null is a value, too.
#define JSON_EACH(item, value)                                                                                         \
    for (struct json *item = (value)->items, *item##_end = item ? item + (value)->count : NULL; item < item##_end;     \
         item++)

// ---- reading ----

// Parses one JSON value with white space around it, into the arena. DATAERR says what is wrong and at which byte: not
// JSON, not UTF-8, nested deeper than 500. A lone \ud800 reads as U+FFFD; of a key given twice the last value counts.
status json_parse(struct json **out, struct arena *arena, const char *data, size_t size);

// Parses one JSON object. DATAERR with `name` in front of the message.
status json_parse_object(struct json **out, struct arena *arena, const char *text, size_t size, const char *name);

// Parses a file that holds one JSON object. DATAERR with the path in front.
status json_parse_file(struct json **out, struct arena *arena, const char *path);

// Whether the value is there and has this type. A value may be NULL everywhere here: none, which is not JSON's null.
bool json_is(const struct json *value, enum json_type type);

// Sets *out, unless `out` is NULL, to the value of a key, NULL if it is null; returns whether `object` is an object
// with the key.
bool json_find(const struct json *object, const char *key, struct json **out);

// Returns the value of a key, NULL if it is null or if `object` is no object with the key.
struct json *json_at(const struct json *object, const char *key);

// Returns the number of elements or members, 0 of another value.
size_t json_count(const struct json *value);

// Returns an element of an array, i < json_count; NULL if it is null.
struct json *json_item(const struct json *array, size_t i);

// *out = the value of a key, NULL if the key is missing or null. DATAERR if the value is of another type.
status json_get(const struct json *object, const char *key, enum json_type type, struct json **out);

// *out = a key's boolean, `otherwise` if the key is missing or null. DATAERR if the value is of another type.
status json_get_bool(const struct json *object, const char *key, bool otherwise, bool *out);

// Returns the value's string; absent unless the value is a string.
struct string json_string(const struct json *value);

// Returns the text of a string or a number; of another value a word, for messages.
const char *json_text(const struct json *value);

// Whether the value is an integral number that fits: 1, 1.0 and 1e2 are; 1.5, "1" and true are not.
bool json_int(const struct json *value, int64_t *out);

// Whether the value is a number that is finite as a double.
bool json_double(const struct json *value, double *out);

// Whether the value is a number that is finite as a float32. Its text is rounded once.
bool json_float(const struct json *value, float *out);

// Returns the integer if json_int finds one, else `otherwise`.
int64_t json_int_or(const struct json *value, int64_t otherwise);

// Returns the number if json_double finds one, else `otherwise`.
double json_double_or(const struct json *value, double otherwise);

// ---- making ----

// A value that is added moves those of its object or array: pointers to them are then of no more use.

// Returns a new value.
struct json *json_new(struct arena *arena, enum json_type type);

// Returns the member with a key: null, and at the end if there was none.
struct json *json_set(struct json *object, struct arena *arena, const char *key);

// Sets a key to a string, of which a copy is made.
void json_set_string(struct json *object, struct arena *arena, const char *key, const char *text);

// Sets a key to an integer.
void json_set_int(struct json *object, struct arena *arena, const char *key, int64_t value);

// Returns a new last element of an array, null.
struct json *json_push(struct json *array, struct arena *arena);

// Makes the value a number.
void json_set_number(struct json *value, struct arena *arena, int64_t number);

// Removes a key, if it is there.
void json_remove(struct json *object, const char *key);

// Replaces the keys of `object` by those of `changes`; nested objects are merged key by key. `changes` must live as
// long.
void json_merge(struct json *object, struct arena *arena, const struct json *changes);

// ---- printing ----

// Appends the value as compact JSON without line ends: numbers by their exact text, keys in their order. NULL is null.
void json_print(struct buf *out, const struct json *value);

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
