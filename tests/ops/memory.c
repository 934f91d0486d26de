// Uploads, downloads, copies, conversions, views and zero.
#include "tests/ops/harness.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

static const char *const names[] = {"f32", "bf16", "f16", "i32", "u8"};

// The nearest value of a float type with `digits` binary digits and least exponent `least`, ties to even.
static double memory_nearest(double value, int digits, int least, double most) {
    if (value == 0 || isnan(value) || isinf(value)) return value;
    int exponent;
    frexp(value, &exponent);
    double unit = ldexp(1, (exponent < least ? least : exponent) - digits);
    double result = nearbyint(value / unit) * unit;
    return fabs(result) > most ? copysign(INFINITY, value) : result;
}

static double memory_as_type(double value, enum element type) {
    if (type == ELEMENT_BF16) return memory_nearest(value, 8, -125, 0x1.fep127);
    if (type == ELEMENT_F16) return memory_nearest(value, 11, -13, 65504);
    return value;
}

static void memory_check_copy(struct harness *h) {
    int64_t rows = harness_range(h, 1, 30), columns = harness_range(h, 1, 300);
    enum element from = (enum element)harness_range(h, 0, 2), to = (enum element)harness_range(h, 0, 2);
    harness_case(h, "copy %lld x %lld, %s to %s", (long long)rows, (long long)columns, names[from], names[to]);
    struct tensor in = harness_tensor(h, from, rows, columns, FILL_EDGES, pow(10, (double)harness_range(h, -6, 6)));
    struct tensor out = harness_tensor(h, to, rows, columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->copy(h->backend, out, in));
    float *values = harness_values(h, in);
    double *want = harness_memory(h, (size_t)(rows * columns) * sizeof *want);
    for (int64_t i = 0; i < rows * columns; i++) want[i] = memory_as_type(values[i], to);
    harness_same(h, "copy", out);
    float *got = harness_values(h, out);
    for (int64_t i = 0; i < rows * columns; i++) {
        bool equal = got[i] == want[i] && !signbit(got[i]) == !signbit(want[i]);
        harness_hold(h, equal, "element %lld: %.9g became %.9g, not %.9g", (long long)i, values[i], got[i], want[i]);
        if (!equal) break;
    }
}

// Every bfloat16 and half goes to float32 and back; NaN stays NaN.
static void memory_check_round(struct harness *h, enum element type) {
    harness_case(h, "every %s", names[type]);
    struct tensor t = harness_dense(h, type, 256, 256, FILL_ZERO, 0);
    struct tensor wide = harness_dense(h, ELEMENT_F32, 256, 256, FILL_ZERO, 0);
    uint16_t *bits = harness_memory(h, 65536 * sizeof *bits), *back = harness_memory(h, 65536 * sizeof *back);
    for (int i = 0; i < 65536; i++) bits[i] = (uint16_t)i;
    harness_ok(h, h->ops->upload(h->backend, t, bits, type));
    harness_ok(h, h->ops->copy(h->backend, wide, t));
    harness_ok(h, h->ops->zero(h->backend, t));
    harness_ok(h, h->ops->copy(h->backend, t, wide));
    harness_ok(h, h->ops->download(h->backend, back, type, t));
    float *values = harness_values(h, wide);
    uint16_t top = type == ELEMENT_BF16 ? 0x7f80 : 0x7c00;
    for (int i = 0; i < 65536; i++) {
        bool nan = (bits[i] & 0x7fff) > top;
        bool right = nan ? isnan(values[i]) && (back[i] & 0x7fff) > top : back[i] == bits[i];
        harness_hold(h, right, "%04x became %g and %04x", bits[i], values[i], back[i]);
    }
}

// Bytes, as pixels are, in rows that are apart.
static void memory_check_copy_bytes(struct harness *h) {
    enum { rows = 5, columns = 37, apart = 41 };
    unsigned char values[rows * columns], copied[rows * columns];
    harness_case(h, "copy of bytes");
    struct tensor in = tensor_columns(harness_dense(h, ELEMENT_U8, rows, apart, FILL_ZERO, 0), 0, columns);
    struct tensor out = harness_dense(h, ELEMENT_U8, rows, columns, FILL_ZERO, 0);
    for (int i = 0; i < rows * columns; i++) values[i] = (unsigned char)(i * 7 + 1);
    harness_ok(h, h->ops->upload(h->backend, in, values, ELEMENT_U8));
    harness_ok(h, h->ops->copy(h->backend, out, in));
    harness_ok(h, h->ops->download(h->backend, copied, ELEMENT_U8, out));
    harness_hold(h, memcmp(values, copied, sizeof values) == 0, "bytes have changed");
}

static void memory_check_views(struct harness *h) {
    harness_case(h, "views");
    struct tensor whole = harness_dense(h, ELEMENT_F32, 20, 24, FILL_NORMAL, 1);
    float *values = harness_values(h, whole);
    float *part = harness_values(h, tensor_columns(tensor_rows(whole, 3, 5), 7, 11));
    for (int i = 0; i < 55; i++)
        harness_hold(h, part[i] == values[(3 + i / 11) * 24 + 7 + i % 11], "view of rows and columns, %d", i);
    float *shaped = harness_values(h, tensor_reshape(whole, 10, 48));
    for (int i = 0; i < 480; i++) harness_hold(h, shaped[i] == values[i], "another shape, %d", i);
    harness_ok(h, h->ops->zero(h->backend, tensor_columns(tensor_rows(whole, 3, 5), 7, 11)));
    float *after = harness_values(h, whole);
    for (int i = 0; i < 480; i++) {
        bool inside = i / 24 >= 3 && i / 24 < 8 && i % 24 >= 7 && i % 24 < 18;
        harness_hold(h, after[i] == (inside ? 0 : values[i]), "zero of a view, %d", i);
    }
}

