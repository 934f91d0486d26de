#include "tests/ops/versions.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/support/guarded.h"

#define PRODUCTS .products = true, .simd = SIMD_AVX512

#ifdef __SANITIZE_THREAD__ // one thread has no races
static const struct version cpu_versions[] = {
    {.name = "best, 2 threads", .device = "cpu", .threads = 2, .own_bits = true, .simd = SIMD_AVX512},
    {.name = "best, 3 threads", .device = "cpu", .threads = 3, .simd = SIMD_AVX512},
};
#else
static const struct version cpu_versions[] = {
    {.name = "plain, 1 thread", .device = "cpu", .threads = 1, .own_bits = true, .simd = SIMD_PLAIN},
    {.name = "AVX2, 1 thread", .device = "cpu", .threads = 1, .simd = SIMD_AVX2},
    {.name = "best, 2 threads", .device = "cpu", .threads = 2, .simd = SIMD_AVX512},
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

const struct version *versions_of(const char *device, size_t *count) {
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

status version_open(struct harness *h, const struct version *v) {
    struct backend_options options = {.device = v->device, .threads = v->threads, .f32_parts = v->f32_parts};
    version_choose_cublaslt(v);
    v->without_amx ? setenv("CARAVAN_AMX", "none", 1) : unsetenv("CARAVAN_AMX");
    TRY(v->guarded ? guarded_open(&h->backend, &options) : backend_open(&h->backend, &options));
    h->guarded = v->guarded;
    h->ops = h->backend->ops;
    h->emulated = strncmp(v->device, "emulated", 8) == 0;
    h->f32_parts = v->f32_parts;
    h->product_error = v->f32_parts == 2 ? 0x1p-16 : 0;
    h->cpu = strcmp(v->device, "cpu") == 0 ? cpu_of(h->backend) : NULL;
    if (!h->cpu) return OK;
    enum simd_level best = simd_best(), level = (enum simd_level)v->simd;
    simd_choose(&h->cpu->simd, level < best ? level : best);
    return OK;
}
