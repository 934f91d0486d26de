// Unicode normalisation, with a quick way for what is normal already.
#ifndef SHARED_TEXT_NORMALIZE_H
#define SHARED_TEXT_NORMALIZE_H

#include <stddef.h>

#include "shared/base/memory.h"

enum normalize_form { NORMALIZE_NONE, NORMALIZE_NFC, NORMALIZE_NFD, NORMALIZE_NFKC, NORMALIZE_NFKD };

// Sets *out and *out_size to well-formed text[0..size) in that form: the text itself where nothing changes, else what
// `buffer` then holds. UNAVAILABLE when memory is short.
status normalize_text(enum normalize_form form, const char *text, size_t size, struct buf *buffer, const char **out,
                      size_t *out_size);

#endif
