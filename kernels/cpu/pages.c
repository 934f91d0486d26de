// Memory in whole pages, and the scratch memory of operations.
//
// Prepacked weights are stored in pages that are reused: a new version of the weights replaces the old one, and fresh
// pages cost several times as much as writing to them. Idle and used pages together never exceed the most that was in
// use at one time.
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"
#include "shared/base/memory.h"

enum { page_bytes = 4096, spare_fraction = 8 }; // reused pages may exceed the request by this fraction of it

static_assert((page_bytes & (page_bytes - 1)) == 0, "page_bytes is a power of two");

static size_t pages_round_up(size_t bytes) {
    return bytes ? (bytes + page_bytes - 1) / page_bytes * page_bytes : page_bytes;
}

status pages_map(size_t bytes, struct pages *out) {
    bytes = pages_round_up(bytes);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return fail(UNAVAILABLE, "out of memory: cannot allocate %zu bytes for tensors", bytes);
    (void)madvise(data, bytes, MADV_HUGEPAGE); // a hint: without huge pages it is only slower
    *out = (struct pages){data, bytes};
    return OK;
}

void pages_unmap(struct pages *pages) {
    if (pages->data) munmap(pages->data, pages->bytes);
    *pages = (struct pages){0};
}

static void pages_unmap_largest_idle(struct cpu_backend *cpu) {
    size_t largest = 0;
    assert(cpu->idle_count > 0);
    for (size_t i = 1; i < cpu->idle_count; i++)
        if (cpu->idle[i].bytes > cpu->idle[largest].bytes) largest = i;
    cpu->idle_bytes -= cpu->idle[largest].bytes;
    pages_unmap(&cpu->idle[largest]);
    cpu->idle[largest] = cpu->idle[--cpu->idle_count];
}

// Takes the smallest idle pages that are large enough, but not much larger. False when there are none.
static bool pages_reuse(struct cpu_backend *cpu, size_t bytes, struct pages *out) {
    size_t best = cpu->idle_count;
    for (size_t i = 0; i < cpu->idle_count; i++) {
        size_t size = cpu->idle[i].bytes;
        if (size < bytes || size > bytes + bytes / spare_fraction) continue;
        if (best == cpu->idle_count || size < cpu->idle[best].bytes) best = i;
    }
    if (best == cpu->idle_count) return false;
    *out = cpu->idle[best];
    cpu->idle[best] = cpu->idle[--cpu->idle_count];
    cpu->idle_bytes -= out->bytes;
    return true;
}

status pages_get(struct cpu_backend *cpu, size_t bytes, struct pages *out) {
    bytes = pages_round_up(bytes);
    if (!pages_reuse(cpu, bytes, out)) {
        while (cpu->idle_count && cpu->used_bytes + cpu->idle_bytes + bytes > cpu->peak_bytes)
            pages_unmap_largest_idle(cpu);
        TRY(pages_map(bytes, out));
    }
    cpu->used_bytes += out->bytes;
    if (cpu->used_bytes > cpu->peak_bytes) cpu->peak_bytes = cpu->used_bytes;
    return OK;
}

void pages_put(struct cpu_backend *cpu, struct pages *pages) {
    if (!pages->data) return;
    assert(cpu->used_bytes >= pages->bytes);
    cpu->used_bytes -= pages->bytes;
    if (RESIZE(&cpu->idle, cpu->idle_count + 1) != OK) {
        pages_unmap(pages);
        return;
    }
    cpu->idle[cpu->idle_count++] = *pages;
    cpu->idle_bytes += pages->bytes;
    *pages = (struct pages){0};
}

void pages_release_idle(struct cpu_backend *cpu) {
    while (cpu->idle_count) pages_unmap_largest_idle(cpu);
    free(cpu->idle);
    cpu->idle = NULL;
}

// Scratch memory is mapped and not taken from the heap, where the memory that it outgrows would remain as holes.
status cpu_scratch(struct cpu_backend *cpu, enum scratch_slot slot, size_t bytes, void *out) {
    struct pages *scratch = &cpu->scratch[slot];
    if (scratch->bytes < bytes) {
        pages_unmap(scratch);
        TRY(pages_map(bytes, scratch));
    }
    memcpy(out, &scratch->data, sizeof scratch->data);
    return OK;
}
