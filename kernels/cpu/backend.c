// Opening and closing backends by device name.
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "shared/base/memory.h"

static void backend_close_cpu(struct cpu_backend *cpu) {
    if (cpu->guarded) cpu_guard(cpu, true);
    onednn_free(&cpu->onednn);
    for (int slot = 0; slot < SCRATCH_SLOTS; slot++) pages_unmap(&cpu->scratch[slot]);
    pages_release_idle(cpu);
    pool_free(&cpu->pool);
    free(cpu);
}

static status backend_open_cpu(struct backend **out, const struct backend_options *options) {
    struct cpu_backend *cpu;
    TRY(NEW(&cpu, 1));
    cpu->guarded = options->guarded;
    cpu->base.ops = options->guarded ? &cpu_guarded_operations : &cpu_operations;
    simd_choose(&cpu->simd, simd_best());
    status result;
    TRY_TO(result, close, pool_new(&cpu->pool, options->threads));
    TRY_TO(result, close, onednn_new(&cpu->onednn, pool_threads(cpu->pool)));
    *out = &cpu->base;
    return OK;
close:
    backend_close_cpu(cpu);
    return result;
}

status backend_open(struct backend **out, const struct backend_options *options) {
    *out = NULL;
    const char *device = options->device ? options->device : "cpu";
    if (strcmp(device, "cpu") == 0) return backend_open_cpu(out, options);
    if (strncmp(device, "cuda", 4) == 0 && (device[4] == 0 || device[4] == ':'))
        return fail(UNAVAILABLE, "device %s: this program was built without CUDA", device);
    return fail(USAGE, "unknown device %s: expected cpu, cuda or cuda:N", device);
}

void backend_close(struct backend **backend) {
    if (!*backend) return;
    backend_close_cpu(cpu_of(*backend));
    *backend = NULL;
}

status backend_supports(struct backend *backend, enum element type) {
    return cpu_supports(cpu_of(backend), type);
}
