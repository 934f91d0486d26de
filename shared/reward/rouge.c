#include "shared/reward/rouge.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/reward/porter.h"
#include "shared/reward/words.h"

// Tokens by number: equal ones have equal numbers, in both texts.
struct tokens {
    struct string_array texts;
    uint64_t *ids;
};

// The lower-cased character if it is one of [a-z0-9], else a blank. Two letters beyond ASCII have such a lower case:
// the Kelvin sign, and the dotted capital I, whose dot becomes a character of its own and ends the token.
static char fold(int32_t code, bool *ends) {
    int32_t lower = utf8proc_tolower(code);
    *ends = code == 0x130;
    return (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9') ? (char)lower : ' ';
}

static status cut(struct arena *arena, struct string whole, struct tokens *out) {
    char *letters = arena_alloc(arena, whole.size * 2 + 1);
    if (!letters) return fail_oom();
    size_t size = 0, step;
    for (size_t at = 0; at < whole.size; at += step) {
        bool ends;
        letters[size++] = fold(python_char_at(whole, at, &step), &ends);
        if (ends) letters[size++] = ' ';
    }
    TRY(python_split(arena, (struct string){letters, size}, &out->texts));
    for (size_t i = 0; i < out->texts.count; i++) {
        struct string *token = &out->texts.data[i];
        if (token->size > 3) token->size = porter_stem(letters + (token->data - letters), token->size);
    }
    return OK;
}

static int compare_texts(const void *left, const void *right) {
    const struct string *a = *(const struct string *const *)left, *b = *(const struct string *const *)right;
    int order = memcmp(a->data, b->data, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

// Numbers the different tokens of both texts.
static status number_tokens(struct arena *arena, struct tokens *a, struct tokens *b) {
    size_t count = a->texts.count + b->texts.count;
    const struct string **order = arena_alloc(arena, (count + 1) * sizeof *order);
    a->ids = arena_alloc(arena, (a->texts.count + 1) * sizeof *a->ids);
    b->ids = arena_alloc(arena, (b->texts.count + 1) * sizeof *b->ids);
    if (!order || !a->ids || !b->ids) return fail_oom();
    for (size_t i = 0; i < a->texts.count; i++) order[i] = &a->texts.data[i];
    for (size_t i = 0; i < b->texts.count; i++) order[a->texts.count + i] = &b->texts.data[i];
    qsort(order, count, sizeof *order, compare_texts);
    uint64_t id = 0;
    for (size_t i = 0; i < count; i++) {
        if (i && compare_texts(&order[i - 1], &order[i]) != 0) id++;
        if (order[i] >= a->texts.data && order[i] < a->texts.data + a->texts.count)
            a->ids[order[i] - a->texts.data] = id;
        else
            b->ids[order[i] - b->texts.data] = id;
    }
    return OK;
}

static int compare_ids(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

// The n-grams (n 1 or 2) in ascending order; their number.
static status make_grams(struct arena *arena, const struct tokens *tokens, size_t n, uint64_t **out, size_t *count) {
    *count = tokens->texts.count >= n ? tokens->texts.count - n + 1 : 0;
    *out = arena_alloc(arena, (*count + 1) * sizeof **out);
    if (!*out) return fail_oom();
    for (size_t i = 0; i < *count; i++) (*out)[i] = n == 1 ? tokens->ids[i] : tokens->ids[i] << 32 | tokens->ids[i + 1];
    qsort(*out, *count, sizeof **out, compare_ids);
    return OK;
}

static double f_measure(size_t common, size_t target, size_t answer) {
    double precision = (double)common / (double)(answer ? answer : 1);
    double recall = (double)common / (double)(target ? target : 1);
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

static status rouge_n(struct arena *arena, const struct tokens *target, const struct tokens *answer, size_t n,
                      double *score) {
    uint64_t *a, *b;
    size_t a_count, b_count, common = 0;
    TRY(make_grams(arena, target, n, &a, &a_count));
    TRY(make_grams(arena, answer, n, &b, &b_count));
    for (size_t i = 0, j = 0; i < a_count && j < b_count;) {
        if (a[i] == b[j])
            common++, i++, j++;
        else if (a[i] < b[j])
            i++;
        else
            j++;
    }
    *score = f_measure(common, a_count, b_count);
    return OK;
}

static status rouge_l(struct arena *arena, const struct tokens *target, const struct tokens *answer, double *score) {
    size_t rows = target->texts.count, columns = answer->texts.count;
    size_t *length = arena_alloc(arena, (columns + 1) * sizeof *length);
    if (!length) return fail_oom();
    for (size_t i = 0; i < rows; i++) {
        size_t diagonal = 0;
        for (size_t j = 1; j <= columns; j++) {
            size_t above = length[j];
            if (target->ids[i] == answer->ids[j - 1])
                length[j] = diagonal + 1;
            else if (length[j - 1] > above)
                length[j] = length[j - 1];
            diagonal = above;
        }
    }
    *score = f_measure(length[columns], rows, columns);
    return OK;
}

static status score_texts(struct arena *arena, struct string target, struct string answer, double *score) {
    struct tokens a = {0}, b = {0};
    double one = 0, two = 0, longest = 0;
    TRY(cut(arena, target, &a));
    TRY(cut(arena, answer, &b));
    TRY(number_tokens(arena, &a, &b));
    TRY(rouge_n(arena, &a, &b, 1, &one));
    TRY(rouge_n(arena, &a, &b, 2, &two));
    TRY(rouge_l(arena, &a, &b, &longest));
    *score = (one + two + longest) / 3;
    return OK;
}

status rouge_mean(struct string target, struct string answer, double *score) {
    struct arena arena = {0};
    status result = score_texts(&arena, target, answer, score);
    arena_release(&arena);
    return result;
}

static bool same_text(struct string a, struct string b) {
    return a.size == b.size && !memcmp(a.data, b.data, a.size);
}

static status edit_distance(struct arena *arena, const struct string_array *target, const struct string_array *answer,
                            size_t *distance) {
    size_t *cost = arena_alloc(arena, (answer->count + 1) * sizeof *cost);
    if (!cost) return fail_oom();
    for (size_t j = 0; j <= answer->count; j++) cost[j] = j;
    for (size_t i = 0; i < target->count; i++) {
        size_t diagonal = cost[0];
        cost[0] = i + 1;
        for (size_t j = 1; j <= answer->count; j++) {
            size_t best = diagonal + !same_text(target->data[i], answer->data[j - 1]);
            diagonal = cost[j];
            if (cost[j] + 1 < best) best = cost[j] + 1;
            if (cost[j - 1] + 1 < best) best = cost[j - 1] + 1;
            cost[j] = best;
        }
    }
    *distance = cost[answer->count];
    return OK;
}

status word_error_rate(struct string target, struct string answer, double *rate) {
    struct arena arena = {0};
    struct string_array a = {0}, b = {0};
    size_t distance = 0;
    status result = python_split(&arena, target, &a);
    if (result == OK) result = python_split(&arena, answer, &b);
    if (result == OK) result = edit_distance(&arena, &a, &b, &distance);
    if (result == OK) *rate = (double)distance / (double)(a.count ? a.count : 1);
    arena_release(&arena);
    return result;
}
