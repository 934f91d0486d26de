// The operations that the model is built from: the contract between shared/model and a backend.
//
// The CPU backend (kernels/cpu) is the reference for every other backend. A backend owns its memory: code above this
// header reads and writes the contents of a tensor only through upload and download. Operations may run
// asynchronously, in the order of the calls. Host memory that is passed by pointer is read before the call returns.
// What an operation returns to the host (download, square_sums, digest, decode_batch_read) is complete when the call
// returns. What is freed may still be in use by operations that were called before.
//
// Dimension letters: T tokens (rows), C channels, H query heads, K key/value heads, D head size, I inner channels,
// V vocabulary, P patches, B sequences in a decode batch; a product has M x N outputs and inner length L.
//
// One fixed order. The result of a row depends on that row's inputs alone, to the bit: not on how many rows are in the
// same call, not on the row's position, not on the number of threads. Sums over rows (weight gradients) are taken in an
// order that only the shapes determine. `attention` of a token gives the same bits whether its keys were written by one
// call or one at a time, and whether its query is alone or in a batch. `logprob` and `sample` give the same bits for
// the same row.
//
// Types. Activations and their gradients are F32 or BF16. BF16 values are rounded to nearest even once, when they are
// stored; all arithmetic in between is float32. Gradients of matrices are F32 or BF16. Other gradients of parameters,
// statistics and log-probabilities are F32.
//
// Pairs. A float32 number may be kept as a pair: a BF16 number, which is the float32 rounded to nearest even, and a
// U16 remainder, which is its low sixteen bits. The float32's bits are (bf16 - (remainder > 0x8000)) << 16 | remainder.
// A remainder of 0x8000 that was rounded up cannot be told from one that was rounded down: the pair then holds the next
// larger magnitude, with the remainder 0x8001. Every other number but NaN is held exactly; NaN stays NaN.
//
// Random bits. mix is the function ops_mix64 below; it is used by adamw and digest.
//
// Alignment. Rows of what the model passes begin at multiples of 16 bytes, or of 8 where a size of the model is no
// multiple of 8 (the 3,420 of the vision tower); other views are right, but may be slower.
//
// Every operation returns BUG when a shape or a type breaks the contract, and UNAVAILABLE when memory is short. A
// broken promise about the contents of a tensor (an index, a cache slot or a target out of range) is BUG here or at the
// next wait or download, which reports it once; nothing outside the named tensors is written.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

enum element { ELEMENT_F32, ELEMENT_BF16, ELEMENT_F16, ELEMENT_I32, ELEMENT_U8, ELEMENT_U16 };

// Each backend defines these types for itself, under the same names, with what it needs of them. One is linked into a
// program and others are plug-ins, which export one symbol: so the definitions never meet.
struct backend;
struct buffer;         // memory of a backend
struct weight;         // a matrix prepared for products
struct kv_cache;       // keys and values of all layers, in the backend's own layout
struct graph;          // a recorded sequence of operations
struct attention_plan; // what the query rows of one pass attend to, prepared for attention
struct comm;           // a communicator: the devices of several processes, this one's among them

// A view of rows x columns elements of a buffer. Two consecutive rows start `stride` elements apart.
// A zeroed tensor (buffer NULL) means "none".
struct tensor {
    struct buffer *buffer;
    size_t offset; // bytes
    enum element type;
    int64_t rows;
    int64_t columns;
    int64_t stride;
};

// A range of query rows of one pass, and the cache rows that they attend to. Query row i of the span attends
// to the cache rows [prefix_begin, prefix_begin + prefix_len) and [kv_begin, kv_begin + visible + (causal ? i : 0)).
//   a prompt                            prefix_len 0, visible 1, causal
//   a branch after a prompt             prefix = the prompt's rows, kv_begin = the branch's rows, visible 1, causal
//   a decoded token, j-th of its branch q_len 1, visible j + 1
//   a window of the vision tower        prefix_len 0, visible = its rows, not causal
//   a text of an encoder's local layer  the same, and only the cache rows kv_begin + j with |i - j| <= window
// A span with a window is not causal and has no prefix, and each of its query rows sees a cache row. The bits of a
// query row depend on the cache rows that it sees and on its index in the span; a window that hides nothing changes
// none.
struct attention_span {
    int64_t q_begin; // among the rows of `qkv`
    int64_t q_len;
    int64_t prefix_begin;
    int64_t prefix_len;
    int64_t kv_begin;
    int64_t visible;
    bool causal;
    int64_t window; // 0: none
};

