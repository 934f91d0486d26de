#include "tests/support/guarded.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"

static const struct operations *unguarded; // the CPU's own

// Makes every buffer accessible (open) or inaccessible. UNAVAILABLE when the system refuses.
static status guarded_set(struct cpu_backend *cpu, bool open) {
    for (const struct buffer *buffer = cpu->buffers; buffer; buffer = buffer->next) {
        if (mprotect(buffer->data, buffer->pages.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            return fail(UNAVAILABLE, "cannot protect the memory of a tensor: %s", strerror(errno));
    }
    return OK;
}

// guarded_NAME: opens the buffers, calls cpu_NAME, and closes them again. Memory is freed without reading it,
// so the buffers stay closed.
#define GUARDED(name, parameters, arguments)                                                                           \
    static status guarded_##name parameters {                                                                          \
        TRY(guarded_set(cpu_of(backend), true));                                                                       \
        status result = unguarded->name arguments;                                                                     \
        status closed = guarded_set(cpu_of(backend), false);                                                           \
        return result != OK ? result : closed;                                                                         \
    }
#define GUARDED_FREE(name, type)                                                                                       \
    static void guarded_##name(struct backend *backend, type **thing) {                                                \
        unguarded->name(backend, thing);                                                                               \
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
GUARDED(scale, (struct backend * backend, struct tensor out, struct tensor in, float factor),
        (backend, out, in, factor))
GUARDED(segment_mean, (struct backend * backend, struct tensor out, struct tensor in, struct tensor begins),
        (backend, out, in, begins))
GUARDED(segment_mean_grad,
        (struct backend * backend, struct tensor grad_in, struct tensor grad_out, struct tensor begins),
        (backend, grad_in, grad_out, begins))
GUARDED(patchify, (struct backend * backend, struct tensor out, struct tensor frames, const struct patch_shape *shape),
        (backend, out, frames, shape))
GUARDED(weight_new, (struct backend * backend, struct weight **out, struct tensor plain, bool prepack),
        (backend, out, plain, prepack))
GUARDED_FREE(weight_free, struct weight)
GUARDED(linear,
        (struct backend * backend, struct tensor out, struct tensor in, struct weight *weight, struct tensor bias,
         bool add),
        (backend, out, in, weight, bias, add))
GUARDED(linear_grad_input,
        (struct backend * backend, struct tensor grad_in, struct tensor grad_out, struct weight *weight, bool add),
        (backend, grad_in, grad_out, weight, add))
GUARDED(linear_grad_weight,
        (struct backend * backend, struct tensor grad_weight, struct tensor grad_bias, struct tensor grad_out,
         struct tensor in),
        (backend, grad_weight, grad_bias, grad_out, in))
GUARDED(rmsnorm,
        (struct backend * backend, struct tensor out, struct tensor x, struct tensor delta, struct tensor scale,
         float epsilon, struct tensor rstd),
        (backend, out, x, delta, scale, epsilon, rstd))
GUARDED(rmsnorm_grad,
        (struct backend * backend, struct tensor grad_x, struct tensor grad_scale, struct tensor grad_out,
         struct tensor x, struct tensor scale, struct tensor rstd),
        (backend, grad_x, grad_scale, grad_out, x, scale, rstd))
GUARDED(layernorm,
        (struct backend * backend, struct tensor out, struct tensor x, struct tensor delta, struct tensor scale,
         struct tensor bias, float epsilon, struct tensor statistics),
        (backend, out, x, delta, scale, bias, epsilon, statistics))
GUARDED(layernorm_grad,
        (struct backend * backend, struct tensor grad_x, struct tensor grad_scale, struct tensor grad_bias,
         struct tensor grad_out, struct tensor x, struct tensor scale, struct tensor statistics),
        (backend, grad_x, grad_scale, grad_bias, grad_out, x, scale, statistics))
GUARDED(activation, (struct backend * backend, enum activation kind, struct tensor out, struct tensor in),
        (backend, kind, out, in))
GUARDED(activation_grad,
        (struct backend * backend, enum activation kind, struct tensor grad_in, struct tensor grad_out,
         struct tensor in),
        (backend, kind, grad_in, grad_out, in))
GUARDED(kv_cache_new,
        (struct backend * backend, struct kv_cache **out, enum element type, int layers, int64_t rows,
         struct heads heads),
        (backend, out, type, layers, rows, heads))
GUARDED_FREE(kv_cache_free, struct kv_cache)
GUARDED(rope,
        (struct backend * backend, struct tensor qkv, const struct rope_table *table, struct tensor position_ids,
         struct heads heads, struct kv_cache *cache, int layer, struct tensor cache_slots),
        (backend, qkv, table, position_ids, heads, cache, layer, cache_slots))
GUARDED(rope_grad,
        (struct backend * backend, struct tensor grad_qkv, const struct rope_table *table, struct tensor position_ids,
         struct heads heads),
        (backend, grad_qkv, table, position_ids, heads))
GUARDED(kv_cache_write,
        (struct backend * backend, struct tensor qkv, struct heads heads, struct kv_cache *cache, int layer,
         struct tensor slots),
        (backend, qkv, heads, cache, layer, slots))
GUARDED(attention_plan_new,
        (struct backend * backend, struct attention_plan **out, struct heads heads, const struct attention_span *spans,
         size_t count, struct tensor cache_slots),
        (backend, out, heads, spans, count, cache_slots))
GUARDED_FREE(attention_plan_free, struct attention_plan)
GUARDED(attention,
        (struct backend * backend, struct tensor out, struct tensor qkv, float scale, struct kv_cache *cache, int layer,
         const struct attention_plan *plan, struct tensor lse),
        (backend, out, qkv, scale, cache, layer, plan, lse))
GUARDED(attention_grad,
        (struct backend * backend, struct tensor grad_qkv, struct tensor grad_out, struct tensor out, struct tensor qkv,
         float scale, struct kv_cache *cache, int layer, const struct attention_plan *plan, struct tensor lse),
        (backend, grad_qkv, grad_out, out, qkv, scale, cache, layer, plan, lse))
GUARDED(logprob,
        (struct backend * backend, struct tensor logprob, struct tensor lse, struct tensor in, struct weight *lm_head,
         struct tensor targets),
        (backend, logprob, lse, in, lm_head, targets))
GUARDED(logprob_grad,
        (struct backend * backend, struct tensor grad_in, struct tensor grad_lm_head, struct tensor in,
         struct weight *lm_head, struct tensor targets, struct tensor lse, struct tensor dlogprob),
        (backend, grad_in, grad_lm_head, in, lm_head, targets, lse, dlogprob))
GUARDED(decode_batch_new,
        (struct backend * backend, struct decode_batch **out, int capacity, struct heads heads, const int32_t *eos_ids,
         size_t eos_count),
        (backend, out, capacity, heads, eos_ids, eos_count))
GUARDED_FREE(decode_batch_free, struct decode_batch)
GUARDED(decode_batch_set,
        (struct backend * backend, struct decode_batch *batch, int slot, const struct decode_row *row),
        (backend, batch, slot, row))
GUARDED(sample, (struct backend * backend, struct decode_batch *batch, struct tensor in, struct weight *lm_head),
        (backend, batch, in, lm_head))
GUARDED(decode_batch_read,
        (struct backend * backend, struct decode_batch *batch, int64_t step, int32_t *tokens, float *logprobs),
        (backend, batch, step, tokens, logprobs))
GUARDED(square_sums, (struct backend * backend, double *sums, const struct square_range *ranges, size_t count),
        (backend, sums, ranges, count))
GUARDED(adamw,
        (struct backend * backend, const struct adamw_range *ranges, size_t count, const struct adamw_options *options),
        (backend, ranges, count, options))
GUARDED(ema,
        (struct backend * backend, struct tensor average, struct tensor average_remainder, struct tensor in,
         struct tensor in_remainder, double decay),
        (backend, average, average_remainder, in, in_remainder, decay))
GUARDED(split_f32, (struct backend * backend, struct tensor out, struct tensor remainder, struct tensor in),
        (backend, out, remainder, in))
GUARDED(join_f32, (struct backend * backend, struct tensor out, struct tensor in, struct tensor remainder),
        (backend, out, in, remainder))
GUARDED(digest, (struct backend * backend, struct tensor in, uint64_t first, uint64_t *sum), (backend, in, first, sum))

status guarded_open(struct backend **out, const struct backend_options *options) {
    static struct operations guarded;
    TRY(backend_open(out, options));
    unguarded = (*out)->ops;
    guarded = *unguarded;
#define GUARDED_ENTRY(name) guarded.name = guarded_##name;
    BACKEND_OPERATIONS(GUARDED_ENTRY)
    (*out)->ops = &guarded;
    cpu_of(*out)->heap_bytes = 0;
    return OK;
}
