// Reads tokenizer.json, a NUL byte and a text. A tokenizer that loads must encode any text, alone and as a pair of its
// halves, and decode any tokens.
#include "tests/fuzz/fuzz.h"

#include "shared/text/chat_template.h"
#include "shared/text/tokenizer_internal.h"

static void tokenizer_use(const struct tokenizer *t, const char *text, size_t size) {
    struct token_list tokens = {0};
    struct buf raw = {0}, shown = {0};
    if (tokenizer_encode(t, text, size, &tokens) == OK) {
        size_t whole = 0;
        tokenizer_decode(t, tokens.data, tokens.count, false, &raw);
        for (size_t i = 0; i < tokens.count; i++) {
            size_t piece;
            tokenizer_piece(t, tokens.data[i], &piece);
            whole += piece;
        }
        if (whole != raw.size) abort();
    }
    tokens.count = 0;
    const size_t half = size / 2;
    if (tokenizer_encode_pair(t, text, half, text + half, size - half, &tokens) == OK) {
        buf_clear(&raw);
        tokenizer_decode_utf8(t, tokens.data, tokens.count, false, &raw);
    }
    tokens.count = 0;
    for (size_t i = 0; i + 1 < size; i += 2) token_list_append(&tokens, (uint8_t)text[i] | (uint8_t)text[i + 1] << 8);
    tokenizer_decode_utf8(t, tokens.data, tokens.count, true, &shown);
    buf_release(&raw);
    buf_release(&shown);
    token_list_release(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = memchr(data, 0, size);
    size_t json_size = text ? (size_t)(text - (const char *)data) : size;
    struct arena arena = {0};
    struct json *json = NULL;
    struct tokenizer *t;
    const status parsed = json_parse(&json, &arena, (const char *)data, json_size);
    if (parsed == OK && json_is(json, JSON_OBJECT) && tokenizer_from_json(&t, json) == OK) {
        if (text) tokenizer_use(t, text + 1, size - json_size - 1);
        tokenizer_free(&t);
    }
    arena_release(&arena);
    return 0;
}