struct heads {
    int query; // H
    int key;   // K, a divisor of H: query head h uses key head h / (H / K)
    int size;  // D, even
};

// The angles of the rotary position embedding, by position. cos, sin F32 [positions, D/2]. A row has three positions,
// one for each axis. Pair j is rotated by the angle at (position, j); the first sections[0] pairs take the position of
// axis 0, the next sections[1] that of axis 1, all others that of axis 2.
struct rope_table {
    struct tensor cos, sin;
    int sections[3];
};

// uint8 RGB frames to patches, in the order of Hugging Face's processor.
struct patch_shape {
    int frames;              // 1 for an image: its frame is repeated temporal_patch_size times
    int height, width;       // multiples of patch_size * merge_size
    int patch_size;          // 14
    int temporal_patch_size; // 2 frames a patch
    int merge_size;          // 2
    float image_mean[3], image_std[3];
    float rescale_factor; // 1/255
};

struct sampling {
    float temperature; // 0: greedy, the smallest token id among the largest logits
    float top_p;       // 1: off; the token that crosses the bound is kept
    int top_k;         // 0: off
};

enum { MAX_DECODE_ROWS = 256 }; // rows that every backend decodes side by side

// A completion that is decoded, as it is before the next step.
struct decode_row {
    int32_t token;                    // its last token, the input of the step; not read if len is 0
    int32_t position;                 // of that token, on all three axes
    int32_t prefix_begin, prefix_len; // the cache rows of its prompt
    int32_t kv_begin;                 // the cache row of its first token; the token at index i has kv_begin + i
    int32_t len, max_len;             // tokens that it has, `token` included, and may have
    struct sampling sampling;
    uint64_t key, completion; // the token at index i is drawn with the number rng_uniform(key, completion, i)
};

// Completions that are decoded side by side, each in a slot of its own. The fields describe the rows that the next step
// computes: one for each slot at work, in the order of the slots. They may change with every decode_batch_set and
// sample, and belong to the batch. A row of len 0 has no input: it takes part in `sample` only, with what predicts its
// first token.
//
// On a backend that records graphs there is a row for each slot, and the fields stay the same as long as the batch
// lives; only what the tensors hold changes. The row of an idle slot has some valid token and position, the cache slot
// -1, and results that nobody reads.
struct decode_batch {
    int rows;
    struct tensor tokens;       // I32 [rows,1]
    struct tensor position_ids; // I32 [rows,3]
    struct tensor cache_slots;  // I32 [rows,1]
    struct attention_plan *plan;
};

// What square_sums adds up: F32 or BF16, in units of `unit` elements, a multiple of 64; the last has what is left.
struct square_range {
    struct tensor in;
    int64_t unit;
};

// One range of parameters. All tensors are dense and have the same number of elements. The arithmetic is float32; each
// result is rounded once, when it is stored.
//
// A BF16 second moment that were rounded to nearest could never fall: with beta2 0.999 a step changes it by less than
// half a unit of its last place. So it is rounded stochastically. Element e = offset + i has sixteen random bits, the
// bits 16 (e % 4) to 16 (e % 4) + 15 of mix(mix(mix(key) ^ step) ^ e / 4). They are added to the bits of the float32,
// of which the upper sixteen are stored.
struct adamw_range {
    struct tensor param;      // F32, or the BF16 of a pair; updated
    struct tensor remainder;  // the U16 of the pair, updated; none for an F32 param
    struct tensor grad;       // F32 or BF16
    struct tensor exp_avg;    // first moment, F32 or BF16; updated
    struct tensor exp_avg_sq; // second moment, F32, or BF16 rounded stochastically; updated
    int64_t offset;           // of the first element among all parameters, a multiple of 4
    bool decay;               // whether weight_decay applies
};

struct adamw_options {
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale; // every gradient is multiplied by it first (clipping)
    int64_t step;      // 1 for the first step
    uint64_t key;      // of the random bits
};

