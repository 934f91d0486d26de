// A set of places in the order of issue as a short text, "3 5-9 12", for messages.
#ifndef SHARED_WIRE_SEQ_SET_H
#define SHARED_WIRE_SEQ_SET_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Sorts orders[0..count) and appends their text (those below 0 are none and left out); at most about 3,900 bytes, then
// a "+" for those left out.
status seq_set_format(int64_t *seqs, size_t count, struct buf *out);

// Appends the orders of a text to *list, *count of them, to be freed by the caller; *whole (may be NULL) is 0 when some
// were left out. DATAERR when it is no such text or names more than a million.
status seq_set_parse(const char *text, int64_t **list, size_t *count, int *whole);

#endif
