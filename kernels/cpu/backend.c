// Opening and closing the CPU's backend, and the table of its operations.
#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "shared/base/memory.h"

static void backend_close_cpu(struct backend *backend) {
    struct cpu_backend *cpu = cpu_of(backend);
    onednn_free(&cpu->onednn);
    for (int slot = 0; slot < SCRATCH_SLOTS; slot++) pages_unmap(&cpu->scratch[slot]);
    pages_release_idle(cpu);
    pool_free(&cpu->pool);
    free(cpu);
}

// The weights are packed again for each chunk in training. That costs relatively more where products are faster, in
// bfloat16, whose rows are half as large besides, and in parts.
static status backend_info_cpu(struct backend *backend, struct backend_info *out) {
    const bool parts = cpu_of(backend)->f32_parts > 0;
    static_assert(ELEMENT_F32 == 0 && ELEMENT_BF16 == 1, "chunk_rows is indexed by the type of products");
    *out = (struct backend_info){.device = "cpu",
                                 .kind = "cpu",
                                 .packs = true,
                                 .chunk_rows = {[ELEMENT_F32] = parts ? 2048 : 1152, [ELEMENT_BF16] = 4096},
                                 .chunk_patches = 2048};
    return OK;
}

#define ABOUT_BACKEND .name = "cpu", .close = backend_close_cpu, .supports = cpu_supports, .info = backend_info_cpu
#define ENTRY(name)   .name = cpu_##name,
static const struct operations backend_operations = {ABOUT_BACKEND, BACKEND_OPERATIONS(ENTRY)};

// ---- opening and closing ----

status cpu_backend_open(struct backend **out, const struct backend_options *options) {
    *out = NULL;
    struct cpu_backend *cpu;
    NEW(&cpu, 1);
    cpu->base.ops = &backend_operations;
    cpu->heap_bytes = 1 << 20;
    simd_choose(&cpu->simd, simd_best());
    status result;
    TRY_TO(result, close, pool_new(&cpu->pool, options->threads));
    TRY_TO(result, close, onednn_new(&cpu->onednn, pool_threads(cpu->pool)));
    const char *amx = getenv("CARAVAN_AMX");
    cpu->amx = amx_usable() && !(amx && strcmp(amx, "none") == 0);
    cpu->f32_parts = cpu->amx ? options->f32_parts : 0;
    *out = &cpu->base;
    return OK;
close:
    backend_close_cpu(&cpu->base);
    return result;
}
