// Weights: kept in packed form, or packed afresh at each use into scratch memory.
#include "kernels/cpu/weight.h"

#include <stdlib.h>

#include "shared/base/memory.h"

struct weight {
    struct tensor plain; // none when kept
    struct packed kept;  // its data NULL when not
    struct pages block;  // where they are
};

int64_t weight_outputs(const struct weight *w) {
    return w->kept.outputs;
}

int64_t weight_inner(const struct weight *w) {
    return w->kept.inner;
}

enum element weight_type(const struct weight *w) {
    return w->kept.type;
}

bool weight_kept(const struct weight *w) {
    return w->kept.data != NULL;
}

status cpu_supports(struct cpu_backend *cpu, enum element type) {
    if (type > ELEMENT_BF16) return fail(UNAVAILABLE, "the CPU computes in float32 and bfloat16 only");
    if (primitives_layout(cpu->primitives, type)->usable) return OK;
    return fail(UNAVAILABLE, "this processor has no products in %s", type == ELEMENT_BF16 ? "bfloat16" : "float32");
}

static status keep_packed(struct cpu_backend *cpu, struct weight *w) {
    size_t bytes = packed_bytes(cpu, w->kept.type, w->kept.outputs, w->kept.inner);
    TRY(pages_get(cpu, bytes, &w->block));
    w->kept.data = w->block.data;
    pack_rows(cpu, &w->kept, w->plain);
    w->plain = (struct tensor){0};
    return OK;
}

status cpu_weight_new(struct backend *backend, struct weight **out, struct tensor plain, enum element type,
                      bool prepack) {
    *out = NULL;
    CHECK(tensor_fits(plain) && plain.type <= ELEMENT_F16 && plain.rows > 0 && plain.columns > 0);
    TRY(cpu_supports(cpu_of(backend), type));
    struct weight *w;
    TRY(NEW(&w, 1));
    w->plain = plain;
    w->kept = (struct packed){.type = type, .outputs = plain.rows, .inner = plain.columns};
    status result = prepack ? keep_packed(cpu_of(backend), w) : OK;
    if (result == OK) {
        *out = w;
    } else {
        free(w);
    }
    return result;
}

void cpu_weight_free(struct backend *backend, struct weight **place) {
    if (!*place) return;
    pages_put(cpu_of(backend), &(*place)->block);
    free(*place);
    *place = NULL;
}

status weight_packed(struct cpu_backend *cpu, const struct weight *w, struct packed *out) {
    return weight_packed_part(cpu, w, 0, w->kept.outputs, out);
}

status weight_packed_part(struct cpu_backend *cpu, const struct weight *w, int64_t first, int64_t count,
                          struct packed *out) {
    *out = (struct packed){.type = w->kept.type, .outputs = count, .inner = w->kept.inner};
    if (w->kept.data) {
        out->data = packed_at(cpu, &w->kept, first);
        return OK;
    }
    TRY(cpu_scratch(cpu, SCRATCH_PACKED, packed_bytes(cpu, out->type, out->outputs, out->inner), &out->data));
    pack_rows(cpu, out, tensor_rows(w->plain, first, count));
    return OK;
}

status weight_transposed(struct cpu_backend *cpu, const struct weight *w, struct packed *out) {
    return weight_transposed_part(cpu, w, 0, w->kept.outputs, out);
}

status weight_transposed_part(struct cpu_backend *cpu, const struct weight *w, int64_t first, int64_t count,
                              struct packed *out) {
    CHECK(!w->kept.data);
    *out = (struct packed){.type = w->kept.type, .outputs = w->kept.inner, .inner = count};
    TRY(cpu_scratch(cpu, SCRATCH_TRANSPOSED, packed_bytes(cpu, out->type, out->outputs, out->inner), &out->data));
    pack_columns(cpu, out, tensor_rows(w->plain, first, count));
    return OK;
}
