#include "tests/ops/harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/rng.h"
#include "tests/ops/state.h"

enum { pattern = 0xA5, margin = 128 };

// ---- cases ----

static void *harness_allocated(void *memory) {
    if (memory) return memory;
    fprintf(stderr, "harness: out of memory\n");
    exit(69);
}

void harness_failed(struct harness *h, const char *what) {
    struct harness_state *s = h->state;
    s->failed++;
    if (s->shown++ < 40) printf("FAILED %s, %s: %s: %s\n", s->suite, s->version, s->name, what);
}

static void harness_check_surroundings(struct harness *h, const struct placed_tensor *p) {
    unsigned char *bytes = harness_allocated(malloc(p->bytes));
    struct tensor all = {
        .buffer = p->buffer, .type = ELEMENT_U8, .rows = 1, .columns = (int64_t)p->bytes, .stride = (int64_t)p->bytes};
    harness_ok(h, h->ops->download(h->backend, bytes, ELEMENT_U8, all));
    size_t size = element_size(p->view.type), row = (size_t)p->view.columns * size;
    for (int64_t i = 0; i < p->view.rows; i++) {
        memset(bytes + p->view.offset + (size_t)(i * p->view.stride) * size, pattern, row);
    }
    size_t at = 0;
    while (at < p->bytes && bytes[at] == pattern) at++;
    harness_hold(h, at == p->bytes, "byte %zu around a tensor of %lld x %lld has changed", at, (long long)p->view.rows,
                 (long long)p->view.columns);
    free(bytes);
}

void harness_end(struct harness *h) {
    struct harness_state *s = h->state;
    for (size_t i = 0; i < s->placed_count; i++) {
        harness_check_surroundings(h, &s->placed[i]);
        h->ops->buffer_free(h->backend, &s->placed[i].buffer);
    }
    for (size_t i = 0; i < s->block_count; i++) free(s->blocks[i]);
    s->placed_count = s->block_count = 0;
}

void harness_case(struct harness *h, const char *format, ...) {
    harness_end(h);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(h->state->name, sizeof h->state->name, format, arguments);
    va_end(arguments);
    h->state->cases++;
}

int harness_repeats(const struct harness *h, int count) {
    return (count + h->share - 1) / h->share;
}

void *harness_memory(struct harness *h, size_t bytes) {
    struct harness_state *s = h->state;
    if (s->block_count == sizeof s->blocks / sizeof *s->blocks) {
        fprintf(stderr, "harness: too many blocks in a case\n");
        exit(70);
    }
    return s->blocks[s->block_count++] = harness_allocated(calloc(bytes ? bytes : 1, 1));
}

// ---- random numbers ----

double harness_unit(struct harness *h) {
    return rng_uniform(h->state->seed, h->state->stream, h->state->drawn++);
}

enum element harness_float_type(struct harness *h) {
    if (h->layout != HARNESS_ANY) return h->layout == HARNESS_F32 ? ELEMENT_F32 : ELEMENT_BF16;
    return harness_unit(h) < 0.5 ? ELEMENT_F32 : ELEMENT_BF16;
}

double harness_normal(struct harness *h) {
    return rng_normal(h->state->seed, h->state->stream, h->state->drawn++);
}

int64_t harness_range(struct harness *h, int64_t low, int64_t high) {
    double which = harness_unit(h);
    if (which < 0.1) return low;
    if (which < 0.2) return high;
    return low + (int64_t)rng_below(h->state->seed, h->state->stream, h->state->drawn++, (uint64_t)(high - low + 1));
}

int64_t harness_columns(struct harness *h, int64_t low, int64_t high) {
    int64_t columns = harness_range(h, low, high);
    if (h->layout == HARNESS_ANY) return columns;
    return (columns + 7) / 8 * 8 + (h->layout == HARNESS_HALVES ? 4 : 0);
}

bool harness_next_layout(struct harness *h) {
    h->layout = h->layout == HARNESS_HALVES ? HARNESS_ANY : h->layout + 1;
    return h->layout != HARNESS_ANY;
}

static float harness_edge(struct harness *h, float before) {
    static const float edges[] = {0.0f, -0.0f, 1e-40f, -1e-42f, 1e-30f, 1.0f, -1.0f, 1e4f, -1e4f, 0.5f};
    int64_t which = harness_range(h, 0, 10);
    return which == 10 ? before : edges[which];
}

