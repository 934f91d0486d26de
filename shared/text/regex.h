// A regular expression over UTF-8, PCRE2 with JIT, understood as Oniguruma understands it: \s and \S are Unicode's
// White_Space, ^ and $ stand at lines' ends. Not for two threads at once.
#ifndef SHARED_TEXT_REGEX_H
#define SHARED_TEXT_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/status.h"

struct regex;

// Compiles `regex`. DATAERR with the place and the reason when it is not one. Free with regex_free.
status regex_new(struct regex **out, const char *regex, size_t size);

// NULL is fine; sets *p to NULL.
void regex_free(struct regex **p);

// To be called before the first regex_find in a text: readies the pattern for the characters that it has.
void regex_prepare(struct regex *p, const char *text, size_t size);

// The first match at or after `from` in well-formed text: sets *found, and *start and *end when it is true. DATAERR
// when the pattern needs too many resources on this text.
status regex_find(struct regex *p, const char *text, size_t size, size_t from, bool *found, size_t *start, size_t *end);

#endif
