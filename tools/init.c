// caravan init DIR: a model folder with random weights, in the layout and with the starting values of Hugging Face.
// config.json is written last: a folder that has one is whole.
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/text/bpe_train.h"
#include "shared/text/tokenizer_train.h"
#include "tools/init.h"
#include "tools/tools.h"

enum init_dtype { INIT_DTYPE_FLOAT32, INIT_DTYPE_BFLOAT16 };
static const char *const dtype_names[] = {[INIT_DTYPE_FLOAT32] = "float32", [INIT_DTYPE_BFLOAT16] = "bfloat16"};

struct init_options {
    const char *shape, *tokenizer, *train_tokenizer;
    int dtype; // init_dtype
    int64_t seed, vocab_size, threads;
};

static const struct option init_options[] = {
    {.name = "shape",
     .offset = offsetof(struct init_options, shape),
     .type = OPTION_STRING,
     .required = true,
     .help = "tiny, Qwen2.5-VL's 3b or 7b, or a config.json"},
    {.name = "tokenizer",
     .offset = offsetof(struct init_options, tokenizer),
     .type = OPTION_FILE,
     .help = "copy the tokenizer of that directory"},
    {.name = "train_tokenizer",
     .offset = offsetof(struct init_options, train_tokenizer),
     .type = OPTION_FILE,
     .help = "learn a byte-level one from a UTF-8 text file"},
    {.name = "vocab_size",
     .offset = offsetof(struct init_options, vocab_size),
     .type = OPTION_INT,
     .default_value = "2048",
     .low = BPE_BYTE_TOKENS,
     .high = 1 << 20,
     .help = "learn at most so many tokens, the bytes' 256 among them"},
    {.name = "dtype",
     .offset = offsetof(struct init_options, dtype),
     .type = OPTION_CHOICE,
     .default_value = "float32",
     .choices = "float32|bfloat16",
     .help = "of the weights"},
    {.name = "seed",
     .offset = offsetof(struct init_options, seed),
     .type = OPTION_INT,
     .default_value = "0",
     .high = 9007199254740992.0,
     .help = "of the weights"},
    {.name = "threads",
     .offset = offsetof(struct init_options, threads),
     .type = OPTION_INT,
     .default_value = "0",
     .high = 1024,
     .help = "threads to use; 0: all"},
    {0},
};
static const struct option_table init_table = {
    .program = "caravan init",
    .operands = "DIR",
    .help = "writes a model directory with random weights",
    .details = "Either --tokenizer or --train-tokenizer is needed.\n",
    .options = init_options,
    .size = sizeof(struct init_options),
};

struct init_task {
    const char *folder;
    struct init_options options;
};

// Copies the files of a tokenizer that the folder has.
static status init_copy_tokenizer(const struct init_task *task) {
    static const char *const names[] = {
        "tokenizer.json",          "vocab.json",        "merges.txt",        "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "chat_template.json"};
    struct arena memory = {0};
    struct buf content = {0};
    status result = OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && result == OK; i++) {
        char *from = path_join(&memory, task->options.tokenizer, names[i]),
             *to = path_join(&memory, task->folder, names[i]);
        if (!from || !to) result = fail_oom();
        if (result != OK || !path_exists(from)) continue;
        buf_clear(&content);
        result = file_read(from, &content);
        if (result == OK) result = file_write_atomic(to, content.data, content.size);
    }
    char *template = path_join(&memory, task->folder, "chat_template.json");
    if (result == OK && !template) result = fail_oom();
    if (result == OK && !path_exists(template)) result = tokenizer_save_chat_template(task->folder);
    buf_release(&content);
    arena_release(&memory);
    return result;
}

