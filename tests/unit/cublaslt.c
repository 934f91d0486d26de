// cuBLASLt behind the CUDA backend, with the emulator's (tests/emulate/cublasLt.h): which algorithms are admitted, that
// the bits of products are the same with them and without, and what is kept on disk.
#include "tests/unit/unit.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "shared/base/file.h"
#include "tests/emulate/cublasLt.h"
#include "tests/emulate/emulated.h"

enum { WHOLE = 1 << ALGORITHM_WHOLE, ALL = (1 << ALGORITHMS) - 1 };

static struct {
    char cache[64], plugin[4096];
    struct emulated_cublaslt *library; // NULL without the plug-in
    struct emulated_kernel **kernels;
} it;

static struct backend *open_backend(const char *device) {
    struct backend *backend;
    MUST(backend_open(&backend, &(struct backend_options){.device = device}));
    return backend;
}

static int setup(void **state) {
    (void)state;
    const char *dir = getenv("CARAVAN_LIB");
    snprintf(it.plugin, sizeof it.plugin, "%s/libcaravan-emulated.so", dir ? dir : ".");
    void *library = dlopen(it.plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0; // not built for the thread sanitizer
    it.library = dlsym(library, "emulated_cublaslt");
    it.kernels = dlsym(library, "emulated_kernels");
    snprintf(it.cache, sizeof it.cache, "%s", "/tmp/caravan-cublaslt-XXXXXX");
    return it.library && mkdtemp(it.cache) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return it.library && dir_remove(it.cache) != OK;
}

// Nothing is kept, and these algorithms are there; the library named is used.
static void begin(unsigned offered) {
    if (!it.library) skip();
    char kept[128];
    snprintf(kept, sizeof kept, "%s/caravan", it.cache);
    MUST(dir_remove(kept));
    setenv("CARAVAN_CUBLASLT", it.plugin, 1);
    setenv("XDG_CACHE_HOME", it.cache, 1);
    *it.library = (struct emulated_cublaslt){.version = 1, .offered = offered};
}

static void forget_runs(void) {
    memset(it.library->runs, 0, sizeof it.library->runs);
    it.library->asked = 0;
}

static int runs_of_all(void) {
    int runs = 0;
    for (int i = 0; i < ALGORITHMS; i++) runs += it.library->runs[i];
    return runs;
}

// ---- products ----

struct product_case {
    int64_t tokens, in, out;
    bool f32, bias, forward_only;
};

// A matrix in a buffer of its own, of normal numbers; the caller frees t.buffer.
static struct tensor matrix(struct backend *b, enum element type, int64_t rows, int64_t columns, uint64_t seed) {
    struct tensor t = {.type = type, .rows = rows, .columns = columns, .stride = columns};
    size_t count = (size_t)(rows * columns);
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) values[i] = (float)(int32_t)ops_mix64(seed << 40 ^ i) * 0x1p-30f;
    MUST(b->ops->buffer_new(b, count * element_size(type), &t.buffer));
    MUST(b->ops->upload(b, t, values, ELEMENT_F32));
    free(values);
    return t;
}

// Hashes the bits of the product, of the gradient of its input and of the gradient of its weight.
static void compute(struct backend *b, const struct product_case *c, uint64_t hashes[3]) {
    enum element type = c->f32 ? ELEMENT_F32 : ELEMENT_BF16;
    struct tensor t[] = {matrix(b, ELEMENT_BF16, c->tokens, c->in, 1),
                         matrix(b, ELEMENT_BF16, c->out, c->in, 2),
                         matrix(b, type, c->tokens, c->out, 3),
                         matrix(b, ELEMENT_BF16, c->tokens, c->out, 4),
                         matrix(b, type, c->tokens, c->in, 5),
                         matrix(b, type, c->out, c->in, 6),
                         matrix(b, type, 1, c->out, 7)};
    struct weight *weight;
    MUST(b->ops->weight_new(b, &weight, t[1], false));
    MUST(b->ops->linear(b, t[2], t[0], weight, c->bias ? t[6] : (struct tensor){0}, false));
    if (!c->forward_only) {
        MUST(b->ops->linear_grad_input(b, t[4], t[3], weight, c->bias));
        MUST(b->ops->linear_grad_weight(b, t[5], (struct tensor){0}, t[3], t[0]));
    }
    static const int results[] = {2, 4, 5};
    for (int i = 0; i < 3; i++) {
        struct tensor out = t[results[i]];
        size_t count = (size_t)(out.rows * out.columns);
        float *values = malloc(count * sizeof *values);
        assert_non_null(values);
        MUST(b->ops->download(b, values, ELEMENT_F32, out));
        hashes[i] = 0;
        for (size_t j = 0; j < count; j++) {
            uint32_t bits;
            memcpy(&bits, &values[j], sizeof bits);
            hashes[i] = ops_mix64(hashes[i] ^ bits);
        }
        free(values);
    }
    b->ops->weight_free(b, &weight);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) b->ops->buffer_free(b, &t[i].buffer);
}

