// The table is written down twice over: matrices first, then vectors, the language model before the tower.
#include "shared/model/parameters.h"

#include <stdlib.h>
#include <string.h>

enum { part_alignment = 16 };

// What stays the same while the parts of one tower are added.
struct builder {
    struct parameter_table *table;
    const struct model_config *config;
    bool vision;
};

// What the parts of one tower's blocks are made from.
struct sizes {
    int64_t hidden_size, intermediate_size, query, key; // query and key: columns of all their heads
};

static struct sizes sizes_of(const struct builder *builder) {
    const struct text_config *text = &builder->config->text;
    const struct vision_config *vision = &builder->config->vision;
    if (builder->vision)
        return (struct sizes){vision->hidden_size, vision->intermediate_size, vision->hidden_size, vision->hidden_size};
    return (struct sizes){text->hidden_size, text->intermediate_size,
                          (int64_t)text->num_attention_heads * text->head_dim,
                          (int64_t)text->num_key_value_heads * text->head_dim};
}

static void align(struct parameter_table *table) {
    table->elements = (table->elements + part_alignment - 1) / part_alignment * part_alignment;
}

// Starts a part at the next aligned place.
static struct fused_param start_part(struct builder *builder, int64_t rows, int64_t columns) {
    struct parameter_table *table = builder->table;
    align(table);
    return (struct fused_param){.first = table->count, .offset = table->elements, .rows = rows, .columns = columns};
}

// Adds one parameter to a part; rank 1 for a vector of `columns`.
static status add(struct builder *builder, struct fused_param *param, enum parameter_kind kind, int64_t rows,
                  int64_t columns, const char *name) {
    struct parameter_table *table = builder->table;
    struct parameter *entry = &table->list[table->count];
    *entry = (struct parameter){.name = name, .kind = kind, .offset = table->elements, .vision = builder->vision};
    if (!name) return fail_oom();
    if (kind == PARAMETER_MATRIX) {
        entry->rank = 2;
        entry->shape[0] = rows;
        entry->shape[1] = columns;
    } else {
        entry->rank = 1;
        entry->shape[0] = columns;
    }
    if (__builtin_mul_overflow(rows, columns, &entry->count) ||
        __builtin_add_overflow(table->elements, entry->count, &table->elements) || table->elements > INT64_MAX / 16)
        return fail(DATAERR, "the model that the configuration describes is too large");
    table->parameter_count += (uint64_t)entry->count;
    table->count++;
    param->count++;
    return OK;
}

// A part of one parameter.
static status add_part(struct builder *builder, struct fused_param *param, enum parameter_kind kind, int64_t rows,
                       int64_t columns, const char *name) {
    *param = start_part(builder, rows, columns);
    return add(builder, param, kind, rows, columns, name);
}

static const char *block_name(struct builder *builder, int block, const char *rest) {
    return arena_printf(&builder->table->memory, "%s.%d.%s", builder->vision ? "visual.blocks" : "model.layers", block,
                        rest);
}

// Query, key and value of a block: the tower stores them as one tensor, the language model as three.
static status add_qkv(struct builder *builder, struct fused_param *param, enum parameter_kind kind, int block) {
    struct sizes it = sizes_of(builder);
    bool bias = kind == PARAMETER_BIAS;
    const char *last = bias ? "bias" : "weight";
    int64_t columns = bias ? it.query + 2 * it.key : it.hidden_size;
    struct arena *memory = &builder->table->memory;
    *param = start_part(builder, bias ? 1 : it.query + 2 * it.key, columns);
    if (builder->vision)
        return add(builder, param, kind, param->rows, columns,
                   arena_printf(memory, "visual.blocks.%d.attn.qkv.%s", block, last));
    const char letters[] = "qkv";
    for (int i = 0; i < 3; i++) {
        int64_t size = i ? it.key : it.query;
        TRY(add(builder, param, kind, bias ? 1 : size, bias ? size : columns,
                arena_printf(memory, "model.layers.%d.self_attn.%c_proj.%s", block, letters[i], last)));
    }
    return OK;
}

static status add_gate_up(struct builder *builder, struct fused_param *param, enum parameter_kind kind, int block) {
    struct sizes it = sizes_of(builder);
    bool bias = kind == PARAMETER_BIAS;
    *param = start_part(builder, bias ? 1 : 2 * it.intermediate_size, bias ? 2 * it.intermediate_size : it.hidden_size);
    const char *names[] = {bias ? "mlp.gate_proj.bias" : "mlp.gate_proj.weight",
                           bias ? "mlp.up_proj.bias" : "mlp.up_proj.weight"};
    for (int i = 0; i < 2; i++)
        TRY(add(builder, param, kind, bias ? 1 : it.intermediate_size, bias ? it.intermediate_size : it.hidden_size,
                block_name(builder, block, names[i])));
    return OK;
}

