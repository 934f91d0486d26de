#include "shared/text/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    SHORT_SYMBOLS = 32,    // up to this number of symbols a linear search is faster than the heap
    CACHE_SLOTS = 1 << 15, // the cache is direct-mapped
    CACHE_WORD_SIZE = 22,  // longer words are not cached
    CACHE_TOKENS = 10,     // nor words of more tokens
    MAX_WORD_SIZE = INT32_MAX / 4,
};

// The word that is being merged is a doubly linked list in an array. Only bpe_merge_long uses the links.
struct bpe_symbol {
    int32_t id; // -1: merged into the previous symbol
    int32_t previous, next;
};

struct bpe_candidate {
    uint64_t order; // rank << 32 | index of the left symbol
    int32_t new_id;
};

struct bpe_cache_entry {
    uint8_t size, count;
    char word[CACHE_WORD_SIZE];
    int32_t ids[CACHE_TOKENS];
};

static_assert(sizeof(struct bpe_cache_entry) == 64, "one cache line an entry");
static_assert(CACHE_WORD_SIZE <= UINT8_MAX && CACHE_TOKENS <= UINT8_MAX, "sizes are stored in bytes");
static_assert((CACHE_SLOTS & (CACHE_SLOTS - 1)) == 0, "the slot is a mask of the hash");

void bpe_init(struct bpe *b, const struct vocab *v) {
    *b = (struct bpe){.vocab = v, .unk_id = -1};
    for (unsigned byte = 0; byte < 256; byte++) {
        char token[2];
        b->byte_ids[byte] = vocab_token_to_id(v, token, byte_to_unicode((unsigned char)byte, token));
    }
    NEW(&b->cache, CACHE_SLOTS);
}

void bpe_release(struct bpe *b) {
    free(b->symbols);
    free(b->heap);
    free(b->cache);
    *b = (struct bpe){0};
}

// Merges a word of few symbols: searches all pairs for the lowest rank each time. Returns the new number of symbols.
static size_t bpe_merge_short(const struct bpe *b, size_t count) {
    const struct vocab_merge *pairs[SHORT_SYMBOLS];
    struct bpe_symbol *symbols = b->symbols;
    assert(count <= SHORT_SYMBOLS);
    for (size_t i = 0; i + 1 < count; i++) pairs[i] = vocab_find_merge(b->vocab, symbols[i].id, symbols[i + 1].id);
    for (;;) {
        size_t best = SIZE_MAX;
        for (size_t i = 0; i + 1 < count; i++)
            if (pairs[i] && (best == SIZE_MAX || pairs[i]->rank < pairs[best]->rank)) best = i;
        if (best == SIZE_MAX) return count;
        symbols[best].id = pairs[best]->new_id;
        count--;
        memmove(&symbols[best + 1], &symbols[best + 2], (count - best - 1) * sizeof *symbols);
        if (best + 1 < count) {
            memmove(&pairs[best + 1], &pairs[best + 2], (count - best - 2) * sizeof(const struct vocab_merge *));
            pairs[best] = vocab_find_merge(b->vocab, symbols[best].id, symbols[best + 1].id);
        }
        if (best) pairs[best - 1] = vocab_find_merge(b->vocab, symbols[best - 1].id, symbols[best].id);
    }
}

// Puts the pair of symbol `index` and the next one into the heap if the pair may merge.
static void bpe_heap_push(struct bpe *b, int32_t index) {
    int32_t next = b->symbols[index].next;
    const struct vocab_merge *merge = vocab_find_merge(b->vocab, b->symbols[index].id, b->symbols[next].id);
    if (!merge) return;
    if (b->heap_count == b->heap_capacity) {
        size_t capacity = b->heap_capacity ? b->heap_capacity * 2 : 1024;
        RESIZE(&b->heap, capacity);
        b->heap_capacity = capacity;
    }
    struct bpe_candidate candidate = {(uint64_t)merge->rank << 32 | (uint32_t)index, merge->new_id};
    size_t at = b->heap_count++;
    for (; at && b->heap[(at - 1) / 2].order > candidate.order; at = (at - 1) / 2) b->heap[at] = b->heap[(at - 1) / 2];
    b->heap[at] = candidate;
}

