// caravan init DIR: writes a model directory with random weights. Layout and initial values are those of Hugging Face.
// config.json is written last: a directory that has one is complete.
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/pool.h"
#include "shared/base/rng.h"
#include "shared/base/status.h"
#include "shared/model/modernbert/classifier_weights.h"
#include "shared/model/model_shapes.h"
#include "shared/model/parameters.h"
#include "shared/model/qwen_vl/qwen_weights.h"
#include "shared/model/safetensors.h"
#include "shared/text/chat_template.h"
#include "shared/text/tokenizer.h"
#include "tools/demo/tokenizer_train.h"
#include "tools/tools.h"

struct init_weights {
    const char *dir;
    struct arena *arena; // of the arrays
    const struct parameter_table *table;
    float *ranges; // standard deviations, of each parameter of the table
    bool cut;      // the normal distribution is cut at two deviations
    uint64_t seed;
    enum element type;
    int element_size, threads;

    // Shared by all tensors.
    struct pool *pool;
    void *block;       // BLOCK elements
    double *quantiles; // LEVELS: of the standard normal distribution at (i + 1/2) / LEVELS
    float *levels;     // LEVELS: of a tensor's; sixteen random bits choose one
};

// ---- init_config ----

// The JSON files of a new model directory, except those of the tokenizer.

// Whether the config is that of ModernBERT: of a classifier.
static bool init_is_classifier(struct json *config) {
    struct json *type;
    return json_find(config, "model_type", &type) && string_equals(json_string(type), "modernbert");
}

// Returns the object that has a key of the language model: the config's text_config if that has it, else the config.
static struct json *init_text_config(struct json *config, const char *key) {
    struct json *text;
    bool nested = json_find(config, "text_config", &text) && json_is(text, JSON_OBJECT);
    return nested && json_find(text, key, NULL) ? text : config;
}

// Returns the vocab_size of a config; without one a classifier has the default, and a language model 0.
static int64_t init_vocabulary(struct json *config) {
    struct json *value;
    int64_t size;
    bool found = json_find(init_text_config(config, "vocab_size"), "vocab_size", &value);
    if (!found && init_is_classifier(config)) return DEFAULT_CLASSIFIER_VOCAB_SIZE;
    return found && json_int(value, &size) ? size : 0;
}

