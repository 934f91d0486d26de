// The command line: harness [--device NAME] [--seed N] [--only SUITE]
//                           [--time [SUITE] [--version NAME] [--threads N | --busy]]
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/emulate/emulated_kernels.h"
#include "tests/ops/state.h"
#include "tests/ops/versions.h"

static const struct suite *const suites[] = {
    &suite_memory,    &suite_gather_scatter, &suite_segment_mean, &suite_patchify,     &suite_linear,
    &suite_lm_head,   &suite_optimizer,      &suite_pairs,        &suite_attention,    &suite_rmsnorm,
    &suite_layernorm, &suite_activations,    &suite_logits,       &suite_decode_batch, &suite_graph};

static void harness_check_suite(struct harness *h, const struct suite *suite, uint64_t stream) {
    struct harness_state *s = h->state;
    s->suite = suite->name;
    int failed = s->failed, cases = s->cases;
    clock_t start = clock();
    for (size_t i = 0; i < s->version_count; i++) {
        const struct version *version = &s->versions[i];
        if (version->products && suite != &suite_linear && suite != &suite_lm_head && suite != &suite_attention)
            continue;
        s->stream = stream;
        s->drawn = s->digest_next = 0;
        s->version = version->name;
        h->first = version->own_bits;
        if (version->own_bits) s->first_version = version->name;
        if (version->own_bits) s->digest_count = 0;
        harness_must(version_open(h, version));
        suite->check(h);
        harness_end(h);
        backend_close(&h->backend);
    }
    printf("%-10s %5d cases, %d failed, %.1f s\n", suite->name, s->cases - cases, s->failed - failed,
           (double)(clock() - start) / CLOCKS_PER_SEC);
}

// With any seed, the suites together have launched every kernel of the emulator's plug-in.
static void harness_check_kernels(struct harness_state *s, const char *device) {
    const char *lib = getenv("CARAVAN_LIB");
    char plugin[PATH_MAX];
    struct harness h = {.state = s};
    snprintf(plugin, sizeof plugin, "%s/libcaravan-emulated.so", lib ? lib : "");
    void *library = strcmp(device, "emulated") == 0 ? dlopen(plugin, RTLD_NOW | RTLD_NOLOAD) : NULL;
    struct emulated_kernel **kernels = library ? dlsym(library, "emulated_kernels") : NULL;
    int launched = 0, all = 0;
    if (!kernels) return;
    s->suite = s->version = "kernels";
    for (const struct emulated_kernel *kernel = *kernels; kernel; kernel = kernel->next) {
        snprintf(s->name, sizeof s->name, "%s", kernel->name);
        harness_hold(&h, kernel->launched, "never launched");
        launched += kernel->launched;
        all++;
    }
    printf("%d of %d kernels were launched\n", launched, all);
}

int main(int count, char **arguments) {
    struct harness_state state = {.seed = (uint64_t)time(NULL), .seconds = 0.2};
    struct harness h = {.state = &state};
    const char *only = NULL, *device = "cpu", *name = NULL; // of the version that is timed
    bool timing = false;
    for (int i = 1; i < count; i++) {
        bool more = i + 1 < count && arguments[i + 1][0] != '-';
        if (strcmp(arguments[i], "--seed") == 0 && more) {
            state.seed = strtoull(arguments[++i], NULL, 0);
        } else if (strcmp(arguments[i], "--device") == 0 && more) {
            device = arguments[++i];
        } else if (strcmp(arguments[i], "--version") == 0 && more) {
            name = arguments[++i];
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
            fprintf(stderr, "usage: harness [--device NAME] [--seed N] [--only SUITE]\n"
                            "               [--time [SUITE] [--version NAME] [--threads N | --busy]]\n");
            return 64;
        }
    }
    state.versions = versions_of(device, &state.version_count);
    if (!state.versions) {
        fprintf(stderr, "harness: no device %s\n", device);
        return 64;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); // the seed and the suites so far are seen, whatever happens
    printf("device %s, seed %llu\n", device, (unsigned long long)state.seed);
    if (timing) {
        struct version timed = state.versions[0];
        for (size_t i = 0; i < state.version_count; i++)
            if (name ? strcmp(state.versions[i].name, name) == 0 : !state.versions[i].products)
                timed = state.versions[i];
        timed.threads = state.threads;
        timed.guarded = false;
        harness_must(version_open(&h, &timed));
        harness_peaks(&state);
    }
    int ran = 0;
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        if (only && strcmp(only, suites[i]->name) != 0) continue;
        ran++;
        if (!timing) harness_check_suite(&h, suites[i], i);
        if (!timing || !suites[i]->time) continue;
        state.suite = suites[i]->name;
        suites[i]->time(&h);
        harness_end(&h);
    }
    backend_close(&h.backend);
    if (!timing && !only && state.version_count > 1) harness_check_kernels(&state, device); // one does not launch all
    free(state.digests);
    if (ran == 0) fprintf(stderr, "harness: no suite %s\n", only);
    if (!timing) printf("%d passed, %d failed\n", state.cases - state.failed, state.failed);
    return ran == 0 ? 64 : state.failed ? 1 : 0;
}
