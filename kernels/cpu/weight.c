// Weights: packed when they are created, or packed again into scratch memory at each use.
#include "kernels/cpu/weight.h"

#include <assert.h>
#include <stdlib.h>

#include "shared/base/memory.h"

struct weight {
    struct tensor plain;         // none when prepacked
    struct packed_matrix packed; // its data is NULL unless prepacked
    struct pages pages;          // the memory of `packed`
};

int64_t weight_outputs(const struct weight *w) {
    return w->packed.outputs;
}

int64_t weight_inner(const struct weight *w) {
    return w->packed.inner;
}

enum element weight_type(const struct weight *w) {
    return w->packed.type;
}

bool weight_prepacked(const struct weight *w) {
    return w->packed.data != NULL;
}

status cpu_supports(struct cpu_backend *cpu, enum element type) {
    if (type > ELEMENT_BF16) return fail(UNAVAILABLE, "the CPU computes in float32 and bfloat16 only");
    if (onednn_layout(cpu->onednn, type)->usable) return OK;
    return fail(UNAVAILABLE, "oneDNN cannot compute in %s on this processor",
                type == ELEMENT_BF16 ? "bfloat16" : "float32");
}

status cpu_weight_new(struct backend *backend, struct weight **out, struct tensor plain, enum element type,
                      bool prepack) {
    struct cpu_backend *cpu = cpu_of(backend);
    *out = NULL;
    CHECK(tensor_fits(plain) && plain.type <= ELEMENT_F16 && plain.rows > 0 && plain.columns > 0);
    TRY(cpu_supports(cpu, type));
    struct weight *w;
    TRY(NEW(&w, 1));
    w->packed = (struct packed_matrix){.type = type, .outputs = plain.rows, .inner = plain.columns};
    if (prepack) {
        status result = pages_get(cpu, packed_bytes(cpu, type, plain.rows, plain.columns), &w->pages);
        if (result != OK) {
            free(w);
            return result;
        }
        w->packed.data = w->pages.data;
        pack_rows(cpu, &w->packed, plain);
    } else {
        w->plain = plain;
    }
    *out = w;
    return OK;
}

void cpu_weight_free(struct backend *backend, struct weight **weight) {
    if (!*weight) return;
    pages_put(cpu_of(backend), &(*weight)->pages);
    free(*weight);
    *weight = NULL;
}

status weight_packed(struct cpu_backend *cpu, const struct weight *w, int64_t first, int64_t count,
                     struct packed_matrix *out) {
    assert(first % packed_block == 0 && first + count <= w->packed.outputs);
    *out = (struct packed_matrix){.type = w->packed.type, .outputs = count, .inner = w->packed.inner};
    if (w->packed.data) {
        out->data = packed_at(cpu, &w->packed, first);
        return OK;
    }
    TRY(cpu_scratch(cpu, SCRATCH_PACKED, packed_bytes(cpu, out->type, out->outputs, out->inner), &out->data));
    pack_rows(cpu, out, tensor_rows(w->plain, first, count));
    return OK;
}

status weight_packed_transpose(struct cpu_backend *cpu, const struct weight *w, int64_t first, int64_t count,
                               struct packed_matrix *out) {
    CHECK(!weight_prepacked(w));
    assert(first + count <= w->packed.outputs);
    *out = (struct packed_matrix){.type = w->packed.type, .outputs = w->packed.inner, .inner = count};
    TRY(cpu_scratch(cpu, SCRATCH_TRANSPOSED, packed_bytes(cpu, out->type, out->outputs, out->inner), &out->data));
    pack_columns(cpu, out, tensor_rows(w->plain, first, count));
    return OK;
}
