// The operations from which the model is built: the contract between shared/model and a backend.
//
// The CPU backend (kernels/cpu) is the reference for every other. A backend owns its memory: no code above this
// header reads or writes what a tensor holds, except through upload and download. Operations may run asynchronously,
// in the order of their calls; what the host hands over by pointer is read before the call returns, and what an
// operation gives the host (download, square_sum) is complete when it returns.
//
// Legend of letters: T tokens (rows), C channels, H query heads, K key/value heads, D head size, I inner channels,
// V vocabulary, P patches, B rows decoded side by side, M x N outputs of a product with inner length L.
//
// One fixed order. A row's result is a function of that row's inputs alone, to the bit: it depends neither on how many
// rows stand beside it, nor on its place, nor on threads. Sums over rows (weight gradients) are taken in an order fixed
// by the shapes alone. `attention` of a token gives the same bits whether its keys were written by one call or one at a
// time, and whether its query comes alone or beside others; `logprob` and `sample` give the same bits for the same row.
//
// Elements: activations and their gradients are F32 or BF16 (rounded to nearest even once, when stored; arithmetic in
// between is float32). Parameter gradients, optimizer state, statistics and log-probabilities are F32.
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

enum element { ELEMENT_F32, ELEMENT_BF16, ELEMENT_F16, ELEMENT_I32, ELEMENT_U8 };

struct backend;
struct buffer; // memory of a backend
struct weight; // a matrix prepared for products
struct cache;  // keys and values of all layers, in the backend's own layout

// A view of rows x columns elements of a buffer; `stride` elements from a row's start to the next's.
// A zeroed tensor (buffer NULL) is "none".
struct tensor {
    struct buffer *buffer;
    size_t offset; // bytes
    enum element type;
    int64_t rows;
    int64_t columns;
    int64_t stride;
};

// Some of the query rows of one attention call, and which cache rows they see. Query row i of the segment sees the
// rows [prefix, prefix + prefixes) and then [own, own + seen + (causal ? i : 0)).
// A prompt: prefixes 0, seen 1, causal. A branch after it: prefix = the prompt's rows, own = its own, seen 1, causal.
// A decoded token at place j of its branch: queries 1, seen j + 1. A window: prefixes 0, seen = its rows, not causal.
struct segment {
    int64_t query; // first query row, among the rows of `qkv`
    int64_t queries;
    int64_t prefix;
    int64_t prefixes;
    int64_t own;
    int64_t seen;
    bool causal;
};

struct heads {
    int query; // H
    int key;   // K, a divisor of H: query head h uses key head h / (H / K)
    int size;  // D, even
};

// uint8 RGB frames to patches, in the order of Hugging Face's processor.
struct patch_shape {
    int frames;        // an image: 1, and its frame serves for every time step of a patch
    int height, width; // multiples of patch * merge
    int patch;         // 14
    int time;          // 2 frames a patch
    int merge;         // 2
    float mean[3], deviation[3];
    float rescale; // 1/255
};

struct sampling {
    float temperature; // 0: greedy, the lowest token among the largest logits
    float top_p;       // 1: off; the token that crosses the bound is kept
    int top_k;         // 0: off
};

// One range of parameters; all four are dense and have the same number of elements.
struct adamw_range {
    struct tensor parameter; // F32, updated
    struct tensor gradient;  // F32
    struct tensor first;     // F32 first moment, updated
    struct tensor second;    // F32 second moment, updated
    bool decay;
};

struct adamw_rates {
    double rate, beta1, beta2, epsilon, decay;
    double scale; // multiplies every gradient first (clipping)
    int64_t step; // 1 for the first
};

struct operations {
    const char *name; // "cpu", "cuda"

    // ---- memory ----

    // Memory of `bytes` bytes, zeroed, aligned to 64. UNAVAILABLE when there is none.
    status (*buffer_new)(struct backend *, size_t bytes, struct buffer **out);
    // NULL is fine; sets *buffer to NULL.
    void (*buffer_free)(struct backend *, struct buffer **);
    // out = the host's dense rows, converted from `type` to out.type (floats among each other; I32 and U8 as they are).
    status (*upload)(struct backend *, struct tensor out, const void *host, enum element type);
    // The host's dense rows = in, converted to `type`; waits for all that `in` depends on.
    status (*download)(struct backend *, void *host, enum element type, struct tensor in);
    // out = 0.
    status (*zero)(struct backend *, struct tensor out);
    // out = in, converted; shapes are equal.
    status (*copy)(struct backend *, struct tensor out, struct tensor in);
    // Returns when everything asked for is done, with the first failure of an asynchronous operation.
    status (*wait)(struct backend *);