// Returns the next output of SplitMix64 after the state x: every bit of the result depends on every bit of x.
static inline uint64_t ops_mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// What the model asks a backend about itself.
struct backend_info {
    const char *device; // as backend_options names it, with its number: "cpu", "cuda:0"; lives as long as the backend
    const char *kind;   // what computes: "cpu", or the name of the GPU; lives as long as the backend
    // The library that computes products of many rows, with its version; NULL: there is none, and the backend's own
    // kernel computes them, or it needs none. Lives as long as the backend.
    const char *product_library;
    bool packs;        // a prepacked weight is a copy of its own
    bool asynchronous; // operations may still run when their calls have returned
    // linear_grad_weight rounds a product of BF16 before it adds it to BF16, and products of many rows are not divided
    // into chunks.
    bool rounds_products;
    // Working memory is bounded by computing long passes in chunks. A chunk with more rows than these does not make a
    // product faster.
    int64_t chunk_rows[2];        // of a transformer block's MLP in training, in F32 and in BF16
    int64_t chunk_patches;        // of a clip in the vision tower
    uint64_t memory, memory_free; // bytes of the device; 0: memory is the system's, and the device does not limit it
};

// A buffer's name in another process.
enum { IPC_HANDLE_BYTES = 128 };

// A communicator's name.
enum { COMM_ID_BYTES = 128 };

// What one process sends to another one's device, or receives from there.
struct comm_piece {
    int rank;
    struct tensor tensor; // dense; none: nothing
};

// A gated activation has a in the first columns of its input, and b in as many behind them.
enum activation {
    ACTIVATION_SWIGLU,     // silu(a) * b
    ACTIVATION_GEGLU,      // gelu(a) * b
    ACTIVATION_GELU,       // in * Phi(in), with erf
    ACTIVATION_QUICK_GELU, // in * sigmoid(1.702 in)
};

// Whether it is gated.
static inline bool activation_gated(enum activation kind) {
    return kind == ACTIVATION_SWIGLU || kind == ACTIVATION_GEGLU;
}

struct operations {
    const char *name; // "cpu", "cuda", "emulated"

    // ---- the backend ----

    // What backend_close calls.
    void (*close)(struct backend *);
    // OK if the backend can compute products in `type`; otherwise UNAVAILABLE with the reason.
    status (*supports)(struct backend *, enum element type);
    // *out = the facts about a backend; memory_free is that of now. UNAVAILABLE when the device does not answer.
    status (*info)(struct backend *, struct backend_info *out);

    // ---- memory ----

    // *out = `bytes` bytes of zeroed memory, aligned to 64. The caller frees it with buffer_free.
    status (*buffer_new)(struct backend *, size_t bytes, struct buffer **out);
    // NULL is fine; sets *buffer to NULL.
    void (*buffer_free)(struct backend *, struct buffer **buffer);
    // out = the host's dense rows, converted from `type` to out.type. Float types convert into each other; I32, U8 and
    // U16 are copied unchanged.
    status (*upload)(struct backend *, struct tensor out, const void *host, enum element type);
    // The host's dense rows = in, converted to `type`. Waits for everything that `in` depends on.
    status (*download)(struct backend *, void *host, enum element type, struct tensor in);
    // out = 0.
    status (*zero)(struct backend *, struct tensor out);
    // out = in, converted; the shapes are equal.
    status (*copy)(struct backend *, struct tensor out, struct tensor in);
    // Waits until every operation called so far is done; returns the first failure of an asynchronous operation.
    status (*wait)(struct backend *);
    // handle = a name under which another process on this machine, with the same device, can import the buffer. Nothing
    // is copied. From then on buffer_free leaves the memory to the end of the process, since others may have imported
    // it. This and buffer_import are NULL on a backend that cannot share. UNAVAILABLE when this device cannot.
    status (*buffer_export)(struct backend *, struct buffer *, unsigned char handle[IPC_HANDLE_BYTES]);
    // *out = the memory of a buffer of `bytes` bytes that another process exported: what one process writes, the other
    // reads. The caller frees it with buffer_free, which leaves the exporter's memory as it is. UNAVAILABLE when the
    // exporter or its buffer is gone.
    status (*buffer_import)(struct backend *, const unsigned char handle[IPC_HANDLE_BYTES], size_t bytes,
                            struct buffer **out);

