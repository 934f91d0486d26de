// The tokenizer: Qwen2-style byte-level BPE, read from a model folder. Text to token ids and back.
//
// An id is never assumed: special tokens are looked up by name. Text is UTF-8 with its length, NULs allowed.
#ifndef SHARED_TEXT_TOKENIZER_H
#define SHARED_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct tokenizer;

// Token ids that grow. A zeroed struct is an empty list.
struct token_list {
    int64_t *data;
    size_t count;
    size_t room;
};

// Appends one id. UNAVAILABLE when memory is short.
status token_list_append(struct token_list *list, int64_t id);

// Frees its memory and leaves an empty list.
void token_list_release(struct token_list *list);

// Reads tokenizer.json, or vocab.json and merges.txt, and tokenizer_config.json of a model folder. DATAERR, with the
// file and what is wrong in it, when they are missing, broken, of another kind than byte-level BPE, or without a token
// that the chat template needs (its name is in the text). Free with tokenizer_free.
status tokenizer_open(struct tokenizer **out, const char *folder);

// NULL is fine; sets *t to NULL.
void tokenizer_free(struct tokenizer **t);

// Appends the ids of text[0..size). Special tokens written in the text become themselves, as in Hugging Face.
// DATAERR when the text is not UTF-8. Safe from several threads.
status tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, struct token_list *out);

// Appends the bytes of ids[0..count), which need not be UTF-8. An id that is not in the vocabulary (a model's table may
// be padded) gives nothing. `skip_special` drops special tokens.
status tokenizer_decode(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special,
                        struct buf *out);

// The same as text: U+FFFD stands for each ill-formed part.
status tokenizer_decode_utf8(const struct tokenizer *t, const int64_t *ids, size_t count, bool skip_special,
                             struct buf *out);

// The byte at which each token starts in what tokenizer_decode gives without skip_special: offsets[0..count], the last
// one being the whole size.
void tokenizer_offsets(const struct tokenizer *t, const int64_t *ids, size_t count, size_t *offsets);

// A token's id by its name ("<|im_end|>"), -1 if there is none.
int64_t tokenizer_token_to_id(const struct tokenizer *t, const char *name);

// A token's bytes as decoded, valid as long as the tokenizer; size 0 and NULL for an id that is not in the vocabulary.
const char *tokenizer_piece(const struct tokenizer *t, int64_t id, size_t *size);

// Whether an id is a special token, which skip_special drops.
bool tokenizer_is_special(const struct tokenizer *t, int64_t id);

// One more than the highest id.
int64_t tokenizer_vocab_size(const struct tokenizer *t);

#endif