static const struct product_case wide = {.tokens = 90, .in = 72, .out = 40, .bias = true};

// ---- admission ----

static const char *const devices[] = {"emulated:0", "emulated:1"};

// Outputs of both types, with and without bias; sizes that end within a step or a tile; rows that are not aligned; more
// rows than a trial has.
TEST(what_is_admitted_gives_the_own_products_bits) {
    static const struct product_case cases[] = {{.tokens = 90, .in = 72, .out = 136, .bias = true},
                                                {.tokens = 65, .in = 40, .out = 24, .f32 = true, .bias = true},
                                                {.tokens = 130, .in = 64, .out = 8, .f32 = true},
                                                {.tokens = 130, .in = 132, .out = 141}, // copied to aligned rows
                                                {.tokens = 65, .in = 8, .out = 4360, .forward_only = true}};
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (d > 0 && i > 0) continue;
            uint64_t want[3], got[3], again[3]; // the second time nothing is tried
            begin(WHOLE);
            setenv("CARAVAN_CUBLASLT", "none", 1);
            struct backend *own = open_backend(devices[d]);
            compute(own, &cases[i], want);
            backend_close(&own);
            assert_int_equal(it.library->asked + runs_of_all(), 0);
            setenv("CARAVAN_CUBLASLT", it.plugin, 1);
            struct backend *backend = open_backend(devices[d]);
            compute(backend, &cases[i], got);
            forget_runs();
            compute(backend, &cases[i], again);
            backend_close(&backend);
            assert_memory_equal(got, want, sizeof want);
            assert_memory_equal(again, want, sizeof want);
            assert_int_equal(it.library->asked, 0);
            assert_int_equal(runs_of_all(), cases[i].forward_only ? 1 : 3);
        }
    }
}

// Whether this algorithm alone serves any of the three products, after it has been tried or not.
static bool is_admitted(enum emulated_algorithm algorithm, bool *tried) {
    uint64_t hashes[3];
    begin(1u << algorithm);
    struct backend *backend = open_backend("emulated:0");
    compute(backend, &wide, hashes);
    *tried = it.library->runs[algorithm] > 0;
    forget_runs();
    compute(backend, &wide, hashes);
    backend_close(&backend);
    return it.library->runs[algorithm] > 0;
}

// What says that it splits, or wants memory to exchange parts of sums, is not even tried: here all of them would give
// the right bits.
TEST(an_algorithm_that_declares_a_split_is_not_tried) {
    bool tried;
    for (enum emulated_algorithm a = ALGORITHM_SPLIT; a <= ALGORITHM_WORKSPACE; a++) {
        assert_false(is_admitted(a, &tried));
        assert_false(tried);
    }
}

// What splits without saying so, or from some number of tokens on, gives other bits in a trial.
TEST(an_algorithm_that_splits_unsaid_is_found_by_a_trial) {
    bool tried;
    for (enum emulated_algorithm a = ALGORITHM_HALVES; a <= ALGORITHM_FEW; a++) {
        assert_false(is_admitted(a, &tried));
        assert_true(tried);
    }
}

TEST(an_algorithm_that_the_library_refuses_is_left_out) {
    bool tried;
    assert_false(is_admitted(ALGORITHM_REFUSED, &tried));
    assert_true(tried);
    assert_true(is_admitted(ALGORITHM_WHOLE, &tried));
}

