// Asks a device what nobody but the device can answer: questions [--device NAME] [QUESTION]
//
// Each answer is a line of JSON on stdout. No answer is a failure; the program fails if the device does.
//   process     memory that a process takes before it allocates any; the library of products
//   products    whether tensor cores add up as the emulator says, by kind of GPU: the bits of both, compared
//   launches    microseconds of an operation that has almost nothing to do, called and recorded
//   exported    whether a buffer outlives the process that exported it, killed with SIGKILL
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "shared/base/clock.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"

static status question_tensor(struct backend *b, struct tensor *out, enum element type, int64_t rows, int64_t columns) {
    *out = (struct tensor){.type = type, .rows = rows, .columns = columns, .stride = columns};
    return b->ops->buffer_new(b, (size_t)(rows * columns) * element_size(type), &out->buffer);
}

// ---- process ----

static status question_process(const char *device) {
    struct backend *b = NULL;
    struct backend_info info;
    TRY(backend_open(&b, &(struct backend_options){.device = device}));
    status result = b->ops->info(b, &info);
    if (result == OK)
        printf("{\"question\": \"process\", \"device\": \"%s\", \"kind\": \"%s\", \"memory\": %llu, \"memory_free\": "
               "%llu, "
               "\"cublaslt\": \"%s\"}\n",
               info.device, info.kind, (unsigned long long)info.memory, (unsigned long long)info.memory_free,
               info.product_library ? info.product_library : "none: products are measured with the own kernel");
    backend_close(&b);
    return result;
}

// ---- products ----

enum { PRODUCT_COLUMNS = 64, PRODUCT_ROWS = 64, PRODUCT_INNER = 512 };

// out [rows, PRODUCT_COLUMNS] = in [rows, inner] weight^T in BF16 with float32 results, on one device.
static status question_product(const char *device, int64_t rows, int64_t inner, const float *in, const float *weight,
                               float *out) {
    struct backend *b = NULL;
    struct weight *prepared = NULL;
    struct tensor tensors[3] = {0}, none = {0};
    status result;
    TRY(backend_open(&b, &(struct backend_options){.device = device}));
    TRY_TO(result, done, question_tensor(b, &tensors[0], ELEMENT_BF16, rows, inner));
    TRY_TO(result, done, question_tensor(b, &tensors[1], ELEMENT_BF16, PRODUCT_COLUMNS, inner));
    TRY_TO(result, done, question_tensor(b, &tensors[2], ELEMENT_F32, rows, PRODUCT_COLUMNS));
    TRY_TO(result, done, b->ops->upload(b, tensors[0], in, ELEMENT_F32));
    TRY_TO(result, done, b->ops->upload(b, tensors[1], weight, ELEMENT_F32));
    TRY_TO(result, done, b->ops->weight_new(b, &prepared, tensors[1], false));
    TRY_TO(result, done, b->ops->linear(b, tensors[2], tensors[0], prepared, none, false));
    result = b->ops->download(b, out, ELEMENT_F32, tensors[2]);
done:
    if (b) b->ops->weight_free(b, &prepared);
    for (int i = 0; i < 3; i++) b->ops->buffer_free(b, &tensors[i].buffer);
    backend_close(&b);
    return result;
}

// Numbers of very different sizes, so that a sum's bits show its order and how it was rounded.
static void question_fill(float *values, size_t count, uint64_t stream, bool wide) {
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)rng_normal(5, stream, i);
        if (wide) values[i] *= (float)(1 << (ops_mix64(stream << 32 | i) % 16));
    }
}

