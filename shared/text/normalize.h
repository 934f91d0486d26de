// Unicode normalization of well-formed UTF-8, with a fast check for text that is already in NFC.
#ifndef SHARED_TEXT_NORMALIZE_H
#define SHARED_TEXT_NORMALIZE_H

#include <stddef.h>

#include "shared/base/memory.h"

enum normalize_form { NORMALIZE_NONE, NORMALIZE_NFC, NORMALIZE_NFD, NORMALIZE_NFKC, NORMALIZE_NFKD };

// Sets *out and *out_size to text[0..size) in that form: to the text itself if nothing changes, else to the contents of
// `buffer`, which the next call overwrites.
status normalize_text(enum normalize_form form, const char *text, size_t size, struct buf *buffer, const char **out,
                      size_t *out_size);

#endif
