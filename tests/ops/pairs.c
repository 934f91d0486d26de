// split_f32 and join_f32 over every low half, and digest against its definition.
#include "tests/ops/harness.h"

#include <math.h>
#include <string.h>

static uint32_t pairs_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// Every low half under one high half: the pair holds the number, except that a half that was rounded up becomes the
// next number.
static void pairs_check_low_halves(struct harness *h, uint32_t high) {
    enum { rows = 64, columns = 1024 };
    harness_case(h, "pairs of %04x", high);
    struct tensor in = harness_dense(h, ELEMENT_F32, rows, columns, FILL_ZERO, 0),
                  out = harness_dense(h, ELEMENT_F32, 1, rows * columns, FILL_ZERO, 0);
    struct tensor rounded = harness_dense(h, ELEMENT_BF16, rows, columns, FILL_ZERO, 0),
                  remainder = harness_dense(h, ELEMENT_U16, rows * columns, 1, FILL_ZERO, 0);
    float *values = harness_memory(h, rows * columns * sizeof *values);
    for (uint32_t low = 0; low < rows * columns; low++) memcpy(&values[low], &(uint32_t){high << 16 | low}, 4);
    harness_set(h, in, values);
    harness_ok(h, h->ops->split_f32(h->backend, rounded, remainder, in));
    harness_ok(h, h->ops->join_f32(h->backend, out, rounded, remainder));
    float *coarse = harness_values(h, rounded), *joined = harness_values(h, out);
    uint16_t *words = harness_words(h, remainder);
    for (uint32_t low = 0; low < rows * columns; low++) {
        uint32_t next = low == 0x8000 && high % 2;
        bool right = pairs_bits(coarse[low]) == pairs_bits(harness_rounded(values[low], ELEMENT_BF16)) &&
                     words[low] == low + next && pairs_bits(joined[low]) == (high << 16 | low) + next;
        harness_hold(h, right, "%08x became %08x, %04x and then %08x", high << 16 | low, pairs_bits(coarse[low]),
                     words[low], pairs_bits(joined[low]));
    }
}

static void pairs_check_nan(struct harness *h) {
    static const uint32_t bits[] = {0x7f800001, 0x7f808000, 0x7f80ffff, 0x7fffffff, 0xff800001, 0xffc08001, 0xffffffff};
    enum { count = sizeof bits / sizeof *bits };
    harness_case(h, "pairs of NaN");
    struct tensor in = harness_dense(h, ELEMENT_F32, 1, count, FILL_ZERO, 0),
                  rounded = harness_dense(h, ELEMENT_BF16, 1, count, FILL_ZERO, 0),
                  remainder = harness_dense(h, ELEMENT_U16, 1, count, FILL_ZERO, 0);
    harness_set(h, in, bits);
    harness_ok(h, h->ops->split_f32(h->backend, rounded, remainder, in));
    harness_ok(h, h->ops->join_f32(h->backend, in, rounded, remainder));
    float *coarse = harness_values(h, rounded), *joined = harness_values(h, in);
    for (int i = 0; i < count; i++)
        harness_hold(h, isnan(coarse[i]) && isnan(joined[i]), "%08x became %g and %g", bits[i], coarse[i], joined[i]);
}

static void pairs_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor fine = harness_dense(h, ELEMENT_F32, 2, 3, FILL_NORMAL, 1),
                  coarse = harness_dense(h, ELEMENT_BF16, 2, 3, FILL_NORMAL, 1),
                  remainder = harness_dense(h, ELEMENT_U16, 2, 3, FILL_ZERO, 0);
    harness_hold(h, h->ops->split_f32(h->backend, fine, remainder, fine) == BUG, "a pair's F32");
    harness_hold(h, h->ops->split_f32(h->backend, coarse, coarse, fine) == BUG, "a BF16 remainder");
    harness_hold(h, h->ops->join_f32(h->backend, fine, coarse, tensor_rows(remainder, 0, 1)) == BUG,
                 "too few remainders");
}

// ---- the digest ----

// The mixer of kernels/ops.h, written out.
static uint64_t pairs_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 31;
    return x;
}

static uint64_t pairs_digest(const unsigned char *data, size_t bytes, uint64_t first) {
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        for (size_t i = at; i < at + 8 && i < bytes; i++) word |= (uint64_t)data[i] << 8 * (i - at);
        sum += pairs_mix(word ^ pairs_mix(first + at / 8));
    }
    return sum;
}

