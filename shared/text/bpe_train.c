// Counting pairs and joining them. Words are counted once; a pair knows the words that it stands in, and waits in a
// heap under the count that it had when it was put there, so that a join costs what it changes and no more.
#include "shared/text/bpe_train.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shared/base/utf8.h"
#include "shared/text/byte_alphabet.h"
#include "shared/text/normalize.h"
#include "shared/text/pre_tokenizer.h"

struct train_word {
    int32_t *ids;
    uint32_t length;
    uint32_t size; // bytes; the key of the table is text[0..size)
    const char *text;
    int64_t count;
};

struct train_pair {
    int32_t left, right; // left < 0: an empty slot
    int64_t count;
    uint32_t *words; // in which it stands or stood, some of them twice
    size_t word_count, word_room;
};

struct train_wait {
    int64_t count;
    int32_t left, right;
};

struct trainer {
    struct vocab *vocab;
    struct arena memory;
    struct train_word *words;
    size_t word_count, word_room;
    uint32_t *word_slots; // index + 1; 0 is empty
    size_t word_mask;
    struct train_pair *pairs;
    size_t pair_count, pair_mask;
    struct train_wait *heap;
    size_t heap_count, heap_room;
};

static void release(struct trainer *t) {
    for (size_t i = 0; t->pairs && i <= t->pair_mask; i++) free(t->pairs[i].words);
    arena_release(&t->memory);
    free(t->words);
    free(t->word_slots);
    free(t->pairs);
    free(t->heap);
}

static uint32_t *word_slot(const struct trainer *t, const char *text, size_t size) {
    for (size_t at = XXH3_64bits(text, size);; at++) {
        uint32_t *slot = &t->word_slots[at & t->word_mask];
        if (!*slot) return slot;
        const struct train_word *word = &t->words[*slot - 1];
        if (word->size == size && !memcmp(word->text, text, size)) return slot;
    }
}

static status grow_words(struct trainer *t) {
    size_t room = t->word_room ? t->word_room * 2 : 1024;
    TRY(RESIZE(&t->words, room));
    t->word_room = room;
    free(t->word_slots);
    t->word_slots = NULL;
    TRY(NEW(&t->word_slots, room * 2));
    t->word_mask = room * 2 - 1;
    for (size_t i = 0; i < t->word_count; i++) *word_slot(t, t->words[i].text, t->words[i].size) = (uint32_t)i + 1;
    return OK;
}

// Counts one word of the text; a new one is spelled in the bytes' tokens.
static status take_word(void *context, const char *text, size_t size) {
    struct trainer *t = context;
    if (t->word_count == t->word_room) TRY(grow_words(t));
    uint32_t *slot = word_slot(t, text, size);
    if (*slot) {
        t->words[*slot - 1].count++;
        return OK;
    }
    struct train_word word = {.length = (uint32_t)size, .size = (uint32_t)size, .count = 1};
    word.text = arena_strndup(&t->memory, text, size);
    word.ids = arena_alloc(&t->memory, size * sizeof *word.ids);
    if (!word.text || !word.ids || size > INT32_MAX) return fail_oom();
    for (size_t i = 0; i < size; i++) {
        char name[2];
        word.ids[i] = vocab_token_to_id(t->vocab, name, byte_to_unicode((unsigned char)text[i], name));
    }
    t->words[t->word_count++] = word;
    *slot = (uint32_t)t->word_count;
    return OK;
}

static struct train_pair *pair_slot(const struct trainer *t, int32_t left, int32_t right) {
    const int32_t key[2] = {left, right};
    for (size_t at = XXH3_64bits(key, sizeof key);; at++) {
        struct train_pair *slot = &t->pairs[at & t->pair_mask];
        if (slot->left < 0 || (slot->left == left && slot->right == right)) return slot;
    }
}

static status grow_pairs(struct trainer *t) {
    size_t old_slots = t->pairs ? t->pair_mask + 1 : 0, slots = old_slots ? old_slots * 2 : 4096;
    struct train_pair *old = t->pairs, *fresh;
    TRY(NEW(&fresh, slots));
    for (size_t i = 0; i < slots; i++) fresh[i].left = -1;
    t->pairs = fresh;
    t->pair_mask = slots - 1;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].left >= 0) *pair_slot(t, old[i].left, old[i].right) = old[i];
    free(old);
    return OK;
}

