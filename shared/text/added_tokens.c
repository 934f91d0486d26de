#include "shared/text/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"

void added_tokens_release(struct added_tokens *a) {
    arena_release(&a->memory);
    free(a->tokens);
    free((void *)a->raw.tokens);
    free((void *)a->normalized.tokens);
    regex_free(&a->word);
    regex_free(&a->space);
    *a = (struct added_tokens){0};
}

const struct added_token *added_tokens_find(const struct added_tokens *a, const char *content, size_t size) {
    for (size_t i = 0; i < a->count; i++)
        if (a->tokens[i].size == size && !memcmp(a->tokens[i].content, content, size)) return &a->tokens[i];
    return NULL;
}

status added_tokens_add(struct added_tokens *a, const char *content, size_t size, int32_t id,
                        struct added_token_flags flags) {
    struct added_token *known = (struct added_token *)added_tokens_find(a, content, size);
    if (known) {
        flags.special |= known->flags.special;
        known->flags = flags;
        return OK;
    }
    if (a->count == a->room) {
        size_t room = a->room ? a->room * 2 : 64;
        TRY(RESIZE(&a->tokens, room));
        a->room = room;
    }
    char *copy = arena_strndup(&a->memory, content, size);
    if (!copy) return fail_oom();
    a->tokens[a->count++] = (struct added_token){copy, size, id, flags};
    return OK;
}

static int by_content(const void *left, const void *right) {
    const struct added_token *a = *(const struct added_token *const *)left,
                             *b = *(const struct added_token *const *)right;
    int order = memcmp(a->content, b->content, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

static status finish_set(struct added_tokens *a, struct added_token_set *set, bool normalized) {
    TRY(NEW(&set->tokens, a->count));
    for (size_t i = 0; i < a->count; i++)
        if (a->tokens[i].flags.normalized == normalized && a->tokens[i].size) set->tokens[set->count++] = &a->tokens[i];
    qsort((void *)set->tokens, set->count, sizeof(const struct added_token *), by_content);
    size_t at = 0;
    for (unsigned byte = 0; byte <= 256; byte++) {
        while (at < set->count && (unsigned char)set->tokens[at]->content[0] < byte) at++;
        set->first[byte] = (uint32_t)at;
    }
    return OK;
}

status added_tokens_build(struct added_tokens *a, enum normalize_form form) {
    struct buf buffer = {0};
    status result = OK;
    for (size_t i = 0; i < a->count && result == OK; i++) {
        struct added_token *token = &a->tokens[i];
        const char *normal;
        size_t size;
        if (!token->flags.normalized) continue;
        result = normalize_text(form, token->content, token->size, &buffer, &normal, &size);
        if (result != OK || normal == token->content) continue;
        token->content = arena_strndup(&a->memory, normal, size);
        token->size = size;
        if (!token->content) result = fail_oom();
    }
    buf_release(&buffer);
    TRY(result);
    TRY(finish_set(a, &a->raw, false));
    TRY(finish_set(a, &a->normalized, true));
    static const char word[] = "[\\p{L}\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", space[] = "\\s";
    TRY(regex_new(&a->word, word, sizeof word - 1));
    return regex_new(&a->space, space, sizeof space - 1);
}

// The longest token at text[at..size), NULL if none: the range of tokens that begin like the text narrows byte by byte.
static const struct added_token *longest_at(const struct added_token_set *set, const char *text, size_t size,
                                            size_t at) {
    unsigned char lead = (unsigned char)text[at];
    size_t low = set->first[lead], high = set->first[lead + 1];
    const struct added_token *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low]->size == depth) best = set->tokens[low++]; // a shorter one stands before those it begins
        if (at + depth >= size) break;
        unsigned char next = (unsigned char)text[at + depth];
        size_t left = low, right = high;
        while (left < right) {
            size_t middle = (left + right) / 2;
            if ((unsigned char)set->tokens[middle]->content[depth] < next)
                left = middle + 1;
            else
                right = middle;
        }
        low = left;
        for (right = high; left < right;) {
            size_t middle = (left + right) / 2;
            if ((unsigned char)set->tokens[middle]->content[depth] <= next)
                left = middle + 1;
            else
                right = middle;
        }
        high = left;
    }
    return best;
}

// The start of the character that ends before `at`.
static size_t step_back(const char *text, size_t at) {
    do at--;
    while (at && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

static status is_one(struct regex *kind, const char *text, size_t start, size_t end, bool *yes) {
    size_t first, last;
    regex_prepare(kind, text + start, end - start);
    return regex_find(kind, text + start, end - start, 0, yes, &first, &last);
}

static status stands_alone(const struct added_tokens *a, const char *text, size_t size,
                           const struct added_token_match *match, bool *alone) {
    bool before = false, after = false;
    if (match->start) TRY(is_one(a->word, text, step_back(text, match->start), match->start, &before));
    if (match->end < size) {
        size_t next = match->end + (size_t)utf8_step(text + match->end, size - match->end);
        TRY(is_one(a->word, text, match->end, next, &after));
    }
    *alone = !before && !after;
    return OK;
}

static status strip(const struct added_tokens *a, const struct added_token *token, const char *text, size_t size,
                    size_t taken, struct added_token_match *match) {
    bool space = true;
    while (token->flags.lstrip && match->start > taken) {
        size_t before = step_back(text, match->start);
        TRY(is_one(a->space, text, before, match->start, &space));
        if (!space) break;
        match->start = before;
    }
    while (token->flags.rstrip && match->end < size) {
        size_t next = match->end + (size_t)utf8_step(text + match->end, size - match->end);
        TRY(is_one(a->space, text, match->end, next, &space));
        if (!space) break;
        match->end = next;
    }
    return OK;
}

status added_tokens_next(const struct added_tokens *a, const struct added_token_set *set, const char *text, size_t size,
                         size_t from, size_t taken, bool *found, struct added_token_match *match) {
    *found = false;
    for (size_t at = from; set->count && at < size; at++) {
        unsigned char lead = (unsigned char)text[at];
        if (set->first[lead] == set->first[lead + 1]) continue;
        const struct added_token *token = longest_at(set, text, size, at);
        if (!token) continue;
        *match = (struct added_token_match){at, at + token->size, at + token->size, token->id};
        bool alone = true;
        if (token->flags.single_word) TRY(stands_alone(a, text, size, match, &alone));
        if (!alone) {
            at = match->resume - 1;
            continue;
        }
        TRY(strip(a, token, text, size, taken, match));
        *found = true;
        return OK;
    }
    return OK;
}
