// Random weights. Each block is written as soon as it is drawn, so a model of any size needs a few megabytes of memory.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/pool.h"
#include "shared/base/rng.h"
#include "shared/model/safetensors.h"
#include "tools/demo/init.h"
#include "tools/tools.h"

enum { BLOCK = 1 << 20, TASK = 1 << 14, DRAW = 4 }; // elements; one draw of 64 bits gives DRAW of them
enum { LEVELS = 1 << 16 };
static_assert(BLOCK % TASK == 0 && TASK % DRAW == 0, "no draw is shared by two tasks or blocks");
static_assert(LEVELS == 1 << 64 / DRAW, "each level has the bits of its share of a draw");
static const int64_t SHARD = 5000000000; // bytes

struct weight_block {
    uint64_t key;
    int64_t first; // element of the tensor, a multiple of BLOCK
    size_t count;
    const float *levels;
    enum element type;
    void *out;
};

// Threads and buffers that are shared by all tensors.
struct init_scratch {
    struct pool *pool;
    float *block;      // BLOCK elements
    double *quantiles; // LEVELS, of the standard distribution
    float *levels;     // LEVELS, of a tensor's
};

static void init_store(const struct weight_block *weight_block, size_t index, float value) {
    if (weight_block->type == ELEMENT_F32) {
        ((float *)weight_block->out)[index] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7FFF + (bits >> 16 & 1); // to the nearest, ties to even
    ((uint16_t *)weight_block->out)[index] = (uint16_t)(bits >> 16);
}

// quantiles[i] = the standard normal distribution's quantile at (i + 1/2) / LEVELS: sixteen random bits choose one. If
// `cut`, the distribution's within two deviations. Newton's method from the middle outwards, each quantile starting
// from its neighbour.
static void init_fill_quantiles(double *quantiles, bool cut) {
    const double tail = cut ? 0.5 * erfc(2 * M_SQRT1_2) : 0; // left out at each end
    double z = 0;
    for (int i = LEVELS / 2; i < LEVELS; i++) {
        const double above = tail + (1 - 2 * tail) * ((LEVELS - i - 0.5) / LEVELS);
        for (int step = 0; step < 4; step++)
            z += (0.5 * erfc(z * M_SQRT1_2) - above) / (exp(-z * z / 2) * 0.5 * M_SQRT1_2 * M_2_SQRTPI);
        quantiles[i] = z;
        quantiles[LEVELS - 1 - i] = -z;
    }
}

static void init_draw_task(void *context, int task, int thread) {
    const struct weight_block *weight_block = context;
    (void)thread;
    size_t end = ((size_t)task + 1) * TASK < weight_block->count ? ((size_t)task + 1) * TASK : weight_block->count;
    for (size_t index = (size_t)task * TASK; index < end; index += DRAW) {
        uint64_t bits = rng_bits(weight_block->key, ((uint64_t)weight_block->first + index) / DRAW, 0);
        for (size_t i = 0; i < DRAW && index + i < end; i++, bits >>= 16)
            init_store(weight_block, index + i, weight_block->levels[bits & 0xFFFF]);
    }
}

struct shard {
    const struct parameter_table *table;
    size_t first, end; // parameters
    char name[64];
};

// Draws and writes the tensors of a shard, in blocks.
static status init_write_shard(const struct init_weights *weights, const struct shard *shard,
                               const struct init_scratch *scratch) {
    struct arena memory = {0};
    struct safetensors_writer *writer = NULL;
    status result;
    size_t count = shard->end - shard->first;
    char *path = path_join(&memory, weights->dir, shard->name);
    struct stored_tensor *tensors = arena_alloc(&memory, count * sizeof *tensors);
    for (size_t i = 0; i < count; i++) {
        const struct parameter *parameter = &shard->table->list[shard->first + i];
        tensors[i] = parameter_stored(parameter, parameter->name, weights->type);
    }
    TRY_TO(result, done, safetensors_create(&writer, path, tensors, count, true));
    for (size_t i = shard->first; i < shard->end; i++) {
        const struct parameter *parameter = &shard->table->list[i];
        struct weight_block block = {.key = rng_key(weights->seed, parameter->name),
                                     .levels = scratch->levels,
                                     .type = weights->type,
                                     .out = scratch->block};
        if (parameter->kind == PARAMETER_MATRIX)
            for (size_t k = 0; k < LEVELS; k++)
                scratch->levels[k] = (float)(scratch->quantiles[k] * weights->ranges[i]);
        for (; block.first < parameter->count; block.first += BLOCK) {
            int64_t left = parameter->count - block.first;
            block.count = left < BLOCK ? (size_t)left : BLOCK;
            if (parameter->kind == PARAMETER_MATRIX) {
                pool_run(scratch->pool, (int)((block.count + TASK - 1) / TASK), init_draw_task, &block);
            } else {
                for (size_t k = 0; k < block.count; k++)
                    init_store(&block, k, parameter->kind == PARAMETER_NORM ? 1 : 0);
            }
            TRY_TO(result, done,
                   safetensors_write(writer, scratch->block, block.count * (weights->type == ELEMENT_F32 ? 4 : 2)));
        }
    }
    result = safetensors_finish(&writer);
done:
    safetensors_abort(&writer);
    arena_release(&memory);
    return result;
}

static int64_t init_parameter_bytes(const struct init_weights *weights, const struct parameter *parameter) {
    return parameter->count * (weights->type == ELEMENT_F32 ? 4 : 2);
}

// Returns where the shard that begins at parameter `first` ends: it has as many parameters as fit into SHARD bytes, at
// least one.
static size_t shard_end(const struct init_weights *weights, const struct parameter_table *table, size_t first) {
    int64_t bytes = init_parameter_bytes(weights, &table->list[first]);
    size_t end = first + 1;
    while (end < table->count && bytes + init_parameter_bytes(weights, &table->list[end]) <= SHARD)
        bytes += init_parameter_bytes(weights, &table->list[end++]);
    return end;
}

status init_write_weights(const struct init_weights *weights, const struct parameter_table *table) {
    struct init_scratch scratch = {0};
    struct shard *shards = NULL;
    struct buf index = {0};
    size_t count = 0;
    long long total = 0;
    status result;
    for (size_t first = 0; first < table->count; first = shard_end(weights, table, first)) count++;
    assert(count > 0);
    NEW(&shards, count);
    for (size_t i = 0, first = 0; i < count; first = shards[i++].end) {
        shards[i] = (struct shard){.table = table, .first = first, .end = shard_end(weights, table, first)};
        snprintf(shards[i].name, sizeof shards[i].name,
                 count == 1 ? "model.safetensors" : "model-%05zu-of-%05zu.safetensors", i + 1, count);
    }
    assert(shards[count - 1].end == table->count);
    TRY_TO(result, done, pool_new(&scratch.pool, weights->threads));
    NEW(&scratch.block, BLOCK);
    NEW(&scratch.quantiles, LEVELS);
    NEW(&scratch.levels, LEVELS);
    init_fill_quantiles(scratch.quantiles, weights->cut);
    for (size_t i = 0; i < count; i++) {
        if (count > 1) log_info("writing %s/%s", weights->dir, shards[i].name);
        TRY_TO(result, done, init_write_shard(weights, &shards[i], &scratch));
    }
    if (count == 1) goto done;
    for (size_t i = 0; i < table->count; i++) total += init_parameter_bytes(weights, &table->list[i]);
    buf_printf(&index, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {", total);
    for (size_t s = 0; s < count; s++)
        for (size_t i = shards[s].first; i < shards[s].end; i++)
            buf_printf(&index, "%s\n    \"%s\": \"%s\"", i ? "," : "", table->list[i].name, shards[s].name);
    buf_puts(&index, "\n  }\n}\n");
    result = subcommand_write_file(weights->dir, "model.safetensors.index.json", &index);
done:
    buf_release(&index);
    free(scratch.quantiles);
    free(scratch.levels);
    free(scratch.block);
    free(shards);
    pool_free(&scratch.pool);
    return result;
}
