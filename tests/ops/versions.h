// The versions of a device's operations: what the harness opens one after the other.
#ifndef TESTS_OPS_VERSIONS_H
#define TESTS_OPS_VERSIONS_H

#include "tests/ops/harness.h"

// The results of a version have the bits of the first version, or of the last one before it with `own_bits`.
struct version {
    const char *name;
    const char *device; // for backend_open
    int threads;
    bool guarded, own_bits;
    bool products;    // only the suites of products and attention run: it differs from the others there alone
    bool without_amx; // of the CPU
    int f32_parts;    // of the CPU
    enum { CUBLASLT_AS_SET, CUBLASLT_NONE, CUBLASLT_EMULATED } cublaslt; // which one is there
    int simd; // the CPU's level of SIMD instructions, an enum simd_level
};

// Returns the versions of a device (cpu, cuda, cuda:N, emulated), the first one first; NULL if it is unknown.
const struct version *versions_of(const char *device, size_t *count);

// Opens a version as h->backend. UNAVAILABLE, USAGE.
status version_open(struct harness *h, const struct version *version);

#endif