static void pairs_check_digest(struct harness *h) {
    static const enum element types[] = {ELEMENT_F32, ELEMENT_BF16, ELEMENT_U8, ELEMENT_U16, ELEMENT_I32};
    enum element type = types[harness_range(h, 0, 4)];
    int64_t columns = harness_range(h, 1, harness_unit(h) < 0.3 ? 600000 : 300), size = (int64_t)element_size(type);
    uint64_t first = (uint64_t)harness_range(h, 0, INT64_C(1) << 40);
    harness_case(h, "digest of %lld elements of %lld bytes, from %llu", (long long)columns, (long long)size,
                 (unsigned long long)first);
    struct tensor in = harness_dense(h, type, 1, columns, FILL_EDGES, 1);
    unsigned char *data = harness_memory(h, (size_t)(columns * size));
    if (type > ELEMENT_F16) {
        for (int64_t i = 0; i < columns * size; i++) data[i] = (unsigned char)(i * i + i / 251);
        harness_ok(h, h->ops->upload(h->backend, in, data, type));
    }
    harness_ok(h, h->ops->download(h->backend, data, type, in));
    uint64_t sum = 17, want = 17 + pairs_digest(data, (size_t)(columns * size), first);
    harness_ok(h, h->ops->digest(h->backend, in, first, &sum));
    harness_hold(h, sum == want, "%016llx, not %016llx", (unsigned long long)sum, (unsigned long long)want);
    // Two parts, the first of whole words, give the sum of the whole.
    int64_t part = harness_range(h, 0, columns * size / 8) * 8 / size;
    sum = 17;
    harness_ok(h, h->ops->digest(h->backend, tensor_columns(in, part, columns - part),
                                 first + (uint64_t)(part * size / 8), &sum));
    harness_ok(h, h->ops->digest(h->backend, tensor_columns(in, 0, part), first, &sum));
    harness_hold(h, sum == want, "in parts: %016llx, not %016llx", (unsigned long long)sum, (unsigned long long)want);
    struct tensor rows = {.buffer = in.buffer, .offset = in.offset, .type = type, .rows = 2, .columns = 1, .stride = 2};
    if (columns >= 3) harness_hold(h, h->ops->digest(h->backend, rows, 0, &sum) == BUG, "a digest of strided rows");
}

static void pairs_check(struct harness *h) {
    static const uint32_t highs[] = {0x0000, 0x8001, 0x3f80, 0x3f81, 0xbfff, 0x7f7f};
    for (size_t i = 0; i < sizeof highs / sizeof *highs; i++) pairs_check_low_halves(h, highs[i]);
    pairs_check_nan(h);
    pairs_check_refusals(h);
    for (int i = 0; i < 20; i++) pairs_check_digest(h);
}

struct pairs_timing {
    struct harness *h;
    struct tensor fine, coarse, remainder;
};

static status pairs_run_split(void *context) {
    struct pairs_timing *t = context;
    return t->h->ops->split_f32(t->h->backend, t->coarse, t->remainder, t->fine);
}

static status pairs_run_join(void *context) {
    struct pairs_timing *t = context;
    return t->h->ops->join_f32(t->h->backend, t->fine, t->coarse, t->remainder);
}

static status pairs_run_digest(void *context) {
    struct pairs_timing *t = context;
    uint64_t sum = 0;
    return t->h->ops->digest(t->h->backend, t->fine, 0, &sum);
}

static void pairs_time_all(struct harness *h) {
    harness_case(h, "timing");
    struct pairs_timing t = {h, harness_dense(h, ELEMENT_F32, 4096, 4096, FILL_NORMAL, 1),
                             harness_dense(h, ELEMENT_BF16, 4096, 4096, FILL_ZERO, 0),
                             harness_dense(h, ELEMENT_U16, 4096, 4096, FILL_ZERO, 0)};
    double elements = 4096.0 * 4096;
    harness_time(h, 0, 8 * elements, pairs_run_split, &t, "split_f32 16 M");
    harness_time(h, 0, 8 * elements, pairs_run_join, &t, "join_f32 16 M");
    harness_time(h, 0, 4 * elements, pairs_run_digest, &t, "digest 64 MiB");
}

const struct suite suite_pairs = {"pairs", pairs_check, pairs_time_all};
