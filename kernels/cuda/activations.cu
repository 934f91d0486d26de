// The activations SwiGLU, GeGLU, GELU and quick GELU and their gradients. A thread works on one OCTET of a row; results
// may lie where the operands lie.
#include "kernels/cuda/rows.h"

// The operands of SwiGLU and GeGLU are the two halves of a row: gate and up.
struct activation_args {
    struct device_rows out, in, up;
    struct device_rows grad_out, grad_in, grad_up;
    int64_t rows, columns;
};

template <enum activation kind>
constexpr bool activation_has_gate = kind == ACTIVATION_SWIGLU || kind == ACTIVATION_GEGLU;

// An activation is x times this factor: sigmoid(x) of SwiGLU, sigmoid(1.702 x) of quick GELU, Phi(x) of the others.
template <enum activation kind> DEVICE float activation_factor(float x) {
    if (kind == ACTIVATION_SWIGLU) return sigmoid_f32(x);
    if (kind == ACTIVATION_QUICK_GELU) return sigmoid_f32(mul_rn(x, 1.702f));
    return normal_cdf_f32(x);
}

// The derivative, given the factor s or Phi(x): s (1 + x (1 - s)) of SwiGLU, s (1 + 1.702 x (1 - s)) of quick GELU, and
// Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi) of the others.
template <enum activation kind> DEVICE float activation_derivative(float x, float factor) {
    if (kind == ACTIVATION_SWIGLU) return mul_rn(factor, fma_rn(x, add_rn(1.0f, -factor), 1.0f));
    if (kind == ACTIVATION_QUICK_GELU) return mul_rn(factor, fma_rn(mul_rn(x, 1.702f), add_rn(1.0f, -factor), 1.0f));
    float density = mul_rn(exp_f32(mul_rn(mul_rn(x, x), -0.5f)), 0x1.988454p-2f);
    return fma_rn(x, density, factor);
}

template <enum activation kind, int layout>
__global__ void __launch_bounds__(ROW_THREADS, 8) activation_kernel(struct activation_args a) {
    int64_t i = grid_unit() * OCTET;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[OCTET], up[OCTET];
        octet_load<layout>(x, a.in, row, i, a.columns);
        if (activation_has_gate<kind>) octet_load<layout>(up, a.up, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) x[e] = mul_rn(x[e], activation_factor<kind>(x[e]));
        if (kind == ACTIVATION_SWIGLU) octet_round<layout>(x, a.in);
#pragma unroll
        for (int e = 0; e < OCTET; e++)
            if (activation_has_gate<kind>) x[e] = mul_rn(x[e], up[e]);
        octet_store<layout>(a.out, row, i, a.columns, x);
    }
}

template <enum activation kind, int layout>
__global__ void __launch_bounds__(ROW_THREADS, 8) activation_grad_kernel(struct activation_args a) {
    int64_t i = grid_unit() * OCTET;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[OCTET], up[OCTET], grad[OCTET], value[OCTET];
        octet_load<layout>(x, a.in, row, i, a.columns);
        if (activation_has_gate<kind>) octet_load<layout>(up, a.up, row, i, a.columns);
        octet_load<layout>(grad, a.grad_out, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) {
            float factor = activation_factor<kind>(x[e]), derivative = activation_derivative<kind>(x[e], factor);
            value[e] = mul_rn(x[e], factor);
            x[e] = mul_rn(activation_has_gate<kind> ? mul_rn(grad[e], up[e]) : grad[e], derivative);
        }
        if (activation_has_gate<kind>) {
            if (kind == ACTIVATION_SWIGLU) octet_round<layout>(value, a.in);
#pragma unroll
            for (int e = 0; e < OCTET; e++) value[e] = mul_rn(grad[e], value[e]);
            octet_store<layout>(a.grad_up, row, i, a.columns, value);
        }
        octet_store<layout>(a.grad_in, row, i, a.columns, x);
    }
}

// ---- starting the kernels ----

template <enum activation kind, int layout>
static void activation_launch(struct cuda_backend *cuda, const struct activation_args *args) {
    dim3 grid = grid_of(octets_of(args->columns), args->rows);
    if (args->grad_in.data)
        LAUNCH((activation_grad_kernel<kind, layout>), grid, ROW_THREADS, 0, cuda->stream, *args);
    else
        LAUNCH((activation_kernel<kind, layout>), grid, ROW_THREADS, 0, cuda->stream, *args);
}

template <int layout>
static void activation_launch_kind(struct cuda_backend *cuda, enum activation kind,
                                   const struct activation_args *args) {
    if (kind == ACTIVATION_SWIGLU) activation_launch<ACTIVATION_SWIGLU, layout>(cuda, args);
    if (kind == ACTIVATION_GEGLU) activation_launch<ACTIVATION_GEGLU, layout>(cuda, args);
    if (kind == ACTIVATION_GELU) activation_launch<ACTIVATION_GELU, layout>(cuda, args);
    if (kind == ACTIVATION_QUICK_GELU) activation_launch<ACTIVATION_QUICK_GELU, layout>(cuda, args);
}

// Of a gradient `out` is the gradient of the result, which is read, and grad_in is written; otherwise grad_in is NULL.
static status activation_run(struct backend *backend, enum activation kind, struct tensor out, struct tensor in,
                             const struct tensor *grad_in) {
    struct cuda_backend *cuda = cuda_of(backend);
    const bool gated = activation_gated(kind);
    int64_t rows = out.rows, columns = out.columns, in_columns = gated ? 2 * columns : columns;
    CHECK(tensor_is(out, -1, rows, columns) && tensor_is(in, -1, rows, in_columns));
    CHECK(!grad_in || tensor_is(*grad_in, -1, rows, in_columns));
    if (rows == 0 || columns == 0) return OK;
    struct activation_args args = {};
    args.rows = rows;
    args.columns = columns;
    args.in = device_rows_of(tensor_columns(in, 0, columns));
    if (gated) args.up = device_rows_of(tensor_columns(in, columns, columns));
    *(grad_in ? &args.grad_out : &args.out) = device_rows_of(out);
    if (grad_in) args.grad_in = device_rows_of(tensor_columns(*grad_in, 0, columns));
    if (grad_in && gated) args.grad_up = device_rows_of(tensor_columns(*grad_in, columns, columns));
    struct device_rows operands[] = {args.out, args.in, args.up, args.grad_out, args.grad_in, args.grad_up};
    enum layout layout = layout_of(columns, operands, 6);
    if (layout == LAYOUT_F32)
        activation_launch_kind<LAYOUT_F32>(cuda, kind, &args);
    else if (layout == LAYOUT_BF16)
        activation_launch_kind<LAYOUT_BF16>(cuda, kind, &args);
    else if (kind == ACTIVATION_SWIGLU && halves_of(operands, 6)) // the vision tower's 3,420 columns
        activation_launch<ACTIVATION_SWIGLU, LAYOUT_HALVES>(cuda, &args);
    else
        activation_launch_kind<LAYOUT_ANY>(cuda, kind, &args);
    return cuda_launched(grad_in ? "activation_grad" : "activation");
}

status cuda_activation(struct backend *backend, enum activation kind, struct tensor out, struct tensor in) {
    return activation_run(backend, kind, out, in, NULL);
}

status cuda_activation_grad(struct backend *backend, enum activation kind, struct tensor grad_in,
                            struct tensor grad_out, struct tensor in) {
    return activation_run(backend, kind, grad_out, in, &grad_in);
}