    // ---- the devices of other processes; the six operations are NULL on a backend whose memory is the host's ----

    // *name = the library that moves tensors from device to device, with its version; NULL: there is none. It lives as
    // long as the backend. UNAVAILABLE when the library that the user names cannot be used.
    status (*comm_library)(struct backend *, const char **name);
    // id = a new name for a communicator. There is a library.
    status (*comm_id)(struct backend *, unsigned char id[COMM_ID_BYTES]);
    // *out = the communicator of this name, in which this process is number `own` of `count`. Does not wait for the
    // others: comm_test does. There is a library. The caller frees it with comm_free.
    status (*comm_new)(struct backend *, struct comm **out, const unsigned char id[COMM_ID_BYTES], int own, int count);
    // Gives up what is under way; then memory may be freed again that it uses. NULL is fine; sets *comm to NULL.
    void (*comm_free)(struct backend *, struct comm **comm);
    // Begins to send and to receive, once the operations called so far are done, beside those that are called later.
    // What one process sends another one is received in the order in which it was given, in pieces of the same sizes.
    // Empty pieces and pieces to the process itself are left out. It has ended when comm_test says so: until then what
    // is sent may not be changed, and what is received is undefined. There is one exchange at a time.
    status (*comm_exchange)(struct backend *, struct comm *, const struct comm_piece *sends, size_t send_count,
                            const struct comm_piece *receives, size_t receive_count);
    // *done = all have joined the communicator, and the exchange has ended. *idle = this device has computed what was
    // called before the first test of the exchange, and so may be waiting. Does not wait. UNAVAILABLE when another
    // process or the connection has failed.
    status (*comm_test)(struct backend *, struct comm *, bool *done, bool *idle);

    // ---- rows ----

    // out[i] = table[index[i]], converted; index I32 [T,1].
    status (*gather)(struct backend *, struct tensor out, struct tensor table, struct tensor index);
    // out[index[i]] = in[i], converted; the indices are distinct.
    status (*scatter)(struct backend *, struct tensor out, struct tensor in, struct tensor index);
    // out[index[i]] += in[i], in the order of i; an index may be repeated. out is F32 or BF16; the rows of one index
    // are added in float32 and rounded once.
    status (*scatter_add)(struct backend *, struct tensor out, struct tensor in, struct tensor index);
    // out += in.
    status (*add)(struct backend *, struct tensor out, struct tensor in);
    // out = factor * in, in float32, rounded once. out may be `in`.
    status (*scale)(struct backend *, struct tensor out, struct tensor in, float factor);
    // out[s] = the mean of the rows [begins[s], begins[s + 1]) of in [T,C]; out [S,C], begins I32 [S+1,1], which
    // increases strictly from 0 to T. The sum is float32, in an order that the number of its rows determines.
    status (*segment_mean)(struct backend *, struct tensor out, struct tensor in, struct tensor begins);
    // grad_in[t] = grad_out[s] / (begins[s + 1] - begins[s]), where s is the segment of row t.
    status (*segment_mean_grad)(struct backend *, struct tensor grad_in, struct tensor grad_out, struct tensor begins);
    // out[P, 3 * temporal_patch_size * patch_size^2] (channel, time, y, x) of U8 frames [frames, height * width * 3].
    // Rows are ordered by time, then by blocks of merge_size x merge_size patches, row by row.
    // Values are (pixel * rescale_factor - image_mean) / image_std in float32.
    status (*patchify)(struct backend *, struct tensor out, struct tensor frames, const struct patch_shape *shape);

    // ---- products ----

