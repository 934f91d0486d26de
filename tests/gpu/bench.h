// One benchmark of the operations in three files: bench.c measures, bench_memory.c and bench_products.c have the items.
#pragma once

#include <stddef.h>

#include "kernels/ops.h"

enum { BENCH_TENSORS = 12, BENCH_WEIGHTS = 4 };

// The sizes of a pass over one group: a prompt and branches that share it, `rows` tokens in all.
struct bench_shape {
    int64_t rows, hidden, inner, qkv, gate_up, vocabulary; // qkv, gate_up: columns of these products
    struct heads heads;
    int64_t prompt, branches;
    int64_t patches, window, vision_hidden, vision_inner, vision_gate_up; // of the vision tower
    struct heads vision_heads;
    int64_t decoded, own; // completions decoded side by side, eight behind a prompt, and the keys that each has
    int64_t params, square;
    int batches, calls; // of a batch
};

struct bench {
    struct backend *backend; // NULL: nothing is measured, and tensors are shapes alone
    const struct operations *ops;
    const char *library; // for products; NULL: none
    const struct bench_shape *shape;
    float *noise;
    double copy_rate, product_rate; // bytes and floating point operations a second: the ceilings
    // Of the item that runs.
    const struct bench_item *item;
    struct tensor tensors[BENCH_TENSORS];
    int tensor_count;
    struct weight *weights[BENCH_WEIGHTS]; // used in turn, so that those of decoding come from memory, not from a cache
    int weight_count, turn;
    struct kv_cache *cache;
    struct attention_plan *plan;
    struct decode_batch *batch;
};

// One item. `call` is timed. Its bytes are those that it must read and write, each once.
struct bench_item {
    const char *name, *operation;
    size_t needs;                      // the offset of the operation's pointer in struct operations
    status (*set_up)(struct bench *);  // makes the tensors
    status (*prepare)(struct bench *); // fills them and makes everything else; NULL: nothing to do
    status (*call)(struct bench *);
    double (*bytes)(const struct bench *); // of a call
    double (*flops)(const struct bench *); // of a call; NULL: memory limits it
    size_t sizes[3];                       // of a product, m, n and l: their offsets in struct bench_shape
};

// The items; the first one of each list gives a ceiling: the rate of a copy, and that of a large product.
extern const struct bench_item bench_memory_items[], bench_product_items[];
extern const size_t bench_memory_count, bench_product_count;

// Adds a dense tensor to the item: random numbers (BF16, F32), or zeros.
status bench_tensor(struct bench *b, enum element type, int64_t rows, int64_t columns);

// Returns the bytes of the item's tensor i.
double bench_tensor_bytes(const struct bench *b, int i);

// Returns the bytes of all tensors of the item, once each.
double bench_all_bytes(const struct bench *b);

#define BENCH_ITEM(name, operation, call, set_up, prepare, bytes, flops)                                               \
    {                                                                                                                  \
        name, #operation, offsetof(struct operations, operation), set_up, prepare, call, bytes, flops, {               \
            0                                                                                                          \
        }                                                                                                              \
    }
