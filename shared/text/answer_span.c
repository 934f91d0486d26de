// Works on bytes: tokens may split characters, and BPE may merge the last letter of the tag with the first of the
// answer.
#include "shared/text/answer_span.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

static const char answer_open[] = "<answer>", answer_close[] = "</answer>";

// Returns the bytes of a token in the completion's text. Special tokens have none.
static const char *answer_span_piece(const struct tokenizer *tokenizer, int64_t token, size_t *size) {
    *size = 0;
    return tokenizer_is_special(tokenizer, token) ? NULL : tokenizer_piece(tokenizer, token, size);
}

static status answer_span_find_content(const struct tokenizer *tokenizer, const int64_t *tokens, size_t count,
                                       struct answer_span *out) {
    struct buf text = {0};
    size_t size, offset = 0;
    status result;
    TRY_TO(result, done, buf_puts(&text, ""));
    for (size_t i = 0; i < count; i++) {
        const char *piece = answer_span_piece(tokenizer, tokens[i], &size);
        TRY_TO(result, done, buf_append(&text, piece, size));
    }
    const char *end = text.data + text.size, *content = NULL, *at = text.data;
    while ((at = memmem(at, (size_t)(end - at), answer_open, strlen(answer_open)))) content = at += strlen(answer_open);
    if (!content) goto done;
    const char *close = memmem(content, (size_t)(end - content), answer_close, strlen(answer_close));
    size_t from = (size_t)(content - text.data), to = close ? (size_t)(close - text.data) : text.size;
    for (size_t i = 0; from < to && i < count; i++, offset += size) {
        answer_span_piece(tokenizer, tokens[i], &size);
        if (offset + size <= from || offset >= to) continue;
        if (!out->found) out->first = i;
        out->found = true;
        out->end = i + 1;
    }
done:
    buf_release(&text);
    return result;
}

// Sets *found to whether the text of tokens[first..end) contains `part`.
static status answer_span_contains(const struct tokenizer *tokenizer, const int64_t *tokens, size_t first, size_t end,
                                   const char *part, bool *found) {
    struct buf text = {0};
    status result = OK;
    for (size_t i = first; result == OK && i < end; i++) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, tokens[i], &size);
        result = buf_append(&text, piece, size);
    }
    *found = result == OK && text.data && memmem(text.data, text.size, part, strlen(part));
    buf_release(&text);
    return result;
}

status answer_span_find(const struct tokenizer *tokenizer, enum answer_span_rule rule, const int64_t *tokens,
                        size_t count, bool ended, struct answer_span *out) {
    *out = (struct answer_span){0};
    if (count == 0) return OK;
    size_t finish = ended ? count - 1 : count;
    if (rule == ANSWER_SPAN_CONTENT) return answer_span_find_content(tokenizer, tokens, finish, out);
    assert(rule == ANSWER_SPAN_RELEASED);
    for (size_t a = count; a-- > 0;) {
        bool word, tag;
        size_t before = a ? a - 1 : 0, after = a + 2 < count ? a + 2 : count;
        TRY(answer_span_contains(tokenizer, tokens, a, a + 1, "answer", &word));
        if (!word) continue;
        TRY(answer_span_contains(tokenizer, tokens, before, after, answer_open, &tag));
        if (!tag) continue;
        // a < j < max(a + 1, finish - 3)
        size_t end = finish >= a + 4 ? finish - 3 : a + 1;
        *out = (struct answer_span){.found = true, .first = a + 1, .end = end > a + 1 ? end : a + 1};
        assert(out->first <= out->end);
        return OK;
    }
    return OK;
}
