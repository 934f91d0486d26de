// Strings and numbers with the results of Python's str, float() and round(), which the published rewards use. Slices
// point into the string that they were cut from.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"

// Returns the code point at byte `at` and sets *length to its bytes (1 to 4). A byte that is
// not part of a character is U+FFFD.
int32_t python_char_at(struct string string, size_t at, size_t *length);

// Returns whether str.isspace() and \s hold for the code point: Unicode's white space and U+001C to
// U+001F, but not U+180E or U+200B.
bool python_isspace(int32_t code);

// Returns what str.strip() returns.
struct string python_strip(struct string string);

// Sets *words to what str.split() returns: slices, in an array in the arena.
void python_split(struct arena *arena, struct string string, struct string_array *words);

// Returns whether float() accepts the string without its commas, and sets *value to the number if it does. float()
// accepts white space at both ends, `1_000`, Unicode's decimal digits, `inf` and `nan`, but not hexadecimal digits or
// `1__0`.
bool python_float(struct string string, double *value);

// Returns what round(value, 2) returns: the nearest hundredth of the binary value, ties to even. `value` must be
// finite.
double python_round2(double value);
