// The activations SwiGLU, GeGLU, GELU and quick GELU and their gradients. A thread works on one octet of a row; results
// may lie where the operands lie.
#include "kernels/cuda/rows.h"

// The operands of SwiGLU and GeGLU are the two halves of a row: gate and up.
struct activation_args {
    struct device_rows out, in, up;
    struct device_rows grad_out, grad_in, grad_up;
    int64_t rows, columns;
};

template <int layout> __global__ void __launch_bounds__(row_threads, 8) swiglu_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet], up[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
        octet_load<layout>(up, a.up, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) x[e] = mul_rn(x[e], sigmoid_f32(x[e]));
        octet_round<layout>(x, a.in);
#pragma unroll
        for (int e = 0; e < octet; e++) x[e] = mul_rn(x[e], up[e]);
        octet_store<layout>(a.out, row, i, a.columns, x);
    }
}

// silu'(x) = sigmoid(x) (1 + x (1 - sigmoid(x))).
template <int layout> __global__ void __launch_bounds__(row_threads, 8) swiglu_grad_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet], up[octet], grad[octet], silu[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
        octet_load<layout>(up, a.up, row, i, a.columns);
        octet_load<layout>(grad, a.grad_out, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) {
            float sigmoid = sigmoid_f32(x[e]);
            silu[e] = mul_rn(x[e], sigmoid);
            float derivative = mul_rn(sigmoid, fma_rn(x[e], add_rn(1.0f, -sigmoid), 1.0f));
            x[e] = mul_rn(mul_rn(grad[e], up[e]), derivative);
        }
        octet_round<layout>(silu, a.in);
#pragma unroll
        for (int e = 0; e < octet; e++) silu[e] = mul_rn(grad[e], silu[e]);
        octet_store<layout>(a.grad_up, row, i, a.columns, silu);
        octet_store<layout>(a.grad_in, row, i, a.columns, x);
    }
}

template <int layout> __global__ void __launch_bounds__(row_threads, 8) gelu_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) x[e] = mul_rn(x[e], normal_cdf_f32(x[e]));
        octet_store<layout>(a.out, row, i, a.columns, x);
    }
}

// gelu'(x) = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi), given Phi(x).
DEVICE float activation_gelu_derivative(float x, float cdf) {
    float density = mul_rn(exp_f32(mul_rn(mul_rn(x, x), -0.5f)), 0x1.988454p-2f);
    return fma_rn(x, density, cdf);
}

template <int layout> __global__ void __launch_bounds__(row_threads, 8) gelu_grad_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet], grad[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
        octet_load<layout>(grad, a.grad_out, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++)
            grad[e] = mul_rn(grad[e], activation_gelu_derivative(x[e], normal_cdf_f32(x[e])));
        octet_store<layout>(a.grad_in, row, i, a.columns, grad);
    }
}

template <int layout> __global__ void __launch_bounds__(row_threads, 8) geglu_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet], up[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
        octet_load<layout>(up, a.up, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) x[e] = mul_rn(mul_rn(x[e], normal_cdf_f32(x[e])), up[e]);
        octet_store<layout>(a.out, row, i, a.columns, x);
    }
}

template <int layout> __global__ void __launch_bounds__(row_threads, 8) geglu_grad_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet], up[octet], grad[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
        octet_load<layout>(up, a.up, row, i, a.columns);
        octet_load<layout>(grad, a.grad_out, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) {
            float cdf = normal_cdf_f32(x[e]), gelu = mul_rn(x[e], cdf);
            x[e] = mul_rn(mul_rn(grad[e], up[e]), activation_gelu_derivative(x[e], cdf));
            up[e] = mul_rn(grad[e], gelu);
        }
        octet_store<layout>(a.grad_up, row, i, a.columns, up);
        octet_store<layout>(a.grad_in, row, i, a.columns, x);
    }
}

// sigmoid(1.702 x).
DEVICE float activation_quick_sigmoid(float x) {
    return sigmoid_f32(mul_rn(x, 1.702f));
}

template <int layout> __global__ void __launch_bounds__(row_threads, 8) quick_gelu_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) x[e] = mul_rn(x[e], activation_quick_sigmoid(x[e]));
        octet_store<layout>(a.out, row, i, a.columns, x);
    }
}