    // ---- rows ----

    // out[i] = table[index[i]]; index I32 [T,1]; converts.
    status (*gather)(struct backend *, struct tensor out, struct tensor table, struct tensor index);
    // out[index[i]] = in[i]; no index comes twice; converts.
    status (*scatter)(struct backend *, struct tensor out, struct tensor in, struct tensor index);
    // out[index[i]] += in[i] in the order of i; out F32; an index may come many times.
    status (*scatter_add)(struct backend *, struct tensor out, struct tensor in, struct tensor index);
    // out += in.
    status (*add)(struct backend *, struct tensor out, struct tensor in);
    // out[P, 3*time*patch*patch] (channel, time, y, x) of U8 frames [frames, height*width*3]; rows in the order of
    // time, then blocks of merge x merge patches row by row. (pixel * rescale - mean) / deviation in float32.
    status (*patchify)(struct backend *, struct tensor out, struct tensor frames, const struct patch_shape *shape);

    // ---- products ----

    // Prepares a matrix [N,L] (float of any type) for products computed in `type` (F32 or BF16). keep: packed now, and
    // `plain` may go afterwards (rollout, scoring). Otherwise `plain` is rounded to `type` and packed afresh at each
    // use and must outlive the weight (training). The bits of products are the same either way.
    status (*weight_new)(struct backend *, struct weight **out, struct tensor plain, enum element type, bool keep);
    // NULL is fine; sets *weight to NULL.
    void (*weight_free)(struct backend *, struct weight **);
    // out[M,N] = in[M,L] W^T + bias; bias [1,N] or none. `in` has the weight's type; out the same, or F32.
    status (*linear)(struct backend *, struct tensor out, struct tensor in, struct weight *, struct tensor bias);
    // in_gradient[M,L] = out_gradient[M,N] W; += when add. out_gradient has the weight's type. Only for weights that
    // are not kept.
    status (*linear_input_gradient)(struct backend *, struct tensor in_gradient, struct tensor out_gradient,
                                    struct weight *, bool add);
    // weight_gradient F32 [N,L] += out_gradient^T in; bias_gradient F32 [1,N] += column sums of out_gradient (or none).
    // `in` and out_gradient are of one type.
    status (*linear_weight_gradient)(struct backend *, struct tensor weight_gradient, struct tensor bias_gradient,
                                     struct tensor out_gradient, struct tensor in);

    // ---- norms and gates ----

    // x += delta (which may be none); out = scale * round(x * r), r = 1/sqrt(mean(x^2) + epsilon) in float32, rounded
    // to the type of x before the weight as Hugging Face does. scale [1,C]; inverse F32 [T,1] keeps r (or none).
    status (*rmsnorm)(struct backend *, struct tensor out, struct tensor x, struct tensor delta, struct tensor scale,
                      float epsilon, struct tensor inverse);
    // x_gradient += the gradient of x through `out`; scale_gradient F32 [1,C] += that of scale (or none).
    status (*rmsnorm_gradient)(struct backend *, struct tensor x_gradient, struct tensor scale_gradient,
                               struct tensor out_gradient, struct tensor x, struct tensor scale, struct tensor inverse);
    // out[T,I] = silu(gate) * up; gate_up [T,2I] has gate in its first I columns.
    status (*swiglu)(struct backend *, struct tensor out, struct tensor gate_up);
    // gate_up_gradient [T,2I] of swiglu; it may be gate_up itself.
    status (*swiglu_gradient)(struct backend *, struct tensor gate_up_gradient, struct tensor out_gradient,
                              struct tensor gate_up);
    // out = in * Phi(in), with erf.
    status (*gelu)(struct backend *, struct tensor out, struct tensor in);
    // in_gradient = out_gradient * gelu'(in).
    status (*gelu_gradient)(struct backend *, struct tensor in_gradient, struct tensor out_gradient, struct tensor in);

    // ---- attention ----

