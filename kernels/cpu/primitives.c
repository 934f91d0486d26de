// oneDNN's primitives: made once a shape, kept by last use.
#include "kernels/cpu/primitives.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

// libgomp's: how many threads the calling thread's parallel regions have. Debian's oneDNN would otherwise start a team
// of spinning threads for each thread of ours.
void omp_set_num_threads(int threads);

enum { most_kept = 512, bucket_count = 256 };

// What one thread hands to a primitive: its memory objects, whose data change with each call.
struct hands {
    dnnl_memory_t in, matrix, out, scratch;
};

struct kept {
    struct kept *next;            // in the bucket
    struct kept *older, *younger; // by last use
    struct primitive_shape shape;
    dnnl_primitive_t primitive;
    size_t scratch;      // bytes
    struct hands *hands; // of each thread
};

struct primitives {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; // of each thread
    int threads;
    struct packed_layout layouts[2]; // F32, BF16
    struct kept *buckets[bucket_count];
    struct kept *oldest, *youngest;
    int count;
};

static const dnnl_data_type_t types[] = {[ELEMENT_F32] = dnnl_f32, [ELEMENT_BF16] = dnnl_bf16};

static status answer(dnnl_status_t code, const char *what) {
    if (code == dnnl_success) return OK;
    return fail(code == dnnl_out_of_memory ? UNAVAILABLE : BUG, "oneDNN: %s: status %d", what, (int)code);
}

// ---- primitives ----

static status describe(dnnl_memory_desc_t *out, dnnl_data_type_t type, dnnl_format_tag_t tag, int64_t rows,
                       int64_t columns) {
    dnnl_dims_t shape = {rows, columns};
    return answer(dnnl_memory_desc_init_by_tag(out, 2, shape, type, tag), "a matrix");
}

static status describe_product(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const struct primitive_shape *key,
                               dnnl_format_tag_t tag) {
    dnnl_memory_desc_t in, matrix, result;
    TRY(describe(&in, types[key->type], dnnl_ab, key->rows, key->inner));
    TRY(describe(&matrix, types[key->type], tag, key->inner, key->columns));
    TRY(describe(&result, dnnl_f32, dnnl_ab, key->rows, key->columns));
    dnnl_matmul_desc_t product;
    TRY(answer(dnnl_matmul_desc_init(&product, &in, &matrix, NULL, &result), "a product"));
    dnnl_primitive_attr_t attributes;
    TRY(answer(dnnl_primitive_attr_create(&attributes), "attributes"));
    dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    dnnl_status_t code = dnnl_primitive_desc_create(out, &product, attributes, engine, NULL);
    dnnl_primitive_attr_destroy(attributes);
    return answer(code, "a product's code");
}

