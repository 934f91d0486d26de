// Measures the operations that memory limits, on any device: bench [--device NAME] [--tiny] [--only ITEM]
//
// Each item prints one line of JSON to stdout: its operation, shape, microseconds a call, GB/s, and the share of the
// rate of a copy, which is measured first in the same run. A table for people goes to stderr. The shapes are those of a
// training pass of Qwen2.5-VL-7B over 5,792 tokens; --tiny is for tests. An operation that the device lacks is named in
// its line and left out.
//
// A call's bytes are those that it must read and write, each once. Calls are timed in batches, since a GPU works while
// the host goes on: the best of several batches counts.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"

enum { most_tensors = 12, noise_elements = 1 << 18 };

struct bench_shape {
    int64_t rows, hidden, inner, patches, vision_hidden, params;
    int batches, calls; // of a batch
};

static const struct bench_shape bench_7b = {5792, 3584, 18944, 6000, 1280, 1 << 28, 5, 10};
static const struct bench_shape bench_tiny = {40, 264, 520, 24, 128, 1 << 12, 1, 1};

struct bench {
    struct backend *backend;
    const struct operations *ops;
    const struct bench_shape *shape;
    float *noise;
    double copy_rate;                    // bytes a second
    struct tensor tensors[most_tensors]; // of the item that runs
    int tensor_count;
};

// One item. `set_up` makes its tensors with bench_tensor, `call` is timed.
struct bench_item {
    const char *name, *operation;
    size_t needs; // the offset of the operation's pointer in struct operations
    status (*set_up)(struct bench *);
    status (*call)(struct bench *);
    double (*bytes)(const struct bench *); // of a call
};

// Adds a dense tensor of random numbers (BF16, F32), or of zeros.
static status bench_tensor(struct bench *b, enum element type, int64_t rows, int64_t columns) {
    assert(b->tensor_count < most_tensors);
    struct tensor *t = &b->tensors[b->tensor_count];
    *t = (struct tensor){.type = type, .rows = rows, .columns = columns, .stride = columns};
    TRY(b->ops->buffer_new(b->backend, (size_t)(rows * columns) * element_size(type), &t->buffer));
    b->tensor_count++;
    if (type != ELEMENT_F32 && type != ELEMENT_BF16) return OK;
    struct tensor flat = tensor_reshape(*t, 1, rows * columns);
    for (int64_t done = 0; done < flat.columns; done += noise_elements) {
        int64_t count = flat.columns - done < noise_elements ? flat.columns - done : noise_elements;
        TRY(b->ops->upload(b->backend, tensor_columns(flat, done, count), b->noise, ELEMENT_F32));
    }
    return OK;
}

static void bench_clear(struct bench *b) {
    while (b->tensor_count > 0) b->ops->buffer_free(b->backend, &b->tensors[--b->tensor_count].buffer);
}

// The bytes of all tensors of the item, once each.
static double bench_all_bytes(const struct bench *b) {
    double bytes = 0;
    for (int i = 0; i < b->tensor_count; i++)
        bytes += (double)(b->tensors[i].rows * b->tensors[i].columns) * (double)element_size(b->tensors[i].type);
    return bytes;
}

static double bench_tensor_bytes(const struct bench *b, int i) {
    return (double)(b->tensors[i].rows * b->tensors[i].columns) * (double)element_size(b->tensors[i].type);
}

// ---- rows ----

static status bench_set_up_two(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, 4 * b->shape->rows, b->shape->inner / 2));
    return bench_tensor(b, ELEMENT_BF16, 4 * b->shape->rows, b->shape->inner / 2);
}

static status bench_copy(struct bench *b) {
    return b->ops->copy(b->backend, b->tensors[1], b->tensors[0]);
}

static status bench_add(struct bench *b) {
    return b->ops->add(b->backend, b->tensors[1], b->tensors[0]);
}

static double bench_add_bytes(const struct bench *b) {
    return 3 * bench_tensor_bytes(b, 0);
}

static status bench_set_up_convert(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_F32, b->shape->rows, b->shape->inner));
    return bench_tensor(b, ELEMENT_BF16, b->shape->rows, b->shape->inner);
}

