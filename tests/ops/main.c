// The command line: harness [--seed N] [--only SUITE] [--time [SUITE] [--threads N | --busy]]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "tests/ops/state.h"

static const struct suite *const suites[] = {
    &suite_memory, &suite_gather_scatter, &suite_patchify, &suite_linear,      &suite_lm_head, &suite_optimizer,
    &suite_pairs,  &suite_attention,      &suite_rmsnorm,  &suite_activations, &suite_logits,  &suite_decode_batch};

// Every version must give the bits of the first.
struct version {
    const char *name;
    enum simd_level level;
    int threads;
    bool guarded;
};

static const struct version versions[] = {
    {"plain, 1 thread", SIMD_PLAIN, 1, false},    {"AVX2, 1 thread", SIMD_AVX2, 1, false},
    {"AVX-512, 1 thread", SIMD_AVX512, 1, false}, {"best, 2 threads", SIMD_AVX512, 2, false},
    {"best, 3 threads", SIMD_AVX512, 3, false},   {"best, guarded", SIMD_AVX512, 2, true},
};

static void harness_open_version(struct harness *h, const struct version *v) {
    struct backend_options options = {.device = "cpu", .threads = v->threads, .guarded = v->guarded};
    harness_must(backend_open(&h->backend, &options));
    enum simd_level best = simd_best();
    simd_choose(&cpu_of(h->backend)->simd, v->level < best ? v->level : best);
    h->ops = h->backend->ops;
}

static void harness_check_suite(struct harness *h, const struct suite *suite, uint64_t stream) {
    struct harness_state *s = h->state;
    s->suite = suite->name;
    s->digest_count = 0;
    int failed = s->failed, cases = s->cases;
    clock_t start = clock();
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        s->stream = stream;
        s->drawn = s->digest_next = 0;
        s->version = versions[i].name;
        h->first = i == 0;
        harness_open_version(h, &versions[i]);
        suite->check(h);
        harness_end(h);
        backend_close(&h->backend);
    }
    printf("%-10s %5d cases, %d failed, %.1f s\n", suite->name, s->cases - cases, s->failed - failed,
           (double)(clock() - start) / CLOCKS_PER_SEC);
}

static void harness_time_suite(struct harness *h, const struct suite *suite) {
    if (!suite->time) return;
    h->state->suite = suite->name;
    suite->time(h);
    harness_end(h);
}

int main(int count, char **arguments) {
    struct harness_state state = {.seed = (uint64_t)time(NULL), .first_version = versions[0].name, .seconds = 0.2};
    struct harness h = {.state = &state};
    const char *only = NULL;
    bool timing = false;
    for (int i = 1; i < count; i++) {
        bool more = i + 1 < count && arguments[i + 1][0] != '-';
        if (strcmp(arguments[i], "--seed") == 0 && more) {
            state.seed = strtoull(arguments[++i], NULL, 0);
        } else if (strcmp(arguments[i], "--only") == 0 && more) {
            only = arguments[++i];
        } else if (strcmp(arguments[i], "--threads") == 0 && more) {
            state.threads = atoi(arguments[++i]);
        } else if (strcmp(arguments[i], "--busy") == 0) {
            state.busy = true;
            state.threads = 1;
        } else if (strcmp(arguments[i], "--time") == 0) {
            timing = true;
            if (more) only = arguments[++i];
        } else {
            fprintf(stderr, "usage: harness [--seed N] [--only SUITE] [--time [SUITE] [--threads N | --busy]]\n");
            return 64;
        }
    }
    printf("seed %llu\n", (unsigned long long)state.seed);
    if (timing) {
        harness_open_version(&h, &(struct version){"timed", SIMD_AVX512, state.threads, false});
        harness_peaks(&state);
    }
    int ran = 0;
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        if (only && strcmp(only, suites[i]->name) != 0) continue;
        ran++;
        if (timing) harness_time_suite(&h, suites[i]);
        if (!timing) harness_check_suite(&h, suites[i], i);
    }
    backend_close(&h.backend);
    free(state.digests);
    if (ran == 0) fprintf(stderr, "harness: no suite %s\n", only);
    if (!timing) printf("%d passed, %d failed\n", state.cases - state.failed, state.failed);
    return ran == 0 ? 64 : state.failed ? 1 : 0;
}
