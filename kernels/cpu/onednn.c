// The cache of oneDNN's products, by shape, with the least recently used dropped first; and whether oneDNN has packed
// ones. gemm.c divides a product into tiles and distributes them over the threads: oneDNN computes one tile in one
// thread.
#include "kernels/cpu/onednn.h"

#include <assert.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/simd.h"
#include "shared/base/memory.h"

// ---- the difference between oneDNN 2 (Debian 12) and oneDNN 3 (Debian 13) ----
//
// oneDNN 2 holds a memory descriptor by value and builds a product in two steps, through an operation descriptor.
// oneDNN 3 holds the descriptor behind a pointer and builds the product in one call. Everything else is the
// same in both. Nothing outside this section asks for the version.
//
// Measured with oneDNN 3.7 (tests/ops/linear.c checks it): dnnl_set_max_cpu_isa is still honoured; the formats BA16a64b
// and BA16a64b2a are still brgemm's own choice; and the sums of a row are the same for every number of rows and columns
// with one exception. A product of a single row with an inner length above 1024 is summed in another order, so oneDNN 3
// never gets one: such a row is padded with a second row of zeros.

static_assert(DNNL_VERSION_MAJOR == 2 || DNNL_VERSION_MAJOR == 3, "this major version of oneDNN is not supported");

// An owned descriptor of a matrix. Zeroed: none.
struct onednn_desc {
    dnnl_memory_desc_t desc;
};

#if DNNL_VERSION_MAJOR < 3
typedef const dnnl_memory_desc_t *const_dnnl_memory_desc_t; // oneDNN 3's name for a borrowed descriptor
#define ONEDNN_BORROWED(owned) (&(owned).desc)              // valid as long as the owned descriptor
enum { MIN_ONEDNN_ROWS = 1 };                               // the fewest rows whose sums have the common order
#else
#define ONEDNN_BORROWED(owned) ((owned).desc) // the same
enum { MIN_ONEDNN_ROWS = 2 }; // the same
#endif

// Describes a matrix of rows x columns. The caller releases it with onednn_desc_release.
static dnnl_status_t onednn_desc_init(struct onednn_desc *out, dnnl_data_type_t type, dnnl_format_tag_t tag,
                                      int64_t rows, int64_t columns) {
    dnnl_dims_t shape = {rows, columns};
#if DNNL_VERSION_MAJOR < 3
    return dnnl_memory_desc_init_by_tag(&out->desc, 2, shape, type, tag);
#else
    return dnnl_memory_desc_create_with_tag(&out->desc, 2, shape, type, tag);
#endif
}

// A zeroed descriptor is fine.
static void onednn_desc_release(struct onednn_desc *desc) {
#if DNNL_VERSION_MAJOR < 3
    (void)desc;
#else
    if (desc->desc) dnnl_memory_desc_destroy(desc->desc);
    desc->desc = NULL;
#endif
}

static const dnnl_data_type_t onednn_types[] = {[ELEMENT_F32] = dnnl_f32, [ELEMENT_BF16] = dnnl_bf16};
static_assert(ELEMENT_F32 == 0 && ELEMENT_BF16 == 1, "onednn_types is indexed by element type");

static status onednn_check(dnnl_status_t code, const char *call) {
    if (code == dnnl_success) return OK;
    return fail(code == dnnl_out_of_memory ? UNAVAILABLE : BUG, "oneDNN: %s failed with status %d", call, (int)code);
}