static status add_block_matrices(struct builder *builder, struct block_params *params, int block) {
    struct sizes it = sizes_of(builder);
    TRY(add_qkv(builder, &params->qkv, PARAMETER_MATRIX, block));
    TRY(add_part(builder, &params->out, PARAMETER_MATRIX, it.hidden_size, it.query,
                 block_name(builder, block, builder->vision ? "attn.proj.weight" : "self_attn.o_proj.weight")));
    TRY(add_gate_up(builder, &params->gate_up, PARAMETER_MATRIX, block));
    return add_part(builder, &params->down, PARAMETER_MATRIX, it.hidden_size, it.intermediate_size,
                    block_name(builder, block, "mlp.down_proj.weight"));
}

static status add_block_vectors(struct builder *builder, struct block_params *params, int block) {
    struct sizes it = sizes_of(builder);
    TRY(add_part(builder, &params->norm1, PARAMETER_NORM, 1, it.hidden_size,
                 block_name(builder, block, builder->vision ? "norm1.weight" : "input_layernorm.weight")));
    TRY(add_part(builder, &params->norm2, PARAMETER_NORM, 1, it.hidden_size,
                 block_name(builder, block, builder->vision ? "norm2.weight" : "post_attention_layernorm.weight")));
    TRY(add_qkv(builder, &params->qkv_bias, PARAMETER_BIAS, block));
    if (!builder->vision) return OK;
    TRY(add_part(builder, &params->out_bias, PARAMETER_BIAS, 1, it.hidden_size,
                 block_name(builder, block, "attn.proj.bias")));
    TRY(add_gate_up(builder, &params->gate_up_bias, PARAMETER_BIAS, block));
    return add_part(builder, &params->down_bias, PARAMETER_BIAS, 1, it.hidden_size,
                    block_name(builder, block, "mlp.down_proj.bias"));
}

// Range `index` reaches from the end of the one before it to here.
static void close_range(struct parameter_table *table, int index) {
    align(table);
    int64_t start = index ? table->ranges[index - 1].offset + table->ranges[index - 1].count : 0;
    table->ranges[index] = (struct parameter_range){start, table->elements - start, index % 2 == 0, index >= 2};
}

static status add_text(struct builder *builder) {
    struct parameter_table *table = builder->table;
    const struct text_config *text = &builder->config->text;
    TRY(add_part(builder, &table->embedding, PARAMETER_MATRIX, text->vocab_size, text->hidden_size,
                 "model.embed_tokens.weight"));
    for (int i = 0; i < text->num_hidden_layers; i++) TRY(add_block_matrices(builder, &table->text[i], i));
    if (!text->tie_word_embeddings)
        TRY(add_part(builder, &table->head, PARAMETER_MATRIX, text->vocab_size, text->hidden_size, "lm_head.weight"));
    close_range(table, 0);
    for (int i = 0; i < text->num_hidden_layers; i++) TRY(add_block_vectors(builder, &table->text[i], i));
    TRY(add_part(builder, &table->norm, PARAMETER_NORM, 1, text->hidden_size, "model.norm.weight"));
    close_range(table, 1);
    return OK;
}

static status add_vision(struct builder *builder) {
    struct parameter_table *table = builder->table;
    const struct vision_config *vision = &builder->config->vision;
    int64_t pixels = (int64_t)3 * vision->temporal_patch_size * vision->patch_size * vision->patch_size;
    int64_t merged = vision->hidden_size * vision->spatial_merge_size * vision->spatial_merge_size;
    TRY(add_part(builder, &table->patch, PARAMETER_MATRIX, vision->hidden_size, pixels,
                 "visual.patch_embed.proj.weight"));
    struct parameter *patch = &table->list[table->patch.first];
    patch->rank = 5;
    const int64_t shape[] = {vision->hidden_size, 3, vision->temporal_patch_size, vision->patch_size,
                             vision->patch_size};
    memcpy(patch->shape, shape, sizeof shape);
    for (int i = 0; i < vision->depth; i++) TRY(add_block_matrices(builder, &table->vision[i], i));
    TRY(add_part(builder, &table->merger_fc1, PARAMETER_MATRIX, merged, merged, "visual.merger.mlp.0.weight"));
    TRY(add_part(builder, &table->merger_fc2, PARAMETER_MATRIX, vision->out_hidden_size, merged,
                 "visual.merger.mlp.2.weight"));
    close_range(table, 2);
    for (int i = 0; i < vision->depth; i++) TRY(add_block_vectors(builder, &table->vision[i], i));
    TRY(add_part(builder, &table->merger_norm, PARAMETER_NORM, 1, vision->hidden_size, "visual.merger.ln_q.weight"));
    TRY(add_part(builder, &table->merger_fc1_bias, PARAMETER_BIAS, 1, merged, "visual.merger.mlp.0.bias"));
    TRY(add_part(builder, &table->merger_fc2_bias, PARAMETER_BIAS, 1, vision->out_hidden_size,
                 "visual.merger.mlp.2.bias"));
    close_range(table, 3);
    return OK;
}

