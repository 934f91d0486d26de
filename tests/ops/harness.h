// The harness of the operations: checks and times every version (plain, SIMD, threads, guarded; of the emulator, orders
// of the threads) of every operation of a device.
//
// A suite's `check` runs once a version, each time with the same random numbers. The first version's results are
// compared with a double-precision reference written out in the suite; every further version's must be the same bits.
// A failed case prints its parameters and the seed. Comparisons are written !(difference <= bound): a NaN fails.
#pragma once

#include "kernels/ops.h"

// How the tensors of a case lie. GPUs have kernels of their own for aligned rows of one type.
enum harness_layout {
    HARNESS_ANY,    // of either float type, at random, with rows of any length
    HARNESS_F32,    // all of them F32, with rows of whole octets at multiples of 16 bytes
    HARNESS_BF16,   // all of them BF16, likewise
    HARNESS_HALVES, // all of them BF16, with rows of half an octet more, at multiples of 8 bytes
};

struct harness {
    struct backend *backend;
    const struct operations *ops;
    struct cpu_backend *cpu; // NULL on another device
    bool guarded;            // buffers can be read during an operation only
    bool emulated;           // the emulator runs: a product of a million steps takes seconds
    int share;               // of the random cases one in so many is tried
    int64_t most_steps;      // multiplications of the largest product that is tried
    bool first;              // this version is compared with the reference
    int f32_parts;           // of this version (backend_options)
    double product_error;    // that this version allows itself in a product of float32, relative to it
    enum harness_layout layout;
    struct harness_state *state;
};

struct suite {
    const char *name;
    void (*check)(struct harness *h);
    void (*time)(struct harness *h); // NULL: nothing worth timing
};

// How values are chosen.
enum fill {
    FILL_NORMAL, // a bell curve
    FILL_EDGES,  // some of them 0, -0, denormal, equal to a neighbour, large (up to 1e4)
    FILL_ZERO,
};

// ---- cases ----

