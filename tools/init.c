// caravan init DIR: a model folder with random weights, in the layout and with the starting values of Hugging Face.
// config.json is written last: a folder that has one is whole.
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/text/bpe_train.h"
#include "shared/text/tokenizer_train.h"
#include "tools/init.h"
#include "tools/tools.h"

static const char help[] =
    "usage: caravan init DIR --shape tiny|3b|7b|CONFIG.json --tokenizer DIR|--train-tokenizer TEXT [...]\n\n"
    "Writes a model folder with random weights.\n\n"
    "  --shape SHAPE            tiny, Qwen2.5-VL's 3b or 7b, or what a config.json says\n"
    "  --seed N                 of the weights (0)\n"
    "  --dtype TYPE             float32 (default) or bfloat16\n"
    "  --tokenizer DIR          copy the tokenizer of that folder\n"
    "  --train-tokenizer TEXT   learn a byte-level one from a UTF-8 text file\n"
    "  --vocab-size N           learn at most so many tokens, the bytes' 256 among them (2048)\n"
    "  --threads N              threads at work (0: all)\n";

struct task {
    const char *folder, *shape, *tokenizer, *text, *dtype;
    double seed, vocabulary, threads;
};

static status read_arguments(int argc, char **argv, struct task *task) {
    const struct tool_option options[] = {{"seed", 0, 9007199254740992.0, &task->seed, NULL},
                                          {"vocab-size", BPE_BYTE_TOKENS, 1 << 20, &task->vocabulary, NULL},
                                          {"threads", 0, 1024, &task->threads, NULL},
                                          {"shape", 0, 0, NULL, &task->shape},
                                          {"dtype", 0, 0, NULL, &task->dtype},
                                          {"tokenizer", 0, 0, NULL, &task->tokenizer},
                                          {"train-tokenizer", 0, 0, NULL, &task->text},
                                          {0}};
    TRY(tool_arguments(argc, argv, help, options, &task->folder));
    if (!task->shape) return fail(USAGE, "--shape is missing");
    if (!task->tokenizer == !task->text) return fail(USAGE, "one of --tokenizer and --train-tokenizer is needed");
    if (strcmp(task->dtype, "float32") != 0 && strcmp(task->dtype, "bfloat16") != 0)
        return fail(USAGE, "--dtype: '%s' is neither float32 nor bfloat16", task->dtype);
    return OK;
}

// Copies the files of a tokenizer that the folder has.
static status copy_tokenizer(const struct task *task) {
    static const char *const names[] = {
        "tokenizer.json",          "vocab.json",        "merges.txt",        "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "chat_template.json"};
    struct arena memory = {0};
    struct buf content = {0};
    status result = OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && result == OK; i++) {
        char *from = path_join(&memory, task->tokenizer, names[i]), *to = path_join(&memory, task->folder, names[i]);
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

static status learn_tokenizer(const struct task *task, int64_t vocabulary, bool fixed) {
    int64_t limit = (int64_t)task->vocabulary;
    if (fixed && vocabulary < BPE_BYTE_TOKENS + QWEN_ADDED_TOKENS)
        return fail(DATAERR, "--shape: vocab_size %lld leaves no room for the %d tokens of a byte-level tokenizer",
                    (long long)vocabulary, BPE_BYTE_TOKENS + QWEN_ADDED_TOKENS);
    if (fixed && vocabulary - QWEN_ADDED_TOKENS < limit) limit = vocabulary - QWEN_ADDED_TOKENS;
    struct buf text = {0};
    status result = file_read(task->text, &text);
    if (result == OK) {
        result = tokenizer_train(task->folder, text.data, text.size, (size_t)limit);
        if (result == DATAERR) fail_prefix(result, "%s", task->text);
    }
    buf_release(&text);
    return result;
}

static float range_of(json_object *config, const char *part) {
    json_object *inner, *value;
    float range;
    bool nested = json_object_object_get_ex(config, part, &inner) && json_object_is_type(inner, json_type_object) &&
                  json_object_object_get_ex(inner, "initializer_range", &value);
    if (!nested && !json_object_object_get_ex(config, "initializer_range", &value)) return 0.02f;
    return json_float(value, &range) && range >= 0 ? range : 0.02f;
}

// Fits the config to the tokenizer that lies in the folder now, and writes all but the tokenizer.
static status write_model(const struct task *task, json_object *shape, bool fixed) {
    struct arena memory = {0};
    struct buf text = {0};
    struct tokenizer *t = NULL;
    struct model_config *config = NULL;
    status result;
    TRY_TO(result, done, NEW(&config, 1));
    TRY_TO(result, done, tokenizer_open(&t, task->folder));
    TRY_TO(result, done, init_fit(shape, t, fixed, task->dtype));
    TRY_TO(result, done, init_print(shape, &text));
    TRY_TO(result, done, model_config_parse(config, text.data, text.size, task->shape));
    TRY_TO(result, done, init_write_settings(task->folder, t, config));
    const struct init_weights how = {.folder = task->folder,
                                     .text_range = range_of(shape, "text_config"),
                                     .vision_range = range_of(shape, "vision_config"),
                                     .seed = (uint64_t)task->seed,
                                     .type = !strcmp(task->dtype, "float32") ? ELEMENT_F32 : ELEMENT_BF16,
                                     .threads = (int)task->threads};
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

static status make_folder(const struct task *task) {
    struct arena memory = {0};
    json_object *shape = NULL;
    bool fixed;
    status result;
    char *path = path_join(&memory, task->folder, "config.json");
    if (!path) TRY_TO(result, done, fail_oom());
    if (path_exists(path)) TRY_TO(result, done, fail(USAGE, "%s: there is a model already", task->folder));
    TRY_TO(result, done, init_shape(&shape, task->shape, &fixed));
    TRY_TO(result, done, dir_make(task->folder));
    TRY_TO(result, done, task->tokenizer ? copy_tokenizer(task) : learn_tokenizer(task, init_vocabulary(shape), fixed));
    result = write_model(task, shape, fixed);
done:
    json_object_put(shape);
    arena_release(&memory);
    return result;
}

int init_main(int argc, char **argv) {
    struct task task = {.dtype = "float32", .vocabulary = 2048};
    status result = read_arguments(argc, argv, &task);
    if (result == OK) result = make_folder(&task);
    if (result == OK || result == END) return 0;
    log_info("%s", fail_text());
    return result;
}
