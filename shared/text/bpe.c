#include "shared/text/bpe.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shared/text/byte_alphabet.h"

enum {
    SHORT = 32,             // symbols up to which a plain search beats the heap
    MEMORY_SLOTS = 1 << 15, // a word has one place to be remembered in
    MEMORY_WORD = 22,
    MEMORY_TOKENS = 10,
};

struct bpe_symbol {
    int32_t id; // -1: merged into the one before it
    int32_t previous, next;
};

struct bpe_candidate {
    uint64_t order; // rank << 32 | place of the left symbol
    int32_t result;
};

struct bpe_cache_entry {
    uint8_t size, count;
    char word[MEMORY_WORD];
    int32_t ids[MEMORY_TOKENS];
};

status bpe_init(struct bpe *m, const struct vocab *v) {
    *m = (struct bpe){.vocab = v, .unknown = -1};
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[2];
        m->byte_ids[byte] = vocab_token_to_id(v, name, byte_to_unicode((unsigned char)byte, name));
    }
    return NEW(&m->memory, MEMORY_SLOTS);
}

void bpe_release(struct bpe *m) {
    free(m->symbols);
    free(m->heap);
    free(m->memory);
    *m = (struct bpe){0};
}

// The word's bytes as symbols; *count of them.
static status spell(struct bpe *m, const char *word, size_t size, size_t *count) {
    if (size > INT32_MAX / 4) return fail(DATAERR, "a word of %zu bytes is too long", size);
    if (size > m->symbol_room) {
        TRY(RESIZE(&m->symbols, size * 2));
        m->symbol_room = size * 2;
    }
    size_t n = 0;
    bool last_unknown = false;
    for (size_t i = 0; i < size; i++) {
        int32_t id = m->byte_ids[(unsigned char)word[i]];
        bool unknown = id < 0;
        if (unknown) id = m->unknown;
        if (id < 0 || (unknown && last_unknown && m->fuse_unknown)) continue;
        m->symbols[n++].id = id;
        last_unknown = unknown;
    }
    *count = n;
    return OK;
}

// A word of few symbols: search all pairs for the lowest rank each time.
static size_t merge_short(const struct bpe *m, size_t count) {
    const struct vocab_merge *pairs[SHORT];
    struct bpe_symbol *symbols = m->symbols;
    for (size_t i = 0; i + 1 < count; i++) pairs[i] = vocab_find_merge(m->vocab, symbols[i].id, symbols[i + 1].id);
    for (;;) {
        size_t best = SIZE_MAX;
        for (size_t i = 0; i + 1 < count; i++)
            if (pairs[i] && (best == SIZE_MAX || pairs[i]->rank < pairs[best]->rank)) best = i;
        if (best == SIZE_MAX) return count;
        symbols[best].id = pairs[best]->result;
        count--;
        memmove(&symbols[best + 1], &symbols[best + 2], (count - best - 1) * sizeof *symbols);
        if (best + 1 < count) {
            memmove(&pairs[best + 1], &pairs[best + 2], (count - best - 2) * sizeof(const struct vocab_merge *));
            pairs[best] = vocab_find_merge(m->vocab, symbols[best].id, symbols[best + 1].id);
        }
        if (best) pairs[best - 1] = vocab_find_merge(m->vocab, symbols[best - 1].id, symbols[best].id);
    }
}

static status heap_push(struct bpe *m, int32_t place) {
    int32_t next = m->symbols[place].next;
    const struct vocab_merge *merge = vocab_find_merge(m->vocab, m->symbols[place].id, m->symbols[next].id);
    if (!merge) return OK;
    if (m->heap_count == m->heap_room) {
        size_t room = m->heap_room ? m->heap_room * 2 : 1024;
        TRY(RESIZE(&m->heap, room));
        m->heap_room = room;
    }
    struct bpe_candidate fresh = {(uint64_t)merge->rank << 32 | (uint32_t)place, merge->result};
    size_t at = m->heap_count++;
    for (; at && m->heap[(at - 1) / 2].order > fresh.order; at = (at - 1) / 2) m->heap[at] = m->heap[(at - 1) / 2];
    m->heap[at] = fresh;
    return OK;
}