// *out = oneDNN's best implementation of out = in x matrix for a shape whose matrix has the format `tag`. The caller
// destroys it with dnnl_primitive_desc_destroy.
static status matmul_describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const struct matmul_shape *shape,
                              dnnl_format_tag_t tag) {
    dnnl_data_type_t type = onednn_types[shape->type];
    struct onednn_desc in = {0}, matrix = {0}, result = {0};
    dnnl_primitive_attr_t attr = NULL;
    status code;
    TRY_TO(code, done, onednn_check(onednn_desc_init(&in, type, dnnl_ab, shape->rows, shape->inner), "memory_desc"));
    TRY_TO(code, done, onednn_check(onednn_desc_init(&matrix, type, tag, shape->inner, shape->columns), "memory_desc"));
    TRY_TO(code, done,
           onednn_check(onednn_desc_init(&result, dnnl_f32, dnnl_ab, shape->rows, shape->columns), "memory_desc"));
    TRY_TO(code, done, onednn_check(dnnl_primitive_attr_create(&attr), "primitive_attr_create"));
    TRY_TO(code, done,
           onednn_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad_mode"));
#if DNNL_VERSION_MAJOR < 3
    dnnl_matmul_desc_t matmul;
    dnnl_status_t made =
        dnnl_matmul_desc_init(&matmul, ONEDNN_BORROWED(in), ONEDNN_BORROWED(matrix), NULL, ONEDNN_BORROWED(result));
    if (made == dnnl_success) made = dnnl_primitive_desc_create(out, &matmul, attr, engine, NULL);
#else
    dnnl_status_t made = dnnl_matmul_primitive_desc_create(out, engine, ONEDNN_BORROWED(in), ONEDNN_BORROWED(matrix),
                                                           NULL, ONEDNN_BORROWED(result), attr);
#endif
    code = onednn_check(made, "matmul_primitive_desc");
done:
    if (attr) dnnl_primitive_attr_destroy(attr);
    onednn_desc_release(&result);
    onednn_desc_release(&matrix);
    onednn_desc_release(&in);
    return code;
}

// ---- the library ----

// From libgomp: the number of threads in the calling thread's parallel regions. Without it Debian's oneDNN starts a
// team of spinning threads for each of our threads.
void omp_set_num_threads(int threads);

enum { CACHE_CAPACITY = 512, BUCKET_COUNT = 256 };

// The arguments of a product: the input, the matrix, the output and scratch memory.
enum { MATMUL_ARG_COUNT = 4 };
static const struct {
    int name;
    dnnl_query_t query; // of its descriptor
} matmul_args[MATMUL_ARG_COUNT] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                                   {DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
                                   {DNNL_ARG_DST, dnnl_query_dst_md},
                                   {DNNL_ARG_SCRATCHPAD, dnnl_query_scratchpad_md}};

struct matmul {
    struct matmul *next; // in the bucket
    uint64_t last_use;
    struct matmul_shape shape;
    dnnl_primitive_t primitive;
    size_t scratch;                          // bytes
    dnnl_memory_t (*args)[MATMUL_ARG_COUNT]; // of each thread; their data pointers change with each call
};

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; // of each thread
    int threads;
    bool has[2]; // packed products of F32, BF16
    struct matmul *buckets[BUCKET_COUNT];
    int count;
    uint64_t uses;
};

// ---- products ----

static dnnl_format_tag_t matmul_packed_tag(enum element type) {
    return type == ELEMENT_BF16 ? dnnl_BA16a64b2a : dnnl_BA16a64b;
}

// Whether oneDNN chose its blocked code (brgemm).
static bool matmul_is_brgemm(const_dnnl_primitive_desc_t desc, const char **name) {
    *name = "none";
    if (dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)name) != dnnl_success) return false;
    return strncmp(*name, "brg", 3) == 0;
}

static void matmul_free(struct matmul *matmul, int threads) {
    for (int i = 0; matmul->args && i < threads; i++)
        for (int j = 0; j < MATMUL_ARG_COUNT; j++)
            if (matmul->args[i][j]) dnnl_memory_destroy(matmul->args[i][j]);
    free(matmul->args);
    if (matmul->primitive) dnnl_primitive_destroy(matmul->primitive);
    free(matmul);
}

size_t matmul_scratch(const struct matmul *matmul) {
    return matmul->scratch;
}

bool matmul_run(const struct onednn *onednn, const struct matmul *matmul, int thread, void *in, void *matrix,
                float *out, void *scratch) {
    omp_set_num_threads(1);
    assert(thread >= 0 && thread < onednn->threads);
    void *const data[MATMUL_ARG_COUNT] = {in, matrix, out, scratch};
    dnnl_exec_arg_t args[MATMUL_ARG_COUNT];
    for (int i = 0; i < MATMUL_ARG_COUNT; i++) {
        args[i] = (dnnl_exec_arg_t){matmul_args[i].name, matmul->args[thread][i]};
        if (dnnl_memory_set_data_handle(args[i].memory, data[i]) != dnnl_success) return false;
    }
    return dnnl_primitive_execute(matmul->primitive, onednn->streams[thread], MATMUL_ARG_COUNT, args) == dnnl_success;
}

// ---- the cache ----

static void onednn_drop_oldest(struct onednn *onednn) {
    struct matmul **oldest = NULL;
    for (int i = 0; i < BUCKET_COUNT; i++)
        for (struct matmul **link = &onednn->buckets[i]; *link; link = &(*link)->next)
            if (!oldest || (*link)->last_use < (*oldest)->last_use) oldest = link;
    assert(oldest);
    struct matmul *dropped = *oldest;
    *oldest = dropped->next;
    matmul_free(dropped, onednn->threads);
    onednn->count--;
}

