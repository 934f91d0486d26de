// The activations SwiGLU and GELU and their gradients. A thread works on one octet of a row; results may lie where the
// operands lie.
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/rows.h"

// The operands of SwiGLU are the two halves of a row: gate and up.
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

// The standard normal's cumulative distribution function Phi(x).
DEVICE float activation_normal_cdf(float x) {
    return mul_rn(0.5f, add_rn(1.0f, erf_f32(mul_rn(x, 0x1.6a09e6p-1f))));
}

template <int layout> __global__ void __launch_bounds__(row_threads, 8) gelu_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) x[e] = mul_rn(x[e], activation_normal_cdf(x[e]));
        octet_store<layout>(a.out, row, i, a.columns, x);
    }
}

// gelu'(x) = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi).
template <int layout> __global__ void __launch_bounds__(row_threads, 8) gelu_grad_kernel(struct activation_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float x[octet], grad[octet];
        octet_load<layout>(x, a.in, row, i, a.columns);
        octet_load<layout>(grad, a.grad_out, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) {
            float density = mul_rn(exp_f32(mul_rn(mul_rn(x[e], x[e]), -0.5f)), 0x1.988454p-2f);
            grad[e] = mul_rn(grad[e], fma_rn(x[e], density, activation_normal_cdf(x[e])));
        }
        octet_store<layout>(a.grad_in, row, i, a.columns, grad);
    }
}

static enum layout activation_layout(const struct activation_args *a) {
    struct device_rows operands[] = {a->out, a->in, a->up, a->grad_out, a->grad_in, a->grad_up};
    return layout_of(a->columns, operands, 6);
}

status cuda_swiglu(struct backend *backend, struct tensor out, struct tensor gate_up) {
    CHECK(tensor_is(out, -1, out.rows, out.columns) && tensor_is(gate_up, -1, out.rows, 2 * out.columns));
    if (out.rows == 0 || out.columns == 0) return OK;
    struct activation_args args = {};
    args.out = device_rows_of(out);
    args.in = device_rows_of(tensor_columns(gate_up, 0, out.columns));
    args.up = device_rows_of(tensor_columns(gate_up, out.columns, out.columns));
    args.rows = out.rows;
    args.columns = out.columns;
    LAUNCH_LAYOUT(activation_layout(&args), swiglu_kernel, grid_of(octets_of(out.columns), out.rows), row_threads, 0,
                  cuda_of(backend)->stream, args);
    return cuda_launched("swiglu");
}

status cuda_swiglu_grad(struct backend *backend, struct tensor grad_gate_up, struct tensor grad_out,
                        struct tensor gate_up) {
    int64_t rows = grad_out.rows, columns = grad_out.columns;
    CHECK(tensor_is(grad_out, -1, rows, columns) && tensor_is(gate_up, -1, rows, 2 * columns));
    CHECK(tensor_is(grad_gate_up, -1, rows, 2 * columns));
    if (rows == 0 || columns == 0) return OK;
    struct activation_args args = {};
    args.in = device_rows_of(tensor_columns(gate_up, 0, columns));
    args.up = device_rows_of(tensor_columns(gate_up, columns, columns));
    args.grad_out = device_rows_of(grad_out);
    args.grad_in = device_rows_of(tensor_columns(grad_gate_up, 0, columns));
    args.grad_up = device_rows_of(tensor_columns(grad_gate_up, columns, columns));
    args.rows = rows;
    args.columns = columns;
    LAUNCH_LAYOUT(activation_layout(&args), swiglu_grad_kernel, grid_of(octets_of(columns), rows), row_threads, 0,
                  cuda_of(backend)->stream, args);
    return cuda_launched("swiglu_grad");
}

status cuda_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(out, -1, in.rows, in.columns));
    if (in.rows == 0 || in.columns == 0) return OK;
    struct activation_args args = {};
    args.out = device_rows_of(out);
    args.in = device_rows_of(in);
    args.rows = in.rows;
    args.columns = in.columns;
    LAUNCH_LAYOUT(activation_layout(&args), gelu_kernel, grid_of(octets_of(in.columns), in.rows), row_threads, 0,
                  cuda_of(backend)->stream, args);
    return cuda_launched("gelu");
}

status cuda_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(grad_out, -1, in.rows, in.columns));
    CHECK(tensor_is(grad_in, -1, in.rows, in.columns));
    if (in.rows == 0 || in.columns == 0) return OK;
    struct activation_args args = {};
    args.in = device_rows_of(in);
    args.grad_out = device_rows_of(grad_out);
    args.grad_in = device_rows_of(grad_in);
    args.rows = in.rows;
    args.columns = in.columns;
    LAUNCH_LAYOUT(activation_layout(&args), gelu_grad_kernel, grid_of(octets_of(in.columns), in.rows), row_threads, 0,
                  cuda_of(backend)->stream, args);
    return cuda_launched("gelu_grad");
}