static status init_learn_tokenizer(const struct init_task *task, int64_t vocabulary, bool fixed) {
    int64_t limit = task->options.vocab_size;
    if (fixed && vocabulary < BPE_BYTE_TOKENS + QWEN_ADDED_TOKENS)
        return fail(DATAERR, "--shape: vocab_size %lld leaves no room for the %d tokens of a byte-level tokenizer",
                    (long long)vocabulary, BPE_BYTE_TOKENS + QWEN_ADDED_TOKENS);
    if (fixed && vocabulary - QWEN_ADDED_TOKENS < limit) limit = vocabulary - QWEN_ADDED_TOKENS;
    struct buf text = {0};
    status result = file_read(task->options.train_tokenizer, &text);
    if (result == OK) {
        result = tokenizer_train(task->folder, text.data, text.size, (size_t)limit);
        if (result == DATAERR) fail_prefix(result, "%s", task->options.train_tokenizer);
    }
    buf_release(&text);
    return result;
}

static float init_range_of(json_object *config, const char *part) {
    json_object *inner, *value;
    float range;
    bool nested = json_object_object_get_ex(config, part, &inner) && json_object_is_type(inner, json_type_object) &&
                  json_object_object_get_ex(inner, "initializer_range", &value);
    if (!nested && !json_object_object_get_ex(config, "initializer_range", &value)) return 0.02f;
    return json_float(value, &range) && range >= 0 ? range : 0.02f;
}

// Fits the config to the tokenizer that lies in the folder now, and writes all but the tokenizer.
static status init_write_model(const struct init_task *task, json_object *shape, bool fixed) {
    struct arena memory = {0};
    struct buf text = {0};
    struct tokenizer *t = NULL;
    struct model_config *config = NULL;
    status result;
    TRY_TO(result, done, NEW(&config, 1));
    TRY_TO(result, done, tokenizer_open(&t, task->folder));
    TRY_TO(result, done, init_fit(shape, t, fixed, dtype_names[task->options.dtype]));
    TRY_TO(result, done, init_print(shape, &text));
    TRY_TO(result, done, model_config_parse(config, text.data, text.size, task->options.shape));
    TRY_TO(result, done, init_write_settings(task->folder, t, config));
    const struct init_weights how = {.folder = task->folder,
                                     .text_range = init_range_of(shape, "text_config"),
                                     .vision_range = init_range_of(shape, "vision_config"),
                                     .seed = (uint64_t)task->options.seed,
                                     .type = task->options.dtype == INIT_DTYPE_FLOAT32 ? ELEMENT_F32 : ELEMENT_BF16,
                                     .threads = (int)task->options.threads};
    TRY_TO(result, done, init_write_weights(&how, config));
    char *path = path_join(&memory, task->folder, "config.json");
    result = path ? file_write_atomic(path, text.data, text.size) : fail_oom();
done:
    free(config);
    tokenizer_free(&t);
    buf_release(&text);
    arena_release(&memory);
    return result;
}

static status init_model_dir(const struct init_task *task) {
    struct arena memory = {0};
    json_object *shape = NULL;
    bool fixed;
    status result;
    char *path = path_join(&memory, task->folder, "config.json");
    if (!path) TRY_TO(result, done, fail_oom());
    if (path_exists(path)) TRY_TO(result, done, fail(USAGE, "%s: there is a model already", task->folder));
    TRY_TO(result, done, init_shape(&shape, task->options.shape, &fixed));
    TRY_TO(result, done, dir_make(task->folder));
    TRY_TO(result, done,
           task->options.tokenizer ? init_copy_tokenizer(task)
                                   : init_learn_tokenizer(task, init_vocabulary(shape), fixed));
    result = init_write_model(task, shape, fixed);
done:
    json_object_put(shape);
    arena_release(&memory);
    return result;
}

int init_main(int argc, char **argv) {
    struct init_task task;
    struct options options = {0};
    struct operands operands = {.least = 1, .most = 1};
    status result = subcommand_parse(&options, &init_table, &task.options, argc, argv, &operands);
    if (result == OK && !task.options.tokenizer == !task.options.train_tokenizer)
        result = fail(USAGE, "one of --tokenizer and --train-tokenizer is needed");
    if (result == OK) {
        task.folder = operands.list[0];
        result = init_model_dir(&task);
    }
    options_release(&options);
    return subcommand_exit(result);
}