// The first of equal bits serves, in the order of the library.
TEST(the_first_algorithm_of_equal_bits_serves) {
    uint64_t hashes[3];
    begin(ALL);
    struct backend *backend = open_backend("emulated:0");
    compute(backend, &wide, hashes);
    forget_runs();
    compute(backend, &wide, hashes);
    backend_close(&backend);
    assert_int_equal(it.library->runs[ALGORITHM_WHOLE], 3);
    assert_int_equal(runs_of_all(), 3);
}

// One product of 90 tokens, 32 inner elements and 24 outputs, which are the first columns of matrices with more.
static void compute_apart(struct backend *b, int64_t in_columns, int64_t weight_columns, int64_t out_columns,
                          bool record) {
    struct tensor t[] = {matrix(b, ELEMENT_BF16, 90, in_columns, 1), matrix(b, ELEMENT_BF16, 24, weight_columns, 2),
                         matrix(b, ELEMENT_BF16, 90, out_columns, 3)};
    struct tensor in = tensor_columns(t[0], 0, 32), plain = tensor_columns(t[1], 0, 32),
                  out = tensor_columns(t[2], 0, 24);
    struct weight *weight;
    struct graph *graph = NULL;
    MUST(b->ops->weight_new(b, &weight, plain, false));
    if (record) MUST(b->ops->graph_begin(b));
    MUST(b->ops->linear(b, out, in, weight, (struct tensor){0}, false));
    if (record) MUST(b->ops->graph_end(b, &graph));
    if (record) MUST(b->ops->graph_launch(b, graph));
    MUST(b->ops->wait(b));
    b->ops->graph_free(b, &graph);
    b->ops->weight_free(b, &weight);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) b->ops->buffer_free(b, &t[i].buffer);
}

// Few tokens, and rows that are not aligned, are the own product's; so is what is recorded before it has been computed.
TEST(small_and_unaligned_products_are_the_own_ones) {
    uint64_t hashes[3];
    begin(ALL);
    SCOPED(struct backend *, backend_close) backend = open_backend("emulated:0");
    compute(backend, &(struct product_case){.tokens = 8, .in = 32, .out = 24}, hashes);
    compute_apart(backend, 33, 32, 24, false);
    compute_apart(backend, 32, 33, 24, false);
    compute_apart(backend, 32, 32, 25, false);
    compute_apart(backend, 32, 32, 24, true);
    assert_int_equal(it.library->asked + runs_of_all(), 0);
    compute_apart(backend, 40, 48, 32, false);
    assert_int_equal(it.library->asked, 1);
}

// An algorithm that this process has run is recorded. Before that the own product is, whose kernels are loaded then.
TEST(a_graph_is_recorded_with_what_has_been_computed) {
    const struct product_case many = {.tokens = 96, .in = 32, .out = 24, .forward_only = true};
    uint64_t hashes[3];
    begin(ALL);
    SCOPED(struct backend *, backend_close) backend = open_backend("emulated:0");
    compute(backend, &many, hashes); // tries the algorithms, with the own product
    backend_close(&backend);
    for (struct emulated_kernel *kernel = *it.kernels; kernel; kernel = kernel->next) // as in a new process
        if (strstr(kernel->name, "gemm_bf16_kernel")) kernel->loaded = false;
    forget_runs();
    backend = open_backend("emulated:0");
    compute_apart(backend, many.tokens, many.in, many.out, true);
    assert_int_equal(runs_of_all(), 0);
    compute(backend, &many, hashes);
    assert_int_equal(runs_of_all(), 1);
    compute_apart(backend, many.tokens, many.in, many.out, true);
    assert_int_equal(runs_of_all(), 2);
    assert_int_equal(it.library->asked, 0);
}

// All memory of the trials is freed.
TEST(all_memory_of_the_trials_is_freed) {
    uint64_t hashes[3], free_bytes[2];
    begin(WHOLE);
    SCOPED(struct backend *, backend_close) backend = open_backend("emulated:0");
    struct backend_info info;
    compute(backend, &(struct product_case){.tokens = 8, .in = 72, .out = 136}, hashes);
    for (int i = 0; i < 2; i++) {
        MUST(backend->ops->info(backend, &info));
        free_bytes[i] = info.memory_free;
        compute(backend, &wide, hashes);
    }
    assert_true(it.library->asked > 0);
    assert_true(free_bytes[0] == free_bytes[1]);
}

// ---- the file ----