static uint32_t question_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Compares the device with the emulator's two kinds of tensor cores, for few rows and many, one instruction and many.
static status question_products(const char *device) {
    static const struct { const char *name, *device; } kinds[] = {{"sm_90", "emulated:0"}, {"sm_80", "emulated:3"}};
    static const int64_t sizes[][2] = {{PRODUCT_ROWS, 16}, {PRODUCT_ROWS, PRODUCT_INNER}, {4, 16}, {4, PRODUCT_INNER}};
    static float in[PRODUCT_ROWS * PRODUCT_INNER], weight[PRODUCT_COLUMNS * PRODUCT_INNER];
    static float got[PRODUCT_ROWS * PRODUCT_COLUMNS], like[PRODUCT_ROWS * PRODUCT_COLUMNS];
    for (size_t i = 0; i < 8; i++) {
        int64_t rows = sizes[i / 2][0], inner = sizes[i / 2][1];
        size_t count = (size_t)(rows * PRODUCT_COLUMNS);
        bool wide = i % 2;
        question_fill(in, (size_t)(rows * inner), 1, wide);
        question_fill(weight, (size_t)(PRODUCT_COLUMNS * inner), 2, wide);
        TRY(question_product(device, rows, inner, in, weight, got));
        for (size_t kind = 0; kind < 2; kind++) {
            TRY(question_product(kinds[kind].device, rows, inner, in, weight, like));
            size_t equal = 0;
            for (size_t k = 0; k < count; k++) equal += question_bits(got[k]) == question_bits(like[k]);
            printf("{\"question\": \"products\", \"rows\": %lld, \"inner\": %lld, \"data\": \"%s\", \"like\": \"%s\", "
                   "\"equal\": %zu, \"of\": %zu}\n",
                   (long long)rows, (long long)inner, wide ? "wide" : "normal", kinds[kind].name, equal, count);
        }
    }
    return OK;
}

// ---- launches ----

enum { LAUNCHES = 300, LAUNCH_ROUNDS = 5 };

static status question_many_adds(struct backend *b, struct tensor out, struct tensor in) {
    for (int i = 0; i < LAUNCHES; i++) TRY(b->ops->add(b, out, in));
    return OK;
}

// *us = the best round's microseconds an operation: of `graph`, or called one by one without it.
static status question_time_adds(struct backend *b, struct tensor out, struct tensor in, const struct graph *graph,
                                 double *us) {
    *us = 1e12;
    for (int round = 0; round < LAUNCH_ROUNDS; round++) {
        double start = clock_monotonic();
        TRY(graph ? b->ops->graph_launch(b, graph) : question_many_adds(b, out, in));
        TRY(b->ops->wait(b));
        double now = (clock_monotonic() - start) / LAUNCHES * 1e6;
        if (now < *us) *us = now;
    }
    return OK;
}

static status question_launches(const char *device) {
    struct backend *b = NULL;
    struct tensor out = {0}, in = {0};
    struct graph *graph = NULL;
    double called = 0, recorded = 0;
    status result;
    TRY(backend_open(&b, &(struct backend_options){.device = device}));
    TRY_TO(result, done, question_tensor(b, &out, ELEMENT_BF16, 1, 8));
    TRY_TO(result, done, question_tensor(b, &in, ELEMENT_BF16, 1, 8));
    TRY_TO(result, done, question_time_adds(b, out, in, NULL, &called));
    if (b->ops->graph_begin) {
        TRY_TO(result, done, b->ops->graph_begin(b));
        status within = question_many_adds(b, out, in);
        TRY_TO(result, done, b->ops->graph_end(b, &graph));
        TRY_TO(result, done, within);
        TRY_TO(result, done, question_time_adds(b, out, in, graph, &recorded));
    }
    printf("{\"question\": \"launches\", \"us_called\": %.3f, ", called);
    if (graph) printf("\"us_recorded\": %.3f}\n", recorded);
    if (!graph) printf("\"lacks\": \"graphs\"}\n");
done:
    if (graph) b->ops->graph_free(b, &graph);
    b->ops->buffer_free(b, &out.buffer);
    b->ops->buffer_free(b, &in.buffer);
    backend_close(&b);
    return result;
}

// ---- exported ----

enum { EXPORTED_COLUMNS = 1 << 18 };

struct exported_name {
    bool can; // false: the backend cannot export, and there is no handle
    unsigned char handle[IPC_HANDLE_BYTES];
};

