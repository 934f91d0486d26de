// Merging one word's bytes into tokens: of all adjacent pairs that may merge, the one of lowest rank, leftmost first,
// until none is left. A long word takes n log n time; short ones are remembered.
#ifndef SHARED_TEXT_BPE_H
#define SHARED_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/text/tokenizer.h"
#include "shared/text/vocab.h"

struct bpe {
    const struct vocab *vocab;
    int32_t byte_ids[256]; // -1: a byte without a token
    int32_t unknown;       // stands for such a byte; -1: the byte is dropped
    bool fuse_unknown;     // one for a run of them
    bool whole_words;      // a word that is a token is not merged ("ignore_merges")
    struct bpe_symbol *symbols;
    size_t symbol_room;
    struct bpe_candidate *heap;
    size_t heap_count, heap_room;
    struct bpe_cache_entry *memory;
};

// Prepares a bpe over a finished vocabulary, which must outlive it.
status bpe_init(struct bpe *m, const struct vocab *v);

// Frees what it holds and leaves an empty one.
void bpe_release(struct bpe *m);

// Appends the tokens of word[0..size).
status bpe_encode_word(struct bpe *m, const char *word, size_t size, struct token_list *out);

#endif
