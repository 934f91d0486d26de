// The command line: harness [--device NAME] [--seed N] [--only SUITE]
//                           [--time [SUITE] [--version NAME] [--threads N | --busy]]
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "tests/emulate/emulated.h"
#include "tests/ops/state.h"
#include "tests/support/guarded.h"

// ---- versions: what the harness opens one after the other ----

// The results of a version have the bits of the first version, or of the last one before it with `own_bits`.
struct version {
    const char *name;
    const char *device; // for backend_open
    int threads;
    bool guarded, own_bits;
    bool products; // only the suites of products and attention run: it differs from the others there alone
    bool without_amx, without_onednn;                                    // of the CPU
    int f32_parts;                                                       // of the CPU
    enum { CUBLASLT_AS_SET, CUBLASLT_NONE, CUBLASLT_EMULATED } cublaslt; // which one is there
    int simd; // the CPU's level of SIMD instructions, an enum simd_level
};

#define PRODUCTS .products = true, .simd = SIMD_AVX512

#ifdef __SANITIZE_THREAD__ // one thread has no races
static const struct version cpu_versions[] = {
    {.name = "plain, 2 threads", .device = "cpu", .threads = 2, .own_bits = true, .without_onednn = true},
    {.name = "best, 2 threads", .device = "cpu", .threads = 2, .own_bits = true, .simd = SIMD_AVX512},
    {.name = "best, 3 threads", .device = "cpu", .threads = 3, .simd = SIMD_AVX512},
};
#else
static const struct version cpu_versions[] = {
    {.name = "plain, 1 thread", .device = "cpu", .threads = 1, .own_bits = true, .without_onednn = true},
    {.name = "AVX2, 1 thread", .device = "cpu", .threads = 1, .without_onednn = true, .simd = SIMD_AVX2},
    {.name = "AVX-512 alone", .device = "cpu", .threads = 2, .without_onednn = true, .simd = SIMD_AVX512},
    {.name = "best, 2 threads", .device = "cpu", .threads = 2, .own_bits = true, .simd = SIMD_AVX512},
#ifndef __SANITIZE_ADDRESS__ // whose finds need each code only once
    {.name = "AVX-512, 1 thread", .device = "cpu", .threads = 1, .simd = SIMD_AVX512},
    {.name = "best, 3 threads", .device = "cpu", .threads = 3, .simd = SIMD_AVX512},
    {.name = "best, guarded", .device = "cpu", .threads = 2, .guarded = true, .simd = SIMD_AVX512},
    {.name = "without AMX", .device = "cpu", .threads = 2, PRODUCTS, .own_bits = true, .without_amx = true},
#endif
    {.name = "two parts, 2 threads", .device = "cpu", .threads = 2, PRODUCTS, .own_bits = true, .f32_parts = 2},
#ifndef __SANITIZE_ADDRESS__
    {.name = "two parts, 1 thread", .device = "cpu", .threads = 1, PRODUCTS, .f32_parts = 2},
#endif
    {.name = "three parts, 2 threads", .device = "cpu", .threads = 2, PRODUCTS, .own_bits = true, .f32_parts = 3},
#ifndef __SANITIZE_ADDRESS__
    {.name = "three parts, 1 thread", .device = "cpu", .threads = 1, PRODUCTS, .f32_parts = 3},
#endif
};
#endif

// The emulator's devices (tests/emulate/runtime.cpp).
static const struct version emulated_versions[] = {
    {.name = "sm_90, in order", .device = "emulated:0", .own_bits = true},
    {.name = "sm_90, shuffled, late copies", .device = "emulated:1"},
    {.name = "sm_90, shuffled, early copies, cuBLASLt", .device = "emulated:2", .cublaslt = CUBLASLT_EMULATED},
    {.name = "sm_80, in order", .device = "emulated:3", .own_bits = true},
};

// A GPU has one version; a second run must give its bits again, and so must one without cuBLASLt.
static struct version cuda_versions[] = {
    {.name = "first run", .own_bits = true},
    {.name = "second run"},
    {.name = "without cuBLASLt", .cublaslt = CUBLASLT_NONE},
};

// Returns the versions of a device (cpu, cuda, cuda:N, emulated), the first one first; NULL if it is unknown.
static const struct version *versions_of(const char *device, size_t *count) {
    if (strcmp(device, "cpu") == 0) {
        *count = sizeof cpu_versions / sizeof *cpu_versions;
        return cpu_versions;
    }
    if (strcmp(device, "emulated") == 0) {
        *count = sizeof emulated_versions / sizeof *emulated_versions;
#ifdef __SANITIZE_ADDRESS__
        *count = 1; // an access out of bounds does not depend on the order of threads; a version takes minutes
#endif
        return emulated_versions;
    }
    if (strncmp(device, "cuda", 4) != 0) return NULL;
    *count = sizeof cuda_versions / sizeof *cuda_versions;
    for (size_t i = 0; i < *count; i++) cuda_versions[i].device = device;
    return cuda_versions;
}

// The emulator's cuBLASLt is in the plug-in. It is found if CARAVAN_LIB is set, as in make ops, and keeps nothing.
static void version_choose_cublaslt(const struct version *v) {
    static char given[PATH_MAX] = "?"; // $CARAVAN_CUBLASLT as the harness was started
    const char *set = getenv("CARAVAN_CUBLASLT"), *lib = getenv("CARAVAN_LIB");
    char path[PATH_MAX] = "none";
    if (*given == '?') snprintf(given, sizeof given, "%s", set ? set : "");
    if (v->cublaslt == CUBLASLT_EMULATED && lib) {
        snprintf(path, sizeof path, "%s/libcaravan-emulated.so", lib);
        setenv("XDG_CACHE_HOME", "/dev/null", 1);
    }
    unsetenv("CARAVAN_CUBLASLT");
    if (v->cublaslt != CUBLASLT_AS_SET || *given) setenv("CARAVAN_CUBLASLT", v->cublaslt ? path : given, 1);
}

// Opens a version as h->backend. UNAVAILABLE, USAGE.
static status version_open(struct harness *h, const struct version *v) {
    struct backend_options options = {.device = v->device, .threads = v->threads, .f32_parts = v->f32_parts};
    version_choose_cublaslt(v);
    v->without_amx || v->without_onednn ? setenv("CARAVAN_AMX", "none", 1) : unsetenv("CARAVAN_AMX");
    v->without_onednn ? setenv("CARAVAN_ONEDNN", "none", 1) : unsetenv("CARAVAN_ONEDNN");
    TRY(v->guarded ? guarded_open(&h->backend, &options) : backend_open(&h->backend, &options));
    h->guarded = v->guarded;
    h->ops = h->backend->ops;
    h->emulated = strncmp(v->device, "emulated", 8) == 0;
    h->share = h->emulated ? 4 : 1;
    h->most_steps = h->emulated ? 10000000 : INT64_MAX;
#if defined(__SANITIZE_THREAD__)
    h->share *= 4; // which thread touches what hardly depends on the shape
    h->most_steps = 10000000;
#elif defined(__SANITIZE_ADDRESS__)
    h->share *= 2; // the plain build, with its guards around each tensor, tries all
    h->most_steps = 10000000;
#endif
    h->f32_parts = v->f32_parts;
    h->product_error = v->f32_parts == 2 ? 0x1p-16 : 0;
    h->cpu = strcmp(v->device, "cpu") == 0 ? cpu_of(h->backend) : NULL;
    if (!h->cpu) return OK;
    enum simd_level best = simd_best(), level = (enum simd_level)v->simd;
    simd_choose(&h->cpu->simd, level < best ? level : best);
    return OK;
}

// ---- suites ----

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
