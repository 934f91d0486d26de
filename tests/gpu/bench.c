// Measures operations on any device: bench [--device NAME] [--tiny] [--only OPERATION] [--estimate]
//
// Each item prints one line of JSON to stdout: its shape, bytes, floating point operations, microseconds a call, and
// the share of its ceiling, and the same to stderr as a row of a Markdown table, with the roofline estimates of two
// GPUs. The ceilings are measured first in the same run: the rate of a copy and that of a large product. The ceiling of
// an item is the longer of the times that its bytes and its operations take at these rates. Where there is no library
// for products, the ceiling is the rate of the own kernel: each share that it limits says so. --estimate measures
// nothing and prints the table without measurements.
//
// The shapes are those of Qwen2.5-VL-7B: a training pass over a prompt of 1,792 tokens and 8 completions of 500, and
// a step that decodes 64 completions. --tiny is for tests. An operation that the device lacks is named in its line and
// left out.
//
// Calls are timed in batches, since a GPU works while the host goes on: the best of several batches counts.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "tests/gpu/bench.h"

enum { noise_elements = 1 << 18 };

static const struct bench_shape bench_7b = {.rows = 5792,
                                            .hidden = 3584,
                                            .inner = 18944,
                                            .qkv = 36 * 128,
                                            .gate_up = 2 * 18944,
                                            .vocabulary = 152064,
                                            .heads = {28, 4, 128},
                                            .prompt = 1792,
                                            .branches = 8,
                                            .patches = 6000,
                                            .window = 64,
                                            .vision_hidden = 1280,
                                            .vision_inner = 3420,
                                            .vision_gate_up = 2 * 3420,
                                            .vision_heads = {16, 16, 80},
                                            .decoded = 64,
                                            .own = 256,
                                            .params = 1 << 28,
                                            .square = 8192,
                                            .batches = 5,
                                            .calls = 10};
static const struct bench_shape bench_tiny = {.rows = 40,
                                              .hidden = 136,
                                              .inner = 264,
                                              .qkv = 4 * 64,
                                              .gate_up = 2 * 264,
                                              .vocabulary = 272,
                                              .heads = {2, 1, 64},
                                              .prompt = 16,
                                              .branches = 2,
                                              .patches = 24,
                                              .window = 16,
                                              .vision_hidden = 128,
                                              .vision_inner = 136,
                                              .vision_gate_up = 2 * 136,
                                              .vision_heads = {1, 1, 64},
                                              .decoded = 4,
                                              .own = 8,
                                              .params = 1 << 12,
                                              .square = 64,
                                              .batches = 1,
                                              .calls = 1};

// Of the makers' data sheets: bytes a second, and dense bfloat16 operations a second.
static const struct {
    const char *name;
    double bytes, flops;
} bench_sheets[] = {{"H100 SXM", 3.35e12, 989.4e12}, {"H200", 4.8e12, 989.4e12}};

status bench_tensor(struct bench *b, enum element type, int64_t rows, int64_t columns) {
    assert(b->tensor_count < BENCH_TENSORS);
    struct tensor *t = &b->tensors[b->tensor_count];
    *t = (struct tensor){.type = type, .rows = rows, .columns = columns, .stride = columns};
    if (b->backend) TRY(b->ops->buffer_new(b->backend, (size_t)(rows * columns) * element_size(type), &t->buffer));
    b->tensor_count++;
    if (!b->backend || (type != ELEMENT_F32 && type != ELEMENT_BF16)) return OK;
    struct tensor flat = tensor_reshape(*t, 1, rows * columns);
    for (int64_t done = 0; done < flat.columns; done += noise_elements) {
        int64_t count = flat.columns - done < noise_elements ? flat.columns - done : noise_elements;
        TRY(b->ops->upload(b->backend, tensor_columns(flat, done, count), b->noise, ELEMENT_F32));
    }
    return OK;
}