    // *out = the matrix plain [N,L] (F32 or BF16) prepared for products, which are computed in its type. The caller
    // frees it with weight_free. A backend that packs packs it now with `prepack`, and `plain` may be freed afterwards
    // (rollout, scoring). In all other cases `plain` must outlive the weight, which follows its changes (training). The
    // bits of the products are the same. UNAVAILABLE if the backend cannot compute in the type.
    status (*weight_new)(struct backend *, struct weight **out, struct tensor plain, bool prepack);
    // NULL is fine; sets *weight to NULL.
    void (*weight_free)(struct backend *, struct weight **weight);
    // out[M,N] = in[M,L] W^T + bias; bias [1,N] or none. With `add` out += in W^T, rounded once; a GPU rounds a product
    // of BF16 before it adds it to BF16, too. Then bias is none. `in` has the weight's type; out has the same or F32.
    status (*linear)(struct backend *, struct tensor out, struct tensor in, struct weight *, struct tensor bias,
                     bool add);
    // grad_in[M,L] = grad_out[M,N] W; += when `add`. grad_out has the weight's type. Not for prepacked weights.
    status (*linear_grad_input)(struct backend *, struct tensor grad_in, struct tensor grad_out, struct weight *,
                                bool add);
    // grad_weight [N,L] += grad_out^T in; grad_bias F32 [1,N] += column sums of grad_out (or none). grad_weight is F32,
    // or BF16 and rounded once a call; a GPU rounds a product of BF16 too. `in` and grad_out have the same type.
    status (*linear_grad_weight)(struct backend *, struct tensor grad_weight, struct tensor grad_bias,
                                 struct tensor grad_out, struct tensor in);

    // ---- norms and activations ----

    // x += delta (which may be none); out = scale * round(x * rstd), rstd = 1/sqrt(mean(x^2) + epsilon) in float32.
    // Like Hugging Face, it rounds x * rstd to the type of x before the product with scale [1,C].
    // rstd F32 [T,1] is stored for the gradient (or none).
    status (*rmsnorm)(struct backend *, struct tensor out, struct tensor x, struct tensor delta, struct tensor scale,
                      float epsilon, struct tensor rstd);
    // grad_x += the gradient of x through `out`; grad_scale F32 [1,C] += the gradient of scale (or none).
    status (*rmsnorm_grad)(struct backend *, struct tensor grad_x, struct tensor grad_scale, struct tensor grad_out,
                           struct tensor x, struct tensor scale, struct tensor rstd);
    // x += delta (which may be none); out = scale * (x - mean) * rstd + bias (or none), in float32, rounded once, with
    // the mean of x's row and rstd = 1/sqrt(mean((x - mean)^2) + epsilon). scale, bias [1,C]. out may be x.
    // statistics F32 [T,2] = mean, rstd are stored for the gradient (or none).
    status (*layernorm)(struct backend *, struct tensor out, struct tensor x, struct tensor delta, struct tensor scale,
                        struct tensor bias, float epsilon, struct tensor statistics);
    // grad_x += the gradient of x through `out`; grad_scale, grad_bias F32 [1,C] += the gradients of scale and bias
    // (each may be none).
    status (*layernorm_grad)(struct backend *, struct tensor grad_x, struct tensor grad_scale, struct tensor grad_bias,
                             struct tensor grad_out, struct tensor x, struct tensor scale, struct tensor statistics);
    // out[T,I] = the activation of `in`, which is [T,2I] if it is gated. out may be `in` for quick_gelu.
    status (*activation)(struct backend *, enum activation, struct tensor out, struct tensor in);
    // grad_in = the gradient of `in`. It may be `in` itself, except for gelu; for quick_gelu it may be grad_out.
    status (*activation_grad)(struct backend *, enum activation, struct tensor grad_in, struct tensor grad_out,
                              struct tensor in);

    // ---- attention ----