// Whether a waits before b: the higher count, then the lower ids.
static bool is_before(const struct train_wait *a, const struct train_wait *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static status heap_push(struct trainer *t, struct train_wait fresh) {
    if (t->heap_count == t->heap_room) {
        size_t room = t->heap_room ? t->heap_room * 2 : 4096;
        TRY(RESIZE(&t->heap, room));
        t->heap_room = room;
    }
    size_t at = t->heap_count++;
    for (; at && is_before(&fresh, &t->heap[(at - 1) / 2]); at = (at - 1) / 2) t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = fresh;
    return OK;
}

static struct train_wait heap_pop(struct trainer *t) {
    struct train_wait top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= t->heap_count) break;
        if (child + 1 < t->heap_count && is_before(&t->heap[child + 1], &t->heap[child])) child++;
        if (!is_before(&t->heap[child], &last)) break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

// Adds the word's pairs (sign 1) or takes them away (sign -1); a pair whose count rises waits under it.
static status count_pairs(struct trainer *t, uint32_t index, int sign) {
    const struct train_word *word = &t->words[index];
    for (uint32_t i = 0; i + 1 < word->length; i++) {
        if (!t->pairs || t->pair_count * 2 > t->pair_mask) TRY(grow_pairs(t));
        struct train_pair *pair = pair_slot(t, word->ids[i], word->ids[i + 1]);
        if (pair->left < 0) {
            *pair = (struct train_pair){.left = word->ids[i], .right = word->ids[i + 1]};
            t->pair_count++;
        }
        pair->count += sign * word->count;
        if (sign < 0) continue;
        TRY(heap_push(t, (struct train_wait){pair->count, pair->left, pair->right}));
        if (pair->word_count && pair->words[pair->word_count - 1] == index) continue;
        if (pair->word_count == pair->word_room) {
            size_t room = pair->word_room ? pair->word_room * 2 : 4;
            TRY(RESIZE(&pair->words, room));
            pair->word_room = room;
        }
        pair->words[pair->word_count++] = index;
    }
    return OK;
}

static bool has_pair(const struct train_word *word, int32_t left, int32_t right) {
    for (uint32_t i = 0; i + 1 < word->length; i++)
        if (word->ids[i] == left && word->ids[i + 1] == right) return true;
    return false;
}

static void join_in_word(struct train_word *word, int32_t left, int32_t right, int32_t joined) {
    uint32_t length = 0;
    for (uint32_t i = 0; i < word->length; i++) {
        bool here = i + 1 < word->length && word->ids[i] == left && word->ids[i + 1] == right;
        word->ids[length++] = here ? joined : word->ids[i];
        i += here;
    }
    word->length = length;
}

// Joins a pair in every word that holds it.
static status join_everywhere(struct trainer *t, int32_t left, int32_t right, int32_t joined) {
    struct train_pair *pair = pair_slot(t, left, right);
    uint32_t *words = pair->words; // the table may move while the words' pairs are counted
    size_t count = pair->word_count;
    pair->words = NULL;
    pair->word_count = pair->word_room = 0;
    status result = OK;
    for (size_t i = 0; i < count && result == OK; i++) {
        if (!has_pair(&t->words[words[i]], left, right)) continue;
        result = count_pairs(t, words[i], -1);
        join_in_word(&t->words[words[i]], left, right, joined);
        if (result == OK) result = count_pairs(t, words[i], 1);
    }
    free(words);
    return result;
}

// Names the pair's token, which another pair may have made already, and writes the merge down.
static status name_joined(struct vocab *v, struct train_wait top, struct buf *merges, int32_t *joined) {
    const struct vocab_entry *left = &v->entries[top.left], *right = &v->entries[top.right];
    struct buf name = {0};
    status result = buf_printf(merges, "%s %s\n", left->name, right->name);
    if (result == OK) result = buf_printf(&name, "%s%s", left->name, right->name);
    if (result == OK) {
        *joined = vocab_token_to_id(v, name.data, name.size);
        if (*joined < 0) {
            *joined = (int32_t)v->size;
            result = vocab_add(v, name.data, name.size, *joined);
        }
    }
    buf_release(&name);
    return result;
}

static status join_pairs(struct trainer *t, struct buf *merges, size_t limit) {
    while (t->vocab->size < limit && t->heap_count) {
        struct train_wait top = heap_pop(t);
        int64_t count = pair_slot(t, top.left, top.right)->count;
        if (count != top.count) { // it sank since; where it rose it waits under the new count too
            if (count > 1 && count < top.count) TRY(heap_push(t, (struct train_wait){count, top.left, top.right}));
            continue;
        }
        if (count < 2) break;
        int32_t joined = -1;
        TRY(name_joined(t->vocab, top, merges, &joined));
        TRY(join_everywhere(t, top.left, top.right, joined));
    }
    return OK;
}

// The bytes' tokens, in the order of their characters.
static status put_bytes(struct vocab *v) {
    static const struct {
        int first, last;
    } ranges[] = {{0x21, 0x7E}, {0xA1, 0xAC}, {0xAE, 0xFF}, {0, 0x20}, {0x7F, 0xA0}, {0xAD, 0xAD}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int byte = ranges[i].first; byte <= ranges[i].last; byte++) {
            char name[2];
            TRY(vocab_add(v, name, byte_to_unicode((unsigned char)byte, name), (int64_t)v->size));
        }
    return OK;
}

static status count_words(struct trainer *t, const char *text, size_t size) {
    struct pre_tokenizer pre_tokenizer = {0};
    struct buf buffer = {0};
    status result =
        pre_tokenizer_add_split(&pre_tokenizer, pre_tokenizer_qwen2, strlen(pre_tokenizer_qwen2), SPLIT_ISOLATED);
    if (result == OK) result = normalize_text(NORMALIZE_NFC, text, size, &buffer, &text, &size);
    if (result == OK) result = pre_tokenizer_run(&pre_tokenizer, text, size, take_word, t);
    for (size_t i = 0; i < t->word_count && result == OK; i++) result = count_pairs(t, (uint32_t)i, 1);
    buf_release(&buffer);
    pre_tokenizer_release(&pre_tokenizer);
    return result;
}

status bpe_train(struct vocab *v, struct buf *merges, const char *text, size_t size, size_t limit) {
    if (!utf8_valid(text, size)) return fail(DATAERR, "the text is not UTF-8");
    struct trainer t = {.vocab = v};
    status result = put_bytes(v);
    if (result == OK) result = count_words(&t, text, size);
    if (result == OK && t.pairs) result = join_pairs(&t, merges, limit);
    release(&t);
    return result;
}
