// Immutable strings with a length, and UTF-8. A struct string does not own its bytes: they live in an arena, a buffer,
// a JSON value or the program itself.
#ifndef SHARED_BASE_STRING_H
#define SHARED_BASE_STRING_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/status.h"

struct buf;

// UTF-8 unless a function says otherwise. May contain NULs; data == NULL means absent. A whole string of a group is
// NUL-terminated, a slice is not.
struct string {
    const char *data;
    size_t size;
};

// Returns the C string with its length, without a copy.
struct string string_of(const char *text);

// Whether a string is present and equals the C string.
bool string_equals(struct string string, const char *other);

// Returns the bytes [from, to) of a string, from <= to <= size.
struct string string_slice(struct string string, size_t from, size_t to);

// Returns the position of the first `part` at or after `from`, SIZE_MAX if there is none.
size_t string_find(struct string string, const char *part, size_t from);

// Returns the length of the well-formed UTF-8 sequence at data (1 to 4), or minus the length of the ill-formed part
// there (a maximal subpart in the Unicode Standard's sense, 1 to 3). size >= 1.
int utf8_step(const char *data, size_t size);

// Whether all of it is well-formed UTF-8.
bool utf8_valid(const char *data, size_t size);

// Appends the bytes to `out` with U+FFFD in place of each ill-formed part.
void utf8_replace(const char *data, size_t size, struct buf *out);

#endif