// Merges a word of many symbols; the candidates wait in a heap. A candidate whose symbols have changed since is
// skipped.
static void bpe_merge_long(struct bpe *b, size_t *count) {
    struct bpe_symbol *symbols = b->symbols;
    for (size_t i = 0; i < *count; i++) {
        symbols[i].previous = (int32_t)i - 1;
        symbols[i].next = i + 1 < *count ? (int32_t)i + 1 : -1;
    }
    b->heap_count = 0;
    for (size_t i = 0; i + 1 < *count; i++) bpe_heap_push(b, (int32_t)i);
    while (b->heap_count) {
        struct bpe_candidate candidate = b->heap[0], last = b->heap[--b->heap_count];
        size_t at = 0;
        for (size_t child; (child = at * 2 + 1) < b->heap_count; at = child) {
            if (child + 1 < b->heap_count && b->heap[child + 1].order < b->heap[child].order) child++;
            if (b->heap[child].order >= last.order) break;
            b->heap[at] = b->heap[child];
        }
        b->heap[at] = last;
        int32_t index = (int32_t)(uint32_t)candidate.order, next = symbols[index].next;
        if (symbols[index].id < 0 || next < 0) continue;
        const struct vocab_merge *merge = vocab_find_merge(b->vocab, symbols[index].id, symbols[next].id);
        if (!merge || merge->new_id != candidate.new_id) continue;
        symbols[index].id = candidate.new_id;
        symbols[index].next = symbols[next].next;
        symbols[next].id = -1;
        if (symbols[index].next >= 0) {
            symbols[symbols[index].next].previous = index;
            bpe_heap_push(b, index);
        }
        if (symbols[index].previous >= 0) bpe_heap_push(b, symbols[index].previous);
    }
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++)
        if (symbols[i].id >= 0) symbols[kept++] = symbols[i];
    *count = kept;
}

static status bpe_encode_uncached(struct bpe *b, const char *word, size_t size, struct token_list *out) {
    if (b->ignore_merges) { // a word that is itself a token of the model's vocabulary is that token
        struct buf token = {0};
        for (size_t i = 0; i < size; i++) {
            char character[2];
            buf_append(&token, character, byte_to_unicode((unsigned char)word[i], character));
        }
        const int32_t id = vocab_token_to_id(b->vocab, token.data, token.size);
        buf_release(&token);
        if (id >= 0 && !b->vocab->entries[id].added_only) {
            token_list_append(out, id);
            return OK;
        }
    }
    if (size > MAX_WORD_SIZE) return fail(DATAERR, "a word of %zu bytes is too long", size);
    if (size > b->symbol_capacity) {
        RESIZE(&b->symbols, size * 2);
        b->symbol_capacity = size * 2;
    }
    size_t count = 0; // of symbols
    bool last_unknown = false;
    for (size_t i = 0; i < size; i++) {
        int32_t id = b->byte_ids[(unsigned char)word[i]];
        bool unknown = id < 0;
        if (unknown) id = b->unk_id;
        if (id < 0 || (unknown && last_unknown && b->fuse_unk)) continue;
        b->symbols[count++].id = id;
        last_unknown = unknown;
    }
    assert(count <= b->symbol_capacity);
    if (count <= SHORT_SYMBOLS) {
        count = bpe_merge_short(b, count);
    } else {
        bpe_merge_long(b, &count);
    }
    for (size_t i = 0; i < count; i++) token_list_append(out, b->symbols[i].id);
    return OK;
}

status bpe_encode_word(struct bpe *b, const char *word, size_t size, struct token_list *out) {
    if (size > CACHE_WORD_SIZE) return bpe_encode_uncached(b, word, size, out);
    struct bpe_cache_entry *entry = &b->cache[XXH3_64bits(word, size) % CACHE_SLOTS];
    if (entry->size == size && !memcmp(entry->word, word, size)) {
        for (size_t i = 0; i < entry->count; i++) token_list_append(out, entry->ids[i]);
        return OK;
    }
    size_t before = out->count;
    TRY(bpe_encode_uncached(b, word, size, out));
    if (out->count - before > CACHE_TOKENS) return OK;
    entry->size = (uint8_t)size;
    entry->count = (uint8_t)(out->count - before);
    memcpy(entry->word, word, size);
    for (size_t i = 0; i < entry->count; i++) entry->ids[i] = (int32_t)out->data[before + i];
    return OK;
}
