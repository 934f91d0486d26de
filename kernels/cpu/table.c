// The CPU's table of operations, and the same with buffers that can be read during a call only.
#include "kernels/cpu/cpu.h"

#define ENTRY(name) .name = cpu_##name,
const struct operations cpu_operations = {.name = "cpu", CPU_OPERATIONS(ENTRY)};

// guarded_NAME: opens the buffers, calls cpu_NAME, and closes them again.
#define GUARDED(name, parameters, arguments)                                                                           \
    static status guarded_##name parameters {                                                                          \
        cpu_guard(cpu_of(backend), true);                                                                              \
        status result = cpu_##name arguments;                                                                          \
        cpu_guard(cpu_of(backend), false);                                                                             \
        return result;                                                                                                 \
    }
#define GUARDED_FREE(name, type)                                                                                       \
    static void guarded_##name(struct backend *backend, type **thing) {                                                \
        cpu_guard(cpu_of(backend), true);                                                                              \
        cpu_##name(backend, thing);                                                                                    \
        cpu_guard(cpu_of(backend), false);                                                                             \
    }

GUARDED(buffer_new, (struct backend * backend, size_t bytes, struct buffer **out), (backend, bytes, out))
GUARDED_FREE(buffer_free, struct buffer)
GUARDED(upload, (struct backend * backend, struct tensor out, const void *host, enum element type),
        (backend, out, host, type))
GUARDED(download, (struct backend * backend, void *host, enum element type, struct tensor in),
        (backend, host, type, in))
GUARDED(zero, (struct backend * backend, struct tensor out), (backend, out))
GUARDED(copy, (struct backend * backend, struct tensor out, struct tensor in), (backend, out, in))
GUARDED(wait, (struct backend * backend), (backend))
GUARDED(gather, (struct backend * backend, struct tensor out, struct tensor table, struct tensor index),
        (backend, out, table, index))
GUARDED(scatter, (struct backend * backend, struct tensor out, struct tensor in, struct tensor index),
        (backend, out, in, index))
GUARDED(scatter_add, (struct backend * backend, struct tensor out, struct tensor in, struct tensor index),
        (backend, out, in, index))
GUARDED(add, (struct backend * backend, struct tensor out, struct tensor in), (backend, out, in))
GUARDED(patchify, (struct backend * backend, struct tensor out, struct tensor frames, const struct patch_shape *shape),
        (backend, out, frames, shape))
GUARDED(weight_new, (struct backend * backend, struct weight **out, struct tensor plain, enum element type, bool keep),
        (backend, out, plain, type, keep))
GUARDED_FREE(weight_free, struct weight)
GUARDED(linear,
        (struct backend * backend, struct tensor out, struct tensor in, struct weight *weight, struct tensor bias),
        (backend, out, in, weight, bias))
GUARDED(linear_input_gradient,
        (struct backend * backend, struct tensor in_gradient, struct tensor out_gradient, struct weight *weight,
         bool add),
        (backend, in_gradient, out_gradient, weight, add))
GUARDED(linear_weight_gradient,
        (struct backend * backend, struct tensor weight_gradient, struct tensor bias_gradient,
         struct tensor out_gradient, struct tensor in),
        (backend, weight_gradient, bias_gradient, out_gradient, in))
GUARDED(rmsnorm,
        (struct backend * backend, struct tensor out, struct tensor x, struct tensor delta, struct tensor scale,
         float epsilon, struct tensor inverse),
        (backend, out, x, delta, scale, epsilon, inverse))
GUARDED(rmsnorm_gradient,
        (struct backend * backend, struct tensor x_gradient, struct tensor scale_gradient, struct tensor out_gradient,
         struct tensor x, struct tensor scale, struct tensor inverse),
        (backend, x_gradient, scale_gradient, out_gradient, x, scale, inverse))
GUARDED(swiglu, (struct backend * backend, struct tensor out, struct tensor gate_up), (backend, out, gate_up))
GUARDED(swiglu_gradient,
        (struct backend * backend, struct tensor gate_up_gradient, struct tensor out_gradient, struct tensor gate_up),
        (backend, gate_up_gradient, out_gradient, gate_up))
GUARDED(gelu, (struct backend * backend, struct tensor out, struct tensor in), (backend, out, in))
GUARDED(gelu_gradient,
        (struct backend * backend, struct tensor in_gradient, struct tensor out_gradient, struct tensor in),
        (backend, in_gradient, out_gradient, in))
GUARDED(cache_new, (struct backend * backend, struct cache **out, int layers, int64_t rows, struct heads heads),
        (backend, out, layers, rows, heads))
GUARDED_FREE(cache_free, struct cache)
GUARDED(rotate,
        (struct backend * backend, struct tensor qkv, struct tensor cos, struct tensor sin, struct heads heads,
         struct cache *cache, int layer, struct tensor slots),
        (backend, qkv, cos, sin, heads, cache, layer, slots))
GUARDED(rotate_gradient,
        (struct backend * backend, struct tensor qkv_gradient, struct tensor cos, struct tensor sin,
         struct heads heads),
        (backend, qkv_gradient, cos, sin, heads))
GUARDED(attention,
        (struct backend * backend, struct tensor out, struct tensor qkv, struct heads heads, float scale,
         struct cache *cache, int layer, const struct segment *segments, size_t count, struct tensor log_sums),
        (backend, out, qkv, heads, scale, cache, layer, segments, count, log_sums))
GUARDED(attention_gradient,
        (struct backend * backend, struct tensor qkv_gradient, struct tensor out_gradient, struct tensor out,
         struct tensor qkv, struct heads heads, float scale, struct cache *cache, int layer, struct tensor slots,
         const struct segment *segments, size_t count, struct tensor log_sums),
        (backend, qkv_gradient, out_gradient, out, qkv, heads, scale, cache, layer, slots, segments, count, log_sums))
GUARDED(logprob,
        (struct backend * backend, struct tensor logprob, struct tensor log_sums, struct tensor in, struct weight *head,
         struct tensor targets),
        (backend, logprob, log_sums, in, head, targets))
GUARDED(logprob_gradient,
        (struct backend * backend, struct tensor in_gradient, struct tensor head_gradient, struct tensor in,
         struct weight *head, struct tensor targets, struct tensor log_sums, struct tensor slope),
        (backend, in_gradient, head_gradient, in, head, targets, log_sums, slope))
GUARDED(sample,
        (struct backend * backend, struct tensor tokens, struct tensor logprobs, struct tensor in, struct weight *head,
         const struct sampling *settings, const double *chance),
        (backend, tokens, logprobs, in, head, settings, chance))
GUARDED(square_sum, (struct backend * backend, double *sum, struct tensor in), (backend, sum, in))
GUARDED(adamw,
        (struct backend * backend, const struct adamw_range *ranges, size_t count, const struct adamw_rates *rates),
        (backend, ranges, count, rates))
GUARDED(average, (struct backend * backend, struct tensor average, struct tensor in, double decay),
        (backend, average, in, decay))

#define GUARDED_ENTRY(name) .name = guarded_##name,
const struct operations cpu_guarded_operations = {.name = "cpu", CPU_OPERATIONS(GUARDED_ENTRY)};
