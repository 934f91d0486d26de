// Works on bytes: tokens may split characters, and BPE may merge the last letter of the tag with the first of the
// answer.
#include "stages/refscore/answer_span.h"

#include <assert.h>
#include <string.h>

#include "shared/base/memory.h"

static const char answer_open[] = "<answer>", answer_close[] = "</answer>";

// Returns the bytes of a token in the completion's text. Special tokens have none.
static const char *answer_span_piece(const struct tokenizer *tokenizer, int64_t token, size_t *size) {
    *size = 0;
    return tokenizer_is_special(tokenizer, token) ? NULL : tokenizer_piece(tokenizer, token, size);
}

// Appends the text of tokens. *content = the offset behind its last <answer>; 0: there is none.
static void answer_span_read(const struct tokenizer *tokenizer, const int64_t *tokens, size_t count, struct buf *text,
                             size_t *content) {
    *content = 0;
    buf_puts(text, "");
    for (size_t i = 0; i < count; i++) {
        size_t size;
        const char *piece = answer_span_piece(tokenizer, tokens[i], &size);
        buf_append(text, piece, size);
    }
    const char *end = text->data + text->size, *at = text->data;
    while ((at = memmem(at, (size_t)(end - at), answer_open, strlen(answer_open))))
        *content = (size_t)((at += strlen(answer_open)) - text->data);
}

size_t answer_size(const char *text, size_t size) {
    const char *close = size ? memmem(text, size, answer_close, strlen(answer_close)) : NULL;
    return close ? (size_t)(close - text) : size;
}

// Whether the text of tokens[first..end) contains `part`.
static bool answer_span_contains(const struct tokenizer *tokenizer, const int64_t *tokens, size_t first, size_t end,
                                 const char *part) {
    struct buf text = {0};
    for (size_t i = first; i < end; i++) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, tokens[i], &size);
        buf_append(&text, piece, size);
    }
    const bool found = text.data && memmem(text.data, text.size, part, strlen(part));
    buf_release(&text);
    return found;
}

void answer_span_find(const struct tokenizer *tokenizer, enum answer_span_rule rule, const int64_t *tokens,
                      size_t count, bool ended, struct answer_span *out) {
    *out = (struct answer_span){0};
    if (count == 0) return;
    size_t finish = ended ? count - 1 : count;
    if (rule == ANSWER_SPAN_CONTENT) {
        struct buf text = {0};
        size_t size, offset = 0, from;
        answer_span_read(tokenizer, tokens, finish, &text, &from);
        const size_t to = from ? from + answer_size(text.data + from, text.size - from) : 0;
        for (size_t i = 0; from < to && i < finish; i++, offset += size) {
            answer_span_piece(tokenizer, tokens[i], &size);
            if (offset + size <= from || offset >= to) continue;
            if (!out->found) out->first = i;
            out->found = true;
            out->end = i + 1;
        }
        buf_release(&text);
        return;
    }
    assert(rule == ANSWER_SPAN_RELEASED);
    for (size_t a = count; a-- > 0;) {
        size_t before = a ? a - 1 : 0, after = a + 2 < count ? a + 2 : count;
        if (!answer_span_contains(tokenizer, tokens, a, a + 1, "answer")) continue;
        if (!answer_span_contains(tokenizer, tokens, before, after, answer_open)) continue;
        // a < j < max(a + 1, finish - 3)
        size_t end = finish >= a + 4 ? finish - 3 : a + 1;
        *out = (struct answer_span){.found = true, .first = a + 1, .end = end > a + 1 ? end : a + 1};
        assert(out->first <= out->end);
        return;
    }
}

status answer_prefix_find(const struct tokenizer *tokenizer, const int64_t *tokens, size_t count, bool ended,
                          struct answer_prefix *out) {
    struct buf text = {0};
    size_t size = 0, offset = 0, end, at = 0;
    status result = OK;
    *out = (struct answer_prefix){0};
    answer_span_read(tokenizer, tokens, ended && count ? count - 1 : count, &text, &end);
    if (!end) goto done;
    for (;; at++, offset += size) {
        answer_span_piece(tokenizer, tokens[at], &size);
        if (offset + size >= end) break; // the tag ends in this token
    }
    bool goes_on = offset + size > end;
    if (goes_on) TRY_TO(result, done, tokenizer_encode(tokenizer, text.data + offset, end - offset, &out->cut));
    out->found = true;
    out->kept = at + !goes_on;
done:
    if (result != OK) answer_prefix_release(out);
    buf_release(&text);
    return result;
}

void answer_prefix_release(struct answer_prefix *prefix) {
    token_list_release(&prefix->cut);
    *prefix = (struct answer_prefix){0};
}

void answer_append(const struct tokenizer *tokenizer, int64_t token, struct buf *text, bool *closed) {
    size_t size;
    const char *piece = answer_span_piece(tokenizer, token, &size);
    buf_append(text, piece, size);
    *closed = answer_size(text->data, text->size) < text->size;
}