status onednn_matmul(struct onednn *onednn, const struct matmul_shape *shape, struct matmul **out) {
    assert(onednn_has(onednn, shape->type) && shape->rows >= MIN_ONEDNN_ROWS && shape->columns % PACKED_BLOCK == 0);
    uint64_t hash = (uint64_t)shape->rows * 0x9E3779B97F4A7C15u ^ (uint64_t)shape->columns * 0xC2B2AE3D27D4EB4Fu ^
                    (uint64_t)shape->inner * 0x165667B19E3779F9u ^ (uint64_t)shape->type;
    struct matmul **bucket = &onednn->buckets[(hash >> 40) % BUCKET_COUNT];
    for (struct matmul *matmul = *bucket; matmul; matmul = matmul->next) {
        const struct matmul_shape *has = &matmul->shape;
        if (has->type != shape->type || has->rows != shape->rows || has->columns != shape->columns ||
            has->inner != shape->inner)
            continue;
        matmul->last_use = ++onednn->uses;
        *out = matmul;
        return OK;
    }
    if (onednn->count == CACHE_CAPACITY) onednn_drop_oldest(onednn);

    dnnl_primitive_desc_t desc = NULL;
    const char *name;
    struct matmul *matmul;
    *out = NULL;
    NEW(&matmul, 1);
    matmul->shape = *shape;
    status result;
    TRY_TO(result, done, matmul_describe(&desc, onednn->engine, shape, matmul_packed_tag(shape->type)));
    // oneDNN would compute a format that it has no fast code for with its slow reference: that is an error.
    if (!matmul_is_brgemm(desc, &name)) {
        result = fail(BUG, "oneDNN has no packed product for %lld x %lld x %lld: its implementation is %s",
                      (long long)shape->rows, (long long)shape->columns, (long long)shape->inner, name);
        goto done;
    }
    matmul->scratch = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    TRY_TO(result, done, onednn_check(dnnl_primitive_create(&matmul->primitive, desc), "primitive_create"));
    NEW(&matmul->args, (size_t)onednn->threads);
    for (int i = 0; i < onednn->threads * MATMUL_ARG_COUNT; i++) {
        int arg = i % MATMUL_ARG_COUNT;
        const_dnnl_memory_desc_t described = dnnl_primitive_desc_query_md(desc, matmul_args[arg].query, 0);
        TRY_TO(result, done,
               onednn_check(dnnl_memory_create(&matmul->args[i / MATMUL_ARG_COUNT][arg], described, onednn->engine,
                                               DNNL_MEMORY_NONE),
                            "memory_create"));
    }
    matmul->last_use = ++onednn->uses;
    matmul->next = *bucket;
    *out = *bucket = matmul;
    onednn->count++;
done:
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (result != OK) matmul_free(matmul, onednn->threads);
    return result;
}

// ---- set-up ----

bool onednn_has(const struct onednn *onednn, enum element type) {
    assert(type <= ELEMENT_BF16);
    return onednn->has[type];
}

int64_t onednn_min_rows(void) {
    return MIN_ONEDNN_ROWS;
}

// Asks oneDNN for its own choice of code and format for a typical product: whether it is the packed one that
// gemm_pack.c writes.
static bool onednn_chooses_packed(const struct onednn *onednn, enum element type) {
    const struct matmul_shape typical = {.type = type, .rows = 128, .columns = 256, .inner = 768};
    struct onednn_desc packed = {0};
    dnnl_primitive_desc_t desc = NULL;
    const char *name;
    if (matmul_describe(&desc, onednn->engine, &typical, dnnl_format_tag_any) != OK) return false;
    const bool has =
        matmul_is_brgemm(desc, &name) &&
        onednn_desc_init(&packed, onednn_types[type], matmul_packed_tag(type), typical.inner, typical.columns) ==
            dnnl_success &&
        dnnl_memory_desc_equal(dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0), ONEDNN_BORROWED(packed));
    onednn_desc_release(&packed);
    dnnl_primitive_desc_destroy(desc);
    return has;
}

status onednn_new(struct onednn **out, int threads) {
    struct onednn *onednn;
    NEW(&onednn, 1);
    status result;
    onednn->threads = threads;
    omp_set_num_threads(1);
    // With AMX oneDNN sums a row in an order that depends on how many rows the product has (amx.h). Only the first call
    // in a process has an effect, so the result of a later call does not matter.
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    dnnl_set_primitive_cache_capacity(0); // this file has its own cache
    TRY_TO(result, failed, onednn_check(dnnl_engine_create(&onednn->engine, dnnl_cpu, 0), "engine_create"));
    NEW(&onednn->streams, (size_t)threads);
    for (int i = 0; i < threads; i++) {
        TRY_TO(result, failed,
               onednn_check(dnnl_stream_create(&onednn->streams[i], onednn->engine, dnnl_stream_default_flags),
                            "stream_create"));
    }
    const char *set = getenv("CARAVAN_ONEDNN");
    const bool used = simd_best() >= SIMD_AVX512 && !(set && strcmp(set, "none") == 0);
    for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++)
        onednn->has[type] = used && onednn_chooses_packed(onednn, type);
    *out = onednn;
    return OK;
failed:
    onednn_free(&onednn);
    return result;
}

void onednn_free(struct onednn **pointer) {
    struct onednn *onednn = *pointer;
    if (!onednn) return;
    while (onednn->count) onednn_drop_oldest(onednn);
    for (int i = 0; onednn->streams && i < onednn->threads; i++) {
        if (onednn->streams[i]) dnnl_stream_destroy(onednn->streams[i]);
    }
    free(onednn->streams);
    if (onednn->engine) dnnl_engine_destroy(onednn->engine);
    free(onednn);
    *pointer = NULL;
}