// With s = sigmoid(1.702 x): quick_gelu'(x) = s (1 + 1.702 x (1 - s)).
template <int layout>
__global__ void __launch_bounds__(row_threads, 8) quick_gelu_grad_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet], grad[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
        octet_load<layout>(grad, a.grad_out, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) {
            float s = activation_quick_sigmoid(x[e]);
            float derivative = mul_rn(s, fma_rn(mul_rn(x[e], 1.702f), add_rn(1.0f, -s), 1.0f));
            grad[e] = mul_rn(grad[e], derivative);
        }
        octet_store<layout>(a.grad_in, row, i, a.columns, grad);
    }
}

// ---- starting the kernels ----

// Of a gradient `out` is the gradient of the result, which is read, and grad_in is written; otherwise grad_in is NULL.
// `in` has `halves` times as many columns as out.
static status activation_operands(struct activation_args *args, int halves, struct tensor out, struct tensor in,
                                  const struct tensor *grad_in) {
    int64_t rows = out.rows, columns = out.columns;
    CHECK(tensor_is(out, -1, rows, columns) && tensor_is(in, -1, rows, halves * columns));
    CHECK(!grad_in || tensor_is(*grad_in, -1, rows, halves * columns));
    *args = {};
    args->rows = rows;
    args->columns = columns;
    args->in = device_rows_of(tensor_columns(in, 0, columns));
    if (halves == 2) args->up = device_rows_of(tensor_columns(in, columns, columns));
    *(grad_in ? &args->grad_out : &args->out) = device_rows_of(out);
    if (grad_in) args->grad_in = device_rows_of(tensor_columns(*grad_in, 0, columns));
    if (grad_in && halves == 2) args->grad_up = device_rows_of(tensor_columns(*grad_in, columns, columns));
    return OK;
}

static enum layout activation_layout(const struct activation_args *a) {
    struct device_rows operands[] = {a->out, a->in, a->up, a->grad_out, a->grad_in, a->grad_up};
    return layout_of(a->columns, operands, 6);
}

#define ACTIVATION_LAUNCH(kernel, args)                                                                                \
    do {                                                                                                               \
        if ((args).rows > 0 && (args).columns > 0)                                                                     \
            LAUNCH_LAYOUT(activation_layout(&(args)), kernel, grid_of(octets_of((args).columns), (args).rows),         \
                          row_threads, 0, cuda_of(backend)->stream, args);                                             \
    } while (0)

status cuda_swiglu(struct backend *backend, struct tensor out, struct tensor gate_up) {
    struct activation_args args;
    TRY(activation_operands(&args, 2, out, gate_up, NULL));
    ACTIVATION_LAUNCH(swiglu_kernel, args);
    return cuda_launched("swiglu");
}

status cuda_swiglu_grad(struct backend *backend, struct tensor grad_gate_up, struct tensor grad_out,
                        struct tensor gate_up) {
    struct activation_args args;
    TRY(activation_operands(&args, 2, grad_out, gate_up, &grad_gate_up));
    ACTIVATION_LAUNCH(swiglu_grad_kernel, args);
    return cuda_launched("swiglu_grad");
}

status cuda_geglu(struct backend *backend, struct tensor out, struct tensor in) {
    struct activation_args args;
    TRY(activation_operands(&args, 2, out, in, NULL));
    ACTIVATION_LAUNCH(geglu_kernel, args);
    return cuda_launched("geglu");
}

status cuda_geglu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    struct activation_args args;
    TRY(activation_operands(&args, 2, grad_out, in, &grad_in));
    ACTIVATION_LAUNCH(geglu_grad_kernel, args);
    return cuda_launched("geglu_grad");
}

status cuda_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    struct activation_args args;
    TRY(activation_operands(&args, 1, out, in, NULL));
    ACTIVATION_LAUNCH(gelu_kernel, args);
    return cuda_launched("gelu");
}

status cuda_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    struct activation_args args;
    TRY(activation_operands(&args, 1, grad_out, in, &grad_in));
    ACTIVATION_LAUNCH(gelu_grad_kernel, args);
    return cuda_launched("gelu_grad");
}

status cuda_quick_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    struct activation_args args;
    TRY(activation_operands(&args, 1, out, in, NULL));
    ACTIVATION_LAUNCH(quick_gelu_kernel, args);
    return cuda_launched("quick_gelu");
}

status cuda_quick_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    struct activation_args args;
    TRY(activation_operands(&args, 1, grad_out, in, &grad_in));
    ACTIVATION_LAUNCH(quick_gelu_grad_kernel, args);
    return cuda_launched("quick_gelu_grad");
}