// One thread's memory objects for a primitive.
static status fill_hands(const struct primitives *p, const_dnnl_primitive_desc_t code, struct hands *hands) {
    const dnnl_memory_desc_t *in = dnnl_primitive_desc_query_md(code, dnnl_query_src_md, 0);
    const dnnl_memory_desc_t *matrix = dnnl_primitive_desc_query_md(code, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *out = dnnl_primitive_desc_query_md(code, dnnl_query_dst_md, 0);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(code, dnnl_query_scratchpad_md, 0);
    TRY(answer(dnnl_memory_create(&hands->in, in, p->engine, DNNL_MEMORY_NONE), "memory"));
    TRY(answer(dnnl_memory_create(&hands->matrix, matrix, p->engine, DNNL_MEMORY_NONE), "memory"));
    TRY(answer(dnnl_memory_create(&hands->out, out, p->engine, DNNL_MEMORY_NONE), "memory"));
    return answer(dnnl_memory_create(&hands->scratch, scratch, p->engine, DNNL_MEMORY_NONE), "memory");
}

static void kept_free(struct kept *kept, int threads) {
    for (int i = 0; kept->hands && i < threads; i++) {
        if (kept->hands[i].in) dnnl_memory_destroy(kept->hands[i].in);
        if (kept->hands[i].matrix) dnnl_memory_destroy(kept->hands[i].matrix);
        if (kept->hands[i].out) dnnl_memory_destroy(kept->hands[i].out);
        if (kept->hands[i].scratch) dnnl_memory_destroy(kept->hands[i].scratch);
    }
    free(kept->hands);
    if (kept->primitive) dnnl_primitive_destroy(kept->primitive);
    free(kept);
}

static dnnl_format_tag_t packed_tag(enum element type) {
    return type == ELEMENT_BF16 ? dnnl_BA16a64b2a : dnnl_BA16a64b;
}

// A tag that oneDNN's matmul has no fast code for would be computed by its slow reference: refused.
static status check_code(const_dnnl_primitive_desc_t code, const struct primitive_shape *key) {
    const char *name = NULL;
    dnnl_primitive_desc_query(code, dnnl_query_impl_info_str, 0, (void *)&name);
    if (name && strncmp(name, "brg", 3) == 0) return OK;
    return fail(BUG, "oneDNN has no packed product for %lld x %lld x %lld, but %s", (long long)key->rows,
                (long long)key->columns, (long long)key->inner, name ? name : "none");
}

static status kept_new(const struct primitives *p, const struct primitive_shape *key, struct kept **out) {
    const struct packed_layout *layout = &p->layouts[key->type];
    struct kept *made;
    TRY(NEW(&made, 1));
    made->shape = *key;
    dnnl_primitive_desc_t code = NULL;
    status result;
    TRY_TO(result, done, describe_product(&code, p->engine, key, layout->blocked ? packed_tag(key->type) : dnnl_ab));
    if (layout->blocked) TRY_TO(result, done, check_code(code, key));
    made->scratch = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(code, dnnl_query_scratchpad_md, 0));
    TRY_TO(result, done, answer(dnnl_primitive_create(&made->primitive, code), "code for a product"));
    TRY_TO(result, done, NEW(&made->hands, (size_t)p->threads));
    for (int i = 0; i < p->threads; i++) TRY_TO(result, done, fill_hands(p, code, &made->hands[i]));
done:
    if (code) dnnl_primitive_desc_destroy(code);
    if (result != OK) {
        kept_free(made, p->threads);
        made = NULL;
    }
    *out = made;
    return result;
}

// ---- those that are kept ----

static unsigned bucket_of(const struct primitive_shape *key) {
    uint64_t hash = (uint64_t)key->rows * 0x9E3779B97F4A7C15u ^ (uint64_t)key->columns * 0xC2B2AE3D27D4EB4Fu ^
                    (uint64_t)key->inner * 0x165667B19E3779F9u ^ (uint64_t)key->type;
    return (unsigned)(hash >> 40) % bucket_count;
}

static void unlink_age(struct primitives *p, struct kept *kept) {
    *(kept->older ? &kept->older->younger : &p->oldest) = kept->younger;
    *(kept->younger ? &kept->younger->older : &p->youngest) = kept->older;
}

static void link_youngest(struct primitives *p, struct kept *kept) {
    kept->older = p->youngest;
    kept->younger = NULL;
    *(p->youngest ? &p->youngest->younger : &p->oldest) = kept;
    p->youngest = kept;
}

static void drop_oldest(struct primitives *p) {
    struct kept *gone = p->oldest;
    struct kept **place = &p->buckets[bucket_of(&gone->shape)];
    while (*place != gone) place = &(*place)->next;
    *place = gone->next;
    unlink_age(p, gone);
    kept_free(gone, p->threads);
    p->count--;
}

status primitives_find(struct primitives *p, const struct primitive_shape *key, struct kept **out) {
    struct kept **place = &p->buckets[bucket_of(key)];
    for (struct kept *kept = *place; kept; kept = kept->next) {
        const struct primitive_shape *has = &kept->shape;
        if (has->type != key->type || has->rows != key->rows || has->columns != key->columns ||
            has->inner != key->inner)
            continue;
        unlink_age(p, kept);
        link_youngest(p, kept);
        *out = kept;
        return OK;
    }
    if (p->count == most_kept) drop_oldest(p);
    TRY(kept_new(p, key, out));
    (*out)->next = *place;
    *place = *out;
    link_youngest(p, *out);
    p->count++;
    return OK;
}

