// Rotary positions of queries and keys, and the writing of keys and values into the cache.
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/attention_tiles.h"

enum { rotate_block = kv_block };

struct rotation {
    const struct cpu_backend *cpu;
    struct tensor qkv, cos, sin, slots;
    struct heads heads;
    const struct kv_cache *cache; // NULL: backwards, nothing is kept
    int layer;
    float *rooms; // a block of rows in float32 for each thread
};

// Token after token within a head, so that a block of keys stays near while its sixteen rows are filled.
static void keep_rows(const struct rotation *r, const float *rows, int64_t stride, const int32_t *slots,
                      int64_t count) {
    int size = r->heads.size;
    for (int head = 0; head < r->heads.key; head++) {
        float *all_keys = kv_cache_keys(r->cache, r->layer, head),
              *all_values = kv_cache_values(r->cache, r->layer, head);
        for (int64_t i = 0; i < count; i++) {
            const float *keys = rows + i * stride + (r->heads.query + head) * size;
            const float *values = keys + r->heads.key * size;
            float *block = all_keys + slots[i] / kv_block * kv_block * size + slots[i] % kv_block;
            for (int d = 0; d < size; d++) block[d * kv_block] = keys[d];
            memcpy(all_values + slots[i] * r->cache->width, values, (size_t)size * sizeof *values);
        }
    }
}

// In bfloat16 the rounded keys are what the cache keeps.
static void rotate_rows(void *context, int64_t first, int64_t end, int thread) {
    const struct rotation *r = context;
    const struct tensor *qkv = &r->qkv;
    bool wide = qkv->type == ELEMENT_F32;
    int32_t slots[rotate_block] = {0};
    int64_t stride = wide ? qkv->stride : qkv->columns;
    float *rows = wide ? tensor_f32(*qkv, first) : r->rooms + thread * rotate_block * stride;
    for (int64_t token = first; token < end; token++) {
        float *row = rows + (token - first) * stride;
        void *place = tensor_row(*qkv, token);
        if (!wide) cpu_convert(r->cpu, row, ELEMENT_F32, place, qkv->type, (size_t)stride);
        const float *cos = tensor_f32(r->cos, token), *sin = tensor_f32(r->sin, token);
        for (int head = 0; head < r->heads.query + r->heads.key; head++) {
            r->cpu->simd.rope(row + head * r->heads.size, cos, sin, r->heads.size / 2, !r->cache);
        }
        if (!wide) cpu_convert(r->cpu, place, qkv->type, row, ELEMENT_F32, (size_t)stride);
        if (!r->cache) continue;
        if (!wide) cpu_convert(r->cpu, row, ELEMENT_F32, place, qkv->type, (size_t)stride);
        slots[token - first] = *tensor_i32(r->slots, token);
    }
    if (r->cache) keep_rows(r, rows, stride, slots, end - first);
}

static status run_rotation(struct cpu_backend *cpu, struct rotation *rotation) {
    struct tensor qkv = rotation->qkv;
    struct heads heads = rotation->heads;
    CHECK(heads.size > 0 && heads.size % 2 == 0 && heads.key > 0 && heads.query % heads.key == 0);
    CHECK(tensor_is(qkv, -1, qkv.rows, (heads.query + 2 * heads.key) * heads.size));
    CHECK(tensor_is(rotation->cos, ELEMENT_F32, qkv.rows, heads.size / 2));
    CHECK(tensor_is(rotation->sin, ELEMENT_F32, qkv.rows, heads.size / 2));
    if (qkv.type != ELEMENT_F32) {
        size_t room = (size_t)(rotate_block * qkv.columns) * sizeof(float);
        TRY(cpu_scratch(cpu, SCRATCH_ROWS, (size_t)pool_threads(cpu->pool) * room, &rotation->rooms));
    }
    parallel_for(cpu, qkv.rows, rotate_block, rotate_rows, rotation);
    return OK;
}

status cpu_rope(struct backend *backend, struct tensor qkv, struct tensor cos, struct tensor sin, struct heads heads,
                struct kv_cache *cache, int layer, struct tensor slots) {
    CHECK(kv_cache_fits(cache, layer, heads) && kv_cache_has_slots(cache, slots, qkv.rows));
    struct rotation rotation = {.cpu = cpu_of(backend),
                                .qkv = qkv,
                                .cos = cos,
                                .sin = sin,
                                .slots = slots,
                                .heads = heads,
                                .cache = cache,
                                .layer = layer};
    return run_rotation(cpu_of(backend), &rotation);
}

status cpu_rope_grad(struct backend *backend, struct tensor grad_qkv, struct tensor cos, struct tensor sin,
                     struct heads heads) {
    struct rotation rotation = {.cpu = cpu_of(backend), .qkv = grad_qkv, .cos = cos, .sin = sin, .heads = heads};
    return run_rotation(cpu_of(backend), &rotation);
}
