// Works on bytes: tokens may split characters, and BPE may fuse the tag's last letter with the answer's first.
#include "shared/text/answer_span.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

static const char opening[] = "<answer>", closing[] = "</answer>";

// The bytes of a token that stand in the completion's text: special tokens have none.
static const char *visible(const struct tokenizer *tokenizer, int64_t token, size_t *size) {
    *size = 0;
    return tokenizer_is_special(tokenizer, token) ? NULL : tokenizer_piece(tokenizer, token, size);
}

static const char *find_last(const struct buf *text, const char *what) {
    const char *found = NULL;
    const char *at = text->data, *end = text->data + text->size;
    while (at && (at = memmem(at, (size_t)(end - at), what, strlen(what)))) found = at++;
    return found;
}

// The range of bytes of the content; false if there is none.
static bool content_range(const struct buf *text, size_t *from, size_t *to) {
    const char *open = find_last(text, opening);
    if (!open) return false;
    const char *start = open + strlen(opening), *end = text->data + text->size;
    const char *close = memmem(start, (size_t)(end - start), closing, strlen(closing));
    *from = (size_t)(start - text->data);
    *to = close ? (size_t)(close - text->data) : text->size;
    return *from < *to;
}

static status find_content(const struct tokenizer *tokenizer, const int64_t *tokens, size_t count,
                           struct answer_span *out) {
    struct buf text = {0};
    size_t from, to, size, at = 0;
    status result = buf_puts(&text, "");
    for (size_t i = 0; result == OK && i < count; i++) {
        const char *piece = visible(tokenizer, tokens[i], &size);
        result = buf_append(&text, piece, size);
    }
    if (result == OK && content_range(&text, &from, &to)) {
        for (size_t i = 0; i < count; i++, at += size) {
            visible(tokenizer, tokens[i], &size);
            if (at + size <= from || at >= to) continue;
            if (!out->found) out->first = i;
            out->found = true;
            out->end = i + 1;
        }
    }
    buf_release(&text);
    return result;
}

static bool holds(const struct tokenizer *tokenizer, const int64_t *tokens, size_t first, size_t end, const char *what,
                  bool *found) {
    struct buf text = {0};
    bool fine = true;
    for (size_t i = first; fine && i < end; i++) {
        size_t size;
        const char *piece = tokenizer_piece(tokenizer, tokens[i], &size);
        fine = buf_append(&text, piece, size) == OK;
    }
    *found = fine && text.data && memmem(text.data, text.size, what, strlen(what));
    buf_release(&text);
    return fine;
}

static status find_released(const struct tokenizer *tokenizer, const int64_t *tokens, size_t count, bool ended,
                            struct answer_span *out) {
    size_t finish = ended ? count - 1 : count;
    for (size_t a = count; a-- > 0;) {
        bool word, tag;
        size_t before = a ? a - 1 : 0, after = a + 2 < count ? a + 2 : count;
        if (!holds(tokenizer, tokens, a, a + 1, "answer", &word)) return UNAVAILABLE;
        if (!word) continue;
        if (!holds(tokenizer, tokens, before, after, opening, &tag)) return UNAVAILABLE;
        if (!tag) continue;
        // a < j < max(a + 1, finish - 3)
        size_t end = finish >= a + 4 ? finish - 3 : a + 1;
        *out = (struct answer_span){.found = true, .first = a + 1, .end = end > a + 1 ? end : a + 1};
        return OK;
    }
    return OK;
}

status answer_span_find(const struct tokenizer *tokenizer, enum answer_span_rule rule, const int64_t *tokens,
                        size_t count, bool ended, struct answer_span *out) {
    *out = (struct answer_span){0};
    if (count == 0) return OK;
    if (rule == ANSWER_SPAN_RELEASED) return find_released(tokenizer, tokens, count, ended, out);
    return find_content(tokenizer, tokens, ended ? count - 1 : count, out);
}
