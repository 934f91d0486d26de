// What a model needs of a GPU's memory. The sizes come from the functions that stand beside what allocates them.
#include <assert.h>

#include "shared/model/memory_list.h"
#include "shared/model/qwen_vl/generator.h"
#include "shared/model/qwen_vl/text_model.h"

static void memory_add_weights(struct memory_list *list, const struct parameter_table *table,
                               const struct memory_request *request) {
    enum element type = memory_list_type(request->precision);
    enum element grads = memory_list_type(request->gradient_precision),
                 moments = memory_list_type(request->moment_precision);
    int trained = request->train_vision ? table->range_count : TEXT_RANGES;
    size_t weights = param_array_bytes(table, table->range_count, type, type);
    size_t remainders =
        type == ELEMENT_BF16 ? param_array_bytes(table, table->range_count, ELEMENT_U16, ELEMENT_U16) : 0;
    memory_list_add(list, "weights", request->borrows ? 0 : weights);
    if (!request->training) return;
    memory_list_add(list, "remainders of the weights", remainders);
    memory_list_add(list, "gradients", param_array_bytes(table, trained, grads, ELEMENT_F32));
    memory_list_add(list, "moments", 2 * param_array_bytes(table, trained, moments, ELEMENT_F32));
    memory_list_add(list, "reference", request->ema ? weights + remainders : 0);
}

// What the operations of kernels/cuda allocate for themselves: logits of a block of rows, in training of a part of the
// vocabulary with their gradients and the head's input's; and in parts, one for each block of keys and each tile_parts
// tiles of queries that see it, the gradients of keys and values.
enum { block_logits = 1 << 27, block_rows_least = 128, part_vocabulary = 8192, block_keys = 64, tile_parts = 64 };

static int64_t memory_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t memory_most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t memory_divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static size_t memory_logits(const struct text_config *text, enum element type, int64_t rows, bool training) {
    int64_t block = memory_least(rows, memory_most(block_logits / text->vocab_size, block_rows_least));
    int64_t part = training ? memory_least(text->vocab_size, part_vocabulary) : 0;
    size_t logits = (size_t)memory_most(block * text->vocab_size, rows * part) * sizeof(float);
    if (!training || type == ELEMENT_F32) return logits;
    return logits + (size_t)(rows * part) * element_size(type) + (size_t)(rows * text->hidden_size) * sizeof(float);
}

static size_t memory_grad_parts(struct heads heads, int64_t keys, int64_t queries) {
    int64_t tiles = memory_divide_up(queries * (heads.query / heads.key), block_keys);
    int64_t parts = memory_divide_up(keys, block_keys) * memory_divide_up(tiles, tile_parts);
    return (size_t)(parts * 2 * block_keys * heads.size * heads.key) * sizeof(float);
}

static size_t memory_operations(const struct model_config *config, const struct memory_request *request,
                                int64_t patches) {
    int64_t targets = request->generates ? 0 : request->group_size * request->new_tokens;
    if (request->generates || request->continued_tokens) targets = memory_most(targets, GENERATOR_ROWS);
    size_t logits = memory_logits(&config->text, memory_list_type(request->precision), targets, request->training);
    if (!request->training) return logits;
    struct heads text = text_transformer(&config->text).heads, vision = vision_transformer(&config->vision).heads;
    int64_t slot_blocks = memory_divide_up(request->new_tokens, block_keys) * block_keys;
    size_t parts = memory_grad_parts(text, request->prompt_tokens, request->prompt_tokens + targets) +
                   memory_grad_parts(text, request->group_size * slot_blocks, request->new_tokens);
    size_t tower = request->train_vision ? memory_grad_parts(vision, patches, patches) : 0;
    return logits + (parts > tower ? parts : tower);
}

// The longest group: every completion has all its tokens, and all of the prompt may be media.
static void memory_add_passes(struct memory_list *list, const struct model_config *config,
                              const struct memory_request *request) {
    enum element type = memory_list_type(request->precision);
    struct transformer text = text_transformer(&config->text), vision = vision_transformer(&config->vision);
    int64_t merge = config->vision.spatial_merge_size, patches = request->prompt_tokens * merge * merge;
    int64_t slot_rows = cache_round_up(request->new_tokens), prompt_rows = cache_round_up(request->prompt_tokens);
    int64_t rows = request->prompt_tokens, area;
    if (!request->generates) rows += request->group_size * request->new_tokens;
    bool train_vision = request->training && request->train_vision;
    size_t kept = vision_kept_bytes(&config->vision, &vision, type, patches, train_vision);
    size_t tower = vision_pass_bytes(&config->vision, &vision, type, patches, train_vision) +
                   (train_vision ? 0 : kept) + (size_t)(rows * text.hidden_size) * element_size(type);
    size_t pass = text_pass_bytes(&text, type, rows, rows, request->training);
    memory_list_add(list, "the tower's inputs", train_vision ? kept : 0);
    memory_list_add(list, "working memory", pass > tower ? pass : tower);
    pass = text_pass_bytes(&text, type, GENERATOR_ROWS, GENERATOR_ROWS, false);
    bool decodes = request->generates || request->continued_tokens;
    memory_list_add(list, "working memory of a step", decodes ? workspace_chunk_size(pass) : 0);
    memory_list_add(list, "working memory of the operations", memory_operations(config, request, patches));
    int64_t cache_rows = request->generates
                             ? text.block_count * generator_cache_rows(GENERATOR_ROWS, slot_rows, request->group_size,
                                                                       prompt_rows, &area)
                             : prompt_rows + request->group_size * slot_rows;
    if (request->continued_tokens)
        cache_rows +=
            text.block_count *
            (prompt_rows + request->group_size * cache_round_up(request->new_tokens + request->continued_tokens));
    memory_list_add(list, "cache of keys and values",
                    memory_list_cache_bytes(text.heads, type, cache_rows) +
                        memory_list_cache_bytes(vision.heads, type, patches));
}

status model_memory_needs(const char *dir, const struct memory_request *request, struct memory_item *out,
                          size_t *count) {
    struct model_config config;
    struct qwen_parameters *params;
    *count = 0;
    assert(request->prompt_tokens > 0 && request->group_size > 0 && request->new_tokens > 0);
    TRY(model_config_read(&config, dir));
    TRY(qwen_parameters_new(&params, &config));
    struct memory_list list = {out, count};
    memory_add_weights(&list, &params->table, request);
    memory_add_passes(&list, &config, request);
    qwen_parameters_free(&params);
    return OK;
}