    // *out = memory for `rows` rows of keys and values in each of `layers` layers. rope writes rows, attention reads
    // them. `type` is that of qkv, F32 or BF16; a backend may keep the values in float32. The caller frees the cache
    // with kv_cache_free.
    status (*kv_cache_new)(struct backend *, struct kv_cache **out, enum element type, int layers, int64_t rows,
                           struct heads heads);
    // NULL is fine; sets *cache to NULL.
    void (*kv_cache_free)(struct backend *, struct kv_cache **cache);
    // qkv [T, (H+2K)D] holds query, key and value heads. Rotates queries and keys in place: pair j, which is (j, j +
    // D/2), by the table's angle at the position position_ids[t][axis] (I32 [T,3]). Then writes keys and values to the
    // cache rows cache_slots[t] (I32 [T,1]) of `layer`; a slot of -1 writes nothing.
    status (*rope)(struct backend *, struct tensor qkv, const struct rope_table *, struct tensor position_ids,
                   struct heads heads, struct kv_cache *, int layer, struct tensor cache_slots);
    // The transpose of rope, in place, on the gradients of queries and keys; the gradients of values stay.
    status (*rope_grad)(struct backend *, struct tensor grad_qkv, const struct rope_table *, struct tensor position_ids,
                        struct heads heads);
    // Writes keys and values to the cache as rope did, from the qkv that rope left.
    status (*kv_cache_write)(struct backend *, struct tensor qkv, struct heads heads, struct kv_cache *, int layer,
                             struct tensor slots);
    // *out = the spans of one pass, prepared for attention; every layer uses the same plan. The spans cover each of the
    // pass's T rows exactly once. cache_slots I32 [T,1] are the slots that rope is given; attention_grad alone needs
    // them (or none). They are read when attention_grad is called, and must live as long. The caller frees the plan
    // with attention_plan_free.
    status (*attention_plan_new)(struct backend *, struct attention_plan **out, struct heads heads,
                                 const struct attention_span *spans, size_t count, struct tensor cache_slots);
    // NULL is fine; sets *plan to NULL. Operations that were called with the plan may still be under way.
    void (*attention_plan_free)(struct backend *, struct attention_plan **plan);
    // out[T,H*D] = softmax(q k^T * scale) v over the cache rows that each span of the plan names; the plan and the
    // cache were made for the same heads. lse F32 [T,H] is stored for the gradient (or none): the log of each sum of
    // exponentials of scaled scores.
    status (*attention)(struct backend *, struct tensor out, struct tensor qkv, float scale, struct kv_cache *,
                        int layer, const struct attention_plan *, struct tensor lse);
    // grad_qkv [T, (H+2K)D] (overwritten) = the gradient of attention. The gradient of a cache row goes to the token t
    // whose cache_slots[t] is that row; every cache row that a span names was written by one of the T tokens. The plan
    // has cache_slots.
    status (*attention_grad)(struct backend *, struct tensor grad_qkv, struct tensor grad_out, struct tensor out,
                             struct tensor qkv, float scale, struct kv_cache *, int layer,
                             const struct attention_plan *, struct tensor lse);

    // ---- the language model head ----

    // logprob F32 [T,1] = log_softmax(in W^T)[target]; targets I32 [T,1]. lse F32 [T,1] is stored for the gradient (or
    // none). Logits are F32 and exist only for one block of tokens at a time.
    status (*logprob)(struct backend *, struct tensor logprob, struct tensor lse, struct tensor in,
                      struct weight *lm_head, struct tensor targets);
    // For dlogprob F32 [T,1] = d loss / d logprob: grad_in [T,C] (overwritten), grad_lm_head [V,C] += (or none).
    // grad_lm_head is F32, or BF16 and rounded once a call.
    status (*logprob_grad)(struct backend *, struct tensor grad_in, struct tensor grad_lm_head, struct tensor in,
                           struct weight *lm_head, struct tensor targets, struct tensor lse, struct tensor dlogprob);

    // ---- decoding ----

    // *out = a batch of `capacity` idle slots; every backend has room for MAX_DECODE_ROWS. A completion ends with a
    // token of eos_ids [eos_count]. The caller frees it with decode_batch_free.
    status (*decode_batch_new)(struct backend *, struct decode_batch **out, int capacity, struct heads heads,
                               const int32_t *eos_ids, size_t eos_count);
    // NULL is fine; sets *batch to NULL.
    void (*decode_batch_free)(struct backend *, struct decode_batch **batch);
    // From the next step on, `slot` is at work on `row` (0 <= len < max_len), or idle if `row` is NULL.
    status (*decode_batch_set)(struct backend *, struct decode_batch *, int slot, const struct decode_row *row);
    // One step: samples a token for each row of `in` [rows,C], by temperature, then top-k, then top-p. The tokens
    // become the inputs of the next step. A completion that has ended, or has max_len tokens, makes its slot idle.
    // Log-probabilities are those of `logprob`: at temperature 1, over the whole vocabulary.
    status (*sample)(struct backend *, struct decode_batch *, struct tensor in, struct weight *lm_head);
    // What the call `step` of sample (0 is the batch's first) drew, for each slot: its token and log-probability, or -1
    // and 0 if it was idle. Waits for that step alone; only the last two steps can be read.
    status (*decode_batch_read)(struct backend *, struct decode_batch *, int64_t step, int32_t *tokens,
                                float *logprobs);

