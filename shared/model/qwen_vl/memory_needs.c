// What a model needs of the memory of its device, a GPU or the CPU, and of the disk. The sizes come from the functions
// that stand beside what allocates them.
#include <assert.h>

#include "shared/model/model_shapes.h"
#include "shared/model/qwen_vl/model_internal.h"

static int64_t memory_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t memory_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t memory_divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// The elements of a packed matrix on the CPU.
static size_t memory_packed_elements(const struct fused_param *param) {
    enum { PACKED_ROWS = 64 };
    return (size_t)(memory_divide_up(param->rows, PACKED_ROWS) * PACKED_ROWS * param->columns);
}

// What the operations of kernels/cuda allocate for themselves: logits of a block of rows, in training of a part of the
// vocabulary with their gradients and the head's input's; and in parts, one for each block of keys and each TILE_PARTS
// tiles of queries that see it, the gradients of keys and values. To sample, four histograms of 2,048 bins of 8 bytes
// for each row, and 4 KiB of sums. To convert adapters, which are float32 in their file, 4 MiB.
enum { BLOCK_LOGITS = 1 << 27, MIN_BLOCK_ROWS = 128, PART_VOCABULARY = 8192, BLOCK_KEYS = 64, TILE_PARTS = 64 };
enum { SAMPLE_ROW_BYTES = 4 * 2048 * 8 + 4096, CONVERSION_BYTES = 4 << 20 };

static size_t memory_grad_parts(struct heads heads, int64_t keys, int64_t queries) {
    int64_t tiles = memory_divide_up(queries * (heads.query / heads.key), BLOCK_KEYS);
    int64_t parts = memory_divide_up(keys, BLOCK_KEYS) * memory_divide_up(tiles, TILE_PARTS);
    return (size_t)(parts * 2 * BLOCK_KEYS * heads.size * heads.key) * sizeof(float);
}

// The same of kernels/cpu: logits of a block of rows; what each thread has of a product; and in training the largest
// matrix packed in two ways, rows packed for the gradient of a weight, a part of the head, and of attention the keys,
// the values and their gradients. Of packed rows there are as many as there are, in bfloat16.
enum {
    CPU_BLOCK_LOGITS = 1 << 22,
    CPU_PART_VOCABULARY = 4096,
    CPU_GRAD_ROWS = 1024,
    CPU_OPERAND_ROWS = 2048,
    CPU_PRODUCT_ROWS = 128
};

