// A set of sequence numbers as a short string for messages: "3 5-9 12".
#ifndef SHARED_WIRE_SEQ_SET_H
#define SHARED_WIRE_SEQ_SET_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Sorts seqs[0..count) and appends them as a string, without the negative ones. After about 3,900 bytes it ends with
// "+": the rest is left out. UNAVAILABLE when memory is short.
status seq_set_format(int64_t *seqs, size_t count, struct buf *out);

// Appends the sequence numbers of a string to *list, *count of them; the caller frees *list, also after a failure.
// *whole (may be NULL) is 0 when the string ends with "+", else 1. DATAERR when the string is malformed or names more
// than a million.
status seq_set_parse(const char *text, int64_t **list, size_t *count, int *whole);

#endif
