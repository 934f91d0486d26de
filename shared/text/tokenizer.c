// Encoding: added tokens that match the text as it is are split off and the rest is normalized; added tokens that match
// the normalized text are split off and the rest is split into words, which BPE merges.
#include "shared/text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/text/tokenizer_internal.h"

// ---- token list ----

void token_list_append(struct token_list *list, int64_t id) {
    GROW(&list->data, list->count);
    list->data[list->count++] = id;
}

void token_list_release(struct token_list *list) {
    free(list->data);
    *list = (struct token_list){0};
}

// ---- added_tokens ----

// Sets *yes to whether the character before text[at..), or the one behind text[..at), is of the regex's kind, and *next
// to its other end.
static status added_tokens_look(struct regex *kind, const char *text, size_t size, size_t at, bool before, bool *yes,
                                size_t *next) {
    size_t start = at, end = at, first, last;
    assert(before ? at > 0 : at < size);
    if (!before) end += (size_t)utf8_step(text + at, size - at);
    while (before && start && (start == at || ((unsigned char)text[start] & 0xC0) == 0x80)) start--;
    *next = before ? start : end;
    regex_prepare(kind, text + start, end - start);
    return regex_find(kind, text + start, end - start, 0, yes, &first, &last);
}

struct added_token_match {
    size_t start, end; // of the match with the white space that it takes
    size_t resume;     // where the search continues
    int32_t id;
};

// Finds the next token that matches the text as it is, or normalized, in text[from..size): sets *found, and *match if
// it is true. `taken` is the end of the last match, which a match that takes white space does not overlap. DATAERR as
// in regex_find.
static status added_tokens_next(const struct added_tokens *a, bool normalized, const char *text, size_t size,
                                size_t from, size_t taken, bool *found, struct added_token_match *match) {
    *found = false;
    for (size_t at = from; at < size; at++) {
        const struct added_token *token = NULL; // the longest one at text[at..size)
        for (size_t i = 0; a->starts[(unsigned char)text[at]] && i < a->count; i++) {
            const struct added_token *other = &a->tokens[i];
            if (other->flags.normalized == normalized && other->size <= size - at &&
                other->size > (token ? token->size : 0) && !memcmp(other->content, text + at, other->size))
                token = other;
        }
        if (!token) continue;
        *match = (struct added_token_match){at, at + token->size, at + token->size, token->id};
        bool in_word = false;
        size_t next;
        if (token->flags.single_word && match->start)
            TRY(added_tokens_look(a->word, text, size, match->start, true, &in_word, &next));
        if (token->flags.single_word && match->end < size && !in_word)
            TRY(added_tokens_look(a->word, text, size, match->end, false, &in_word, &next));
        if (in_word) {
            at = match->resume - 1;
            continue;
        }
        bool space = true;
        while (token->flags.lstrip && match->start > taken) {
            TRY(added_tokens_look(a->space, text, size, match->start, true, &space, &next));
            if (!space) break;
            match->start = next;
        }
        while (token->flags.rstrip && match->end < size) {
            TRY(added_tokens_look(a->space, text, size, match->end, false, &space, &next));
            if (!space) break;
            match->end = next;
        }
        *found = true;
        return OK;
    }
    return OK;
}

// ---- encoding ----

struct tokenizer_output {
    struct bpe *bpe;
    struct token_list *ids;
};

static status tokenizer_check_count(const struct token_list *list, size_t more) {
    const bool fits = !list->most || list->count + more <= list->most;
    return fits ? OK : fail(BAD_SAMPLE, "more than %zu tokens", list->most);
}

static status tokenizer_encode_word(void *context, const char *word, size_t size) {
    const struct tokenizer_output *output = context;
    const int32_t *ids;
    size_t count;
    TRY(bpe_encode_word(output->bpe, word, size, &ids, &count));
    TRY(tokenizer_check_count(output->ids, count));
    for (size_t i = 0; i < count; i++) token_list_append(output->ids, ids[i]);
    return OK;
}

// Encodes text that is normalized or not yet.
static status tokenizer_encode_text(const struct tokenizer *t, bool normalized, const char *text, size_t size,
                                    struct token_list *out) {
    struct tokenizer_encoder *encoder = t->encoder;
    struct tokenizer_output output = {&encoder->bpe, out};
    size_t from = 0, taken = 0;
    for (bool found = true; found;) {
        struct added_token_match match;
        TRY(added_tokens_next(&t->added, normalized, text, size, from, taken, &found, &match));
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
        TRY(tokenizer_check_count(out, 1));
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
    const struct post_processor *p = &t->post_processor;
    int64_t texts[] = {POST_PROCESSOR_FIRST, POST_PROCESSOR_SECOND};
    const struct token_list bare = {.data = texts, .count = pair ? 2 : 1};
    const struct token_list *template = !p->is_template ? &bare : pair ? &p->pair : &p->single;
    for (size_t i = 0; i < template->count; i++) {
        const int64_t id = template->data[i];
        const struct token_list *tokens = id == POST_PROCESSOR_SECOND ? pair : text;
        assert(tokens); // only a template of pairs has the second one
        if (id >= 0) token_list_append(out, id);
        for (size_t k = 0; id < 0 && k < tokens->count; k++) token_list_append(out, tokens->data[k]);
    }
}

void tokenizer_decode(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special, struct buf *out) {
    buf_reserve(out, count * 4);
    for (size_t i = 0; i < count; i++) {
        size_t size;
        const char *piece = tokenizer_piece(t, ids[i], &size);
        if (size && !(skip_special && tokenizer_is_special(t, ids[i]))) buf_append(out, piece, size);
    }
}

// Appends bytes as UTF-8, and drops spaces as clean_up_tokenization of transformers: one replacement after the other.
static void tokenizer_append_text(const struct tokenizer *t, const char *bytes, size_t size, struct buf *out) {
    static const char *const replaced[][2] = {{" .", "."},     {" ?", "?"},     {" !", "!"},   {" ,", ","},
                                              {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"},
                                              {" 've", "'ve"}, {" 're", "'re"}};
    const size_t from = out->size;
    utf8_replace(bytes, size, out);
    for (size_t i = 0; t->clean_up_spaces && i < sizeof replaced / sizeof *replaced; i++) {
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
    tokenizer_decode(t, ids, count, skip_special, &raw);
    tokenizer_append_text(t, raw.data, raw.size, out);
    buf_release(&raw);
}

void tokenizer_decode_next(const struct tokenizer *t, struct tokenizer_rest *rest, int64_t id, struct buf *out) {
    static const char inner[] = {' ', '\'', 'n', 'v', 'r'}; // of what is replaced, the last characters aside
    struct buf *bytes = &rest->bytes;
    size_t end = 0;
    tokenizer_decode(t, &id, 1, true, bytes);
    while (end < bytes->size) {
        const int step = utf8_step(bytes->data + end, bytes->size - end);
        const size_t size = (size_t)abs(step);
        if (step < 0 && end + size == bytes->size) break; // may be the beginning of a character
        end += size;
    }
    // No replacement goes over the place behind another character: it would be the one before the last, or earlier.
    while (t->clean_up_spaces && end && memchr(inner, bytes->data[end - 1], sizeof inner)) end--;
    if (!end) return;
    tokenizer_append_text(t, bytes->data, end, out);
    memmove(bytes->data, bytes->data + end, bytes->size - end);
    bytes->size -= end;
}

void tokenizer_decode_end(const struct tokenizer *t, struct tokenizer_rest *rest, struct buf *out) {
    tokenizer_append_text(t, rest->bytes.data, rest->bytes.size, out);
    buf_clear(&rest->bytes);
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
