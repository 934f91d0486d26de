// The optimizer, pairs and the digest.
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- optimizer ----
//
// square_sums; adamw over several steps, in all types, and with a second moment in bfloat16 over thousands of steps;
// ema.

// The sum of each unit, whatever is before and behind it.
static void optimizer_check_square_sums(struct harness *h) {
    int64_t rows = harness_range(h, 1, 5), columns = harness_columns(h, 1, harness_unit(h) < 0.3 ? 70000 : 300);
    const int64_t count = rows * columns, unit = 64 * harness_range(h, 1, harness_unit(h) < 0.5 ? 3 : 1100);
    const int64_t units = (count + unit - 1) / unit;
    enum element type = harness_float_type(h);
    harness_case(h, "square_sums %lld x %lld in units of %lld, type %d", (long long)rows, (long long)columns,
                 (long long)unit, type);
    struct tensor in = harness_dense(h, type, rows, columns, FILL_EDGES, 1);
    double *sums = harness_memory(h, (size_t)units * sizeof *sums), *again;
    const struct square_range whole = {in, unit};
    for (int64_t u = 0; u < units; u++) sums[u] = NAN;
    harness_ok(h, h->ops->square_sums(h->backend, sums, &whole, 1));
    float *values = harness_values(h, in);
    for (int64_t u = 0; u < units; u++) {
        const int64_t first = u * unit, end = first + unit < count ? first + unit : count;
        long double want = 0; // in double, the sum of that many numbers is too far from the exact one
        for (int64_t i = first; i < end; i++) want += (long double)values[i] * values[i];
        harness_hold(h, fabsl(sums[u] - want) <= 1e-12L * want, "unit %lld: %.17g, not %.17Lg", (long long)u, sums[u],
                     want);
    }
    // A unit alone has the same bits, and so has every range among others: behind it none, the whole, and itself.
    const int64_t some = harness_range(h, 0, units - 1), first = some * unit;
    const struct tensor row = tensor_reshape(in, 1, count);
    const struct square_range part = {tensor_columns(row, first, first + unit < count ? unit : count - first), unit},
                              none = {tensor_columns(row, 0, 0), 64};
    again = harness_memory(h, (size_t)(units + 2) * sizeof *again);
    harness_ok(h, h->ops->square_sums(h->backend, again, (struct square_range[]){part, none, whole, part}, 4));
    harness_hold(h, again[0] == sums[some] && again[units + 1] == sums[some], "unit %lld alone: %.17g, not %.17g",
                 (long long)some, again[0], sums[some]);
    harness_hold(h, !memcmp(again + 1, sums, (size_t)units * sizeof *sums), "other bits among other ranges");
    harness_ok(h, h->ops->square_sums(h->backend, NULL, NULL, 0));
    struct tensor bits = harness_dense(h, ELEMENT_F32, units, 2, FILL_ZERO, 0); // the same in all versions
    harness_set(h, bits, (float *)sums);
    harness_same(h, "sums", bits);
    harness_hold(h, h->ops->square_sums(h->backend, sums, &(struct square_range){in, 32}, 1) == BUG,
                 "a unit of 32 elements");
}

struct adamw_reference {
    double *x, *m, *v;
    float *gradient;
    int64_t count;
};

static void optimizer_adamw_reference_step(const struct adamw_reference *r, const struct adamw_options *options,
                                           bool decay) {
    double first = 1 - pow(options->beta1, (double)options->step),
           second = 1 - pow(options->beta2, (double)options->step);
    for (int64_t i = 0; i < r->count; i++) {
        double g = r->gradient[i] * options->grad_scale;
        r->m[i] = options->beta1 * r->m[i] + (1 - options->beta1) * g;
        r->v[i] = options->beta2 * r->v[i] + (1 - options->beta2) * g * g;
        if (decay) r->x[i] -= options->lr * options->weight_decay * r->x[i];
        r->x[i] -= options->lr * (r->m[i] / first) / (sqrt(r->v[i] / second) + options->eps);
    }
}

