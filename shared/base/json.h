// Strict JSON: trees of values, printing, and a reader that makes no tree.
//
// There is no NaN, no 'single quotes', `1.`, control characters, surrogates in UTF-8 or NULs in keys. A value of a tree
// lies in an arena with all that is in it; every text of it is NUL-terminated. Numbers keep their text.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

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

// The same, but DATAERR also if the key is missing or null.
status json_require(const struct json *object, const char *key, enum json_type type, struct json **out);

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

// Returns a new last element of an array, or a member of an object, still without its key: null.
struct json *json_push(struct json *value, struct arena *arena);

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

// Appends the shortest text that reads back as the same double; null for NaN and infinities.
void json_print_double(struct buf *out, double value);

// The longest number that the next functions write is shorter than this.
enum { JSON_NUMBER_SIZE = 32 };

// Writes an integer, without a NUL, at `at`, where JSON_NUMBER_SIZE bytes must be free. Returns where it ends.
char *json_put_int(char *at, int64_t value);

// Writes the shortest text that reads back as the same double, or, if `single`, as the same float32, directly or by way
// of a double; null for NaN and infinities. Otherwise as json_put_int.
char *json_put_number(char *at, double value, bool single);

// ---- reading without a tree ----

// The caller takes one value of the text after the other. A zeroed struct with `text` and `size` is at the beginning.
// After DATAERR, "not JSON: what at byte N", `failed` is set and the reader is of no more use.
struct json_reader {
    const char *text;
    size_t size, at;
    int depth;  // arrays and objects that were entered
    bool first; // nothing was taken of the one entered last
    bool failed;
};

// A number: its text, and its value as digits * 10^exponent.
struct json_number {
    struct string text;
    uint64_t digits;
    int exponent;
    bool negative;
    bool integral; // has neither a fraction nor an exponent
    bool exact;    // `digits` has all digits of the text
};

// Returns the first character of the next value, behind white space, or 0 at the end of the text.
char json_reader_peek(struct json_reader *reader);

// Takes the opening character of an array or an object, '[' or '{'. DATAERR, also when it is nested deeper than 500.
status json_reader_enter(struct json_reader *reader, char open);

// Goes to the next element of an array, or the next key of an object. *more is false when there is none: the closing
// character was taken. DATAERR.
status json_reader_next(struct json_reader *reader, char open, bool *more);

// Takes a string: a slice of the text, or, if it has escapes, a string in the arena. A lone \ud800 reads as U+FFFD.
// DATAERR.
status json_reader_string(struct json_reader *reader, struct arena *arena, struct string *out);

// Takes a key and its colon. DATAERR.
status json_reader_key(struct json_reader *reader, struct arena *arena, struct string *out);

// Takes a number. DATAERR.
status json_reader_number(struct json_reader *reader, struct json_number *out);

// Takes up to `count` elements of an array that was just entered, as long as they are plain: up to 7 digits, a comma or
// the array's end right behind them, and eight bytes of text from the first digit on. Returns how many it took.
size_t json_reader_plain_ints(struct json_reader *reader, int64_t *out, size_t count);

// The same for numbers without an exponent, of up to 15 digits, up to 7 of them before the point, with 32 bytes of text
// from the first on. Each is what json_number_float makes of it.
size_t json_reader_plain_floats(struct json_reader *reader, float *out, size_t count);

// Takes `true`, `false` or `null`: the word that is `literal`. DATAERR.
status json_reader_literal(struct json_reader *reader, const char *literal);

// Takes any value: *out, which is zeroed, becomes a tree. DATAERR.
status json_reader_value(struct json_reader *reader, struct arena *arena, struct json *out);

// Takes the white space at the end of the text. DATAERR when something else follows.
status json_reader_end(struct json_reader *reader);

// Whether the number is an integer that fits: 1, 1.0 and 1e2 are; 1.5 is not.
bool json_number_int(const struct json_number *number, int64_t *out);

// Whether the number is finite as a double.
bool json_number_double(const struct json_number *number, double *out);

// Whether the number is finite as a float32. Its text is rounded once.
bool json_number_float(const struct json_number *number, float *out);