static void memory_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor a = harness_dense(h, ELEMENT_F32, 4, 5, FILL_NORMAL, 1),
                  b = harness_dense(h, ELEMENT_F32, 5, 4, FILL_ZERO, 1);
    harness_hold(h, h->ops->copy(h->backend, b, a) == BUG, "a copy to another shape");
    harness_hold(h, h->ops->zero(h->backend, tensor_rows(a, 3, 30)) == BUG, "a view beyond its buffer");
    struct buffer *buffer = NULL;
    harness_ok(h, h->ops->buffer_new(h->backend, 0, &buffer));
    h->ops->buffer_free(h->backend, &buffer);
    harness_hold(h, !buffer, "a freed buffer's pointer");
    harness_ok(h, h->ops->buffer_new(h->backend, 3 << 20, &buffer));
    struct tensor all = {buffer, 0, ELEMENT_F32, 3, 1 << 18, 1 << 18};
    float *values = harness_values(h, all);
    bool zero = true;
    for (int i = 0; i < 3 << 18; i++) zero = zero && values[i] == 0;
    harness_hold(h, zero, "a new buffer is zero");
    h->ops->buffer_free(h->backend, &buffer);
    harness_ok(h, h->ops->wait(h->backend));
}

// A missing device or type is reported before anything is created.
static void memory_check_devices(struct harness *h) {
    harness_case(h, "devices");
    struct backend *none;
    harness_hold(h, backend_open(&none, &(struct backend_options){.device = "abacus"}) == USAGE && !none,
                 "an unknown device");
    harness_hold(h, backend_open(&none, &(struct backend_options){.device = "cudas"}) == USAGE && !none, "cudas");
    harness_hold(h, h->backend->ops->supports(h->backend, ELEMENT_F32) == OK, "float32");
    harness_hold(h, h->backend->ops->supports(h->backend, ELEMENT_F16) == UNAVAILABLE, "half");
    backend_close(&none);
}

// A backend with memory of its own says how much; only a backend that shares memory can export and import it.
static void memory_check_info(struct harness *h) {
    harness_case(h, "info");
    struct backend_info info = {0};
    harness_ok(h, h->backend->ops->info(h->backend, &info));
    harness_hold(h, info.device && strncmp(info.device, h->ops->name, strlen(h->ops->name)) == 0, "the device's name");
    harness_hold(h, info.chunk_rows[ELEMENT_F32] > 0 && info.chunk_rows[ELEMENT_BF16] > 0 && info.chunk_patches > 0,
                 "the lengths of chunks");
    harness_hold(h, info.memory_free <= info.memory, "more memory is free than there is");
    harness_hold(h, !h->ops->buffer_export == !h->ops->buffer_import, "export without import");
}

// Returns the signal that ends a child process that reads a buffer's memory outside an operation, or 0.
static int memory_signal_of_reading(const unsigned char *memory) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(const volatile unsigned char *)memory != 0);
    }
    int how = 0;
    if (child < 0 || waitpid(child, &how, 0) != child) return -1;
    return WIFSIGNALED(how) ? WTERMSIG(how) : 0;
}

static void memory_check_guard(struct harness *h) {
    harness_case(h, "guard");
    struct tensor t = harness_dense(h, ELEMENT_F32, 3, 3, FILL_NORMAL, 1);
    int caught = memory_signal_of_reading(t.buffer->data);
    harness_hold(h, caught == (h->guarded ? SIGSEGV : 0), "reading a buffer from outside: signal %d", caught);
}

static void memory_check(struct harness *h) {
    memory_check_devices(h);
    memory_check_info(h);
    if (h->cpu) memory_check_guard(h);
    for (int i = 0; i < 60; i++) memory_check_copy(h);
    memory_check_copy_bytes(h);
    memory_check_round(h, ELEMENT_BF16);
    memory_check_round(h, ELEMENT_F16);
    memory_check_views(h);
    memory_check_refusals(h);
}

static void memory_time_all(struct harness *h) {
    for (int i = 0; i < 4; i++) {
        enum element from = i & 1 ? ELEMENT_BF16 : ELEMENT_F32, to = i & 2 ? ELEMENT_BF16 : ELEMENT_F32;
        harness_case(h, "timing");
        const struct tensor out = harness_dense(h, to, 4096, 4096, FILL_ZERO, 1);
        const struct tensor in = harness_dense(h, from, 4096, 4096, FILL_NORMAL, 1);
        HARNESS_TIME(h, 0, 4096.0 * 4096 * (double)(element_size(from) + element_size(to)),
                     h->ops->copy(h->backend, out, in), "copy %s to %s 4096x4096", names[from], names[to]);
    }
}

const struct suite suite_memory = {"memory", memory_check, memory_time_all};