// In a process of its own: exports a buffer of twos, tells its name through the pipe, and waits for its end.
static status question_export(const char *device, int pipe_end) {
    static float twos[EXPORTED_COLUMNS];
    struct backend *b = NULL;
    struct tensor buffer = {0};
    struct exported_name name = {0};
    for (size_t i = 0; i < EXPORTED_COLUMNS; i++) twos[i] = 2;
    TRY(backend_open(&b, &(struct backend_options){.device = device}));
    name.can = b->ops->buffer_export != NULL;
    if (name.can) {
        TRY(question_tensor(b, &buffer, ELEMENT_F32, 1, EXPORTED_COLUMNS));
        TRY(b->ops->upload(b, buffer, twos, ELEMENT_F32));
        TRY(b->ops->wait(b));
        TRY(b->ops->buffer_export(b, buffer.buffer, name.handle));
    }
    if (write(pipe_end, &name, sizeof name) != sizeof name) return fail(UNAVAILABLE, "the pipe is closed");
    for (;;) pause();
}

// *twos = how many elements of the buffer are still 2.
static status question_count_twos(struct backend *b, struct tensor buffer, int *twos) {
    static float values[EXPORTED_COLUMNS];
    TRY(b->ops->download(b, values, ELEMENT_F32, buffer));
    *twos = 0;
    for (size_t i = 0; i < EXPORTED_COLUMNS; i++) *twos += values[i] == 2;
    return OK;
}

static status question_import(const char *device, const struct exported_name *name, pid_t exporter) {
    struct backend *b = NULL;
    struct tensor buffer = {.type = ELEMENT_F32, .rows = 1, .columns = EXPORTED_COLUMNS, .stride = EXPORTED_COLUMNS};
    int before = 0, after = 0;
    TRY(backend_open(&b, &(struct backend_options){.device = device}));
    status result = b->ops->buffer_import(b, name->handle, EXPORTED_COLUMNS * sizeof(float), &buffer.buffer);
    if (result == OK) result = question_count_twos(b, buffer, &before);
    kill(exporter, SIGKILL);
    waitpid(exporter, NULL, 0);
    status later = result == OK ? question_count_twos(b, buffer, &after) : result;
    if (result == OK)
        printf("{\"question\": \"exported\", \"right_before\": %d, \"right_after_sigkill\": %d, \"of\": %d, "
               "\"error_after\": \"%s\"}\n",
               before, after, EXPORTED_COLUMNS, later == OK ? "" : fail_text());
    if (result != OK) printf("{\"question\": \"exported\", \"error\": \"%s\"}\n", fail_text());
    b->ops->buffer_free(b, &buffer.buffer);
    backend_close(&b);
    return OK;
}

// The exporter is forked before this process has opened a device.
static status question_exported(const char *device) {
    int ends[2];
    struct exported_name name;
    if (pipe(ends)) return fail(UNAVAILABLE, "no pipe");
    fflush(stdout);
    pid_t exporter = fork();
    if (exporter < 0) return fail(UNAVAILABLE, "no process");
    if (exporter == 0) {
        question_export(device, ends[1]);
        fprintf(stderr, "questions: exporter: %s\n", fail_text());
        _exit(1);
    }
    close(ends[1]);
    bool told = read(ends[0], &name, sizeof name) == sizeof name;
    close(ends[0]);
    status result = told ? OK : fail(UNAVAILABLE, "the exporter has failed");
    if (told && name.can) result = question_import(device, &name, exporter);
    if (told && !name.can) printf("{\"question\": \"exported\", \"lacks\": \"buffer_export\"}\n");
    if (!told || !name.can) kill(exporter, SIGKILL), waitpid(exporter, NULL, 0);
    return result;
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        status (*ask)(const char *device);
    } questions[] = {{"exported", question_exported},
                     {"process", question_process},
                     {"products", question_products},
                     {"launches", question_launches}};
    const char *device = "cuda", *only = NULL;
    int next = 1;
    if (count >= 3 && strcmp(arguments[1], "--device") == 0) {
        device = arguments[2];
        next = 3;
    }
    if (next < count) only = arguments[next++];
    bool known = !only;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) known |= only && !strcmp(only, questions[i].name);
    if (!known || next < count) {
        fprintf(stderr, "usage: questions [--device NAME] [exported|process|products|launches]\n");
        return USAGE;
    }
    status result = OK;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        if (only && strcmp(only, questions[i].name) != 0) continue;
        status answer = questions[i].ask(device);
        if (answer == OK) continue;
        fprintf(stderr, "questions: %s\n", fail_text());
        result = answer;
    }
    return status_exit_code(result);
}
