// A regular expression over UTF-8, PCRE2 with JIT, understood as Oniguruma understands it: \s and \S are Unicode's
// White_Space, ^ and $ stand at lines' ends. Not for two threads at once.
#ifndef SHARED_TEXT_PATTERN_H
#define SHARED_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/status.h"

struct pattern;

// Compiles `regex`. DATAERR with the place and the reason when it is not one. Free with pattern_free.
status pattern_new(struct pattern **out, const char *regex, size_t size);

// NULL is fine; sets *p to NULL.
void pattern_free(struct pattern **p);

// To be called before the first pattern_find in a text: readies the pattern for the characters that it has.
void pattern_prepare(struct pattern *p, const char *text, size_t size);

// The first match at or after `from` in well-formed text: sets *found, and *start and *end when it is true. DATAERR
// when the pattern needs too many resources on this text.
status pattern_find(struct pattern *p, const char *text, size_t size, size_t from, bool *found, size_t *start,
                    size_t *end);

#endif