// Sets the token ids and the dtype of a config, and of a classifier the labels and the pooling that it lacks. A
// vocabulary that is not `fixed` gets the tokenizer's size, rounded up to a multiple of 64. DATAERR when a fixed one is
// too small for the tokenizer, or the tokenizer lacks a token that a classifier needs.
static status init_fit(struct json *config, struct arena *arena, const struct tokenizer *t, bool fixed,
                       const char *dtype) {
    static const struct named_token {
        const char *key, *token;
    } text_ids[] = {{"bos_token_id", "<|endoftext|>"},        {"eos_token_id", "<|im_end|>"},
                    {"image_token_id", "<|image_pad|>"},      {"video_token_id", "<|video_pad|>"},
                    {"vision_token_id", "<|vision_pad|>"},    {"vision_start_token_id", "<|vision_start|>"},
                    {"vision_end_token_id", "<|vision_end|>"}},
      classifier_ids[] = {{"bos_token_id", "[CLS]"},
                          {"cls_token_id", "[CLS]"},
                          {"eos_token_id", "[SEP]"},
                          {"sep_token_id", "[SEP]"},
                          {"pad_token_id", "[PAD]"}};
    const bool classifier = init_is_classifier(config);
    const struct named_token *ids = classifier ? classifier_ids : text_ids;
    const size_t count = classifier ? sizeof classifier_ids / sizeof *ids : sizeof text_ids / sizeof *ids;
    for (size_t i = 0; i < count; i++) {
        const int64_t id = tokenizer_token_to_id(t, ids[i].token);
        if (id < 0 && classifier) return fail(DATAERR, "the tokenizer has no token %s", ids[i].token);
        if (id < 0)
            json_remove(config, ids[i].key);
        else
            json_set_int(config, arena, ids[i].key, id);
        struct json *text = json_at(config, "text_config"); // a language model's may have the ids, too
        if (classifier || !json_find(text, ids[i].key, NULL)) continue;
        if (id < 0)
            json_set(text, arena, ids[i].key); // null
        else
            json_set_int(text, arena, ids[i].key, id);
    }
    const bool labelled = json_find(config, "id2label", NULL) || json_find(config, "num_labels", NULL);
    const bool pooled = json_find(config, "classifier_pooling", NULL);
    const char *changes[] = {"{\"architectures\": [\"ModernBertForSequenceClassification\"]}",
                             labelled ? NULL
                                      : "{\"id2label\": {\"0\": \"inconsistent\", \"1\": \"consistent\"},"
                                        " \"label2id\": {\"inconsistent\": 0, \"consistent\": 1}}",
                             pooled ? NULL : "{\"classifier_pooling\": \"mean\"}"};
    for (size_t i = 0; classifier && i < sizeof changes / sizeof *changes; i++) {
        struct json *changed;
        if (!changes[i]) continue;
        TRY(json_parse(&changed, arena, changes[i], strlen(changes[i])));
        json_merge(config, arena, changed);
    }
    int64_t size = tokenizer_vocab_size(t), given = init_vocabulary(config);
    if (fixed && given < size)
        return fail(DATAERR, "--shape: vocab_size %lld is less than the tokenizer's %lld", (long long)given,
                    (long long)size);
    if (!fixed) json_set_int(config, arena, "vocab_size", (size + 63) / 64 * 64);
    const char *key = json_find(config, "dtype", NULL) ? "dtype" : "torch_dtype";
    json_set_string(config, arena, key, dtype);
    struct json *owner = init_text_config(config, key);
    if (owner != config) json_set_string(owner, arena, key, dtype);
    return OK;
}

// ---- init_weights ----

// Random weights. Each block is written as soon as it is drawn, so a model of any size needs a few megabytes of memory.

enum { BLOCK = 1 << 20, TASK = 1 << 14, DRAW = 4 }; // elements; one draw of 64 bits gives DRAW of them
enum { LEVELS = 1 << 16 };
static_assert(BLOCK % TASK == 0 && TASK % DRAW == 0, "no draw is shared by two tasks or blocks");
static_assert(LEVELS == 1 << 64 / DRAW, "each level has the bits of its share of a draw");
static const int64_t SHARD = 5000000000; // bytes

struct weight_block {
    const struct init_weights *weights;
    uint64_t key;
    int64_t first; // element of the tensor, a multiple of BLOCK
    size_t count;
};

