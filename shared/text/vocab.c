#include "shared/text/vocab.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shared/text/byte_alphabet.h"

static const uint64_t EMPTY = UINT64_MAX;

void vocab_release(struct vocab *v) {
    arena_release(&v->memory);
    free(v->entries);
    free(v->name_slots);
    free(v->merges);
    *v = (struct vocab){0};
}

// The slot of a name, or the empty one where it would stand.
static int32_t *name_slot(const struct vocab *v, const char *name, size_t size) {
    for (size_t at = XXH3_64bits(name, size);; at++) {
        int32_t *slot = &v->name_slots[at & v->name_mask];
        if (*slot < 0) return slot;
        const struct vocab_entry *entry = &v->entries[*slot];
        if (entry->name_size == size && !memcmp(entry->name, name, size)) return slot;
    }
}

int32_t vocab_token_to_id(const struct vocab *v, const char *name, size_t size) {
    return v->name_slots ? *name_slot(v, name, size) : -1;
}

static status grow_names(struct vocab *v) {
    size_t slots = v->name_slots ? (v->name_mask + 1) * 2 : 1024;
    free(v->name_slots);
    v->name_slots = NULL;
    TRY(NEW(&v->name_slots, slots));
    memset(v->name_slots, 255, slots * sizeof *v->name_slots);
    v->name_mask = slots - 1;
    for (size_t id = 0; id < v->size; id++)
        if (v->entries[id].name) *name_slot(v, v->entries[id].name, v->entries[id].name_size) = (int32_t)id;
    return OK;
}

static status grow_entries(struct vocab *v, size_t id) {
    if (id >= v->room) {
        size_t room = v->room ? v->room * 2 : 4096;
        while (room <= id) room *= 2;
        TRY(RESIZE(&v->entries, room));
        v->room = room;
    }
    if (id >= v->size) {
        memset(v->entries + v->size, 0, (id + 1 - v->size) * sizeof *v->entries);
        v->size = id + 1;
    }
    return OK;
}

status vocab_add(struct vocab *v, const char *name, size_t size, int64_t id) {
    if (id < 0 || id >= VOCAB_LIMIT)
        return fail(DATAERR, "token \"%.*s\": id %lld is out of range", (int)size, name, (long long)id);
    if (!v->name_slots || v->count * 2 > v->name_mask) TRY(grow_names(v));
    int32_t *slot = name_slot(v, name, size);
    if (*slot == id) return OK;
    if (*slot >= 0)
        return fail(DATAERR, "token \"%.*s\" has two ids, %d and %lld", (int)size, name, *slot, (long long)id);
    TRY(grow_entries(v, (size_t)id));
    struct vocab_entry *entry = &v->entries[id];
    if (entry->name)
        return fail(DATAERR, "tokens \"%s\" and \"%.*s\" have one id, %lld", entry->name, (int)size, name,
                    (long long)id);
    char *copy = arena_strndup(&v->memory, name, size);
    char *piece = arena_alloc(&v->memory, size + 1);
    if (!copy || !piece) return fail_oom();
    size_t piece_size;
    unicode_to_bytes(name, size, piece, &piece_size);
    *entry = (struct vocab_entry){copy, piece, (uint32_t)size, (uint32_t)piece_size, false, false};
    *slot = (int32_t)id;
    v->count++;
    return OK;
}

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct vocab_merge *merge_slot(const struct vocab *v, uint64_t pair) {
    for (size_t at = XXH3_64bits(&pair, sizeof pair);; at++) {
        struct vocab_merge *slot = &v->merges[at & v->merge_mask];
        if (slot->pair == pair || slot->pair == EMPTY) return slot;
    }
}

const struct vocab_merge *vocab_find_merge(const struct vocab *v, int32_t left, int32_t right) {
    if (!v->merges) return NULL;
    const struct vocab_merge *slot = merge_slot(v, pair_of(left, right));
    return slot->pair == EMPTY ? NULL : slot;
}

static status grow_merges(struct vocab *v) {
    struct vocab_merge *old = v->merges;
    size_t old_slots = old ? v->merge_mask + 1 : 0, slots = old ? old_slots * 2 : 1024;
    struct vocab_merge *fresh;
    TRY(NEW(&fresh, slots));
    for (size_t i = 0; i < slots; i++) fresh[i].pair = EMPTY;
    v->merges = fresh;
    v->merge_mask = slots - 1;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].pair != EMPTY) *merge_slot(v, old[i].pair) = old[i];
    free(old);
    return OK;
}

static status require(const struct vocab *v, const char *name, size_t size, uint32_t rank, int32_t *id) {
    *id = vocab_token_to_id(v, name, size);
    if (*id >= 0) return OK;
    return fail(DATAERR, "merge %u: token \"%.*s\" is not in the vocabulary", rank + 1, (int)size, name);
}

status vocab_add_merge(struct vocab *v, const char *left, size_t left_size, const char *right, size_t right_size,
                       uint32_t rank, bool replace) {
    int32_t first, second, result;
    TRY(require(v, left, left_size, rank, &first));
    TRY(require(v, right, right_size, rank, &second));
    struct buf joined = {0};
    status outcome = buf_append(&joined, left, left_size);
    if (outcome == OK) outcome = buf_append(&joined, right, right_size);
    if (outcome == OK) outcome = require(v, joined.data, joined.size, rank, &result);
    buf_release(&joined);
    TRY(outcome);
    if (!v->merges || v->merge_count * 2 > v->merge_mask) TRY(grow_merges(v));
    struct vocab_merge *slot = merge_slot(v, pair_of(first, second));
    if (slot->pair == EMPTY) {
        v->merge_count++;
    } else if (!replace) {
        return OK;
    }
    *slot = (struct vocab_merge){pair_of(first, second), rank, result};
    return OK;
}
