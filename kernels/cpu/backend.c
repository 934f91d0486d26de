// Opening and closing backends, by device name; scratch memory and loops of the CPU's.
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

#include "kernels/cpu/onednn.h"
#include "shared/base/memory.h"

static void cpu_close(struct cpu_backend *cpu) {
    if (cpu->guarded) cpu_guard(cpu, true);
    onednn_free(&cpu->onednn);
    for (int place = 0; place < SCRATCH_SLOTS; place++) pages_unmap(&cpu->scratch[place]);
    pages_release_idle(cpu);
    pool_free(&cpu->pool);
    free(cpu);
}

static status cpu_open(struct backend **out, const struct backend_options *options) {
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
    cpu_close(cpu);
    return result;
}

status backend_open(struct backend **out, const struct backend_options *options) {
    *out = NULL;
    const char *device = options->device ? options->device : "cpu";
    if (strcmp(device, "cpu") == 0) return cpu_open(out, options);
    if (strncmp(device, "cuda", 4) == 0 && (device[4] == 0 || device[4] == ':'))
        return fail(UNAVAILABLE, "device %s: built without CUDA", device);
    return fail(USAGE, "unknown device %s: cpu, cuda or cuda:N", device);
}

void backend_close(struct backend **backend) {
    if (!*backend) return;
    cpu_close(cpu_of(*backend));
    *backend = NULL;
}

status backend_supports(struct backend *backend, enum element type) {
    return cpu_supports(cpu_of(backend), type);
}

// Mapped, not from the heap, where what it outgrows would stay as holes.
status cpu_scratch(struct cpu_backend *cpu, enum scratch_slot place, size_t bytes, void *out) {
    struct pages *scratch = &cpu->scratch[place];
    if (scratch->bytes < bytes) {
        pages_unmap(scratch);
        TRY(pages_map(bytes, scratch));
    }
    memcpy(out, &scratch->data, sizeof scratch->data);
    return OK;
}

struct block_loop {
    int64_t count, block;
    void (*work)(void *context, int64_t first, int64_t end, int thread);
    void *context;
};

static void block_task(void *context, int task, int thread) {
    const struct block_loop *loop = context;
    int64_t first = task * loop->block;
    int64_t end = first + loop->block < loop->count ? first + loop->block : loop->count;
    loop->work(loop->context, first, end, thread);
}

void parallel_for(struct cpu_backend *cpu, int64_t count, int64_t block,
                  void (*work)(void *context, int64_t first, int64_t end, int thread), void *context) {
    if (count <= 0) return;
    if (block < 1) block = 1;
    struct block_loop loop = {.count = count, .block = block, .work = work, .context = context};
    pool_run(cpu->pool, (int)((count + block - 1) / block), block_task, &loop);
}
