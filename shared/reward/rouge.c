#include "shared/reward/rouge.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/reward/porter.h"
#include "shared/reward/python_text.h"

// Equal tokens of the target and of the prediction have equal ids.
struct rouge_tokens {
    struct string_array words;
    uint64_t *ids;
};

static void rouge_tokenize(struct arena *arena, struct string text, struct rouge_tokens *out) {
    enum { DOTTED_CAPITAL_I = 0x130 };
    char *folded = arena_alloc(arena, text.size * 2 + 1);
    size_t size = 0, length;
    for (size_t at = 0; at < text.size; at += length) {
        // Two characters beyond ASCII have a lower case in ASCII: the Kelvin sign, and the dotted capital I, whose dot
        // becomes a character of its own and ends the token.
        int32_t code = python_char_at(text, at, &length), lower = utf8proc_tolower(code);
        bool kept = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
        folded[size++] = kept ? (char)lower : ' ';
        if (code == DOTTED_CAPITAL_I) folded[size++] = ' ';
    }
    assert(size <= text.size * 2);
    python_split(arena, (struct string){folded, size}, &out->words);
    for (size_t i = 0; i < out->words.count; i++) {
        struct string *word = &out->words.data[i];
        if (word->size > 3) word->size = porter_stem(folded + (word->data - folded), word->size);
    }
}

static int rouge_compare_words(const void *left, const void *right) {
    const struct string *a = *(const struct string *const *)left, *b = *(const struct string *const *)right;
    int order = memcmp(a->data, b->data, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

static int rouge_compare_ids(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

// Sets *out to the n-grams (n 1 or 2) in ascending order.
static void rouge_ngrams(struct arena *arena, const struct rouge_tokens *tokens, size_t n, uint64_t **out,
                         size_t *count) {
    const uint64_t *ids = tokens->ids;
    assert(n == 1 || n == 2);
    *count = tokens->words.count >= n ? tokens->words.count - n + 1 : 0;
    *out = arena_alloc(arena, (*count + 1) * sizeof **out);
    for (size_t i = 0; i < *count; i++) (*out)[i] = n == 1 ? ids[i] : ids[i] << 32 | ids[i + 1];
    qsort(*out, *count, sizeof **out, rouge_compare_ids);
}

static double rouge_fmeasure(size_t common, size_t target, size_t prediction) {
    double precision = (double)common / (double)(prediction ? prediction : 1);
    double recall = (double)common / (double)(target ? target : 1);
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

static void rouge_n(struct arena *arena, const struct rouge_tokens *target, const struct rouge_tokens *prediction,
                    size_t n, double *score) {
    uint64_t *a, *b;
    size_t a_count, b_count, common = 0;
    rouge_ngrams(arena, target, n, &a, &a_count);
    rouge_ngrams(arena, prediction, n, &b, &b_count);
    for (size_t i = 0, j = 0; i < a_count && j < b_count;) {
        if (a[i] == b[j])
            common++, i++, j++;
        else if (a[i] < b[j])
            i++;
        else
            j++;
    }
    *score = rouge_fmeasure(common, a_count, b_count);
}

// The longest common subsequence, one row of its table at a time.
static void rouge_l(struct arena *arena, const struct rouge_tokens *target, const struct rouge_tokens *prediction,
                    double *score) {
    size_t rows = target->words.count, columns = prediction->words.count;
    size_t *length = arena_alloc(arena, (columns + 1) * sizeof *length);
    for (size_t i = 0; i < rows; i++) {
        size_t diagonal = 0;
        for (size_t j = 1; j <= columns; j++) {
            size_t above = length[j];
            if (target->ids[i] == prediction->ids[j - 1])
                length[j] = diagonal + 1;
            else if (length[j - 1] > above)
                length[j] = length[j - 1];
            diagonal = above;
        }
    }
    *score = rouge_fmeasure(length[columns], rows, columns);
}

void rouge_mean(struct string target, struct string prediction, double *score) {
    struct arena arena = {0};
    struct rouge_tokens a = {0}, b = {0};
    double rouge1 = 0, rouge2 = 0, rougel = 0;
    rouge_tokenize(&arena, target, &a);
    rouge_tokenize(&arena, prediction, &b);

    // Numbers the distinct words of both texts.
    size_t count = a.words.count + b.words.count;
    const struct string **order = arena_alloc(&arena, (count + 1) * sizeof *order);
    a.ids = arena_alloc(&arena, (a.words.count + 1) * sizeof *a.ids);
    b.ids = arena_alloc(&arena, (b.words.count + 1) * sizeof *b.ids);
    for (size_t i = 0; i < a.words.count; i++) order[i] = &a.words.data[i];
    for (size_t i = 0; i < b.words.count; i++) order[a.words.count + i] = &b.words.data[i];
    qsort(order, count, sizeof *order, rouge_compare_words);
    uint64_t id = 0;
    for (size_t i = 0; i < count; i++) {
        if (i && rouge_compare_words(&order[i - 1], &order[i]) != 0) id++;
        if (order[i] >= a.words.data && order[i] < a.words.data + a.words.count)
            a.ids[order[i] - a.words.data] = id;
        else
            b.ids[order[i] - b.words.data] = id;
    }
    assert(id <= UINT32_MAX); // two ids are packed into one bigram

    rouge_n(&arena, &a, &b, 1, &rouge1);
    rouge_n(&arena, &a, &b, 2, &rouge2);
    rouge_l(&arena, &a, &b, &rougel);
    *score = (rouge1 + rouge2 + rougel) / 3;
    arena_release(&arena);
}

void word_error_rate(struct string target, struct string prediction, double *rate) {
    struct arena arena = {0};
    struct string_array a = {0}, b = {0};
    python_split(&arena, target, &a);
    python_split(&arena, prediction, &b);
    size_t *cost = arena_alloc(&arena, (b.count + 1) * sizeof *cost); // one row of the edit distance's table
    for (size_t j = 0; j <= b.count; j++) cost[j] = j;
    for (size_t i = 0; i < a.count; i++) {
        size_t diagonal = cost[0];
        cost[0] = i + 1;
        for (size_t j = 1; j <= b.count; j++) {
            struct string x = a.data[i], y = b.data[j - 1];
            size_t best = diagonal + (x.size != y.size || memcmp(x.data, y.data, x.size) != 0);
            diagonal = cost[j];
            if (cost[j] + 1 < best) best = cost[j] + 1;
            if (cost[j - 1] + 1 < best) best = cost[j - 1] + 1;
            cost[j] = best;
        }
    }
    *rate = (double)cost[b.count] / (double)(a.count ? a.count : 1);
    arena_release(&arena);
}