    // ---- graphs; the four operations are NULL on a backend that does not record ----

    // From now on operations are recorded and not computed. Only operations that neither allocate, free, wait nor read
    // the host's memory can be recorded. The sequence must have been computed once before, so that the backend has the
    // working memory for it.
    status (*graph_begin)(struct backend *);
    // Ends the recording, also after a failure in between: *out = what was recorded. The caller frees it with
    // graph_free.
    status (*graph_end)(struct backend *, struct graph **out);
    // Computes the operations of a graph, as if they were called again with the same arguments. Everything that they
    // were called with must still exist.
    status (*graph_launch)(struct backend *, const struct graph *graph);
    // NULL is fine; sets *graph to NULL.
    void (*graph_free)(struct backend *, struct graph **graph);

    // ---- the optimizer; its tensors are dense ----

    // sums[u] = the sum of squares of unit u, in double, in an order that the unit's length determines; waits. The
    // units of all ranges follow one another.
    status (*square_sums)(struct backend *, double *sums, const struct square_range *ranges, size_t count);
    // One AdamW step over all ranges: decoupled weight decay, bias correction, eps outside the square root.
    status (*adamw)(struct backend *, const struct adamw_range *ranges, size_t count, const struct adamw_options *);
    // average = decay * average + (1 - decay) * in. Each of the two is F32 without a remainder, or a pair.
    status (*ema)(struct backend *, struct tensor average, struct tensor average_remainder, struct tensor in,
                  struct tensor in_remainder, double decay);
    // The pairs (out BF16, remainder U16) = in F32.
    status (*split_f32)(struct backend *, struct tensor out, struct tensor remainder, struct tensor in);
    // out F32 = the pairs (in BF16, remainder U16).
    status (*join_f32)(struct backend *, struct tensor out, struct tensor in, struct tensor remainder);
    // *sum += the sum, modulo 2^64, of mix(w_i ^ mix(first + i)) over the 8-byte words w_i of `in` (any type), read as
    // little-endian numbers; the last one is padded with zeros. The order of adding does not matter, so the sum is the
    // same on all backends, and that of a tensor is the sum of its parts'. Waits.
    status (*digest)(struct backend *, struct tensor in, uint64_t first, uint64_t *sum);
};

// The struct of every backend begins with this.
struct backend {
    const struct operations *ops;
};

struct backend_options {
    const char *device; // "cpu", "cuda", "cuda:N", "emulated" (a GPU's code on the CPU); NULL: a GPU, or else the CPU
    int threads;        // 0: all
    // On a CPU with AMX, how many bfloat16 parts a float32 number has in products: 3 for float32's precision, 2 for an
    // error of 2^-16 of each product, in half the time; 0 for products of float32, which are faster for few rows.
    // Where it is not 0, attention of spans that are not causal and have no prefix uses AMX as well, in both types; in
    // BF16 it rounds the probabilities.
    int f32_parts;
};

// Opens a backend; the caller closes it with backend_close. USAGE for an unknown device, UNAVAILABLE for one that this
// machine or this build lacks.
status backend_open(struct backend **out, const struct backend_options *options);

// NULL is fine; sets *backend to NULL. Everything created with it must be freed before.
void backend_close(struct backend **backend);

// Bytes of one element.
size_t element_size(enum element type);

// The rows [first, first + rows) of a tensor.
struct tensor tensor_rows(struct tensor whole, int64_t first, int64_t rows);

// The columns [first, first + columns) of a tensor.
struct tensor tensor_columns(struct tensor whole, int64_t first, int64_t columns);

// The same memory of a dense tensor, as rows x columns.
struct tensor tensor_reshape(struct tensor whole, int64_t rows, int64_t columns);