static size_t memory_operations(const struct qwen_weights *weights, const struct memory_request *request,
                                int64_t patches) {
    const struct text_config *config = &weights->config->text;
    const struct parameter_table *table = &weights->base.table;
    const enum element type = memory_list_type(request->precision);
    const int64_t size = (int64_t)element_size(type), vocabulary = config->vocab_size;
    const int64_t completed = request->group_size * request->new_tokens, rows = request->prompt_tokens + completed;
    const struct heads heads = weights->text.heads;
    if (request->on_cpu) {
        const int64_t targets = memory_max(completed, GENERATOR_ROWS);
        int64_t largest = 0, widest = 0;
        for (size_t i = 0; i < table->fused_count; i++) {
            const struct fused_param *param = table->fused[i];
            if (param->rows == 1 || param == &weights->embedding || param == &weights->lm_head) continue;
            largest = memory_max(largest, (int64_t)memory_packed_elements(param));
            widest = memory_max(widest, param->columns);
        }
        const int64_t block = memory_min(targets, memory_max(CPU_BLOCK_LOGITS / vocabulary, MIN_BLOCK_ROWS));
        int64_t bytes = block * vocabulary * (int64_t)sizeof(float);
        bytes += widest * size * CPU_PRODUCT_ROWS * request->threads;
        if (!request->training) return (size_t)bytes;
        const bool wide = memory_list_type(request->gradient_precision) == ELEMENT_F32;
        const int64_t operand = wide ? memory_min(rows, CPU_OPERAND_ROWS) : rows;
        const int64_t part = memory_min(CPU_PART_VOCABULARY, vocabulary);
        bytes += 2 * memory_max(largest, part * config->hidden_size) * size + operand * widest * size;
        bytes += memory_min(targets, CPU_GRAD_ROWS) * part * size;
        return (size_t)bytes + 2 * memory_list_cache_bytes(heads, ELEMENT_F32, cache_round_up(rows));
    }
    int64_t targets = request->generates ? 0 : completed;
    if (request->generates || request->continued_tokens) targets = memory_max(targets, GENERATOR_ROWS);
    const int64_t block = memory_min(targets, memory_max(BLOCK_LOGITS / vocabulary, MIN_BLOCK_ROWS));
    const int64_t part = request->training ? memory_min(vocabulary, PART_VOCABULARY) : 0;
    size_t logits = (size_t)memory_max(block * vocabulary, targets * part) * sizeof(float);
    if (request->lora) logits += CONVERSION_BYTES;
    if (request->generates || request->continued_tokens) logits += (size_t)GENERATOR_ROWS * SAMPLE_ROW_BYTES;
    // Copies of the matrices of the tower's second product, whose rows may not be aligned: activations, weight, and in
    // training the gradients.
    const int64_t inner = weights->config->vision.intermediate_size, unit = 16 / (int64_t)sizeof(uint16_t);
    if (type == ELEMENT_BF16 && inner % unit != 0) {
        const int64_t hidden_size = weights->config->vision.hidden_size, most = memory_max(patches, hidden_size);
        const bool trained = request->training && request->train_vision;
        const int64_t copied = trained ? 3 * most : patches + hidden_size;
        logits += (size_t)(copied * memory_divide_up(inner, unit) * unit) * element_size(type);
    }
    if (!request->training) return logits;
    if (type != ELEMENT_F32)
        logits += (size_t)(targets * part * size) + (size_t)(targets * config->hidden_size) * sizeof(float);
    struct heads vision = weights->vision.heads;
    int64_t slot_blocks = memory_divide_up(request->new_tokens, BLOCK_KEYS) * BLOCK_KEYS;
    size_t parts = memory_grad_parts(heads, request->prompt_tokens, request->prompt_tokens + targets) +
                   memory_grad_parts(heads, request->group_size * slot_blocks, request->new_tokens);
    size_t tower = request->train_vision ? memory_grad_parts(vision, patches, patches) : 0;
    return logits + (parts > tower ? parts : tower);
}

// The longest group: every completion has all its tokens, and all of the prompt may be media. The CPU computes the MLP
// and the tower in parts, does not keep the tower's inputs, and has float32 in its caches.
static void memory_add_passes(struct memory_list *list, const struct qwen_weights *weights,
                              const struct memory_request *request) {
    enum { CPU_ROWS_F32 = 1152, CPU_ROWS_BF16 = 4096, CPU_PATCHES = 2048 };
    enum element type = memory_list_type(request->precision);
    const struct transformer *text = &weights->text;
    int64_t merge = weights->config->vision.spatial_merge_size, patches = request->prompt_tokens * merge * merge;
    int64_t slot_rows = cache_round_up(request->new_tokens), prompt_rows = cache_round_up(request->prompt_tokens);
    int64_t rows = request->prompt_tokens, area;
    if (!request->generates) rows += request->group_size * request->new_tokens;
    const bool train_vision = request->training && request->train_vision, on_cpu = request->on_cpu;
    const int64_t part = on_cpu ? memory_min(patches, memory_max(CPU_PATCHES, request->medium_patches)) : patches;
    const int64_t chunk = !on_cpu ? rows : type == ELEMENT_F32 ? CPU_ROWS_F32 : CPU_ROWS_BF16;
    const bool keeps = train_vision && !on_cpu;
    size_t kept = vision_kept_bytes(weights, type, part, train_vision);
    size_t embeds = (size_t)((train_vision && on_cpu ? rows + request->prompt_tokens : rows) * text->hidden_size);
    size_t tower =
        vision_pass_bytes(weights, type, part, train_vision) + (keeps ? 0 : kept) + embeds * element_size(type);
    size_t pass = text_pass_bytes(text, type, rows, chunk, request->training);
    memory_list_add(list, "the tower's inputs", keeps ? kept : 0);
    memory_list_add(list, "working memory", pass > tower ? pass : tower);
    pass = text_pass_bytes(text, type, GENERATOR_ROWS, GENERATOR_ROWS, false);
    bool decodes = request->generates || request->continued_tokens;
    memory_list_add(list, "working memory of a step", !decodes ? 0 : on_cpu ? pass : workspace_chunk_size(pass));
    memory_list_add(list, "working memory of the operations", memory_operations(weights, request, patches));
    const enum element cached = on_cpu ? ELEMENT_F32 : type;
    int64_t cache_rows = request->generates
                             ? text->block_count * generator_cache_rows(GENERATOR_ROWS, slot_rows, request->group_size,
                                                                        prompt_rows, &area)
                             : prompt_rows + request->group_size * slot_rows;
    if (request->continued_tokens)
        cache_rows +=
            text->block_count *
            (prompt_rows + request->group_size * cache_round_up(request->new_tokens + request->continued_tokens));
    memory_list_add(list, "cache of keys and values",
                    memory_list_cache_bytes(text->heads, cached, cache_rows) +
                        memory_list_cache_bytes(weights->vision.heads, cached, part));
}

