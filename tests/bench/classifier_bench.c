// Times a classifier of ModernBERT-large's shape: classifier_bench DIR float32|bfloat16 [THREADS]. 8 texts of 700
// random tokens are scored, after a pass that warms up. Prints one line: precision, seconds, tokens a second, the
// process's peak memory, processor seconds, and the share of the processor's peak of float32 multiplications and
// additions, measured before and after.
#include <stdio.h>
#include <stdlib.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/pool.h"
#include "shared/base/rng.h"
#include "shared/model/classifier.h"
#include "tests/bench/usage.h"
#include "tests/ops/peak.h"

enum {
    TEXTS = 8,
    TOKENS = 700,
    LAYERS = 28,
    GLOBAL_LAYERS = 10,
    CHANNELS = 1024,
    INNER = 2624,
    WINDOW = 64, // keys on each side
};

struct bench_time {
    double wall, processor;
};

static struct bench_time bench_now(void) {
    return (struct bench_time){clock_monotonic(), bench_processor_seconds()};
}

static void bench_take_least(struct bench_time *least, struct bench_time since) {
    struct bench_time now = bench_now();
    if (now.wall - since.wall < least->wall) least->wall = now.wall - since.wall;
    if (now.processor - since.processor < least->processor) least->processor = now.processor - since.processor;
}

static void bench_multiply(void *context, int task, int thread) {
    (void)thread;
    ((float *)context)[task] = peak_multiply_f32();
}

// Takes the least times of peak_flops_f32() in each thread.
static void bench_peak(struct pool *pool, struct bench_time *least) {
    float sums[256];
    for (int i = 0; i < 5; i++) {
        struct bench_time began = bench_now();
        pool_run(pool, pool_threads(pool), bench_multiply, sums);
        bench_take_least(least, began);
    }
}

// Multiplications and additions of the products, and of attention's scores and sums over the keys that a query sees.
static double bench_flops(void) {
    double products = 2.0 * LAYERS * TOKENS * (4.0 * CHANNELS * CHANNELS + 3.0 * INNER * CHANNELS), seen = 0;
    for (int i = 0; i < TOKENS; i++)
        seen += 1 + (i < WINDOW ? i : WINDOW) + (TOKENS - 1 - i < WINDOW ? TOKENS - 1 - i : WINDOW);
    double keys = GLOBAL_LAYERS * (double)TOKENS * TOKENS + (LAYERS - GLOBAL_LAYERS) * seen;
    return TEXTS * (products + 4.0 * CHANNELS * keys);
}

static status bench_run(const char *dir, const char *precision, int threads, struct pool *pool) {
    static int64_t tokens[TEXTS][TOKENS];
    struct classifier_text texts[TEXTS];
    double probabilities[TEXTS];
    struct classifier *classifier;
    const struct classifier_options options = {.device = "cpu", .threads = threads, .precision = precision};
    TRY(classifier_open(&classifier, dir, &options));
    uint64_t vocab_size = (uint64_t)classifier_get_info(classifier)->vocab_size;
    for (int i = 0; i < TEXTS; i++) {
        for (int t = 0; t < TOKENS; t++) tokens[i][t] = (int64_t)rng_below(1, (uint64_t)i, (uint64_t)t, vocab_size);
        texts[i] = (struct classifier_text){tokens[i], TOKENS};
    }
    struct bench_time least = {1e30, 1e30}, peak = least;
    status result = classifier_score(classifier, texts, TEXTS, probabilities); // warms up
    bench_peak(pool, &peak);
    struct bench_time began = bench_now();
    if (result == OK) result = classifier_score(classifier, texts, TEXTS, probabilities);
    bench_take_least(&least, began);
    bench_peak(pool, &peak);
    double share = bench_flops() / (peak_flops_f32() * pool_threads(pool));
    if (result == OK)
        printf("%s %.2f s %.0f tokens/s %.2f GB %.2f processor-s %.0f %% of the peak, %.0f %% by processor time\n",
               precision, least.wall, TEXTS * TOKENS / least.wall, bench_peak_gigabytes(), least.processor,
               100 * share * peak.wall / least.wall, 100 * share * peak.processor / least.processor);
    classifier_free(&classifier);
    return result;
}

int main(int argc, char **argv) {
    log_open("classifier_bench");
    if (argc < 3) {
        log_info("usage: classifier_bench DIR float32|bfloat16 [THREADS]");
        return USAGE;
    }
    int threads = argc > 3 ? atoi(argv[3]) : 0;
    struct pool *pool = NULL;
    status result = pool_new(&pool, threads);
    if (result == OK) result = bench_run(argv[1], argv[2], threads, pool);
    if (result != OK) log_info("%s", fail_text());
    pool_free(&pool);
    return (int)result;
}