// The sum of a few uniform numbers is close enough to normal, and fast.
static float harness_quick_normal(uint64_t bits) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += (int)(bits >> (16 * i) & 0xffff) - 32768;
    return (float)sum * (1.0f / 37837.0f);
}

static void harness_fill_values(struct harness *h, float *values, int64_t count, enum fill fill, double scale) {
    uint64_t stream = h->state->drawn++;
    for (int64_t i = 0; i < count && fill != FILL_ZERO; i++) {
        uint64_t bits = rng_bits(h->state->seed ^ stream * 0x9E3779B97F4A7C15u, h->state->stream, (uint64_t)i);
        values[i] = harness_quick_normal(bits) * (float)scale;
        if (fill == FILL_EDGES && bits % 7 == 0) values[i] = harness_edge(h, i ? values[i - 1] : 0);
    }
}

// ---- tensors ----

static struct tensor harness_place(struct harness *h, enum element type, int64_t rows, int64_t columns,
                                   int64_t stride) {
    struct harness_state *s = h->state;
    if (s->placed_count == sizeof s->placed / sizeof *s->placed) {
        fprintf(stderr, "harness: too many tensors in a case\n");
        exit(70);
    }
    struct placed_tensor *p = &s->placed[s->placed_count++];
    size_t size = element_size(type);
    p->bytes = 2 * margin + (size_t)(rows * stride) * size;
    harness_must(h->ops->buffer_new(h->backend, p->bytes, &p->buffer));
    p->view = (struct tensor){p->buffer, margin, type, rows, columns, stride};
    unsigned char *bytes = harness_allocated(malloc(p->bytes));
    memset(bytes, pattern, p->bytes);
    struct tensor all = {p->buffer, 0, ELEMENT_U8, 1, (int64_t)p->bytes, (int64_t)p->bytes};
    harness_must(h->ops->upload(h->backend, all, bytes, ELEMENT_U8));
    free(bytes);
    return p->view;
}

static struct tensor harness_filled(struct harness *h, struct tensor t, enum fill fill, double scale) {
    float *values = harness_allocated(calloc((size_t)(t.rows * t.columns) + 1, sizeof *values));
    if (t.type <= ELEMENT_F16) harness_fill_values(h, values, t.rows * t.columns, fill, scale);
    harness_set(h, t, values);
    free(values);
    return t;
}

struct tensor harness_tensor(struct harness *h, enum element type, int64_t rows, int64_t columns, enum fill fill,
                             double scale) {
    static const int64_t gaps[] = {0, 0, 16, 1, 3};
    int64_t gap = gaps[harness_range(h, 0, h->layout == HARNESS_ANY ? 4 : 2)];
    return harness_filled(h, harness_place(h, type, rows, columns, columns + gap), fill, scale);
}

struct tensor harness_dense(struct harness *h, enum element type, int64_t rows, int64_t columns, enum fill fill,
                            double scale) {
    return harness_filled(h, harness_place(h, type, rows, columns, columns), fill, scale);
}

struct tensor harness_index(struct harness *h, int64_t rows, int64_t below) {
    struct tensor t = harness_place(h, ELEMENT_I32, rows, 1, 1);
    int32_t *numbers = harness_memory(h, (size_t)rows * sizeof *numbers);
    for (int64_t i = 0; i < rows; i++) numbers[i] = (int32_t)harness_range(h, 0, below - 1);
    harness_must(h->ops->upload(h->backend, t, numbers, ELEMENT_I32));
    return t;
}

float *harness_values(struct harness *h, struct tensor t) {
    float *values = harness_memory(h, (size_t)(t.rows * t.columns) * sizeof *values);
    harness_must(h->ops->download(h->backend, values, ELEMENT_F32, t));
    return values;
}

double *harness_doubles(struct harness *h, struct tensor t) {
    const float *values = harness_values(h, t);
    double *out = harness_memory(h, (size_t)(t.rows * t.columns) * sizeof *out);
    for (int64_t i = 0; i < t.rows * t.columns; i++) out[i] = (double)values[i];
    return out;
}

int32_t *harness_numbers(struct harness *h, struct tensor t) {
    int32_t *numbers = harness_memory(h, (size_t)(t.rows * t.columns) * sizeof *numbers);
    harness_must(h->ops->download(h->backend, numbers, ELEMENT_I32, t));
    return numbers;
}

