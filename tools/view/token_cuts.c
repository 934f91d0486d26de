#include "tools/view/view.h"

#include <stdlib.h>
#include <string.h>

bool token_cuts_find(const struct tokenizer *tokenizer, const struct completion *completion, int64_t *cuts) {
    const struct int_array *tokens = &completion->tokens;
    const struct string text = completion->text;
    struct buf raw = {0};           // the bytes that the tokens decode to
    size_t *ends;                   // of the tokens, in `raw`
    size_t at_raw = 0, at_text = 0; // the same place in `raw` and in the text
    int64_t units = 0;              // of UTF-16 before it
    bool same = tokens->data && text.data;
    if (!same) return false;
    NEW(&ends, tokens->count);
    for (size_t i = 0; i < tokens->count; i++) {
        tokenizer_decode(tokenizer, &tokens->data[i], 1, true, &raw);
        ends[i] = raw.size;
    }
    for (size_t i = 0; same && i < tokens->count; i++) {
        while (same && at_raw < ends[i]) {
            // The next character, or an ill-formed part, which is U+FFFD in the text.
            const int size = utf8_step(raw.data + at_raw, raw.size - at_raw);
            const char *shown = size < 0 ? "\xEF\xBF\xBD" : raw.data + at_raw;
            const size_t shown_size = size < 0 ? 3 : (size_t)size;
            if (at_raw + (size_t)abs(size) > ends[i]) break;
            same = text.size - at_text >= shown_size && !memcmp(text.data + at_text, shown, shown_size);
            if (!same) break;
            at_raw += (size_t)abs(size);
            at_text += shown_size;
            units += size == 4 ? 2 : 1;
        }
        cuts[i] = units;
    }
    same = same && at_text == text.size;
    free(ends);
    buf_release(&raw);
    return same;
}