// A float32 tensor of random numbers, and the same numbers as a pair if `param` is BF16.
static struct tensor optimizer_param(struct harness *h, int64_t rows, int64_t columns, struct tensor *param,
                                     struct tensor *remainder) {
    struct tensor fine = harness_dense(h, ELEMENT_F32, rows, columns, FILL_NORMAL, 1);
    *param = fine;
    *remainder = (struct tensor){0};
    if (harness_float_type(h) == ELEMENT_F32) return fine;
    *param = harness_dense(h, ELEMENT_BF16, rows, columns, FILL_ZERO, 0);
    *remainder = harness_dense(h, ELEMENT_U16, rows, columns, FILL_ZERO, 0);
    harness_ok(h, h->ops->split_f32(h->backend, *param, *remainder, fine));
    harness_ok(h, h->ops->join_f32(h->backend, fine, *param, *remainder));
    return fine;
}

// The values of a BF16 moment, which was rounded; those of an F32 moment stay as they are.
static double *optimizer_rounded_moment(struct harness *h, struct tensor moment, double *values) {
    return moment.type == ELEMENT_F32 ? values : harness_doubles(h, moment);
}

static void optimizer_check_adamw(struct harness *h) {
    enum { ranges = 2, steps = 3 };
    harness_case(h, "adamw");
    struct adamw_range range[ranges];
    struct tensor fine[ranges]; // float32 parameters
    struct adamw_reference want[ranges];
    double scales[] = {1, 1e-3, 1e3, 1e-7};
    for (int i = 0; i < ranges; i++) {
        int64_t rows = harness_range(h, 1, 3), columns = harness_columns(h, 1, harness_unit(h) < 0.2 ? 70000 : 200);
        fine[i] = optimizer_param(h, rows, columns, &range[i].param, &range[i].remainder);
        range[i].grad =
            harness_dense(h, harness_float_type(h), rows, columns, FILL_EDGES, scales[harness_range(h, 0, 3)]);
        range[i].exp_avg = harness_dense(h, harness_float_type(h), rows, columns, FILL_ZERO, 0);
        range[i].exp_avg_sq = harness_dense(h, harness_float_type(h), rows, columns, FILL_ZERO, 0);
        range[i].offset = 4 * harness_range(h, 0, 1 << 20);
        range[i].decay = i % 2 == 0;
        want[i] = (struct adamw_reference){harness_doubles(h, fine[i]), harness_doubles(h, range[i].exp_avg),
                                           harness_doubles(h, range[i].exp_avg_sq), harness_values(h, range[i].grad),
                                           rows * columns};
    }
    for (int step = 1; step <= steps; step++) {
        struct adamw_options options = {.lr = 1e-2,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .weight_decay = 0.01,
                                        .grad_scale = step == 2 ? 0.37 : 1,
                                        .step = step,
                                        .key = 99};
        for (int i = 0; i < ranges; i++) {
            want[i].m = optimizer_rounded_moment(h, range[i].exp_avg, want[i].m);
            want[i].v = optimizer_rounded_moment(h, range[i].exp_avg_sq, want[i].v);
        }
        harness_ok(h, h->ops->adamw(h->backend, range, ranges, &options));
        for (int i = 0; i < ranges; i++) optimizer_adamw_reference_step(&want[i], &options, range[i].decay);
    }
    for (int i = 0; i < ranges; i++) {
        if (range[i].param.type == ELEMENT_BF16)
            harness_ok(h, h->ops->join_f32(h->backend, fine[i], range[i].param, range[i].remainder));
        harness_near(h, "parameter", fine[i], want[i].x, 1e-6, 1e-6);
        harness_near(h, "exp_avg", range[i].exp_avg, want[i].m, 1e-30, 2e-6);
        bool coarse = range[i].exp_avg_sq.type == ELEMENT_BF16; // rounded up or down
        harness_near(h, "exp_avg_sq", range[i].exp_avg_sq, want[i].v, 1e-37, coarse ? 0x1p-8 : 2e-6);
    }
}

static uint32_t optimizer_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// The random bits of element `e`, by the definition in kernels/ops.h.
static uint32_t optimizer_random(const struct adamw_options *options, uint64_t e) {
    uint64_t word = ops_mix64(ops_mix64(ops_mix64(options->key) ^ (uint64_t)options->step) ^ e / 4);
    return word >> (16 * (e % 4)) & 0xffff;
}

