// Byte pair encoding of one word: of all adjacent pairs that may merge, the one of lowest rank is merged, the leftmost
// first, until no pair is left. A long word takes n log n time. The tokens of short words are cached.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct bpe {
    const struct vocab *vocab;
    int32_t byte_ids[256];      // -1: the vocabulary has no token for the byte
    int32_t unk_id;             // stands for such a byte; -1: the byte is dropped
    bool fuse_unk;              // one unk_id for a run of them
    bool ignore_merges;         // a word that is a token is not merged
    struct bpe_symbol *symbols; // of the word that is being merged
    int32_t *ids;               // what it became
    size_t id_count;
    size_t symbol_capacity; // of `symbols` and `ids`
    struct bpe_candidate *heap;
    size_t heap_count, heap_capacity;
    struct bpe_cache_entry *cache;
};

// Prepares the encoder for a finished vocabulary, which must outlive it. Release with bpe_release, also after a
// failure.
void bpe_init(struct bpe *b, const struct vocab *v);

// Frees the memory and leaves an empty encoder.
void bpe_release(struct bpe *b);

// Sets ids[0..*count) to the tokens of word[0..size), which is not empty. They are valid until the next call. DATAERR
// when the word is longer than 512 MiB. Not for several threads at once.
status bpe_encode_word(struct bpe *b, const char *word, size_t size, const int32_t **ids, size_t *count);

// ---- vocab ----

// The vocabulary of a byte-level BPE model: tokens with their ids, and merges with their ranks.
//
// A token is written in GPT-2's byte-level alphabet, in which each byte is one printable character. Printable Latin-1
// bytes are their own characters; the other 68 bytes are U+0100 to U+0143, in ascending order.
// Tokens and ids are unique. Ids may have gaps.

enum { MAX_VOCAB_SIZE = 1 << 22 }; // a file with a higher id is taken for broken

struct vocab_entry {
    const char *token; // in the byte-level alphabet, NUL-terminated; NULL: no token has this id
    const char *bytes; // the bytes that the token decodes to
    uint32_t token_size, bytes_size;
    bool special;    // decoding may skip it
    bool added_only; // an added token that is not in the model's own vocabulary
};

struct vocab_merge {
    uint64_t pair; // left id << 32 | right id; all ones: an empty slot
    uint32_t rank;
    int32_t new_id;
};

// A zeroed struct is an empty vocabulary.
struct vocab {
    struct arena memory;
    struct vocab_entry *entries; // by id
    size_t size;                 // the highest id + 1
    size_t capacity;
    size_t count;   // entries that hold a token
    int32_t *slots; // hash table of ids by token, open addressing; -1: empty
    size_t slot_mask;
    struct vocab_merge *merges; // hash table by pair, open addressing
    size_t merge_mask;
    size_t merge_count;
};

// Writes the byte's character as UTF-8 and returns its length, 1 or 2 bytes.
size_t byte_to_unicode(unsigned char byte, char out[2]);

// Frees all of it and leaves an empty vocabulary.
void vocab_release(struct vocab *v);

// Adds a token. A token with a character outside the byte-level alphabet (an added token with a space, for example)
// decodes to its own UTF-8. DATAERR when the id is out of range or belongs to another token, or the token has another
// id.
status vocab_add(struct vocab *v, const char *token, size_t size, int64_t id);

// Returns the id of a token, -1 if there is none.
int32_t vocab_token_to_id(const struct vocab *v, const char *token, size_t size);

// Adds the merge of two tokens under `rank`. If the pair is given twice, the first merge counts, or with `replace` the
// last one. DATAERR when either token or their concatenation is not in the vocabulary.
status vocab_add_merge(struct vocab *v, const char *left, size_t left_size, const char *right, size_t right_size,
                       uint32_t rank, bool replace);