static struct bpe_candidate heap_pop(struct bpe *m) {
    struct bpe_candidate top = m->heap[0], last = m->heap[--m->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= m->heap_count) break;
        if (child + 1 < m->heap_count && m->heap[child + 1].order < m->heap[child].order) child++;
        if (m->heap[child].order >= last.order) break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = last;
    return top;
}

// Merges one candidate, unless what it was made for has changed since.
static status merge_one(struct bpe *m, struct bpe_candidate candidate) {
    struct bpe_symbol *symbols = m->symbols;
    int32_t place = (int32_t)(uint32_t)candidate.order, next = symbols[place].next;
    if (symbols[place].id < 0 || next < 0) return OK;
    const struct vocab_merge *merge = vocab_find_merge(m->vocab, symbols[place].id, symbols[next].id);
    if (!merge || merge->result != candidate.result) return OK;
    symbols[place].id = candidate.result;
    symbols[place].next = symbols[next].next;
    symbols[next].id = -1;
    if (symbols[place].next >= 0) {
        symbols[symbols[place].next].previous = place;
        TRY(heap_push(m, place));
    }
    return symbols[place].previous >= 0 ? heap_push(m, symbols[place].previous) : OK;
}

// A word of many: the candidates wait in a heap.
static status merge_long(struct bpe *m, size_t *count) {
    for (size_t i = 0; i < *count; i++) {
        m->symbols[i].previous = (int32_t)i - 1;
        m->symbols[i].next = i + 1 < *count ? (int32_t)i + 1 : -1;
    }
    m->heap_count = 0;
    for (size_t i = 0; i + 1 < *count; i++) TRY(heap_push(m, (int32_t)i));
    while (m->heap_count) TRY(merge_one(m, heap_pop(m)));
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++)
        if (m->symbols[i].id >= 0) m->symbols[kept++] = m->symbols[i];
    *count = kept;
    return OK;
}

// The id of a word that is a token as it stands, -1 if it is none.
static status find_whole(const struct bpe *m, const char *word, size_t size, int32_t *id) {
    struct buf name = {0};
    status result = OK;
    for (size_t i = 0; i < size && result == OK; i++) {
        char character[2];
        result = buf_append(&name, character, byte_to_unicode((unsigned char)word[i], character));
    }
    *id = result == OK ? vocab_token_to_id(m->vocab, name.data, name.size) : -1;
    if (*id >= 0 && m->vocab->entries[*id].added_only) *id = -1;
    buf_release(&name);
    return result;
}

static status merge_word(struct bpe *m, const char *word, size_t size, struct token_list *out) {
    if (m->whole_words) {
        int32_t id;
        TRY(find_whole(m, word, size, &id));
        if (id >= 0) return token_list_append(out, id);
    }
    size_t count = 0;
    TRY(spell(m, word, size, &count));
    if (count <= SHORT) {
        count = merge_short(m, count);
    } else {
        TRY(merge_long(m, &count));
    }
    for (size_t i = 0; i < count; i++) TRY(token_list_append(out, m->symbols[i].id));
    return OK;
}

status bpe_encode_word(struct bpe *m, const char *word, size_t size, struct token_list *out) {
    if (size > MEMORY_WORD) return merge_word(m, word, size, out);
    struct bpe_cache_entry *memory = &m->memory[XXH3_64bits(word, size) % MEMORY_SLOTS];
    if (memory->size == size && !memcmp(memory->word, word, size)) {
        for (size_t i = 0; i < memory->count; i++) TRY(token_list_append(out, memory->ids[i]));
        return OK;
    }
    size_t before = out->count;
    TRY(merge_word(m, word, size, out));
    if (out->count - before > MEMORY_TOKENS) return OK;
    memory->size = (uint8_t)size;
    memory->count = (uint8_t)(out->count - before);
    memcpy(memory->word, word, size);
    for (size_t i = 0; i < memory->count; i++) memory->ids[i] = (int32_t)out->data[before + i];
    return OK;
}