// The bytes of an array on the rank that has the most of it.
static size_t memory_list_divided(const struct parameter_table *table, int ranges, enum element matrices,
                                  enum element vectors, int ranks) {
    size_t most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const size_t bytes = param_array_divided_bytes(table, ranges, matrices, vectors, rank, ranks);
        if (bytes > most) most = bytes;
    }
    return most;
}

// Makes the tables of a model and of its adapters, which the caller releases with memory_release_tables, and counts how
// many ranges are trained. DATAERR as in model_open.
static status memory_make_tables(const char *model, const struct memory_request *request, struct model_config *config,
                                 struct qwen_weights *out, int *trained) {
    TRY(model_config_read_shape(config, model));
    TRY(qwen_weights_init(out, config));
    status result = request->lora ? qwen_add_adapters(out, request->lora, 1) : OK;
    if (result != OK) weights_release(&out->base);
    *trained = request->train_vision || request->lora ? qwen_trained(out)->table.range_count : TEXT_RANGES;
    return result;
}

static void memory_release_tables(struct qwen_weights *weights) {
    parameter_table_release(&weights->adapters.table);
    parameter_table_release(&weights->base.table);
}

status model_memory_needs(const char *model, const struct memory_request *request, struct memory_item *out,
                          size_t *count) {
    struct model_config config;
    struct qwen_weights model_weights;
    struct memory_list list = {out, count};
    *count = 0;
    assert(request->prompt_tokens > 0 && request->group_size > 0 && request->new_tokens > 0);
    assert(!request->on_cpu || (request->threads > 0 && !(request->borrows || request->borrows_base)));
    int trained;
    TRY(memory_make_tables(model, request, &config, &model_weights, &trained));
    const struct parameter_table *base = &model_weights.base.table, *table = &qwen_trained(&model_weights)->table;
    const enum element type = memory_list_type(request->precision);
    const enum element grads = memory_list_type(request->gradient_precision);
    const enum element sums = request->sum_precision ? memory_list_type(request->sum_precision) : grads;
    const enum element moments = memory_list_type(request->moment_precision);
    const int all = table->range_count;
    const size_t weights = param_array_bytes(table, all, type, type);
    const bool own_base = request->lora && !request->borrows_base;
    const size_t frozen = own_base ? param_array_bytes(base, base->range_count, type, type) : 0;
    if (!request->on_cpu || request->training)
        memory_list_add(&list, "weights", frozen + (request->borrows ? 0 : weights));
    if (request->training) {
        const int ranks = request->ranks > 1 ? request->ranks : 1;
        const size_t remainders =
            type == ELEMENT_BF16 ? memory_list_divided(table, all, ELEMENT_U16, ELEMENT_U16, ranks) : 0;
        const struct gradient_types types = {type, grads, sums};
        size_t traffic = 0;
        if (ranks > 1) {
            const size_t host = step_sums_traffic_bytes(table, trained, types, ranks, !request->on_cpu, &traffic);
            if (request->on_cpu) traffic += host + shard_gather_bytes(table, table->bucket_count, type);
        }
        memory_list_add(&list, "remainders of the weights", remainders);
        memory_list_add(&list, "sums of gradients", memory_list_divided(table, trained, sums, ELEMENT_F32, ranks));
        memory_list_add(&list, request->parts > 1 ? "gradients of a part of a group" : "gradients of a group",
                        step_sums_leaf_bytes(table, trained, types, !request->on_cpu, !request->on_cpu && ranks > 1));
        memory_list_add(&list, "gradients between ranks", traffic);
        memory_list_add(&list, "moments", 2 * memory_list_divided(table, trained, moments, ELEMENT_F32, ranks));
        memory_list_add(&list, "reference", request->ema ? weights + remainders : 0);
    } else if (request->on_cpu) {
        // The CPU packs matrices, a tied embedding once more for the head, and holds one of them unpacked while it
        // loads them.
        size_t elements = 0, largest = 0;
        for (size_t i = 0; i < base->fused_count + (request->lora ? table->fused_count : 0); i++) {
            const bool in_base = i < base->fused_count;
            const struct fused_param *param = in_base ? base->fused[i] : table->fused[i - base->fused_count];
            const size_t packed = memory_packed_elements(param);
            const bool embedding = param == &model_weights.embedding, matrix = param->rows > 1 && !embedding;
            elements += matrix ? packed : (size_t)(param->rows * param->columns);
            if (embedding && !model_weights.lm_head.count) elements += packed;
            if (matrix && packed > largest) largest = packed;
        }
        memory_list_add(&list, "weights", elements * element_size(type));
        memory_list_add(&list, "a matrix while it is loaded", largest * element_size(type));
    }
    struct memory_request pass = *request;
    if (request->parts > 1) pass.group_size = memory_divide_up(request->group_size, request->parts);
    memory_add_passes(&list, &model_weights, &pass);
    memory_release_tables(&model_weights);
    return OK;
}