// Computes the case with a new backend; returns how often the library was asked for algorithms.
static int asked_anew(const struct product_case *c) {
    uint64_t hashes[3];
    forget_runs();
    struct backend *backend = open_backend("emulated:0");
    compute(backend, c, hashes);
    backend_close(&backend);
    return it.library->asked;
}

// The path of the one file that is kept.
static void kept_path(char path[512]) {
    char dir[128];
    snprintf(dir, sizeof dir, "%s/caravan", it.cache);
    DIR *entries = opendir(dir);
    assert_non_null(entries);
    *path = 0;
    for (struct dirent *e; (e = readdir(entries));) {
        if (*e->d_name == '.') continue;
        assert_int_equal(*path, 0);
        snprintf(path, 512, "%s/%s", dir, e->d_name);
    }
    closedir(entries);
    assert_int_not_equal(*path, 0);
}

TEST(verdicts_are_kept_between_processes) {
    begin(WHOLE);
    assert_int_equal(asked_anew(&wide), 3);
    assert_int_equal(asked_anew(&wide), 0);
    assert_int_equal(it.library->runs[ALGORITHM_WHOLE], 3);
    assert_int_equal(runs_of_all(), 3);
    struct product_case fewer = wide, more = wide;
    fewer.tokens = 65; // of the same class
    more.tokens = 129;
    assert_int_equal(asked_anew(&fewer), 0);
    assert_int_equal(asked_anew(&more), 3);
    assert_int_equal(asked_anew(&wide), 0);
    // That nothing is admitted is kept too.
    begin(1 << ALGORITHM_HALVES);
    assert_int_equal(asked_anew(&wide), 3);
    assert_int_equal(asked_anew(&wide), 0);
    assert_int_equal(runs_of_all(), 0);
}

// Another version of the library: everything is tried anew, once, and the old entries are gone.
TEST(another_version_of_the_library_is_tried_anew) {
    begin(WHOLE);
    assert_int_equal(asked_anew(&wide), 3);
    it.library->version = 2;
    assert_int_equal(asked_anew(&wide), 3);
    assert_int_equal(asked_anew(&wide), 0);
    it.library->version = 1;
    assert_int_equal(asked_anew(&wide), 3);
}

// A line that names another algorithm, half a line, and a file of something else.
TEST(a_damaged_file_of_verdicts_is_made_anew) {
    char path[512];
    SCOPED(struct buf, buf_release) content = {0};
    begin(WHOLE);
    assert_int_equal(asked_anew(&wide), 3);
    kept_path(path);
    MUST(file_read(path, &content));
    char *algorithm = strchr(content.data, '\n');
    for (int i = 0; i < 5; i++) algorithm = strchr(algorithm + 1, ' ');
    assert_int_equal(algorithm[1] - '0', ALGORITHM_WHOLE);
    algorithm[1] = '0' + ALGORITHM_HALVES;
    MUST(file_write_atomic(path, content.data, content.size));
    assert_int_equal(asked_anew(&wide), 1);
    assert_int_equal(asked_anew(&wide), 0);
    assert_int_equal(it.library->runs[ALGORITHM_HALVES], 0);
    MUST(file_write_atomic(path, content.data, content.size - 9));
    assert_int_equal(asked_anew(&wide), 2);
    for (size_t i = 0; i < content.size; i++) content.data[i] = (char)(i * 37);
    MUST(file_write_atomic(path, content.data, content.size));
    assert_int_equal(asked_anew(&wide), 3);
    assert_int_equal(asked_anew(&wide), 0);
}

TEST(without_a_place_to_keep_them_trials_are_repeated) {
    begin(WHOLE);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    assert_int_equal(asked_anew(&wide), 3);
    assert_int_equal(asked_anew(&wide), 3);
}

// A library that somebody names must be there.
TEST(a_library_that_is_named_must_be_there) {
    begin(WHOLE);
    struct backend *backend;
    static const char *const names[] = {"/nowhere/libcublasLt.so", "libc.so.6"};
    for (int i = 0; i < 2; i++) {
        setenv("CARAVAN_CUBLASLT", names[i], 1);
        assert_int_equal(backend_open(&backend, &(struct backend_options){.device = "emulated"}), UNAVAILABLE);
        assert_non_null(strstr(fail_text(), names[i]));
        assert_null(backend);
    }
}

int main(void) {
    return unit_run(setup, teardown);
}
