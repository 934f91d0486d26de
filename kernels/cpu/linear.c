// Products of activations with weights, and their gradients.
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

#include "shared/base/memory.h"

struct weight {
    tensor plain; // when not kept
    element type;
    bool keep;
    int64_t n, l;
    float *packed;
};

status cpu_computes(cpu_backend *cpu, element type) {
    (void)cpu;
    if (type == ELEMENT_F32 || type == ELEMENT_BF16) return OK;
    return fail(SERVICE, "the CPU computes float32 and bfloat16 only");
}

static void read_weight(cpu_backend *cpu, const weight *w, float *values) {
    for (int64_t n = 0; n < w->n; n++) {
        float *row = values + n * w->l;
        cpu_convert(cpu, row, ELEMENT_F32, tensor_row(w->plain, n), w->plain.type, (size_t)w->l);
        for (int64_t l = 0; w->type == ELEMENT_BF16 && l < w->l; l++) row[l] = f32_from_bf16(bf16_from_f32(row[l]));
    }
}

status cpu_weight_new(backend *backend, weight **out, tensor plain, element type, bool keep) {
    *out = NULL;
    CHECK(tensor_fits(plain) && plain.type <= ELEMENT_F16 && type <= ELEMENT_BF16);
    weight *w;
    TRY(NEW(&w, 1));
    *w = (weight){.plain = plain, .type = type, .keep = keep, .n = plain.rows, .l = plain.columns};
    if (keep) {
        status result = NEW(&w->packed, (size_t)(w->n * w->l));
        if (result != OK) {
            free(w);
            return result;
        }
        read_weight(cpu_of(backend), w, w->packed);
        w->plain = (tensor){0};
    }
    *out = w;
    return OK;
}

int64_t weight_outputs(const weight *weight) {
    return weight->n;
}

void cpu_weight_free(backend *backend, weight **weight) {
    (void)backend;
    if (!*weight) return;
    free((*weight)->packed);
    free(*weight);
    *weight = NULL;
}

static status weight_values(cpu_backend *cpu, const weight *w, const float **values) {
    *values = w->packed;
    if (w->packed) return OK;
    float *room;
    TRY(cpu_scratch_get(cpu, PLACE_PACKED, (size_t)(w->n * w->l) * 4, &room));
    read_weight(cpu, w, room);
    *values = room;
    return OK;
}

static float element_at(tensor t, int64_t row, int64_t column) {
    return t.type == ELEMENT_F32 ? tensor_f32(t, row)[column] : f32_from_bf16(tensor_bf16(t, row)[column]);
}

static void element_set(tensor t, int64_t row, int64_t column, float value) {
    if (t.type == ELEMENT_F32) tensor_f32(t, row)[column] = value;
    if (t.type == ELEMENT_BF16) tensor_bf16(t, row)[column] = bf16_from_f32(value);
}

status cpu_linear(backend *backend, tensor out, tensor in, weight *w, tensor bias) {
    CHECK(tensor_is(out, -1, in.rows, w->n) && tensor_is(in, (int)w->type, in.rows, w->l));
    const float *values;
    TRY(weight_values(cpu_of(backend), w, &values));
    for (int64_t m = 0; m < out.rows; m++) {
        for (int64_t n = 0; n < w->n; n++) {
            float sum = 0;
            for (int64_t l = 0; l < w->l; l++) sum += element_at(in, m, l) * values[n * w->l + l];
            element_set(out, m, n, tensor_none(bias) ? sum : sum + element_at(bias, 0, n));
        }
    }
    return OK;
}

status cpu_linear_input_gradient(backend *backend, tensor in_gradient, tensor out_gradient, weight *w, bool add) {
    CHECK(!w->keep && tensor_is(in_gradient, -1, out_gradient.rows, w->l));
    CHECK(tensor_is(out_gradient, -1, in_gradient.rows, w->n));
    const float *values;
    TRY(weight_values(cpu_of(backend), w, &values));
    for (int64_t m = 0; m < in_gradient.rows; m++) {
        for (int64_t l = 0; l < w->l; l++) {
            float sum = 0;
            for (int64_t n = 0; n < w->n; n++) sum += element_at(out_gradient, m, n) * values[n * w->l + l];
            element_set(in_gradient, m, l, add ? element_at(in_gradient, m, l) + sum : sum);
        }
    }
    return OK;
}

status cpu_linear_weight_gradient(backend *backend, tensor weight_gradient, tensor bias_gradient, tensor out_gradient,
                                  tensor in) {
    (void)backend;
    CHECK(tensor_is(weight_gradient, ELEMENT_F32, out_gradient.columns, in.columns));
    CHECK(tensor_is(in, -1, out_gradient.rows, in.columns) && tensor_fits(out_gradient));
    for (int64_t m = 0; m < in.rows; m++) {
        for (int64_t n = 0; n < out_gradient.columns; n++) {
            float slope = element_at(out_gradient, m, n);
            if (!tensor_none(bias_gradient)) tensor_f32(bias_gradient, 0)[n] += slope;
            float *row = tensor_f32(weight_gradient, n);
            for (int64_t l = 0; l < in.columns; l++) row[l] += slope * element_at(in, m, l);
        }
    }
    return OK;
}
