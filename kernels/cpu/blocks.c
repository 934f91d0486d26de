// Memory in whole pages. Packed weights are kept in blocks that serve again: a new version of the weights takes the
// place of the old one, and fresh pages cost several times what writing to them costs. What lies idle and what is in
// use are together never more than was in use at once.
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"
#include "shared/base/memory.h"

enum { page = 4096, slack = 8 }; // a block may be larger than asked for by its slack-th part

static size_t whole_pages(size_t bytes) {
    return bytes ? (bytes + page - 1) / page * page : page;
}

status cpu_block_map(size_t bytes, struct cpu_block *out) {
    bytes = whole_pages(bytes);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return fail(UNAVAILABLE, "out of memory: %zu bytes of tensors", bytes);
    (void)madvise(data, bytes, MADV_HUGEPAGE); // a hint; slower without
    *out = (struct cpu_block){data, bytes};
    return OK;
}

void cpu_block_unmap(struct cpu_block *block) {
    if (block->data) munmap(block->data, block->bytes);
    *block = (struct cpu_block){0};
}

static void unmap_largest(struct cpu_backend *cpu) {
    size_t largest = 0;
    for (size_t i = 1; i < cpu->idle_count; i++)
        if (cpu->idle[i].bytes > cpu->idle[largest].bytes) largest = i;
    cpu->idle_bytes -= cpu->idle[largest].bytes;
    cpu_block_unmap(&cpu->idle[largest]);
    cpu->idle[largest] = cpu->idle[--cpu->idle_count];
}

// Takes the smallest idle block that serves; false if there is none.
static bool take_idle(struct cpu_backend *cpu, size_t bytes, struct cpu_block *out) {
    size_t best = cpu->idle_count;
    for (size_t i = 0; i < cpu->idle_count; i++) {
        size_t size = cpu->idle[i].bytes;
        if (size < bytes || size > bytes + bytes / slack) continue;
        if (best == cpu->idle_count || size < cpu->idle[best].bytes) best = i;
    }
    if (best == cpu->idle_count) return false;
    *out = cpu->idle[best];
    cpu->idle[best] = cpu->idle[--cpu->idle_count];
    cpu->idle_bytes -= out->bytes;
    return true;
}

status cpu_block_get(struct cpu_backend *cpu, size_t bytes, struct cpu_block *out) {
    bytes = whole_pages(bytes);
    if (!take_idle(cpu, bytes, out)) {
        while (cpu->idle_count && cpu->used_bytes + cpu->idle_bytes + bytes > cpu->most_bytes) unmap_largest(cpu);
        TRY(cpu_block_map(bytes, out));
    }
    cpu->used_bytes += out->bytes;
    if (cpu->used_bytes > cpu->most_bytes) cpu->most_bytes = cpu->used_bytes;
    return OK;
}

void cpu_block_put(struct cpu_backend *cpu, struct cpu_block *block) {
    if (!block->data) return;
    cpu->used_bytes -= block->bytes;
    if (RESIZE(&cpu->idle, cpu->idle_count + 1) != OK) {
        cpu_block_unmap(block);
        return;
    }
    cpu->idle[cpu->idle_count++] = *block;
    cpu->idle_bytes += block->bytes;
    *block = (struct cpu_block){0};
}

void cpu_blocks_release(struct cpu_backend *cpu) {
    while (cpu->idle_count) unmap_largest(cpu);
    free(cpu->idle);
    cpu->idle = NULL;
}
