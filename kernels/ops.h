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

typedef enum element { ELEMENT_F32, ELEMENT_BF16, ELEMENT_F16, ELEMENT_I32, ELEMENT_U8 } element;

typedef struct backend backend;
typedef struct buffer buffer; // memory of a backend
typedef struct weight weight; // a matrix prepared for products
typedef struct cache cache;   // keys and values of all layers, in the backend's own layout

// A view of rows x columns elements of a buffer; `stride` elements from a row's start to the next's.
// A zeroed tensor (buffer NULL) is "none".
typedef struct tensor {
    buffer *buffer;
    size_t offset; // bytes
    element type;
    int64_t rows;
    int64_t columns;
    int64_t stride;
} tensor;

// Some of the query rows of one attention call, and which cache rows they see. Query row i of the segment sees the
// rows [prefix, prefix + prefixes) and then [own, own + seen + (causal ? i : 0)).
// A prompt: prefixes 0, seen 1, causal. A branch after it: prefix = the prompt's rows, own = its own, seen 1, causal.
// A decoded token at place j of its branch: queries 1, seen j + 1. A window: prefixes 0, seen = its rows, not causal.
typedef struct segment {
    int64_t query; // first query row, among the rows of `qkv`
    int64_t queries;
    int64_t prefix;
    int64_t prefixes;
    int64_t own;
    int64_t seen;
    bool causal;
} segment;

typedef struct heads {
    int query; // H
    int key;   // K, a divisor of H: query head h uses key head h / (H / K)
    int size;  // D, even
} heads;

// uint8 RGB frames to patches, in the order of Hugging Face's processor.
typedef struct patch_shape {
    int frames;        // an image: 1, and its frame serves for every time step of a patch
    int height, width; // multiples of patch * merge
    int patch;         // 14
    int time;          // 2 frames a patch
    int merge;         // 2
    float mean[3], deviation[3];
    float rescale; // 1/255
} patch_shape;

typedef struct sampling {
    float temperature; // 0: greedy, the lowest token among the largest logits
    float top_p;       // 1: off; the token that crosses the bound is kept
    int top_k;         // 0: off
} sampling;

// One range of parameters; all four are dense and have the same number of elements.
typedef struct adamw_range {
    tensor parameter; // F32, updated
    tensor gradient;  // F32
    tensor first;     // F32 first moment, updated
    tensor second;    // F32 second moment, updated
    bool decay;
} adamw_range;

typedef struct adamw_rates {
    double rate, beta1, beta2, epsilon, decay;
    double scale; // multiplies every gradient first (clipping)
    int64_t step; // 1 for the first
} adamw_rates;

