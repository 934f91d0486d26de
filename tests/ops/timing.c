// Rates of operations, as shares of the machine's peaks, which are measured in the same run.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/pool.h"
#include "tests/ops/peak.h"
#include "tests/ops/state.h"

static double timing_seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// Seconds of the monotonic clock, or of processor time.
static double timing_now(const struct harness_state *s) {
    return s->busy ? timing_seconds_of(CLOCK_PROCESS_CPUTIME_ID) : timing_seconds_of(CLOCK_MONOTONIC);
}

struct read_job {
    const float *data;
    size_t share;
    float *sums;
};

static void timing_read_share(void *context, int task, int thread) {
    const struct read_job *r = context;
    const float *data = r->data + (size_t)task * r->share;
    float lanes[64] = {0};
    for (size_t i = 0; i < r->share; i += 64) {
        for (int lane = 0; lane < 64; lane++) lanes[lane] += data[i + (size_t)lane];
    }
    for (int lane = 0; lane < 64; lane++) r->sums[thread] += lanes[lane];
}

static void timing_multiply_f32(void *context, int task, int thread) {
    (void)task;
    ((float *)context)[thread] += peak_multiply_f32();
}

static void timing_multiply_bf16(void *context, int task, int thread) {
    (void)task;
    ((float *)context)[thread] += peak_multiply_bf16();
}

static double timing_best_seconds(const struct harness_state *s, struct pool *pool, int tasks,
                                  void (*work)(void *, int, int), void *context) {
    double best = 1e9;
    for (int i = 0; i < 7; i++) {
        double start = timing_now(s);
        pool_run(pool, tasks, work, context);
        double seconds = timing_now(s) - start;
        if (seconds < best) best = seconds;
    }
    return best;
}

void harness_peaks(struct harness_state *s) {
    enum { elements = 1 << 26 };
    struct pool *pool;
    harness_must(pool_new(&pool, s->threads));
    int threads = s->threads = pool_threads(pool);
    float *data = malloc((size_t)elements * sizeof *data), *sums = calloc((size_t)threads, sizeof *sums);
    if (!data || !sums) exit(69);
    memset(data, 0, (size_t)elements * sizeof *data);
    struct read_job reading = {data, elements / (size_t)(64 * threads) * 64 / 8, sums};
    double seconds = timing_best_seconds(s, pool, 8 * threads, timing_read_share, &reading);
    s->peak_bytes = (double)reading.share * 8 * threads * sizeof *data / seconds;
    s->peak_flops[0] = peak_flops_f32() * threads / timing_best_seconds(s, pool, threads, timing_multiply_f32, sums);
    s->peak_flops[1] = peak_flops_bf16() * threads / timing_best_seconds(s, pool, threads, timing_multiply_bf16, sums);
    printf("%d threads: peak %.0f GFLOP/s float32, %.0f bfloat16, %.1f GB/s\n", threads, s->peak_flops[0] * 1e-9,
           s->peak_flops[1] * 1e-9, s->peak_bytes * 1e-9);
    free(data);
    free(sums);
    pool_free(&pool);
}

bool harness_time_next(struct harness *h, struct harness_timing *timing) {
    const struct harness_state *s = h->state;
    const double now = timing_now(s);
    harness_must(timing->result);
    if (timing->count == 0) timing->start = now;
    if (timing->count > 1 && now - timing->before < timing->best)
        timing->best = now - timing->before; // the first warms up
    timing->before = timing_now(s);
    return timing->count++ < 3 || now - timing->start < s->seconds;
}

void harness_time_print(struct harness *h, const struct harness_timing *timing, double flops, double bytes,
                        const char *format, ...) {
    const struct harness_state *s = h->state;
    const double best = timing->best;
    char text[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("%-12s %-44s %10.1f us", s->suite, text, best * 1e6);
    bool half = strstr(text, "bf16");
    if (flops > 0) printf(" %8.1f GFLOP/s %3.0f %%", flops / best * 1e-9, 100 * flops / best / s->peak_flops[half]);
    if (bytes > 0) printf(" %8.1f GB/s %3.0f %%", bytes / best * 1e-9, 100 * bytes / best / s->peak_bytes);
    printf("\n");
    fflush(stdout);
}