void harness_set(struct harness *h, struct tensor t, const void *values) {
    harness_must(h->ops->upload(h->backend, t, values, t.type <= ELEMENT_F16 ? ELEMENT_F32 : t.type));
}

uint16_t *harness_words(struct harness *h, struct tensor t) {
    uint16_t *words = harness_memory(h, (size_t)(t.rows * t.columns) * sizeof *words);
    harness_must(h->ops->download(h->backend, words, ELEMENT_U16, t));
    return words;
}

float harness_rounded(float value, enum element type) {
    if (type == ELEMENT_F32) return value;
    union {
        float f;
        uint32_t u;
    } bits = {value};
    bits.u = (bits.u + 0x7fff + (bits.u >> 16 & 1)) & 0xffff0000u;
    return bits.f;
}

// ---- verdicts ----

void harness_must(status result) {
    if (result == OK) return;
    fprintf(stderr, "harness: %s\n", fail_text());
    exit((int)result);
}

void harness_ok(struct harness *h, status result) {
    if (result != OK) harness_failed(h, fail_text());
}

void harness_broken(struct harness *h, status called, const char *what) {
    status waited = h->ops->wait(h->backend);
    harness_hold(h, called == BUG || waited == BUG, "%s is not reported", what);
    harness_ok(h, h->ops->wait(h->backend)); // only once
}

void harness_hold(struct harness *h, bool holds, const char *format, ...) {
    if (holds) return;
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    harness_failed(h, text);
}

static void *harness_raw(struct harness *h, struct tensor t, size_t *bytes) {
    *bytes = (size_t)(t.rows * t.columns) * element_size(t.type);
    void *data = harness_allocated(malloc(*bytes + 1));
    harness_must(h->ops->download(h->backend, data, t.type, t));
    return data;
}

static uint64_t harness_digest(const unsigned char *data, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ data[i]) * 0x100000001b3u;
    return hash;
}

void harness_same(struct harness *h, const char *what, struct tensor out) {
    struct harness_state *s = h->state;
    size_t bytes;
    void *data = harness_raw(h, out, &bytes);
    uint64_t hash = harness_digest(data, bytes);
    free(data);
    if (h->first) {
        if (s->digest_count == s->digest_capacity) {
            s->digest_capacity = s->digest_capacity ? 2 * s->digest_capacity : 1024;
            s->digests = harness_allocated(realloc(s->digests, s->digest_capacity * sizeof *s->digests));
        }
        s->digests[s->digest_count++] = hash;
    } else {
        harness_hold(h, s->digest_next < s->digest_count && s->digests[s->digest_next] == hash,
                     "%s: other bits than version %s", what, s->first_version);
        s->digest_next++;
    }
}

void harness_equal(struct harness *h, const char *what, struct tensor a, struct tensor b) {
    size_t bytes, others;
    unsigned char *data = harness_raw(h, a, &bytes), *other = harness_raw(h, b, &others);
    size_t at = 0, size = element_size(a.type);
    while (bytes == others && at < bytes && data[at] == other[at]) at++;
    harness_hold(h, bytes == others && at == bytes, "%s: bits differ at row %lld, column %lld", what,
                 (long long)(at / size) / (long long)(a.columns ? a.columns : 1),
                 (long long)(at / size) % (long long)(a.columns ? a.columns : 1));
    free(data);
    free(other);
}

static double harness_half_unit(enum element type, double want) {
    return type == ELEMENT_BF16 ? fabs(want) * 0x1p-8 : type == ELEMENT_F16 ? fabs(want) * 0x1p-11 + 0x1p-25 : 0;
}

void harness_near(struct harness *h, const char *what, struct tensor out, const double *want, double absolute,
                  double relative) {
    harness_same(h, what, out);
    if (!h->first) return;
    float *values = harness_allocated(malloc((size_t)(out.rows * out.columns) * sizeof *values + 1));
    harness_must(h->ops->download(h->backend, values, ELEMENT_F32, out));
    for (int64_t i = 0; i < out.rows * out.columns; i++) {
        double bound = absolute + relative * fabs(want[i]) + harness_half_unit(out.type, want[i]);
        if (values[i] == want[i] || fabs(values[i] - want[i]) <= bound) continue;
        harness_hold(h, false, "%s: row %lld, column %lld: %.9g, not %.9g (bound %.3g)", what,
                     (long long)(i / out.columns), (long long)(i % out.columns), values[i], want[i], bound);
        break;
    }
    free(values);
}