    // Room for `rows` rows of keys and values in each of `layers` layers; rotate writes rows, attention reads them.
    status (*cache_new)(struct backend *, struct cache **out, int layers, int64_t rows, struct heads heads);
    // NULL is fine; sets *cache to NULL.
    void (*cache_free)(struct backend *, struct cache **);
    // qkv [T, (H+2K)D] holds query, key, value heads. Rotates queries and keys in place: the pairs (j, j + D/2) by the
    // angle whose cosine and sine stand in cos, sin F32 [T, D/2]; then writes keys and values to the rows slots[t]
    // (I32 [T,1]) of `layer`.
    status (*rotate)(struct backend *, struct tensor qkv, struct tensor cos, struct tensor sin, struct heads heads,
                     struct cache *, int layer, struct tensor slots);
    // The transpose of rotate on the gradients of queries and keys, in place; those of values stay.
    status (*rotate_gradient)(struct backend *, struct tensor qkv_gradient, struct tensor cos, struct tensor sin,
                              struct heads heads);
    // out[T,H*D] = softmax(q k^T * scale) v over the cache rows that each segment says; log_sums F32 [T,H] keeps the
    // log of each sum of exponentials of scaled scores (or none). The segments cover every row of out once.
    status (*attention)(struct backend *, struct tensor out, struct tensor qkv, struct heads heads, float scale,
                        struct cache *, int layer, const struct segment *segments, size_t count,
                        struct tensor log_sums);
    // qkv_gradient [T, (H+2K)D] (overwritten) of attention; a key's and value's gradient goes to the token t with
    // slots[t] = its row. Every row that is seen was written by one of the T tokens.
    status (*attention_gradient)(struct backend *, struct tensor qkv_gradient, struct tensor out_gradient,
                                 struct tensor out, struct tensor qkv, struct heads heads, float scale, struct cache *,
                                 int layer, struct tensor slots, const struct segment *segments, size_t count,
                                 struct tensor log_sums);

    // ---- the head ----

    // logprob F32 [T,1] = log softmax(in W^T)[target]; targets I32 [T,1]; log_sums F32 [T,1] keeps the log of the sum
    // (or none). Logits are F32; never more than a block of tokens x V of them.
    status (*logprob)(struct backend *, struct tensor logprob, struct tensor log_sums, struct tensor in,
                      struct weight *head, struct tensor targets);
    // For slope F32 [T,1] = d loss / d logprob: in_gradient [T,C] (overwritten), head_gradient F32 [V,C] += (or none).
    status (*logprob_gradient)(struct backend *, struct tensor in_gradient, struct tensor head_gradient,
                               struct tensor in, struct weight *head, struct tensor targets, struct tensor log_sums,
                               struct tensor slope);
    // A token for each row of `in` [B,C], by temperature, then top-k, then top-p: tokens I32 [B,1]; logprobs F32 [B,1]
    // of that token at temperature 1 over the whole vocabulary. settings[b] and chance[b] (uniform in [0,1)) are the
    // host's.
    status (*sample)(struct backend *, struct tensor tokens, struct tensor logprobs, struct tensor in,
                     struct weight *head, const struct sampling *settings, const double *chance);

    // ---- the optimizer ----

    // *sum += the sum of squares of `in` (F32), in double; waits.
    status (*square_sum)(struct backend *, double *sum, struct tensor in);
    // AdamW with decoupled decay and bias correction, epsilon outside the root, over all ranges at once.
    status (*adamw)(struct backend *, const struct adamw_range *ranges, size_t count, const struct adamw_rates *rates);
    // average = decay * average + (1 - decay) * in. F32.
    status (*average)(struct backend *, struct tensor average, struct tensor in, double decay);
};

// Every backend's struct begins with this.
struct backend {
    const struct operations *ops;
};

struct backend_options {
    const char *device; // "cpu", "cuda", "cuda:N"; NULL: the best there is
    int threads;        // 0: all
    bool guarded;       // for tests: buffers are unreadable outside operations
};

// Opens a backend. USAGE for an unknown device, UNAVAILABLE for a missing one.
status backend_open(struct backend **out, const struct backend_options *options);

// NULL is fine; sets *backend to NULL. Everything made with it must be gone.
void backend_close(struct backend **backend);

// Whether products in `type` run on this device and machine; UNAVAILABLE saying why not.
status backend_computes(struct backend *backend, enum element type);

// Bytes of one element.
size_t element_size(enum element type);

// The rows [first, first + rows) of a tensor.
struct tensor tensor_rows(struct tensor whole, int64_t first, int64_t rows);

// The columns [first, first + columns) of a tensor.
struct tensor tensor_columns(struct tensor whole, int64_t first, int64_t columns);

// The same dense memory seen as rows x columns.
struct tensor tensor_shaped(struct tensor whole, int64_t rows, int64_t columns);

#endif
