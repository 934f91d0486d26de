// JSON over json-c, strictly: what json-c 0.16's strict mode still lets pass (NaN, 'single quotes', `1.`, control
// characters and surrogates in strings, NULs in keys) is refused first, and numbers keep their exact text.
//
// Whole numbers that json-c would cut off at 64 bits (and -0) come out as doubles whose text is the number's own; print
// values with json_print, never with json-c's own printer, so that they leave as they came.
#ifndef SHARED_BASE_JSON_H
#define SHARED_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <json-c/json.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/base/string.h"

// Reads one JSON value, white space around it allowed. DATAERR with what is wrong and at which byte: not JSON, not
// UTF-8, nested deeper than 500. The caller releases *out with json_object_put. A lone \ud800 reads as U+FFFD; of a
// key given twice the last value counts. A JSON null is *out == NULL.
status json_parse(json_object **out, const char *data, size_t size);

// Appends the value as compact JSON without line ends: numbers by their exact text, keys in their order.
status json_print(struct buf *out, json_object *value);

// Appends a quoted and escaped string. `data` must be UTF-8; NULs are fine.
status json_print_string(struct buf *out, const char *data, size_t size);

// Appends the shortest text that reads back as the same float32, read directly or by way of a double; null for NaN and
// infinities.
status json_print_float(struct buf *out, float value);

// The same for a double.
status json_print_double(struct buf *out, double value);

// Whether the value is a number that is whole and fits (1, 1.0 and 1e2 do; 1.5, "1", true do not); *out is then it.
bool json_int(json_object *value, int64_t *out);

// Whether the value is a number finite as a double.
bool json_double(json_object *value, double *out);

// Whether the value is a number finite as a float32; its text is rounded once.
bool json_float(json_object *value, float *out);

// The object that text[0..size) holds; DATAERR says what is wrong, with `name` in front. Release with json_object_put.
status json_parse_object(json_object **out, const char *text, size_t size, const char *name);

// The same for a file.
status json_parse_file(json_object **out, const char *path);

// The value of a key if it is there, not null and of that type; *out is NULL if it is not there or null. DATAERR when
// it is of another type.
status json_get(json_object *object, const char *key, enum json_type type, json_object **out);

// The value's string; absent unless the value is a string. Valid as long as the value.
struct string json_string(json_object *value);

// A key's boolean; `otherwise` if it is not there.
status json_get_bool(json_object *object, const char *key, bool otherwise, bool *out);

#endif