double bench_tensor_bytes(const struct bench *b, int i) {
    return (double)(b->tensors[i].rows * b->tensors[i].columns) * (double)element_size(b->tensors[i].type);
}

double bench_all_bytes(const struct bench *b) {
    double bytes = 0;
    for (int i = 0; i < b->tensor_count; i++) bytes += bench_tensor_bytes(b, i);
    return bytes;
}

static void bench_clear(struct bench *b) {
    if (b->backend) {
        b->ops->decode_batch_free(b->backend, &b->batch);
        b->ops->attention_plan_free(b->backend, &b->plan);
        b->ops->kv_cache_free(b->backend, &b->cache);
        for (int i = 0; i < b->weight_count; i++) b->ops->weight_free(b->backend, &b->weights[i]);
        for (int i = 0; i < b->tensor_count; i++) b->ops->buffer_free(b->backend, &b->tensors[i].buffer);
    }
    b->tensor_count = b->weight_count = 0;
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

static double bench_ceiling(double bytes, double flops, double byte_rate, double flop_rate) {
    double memory = bytes / byte_rate, arithmetic = flops / flop_rate;
    return memory > arithmetic ? memory : arithmetic;
}

// Whether the item's ceiling is the rate of the own product. That of a large product is measured before all others.
static bool bench_own_ceiling(const struct bench *b, const struct bench_item *item) {
    const double flops = item->flops ? item->flops(b) : 0;
    return !b->library && flops / b->product_rate > item->bytes(b) / b->copy_rate;
}

static void bench_head(FILE *out, const char *device) {
    fprintf(out, "| item | shape | MB | GFLOP | %s us | %s us | %s us | share |\n", bench_sheets[0].name,
            bench_sheets[1].name, device);
    fprintf(out, "|---|---|---|---|---|---|---|---|\n");
}

// A row of the table. seconds 0: nothing was measured.
static void bench_row(FILE *out, const struct bench *b, const struct bench_item *item, double seconds, double share) {
    double bytes = item->bytes(b), flops = item->flops ? item->flops(b) : 0;
    fprintf(out, "| %s | %lld x %lld | %.1f | %.1f |", item->name, (long long)b->tensors[0].rows,
            (long long)b->tensors[0].columns, bytes * 1e-6, flops * 1e-9);
    for (size_t i = 0; i < sizeof bench_sheets / sizeof *bench_sheets; i++)
        fprintf(out, " %.1f |", bench_ceiling(bytes, flops, bench_sheets[i].bytes, bench_sheets[i].flops) * 1e6);
    if (seconds > 0)
        fprintf(out, " %.1f | %.0f %%%s |\n", seconds * 1e6, 100 * share,
                bench_own_ceiling(b, item) ? " of the own product" : "");
    if (seconds <= 0) fprintf(out, " | |\n");
}

// Measures one item.
static status bench_run(struct bench *b, const struct bench_item *item) {
    void (*operation)(void);
    memcpy(&operation, (const char *)b->ops + item->needs, sizeof operation);
    if (!operation) {
        printf("{\"item\": \"%s\", \"lacks\": \"%s\"}\n", item->name, item->operation);
        return OK;
    }
    double seconds = 0;
    b->item = item;
    status result = item->set_up(b);
    if (result == OK && item->prepare) result = item->prepare(b);
    if (result == OK) result = bench_time(b, item, &seconds);
    if (result == OK && item == bench_memory_items) b->copy_rate = item->bytes(b) / seconds;
    if (result == OK && item == bench_product_items) b->product_rate = item->flops(b) / seconds;
    if (result == OK) {
        double bytes = item->bytes(b), flops = item->flops ? item->flops(b) : 0;
        double share = bench_ceiling(bytes, flops, b->copy_rate, b->product_rate) / seconds;
        printf("{\"item\": \"%s\", \"operation\": \"%s\", \"rows\": %lld, \"columns\": %lld, \"bytes\": %.0f, "
               "\"flops\": %.0f, \"us\": %.2f, \"gb_per_s\": %.2f, \"tflop_per_s\": %.3f, \"share\": %.3f%s}\n",
               item->name, item->operation, (long long)b->tensors[0].rows, (long long)b->tensors[0].columns, bytes,
               flops, seconds * 1e6, bytes / seconds * 1e-9, flops / seconds * 1e-12, share,
               bench_own_ceiling(b, item) ? ", \"share_of\": \"the own product\"" : "");
        fflush(stdout); // the items so far are seen, whatever happens
        bench_row(stderr, b, item, seconds, share);
    }
    bench_clear(b);
    return result == OK ? OK : fail_prefix(result, "%s", item->name);
}

static status bench_run_list(struct bench *b, const struct bench_item *items, size_t count, const char *only) {
    for (size_t i = 1; i < count; i++)
        if (!only || strcmp(only, items[i].operation) == 0) TRY(bench_run(b, &items[i]));
    return OK;
}

// The ceilings are measured whatever `only` is.
static status bench_run_all(struct bench *b, const char *only) {
    NEW(&b->noise, noise_elements);
    for (size_t i = 0; i < noise_elements; i++) b->noise[i] = (float)rng_normal(1, 0, i);
    b->product_rate = 1e30; // not known yet
    TRY(bench_run(b, &bench_memory_items[0]));
    TRY(bench_run(b, &bench_product_items[0]));
    TRY(bench_run_list(b, bench_memory_items, bench_memory_count, only));
    return bench_run_list(b, bench_product_items, bench_product_count, only);
}

// The table with estimates alone: arithmetic on shapes, no device.
static status bench_estimate(struct bench *b) {
    bench_head(stdout, "measured");
    for (size_t i = 0; i < bench_memory_count + bench_product_count; i++) {
        const struct bench_item *item =
            i < bench_memory_count ? &bench_memory_items[i] : &bench_product_items[i - bench_memory_count];
        b->item = item;
        TRY(item->set_up(b));
        bench_row(stdout, b, item, 0, 0);
        bench_clear(b);
    }
    return OK;
}

int main(int count, char **arguments) {
    struct bench b = {.shape = &bench_7b};
    struct backend_options options = {.device = "cuda"};
    const char *only = NULL;
    bool estimate = false;
    for (int i = 1; i < count; i++) {
        bool more = i + 1 < count;
        if (strcmp(arguments[i], "--device") == 0 && more) {
            options.device = arguments[++i];
        } else if (strcmp(arguments[i], "--only") == 0 && more) {
            only = arguments[++i];
        } else if (strcmp(arguments[i], "--tiny") == 0) {
            b.shape = &bench_tiny;
        } else if (strcmp(arguments[i], "--estimate") == 0) {
            estimate = true;
        } else {
            fprintf(stderr, "usage: bench [--device NAME] [--tiny] [--only OPERATION] [--estimate]\n");
            return USAGE;
        }
    }
    status result = estimate ? bench_estimate(&b) : backend_open(&b.backend, &options);
    if (result == OK && !estimate) {
        b.ops = b.backend->ops;
        struct backend_info info = {0};
        result = b.backend->ops->info(b.backend, &info);
        b.library = info.product_library;
        const char *library = b.library ? b.library : "none: products are measured with the own kernel";
        if (result == OK)
            printf("{\"device\": \"%s\", \"kind\": \"%s\", \"cublaslt\": \"%s\"}\n", options.device, info.kind,
                   library);
        fprintf(stderr, "| %s, cuBLASLt: %s |\n\n", options.device, library);
        bench_head(stderr, options.device);
        if (result == OK) result = bench_run_all(&b, only);
    }
    if (result != OK) fprintf(stderr, "bench: %s\n", fail_text());
    free(b.noise);
    backend_close(&b.backend);
    return status_exit_code(result);
}
