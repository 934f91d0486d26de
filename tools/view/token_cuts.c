#include "tools/view/token_cuts.h"

#include <stdlib.h>
#include <string.h>

// A place in the bytes that the tokens decode to, and the same place in the text.
struct token_cuts_place {
    size_t raw, text;
    int64_t units; // of UTF-16
};

// Goes over the next character, or over an ill-formed part, which is U+FFFD in the text. Returns false if the text has
// something else there.
static bool token_cuts_step(const struct buf *raw, struct string text, struct token_cuts_place *at) {
    const int size = utf8_step(raw->data + at->raw, raw->size - at->raw);
    const char *shown = size < 0 ? "\xEF\xBF\xBD" : raw->data + at->raw;
    const size_t shown_size = size < 0 ? 3 : (size_t)size;
    if (text.size - at->text < shown_size || memcmp(text.data + at->text, shown, shown_size) != 0) return false;
    at->raw += (size_t)abs(size);
    at->text += shown_size;
    at->units += size == 4 ? 2 : 1;
    return true;
}

bool token_cuts_find(const struct tokenizer *tokenizer, const struct completion *completion, int64_t *cuts) {
    const struct int_array *tokens = &completion->tokens;
    struct token_cuts_place at = {0};
    struct buf raw = {0};
    size_t *ends; // of the tokens, in `raw`
    bool same = tokens->data && completion->text.data;
    if (!same) return false;
    NEW(&ends, tokens->count);
    for (size_t i = 0; i < tokens->count; i++) {
        tokenizer_decode(tokenizer, &tokens->data[i], 1, true, &raw);
        ends[i] = raw.size;
    }
    for (size_t i = 0; same && i < tokens->count; i++) {
        while (same && at.raw < ends[i] &&
               at.raw + (size_t)abs(utf8_step(raw.data + at.raw, raw.size - at.raw)) <= ends[i])
            same = token_cuts_step(&raw, completion->text, &at);
        cuts[i] = at.units;
    }
    same = same && at.text == completion->text.size;
    free(ends);
    buf_release(&raw);
    return same;
}