// in BF16, out F32, and an index in which every 16th row is repeated.
static status bench_set_up_indexed(struct bench *b) {
    int64_t rows = b->shape->rows;
    TRY(bench_tensor(b, ELEMENT_BF16, rows, b->shape->hidden));
    TRY(bench_tensor(b, ELEMENT_F32, rows, b->shape->hidden));
    TRY(bench_tensor(b, ELEMENT_I32, rows, 1));
    int32_t *index;
    TRY(NEW(&index, (size_t)rows));
    for (int64_t i = 0; i < rows; i++) index[i] = (int32_t)(i % 16 ? rows - 1 - i : 0);
    status result = b->ops->upload(b->backend, b->tensors[2], index, ELEMENT_I32);
    free(index);
    return result;
}

static status bench_gather(struct bench *b) {
    return b->ops->gather(b->backend, b->tensors[1], b->tensors[0], b->tensors[2]);
}

static status bench_scatter_add(struct bench *b) {
    return b->ops->scatter_add(b->backend, b->tensors[1], b->tensors[0], b->tensors[2]);
}

static double bench_scatter_add_bytes(const struct bench *b) {
    return bench_tensor_bytes(b, 0) + 2.0 * 15 / 16 * bench_tensor_bytes(b, 1);
}

// ---- norms and activations ----

// x, delta, out, scale, rstd, grad_scale; grad_x F32 as in training.
static status bench_set_up_norm(struct bench *b, int64_t rows, int64_t columns) {
    for (int i = 0; i < 3; i++) TRY(bench_tensor(b, ELEMENT_BF16, rows, columns));
    TRY(bench_tensor(b, ELEMENT_BF16, 1, columns));
    TRY(bench_tensor(b, ELEMENT_F32, rows, 1));
    TRY(bench_tensor(b, ELEMENT_F32, 1, columns));
    return bench_tensor(b, ELEMENT_F32, rows, columns);
}

static status bench_set_up_text_norm(struct bench *b) {
    return bench_set_up_norm(b, b->shape->rows, b->shape->hidden);
}

static status bench_set_up_vision_norm(struct bench *b) {
    return bench_set_up_norm(b, b->shape->patches, b->shape->vision_hidden);
}

static status bench_rmsnorm(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->rmsnorm(b->backend, t[2], t[0], t[1], t[3], 1e-6f, t[4]);
}

static double bench_rmsnorm_bytes(const struct bench *b) {
    return 4 * bench_tensor_bytes(b, 0); // x is read and written
}

static status bench_rmsnorm_grad(struct bench *b) {
    const struct tensor *t = b->tensors;
    return b->ops->rmsnorm_grad(b->backend, t[6], t[5], t[2], t[0], t[3], t[4]);
}

static double bench_rmsnorm_grad_bytes(const struct bench *b) {
    return 2 * bench_tensor_bytes(b, 0) + 2 * bench_tensor_bytes(b, 6);
}

// gate_up, out.
static status bench_set_up_swiglu(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, b->shape->rows, 2 * b->shape->inner));
    return bench_tensor(b, ELEMENT_BF16, b->shape->rows, b->shape->inner);
}

static status bench_swiglu(struct bench *b) {
    return b->ops->swiglu(b->backend, b->tensors[1], b->tensors[0]);
}

static status bench_swiglu_grad(struct bench *b) {
    return b->ops->swiglu_grad(b->backend, b->tensors[0], b->tensors[1], b->tensors[0]);
}

static double bench_swiglu_grad_bytes(const struct bench *b) {
    return 2 * bench_tensor_bytes(b, 0) + bench_tensor_bytes(b, 1); // in place
}

static status bench_gelu(struct bench *b) {
    return b->ops->gelu(b->backend, b->tensors[1], b->tensors[0]);
}

static status bench_gelu_grad(struct bench *b) {
    return b->ops->gelu_grad(b->backend, b->tensors[1], b->tensors[1], b->tensors[0]);
}

// ---- the optimizer ----

// param, remainder, grad, moments.
static status bench_set_up_pairs(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
    TRY(bench_tensor(b, ELEMENT_U16, 1, b->shape->params));
    for (int i = 0; i < 3; i++) TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
    return b->ops->zero(b->backend, b->tensors[4]);
}

