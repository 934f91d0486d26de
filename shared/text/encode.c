// Text to tokens: added tokens that match as they stand are split off, the rest is normalised, added tokens that match
// normalised text are split off, the rest is split into words and merged.
#include "shared/text/tokenizer_internal.h"
#include "shared/base/utf8.h"

struct encoding {
    struct tokenizer *t;
    struct token_list *out;
};

static status take_word(void *context, const char *word, size_t size) {
    struct encoding *e = context;
    return bpe_encode_word(&e->t->bpe, word, size, e->out);
}

static status encode_words(struct encoding *e, const char *text, size_t size) {
    return pre_tokenizer_run(&e->t->pre_tokenizer, text, size, take_word, e);
}

// Splits the added tokens of a set off and gives what is between them to `rest`.
static status split_added(struct encoding *e, const struct added_token_set *set, const char *text, size_t size,
                          status (*rest)(struct encoding *e, const char *text, size_t size)) {
    size_t from = 0, taken = 0;
    for (;;) {
        bool found;
        struct added_token_match match;
        TRY(added_tokens_next(&e->t->added, set, text, size, from, taken, &found, &match));
        if (!found) break;
        if (match.start > taken) TRY(rest(e, text + taken, match.start - taken));
        TRY(token_list_append(e->out, match.id));
        taken = match.end;
        from = match.resume;
    }
    return taken < size ? rest(e, text + taken, size - taken) : OK;
}

static status encode_normalized(struct encoding *e, const char *text, size_t size) {
    const char *normal;
    size_t normal_size;
    TRY(normalize_text(e->t->form, text, size, &e->t->normal, &normal, &normal_size));
    return split_added(e, &e->t->added.normalized, normal, normal_size, encode_words);
}

status tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, struct token_list *out) {
    if (!utf8_valid(text, size)) return fail(DATAERR, "the text is not UTF-8");
    struct encoding e = {(struct tokenizer *)t, out};
    pthread_mutex_lock(&e.t->lock);
    status result = split_added(&e, &t->added.raw, text, size, encode_normalized);
    pthread_mutex_unlock(&e.t->lock);
    return result;
}
