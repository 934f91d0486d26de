// Unicode normalisation, with a quick way for what is normal already.
#ifndef SHARED_TEXT_NORMAL_H
#define SHARED_TEXT_NORMAL_H

#include <stddef.h>

#include "shared/base/memory.h"

enum normal_form { NORMAL_NONE, NORMAL_NFC, NORMAL_NFD, NORMAL_NFKC, NORMAL_NFKD };

// Sets *out and *out_size to well-formed text[0..size) in that form: the text itself where nothing changes, else what
// `buffer` then holds. UNAVAILABLE when memory is short.
status normal_text(enum normal_form form, const char *text, size_t size, struct buf *buffer, const char **out,
                   size_t *out_size);

#endif
