#include "shared/model/parameters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PARAM_ALIGNMENT = 64 };                        // elements: a fused parameter starts at a multiple
enum { MAX_PER_BLOCK = 15, MAX_OUTSIDE_BLOCKS = 16 }; // parameters

// What stays the same while the parameters of the language model or of the tower are added.
struct parameter_builder {
    struct parameter_table *table;
    bool vision;
    int64_t hidden_size, intermediate_size;
    int64_t query_size, key_size; // columns of all their heads
};

static void parameter_align(struct parameter_table *table) {
    table->elements = (table->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
}

// Starts a fused parameter at the next aligned offset. It stays where it is as long as the table.
static void parameter_start(struct parameter_builder *builder, struct fused_param *fused, int64_t rows,
                            int64_t columns) {
    struct parameter_table *table = builder->table;
    parameter_align(table);
    *fused = (struct fused_param){.first = table->count, .offset = table->elements, .rows = rows, .columns = columns};
    table->fused[table->fused_count++] = fused;
}

// Appends a parameter to a fused one. A vector of `columns` elements has rank 1. NULL as name: memory was short.
static status parameter_append(struct parameter_builder *builder, struct fused_param *fused, enum parameter_kind kind,
                               int64_t rows, int64_t columns, const char *name) {
    struct parameter_table *table = builder->table;
    struct parameter *entry = &table->list[table->count];
    if (!name) return fail_oom();
    *entry = (struct parameter){.name = name, .kind = kind, .offset = table->elements, .vision = builder->vision};
    assert(rows > 0 && columns > 0);
    if (kind == PARAMETER_MATRIX) {
        entry->rank = 2;
        entry->shape[0] = rows;
        entry->shape[1] = columns;
    } else {
        assert(rows == 1);
        entry->rank = 1;
        entry->shape[0] = columns;
    }
    if (__builtin_mul_overflow(rows, columns, &entry->count) ||
        __builtin_add_overflow(table->elements, entry->count, &table->elements) || table->elements > INT64_MAX / 16)
        return fail(DATAERR, "the model that the configuration describes is too large");
    table->parameter_count += (uint64_t)entry->count;
    table->count++;
    fused->count++;
    return OK;
}

// A fused parameter that is a single one.
static status parameter_single(struct parameter_builder *builder, struct fused_param *fused, enum parameter_kind kind,
                               int64_t rows, int64_t columns, const char *name) {
    parameter_start(builder, fused, rows, columns);
    return parameter_append(builder, fused, kind, rows, columns, name);
}

static const char *parameter_block_name(struct parameter_builder *builder, int block, const char *rest) {
    return arena_printf(&builder->table->arena, "%s.%d.%s", builder->vision ? "visual.blocks" : "model.layers", block,
                        rest);
}

// Query, key and value: the tower stores them as one tensor, the language model as three.
static status parameter_qkv(struct parameter_builder *builder, struct fused_param *fused, enum parameter_kind kind,
                            int block) {
    static const char *const text_names[3][2] = {
        {"self_attn.q_proj.weight", "self_attn.q_proj.bias"},
        {"self_attn.k_proj.weight", "self_attn.k_proj.bias"},
        {"self_attn.v_proj.weight", "self_attn.v_proj.bias"},
    };
    bool bias = kind == PARAMETER_BIAS;
    int64_t size = builder->query_size + 2 * builder->key_size;
    int64_t rows = bias ? 1 : size, columns = bias ? size : builder->hidden_size;
    parameter_start(builder, fused, rows, columns);
    if (builder->vision)
        return parameter_append(builder, fused, kind, rows, columns,
                                parameter_block_name(builder, block, bias ? "attn.qkv.bias" : "attn.qkv.weight"));
    for (int i = 0; i < 3; i++) {
        int64_t own = i ? builder->key_size : builder->query_size;
        TRY(parameter_append(builder, fused, kind, bias ? 1 : own, bias ? own : columns,
                             parameter_block_name(builder, block, text_names[i][bias])));
    }
    return OK;
}

static status parameter_gate_up(struct parameter_builder *builder, struct fused_param *fused, enum parameter_kind kind,
                                int block) {
    static const char *const names[2][2] = {
        {"mlp.gate_proj.weight", "mlp.gate_proj.bias"},
        {"mlp.up_proj.weight", "mlp.up_proj.bias"},
    };
    bool bias = kind == PARAMETER_BIAS;
    int64_t size = builder->intermediate_size, columns = bias ? size : builder->hidden_size;
    parameter_start(builder, fused, bias ? 1 : 2 * size, bias ? 2 * size : columns);
    for (int i = 0; i < 2; i++)
        TRY(parameter_append(builder, fused, kind, bias ? 1 : size, columns,
                             parameter_block_name(builder, block, names[i][bias])));
    return OK;
}

static status parameter_block_matrices(struct parameter_builder *builder, struct block_params *params, int block) {
    const char *out = builder->vision ? "attn.proj.weight" : "self_attn.o_proj.weight";
    TRY(parameter_qkv(builder, &params->qkv, PARAMETER_MATRIX, block));
    TRY(parameter_single(builder, &params->out, PARAMETER_MATRIX, builder->hidden_size, builder->query_size,
                         parameter_block_name(builder, block, out)));
    TRY(parameter_gate_up(builder, &params->gate_up, PARAMETER_MATRIX, block));
    return parameter_single(builder, &params->down, PARAMETER_MATRIX, builder->hidden_size, builder->intermediate_size,
                            parameter_block_name(builder, block, "mlp.down_proj.weight"));
}

static status parameter_block_vectors(struct parameter_builder *builder, struct block_params *params, int block) {
    const char *norm1 = builder->vision ? "norm1.weight" : "input_layernorm.weight";
    const char *norm2 = builder->vision ? "norm2.weight" : "post_attention_layernorm.weight";
    TRY(parameter_single(builder, &params->norm1, PARAMETER_NORM, 1, builder->hidden_size,
                         parameter_block_name(builder, block, norm1)));
    TRY(parameter_single(builder, &params->norm2, PARAMETER_NORM, 1, builder->hidden_size,
                         parameter_block_name(builder, block, norm2)));
    TRY(parameter_qkv(builder, &params->qkv_bias, PARAMETER_BIAS, block));
    if (!builder->vision) return OK;
    TRY(parameter_single(builder, &params->out_bias, PARAMETER_BIAS, 1, builder->hidden_size,
                         parameter_block_name(builder, block, "attn.proj.bias")));
    TRY(parameter_gate_up(builder, &params->gate_up_bias, PARAMETER_BIAS, block));
    return parameter_single(builder, &params->down_bias, PARAMETER_BIAS, 1, builder->hidden_size,
                            parameter_block_name(builder, block, "mlp.down_proj.bias"));
}

// Range `index` goes from the end of the range before it to here.
static void parameter_close_range(struct parameter_table *table, int index) {
    parameter_align(table);
    int64_t start = index ? table->ranges[index - 1].offset + table->ranges[index - 1].count : 0;
    table->ranges[index] = (struct parameter_range){start, table->elements - start, index % 2 == 0, index >= 2};
}

// Adds the language model, then the vision tower; of each first the matrices, then the vectors.
static status parameter_table_fill(struct parameter_table *table, const struct model_config *config) {
    const struct text_config *text = &config->text;
    struct parameter_builder builder = {table,
                                        false,
                                        text->hidden_size,
                                        text->intermediate_size,
                                        (int64_t)text->num_attention_heads * text->head_dim,
                                        (int64_t)text->num_key_value_heads * text->head_dim};
    TRY(parameter_single(&builder, &table->embedding, PARAMETER_MATRIX, text->vocab_size, text->hidden_size,
                         "model.embed_tokens.weight"));
    for (int i = 0; i < text->num_hidden_layers; i++) TRY(parameter_block_matrices(&builder, &table->text[i], i));
    if (!text->tie_word_embeddings)
        TRY(parameter_single(&builder, &table->lm_head, PARAMETER_MATRIX, text->vocab_size, text->hidden_size,
                             "lm_head.weight"));
    parameter_close_range(table, 0);
    for (int i = 0; i < text->num_hidden_layers; i++) TRY(parameter_block_vectors(&builder, &table->text[i], i));
    TRY(parameter_single(&builder, &table->norm, PARAMETER_NORM, 1, text->hidden_size, "model.norm.weight"));
    parameter_close_range(table, 1);

    const struct vision_config *vision = &config->vision;
    builder = (struct parameter_builder){
        table, true, vision->hidden_size, vision->intermediate_size, vision->hidden_size, vision->hidden_size};
    int64_t pixels = (int64_t)3 * vision->temporal_patch_size * vision->patch_size * vision->patch_size;
    int64_t merged = vision->hidden_size * vision->spatial_merge_size * vision->spatial_merge_size;
    TRY(parameter_single(&builder, &table->patch_embed, PARAMETER_MATRIX, vision->hidden_size, pixels,
                         "visual.patch_embed.proj.weight"));
    struct parameter *patch_embed = &table->list[table->patch_embed.first];
    const int64_t shape[] = {vision->hidden_size, 3, vision->temporal_patch_size, vision->patch_size,
                             vision->patch_size};
    static_assert(sizeof shape == sizeof patch_embed->shape, "a three-dimensional convolution has rank 5");
    patch_embed->rank = 5;
    memcpy(patch_embed->shape, shape, sizeof shape);
    for (int i = 0; i < vision->depth; i++) TRY(parameter_block_matrices(&builder, &table->vision[i], i));
    TRY(parameter_single(&builder, &table->merger_fc1, PARAMETER_MATRIX, merged, merged, "visual.merger.mlp.0.weight"));
    TRY(parameter_single(&builder, &table->merger_fc2, PARAMETER_MATRIX, vision->out_hidden_size, merged,
                         "visual.merger.mlp.2.weight"));
    parameter_close_range(table, 2);
    for (int i = 0; i < vision->depth; i++) TRY(parameter_block_vectors(&builder, &table->vision[i], i));
    TRY(parameter_single(&builder, &table->merger_norm, PARAMETER_NORM, 1, vision->hidden_size,
                         "visual.merger.ln_q.weight"));
    TRY(parameter_single(&builder, &table->merger_fc1_bias, PARAMETER_BIAS, 1, merged, "visual.merger.mlp.0.bias"));
    TRY(parameter_single(&builder, &table->merger_fc2_bias, PARAMETER_BIAS, 1, vision->out_hidden_size,
                         "visual.merger.mlp.2.bias"));
    parameter_close_range(table, 3);
    return OK;
}

status parameter_table_new(struct parameter_table **out, const struct model_config *config) {
    *out = NULL;
    struct parameter_table *table = NULL;
    TRY(NEW(&table, 1));
    size_t layers = (size_t)config->text.num_hidden_layers, depth = (size_t)config->vision.depth;
    size_t capacity = (layers + depth) * MAX_PER_BLOCK + MAX_OUTSIDE_BLOCKS;
    table->list = arena_alloc(&table->arena, capacity * sizeof *table->list);
    table->text = arena_alloc(&table->arena, layers * sizeof *table->text);
    table->vision = arena_alloc(&table->arena, depth * sizeof *table->vision);
    status result = OK;
    table->fused = arena_alloc(&table->arena, capacity * sizeof *table->fused);
    if (!table->list || !table->text || !table->vision || !table->fused) TRY_TO(result, failed, fail_oom());
    TRY_TO(result, failed, parameter_table_fill(table, config));
    assert(table->count <= capacity);
    *out = table;
    return OK;
failed:
    parameter_table_free(&table);
    return result;
}

void parameter_table_free(struct parameter_table **table) {
    if (!*table) return;
    struct arena arena = (*table)->arena;
    arena_release(&arena);
    free(*table);
    *table = NULL;
}

const char *parameter_nested_name(struct arena *arena, const struct parameter *parameter) {
    if (parameter->vision) return arena_printf(arena, "model.%s", parameter->name);
    if (strncmp(parameter->name, "model.", 6) == 0)
        return arena_printf(arena, "model.language_model.%s", parameter->name + 6);
    return arena_printf(arena, "%s", parameter->name);
}

status parameter_table_match(const struct parameter_table *table, const struct safetensors *store,
                             const struct stored_tensor **found) {
    struct arena arena = {0};
    bool *used = NULL;
    status result = OK;
    const char *file = safetensors_count(store) ? safetensors_at(store, 0)->file : "model.safetensors";
    TRY_TO(result, done, NEW(&used, safetensors_count(store)));
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        const char *nested = parameter_nested_name(&arena, parameter);
        if (!nested) TRY_TO(result, done, fail_oom());
        found[i] = safetensors_find(store, parameter->name);
        if (!found[i]) found[i] = safetensors_find(store, nested);
        if (!found[i]) TRY_TO(result, done, fail(DATAERR, "%s: tensor %s is missing", file, parameter->name));
        struct stored_tensor expected = {.rank = parameter->rank};
        static_assert(sizeof parameter->shape <= sizeof expected.shape, "a parameter's shape can be stored");
        memcpy(expected.shape, parameter->shape, sizeof parameter->shape);
        if (found[i]->rank != expected.rank ||
            memcmp(found[i]->shape, expected.shape, (size_t)expected.rank * sizeof *expected.shape) != 0) {
            char has[200], wants[200];
            TRY_TO(result, done,
                   fail(DATAERR, "%s: tensor %s has shape %s, the configuration asks for %s", found[i]->file,
                        found[i]->name, stored_tensor_shape(found[i], has, sizeof has),
                        stored_tensor_shape(&expected, wants, sizeof wants)));
        }
        used[found[i] - safetensors_at(store, 0)] = true;
    }
    for (size_t i = 0; i < safetensors_count(store); i++) {
        const struct stored_tensor *stored = safetensors_at(store, i);
        if (used[i] || (table->lm_head.count == 0 && strcmp(stored->name, "lm_head.weight") == 0)) continue;
        TRY_TO(result, done,
               fail(DATAERR, "%s: tensor %s is not a parameter of the model", stored->file, stored->name));
    }
done:
    arena_release(&arena);
    free(used);
    return result;
}
