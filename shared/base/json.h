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

// Reads one JSON value, white space around it allowed. INPUT with what is wrong and at which byte: not JSON, not
// UTF-8, nested deeper than 500. The caller releases *out with json_object_put. A lone \ud800 reads as U+FFFD; of a
// key given twice the last value counts. A JSON null is *out == NULL.
status json_read(json_object **out, const char *data, size_t size);

// Appends the value as compact JSON without line ends: numbers by their exact text, keys in their order.
status json_print(bytes *out, json_object *value);

// Appends a quoted and escaped string. `data` must be UTF-8; NULs are fine.
status json_print_text(bytes *out, const char *data, size_t size);

// Appends the shortest text that reads back as the same float32, read directly or by way of a double; null for NaN and
// infinities.
status json_print_float(bytes *out, float value);

// The same for a double.
status json_print_double(bytes *out, double value);

// Whether the value is a number that is whole and fits (1, 1.0 and 1e2 do; 1.5, "1", true do not); *out is then it.
bool json_int(json_object *value, int64_t *out);

// Whether the value is a number finite as a double.
bool json_double(json_object *value, double *out);

// Whether the value is a number finite as a float32; its text is rounded once.
bool json_float(json_object *value, float *out);

// Whether data[0..size) is UTF-8 (no surrogates, nothing overlong).
bool utf8_valid(const char *data, size_t size);

#endif
