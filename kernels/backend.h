// What the backends share: checks of arguments, questions about tensors and attention spans, the list of operations,
// and what a plug-in exports. Each backend has a struct buffer of its own.
#pragma once

#include "kernels/ops.h"

// Returns BUG with the condition if it does not hold: the caller broke the contract of ops.h.
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) return fail(BUG, "%s: the arguments do not satisfy %s", __func__, #condition);               \
    } while (0)

// ---- tensors ----

static inline bool tensor_none(struct tensor t) {
    return !t.buffer;
}

// No gaps between the rows.
static inline bool tensor_dense(struct tensor t) {
    return t.stride == t.columns || t.rows <= 1;
}

// Whether the view lies within a buffer of `bytes` bytes.
bool tensor_within(struct tensor t, size_t bytes);

// Whether the view has this type and shape; type -1 means F32 or BF16.
bool tensor_shaped(struct tensor t, int type, int64_t rows, int64_t columns);

// *patches = how many patches the frames make, *columns = the values of each. False if they cannot be cut into patches.
bool patch_shape_counts(const struct patch_shape *shape, int64_t *patches, int64_t *columns);

// ---- which cache rows the query rows of an attention span see ----

// The first of its own cache rows that a query row sees, counted from kv_begin.
static inline int64_t attention_span_first(const struct attention_span *span, int64_t query) {
    return span->window > 0 && query > span->window ? query - span->window : 0;
}

// The end of the own cache rows that a query row sees, counted from kv_begin.
static inline int64_t attention_span_end(const struct attention_span *span, int64_t query) {
    int64_t end = span->visible + (span->causal ? query : 0);
    return span->window > 0 && end - query > span->window ? query + span->window + 1 : end;
}

// How many cache rows from kv_begin on the query rows of a span name.
static inline int64_t attention_span_kv_len(const struct attention_span *span) {
    return span->q_len > 0 ? attention_span_end(span, span->q_len - 1) : span->visible;
}

// Whether a span lies within `rows` query rows, names no negative range, and each of its query rows sees a cache row.
static inline bool attention_span_valid(const struct attention_span *span, int64_t rows) {
    if (span->q_begin < 0 || span->q_len < 0 || span->q_begin + span->q_len > rows) return false;
    if (span->prefix_begin < 0 || span->prefix_len < 0) return false;
    if (span->kv_begin < 0 || span->visible < 0 || span->prefix_len + span->visible < 1) return false;
    if (span->window == 0) return true;
    return span->window > 0 && !span->causal && span->prefix_len == 0 && span->q_len - span->visible <= span->window;
}

// ---- backends ----

// The operations that every backend has: all but buffer_export, buffer_import, those of communicators and of graphs.
#define BACKEND_OPERATIONS(X)                                                                                          \
    X(buffer_new)                                                                                                      \
    X(buffer_free)                                                                                                     \
    X(upload)                                                                                                          \
    X(download)                                                                                                        \
    X(zero)                                                                                                            \
    X(copy)                                                                                                            \
    X(wait)                                                                                                            \
    X(gather)                                                                                                          \
    X(scatter)                                                                                                         \
    X(scatter_add)                                                                                                     \
    X(add)                                                                                                             \
    X(scale)                                                                                                           \
    X(segment_mean)                                                                                                    \
    X(segment_mean_grad)                                                                                               \
    X(patchify)                                                                                                        \
    X(weight_new)                                                                                                      \
    X(weight_free)                                                                                                     \
    X(linear)                                                                                                          \
    X(linear_grad_input)                                                                                               \
    X(linear_grad_weight)                                                                                              \
    X(rmsnorm)                                                                                                         \
    X(rmsnorm_grad)                                                                                                    \
    X(layernorm)                                                                                                       \
    X(layernorm_grad)                                                                                                  \
    X(activation)                                                                                                      \
    X(activation_grad)                                                                                                 \
    X(kv_cache_new)                                                                                                    \
    X(kv_cache_free)                                                                                                   \
    X(rope)                                                                                                            \
    X(kv_cache_write)                                                                                                  \
    X(rope_grad)                                                                                                       \
    X(attention_plan_new)                                                                                              \
    X(attention_plan_free)                                                                                             \
    X(attention)                                                                                                       \
    X(attention_grad)                                                                                                  \
    X(logprob)                                                                                                         \
    X(logprob_grad)                                                                                                    \
    X(decode_batch_new)                                                                                                \
    X(decode_batch_free)                                                                                               \
    X(decode_batch_set)                                                                                                \
    X(sample)                                                                                                          \
    X(decode_batch_read)                                                                                               \
    X(square_sums)                                                                                                     \
    X(adamw)                                                                                                           \
    X(ema)                                                                                                             \
    X(split_f32)                                                                                                       \
    X(join_f32)                                                                                                        \
    X(digest)

// What a plug-in (libcaravan-cuda.so, libcaravan-emulated.so) exports: one of these under the name caravan_plugin. It
// uses the functions of the program that are listed in make/cuda.mk (PLUGIN_IMPORTS), such as fail and log_info.
// kernels/ops.c loads it.
struct plugin {
    const char *version;     // CARAVAN_VERSION
    size_t operations_bytes; // sizeof(struct operations): a program takes only a plug-in with the same operations
    // As backend_open. `number` is that of the device, -1 if none was named.
    status (*open)(struct backend **out, const struct backend_options *options, int number);
};