static status bench_set_up_f32(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_F32, 1, b->shape->params / 2));
    TRY(bench_tensor(b, ELEMENT_U16, 1, 0)); // no remainder
    for (int i = 0; i < 3; i++) TRY(bench_tensor(b, ELEMENT_F32, 1, b->shape->params / 2));
    return b->ops->zero(b->backend, b->tensors[4]);
}

static status bench_adamw(struct bench *b) {
    const struct tensor *t = b->tensors, none = {0};
    struct adamw_options options = {
        .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .grad_scale = 1, .step = 3};
    struct adamw_range range = {.param = t[0],
                                .remainder = t[1].columns ? t[1] : none,
                                .grad = t[2],
                                .exp_avg = t[3],
                                .exp_avg_sq = t[4],
                                .decay = true};
    return b->ops->adamw(b->backend, &range, 1, &options);
}

static double bench_adamw_bytes(const struct bench *b) {
    return 2 * bench_all_bytes(b) - bench_tensor_bytes(b, 2);
}

// Two ranges of pairs.
static status bench_set_up_ema(struct bench *b) {
    for (int i = 0; i < 2; i++) {
        TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
        TRY(bench_tensor(b, ELEMENT_U16, 1, b->shape->params));
    }
    return OK;
}

static status bench_ema(struct bench *b) {
    return b->ops->ema(b->backend, b->tensors[0], b->tensors[1], b->tensors[2], b->tensors[3], 0.995);
}

static double bench_ema_bytes(const struct bench *b) {
    return 1.5 * bench_all_bytes(b);
}

// F32, and its pair.
static status bench_set_up_split(struct bench *b) {
    TRY(bench_tensor(b, ELEMENT_F32, 1, b->shape->params));
    TRY(bench_tensor(b, ELEMENT_BF16, 1, b->shape->params));
    return bench_tensor(b, ELEMENT_U16, 1, b->shape->params);
}

static status bench_split_f32(struct bench *b) {
    return b->ops->split_f32(b->backend, b->tensors[1], b->tensors[2], b->tensors[0]);
}

static status bench_join_f32(struct bench *b) {
    return b->ops->join_f32(b->backend, b->tensors[0], b->tensors[1], b->tensors[2]);
}

static status bench_set_up_one(struct bench *b) {
    return bench_tensor(b, ELEMENT_BF16, 1, 2 * b->shape->params);
}

static status bench_square_sum(struct bench *b) {
    double sum = 0;
    return b->ops->square_sum(b->backend, &sum, b->tensors[0]);
}

static status bench_digest(struct bench *b) {
    uint64_t sum = 0;
    return b->ops->digest(b->backend, b->tensors[0], 0, &sum);
}

// ---- the items ----