static void init_store(const struct init_weights *weights, size_t index, float value) {
    if (weights->type == ELEMENT_F32) {
        ((float *)weights->block)[index] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7FFF + (bits >> 16 & 1); // to the nearest, ties to even
    ((uint16_t *)weights->block)[index] = (uint16_t)(bits >> 16);
}

static void init_draw_task(void *context, int task, int thread) {
    const struct weight_block *block = context;
    (void)thread;
    size_t end = ((size_t)task + 1) * TASK < block->count ? ((size_t)task + 1) * TASK : block->count;
    for (size_t index = (size_t)task * TASK; index < end; index += DRAW) {
        uint64_t bits = rng_bits(block->key, ((uint64_t)block->first + index) / DRAW, 0);
        for (size_t i = 0; i < DRAW && index + i < end; i++, bits >>= 16)
            init_store(block->weights, index + i, block->weights->levels[bits & 0xFFFF]);
    }
}

struct shard {
    size_t first, end; // parameters
    char name[64];
};

// Draws and writes the tensors of a shard, in blocks.
static status init_write_shard(const struct init_weights *weights, const struct shard *shard) {
    struct safetensors_writer *writer = NULL;
    status result;
    size_t count = shard->end - shard->first;
    char *path = path_join(weights->arena, weights->dir, shard->name);
    struct stored_tensor *tensors = arena_alloc(weights->arena, count * sizeof *tensors);
    for (size_t i = 0; i < count; i++) {
        const struct parameter *parameter = &weights->table->list[shard->first + i];
        tensors[i] = parameter_stored(parameter, parameter->name, weights->type);
    }
    TRY_TO(result, done, safetensors_create(&writer, path, tensors, count, true, NULL));
    for (size_t i = shard->first; i < shard->end; i++) {
        const struct parameter *parameter = &weights->table->list[i];
        struct weight_block block = {.weights = weights, .key = rng_key(weights->seed, parameter->name)};
        if (parameter->kind == PARAMETER_MATRIX)
            for (size_t k = 0; k < LEVELS; k++)
                weights->levels[k] = (float)(weights->quantiles[k] * weights->ranges[i]);
        for (; block.first < parameter->count; block.first += BLOCK) {
            int64_t left = parameter->count - block.first;
            block.count = left < BLOCK ? (size_t)left : BLOCK;
            if (parameter->kind == PARAMETER_MATRIX) {
                pool_run(weights->pool, (int)((block.count + TASK - 1) / TASK), init_draw_task, &block);
            } else {
                for (size_t k = 0; k < block.count; k++)
                    init_store(weights, k, parameter->kind == PARAMETER_NORM ? 1 : 0);
            }
            TRY_TO(result, done,
                   safetensors_write(writer, i - shard->first, (size_t)(block.first * weights->element_size),
                                     weights->block, block.count * (size_t)weights->element_size));
        }
    }
    result = safetensors_finish(&writer);
done:
    safetensors_abort(&writer);
    return result;
}

// Writes model.safetensors, or shards of 5 GB with their index: matrices normal, biases 0, normalisation weights 1. A
// weight depends only on the seed, its tensor's name and its index. UNAVAILABLE when a file cannot be written.
static status init_write_weights(struct init_weights *weights) {
    const struct parameter_table *table = weights->table;
    struct shard *shards = arena_alloc(weights->arena, table->count * sizeof *shards);
    struct buf index = {0};
    size_t count = 0;
    int64_t total = 0, bytes = 0; // bytes: of the last shard, which has at most SHARD, or one parameter
    status result;
    for (size_t i = 0; i < table->count; i++) {
        const int64_t size = table->list[i].count * weights->element_size;
        if (!count || bytes + size > SHARD) {
            shards[count++].first = i;
            bytes = 0;
        }
        shards[count - 1].end = i + 1;
        bytes += size;
        total += size;
    }
    assert(count > 0);
    TRY(pool_new(&weights->pool, weights->threads));
    weights->block = arena_alloc(weights->arena, BLOCK * (size_t)weights->element_size);
    weights->quantiles = arena_alloc(weights->arena, LEVELS * sizeof *weights->quantiles);
    weights->levels = arena_alloc(weights->arena, LEVELS * sizeof *weights->levels);
    // If `cut`, the quantiles of the distribution within two deviations. Newton's method from the middle outwards, each
    // quantile starting from its neighbour.
    const double tail = weights->cut ? 0.5 * erfc(2 * M_SQRT1_2) : 0; // left out at each end
    double z = 0;
    for (int i = LEVELS / 2; i < LEVELS; i++) {
        const double above = tail + (1 - 2 * tail) * ((LEVELS - i - 0.5) / LEVELS);
        for (int step = 0; step < 4; step++)
            z += (0.5 * erfc(z * M_SQRT1_2) - above) / (exp(-z * z / 2) * 0.5 * M_SQRT1_2 * M_2_SQRTPI);
        weights->quantiles[i] = z;
        weights->quantiles[LEVELS - 1 - i] = -z;
    }
    for (size_t i = 0; i < count; i++) {
        snprintf(shards[i].name, sizeof shards[i].name,
                 count == 1 ? "model.safetensors" : "model-%05zu-of-%05zu.safetensors", i + 1, count);
        if (count > 1) log_info("writing %s/%s", weights->dir, shards[i].name);
        TRY_TO(result, done, init_write_shard(weights, &shards[i]));
    }
    if (count == 1) goto done;
    buf_printf(&index, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {", (long long)total);
    for (size_t s = 0; s < count; s++)
        for (size_t i = shards[s].first; i < shards[s].end; i++)
            buf_printf(&index, "%s\n    \"%s\": \"%s\"", i ? "," : "", table->list[i].name, shards[s].name);
    buf_puts(&index, "\n  }\n}\n");
    result = subcommand_write_file(weights->dir, "model.safetensors.index.json", &index);
done:
    buf_release(&index);
    pool_free(&weights->pool);
    return result;
}

enum init_dtype { INIT_DTYPE_FLOAT32, INIT_DTYPE_BFLOAT16 };
static const char *const dtype_names[] = {[INIT_DTYPE_FLOAT32] = "float32", [INIT_DTYPE_BFLOAT16] = "bfloat16"};

struct init_options {
    const char *shape, *tokenizer, *train_tokenizer;
    int dtype; // enum init_dtype
    int64_t seed, vocab_size, threads;
};

static const struct option init_options[] = {
    TOOL_OPTION(
        init_options, shape, OPTION_STRING,
        "(required) tiny, 3b or 7b (as Qwen2.5-VL), qwen2-vl-2b, qwen2-vl-7b, modernbert-tiny, modernbert-base or "
        "modernbert-large (a classifier of consistency), or the path of a config.json"),
    TOOL_OPTION(init_options, tokenizer, OPTION_FILE, "copy the tokenizer from this directory"),
    TOOL_OPTION(init_options, train_tokenizer, OPTION_FILE, "train a byte-level tokenizer on this UTF-8 text file"),
    TOOL_OPTION(init_options, vocab_size, OPTION_INT,
                "maximum number of tokens of the trained tokenizer, including the 256 bytes", .default_value = "2048",
                .low = BPE_BYTE_TOKENS, .high = 1 << 20),
    TOOL_OPTION(init_options, dtype, OPTION_CHOICE, "data type of the weights", .default_value = "float32",
                .choices = "float32|bfloat16"),
    TOOL_OPTION(init_options, seed, OPTION_INT, "seed of the random weights", .default_value = "0",
                .high = 9007199254740992.0),
    TOOL_OPTION(init_options, threads, OPTION_INT, "number of threads; 0: all", .default_value = "0", .high = 1024),
    {0},
};
const struct option_table init_table = {
    .program = "caravan init",
    .operands = "DIR",
    .help = "writes a model directory with random weights",
    .details = "Give either --tokenizer or --train-tokenizer.\n",
    .options = init_options,
    .size = sizeof(struct init_options),
};

// Fills `dir` with a tokenizer for the shape: copies the files of --tokenizer, or trains one on the text of
// --train-tokenizer. If the vocabulary of the shape is `fixed`, the trained tokenizer and its added tokens fit into it.
static status init_make_tokenizer(const struct init_options *given, const char *dir, struct json *shape, bool fixed) {
    static const char *const names[] = {
        "tokenizer.json",          "vocab.json",        "merges.txt",        "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "chat_template.json"};
    const enum tokenizer_kind kind = init_is_classifier(shape) ? TOKENIZER_MODERNBERT : TOKENIZER_QWEN;
    const int64_t added = kind == TOKENIZER_MODERNBERT ? MODERNBERT_ADDED_TOKENS : QWEN_ADDED_TOKENS;
    const int64_t vocabulary = init_vocabulary(shape);
    struct arena memory = {0};
    struct buf content = {0};
    int64_t limit = given->vocab_size;
    status result;
    if (given->train_tokenizer) {
        assert(limit >= BPE_BYTE_TOKENS);
        if (fixed && vocabulary < BPE_BYTE_TOKENS + added)
            TRY_TO(result, done,
                   fail(DATAERR,
                        "--shape: vocab_size %lld is less than the %lld tokens of the smallest byte-level tokenizer",
                        (long long)vocabulary, (long long)(BPE_BYTE_TOKENS + added)));
        if (fixed && vocabulary - added < limit) limit = vocabulary - added;
        TRY_TO(result, done, file_read(given->train_tokenizer, &content));
        result = tokenizer_train(dir, kind, content.data, content.size, (size_t)limit);
        if (result == DATAERR) fail_prefix(result, "%s", given->train_tokenizer);
        goto done;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *from = path_join(&memory, given->tokenizer, names[i]), *to = path_join(&memory, dir, names[i]);
        if (!path_exists(from)) continue;
        buf_clear(&content);
        TRY_TO(result, done, file_read(from, &content));
        TRY_TO(result, done, file_write_atomic(to, content.data, content.size));
    }
    char *template = path_join(&memory, dir, "chat_template.json");
    result = path_exists(template) || kind != TOKENIZER_QWEN ? OK : tokenizer_save_chat_template(dir);
done:
    buf_release(&content);
    arena_release(&memory);
    return result;
}

// Returns the standard deviation of the weights of one part of the model: initializer_range of the config.
static float init_range_of(struct json *config, const char *part) {
    struct json *inner, *value;
    float range;
    bool nested =
        json_find(config, part, &inner) && json_is(inner, JSON_OBJECT) && json_find(inner, "initializer_range", &value);
    if (!nested && !json_find(config, "initializer_range", &value)) return 0.02f;
    return json_float(value, &range) && range >= 0 ? range : 0.02f;
}

// Writes generation_config.json, preprocessor_config.json and the weights of a Qwen-VL model with this config.json.
static status init_write_language_model(struct json *shape, const char *name, const struct tokenizer *tokenizer,
                                        struct init_weights *weights) {
    const float by_group[] = {
        [GROUP_TEXT] = init_range_of(shape, "text_config"), [GROUP_VISION] = init_range_of(shape, "vision_config")};
    struct model_config *config = arena_alloc(weights->arena, sizeof *config);
    const struct vision_config *vision = &config->vision;
    const long long end = tokenizer_token_to_id(tokenizer, "<|im_end|>"),
                    pad = tokenizer_token_to_id(tokenizer, "<|endoftext|>");
    struct qwen_weights model = {0};
    struct buf out = {0};
    status result;
    TRY(chat_template_check(tokenizer, weights->dir));
    TRY(model_config_fill(config, CONFIG_MODEL, shape, name));
    buf_puts(&out, "{\n");
    if (pad >= 0) buf_printf(&out, "  \"bos_token_id\": %lld,\n  \"pad_token_id\": %lld,\n", pad, pad);
    buf_printf(&out, "  \"do_sample\": true,\n  \"eos_token_id\": [%lld", end);
    if (pad >= 0) buf_printf(&out, ", %lld", pad);
    buf_puts(&out, "]\n}\n");
    TRY_TO(result, done, subcommand_write_file(weights->dir, "generation_config.json", &out));
    buf_clear(&out);
    buf_printf(&out,
               "{\n  \"min_pixels\": 3136,\n  \"max_pixels\": 12845056,\n  \"patch_size\": %d,\n"
               "  \"temporal_patch_size\": %d,\n  \"merge_size\": %d,\n"
               "  \"image_mean\": [0.48145466, 0.4578275, 0.40821073],\n"
               "  \"image_std\": [0.26862954, 0.26130258, 0.27577711],\n"
               "  \"image_processor_type\": \"Qwen2VLImageProcessor\",\n"
               "  \"processor_class\": \"%s\"\n}\n",
               vision->patch_size, vision->temporal_patch_size, vision->spatial_merge_size,
               vision->kind == VISION_QWEN2 ? "Qwen2VLProcessor" : "Qwen2_5_VLProcessor");
    TRY_TO(result, done, subcommand_write_file(weights->dir, "preprocessor_config.json", &out));
    TRY_TO(result, done, qwen_weights_init(&model, config));
    weights->table = &model.base.table;
    weights->ranges = arena_alloc(weights->arena, model.base.table.count * sizeof *weights->ranges);
    for (size_t i = 0; i < model.base.table.count; i++) weights->ranges[i] = by_group[model.base.table.list[i].group];
    result = init_write_weights(weights);
done:
    weights_release(&model.base);
    buf_release(&out);
    return result;
}

// Writes the weights of a ModernBERT classifier with this config.json, distributed as Hugging Face does.
static status init_write_classifier(struct json *shape, const char *name, struct init_weights *weights) {
    const float range = init_range_of(shape, "");
    struct classifier_config *config = arena_alloc(weights->arena, sizeof *config);
    struct classifier_weights model;
    TRY(classifier_config_fill(config, shape, name));
    TRY(classifier_weights_init(&model, config, PART_NONE));
    weights->cut = true;
    weights->table = &model.base.table;
    weights->ranges = arena_alloc(weights->arena, model.base.table.count * sizeof *weights->ranges);
    for (size_t i = 0; i < model.base.table.count; i++) {
        const char *tensor = model.base.table.list[i].name;
        const bool in = strstr(tensor, "tok_embeddings.") || strstr(tensor, ".Wqkv.") || strstr(tensor, ".Wi.");
        weights->ranges[i] = in ? range : range / sqrtf(2 * (float)config->num_hidden_layers);
        if (strncmp(tensor, "classifier.", strlen("classifier.")) == 0)
            weights->ranges[i] = 1 / sqrtf((float)config->hidden_size);
    }
    const status result = init_write_weights(weights);
    weights_release(&model.base);
    return result;
}

status init_main(struct subcommand_call *call) {
    const struct init_options *given = call->given;
    struct arena *memory = &call->arena;
    struct buf text = {0};
    struct tokenizer *tokenizer = NULL;
    struct json *shape = NULL;
    bool fixed;
    status result;
    const char *dir = call->list[0];
    if (!given->tokenizer == !given->train_tokenizer)
        return fail(USAGE, "give either --tokenizer or --train-tokenizer");
    char *path = path_join(memory, dir, "config.json");
    if (path_exists(path)) return fail(USAGE, "%s: the directory already contains a model", dir);
    TRY_TO(result, done, named_shape_find(&shape, memory, given->shape, &fixed));
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done, init_make_tokenizer(given, dir, shape, fixed));
    TRY_TO(result, done, tokenizer_open(&tokenizer, dir));
    TRY_TO(result, done, init_fit(shape, memory, tokenizer, fixed, dtype_names[given->dtype]));
    const char *before = "{\n  "; // a line for each key
    JSON_EACH(value, shape) {
        buf_puts(&text, before);
        json_print_string(&text, value->key.data, value->key.size);
        buf_puts(&text, ": ");
        json_print(&text, value);
        before = ",\n  ";
    }
    buf_puts(&text, "\n}\n");
    struct init_weights weights = {.dir = dir,
                                   .arena = memory,
                                   .seed = (uint64_t)given->seed,
                                   .type = given->dtype == INIT_DTYPE_FLOAT32 ? ELEMENT_F32 : ELEMENT_BF16,
                                   .element_size = given->dtype == INIT_DTYPE_FLOAT32 ? 4 : 2,
                                   .threads = (int)given->threads};
    if (init_is_classifier(shape))
        TRY_TO(result, done, init_write_classifier(shape, given->shape, &weights));
    else
        TRY_TO(result, done, init_write_language_model(shape, given->shape, tokenizer, &weights));
    result = file_write_atomic(path, text.data, text.size);
done:
    tokenizer_free(&tokenizer);
    buf_release(&text);
    return result;
}
