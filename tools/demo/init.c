// caravan init DIR: writes a model directory with random weights. Layout and initial values are those of Hugging Face.
// config.json is written last: a directory that has one is complete.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/model/modernbert/classifier_config.h"
#include "shared/model/modernbert/classifier_weights.h"
#include "shared/model/model_shapes.h"
#include "shared/model/qwen_vl/qwen_weights.h"
#include "tools/demo/bpe_train.h"
#include "shared/text/chat_template.h"
#include "tools/demo/tokenizer_train.h"
#include "tools/demo/init.h"
#include "tools/tools.h"

enum init_dtype { INIT_DTYPE_FLOAT32, INIT_DTYPE_BFLOAT16 };
static const char *const dtype_names[] = {[INIT_DTYPE_FLOAT32] = "float32", [INIT_DTYPE_BFLOAT16] = "bfloat16"};

struct init_options {
    const char *shape, *tokenizer, *train_tokenizer;
    int dtype; // enum init_dtype
    int64_t seed, vocab_size, threads;
};

static const struct option init_options[] = {
    {.name = "shape",
     .offset = offsetof(struct init_options, shape),
     .type = OPTION_STRING,
     .help = "(required) tiny, 3b or 7b (as Qwen2.5-VL), qwen2-vl-2b, qwen2-vl-7b, modernbert-tiny, modernbert-base or "
             "modernbert-large (a classifier of consistency), or the path of a config.json"},
    {.name = "tokenizer",
     .offset = offsetof(struct init_options, tokenizer),
     .type = OPTION_FILE,
     .help = "copy the tokenizer from this directory"},
    {.name = "train_tokenizer",
     .offset = offsetof(struct init_options, train_tokenizer),
     .type = OPTION_FILE,
     .help = "train a byte-level tokenizer on this UTF-8 text file"},
    {.name = "vocab_size",
     .offset = offsetof(struct init_options, vocab_size),
     .type = OPTION_INT,
     .default_value = "2048",
     .low = BPE_BYTE_TOKENS,
     .high = 1 << 20,
     .help = "maximum number of tokens of the trained tokenizer, including the 256 bytes"},
    {.name = "dtype",
     .offset = offsetof(struct init_options, dtype),
     .type = OPTION_CHOICE,
     .default_value = "float32",
     .choices = "float32|bfloat16",
     .help = "data type of the weights"},
    {.name = "seed",
     .offset = offsetof(struct init_options, seed),
     .type = OPTION_INT,
     .default_value = "0",
     .high = 9007199254740992.0,
     .help = "seed of the random weights"},
    {.name = "threads",
     .offset = offsetof(struct init_options, threads),
     .type = OPTION_INT,
     .default_value = "0",
     .high = 1024,
     .help = "number of threads; 0: all"},
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

// Writes the settings and the weights of a Qwen-VL model with this config.json.
static status init_write_language_model(struct json *shape, const char *text, size_t size, const char *name,
                                        const struct tokenizer *tokenizer, struct init_weights *weights) {
    const float by_group[] = {
        [GROUP_TEXT] = init_range_of(shape, "text_config"), [GROUP_VISION] = init_range_of(shape, "vision_config")};
    struct model_config *config = NULL;
    struct qwen_parameters *params = NULL;
    float *ranges = NULL;
    status result;
    TRY_TO(result, done, chat_template_check(tokenizer, weights->dir));
    NEW(&config, 1);
    TRY_TO(result, done, model_config_parse(config, CONFIG_MODEL, text, size, name));
    TRY_TO(result, done, qwen_parameters_new(&params, config));
    NEW(&ranges, params->table.count);
    for (size_t i = 0; i < params->table.count; i++) ranges[i] = by_group[params->table.list[i].group];
    weights->ranges = ranges;
    TRY_TO(result, done, init_write_settings(weights->dir, tokenizer, config));
    result = init_write_weights(weights, &params->table);
done:
    free(ranges);
    qwen_parameters_free(&params);
    free(config);
    return result;
}

// Writes the weights of a ModernBERT classifier with this config.json, distributed as Hugging Face does.
static status init_write_classifier(struct json *shape, const char *text, size_t size, const char *name,
                                    struct init_weights *weights) {
    const float range = init_range_of(shape, "");
    struct classifier_config *config = NULL;
    struct classifier_parameters *params = NULL;
    float *ranges = NULL;
    status result;
    NEW(&config, 1);
    TRY_TO(result, done, classifier_config_parse(config, text, size, name));
    TRY_TO(result, done, classifier_parameters_new(&params, config, PART_NONE));
    NEW(&ranges, params->table.count);
    for (size_t i = 0; i < params->table.count; i++) {
        const char *tensor = params->table.list[i].name;
        const bool in = strstr(tensor, "tok_embeddings.") || strstr(tensor, ".Wqkv.") || strstr(tensor, ".Wi.");
        ranges[i] = in ? range : range / sqrtf(2 * (float)config->num_hidden_layers);
        if (strncmp(tensor, "classifier.", strlen("classifier.")) == 0)
            ranges[i] = 1 / sqrtf((float)config->hidden_size);
    }
    weights->ranges = ranges;
    weights->cut = true;
    result = init_write_weights(weights, &params->table);
done:
    free(ranges);
    classifier_parameters_free(&params);
    free(config);
    return result;
}

int init_main(int argc, char **argv) {
    struct init_options given;
    struct options options = {0};
    struct operands operands = {.least = 1, .most = 1};
    struct arena memory = {0};
    struct buf text = {0};
    struct tokenizer *tokenizer = NULL;
    struct json *shape = NULL;
    bool fixed;
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &init_table, &given, argc, argv, &operands));
    const char *dir = operands.list[0];
    if (!given.tokenizer == !given.train_tokenizer)
        TRY_TO(result, done, fail(USAGE, "give either --tokenizer or --train-tokenizer"));
    char *path = path_join(&memory, dir, "config.json");
    if (path_exists(path)) TRY_TO(result, done, fail(USAGE, "%s: the directory already contains a model", dir));
    TRY_TO(result, done, named_shape_find(&shape, &memory, given.shape, &fixed));
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done, init_make_tokenizer(&given, dir, shape, fixed));
    TRY_TO(result, done, tokenizer_open(&tokenizer, dir));
    TRY_TO(result, done, init_fit(shape, &memory, tokenizer, fixed, dtype_names[given.dtype]));
    init_print(shape, &text);
    struct init_weights weights = {.dir = dir,
                                   .seed = (uint64_t)given.seed,
                                   .type = given.dtype == INIT_DTYPE_FLOAT32 ? ELEMENT_F32 : ELEMENT_BF16,
                                   .threads = (int)given.threads};
    if (init_is_classifier(shape))
        TRY_TO(result, done, init_write_classifier(shape, text.data, text.size, given.shape, &weights));
    else
        TRY_TO(result, done, init_write_language_model(shape, text.data, text.size, given.shape, tokenizer, &weights));
    result = file_write_atomic(path, text.data, text.size);
done:
    tokenizer_free(&tokenizer);
    buf_release(&text);
    arena_release(&memory);
    options_release(&options);
    return subcommand_exit(result);
}
