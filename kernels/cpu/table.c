// The CPU's table of operations, and the same with buffers that can be read during a call only.
#include "kernels/cpu/cpu.h"

#define ENTRY(name) .name = cpu_##name,
const operations cpu_operations = {.name = "cpu", CPU_OPERATIONS(ENTRY)};

// guarded_NAME: opens the buffers, calls cpu_NAME, and closes them again.
#define GUARDED(name, parameters, arguments)                                                                           \
    static status guarded_##name parameters {                                                                          \
        cpu_guard(cpu_of(backend), true);                                                                              \
        status result = cpu_##name arguments;                                                                          \
        cpu_guard(cpu_of(backend), false);                                                                             \
        return result;                                                                                                 \
    }
#define GUARDED_FREE(name, type)                                                                                       \
    static void guarded_##name(backend *backend, type **thing) {                                                       \
        cpu_guard(cpu_of(backend), true);                                                                              \
        cpu_##name(backend, thing);                                                                                    \
        cpu_guard(cpu_of(backend), false);                                                                             \
    }

GUARDED(buffer_new, (backend * backend, size_t bytes, buffer **out), (backend, bytes, out))
GUARDED_FREE(buffer_free, buffer)
GUARDED(upload, (backend * backend, tensor out, const void *host, element type), (backend, out, host, type))
GUARDED(download, (backend * backend, void *host, element type, tensor in), (backend, host, type, in))
GUARDED(zero, (backend * backend, tensor out), (backend, out))
GUARDED(copy, (backend * backend, tensor out, tensor in), (backend, out, in))
GUARDED(wait, (backend * backend), (backend))
GUARDED(gather, (backend * backend, tensor out, tensor table, tensor index), (backend, out, table, index))
GUARDED(scatter, (backend * backend, tensor out, tensor in, tensor index), (backend, out, in, index))
GUARDED(scatter_add, (backend * backend, tensor out, tensor in, tensor index), (backend, out, in, index))
GUARDED(add, (backend * backend, tensor out, tensor in), (backend, out, in))
GUARDED(patchify, (backend * backend, tensor out, tensor frames, const patch_shape *shape),
        (backend, out, frames, shape))
GUARDED(weight_new, (backend * backend, weight **out, tensor plain, element type, bool keep),
        (backend, out, plain, type, keep))
GUARDED_FREE(weight_free, weight)
GUARDED(linear, (backend * backend, tensor out, tensor in, weight *weight, tensor bias),
        (backend, out, in, weight, bias))
GUARDED(linear_input_gradient, (backend * backend, tensor in_gradient, tensor out_gradient, weight *weight, bool add),
        (backend, in_gradient, out_gradient, weight, add))
GUARDED(linear_weight_gradient,
        (backend * backend, tensor weight_gradient, tensor bias_gradient, tensor out_gradient, tensor in),
        (backend, weight_gradient, bias_gradient, out_gradient, in))
GUARDED(rmsnorm, (backend * backend, tensor out, tensor x, tensor delta, tensor scale, float epsilon, tensor inverse),
        (backend, out, x, delta, scale, epsilon, inverse))
GUARDED(rmsnorm_gradient,
        (backend * backend, tensor x_gradient, tensor scale_gradient, tensor out_gradient, tensor x, tensor scale,
         tensor inverse),
        (backend, x_gradient, scale_gradient, out_gradient, x, scale, inverse))
GUARDED(swiglu, (backend * backend, tensor out, tensor gate_up), (backend, out, gate_up))
GUARDED(swiglu_gradient, (backend * backend, tensor gate_up_gradient, tensor out_gradient, tensor gate_up),
        (backend, gate_up_gradient, out_gradient, gate_up))
GUARDED(gelu, (backend * backend, tensor out, tensor in), (backend, out, in))
GUARDED(gelu_gradient, (backend * backend, tensor in_gradient, tensor out_gradient, tensor in),
        (backend, in_gradient, out_gradient, in))
GUARDED(cache_new, (backend * backend, cache **out, int layers, int64_t rows, heads heads),
        (backend, out, layers, rows, heads))
GUARDED_FREE(cache_free, cache)
GUARDED(rotate,
        (backend * backend, tensor qkv, tensor cos, tensor sin, heads heads, cache *cache, int layer, tensor slots),
        (backend, qkv, cos, sin, heads, cache, layer, slots))
GUARDED(rotate_gradient, (backend * backend, tensor qkv_gradient, tensor cos, tensor sin, heads heads),
        (backend, qkv_gradient, cos, sin, heads))
GUARDED(attention,
        (backend * backend, tensor out, tensor qkv, heads heads, float scale, cache *cache, int layer,
         const segment *segments, size_t count, tensor log_sums),
        (backend, out, qkv, heads, scale, cache, layer, segments, count, log_sums))
GUARDED(attention_gradient,
        (backend * backend, tensor qkv_gradient, tensor out_gradient, tensor out, tensor qkv, heads heads, float scale,
         cache *cache, int layer, tensor slots, const segment *segments, size_t count, tensor log_sums),
        (backend, qkv_gradient, out_gradient, out, qkv, heads, scale, cache, layer, slots, segments, count, log_sums))
GUARDED(logprob, (backend * backend, tensor logprob, tensor log_sums, tensor in, weight *head, tensor targets),
        (backend, logprob, log_sums, in, head, targets))
GUARDED(logprob_gradient,
        (backend * backend, tensor in_gradient, tensor head_gradient, tensor in, weight *head, tensor targets,
         tensor log_sums, tensor slope),
        (backend, in_gradient, head_gradient, in, head, targets, log_sums, slope))
GUARDED(sample,
        (backend * backend, tensor tokens, tensor logprobs, tensor in, weight *head, const sampling *settings,
         const double *chance),
        (backend, tokens, logprobs, in, head, settings, chance))
GUARDED(square_sum, (backend * backend, double *sum, tensor in), (backend, sum, in))
GUARDED(adamw, (backend * backend, const adamw_range *ranges, size_t count, const adamw_rates *rates),
        (backend, ranges, count, rates))
GUARDED(average, (backend * backend, tensor average, tensor in, double decay), (backend, average, in, decay))

#define GUARDED_ENTRY(name) .name = guarded_##name,
const operations cpu_guarded_operations = {.name = "cpu", CPU_OPERATIONS(GUARDED_ENTRY)};
