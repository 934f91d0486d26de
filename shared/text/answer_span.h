// Finds which tokens of a completion are its answer, whose likelihood the consistency bonus rewards.
#ifndef SHARED_TEXT_ANSWER_SPAN_H
#define SHARED_TEXT_ANSWER_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/text/tokenizer.h"

enum answer_span_rule {
    ANSWER_SPAN_CONTENT,  // tokens that overlap the text between the last <answer> and the first </answer> after it
    ANSWER_SPAN_RELEASED, // as in the published code: from the token after the last "answer" of an <answer> to the
                          // third from the end
};

struct answer_span {
    bool found; // false: the completion has no answer
    size_t first;
    size_t end; // one past the last token; == first only under ANSWER_SPAN_RELEASED
};

// Finds the span. `ended`: the last token is an end-of-sequence token, which is never part of an answer.
// UNAVAILABLE when memory is short.
status answer_span_find(const struct tokenizer *tokenizer, enum answer_span_rule rule, const int64_t *tokens,
                        size_t count, bool ended, struct answer_span *out);

#endif
