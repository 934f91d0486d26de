#include "shared/text/tokenizer.h"
#include "shared/base/utf8.h"

status tokenizer_decode(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special,
                        struct buf *out) {
    TRY(buf_reserve(out, count * 4));
    for (size_t i = 0; i < count; i++) {
        size_t size;
        const char *piece = tokenizer_piece(t, ids[i], &size);
        if (size && !(skip_special && tokenizer_is_special(t, ids[i]))) TRY(buf_append(out, piece, size));
    }
    return OK;
}

status tokenizer_decode_utf8(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special,
                             struct buf *out) {
    struct buf raw = {0};
    status result = tokenizer_decode(t, ids, count, skip_special, &raw);
    if (result == OK) result = utf8_replace(raw.data, raw.size, out);
    buf_release(&raw);
    return result;
}

void tokenizer_offsets(const struct tokenizer *t, const int64_t *ids, size_t count, size_t *offsets) {
    offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t size;
        tokenizer_piece(t, ids[i], &size);
        offsets[i + 1] = offsets[i] + size;
    }
}
