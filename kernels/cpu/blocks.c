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

status pages_map(size_t bytes, struct pages *out) {
    bytes = whole_pages(bytes);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return fail(UNAVAILABLE, "out of memory: %zu bytes of tensors", bytes);
    (void)madvise(data, bytes, MADV_HUGEPAGE); // a hint; slower without
    *out = (struct pages){data, bytes};
    return OK;
}

void pages_unmap(struct pages *block) {
    if (block->data) munmap(block->data, block->bytes);
    *block = (struct pages){0};
}

static void unmap_largest(struct cpu_backend *cpu) {
    size_t largest = 0;
    for (size_t i = 1; i < cpu->idle_count; i++)
        if (cpu->idle[i].bytes > cpu->idle[largest].bytes) largest = i;
    cpu->idle_bytes -= cpu->idle[largest].bytes;
    pages_unmap(&cpu->idle[largest]);
    cpu->idle[largest] = cpu->idle[--cpu->idle_count];
}

// Takes the smallest idle block that serves; false if there is none.
static bool take_idle(struct cpu_backend *cpu, size_t bytes, struct pages *out) {
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

status pages_get(struct cpu_backend *cpu, size_t bytes, struct pages *out) {
    bytes = whole_pages(bytes);
    if (!take_idle(cpu, bytes, out)) {
        while (cpu->idle_count && cpu->used_bytes + cpu->idle_bytes + bytes > cpu->most_bytes) unmap_largest(cpu);
        TRY(pages_map(bytes, out));
    }
    cpu->used_bytes += out->bytes;
    if (cpu->used_bytes > cpu->most_bytes) cpu->most_bytes = cpu->used_bytes;
    return OK;
}

void pages_put(struct cpu_backend *cpu, struct pages *block) {
    if (!block->data) return;
    cpu->used_bytes -= block->bytes;
    if (RESIZE(&cpu->idle, cpu->idle_count + 1) != OK) {
        pages_unmap(block);
        return;
    }
    cpu->idle[cpu->idle_count++] = *block;
    cpu->idle_bytes += block->bytes;
    *block = (struct pages){0};
}

void pages_release_idle(struct cpu_backend *cpu) {
    while (cpu->idle_count) unmap_largest(cpu);
    free(cpu->idle);
    cpu->idle = NULL;
}
