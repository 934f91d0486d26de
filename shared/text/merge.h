// Merging one word's bytes into tokens: of all adjacent pairs that may merge, the one of lowest rank, leftmost first,
// until none is left. A long word takes n log n time; short ones are remembered.
#ifndef SHARED_TEXT_MERGE_H
#define SHARED_TEXT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/text/tokenizer.h"
#include "shared/text/vocabulary.h"

struct merger {
    const struct vocabulary *vocabulary;
    int32_t byte_ids[256]; // -1: a byte without a token
    int32_t unknown;       // stands for such a byte; -1: the byte is dropped
    bool fuse_unknown;     // one for a run of them
    bool whole_words;      // a word that is a token is not merged ("ignore_merges")
    struct merge_symbol *symbols;
    size_t symbol_room;
    struct merge_candidate *heap;
    size_t heap_count, heap_room;
    struct merge_memory *memory;
};

// Prepares a merger over a finished vocabulary, which must outlive it.
status merger_init(struct merger *m, const struct vocabulary *v);

// Frees what it holds and leaves an empty one.
void merger_release(struct merger *m);

// Appends the tokens of word[0..size).
status merger_word(struct merger *m, const char *word, size_t size, struct token_list *out);

#endif
