// Byte pair encoding of one word: of all adjacent pairs that may merge, the one of lowest rank is merged, the leftmost
// first, until no pair is left. A long word takes n log n time. The tokens of short words are cached.
#ifndef SHARED_TEXT_BPE_H
#define SHARED_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/text/token_list.h"
#include "shared/text/vocab.h"

struct bpe {
    const struct vocab *vocab;
    int32_t byte_ids[256]; // -1: the vocabulary has no token for the byte
    int32_t unk_id;        // stands for such a byte; -1: the byte is dropped
    bool fuse_unk;         // one unk_id for a run of them
    bool ignore_merges;    // a word that is a token is not merged
    struct bpe_symbol *symbols;
    size_t symbol_capacity;
    struct bpe_candidate *heap;
    size_t heap_count, heap_capacity;
    struct bpe_cache_entry *cache;
};

// Prepares the encoder for a finished vocabulary, which must outlive it. Release with bpe_release, also after a
// failure.
void bpe_init(struct bpe *b, const struct vocab *v);

// Frees the memory and leaves an empty encoder.
void bpe_release(struct bpe *b);

// Appends the tokens of word[0..size). DATAERR when the word is longer than 512 MiB. Not for several threads at once.
status bpe_encode_word(struct bpe *b, const char *word, size_t size, struct token_list *out);

#endif
