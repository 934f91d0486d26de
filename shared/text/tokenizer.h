// The tokenizer: the byte-level BPE of Qwen2 or ModernBERT, read from a model directory. Text to token ids and back.
//
// No id is assumed: special tokens are looked up by their text. Text is UTF-8 with its length and may contain NULs.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// A growing array of token ids. A zeroed struct is an empty list.
struct token_list {
    int64_t *data;
    size_t count;
    size_t most; // that tokenizer_encode makes it have; 0: any number
};

// Appends one id.
void token_list_append(struct token_list *list, int64_t id);

// Frees the memory and leaves an empty list.
void token_list_release(struct token_list *list);

struct tokenizer;

// Reads tokenizer.json, or vocab.json and merges.txt, and tokenizer_config.json of a model directory. DATAERR, with the
// file and the error, when they are missing, malformed or not byte-level BPE. Free with tokenizer_free.
status tokenizer_open(struct tokenizer **out, const char *dir);

// NULL is fine; sets *t to NULL.
void tokenizer_free(struct tokenizer **t);

// Appends the ids of text[0..size). Special tokens that the text contains become themselves, as in Hugging Face; none
// are added (add_special_tokens=False). DATAERR when the text is not UTF-8; BAD_SAMPLE as soon as the list would have
// more than out->most. Safe from several threads, which wait for each other.
status tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, struct token_list *out);

// Appends the ids of a text, or of a pair of texts if `pair` is not NULL, with the special tokens that the
// post-processor adds: [CLS] text [SEP] pair [SEP] in ModernBERT, none in Qwen2. Otherwise as tokenizer_encode.
status tokenizer_encode_pair(const struct tokenizer *t, const char *text, size_t size, const char *pair,
                             size_t pair_size, struct token_list *out);

// The same for texts that are encoded already; `pair` may be NULL.
void tokenizer_add_special_tokens(const struct tokenizer *t, const struct token_list *text,
                                  const struct token_list *pair, struct token_list *out);

// Appends the bytes of ids[0..count), which need not be UTF-8. An id that is not in the vocabulary (the model's
// embedding may be padded) decodes to nothing. `skip_special` drops special tokens.
void tokenizer_decode(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special, struct buf *out);

// The same as UTF-8: each ill-formed part becomes U+FFFD. Drops the spaces before punctuation where
// tokenizer_config.json says clean_up_tokenization_spaces.
void tokenizer_decode_utf8(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special,
                           struct buf *out);

// Bytes of tokens that tokenizer_decode_next has not decoded yet. A zeroed struct is empty; buf_release frees it.
struct tokenizer_rest {
    struct buf bytes;
};

// Takes the next token of a text, and appends as much of what tokenizer_decode_utf8 makes of all tokens together,
// without special ones, as no further token can change. The rest is kept: the beginning of a character, and where
// spaces are dropped also what may be the beginning of a space with punctuation.
void tokenizer_decode_next(const struct tokenizer *t, struct tokenizer_rest *rest, int64_t id, struct buf *out);

// The text ends: appends what was kept.
void tokenizer_decode_end(const struct tokenizer *t, struct tokenizer_rest *rest, struct buf *out);

// Returns the id of a token by its text ("<|im_end|>"), -1 if there is none.
int64_t tokenizer_token_to_id(const struct tokenizer *t, const char *token);

// Returns the bytes that a token decodes to, valid as long as the tokenizer. NULL and *size 0 for an id that is not
// in the vocabulary.
const char *tokenizer_piece(const struct tokenizer *t, int64_t id, size_t *size);

// Returns whether an id is a special token, which skip_special drops.
bool tokenizer_is_special(const struct tokenizer *t, int64_t id);

// Returns the highest id + 1.
int64_t tokenizer_vocab_size(const struct tokenizer *t);
