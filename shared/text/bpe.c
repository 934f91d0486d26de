#include "shared/text/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

// ---- vocab ----

// Both hash tables have a power of two of slots, at most half of them in use, and are probed linearly.

static const uint64_t vocab_empty_pair = UINT64_MAX;

enum {
    REMAPPED_FIRST = 0x100, // the characters of bytes that are not their own character
    REMAPPED_END = 0x144,
    REMAPPED_LOW = 0x21,  // bytes 0 to 0x20 come first,
    REMAPPED_HIGH = 0x43, // then 0x7F to 0xA0, then 0xAD
};

static_assert(REMAPPED_HIGH == REMAPPED_LOW + 0xA0 - 0x7F + 1, "byte 0xAD follows byte 0xA0");
static_assert(REMAPPED_END == REMAPPED_FIRST + REMAPPED_HIGH + 1, "68 bytes are remapped");
static_assert(sizeof(struct vocab_merge) == 16, "four merges a cache line");
static_assert(MAX_VOCAB_SIZE <= INT32_MAX, "ids are int32_t");

static bool vocab_is_printable(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

size_t byte_to_unicode(unsigned char byte, char out[2]) {
    unsigned character = byte;
    if (!vocab_is_printable(byte))
        character = REMAPPED_FIRST + (byte < REMAPPED_LOW ? byte
                                      : byte <= 0xA0      ? byte - 0x7Fu + REMAPPED_LOW
                                                          : (unsigned)REMAPPED_HIGH);
    assert(character < REMAPPED_END);
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    out[0] = (char)(0xC0 | character >> 6);
    out[1] = (char)(0x80 | (character & 0x3F));
    return 2;
}

// The inverse of byte_to_unicode for a whole token: writes at most `size` bytes and returns their number. A token with
// a character outside the alphabet is copied.
static size_t vocab_unicode_to_bytes(const char *token, size_t size, char *out) {
    size_t count = 0, length;
    for (size_t at = 0; at < size; at += length) {
        unsigned lead = (unsigned char)token[at], character = lead;
        length = lead < 0x80 ? 1 : 2; // the alphabet's characters have two bytes at most
        if (length == 2)
            character = lead < 0xE0 && at + 1 < size ? (lead & 0x1F) << 6 | ((unsigned char)token[at + 1] & 0x3F)
                                                     : REMAPPED_END;
        if (character < REMAPPED_FIRST ? !vocab_is_printable(character) : character >= REMAPPED_END) {
            memcpy(out, token, size);
            return size;
        }
        unsigned byte = character;
        if (character >= REMAPPED_FIRST) {
            unsigned index = character - REMAPPED_FIRST;
            byte = index < REMAPPED_LOW ? index : index < REMAPPED_HIGH ? index - REMAPPED_LOW + 0x7F : 0xAD;
        }
        out[count++] = (char)byte;
    }
    return count;
}

void vocab_release(struct vocab *v) {
    arena_release(&v->memory);
    free(v->entries);
    free(v->slots);
    free(v->merges);
    *v = (struct vocab){0};
}

// Returns the slot of a token, or the empty slot where it belongs.
static int32_t *vocab_slot(const struct vocab *v, const char *token, size_t size) {
    for (size_t at = XXH3_64bits(token, size);; at++) {
        int32_t *slot = &v->slots[at & v->slot_mask];
        if (*slot < 0) return slot;
        const struct vocab_entry *entry = &v->entries[*slot];
        if (entry->token_size == size && !memcmp(entry->token, token, size)) return slot;
    }
}

int32_t vocab_token_to_id(const struct vocab *v, const char *token, size_t size) {
    return v->slots ? *vocab_slot(v, token, size) : -1;
}

status vocab_add(struct vocab *v, const char *token, size_t size, int64_t id) {
    if (id < 0 || id >= MAX_VOCAB_SIZE)
        return fail(DATAERR, "token \"%.*s\": id %lld is out of range", (int)size, token, (long long)id);
    if (!v->slots || v->count * 2 > v->slot_mask) {
        size_t slots = v->slots ? (v->slot_mask + 1) * 2 : 1024;
        assert((slots & (slots - 1)) == 0);
        free(v->slots);
        v->slots = NULL;
        NEW(&v->slots, slots);
        memset(v->slots, 255, slots * sizeof *v->slots);
        v->slot_mask = slots - 1;
        for (size_t i = 0; i < v->size; i++)
            if (v->entries[i].token) *vocab_slot(v, v->entries[i].token, v->entries[i].token_size) = (int32_t)i;
    }
    int32_t *slot = vocab_slot(v, token, size);
    if (*slot == id) return OK;
    if (*slot >= 0)
        return fail(DATAERR, "token \"%.*s\" has two ids, %d and %lld", (int)size, token, *slot, (long long)id);
    size_t capacity = v->capacity ? v->capacity : 4096;
    while (capacity <= (size_t)id) capacity *= 2;
    if (capacity > v->capacity) RESIZE(&v->entries, capacity);
    v->capacity = capacity;
    if ((size_t)id >= v->size) {
        memset(v->entries + v->size, 0, ((size_t)id + 1 - v->size) * sizeof *v->entries);
        v->size = (size_t)id + 1;
    }
    struct vocab_entry *entry = &v->entries[id];
    if (entry->token)
        return fail(DATAERR, "tokens \"%s\" and \"%.*s\" have the same id, %lld", entry->token, (int)size, token,
                    (long long)id);
    char *copy = arena_strndup(&v->memory, token, size);
    char *bytes = arena_alloc(&v->memory, size + 1);
    size_t bytes_size = vocab_unicode_to_bytes(token, size, bytes);
    assert(bytes_size <= size);
    *entry = (struct vocab_entry){copy, bytes, (uint32_t)size, (uint32_t)bytes_size, false, false};
    *slot = (int32_t)id;
    v->count++;
    return OK;
}

static uint64_t vocab_pair(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

// Returns the slot of a pair, or the empty slot where it belongs.
static struct vocab_merge *vocab_merge_slot(const struct vocab *v, uint64_t pair) {
    for (size_t at = XXH3_64bits(&pair, sizeof pair);; at++) {
        struct vocab_merge *slot = &v->merges[at & v->merge_mask];
        if (slot->pair == pair || slot->pair == vocab_empty_pair) return slot;
    }
}

// Returns the merge of two ids, NULL if there is none.
static const struct vocab_merge *vocab_find_merge(const struct vocab *v, int32_t left, int32_t right) {
    if (!v->merges) return NULL;
    const struct vocab_merge *slot = vocab_merge_slot(v, vocab_pair(left, right));
    return slot->pair == vocab_empty_pair ? NULL : slot;
}

static status vocab_require(const struct vocab *v, const char *token, size_t size, uint32_t rank, int32_t *id) {
    *id = vocab_token_to_id(v, token, size);
    if (*id >= 0) return OK;
    return fail(DATAERR, "merge %u: token \"%.*s\" is not in the vocabulary", rank + 1, (int)size, token);
}

status vocab_add_merge(struct vocab *v, const char *left, size_t left_size, const char *right, size_t right_size,
                       uint32_t rank, bool replace) {
    int32_t left_id, right_id, new_id;
    struct buf joined = {0};
    status result;
    TRY_TO(result, done, vocab_require(v, left, left_size, rank, &left_id));
    TRY_TO(result, done, vocab_require(v, right, right_size, rank, &right_id));
    buf_append(&joined, left, left_size);
    buf_append(&joined, right, right_size);
    TRY_TO(result, done, vocab_require(v, joined.data, joined.size, rank, &new_id));
    if (!v->merges || v->merge_count * 2 > v->merge_mask) {
        struct vocab_merge *old = v->merges, *merges;
        size_t old_slots = old ? v->merge_mask + 1 : 0, slots = old ? old_slots * 2 : 1024;
        assert((slots & (slots - 1)) == 0);
        NEW(&merges, slots);
        for (size_t i = 0; i < slots; i++) merges[i].pair = vocab_empty_pair;
        v->merges = merges;
        v->merge_mask = slots - 1;
        for (size_t i = 0; i < old_slots; i++)
            if (old[i].pair != vocab_empty_pair) *vocab_merge_slot(v, old[i].pair) = old[i];
        free(old);
    }
    struct vocab_merge *slot = vocab_merge_slot(v, vocab_pair(left_id, right_id));
    bool is_new = slot->pair == vocab_empty_pair;
    if (is_new || replace) *slot = (struct vocab_merge){vocab_pair(left_id, right_id), rank, new_id};
    v->merge_count += is_new;
done:
    buf_release(&joined);
    return result;
}

// ---- merging ----

enum {
    CACHE_SLOTS = 1 << 15, // the cache is direct-mapped
    CACHE_WORD_SIZE = 22,  // longer words are not cached
    CACHE_TOKENS = 10,     // nor words of more tokens
    MAX_WORD_SIZE = INT32_MAX / 4,
};

// The word that is being merged is a doubly linked list in an array.
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
    free(b->ids);
    free(b->heap);
    free(b->cache);
    *b = (struct bpe){0};
}

// Puts the pair of symbol `index` and the next one into the heap if the pair may merge.
static void bpe_heap_push(struct bpe *b, int32_t index) {
    int32_t next = b->symbols[index].next;
    const struct vocab_merge *merge = vocab_find_merge(b->vocab, b->symbols[index].id, b->symbols[next].id);
    if (!merge) return;
    if (b->heap_count == b->heap_capacity) {
        b->heap_capacity = b->heap_capacity ? b->heap_capacity * 2 : 1024;
        RESIZE(&b->heap, b->heap_capacity);
    }
    struct bpe_candidate candidate = {(uint64_t)merge->rank << 32 | (uint32_t)index, merge->new_id};
    size_t at = b->heap_count++;
    for (; at && b->heap[(at - 1) / 2].order > candidate.order; at = (at - 1) / 2) b->heap[at] = b->heap[(at - 1) / 2];
    b->heap[at] = candidate;
}

// Sets b->ids to the tokens of the word, with every pair merged that may be.
static status bpe_encode_uncached(struct bpe *b, const char *word, size_t size) {
    if (size > MAX_WORD_SIZE) return fail(DATAERR, "a word of %zu bytes is too long", size);
    if (size > b->symbol_capacity) {
        b->symbol_capacity = size * 2;
        RESIZE(&b->symbols, b->symbol_capacity);
        RESIZE(&b->ids, b->symbol_capacity);
    }
    b->id_count = 0;
    if (b->ignore_merges) { // a word that is itself a token of the model's vocabulary is that token
        struct buf token = {0};
        for (size_t i = 0; i < size; i++) {
            char character[2];
            buf_append(&token, character, byte_to_unicode((unsigned char)word[i], character));
        }
        const int32_t id = vocab_token_to_id(b->vocab, token.data, token.size);
        buf_release(&token);
        if (id >= 0 && !b->vocab->entries[id].added_only) {
            b->ids[b->id_count++] = id;
            return OK;
        }
    }
    struct bpe_symbol *symbols = b->symbols;
    int32_t count = 0; // of symbols
    bool last_unknown = false;
    for (size_t i = 0; i < size; i++) {
        int32_t id = b->byte_ids[(unsigned char)word[i]];
        bool unknown = id < 0;
        if (unknown) id = b->unk_id;
        if (id < 0 || (unknown && last_unknown && b->fuse_unk)) continue;
        symbols[count] = (struct bpe_symbol){.id = id, .previous = count - 1, .next = count + 1};
        count++;
        last_unknown = unknown;
    }
    assert((size_t)count <= b->symbol_capacity);
    if (count) symbols[count - 1].next = -1;
    // The candidates wait in a heap; one whose symbols have changed since is skipped.
    b->heap_count = 0;
    for (int32_t i = 0; i + 1 < count; i++) bpe_heap_push(b, i);
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
    for (int32_t i = 0; i < count; i++)
        if (symbols[i].id >= 0) b->ids[b->id_count++] = symbols[i].id;
    return OK;
}

status bpe_encode_word(struct bpe *b, const char *word, size_t size, const int32_t **ids, size_t *count) {
    struct bpe_cache_entry *entry = NULL;
    if (size <= CACHE_WORD_SIZE) entry = &b->cache[XXH3_64bits(word, size) % CACHE_SLOTS];
    if (!entry || entry->size != size || memcmp(entry->word, word, size) != 0) {
        TRY(bpe_encode_uncached(b, word, size));
        *ids = b->ids;
        *count = b->id_count;
        if (!entry || b->id_count > CACHE_TOKENS) return OK;
        entry->size = (uint8_t)size;
        entry->count = (uint8_t)b->id_count;
        memcpy(entry->word, word, size);
        memcpy(entry->ids, b->ids, b->id_count * sizeof *b->ids);
    }
    *ids = entry->ids;
    *count = entry->count;
    return OK;
}