static uint64_t memory_tensor_bytes(const struct parameter_table *table, int ranges, enum element matrices,
                                    enum element vectors) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        const struct parameter_range *last = &table->ranges[ranges - 1];
        if (parameter->offset >= last->offset + last->count) continue;
        bytes += (uint64_t)parameter->count * element_size(parameter->kind == PARAMETER_MATRIX ? matrices : vectors);
    }
    return bytes;
}

status model_disk_needs(const char *model, const struct memory_request *request, struct model_file_bytes *out) {
    struct model_config config;
    struct qwen_weights model_weights;
    int trained;
    TRY(memory_make_tables(model, request, &config, &model_weights, &trained));
    const struct parameter_table *table = &qwen_trained(&model_weights)->table;
    const enum element type = memory_list_type(request->precision);
    const enum element stored = request->lora ? ELEMENT_F32 : config.has_dtype ? config.dtype : type;
    const enum element moments = memory_list_type(request->moment_precision);
    const int all = table->range_count;
    const uint64_t master = memory_tensor_bytes(table, all, ELEMENT_F32, ELEMENT_F32);
    *out = (struct model_file_bytes){
        .model = memory_tensor_bytes(table, all, stored, stored),
        .state = (request->ema ? 2 : 1) * master + 2 * memory_tensor_bytes(table, trained, moments, ELEMENT_F32),
        .published = memory_tensor_bytes(table, all, type, type),
    };
    memory_release_tables(&model_weights);
    return OK;
}
