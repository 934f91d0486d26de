// Finds which tokens of a completion are its answer, whose likelihood the consistency bonus rewards, and where another
// answer can be written in its place.
#pragma once

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
void answer_span_find(const struct tokenizer *tokenizer, enum answer_span_rule rule, const int64_t *tokens,
                      size_t count, bool ended, struct answer_span *out);

// A completion up to and including its last <answer>: tokens[0..kept), and then `cut`, the tokens of the part before
// the tag's end of a token that goes on behind it. A zeroed struct is empty.
struct answer_prefix {
    bool found; // false: the completion has no <answer>
    size_t kept;
    struct token_list cut;
};

// Finds the prefix; `ended` as in answer_span_find. The caller calls answer_prefix_release. DATAERR when the part of a
// token is not UTF-8; the prefix is then empty.
status answer_prefix_find(const struct tokenizer *tokenizer, const int64_t *tokens, size_t count, bool ended,
                          struct answer_prefix *out);

// Frees the memory and leaves an empty prefix.
void answer_prefix_release(struct answer_prefix *prefix);

// Appends a token's text to that of an answer; special tokens have none. *closed = whether the text contains </answer>.
void answer_append(const struct tokenizer *tokenizer, int64_t token, struct buf *text, bool *closed);

// Returns the bytes of text[0..size) before the first </answer>, which may be all.
size_t answer_size(const char *text, size_t size);