// Starts a case: ends the one before (its tensors' surroundings are checked, its memory freed) and names the
// parameters for failure messages.
void harness_case(struct harness *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

// How many random cases of a kind are tried: `count`, and a quarter of it where the emulator runs; of these half under
// the address sanitizer and a quarter under the thread sanitizer.
int harness_repeats(const struct harness *h, int count);

// A random integer in [low, high]; the two ends are more likely.
int64_t harness_range(struct harness *h, int64_t low, int64_t high);

// A uniform random number in [0, 1).
double harness_unit(struct harness *h);

// F32 or BF16, that of the layout if it has one.
enum element harness_float_type(struct harness *h);

// A random number of columns in [low, high]; in a layout with octets a multiple of 8, up to 7 more, and in
// HARNESS_HALVES four more than that.
int64_t harness_columns(struct harness *h, int64_t low, int64_t high);

// Goes on to the next layout. After the last one it goes back to HARNESS_ANY and returns false. So that cases are tried
// in the others: while (harness_next_layout(h)) ...
bool harness_next_layout(struct harness *h);

// Standard normal.
double harness_normal(struct harness *h);

// Memory that lives as long as the case, zeroed.
void *harness_memory(struct harness *h, size_t bytes);

// ---- tensors, as long as the case ----

// Within a larger buffer full of a pattern that must survive; rows sometimes farther apart than they are long. Integer
// types are filled with zeros.
struct tensor harness_tensor(struct harness *h, enum element type, int64_t rows, int64_t columns, enum fill fill,
                             double scale);

// The same, with rows right one after the other.
struct tensor harness_dense(struct harness *h, enum element type, int64_t rows, int64_t columns, enum fill fill,
                            double scale);

// I32 [rows,1] in [0, below).
struct tensor harness_index(struct harness *h, int64_t rows, int64_t below);

// An F32, BF16 or F16 tensor's values, dense, as long as the case.
float *harness_values(struct harness *h, struct tensor t);

// The same, in double.
double *harness_doubles(struct harness *h, struct tensor t);

// An I32 tensor's values, dense, as long as the case.
int32_t *harness_numbers(struct harness *h, struct tensor t);

// Sets a tensor's values from dense float32; those of I32, U8 and U16 from their own type.
void harness_set(struct harness *h, struct tensor t, const void *values);

// A U16 tensor's values, dense, as long as the case.
uint16_t *harness_words(struct harness *h, struct tensor t);

// The value after a round trip through a type, F32 or BF16 (nearest even). Not for NaN.
float harness_rounded(float value, enum element type);

// ---- verdicts ----

// The call must have succeeded.
void harness_ok(struct harness *h, status result);

// The call, or the next wait, must report BUG: a promise about the contents of a tensor is broken.
void harness_broken(struct harness *h, status called, const char *what);

// Something must hold.
void harness_hold(struct harness *h, bool holds, const char *format, ...) __attribute__((format(printf, 3, 4)));

// |out - want| <= absolute + relative * |want| everywhere, on the first version; the same bits on the others. A
// bfloat16 `out` is granted half a unit of its last place besides. `want` is dense, NULL except on the first version.
void harness_near(struct harness *h, const char *what, struct tensor out, const double *want, double absolute,
                  double relative);

// The same bits in every version.
void harness_same(struct harness *h, const char *what, struct tensor out);

// The two tensors hold the same bits.
void harness_equal(struct harness *h, const char *what, struct tensor a, struct tensor b);

// ---- timing ----

// Times the call of an operation: the best of many; prints a line with the rate and its share of the machine's peak.
// flops or bytes may be 0. HARNESS_TIME(h, flops, bytes, h->ops->copy(h->backend, out, in), "copy %d", columns);
#define HARNESS_TIME(h, flops, bytes, call, ...)                                                                       \
    do {                                                                                                               \
        struct harness_timing timing = {.best = 1e9};                                                                  \
        while (harness_time_next(h, &timing)) timing.result = (call);                                                  \
        harness_time_print(h, &timing, flops, bytes, __VA_ARGS__);                                                     \
    } while (0)

// The calls so far.
struct harness_timing {
    status result; // of the last one
    int count;
    double start, before, best; // seconds; `before`: when the last one began
};

// Counts the call that has ended, which must have succeeded. Returns whether another one is to be timed.
bool harness_time_next(struct harness *h, struct harness_timing *timing);

// Prints the line.
void harness_time_print(struct harness *h, const struct harness_timing *timing, double flops, double bytes,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));

// ---- the suites ----

extern const struct suite suite_memory, suite_gather_scatter, suite_segment_mean, suite_patchify, suite_linear,
    suite_lm_head, suite_optimizer, suite_pairs, suite_attention, suite_rmsnorm, suite_layernorm, suite_activations,
    suite_logits, suite_decode_batch, suite_graph;

// ---- sampling through a decode batch of its own, and the order of tokens (decoding.c) ----

// A key with low <= rng_uniform(key, 0, 0) < high.
uint64_t sampling_key(double low, double high);

// Makes a batch with a slot for each of rows[0..in.rows), takes one step with `in`, and reads it: a token and a
// log-probability for each row.
void sampling_step(struct harness *h, struct tensor in, struct weight *head, const struct decode_row *rows,
                   int32_t *tokens, float *logprobs);

// Draws `rows` tokens from the same logits, with the random numbers of keys[0..rows).
void sampling_draw(struct harness *h, const float *logits, int64_t count, struct sampling settings,
                   const uint64_t *keys, int64_t rows, int32_t *tokens, float *logprobs);

// A token, in the order in which sampling keeps them: by logit from the highest, equal ones by number.
struct ranked {
    double logit, weight;
    int32_t token;
};

// Sorts `count` tokens, whose logits and numbers are set, and computes their weights. Returns how many of them top-k
// and then top-p keep.
int64_t sampling_order(struct ranked *order, int64_t count, struct sampling settings);
