// Encoding: added tokens that match the text as it is are split off and the rest is normalized; added tokens that match
// the normalized text are split off and the rest is split into words, which BPE merges.
#include "shared/text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/text/tokenizer_internal.h"

void tokenizer_free(struct tokenizer **t) {
    if (!*t) return;
    struct tokenizer_encoder *encoder = (*t)->encoder;
    if (encoder) {
        bpe_release(&encoder->bpe);
        pre_tokenizer_release(&encoder->pre_tokenizer);
        buf_release(&encoder->normalized);
        pthread_mutex_destroy(&encoder->lock);
        free(encoder);
    }
    vocab_release(&(*t)->vocab);
    added_tokens_release(&(*t)->added);
    post_processor_release(&(*t)->post_processor);
    free(*t);
    *t = NULL;
}

static status tokenizer_new(struct tokenizer **out) {
    struct tokenizer_encoder *encoder;
    NEW(out, 1);
    NEW(&encoder, 1);
    if (pthread_mutex_init(&encoder->lock, NULL)) {
        free(encoder);
        return fail(UNAVAILABLE, "cannot initialize a mutex");
    }
    (*out)->encoder = encoder;
    return OK;
}

// Completes a tokenizer after all its files have been read.
static status tokenizer_finish(struct tokenizer *t) {
    for (size_t i = 0; i < t->added.count; i++) {
        const struct added_token *token = &t->added.tokens[i];
        assert(token->id >= 0 && (size_t)token->id < t->vocab.size);
        if (token->flags.special) t->vocab.entries[token->id].special = true;
    }
    return added_tokens_build(&t->added, t->form);
}

status tokenizer_open(struct tokenizer **out, const char *dir) {
    *out = NULL;
    struct arena memory = {0};
    struct tokenizer *t = NULL;
    struct json *json = NULL;
    status result;
    char *json_path = path_join(&memory, dir, "tokenizer.json"), *vocab_path = path_join(&memory, dir, "vocab.json");
    TRY_TO(result, done, tokenizer_new(&t));
    if (path_exists(json_path)) {
        TRY_TO(result, done, json_parse_file(&json, &memory, json_path));
        result = tokenizer_read_json(t, json);
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "%s", json_path));
    } else if (path_exists(vocab_path)) {
        TRY_TO(result, done, tokenizer_read_vocab_files(t, dir));
    } else {
        TRY_TO(result, done, fail(DATAERR, "%s: no tokenizer.json, and no vocab.json with merges.txt", dir));
    }
    TRY_TO(result, done, tokenizer_read_config(t, dir));
    TRY_TO(result, done, tokenizer_finish(t));
    *out = t;
    t = NULL;
done:
    tokenizer_free(&t);
    arena_release(&memory);
    return result;
}

status tokenizer_from_json(struct tokenizer **out, struct json *json) {
    *out = NULL;
    struct tokenizer *t = NULL;
    status result;
    TRY_TO(result, done, tokenizer_new(&t));
    TRY_TO(result, done, tokenizer_read_json(t, json));
    TRY_TO(result, done, tokenizer_finish(t));
    *out = t;
    t = NULL;
done:
    tokenizer_free(&t);
    return result;
}

struct tokenizer_output {
    struct bpe *bpe;
    struct token_list *ids;
};

static status tokenizer_encode_word(void *context, const char *word, size_t size) {
    const struct tokenizer_output *output = context;
    return bpe_encode_word(output->bpe, word, size, output->ids);
}

// Encodes text that is normalized or not yet.
static status tokenizer_encode_text(const struct tokenizer *t, bool normalized, const char *text, size_t size,
                                    struct token_list *out) {
    struct tokenizer_encoder *encoder = t->encoder;
    struct tokenizer_output output = {&encoder->bpe, out};
    const struct added_token_set *set = normalized ? &t->added.normalized : &t->added.raw;
    size_t from = 0, taken = 0;
    for (bool found = true; found;) {
        struct added_token_match match;
        TRY(added_tokens_next(&t->added, set, text, size, from, taken, &found, &match));
        size_t end = found ? match.start : size;
        if (end > taken && normalized) {
            TRY(pre_tokenizer_run(&encoder->pre_tokenizer, text + taken, end - taken, tokenizer_encode_word, &output));
        } else if (end > taken) {
            const char *rest;
            size_t rest_size;
            TRY(normalize_text(t->form, text + taken, end - taken, &encoder->normalized, &rest, &rest_size));
            TRY(tokenizer_encode_text(t, true, rest, rest_size, out));
        }
        if (!found) break;
        token_list_append(out, match.id);
        taken = match.end;
        from = match.resume;
    }
    return OK;
}

status tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, struct token_list *out) {
    if (!utf8_valid(text, size)) return fail(DATAERR, "the text is not UTF-8");
    pthread_mutex_lock(&t->encoder->lock);
    status result = tokenizer_encode_text(t, false, text, size, out);
    pthread_mutex_unlock(&t->encoder->lock);
    return result;
}

status tokenizer_encode_pair(const struct tokenizer *t, const char *text, size_t size, const char *pair,
                             size_t pair_size, struct token_list *out) {
    struct token_list first = {0}, second = {0};
    status result;
    TRY_TO(result, done, tokenizer_encode(t, text, size, &first));
    if (pair) TRY_TO(result, done, tokenizer_encode(t, pair, pair_size, &second));
    tokenizer_add_special_tokens(t, &first, pair ? &second : NULL, out);
done:
    token_list_release(&first);
    token_list_release(&second);
    return result;
}

void tokenizer_add_special_tokens(const struct tokenizer *t, const struct token_list *text,
                                  const struct token_list *pair, struct token_list *out) {
    post_processor_run(&t->post_processor, text, pair, out);
}

void tokenizer_decode(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special, struct buf *out) {
    buf_reserve(out, count * 4);
    for (size_t i = 0; i < count; i++) {
        size_t size;
        const char *piece = tokenizer_piece(t, ids[i], &size);
        if (size && !(skip_special && tokenizer_is_special(t, ids[i]))) buf_append(out, piece, size);
    }
}

// Drops spaces in out[from..) as clean_up_tokenization of transformers: one replacement after the other.
static void tokenizer_clean_up(struct buf *out, size_t from) {
    static const char *const replaced[][2] = {{" .", "."},     {" ?", "?"},     {" !", "!"},   {" ,", ","},
                                              {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"},
                                              {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        const char *old = replaced[i][0], *new = replaced[i][1];
        const size_t old_size = strlen(old), new_size = strlen(new);
        size_t kept = from;
        for (size_t at = from; at < out->size;) {
            if (out->size - at >= old_size && !memcmp(out->data + at, old, old_size)) {
                memcpy(out->data + kept, new, new_size);
                kept += new_size;
                at += old_size;
            } else {
                out->data[kept++] = out->data[at++];
            }
        }
        out->size = kept;
    }
    if (out->data) out->data[out->size] = 0;
}

void tokenizer_decode_utf8(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special,
                           struct buf *out) {
    struct buf raw = {0};
    const size_t from = out->size;
    tokenizer_decode(t, ids, count, skip_special, &raw);
    utf8_replace(raw.data, raw.size, out);
    if (t->clean_up_spaces) tokenizer_clean_up(out, from);
    buf_release(&raw);
}

void tokenizer_offsets(const struct tokenizer *t, const int64_t *ids, size_t count, size_t *offsets) {
    offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t size;
        tokenizer_piece(t, ids[i], &size);
        offsets[i + 1] = offsets[i] + size;
    }
}

int64_t tokenizer_token_to_id(const struct tokenizer *t, const char *token) {
    return vocab_token_to_id(&t->vocab, token, strlen(token));
}

// Returns the entry of an id, NULL if it is not in the vocabulary.
static const struct vocab_entry *tokenizer_entry(const struct tokenizer *t, int64_t id) {
    return id >= 0 && (uint64_t)id < t->vocab.size && t->vocab.entries[id].token ? &t->vocab.entries[id] : NULL;
}

const char *tokenizer_piece(const struct tokenizer *t, int64_t id, size_t *size) {
    const struct vocab_entry *entry = tokenizer_entry(t, id);
    *size = entry ? entry->bytes_size : 0;
    return entry ? entry->bytes : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int64_t id) {
    const struct vocab_entry *entry = tokenizer_entry(t, id);
    return entry && entry->special;
}

int64_t tokenizer_vocab_size(const struct tokenizer *t) {
    return (int64_t)t->vocab.size;
}