// ---- set-up ----

// Whether oneDNN's own choice of layout is the one that pack_rows knows.
static bool is_known(const dnnl_memory_desc_t *matrix, enum element type) {
    dnnl_memory_desc_t known;
    if (describe(&known, types[type], packed_tag(type), matrix->dims[0], matrix->dims[1]) != OK) return false;
    return dnnl_memory_desc_equal(matrix, &known);
}

static struct packed_layout choose_layout(dnnl_engine_t engine, enum element type) {
    struct primitive_shape key = {.type = type, .rows = 128, .columns = 256, .inner = 768};
    struct packed_layout layout = {.usable = false, .pair = 1, .unit = 1, .rows = 16, .columns = packed_block};
    dnnl_primitive_desc_t code;
    if (describe_product(&code, engine, &key, dnnl_format_tag_any) != OK) return layout;
    layout.usable = true;
    const char *name = NULL;
    dnnl_primitive_desc_query(code, dnnl_query_impl_info_str, 0, (void *)&name);
    if (name && strncmp(name, "brg", 3) == 0 &&
        is_known(dnnl_primitive_desc_query_md(code, dnnl_query_weights_md, 0), type)) {
        layout.blocked = true;
        layout.pair = type == ELEMENT_BF16 ? 2 : 1;
        layout.unit = 16 * layout.pair;
        layout.rows = 1;
        layout.columns = 512;
    }
    dnnl_primitive_desc_destroy(code);
    return layout;
}

status primitives_new(struct primitives **out, int threads) {
    struct primitives *p;
    TRY(NEW(&p, 1));
    status result;
    p->threads = threads;
    omp_set_num_threads(1);
    // AMX adds up a row in another order when other rows stand beside it: rows would see each other. Only the first
    // call in a process is heard, so what it answers later does not matter.
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    dnnl_set_primitive_cache_capacity(0); // we keep them ourselves
    TRY_TO(result, failed, answer(dnnl_engine_create(&p->engine, dnnl_cpu, 0), "an engine"));
    TRY_TO(result, failed, NEW(&p->streams, (size_t)threads));
    for (int i = 0; i < threads; i++) {
        TRY_TO(result, failed,
               answer(dnnl_stream_create(&p->streams[i], p->engine, dnnl_stream_default_flags), "a stream"));
    }
    for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++)
        p->layouts[type] = choose_layout(p->engine, type);
    *out = p;
    return OK;
failed:
    primitives_free(&p);
    return result;
}

void primitives_free(struct primitives **place) {
    struct primitives *p = *place;
    if (!p) return;
    while (p->count) drop_oldest(p);
    for (int i = 0; p->streams && i < p->threads; i++) {
        if (p->streams[i]) dnnl_stream_destroy(p->streams[i]);
    }
    free(p->streams);
    if (p->engine) dnnl_engine_destroy(p->engine);
    free(p);
    *place = NULL;
}

const struct packed_layout *primitives_layout(const struct primitives *p, enum element type) {
    return &p->layouts[type];
}

size_t kept_scratch(const struct kept *kept) {
    return kept->scratch;
}

bool kept_run(const struct primitives *p, const struct kept *kept, int thread, const void *in, const void *matrix,
              float *out, void *scratch) {
    omp_set_num_threads(1);
    const struct hands *hands = &kept->hands[thread];
    dnnl_memory_set_data_handle(hands->in, (void *)in);
    dnnl_memory_set_data_handle(hands->matrix, (void *)matrix);
    dnnl_memory_set_data_handle(hands->out, out);
    dnnl_memory_set_data_handle(hands->scratch, scratch);
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, hands->in},
                                   {DNNL_ARG_WEIGHTS, hands->matrix},
                                   {DNNL_ARG_DST, hands->out},
                                   {DNNL_ARG_SCRATCHPAD, hands->scratch}};
    return dnnl_primitive_execute(kept->primitive, p->streams[thread], 4, arguments) == dnnl_success;
}
