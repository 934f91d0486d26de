// A regular expression over UTF-8: PCRE2 with JIT, with the meaning that Oniguruma gives to the tokenizers' patterns:
// \s and \S are Unicode's White_Space, ^ and $ match at line ends. Not for several threads at once.
#ifndef SHARED_TEXT_REGEX_H
#define SHARED_TEXT_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/status.h"

struct regex;

// Compiles `pattern`. DATAERR with the offset and the reason when it is not a regular expression. Free with regex_free.
status regex_new(struct regex **out, const char *pattern, size_t size);

// NULL is fine; sets *r to NULL.
void regex_free(struct regex **r);

// Prepares the regex for the characters of a text. Call it before the first regex_find in a text.
void regex_prepare(struct regex *r, const char *text, size_t size);

// Finds the first match at or after `from` in well-formed text: sets *found, and *start and *end if it is true. DATAERR
// when the match needs too much memory or time on this text.
status regex_find(struct regex *r, const char *text, size_t size, size_t from, bool *found, size_t *start, size_t *end);

#endif
