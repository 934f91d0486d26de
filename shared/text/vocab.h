// The vocabulary: token names (written in the byte-level alphabet) with their ids, and the merges with their ranks.
// Ids may have holes; names and ids are unique.
#ifndef SHARED_TEXT_VOCAB_H
#define SHARED_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

enum { VOCAB_LIMIT = 1 << 22 }; // ids above are taken for a broken file

struct vocab_entry {
    const char *name;  // NULL: a hole
    const char *piece; // the bytes that it stands for
    uint32_t name_size, piece_size;
    bool special;    // dropped by decoding without special tokens
    bool added_only; // an added token that the model's own vocabulary lacks
};

struct vocab_merge {
    uint64_t pair; // left id << 32 | right id; all ones: an empty slot
    uint32_t rank;
    int32_t result;
};

// A zeroed struct is an empty vocabulary.
struct vocab {
    struct arena memory;
    struct vocab_entry *entries; // by id
    size_t size;                 // one more than the highest id
    size_t room;
    size_t count;        // entries that are no holes
    int32_t *name_slots; // open addressing, -1 is empty
    size_t name_mask;
    struct vocab_merge *merges; // open addressing
    size_t merge_mask;
    size_t merge_count;
};

// Frees all of it and leaves an empty one.
void vocab_release(struct vocab *v);

// Adds a token. DATAERR when the id is out of range or another token's, or the name has another id.
status vocab_add(struct vocab *v, const char *name, size_t size, int64_t id);

// The id of a name, -1 if there is none.
int32_t vocab_token_to_id(const struct vocab *v, const char *name, size_t size);

// Adds the merge of two names under `rank`. Of equal merges the first counts, or the last if `replace`. DATAERR when
// the vocabulary lacks either name or their joined one.
status vocab_add_merge(struct vocab *v, const char *left, size_t left_size, const char *right, size_t right_size,
                       uint32_t rank, bool replace);

// The merge of two ids, NULL if there is none.
const struct vocab_merge *vocab_find_merge(const struct vocab *v, int32_t left, int32_t right);

#endif