// A small step moves a pair by what it moves a float32, and a BF16 second moment is the float32 one, rounded as the
// random bits say. The tie makes one unit of a float32's last place.
static void optimizer_check_pairs(struct harness *h) {
    int64_t columns = harness_columns(h, 1, 3000), offset = 4 * harness_range(h, 0, INT64_C(1) << 35);
    harness_case(h, "adamw on %lld pairs and numbers", (long long)columns);
    struct adamw_range fine = {.decay = true, .offset = offset}, pair = fine;
    fine.param = harness_dense(h, ELEMENT_F32, 1, columns, FILL_NORMAL, 1);
    fine.grad = pair.grad = harness_dense(h, ELEMENT_BF16, 1, columns, FILL_NORMAL, 1e-3);
    fine.exp_avg = harness_dense(h, ELEMENT_F32, 1, columns, FILL_NORMAL, 1e-3);
    pair.exp_avg = harness_dense(h, ELEMENT_F32, 1, columns, FILL_ZERO, 0);
    fine.exp_avg_sq = harness_dense(h, ELEMENT_F32, 1, columns, FILL_ZERO, 0);
    pair.exp_avg_sq = harness_dense(h, ELEMENT_BF16, 1, columns, FILL_ZERO, 0);
    pair.param = harness_dense(h, ELEMENT_BF16, 1, columns, FILL_ZERO, 0);
    pair.remainder = harness_dense(h, ELEMENT_U16, 1, columns, FILL_ZERO, 0);
    struct tensor joined = harness_dense(h, ELEMENT_F32, 1, columns, FILL_ZERO, 0);
    harness_ok(h, h->ops->copy(h->backend, pair.exp_avg, fine.exp_avg));
    harness_ok(h, h->ops->split_f32(h->backend, pair.param, pair.remainder, fine.param));
    harness_ok(h, h->ops->join_f32(h->backend, fine.param, pair.param, pair.remainder));
    struct adamw_options options = {.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    options.grad_scale = 0.5;
    options.step = harness_range(h, 1, 5000);
    options.key = (uint64_t)harness_range(h, 0, INT64_MAX - 1);
    harness_ok(h, h->ops->adamw(h->backend, &fine, 1, &options));
    harness_ok(h, h->ops->adamw(h->backend, &pair, 1, &options));
    harness_ok(h, h->ops->join_f32(h->backend, joined, pair.param, pair.remainder));
    const float *one = harness_values(h, fine.param), *other = harness_values(h, joined);
    const float *v = harness_values(h, fine.exp_avg_sq), *rounded = harness_values(h, pair.exp_avg_sq);
    for (int64_t i = 0; i < columns; i++) {
        uint32_t bits = optimizer_bits(one[i]), tie = (bits & 0x1ffff) == 0x18000;
        harness_hold(h, optimizer_bits(other[i]) == bits + tie, "element %lld: %08x, not %08x", (long long)i,
                     optimizer_bits(other[i]), bits + tie);
        uint32_t want = optimizer_bits(v[i]) + optimizer_random(&options, (uint64_t)(offset + i));
        harness_hold(h, optimizer_bits(rounded[i]) >> 16 == want >> 16, "second moment %lld: %08x, not %08x",
                     (long long)i, optimizer_bits(rounded[i]), want & 0xffff0000);
    }
    pair.offset += 2;
    harness_hold(h, h->ops->adamw(h->backend, &pair, 1, &options) == BUG, "an offset within a word");
    pair.offset = 0;
    pair.remainder = (struct tensor){0};
    harness_hold(h, h->ops->adamw(h->backend, &pair, 1, &options) == BUG, "a BF16 parameter without a remainder");
}

// A constant gradient: a BF16 second moment comes to its square from below and from above, where it would stay far away
// if it were rounded to nearest.
static void optimizer_check_second_moment(struct harness *h) {
    enum { count = 256, steps = 5000 };
    harness_case(h, "a second moment over %d steps", steps);
    static const float starts[] = {0, 2};
    struct adamw_range range = {.param = harness_dense(h, ELEMENT_F32, 1, count, FILL_NORMAL, 1),
                                .grad = harness_dense(h, ELEMENT_F32, 1, count, FILL_ZERO, 0),
                                .exp_avg = harness_dense(h, ELEMENT_F32, 1, count, FILL_ZERO, 0),
                                .exp_avg_sq = harness_dense(h, ELEMENT_BF16, 1, count, FILL_ZERO, 0)};
    float ones[count], before[count];
    for (int i = 0; i < count; i++) ones[i] = 1;
    harness_set(h, range.grad, ones);
    for (size_t start = 0; start < sizeof starts / sizeof *starts; start++) {
        for (int i = 0; i < count; i++) before[i] = starts[start];
        harness_set(h, range.exp_avg_sq, before);
        struct adamw_options options = {.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .grad_scale = 1};
        float nearest = starts[start];
        for (options.step = 1; options.step <= steps; options.step++) {
            harness_ok(h, h->ops->adamw(h->backend, &range, 1, &options));
            nearest = harness_rounded(0.999f * nearest + 0.001f, ELEMENT_BF16);
        }
        const float *values = harness_values(h, range.exp_avg_sq);
        double mean = 0, exact = 1 + (starts[start] - 1) * pow(0.999, steps);
        for (int i = 0; i < count; i++) mean += (double)values[i] / count;
        harness_hold(h, fabs(mean - exact) <= 0.005 && fabs(mean - 1) <= 0.02, "from %g: mean %g, not %g",
                     starts[start], mean, exact);
        harness_hold(h, fabs((double)nearest - 1) > 0.3, "from %g: rounding to nearest would suffice: %g",
                     starts[start], nearest);
        harness_same(h, "exp_avg_sq", range.exp_avg_sq);
    }
}

static void optimizer_check_ema(struct harness *h) {
    int64_t columns = harness_columns(h, 1, harness_unit(h) < 0.2 ? 70000 : 500);
    harness_case(h, "ema of %lld", (long long)columns);
    struct tensor average = harness_dense(h, ELEMENT_F32, 2, columns, FILL_EDGES, 1),
                  in = harness_dense(h, ELEMENT_F32, 2, columns, FILL_EDGES, 1);
    double *want = harness_doubles(h, average);
    float *values = harness_values(h, in);
    const struct tensor none = {0};
    harness_ok(h, h->ops->ema(h->backend, average, none, in, none, 0.995));
    for (int64_t i = 0; i < 2 * columns; i++) want[i] = 0.995 * want[i] + 0.005 * values[i];
    harness_near(h, "ema", average, want, 5e-7, 1e-6);
    harness_set(h, in, values = harness_values(h, average)); // apart from -0, which becomes 0, nothing changes
    harness_ok(h, h->ops->ema(h->backend, average, none, in, none, 0.995));
    for (int64_t i = 0; i < 2 * columns; i++) want[i] = values[i];
    harness_near(h, "the ema of equal tensors", average, want, 0, 0);
}

// The average of pairs is that of the numbers, apart from ties.
static void optimizer_check_ema_of_pairs(struct harness *h) {
    int64_t columns = harness_columns(h, 1, 3000);
    harness_case(h, "ema of %lld pairs", (long long)columns);
    struct tensor fine[2], high[2], remainder[2]; // the average and the input
    for (int i = 0; i < 2; i++) {
        fine[i] = harness_dense(h, ELEMENT_F32, 1, columns, FILL_EDGES, 1);
        high[i] = harness_dense(h, ELEMENT_BF16, 1, columns, FILL_ZERO, 0);
        remainder[i] = harness_dense(h, ELEMENT_U16, 1, columns, FILL_ZERO, 0);
        harness_ok(h, h->ops->split_f32(h->backend, high[i], remainder[i], fine[i]));
        harness_ok(h, h->ops->join_f32(h->backend, fine[i], high[i], remainder[i]));
    }
    const struct tensor none = {0};
    harness_ok(h, h->ops->ema(h->backend, fine[0], none, fine[1], none, 0.995));
    harness_ok(h, h->ops->ema(h->backend, high[0], remainder[0], high[1], remainder[1], 0.995));
    harness_ok(h, h->ops->join_f32(h->backend, fine[1], high[0], remainder[0]));
    const float *one = harness_values(h, fine[0]), *other = harness_values(h, fine[1]);
    for (int64_t i = 0; i < columns; i++) {
        uint32_t bits = optimizer_bits(one[i]), tie = (bits & 0x1ffff) == 0x18000;
        harness_hold(h, optimizer_bits(other[i]) == bits + tie, "element %lld: %08x, not %08x", (long long)i,
                     optimizer_bits(other[i]), bits + tie);
    }
    harness_hold(h, h->ops->ema(h->backend, high[0], none, high[1], none, 0.995) == BUG, "a bfloat16 average");
}

static void optimizer_check_each(struct harness *h) {
    optimizer_check_square_sums(h);
    optimizer_check_adamw(h);
    optimizer_check_pairs(h);
    optimizer_check_ema(h);
    optimizer_check_ema_of_pairs(h);
}

static void optimizer_check(struct harness *h) {
    for (int i = 0; i < 15; i++) optimizer_check_each(h);
    while (harness_next_layout(h)) optimizer_check_each(h);
    optimizer_check_second_moment(h);
}

static void optimizer_time_all(struct harness *h) {
    harness_case(h, "timing");
    const struct adamw_options options = {
        .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .grad_scale = 1, .step = 3};
    const struct tensor none = {0};
    struct adamw_range range = {.decay = true};
    static double sums[4096];
    struct tensor *parts[] = {&range.param, &range.grad, &range.exp_avg, &range.exp_avg_sq};
    for (int i = 0; i < 4; i++)
        *parts[i] = harness_dense(h, ELEMENT_F32, 4096, 4096, i == 3 ? FILL_ZERO : FILL_NORMAL, 1);
    double elements = 4096.0 * 4096;
    HARNESS_TIME(h, 0, 28 * elements, h->ops->adamw(h->backend, &range, 1, &options), "adamw 16 M");
    HARNESS_TIME(h, 0, 12 * elements, h->ops->ema(h->backend, range.exp_avg, none, range.grad, none, 0.995),
                 "ema 16 M");
    HARNESS_TIME(h, 0, 4 * elements, h->ops->square_sums(h->backend, sums, &(struct square_range){range.grad, 4096}, 1),
                 "square_sums 16 M");
    range.param = harness_dense(h, ELEMENT_BF16, 4096, 4096, FILL_NORMAL, 1);
    range.remainder = harness_dense(h, ELEMENT_U16, 4096, 4096, FILL_ZERO, 0);
    for (int i = 1; i < 4; i++)
        *parts[i] = harness_dense(h, ELEMENT_BF16, 4096, 4096, i == 3 ? FILL_ZERO : FILL_NORMAL, 1);
    HARNESS_TIME(h, 0, 18 * elements, h->ops->adamw(h->backend, &range, 1, &options),
                 "adamw 16 M, pairs and bf16 moments");
}

const struct suite suite_optimizer = {"optimizer", optimizer_check, optimizer_time_all};

// ---- pairs ----
//
// split_f32 and join_f32 over every low half, and digest against its definition.

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
        bool right = optimizer_bits(coarse[low]) == optimizer_bits(harness_rounded(values[low], ELEMENT_BF16)) &&
                     words[low] == low + next && optimizer_bits(joined[low]) == (high << 16 | low) + next;
        harness_hold(h, right, "%08x became %08x, %04x and then %08x", high << 16 | low, optimizer_bits(coarse[low]),
                     words[low], optimizer_bits(joined[low]));
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

static void pairs_time_all(struct harness *h) {
    harness_case(h, "timing");
    const struct tensor fine = harness_dense(h, ELEMENT_F32, 4096, 4096, FILL_NORMAL, 1);
    const struct tensor coarse = harness_dense(h, ELEMENT_BF16, 4096, 4096, FILL_ZERO, 0);
    const struct tensor remainder = harness_dense(h, ELEMENT_U16, 4096, 4096, FILL_ZERO, 0);
    const double elements = 4096.0 * 4096;
    uint64_t sum = 0;
    HARNESS_TIME(h, 0, 8 * elements, h->ops->split_f32(h->backend, coarse, remainder, fine), "split_f32 16 M");
    HARNESS_TIME(h, 0, 8 * elements, h->ops->join_f32(h->backend, fine, coarse, remainder), "join_f32 16 M");
    HARNESS_TIME(h, 0, 4 * elements, h->ops->digest(h->backend, fine, 0, &sum), "digest 64 MiB");
}

const struct suite suite_pairs = {"pairs", pairs_check, pairs_time_all};