typedef struct operations {
    const char *name; // "cpu", "cuda"

    // ---- memory ----

    // Memory of `bytes` bytes, zeroed, aligned to 64. SERVICE when there is none.
    status (*buffer_new)(backend *, size_t bytes, buffer **out);
    // NULL is fine; sets *buffer to NULL.
    void (*buffer_free)(backend *, buffer **);
    // out = the host's dense rows, converted from `type` to out.type (floats among each other; I32 and U8 as they are).
    status (*upload)(backend *, tensor out, const void *host, element type);
    // The host's dense rows = in, converted to `type`; waits for all that `in` depends on.
    status (*download)(backend *, void *host, element type, tensor in);
    // out = 0.
    status (*zero)(backend *, tensor out);
    // out = in, converted; shapes are equal.
    status (*copy)(backend *, tensor out, tensor in);
    // Returns when everything asked for is done, with the first failure of an asynchronous operation.
    status (*wait)(backend *);

    // ---- rows ----

    // out[i] = table[index[i]]; index I32 [T,1]; converts.
    status (*gather)(backend *, tensor out, tensor table, tensor index);
    // out[index[i]] = in[i]; no index comes twice; converts.
    status (*scatter)(backend *, tensor out, tensor in, tensor index);
    // out[index[i]] += in[i] in the order of i; out F32; an index may come many times.
    status (*scatter_add)(backend *, tensor out, tensor in, tensor index);
    // out += in.
    status (*add)(backend *, tensor out, tensor in);
    // out[P, 3*time*patch*patch] (channel, time, y, x) of U8 frames [frames, height*width*3]; rows in the order of
    // time, then blocks of merge x merge patches row by row. (pixel * rescale - mean) / deviation in float32.
    status (*patchify)(backend *, tensor out, tensor frames, const patch_shape *shape);

    // ---- products ----

    // Prepares a matrix [N,L] (float of any type) for products computed in `type` (F32 or BF16). keep: packed now, and
    // `plain` may go afterwards (rollout, scoring). Otherwise `plain` is rounded to `type` and packed afresh at each
    // use and must outlive the weight (training). The bits of products are the same either way.
    status (*weight_new)(backend *, weight **out, tensor plain, element type, bool keep);
    // NULL is fine; sets *weight to NULL.
    void (*weight_free)(backend *, weight **);
    // out[M,N] = in[M,L] W^T + bias; bias [1,N] or none. `in` has the weight's type; out the same, or F32.
    status (*linear)(backend *, tensor out, tensor in, weight *, tensor bias);
    // in_gradient[M,L] = out_gradient[M,N] W; += when add. out_gradient has the weight's type. Only for weights that
    // are not kept.
    status (*linear_input_gradient)(backend *, tensor in_gradient, tensor out_gradient, weight *, bool add);
    // weight_gradient F32 [N,L] += out_gradient^T in; bias_gradient F32 [1,N] += column sums of out_gradient (or none).
    // `in` and out_gradient are of one type.
    status (*linear_weight_gradient)(backend *, tensor weight_gradient, tensor bias_gradient, tensor out_gradient,
                                     tensor in);

    // ---- norms and gates ----

    // x += delta (which may be none); out = scale * round(x * r), r = 1/sqrt(mean(x^2) + epsilon) in float32, rounded
    // to the type of x before the weight as Hugging Face does. scale [1,C]; inverse F32 [T,1] keeps r (or none).
    status (*rmsnorm)(backend *, tensor out, tensor x, tensor delta, tensor scale, float epsilon, tensor inverse);
    // x_gradient += the gradient of x through `out`; scale_gradient F32 [1,C] += that of scale (or none).
    status (*rmsnorm_gradient)(backend *, tensor x_gradient, tensor scale_gradient, tensor out_gradient, tensor x,
                               tensor scale, tensor inverse);
    // out[T,I] = silu(gate) * up; gate_up [T,2I] has gate in its first I columns.
    status (*swiglu)(backend *, tensor out, tensor gate_up);
    // gate_up_gradient [T,2I] of swiglu; it may be gate_up itself.
    status (*swiglu_gradient)(backend *, tensor gate_up_gradient, tensor out_gradient, tensor gate_up);
    // out = in * Phi(in), with erf.
    status (*gelu)(backend *, tensor out, tensor in);
    // in_gradient = out_gradient * gelu'(in).
    status (*gelu_gradient)(backend *, tensor in_gradient, tensor out_gradient, tensor in);

    // ---- attention ----

    // Room for `rows` rows of keys and values in each of `layers` layers; rotate writes rows, attention reads them.
    status (*cache_new)(backend *, cache **out, int layers, int64_t rows, heads heads);
    // NULL is fine; sets *cache to NULL.
    void (*cache_free)(backend *, cache **);
    // qkv [T, (H+2K)D] holds query, key, value heads. Rotates queries and keys in place: the pairs (j, j + D/2) by the
    // angle whose cosine and sine stand in cos, sin F32 [T, D/2]; then writes keys and values to the rows slots[t]
    // (I32 [T,1]) of `layer`.
    status (*rotate)(backend *, tensor qkv, tensor cos, tensor sin, heads heads, cache *, int layer, tensor slots);
    // The transpose of rotate on the gradients of queries and keys, in place; those of values stay.
    status (*rotate_gradient)(backend *, tensor qkv_gradient, tensor cos, tensor sin, heads heads);
    // out[T,H*D] = softmax(q k^T * scale) v over the cache rows that each segment says; log_sums F32 [T,H] keeps the
    // log of each sum of exponentials of scaled scores (or none). The segments cover every row of out once.
    status (*attention)(backend *, tensor out, tensor qkv, heads heads, float scale, cache *, int layer,
                        const segment *segments, size_t count, tensor log_sums);
    // qkv_gradient [T, (H+2K)D] (overwritten) of attention; a key's and value's gradient goes to the token t with
    // slots[t] = its row. Every row that is seen was written by one of the T tokens.
    status (*attention_gradient)(backend *, tensor qkv_gradient, tensor out_gradient, tensor out, tensor qkv,
                                 heads heads, float scale, cache *, int layer, tensor slots, const segment *segments,
                                 size_t count, tensor log_sums);

    // ---- the head ----

    // logprob F32 [T,1] = log softmax(in W^T)[target]; targets I32 [T,1]; log_sums F32 [T,1] keeps the log of the sum
    // (or none). Logits are F32; never more than a block of tokens x V of them.
    status (*logprob)(backend *, tensor logprob, tensor log_sums, tensor in, weight *head, tensor targets);
    // For slope F32 [T,1] = d loss / d logprob: in_gradient [T,C] (overwritten), head_gradient F32 [V,C] += (or none).
    status (*logprob_gradient)(backend *, tensor in_gradient, tensor head_gradient, tensor in, weight *head,
                               tensor targets, tensor log_sums, tensor slope);
    // A token for each row of `in` [B,C], by temperature, then top-k, then top-p: tokens I32 [B,1]; logprobs F32 [B,1]
    // of that token at temperature 1 over the whole vocabulary. settings[b] and chance[b] (uniform in [0,1)) are the
    // host's.
    status (*sample)(backend *, tensor tokens, tensor logprobs, tensor in, weight *head, const sampling *settings,
                     const double *chance);

    // ---- the optimizer ----

    // *sum += the sum of squares of `in` (F32), in double; waits.
    status (*square_sum)(backend *, double *sum, tensor in);
    // AdamW with decoupled decay and bias correction, epsilon outside the root, over all ranges at once.
    status (*adamw)(backend *, const adamw_range *ranges, size_t count, const adamw_rates *rates);
    // average = decay * average + (1 - decay) * in. F32.
    status (*average)(backend *, tensor average, tensor in, double decay);
} operations;

// Every backend's struct begins with this.
struct backend {
    const operations *ops;
};

typedef struct backend_options {
    const char *device; // "cpu", "cuda", "cuda:N"; NULL: the best there is
    int threads;        // 0: all
    bool guarded;       // for tests: buffers are unreadable outside operations
} backend_options;

// Opens a backend. USAGE for an unknown device, SERVICE for a missing one.
status backend_open(backend **out, const backend_options *options);

// NULL is fine; sets *backend to NULL. Everything made with it must be gone.
void backend_close(backend **backend);

// Whether products in `type` run on this device and machine; SERVICE saying why not.
status backend_computes(backend *backend, element type);

// Bytes of one element.
size_t element_size(element type);

// The rows [first, first + rows) of a tensor.
tensor tensor_rows(tensor whole, int64_t first, int64_t rows);

// The columns [first, first + columns) of a tensor.
tensor tensor_columns(tensor whole, int64_t first, int64_t columns);

// The same dense memory seen as rows x columns.
tensor tensor_shaped(tensor whole, int64_t rows, int64_t columns);

#endif
