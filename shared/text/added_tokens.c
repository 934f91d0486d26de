#include "shared/text/added_tokens.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

void added_tokens_release(struct added_tokens *a) {
    arena_release(&a->memory);
    free(a->tokens);
    free(a->raw.tokens);
    free(a->normalized.tokens);
    regex_free(&a->word);
    regex_free(&a->space);
    *a = (struct added_tokens){0};
}

// Returns the index of the token with this content, a->count if there is none.
static size_t added_tokens_index(const struct added_tokens *a, const char *content, size_t size) {
    size_t i = 0;
    while (i < a->count && (a->tokens[i].size != size || memcmp(a->tokens[i].content, content, size) != 0)) i++;
    return i;
}

const struct added_token *added_tokens_find(const struct added_tokens *a, const char *content, size_t size) {
    size_t index = added_tokens_index(a, content, size);
    return index < a->count ? &a->tokens[index] : NULL;
}

void added_tokens_add(struct added_tokens *a, const char *content, size_t size, int32_t id,
                      struct added_token_flags flags) {
    size_t index = added_tokens_index(a, content, size);
    if (index < a->count) {
        flags.special |= a->tokens[index].flags.special;
        a->tokens[index].flags = flags;
        return;
    }
    if (a->count == a->capacity) {
        size_t capacity = a->capacity ? a->capacity * 2 : 64;
        RESIZE(&a->tokens, capacity);
        a->capacity = capacity;
    }
    char *copy = arena_strndup(&a->memory, content, size);
    a->tokens[a->count++] = (struct added_token){copy, size, id, flags};
}

static int added_tokens_compare(const void *left, const void *right) {
    const struct added_token *a = *(const struct added_token *const *)left,
                             *b = *(const struct added_token *const *)right;
    int order = memcmp(a->content, b->content, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

static void added_tokens_build_set(const struct added_tokens *a, struct added_token_set *set, bool normalized) {
    NEW(&set->tokens, a->count);
    for (size_t i = 0; i < a->count; i++)
        if (a->tokens[i].flags.normalized == normalized && a->tokens[i].size) set->tokens[set->count++] = &a->tokens[i];
    qsort(set->tokens, set->count, sizeof(const struct added_token *), added_tokens_compare);
    size_t at = 0;
    for (unsigned byte = 0; byte <= 256; byte++) {
        while (at < set->count && (unsigned char)set->tokens[at]->content[0] < byte) at++;
        set->first[byte] = (uint32_t)at;
    }
    assert(set->first[256] == set->count);
}

status added_tokens_build(struct added_tokens *a, enum normalize_form form) {
    static const char word[] = "[\\p{L}\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", space[] = "\\s";
    struct buf buffer = {0};
    status result;
    assert(!a->word && !a->space);
    for (size_t i = 0; i < a->count; i++) {
        struct added_token *token = &a->tokens[i];
        const char *normalized;
        size_t size;
        if (!token->flags.normalized) continue;
        TRY_TO(result, done, normalize_text(form, token->content, token->size, &buffer, &normalized, &size));
        if (normalized == token->content) continue;
        token->content = arena_strndup(&a->memory, normalized, size);
        token->size = size;
    }
    added_tokens_build_set(a, &a->raw, false);
    added_tokens_build_set(a, &a->normalized, true);
    TRY_TO(result, done, regex_new(&a->word, word, sizeof word - 1));
    TRY_TO(result, done, regex_new(&a->space, space, sizeof space - 1));
done:
    buf_release(&buffer);
    return result;
}

// Returns the first index in [low, high) of the sorted tokens whose byte `depth` is at least `byte`.
static size_t added_tokens_lower_bound(const struct added_token_set *set, size_t low, size_t high, size_t depth,
                                       unsigned byte) {
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((unsigned char)set->tokens[middle]->content[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Sets *yes to whether the character that ends at text[at..) is of the regex's kind, and *start to where it starts.
static status added_tokens_before(struct regex *kind, const char *text, size_t at, bool *yes, size_t *start) {
    size_t first, last;
    assert(at > 0);
    for (*start = at - 1; *start && ((unsigned char)text[*start] & 0xC0) == 0x80;) --*start;
    regex_prepare(kind, text + *start, at - *start);
    return regex_find(kind, text + *start, at - *start, 0, yes, &first, &last);
}

// The same for the character that starts at `at`; *end is where it ends.
static status added_tokens_after(struct regex *kind, const char *text, size_t size, size_t at, bool *yes, size_t *end) {
    size_t first, last;
    assert(at < size);
    *end = at + (size_t)utf8_step(text + at, size - at);
    regex_prepare(kind, text + at, *end - at);
    return regex_find(kind, text + at, *end - at, 0, yes, &first, &last);
}

status added_tokens_next(const struct added_tokens *a, const struct added_token_set *set, const char *text, size_t size,
                         size_t from, size_t taken, bool *found, struct added_token_match *match) {
    *found = false;
    for (size_t at = from; set->count && at < size; at++) {
        // The longest token at text[at..size). The range of the tokens that start like the text narrows byte by byte.
        unsigned char lead = (unsigned char)text[at];
        size_t low = set->first[lead], high = set->first[lead + 1];
        const struct added_token *token = NULL;
        for (size_t depth = 1; low < high; depth++) {
            if (set->tokens[low]->size == depth) token = set->tokens[low++]; // sorts before those it is a prefix of
            if (at + depth >= size) break;
            unsigned byte = (unsigned char)text[at + depth];
            low = added_tokens_lower_bound(set, low, high, depth, byte);
            high = added_tokens_lower_bound(set, low, high, depth, byte + 1);
        }
        if (!token) continue;
        *match = (struct added_token_match){at, at + token->size, at + token->size, token->id};
        bool in_word = false;
        size_t next;
        if (token->flags.single_word && match->start)
            TRY(added_tokens_before(a->word, text, match->start, &in_word, &next));
        if (token->flags.single_word && match->end < size && !in_word)
            TRY(added_tokens_after(a->word, text, size, match->end, &in_word, &next));
        if (in_word) {
            at = match->resume - 1;
            continue;
        }
        bool space = true;
        while (token->flags.lstrip && match->start > taken) {
            TRY(added_tokens_before(a->space, text, match->start, &space, &next));
            if (!space) break;
            match->start = next;
        }
        while (token->flags.rstrip && match->end < size) {
            TRY(added_tokens_after(a->space, text, size, match->end, &space, &next));
            if (!space) break;
            match->end = next;
        }
        *found = true;
        return OK;
    }
    return OK;
}
