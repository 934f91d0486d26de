// UTF-8: stepping, checking, and making ill-formed bytes readable.
#ifndef SHARED_BASE_UTF8_H
#define SHARED_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"

// The length of the well-formed sequence at data (1 to 4), or minus the length of the ill-formed part there (a maximal
// subpart in the Unicode Standard's sense, 1 to 3). size >= 1.
int utf8_step(const char *data, size_t size);

// Whether all of it is well-formed.
bool utf8_valid(const char *data, size_t size);

// Appends the bytes with U+FFFD for each ill-formed part.
status utf8_replace(const char *data, size_t size, struct buf *out);

#endif
