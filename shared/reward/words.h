// Texts as Python's str sees them: white space, trimming, words. Slices point into the text they were cut from.
#ifndef SHARED_REWARD_WORDS_H
#define SHARED_REWARD_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/group/group.h"

// The code point at `at` (1 to 4 bytes); *step = its bytes. A byte that is no part of a character is U+FFFD.
int32_t python_char_at(struct string whole, size_t at, size_t *step);

// Whether str.isspace() and \s hold for the code point: Unicode's white space and U+001C..1F, not U+180E or U+200B.
bool python_isspace(int32_t code);

// Without white space at both ends.
struct string python_strip(struct string whole);

// *words = what stands between white space, as str.split() cuts; slices, the array in the arena.
status python_split(struct arena *arena, struct string whole, struct string_array *words);

#endif