static status take_room(struct parameter_table *table, const struct model_config *config) {
    enum { most_in_block = 15, most_outside = 16 };
    size_t layers = (size_t)config->text.num_hidden_layers, depth = (size_t)config->vision.depth;
    table->list = arena_alloc(&table->memory, ((layers + depth) * most_in_block + most_outside) * sizeof *table->list);
    table->text = arena_alloc(&table->memory, layers * sizeof *table->text);
    table->vision = arena_alloc(&table->memory, depth * sizeof *table->vision);
    return table->list && table->text && table->vision ? OK : fail_oom();
}

status parameter_table_new(struct parameter_table **out, const struct model_config *config) {
    *out = NULL;
    struct parameter_table *table = NULL;
    TRY(NEW(&table, 1));
    status result = OK;
    TRY_TO(result, broken, take_room(table, config));
    struct builder builder = {table, config, false};
    TRY_TO(result, broken, add_text(&builder));
    builder.vision = true;
    TRY_TO(result, broken, add_vision(&builder));
    *out = table;
    return OK;
broken:
    parameter_table_free(&table);
    return result;
}

void parameter_table_free(struct parameter_table **table) {
    if (!*table) return;
    struct arena memory = (*table)->memory;
    arena_release(&memory);
    free(*table);
    *table = NULL;
}

const char *parameter_nested_name(struct arena *arena, const struct parameter *parameter) {
    if (parameter->vision) return arena_printf(arena, "model.%s", parameter->name);
    if (strncmp(parameter->name, "model.", 6) == 0)
        return arena_printf(arena, "model.language_model.%s", parameter->name + 6);
    return arena_printf(arena, "%s", parameter->name);
}

static bool same_shape(const struct parameter *parameter, const struct stored_tensor *stored) {
    return parameter->rank == stored->rank &&
           memcmp(parameter->shape, stored->shape, (size_t)parameter->rank * sizeof *parameter->shape) == 0;
}

static status refuse_shape(const struct parameter *parameter, const struct stored_tensor *stored) {
    struct stored_tensor wanted = {.rank = parameter->rank};
    memcpy(wanted.shape, parameter->shape, sizeof parameter->shape);
    char has[200], wants[200];
    return fail(DATAERR, "%s: tensor %s has shape %s, the configuration asks for %s", stored->file, stored->name,
                stored_tensor_shape(stored, has, sizeof has), stored_tensor_shape(&wanted, wants, sizeof wants));
}

// Every stored tensor but a tied model's head must have been found.
static status refuse_strangers(const struct parameter_table *table, const struct safetensors *store, const bool *used) {
    for (size_t i = 0; i < safetensors_count(store); i++) {
        const struct stored_tensor *stored = safetensors_at(store, i);
        if (used[i] || (table->head.count == 0 && strcmp(stored->name, "lm_head.weight") == 0)) continue;
        return fail(DATAERR, "%s: tensor %s belongs to no part of the model", stored->file, stored->name);
    }
    return OK;
}

// The tensor of a parameter under either name.
static status find_stored(const struct parameter *parameter, const struct safetensors *store, struct arena *names,
                          const struct stored_tensor **out) {
    const char *nested = parameter_nested_name(names, parameter);
    if (!nested) return fail_oom();
    const struct stored_tensor *stored = safetensors_find(store, parameter->name);
    if (!stored) stored = safetensors_find(store, nested);
    const char *file = safetensors_count(store) ? safetensors_at(store, 0)->file : "model.safetensors";
    if (!stored) return fail(DATAERR, "%s: tensor %s is missing", file, parameter->name);
    *out = stored;
    return same_shape(parameter, stored) ? OK : refuse_shape(parameter, stored);
}

status parameter_table_match(const struct parameter_table *table, const struct safetensors *store,
                             const struct stored_tensor **found) {
    struct arena names = {0};
    bool *used = NULL;
    status result = OK;
    TRY_TO(result, done, NEW(&used, safetensors_count(store)));
    for (size_t i = 0; i < table->count; i++) {
        TRY_TO(result, done, find_stored(&table->list[i], store, &names, &found[i]));
        used[found[i] - safetensors_at(store, 0)] = true;
    }
    result = refuse_strangers(table, store, used);
done:
    arena_release(&names);
    free(used);
    return result;
}