// The first one gives the rate that the others are compared with.
#define ITEM(name, operation, set_up, bytes)                                                                           \
    { name, #operation, offsetof(struct operations, operation), bench_set_up_##set_up, bench_##operation, bytes }
static const struct bench_item bench_items[] = {
    ITEM("copy", copy, two, bench_all_bytes),
    ITEM("convert", copy, convert, bench_all_bytes),
    ITEM("add", add, two, bench_add_bytes),
    ITEM("gather", gather, indexed, bench_all_bytes),
    ITEM("scatter_add", scatter_add, indexed, bench_scatter_add_bytes),
    ITEM("rmsnorm", rmsnorm, text_norm, bench_rmsnorm_bytes),
    ITEM("rmsnorm of patches", rmsnorm, vision_norm, bench_rmsnorm_bytes),
    ITEM("rmsnorm_grad", rmsnorm_grad, text_norm, bench_rmsnorm_grad_bytes),
    ITEM("rmsnorm_grad of patches", rmsnorm_grad, vision_norm, bench_rmsnorm_grad_bytes),
    ITEM("swiglu", swiglu, swiglu, bench_all_bytes),
    ITEM("swiglu_grad", swiglu_grad, swiglu, bench_swiglu_grad_bytes),
    ITEM("gelu", gelu, two, bench_all_bytes),
    ITEM("gelu_grad", gelu_grad, two, bench_add_bytes),
    ITEM("adamw of pairs", adamw, pairs, bench_adamw_bytes),
    ITEM("adamw of float32", adamw, f32, bench_adamw_bytes),
    ITEM("ema", ema, ema, bench_ema_bytes),
    ITEM("split_f32", split_f32, split, bench_all_bytes),
    ITEM("join_f32", join_f32, split, bench_all_bytes),
    ITEM("square_sum", square_sum, one, bench_all_bytes),
    ITEM("digest", digest, one, bench_all_bytes),
};

static bool bench_lacks(const struct bench *b, const struct bench_item *item) {
    void (*operation)(void);
    memcpy(&operation, (const char *)b->ops + item->needs, sizeof operation);
    return !operation;
}

// *seconds = of one call: the best batch after one call to warm up.
static status bench_time(struct bench *b, const struct bench_item *item, double *seconds) {
    TRY(item->call(b));
    TRY(b->ops->wait(b->backend));
    *seconds = 1e9;
    for (int batch = 0; batch < b->shape->batches; batch++) {
        double start = clock_monotonic();
        for (int i = 0; i < b->shape->calls; i++) TRY(item->call(b));
        TRY(b->ops->wait(b->backend));
        double now = (clock_monotonic() - start) / b->shape->calls;
        if (now < *seconds) *seconds = now;
    }
    return OK;
}

static status bench_run(struct bench *b, const struct bench_item *item) {
    if (bench_lacks(b, item)) {
        printf("{\"item\": \"%s\", \"lacks\": \"%s\"}\n", item->name, item->operation);
        fprintf(stderr, "%-26s left out: the device lacks %s\n", item->name, item->operation);
        return OK;
    }
    double seconds = 0, bytes = 0;
    status result = item->set_up(b);
    if (result == OK) result = bench_time(b, item, &seconds);
    if (result == OK) bytes = item->bytes(b);
    struct tensor first = b->tensors[0];
    bench_clear(b);
    if (result != OK) return fail_prefix(result, "%s", item->name);
    double rate = bytes / seconds;
    if (item == bench_items) b->copy_rate = rate;
    printf("{\"item\": \"%s\", \"rows\": %lld, \"columns\": %lld, \"bytes\": %.0f, \"us\": %.2f, \"gb_per_s\": %.2f, "
           "\"share_of_copy\": %.3f}\n",
           item->name, (long long)first.rows, (long long)first.columns, bytes, seconds * 1e6, rate * 1e-9,
           rate / b->copy_rate);
    fprintf(stderr, "%-26s %7lld x %-9lld %10.1f us %9.1f GB/s %4.0f %% of copy\n", item->name, (long long)first.rows,
            (long long)first.columns, seconds * 1e6, rate * 1e-9, 100 * rate / b->copy_rate);
    return OK;
}

// A copy is measured whatever `only` is.
static status bench_run_items(struct bench *b, const char *only) {
    TRY(NEW(&b->noise, noise_elements));
    for (size_t i = 0; i < noise_elements; i++) b->noise[i] = (float)rng_normal(1, 0, i);
    for (size_t i = 0; i < sizeof bench_items / sizeof *bench_items; i++) {
        if (i == 0 || !only || strcmp(only, bench_items[i].operation) == 0) TRY(bench_run(b, &bench_items[i]));
    }
    return OK;
}

int main(int count, char **arguments) {
    struct bench b = {.shape = &bench_7b};
    struct backend_options options = {.device = "cuda"};
    const char *only = NULL;
    for (int i = 1; i < count; i++) {
        bool more = i + 1 < count;
        if (strcmp(arguments[i], "--device") == 0 && more) {
            options.device = arguments[++i];
        } else if (strcmp(arguments[i], "--only") == 0 && more) {
            only = arguments[++i];
        } else if (strcmp(arguments[i], "--tiny") == 0) {
            b.shape = &bench_tiny;
        } else {
            fprintf(stderr, "usage: bench [--device NAME] [--tiny] [--only OPERATION]\n");
            return USAGE;
        }
    }
    status result = backend_open(&b.backend, &options);
    if (result == OK) {
        b.ops = b.backend->ops;
        printf("{\"device\": \"%s\"}\n", options.device);
        result = bench_run_items(&b, only);
    }
    if (result != OK) fprintf(stderr, "bench: %s\n", fail_text());
    free(b.noise);
    backend_close(&b.backend);
    return status_exit_code(result);
}
