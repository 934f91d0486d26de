// The short subcommands: graph, keygen, merge and tokenize.
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/signals.h"
#include "shared/base/log.h"
#include "shared/config/pipeline.h"
#include "shared/model/model.h"
#include "shared/text/chat_template.h"
#include "shared/text/tokenizer.h"
#include "shared/wire/transport.h"
#include "tools/deployment.h"
#include "tools/tools.h"

// ---- caravan graph FILE: prints text on a terminal, Graphviz's dot otherwise ----

struct graph_options {
    struct pipeline_file_options file;
    bool dot, text;
};

static const struct option graph_options[] = {
    TOOL_OPTION(graph_options, dot, OPTION_BOOL,
                "print the graph in Graphviz's dot (default if standard output is not a terminal)"),
    TOOL_OPTION(graph_options, text, OPTION_BOOL, "print the graph as lines of text (default on a terminal)"),
    PIPELINE_SET,
    {0},
};
const struct option_table graph_table = {.program = "caravan graph",
                                         .operands = "FILE|RUN",
                                         .help = "draws a pipeline file",
                                         .options = graph_options,
                                         .size = sizeof(struct graph_options)};

status graph_main(struct subcommand_call *call) {
    const struct graph_options *given = call->given;
    if (given->text || (isatty(STDOUT_FILENO) && !given->dot))
        pipeline_text(call->pipeline, &call->out);
    else
        pipeline_dot(call->pipeline, &call->out);
    return OK;
}

// ---- caravan keygen: this machine's pair of keys ----

const struct option_table keygen_table = {
    .program = "caravan keygen",
    .operands = "[FILE]",
    .details = "FILE is the key file to write (default: ~/.config/caravan/machine.key).\n",
    .help = "makes a key file for this machine and prints its public key",
};

status keygen_main(struct subcommand_call *call) {
    struct arena *arena = &call->arena;
    struct wire_security keys = {0};
    status result;
    const char *path = call->count ? call->list[0] : deployment_key_file(arena);
    if (!*path) TRY_TO(result, done, fail(USAGE, "HOME is not set: say where to write it: caravan keygen FILE"));
    const char *dir = path_parent(arena, path);
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done, wire_key_make(&keys));
    TRY_TO(result, done, wire_key_write(&keys, path));
    printf("%s\n", keys.public); // alone, for scripts
    log_info("the secret key is in %s; write the public key into the pipeline file, in quotes:", path);
    fprintf(stderr, "    key: \"%s\"\n", keys.public);
done:
    wire_security_release(&keys);
    return result;
}

// ---- merge ----

// caravan merge MODEL ADAPTER OUT: a model directory from another one and an adapter.

const struct option_table merge_table = {
    .program = "caravan merge",
    .operands = "MODEL ADAPTER OUT",
    .help = "writes a model directory with an adapter (LoRA) added to the weights of another",
    .details = "ADAPTER is a directory with adapter_config.json and adapter_model.safetensors,\n"
               "as PEFT writes it. The sums are rounded to the types of MODEL's weights: what\n"
               "is smaller than a unit of their last place is lost. OUT must have no weights\n"
               "and no adapter yet.\n",
};

static bool merge_is_same(const char *left, const char *right) {
    struct stat a, b;
    return stat(left, &a) == 0 && stat(right, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

status merge_main(struct subcommand_call *call) {
    const char *model = call->list[0], *adapter = call->list[1], *out = call->list[2];
    if (merge_is_same(model, out)) return fail(USAGE, "%s: MODEL cannot be OUT too", out);
    if (merge_is_same(adapter, out)) return fail(USAGE, "%s: ADAPTER cannot be OUT too", out);
    return model_merge(model, adapter, out, 0);
}

// ---- tokenize ----

// caravan tokenize: converts JSON lines of texts or messages to JSON lines of tokens, and back.

struct tokenize_options {
    const char *model;
    bool decode, skip_special;
};

static const struct option tokenize_options[] = {
    TOOL_OPTION(tokenize_options, model, OPTION_FILE, "model directory that has the tokenizer", .required = true),
    TOOL_OPTION(tokenize_options, decode, OPTION_BOOL, "convert {\"tokens\": [...]} to {\"text\": ...}"),
    TOOL_OPTION(tokenize_options, skip_special, OPTION_BOOL, "with --decode: omit special tokens from the text"),
    {0},
};
const struct option_table tokenize_table = {
    .program = "caravan tokenize",
    .help = "reads JSON lines {\"text\": ...} or {\"messages\": [...]} and writes {\"tokens\": [...]} for each",
    .details = "A text, and a pair {\"text\": ..., \"pair\": ...}, get the special tokens of the\n"
               "tokenizer's post_processor: [CLS] and [SEP] of ModernBERT, none of Qwen2.5-VL.\n",
    .options = tokenize_options,
    .size = sizeof(struct tokenize_options),
};

// Reads one message. The kinds of its parts are told apart as the chat template does it.
static status tokenize_read_message(struct arena *memory, struct json *json, struct message *message) {
    struct json *value;
    if (!json_is(json, JSON_OBJECT)) return fail(DATAERR, "not an object");
    TRY(json_require(json, "role", JSON_STRING, &value));
    message->role = json_string(value);
    if (!json_find(json, "content", &value)) return fail(DATAERR, "content: missing");
    bool plain = json_is(value, JSON_STRING);
    if (!plain && !json_is(value, JSON_ARRAY)) return fail(DATAERR, "content: neither a string nor an array");
    message->part_count = plain ? 1 : json_count(value);
    message->parts = arena_alloc(memory, (message->part_count + 1) * sizeof *message->parts);
    if (plain) message->parts[0] = (struct part){.kind = PART_TEXT, .text = json_string(value)};
    for (size_t i = 0; !plain && i < message->part_count; i++) {
        struct json *part = json_item(value, i), *field = NULL;
        bool object = json_is(part, JSON_OBJECT);
        status result = object ? json_get(part, "type", JSON_STRING, &field) : fail(DATAERR, "not an object");
        if (result != OK) return fail_prefix(result, "content[%zu]", i);
        const char *type = field ? json_text(field) : "";
        if (!strcmp(type, "image") || json_find(part, "image", NULL) || json_find(part, "image_url", NULL)) {
            message->parts[i].kind = PART_IMAGE;
        } else if (!strcmp(type, "video") || json_find(part, "video", NULL)) {
            message->parts[i].kind = PART_VIDEO;
        } else {
            result = json_require(part, "text", JSON_STRING, &field);
            if (result != OK) return fail_prefix(result, "content[%zu]", i);
            message->parts[i] = (struct part){.kind = PART_TEXT, .text = json_string(field)};
        }
    }
    return OK;
}

// Appends the line {"tokens": [...]} for an object with a text, a pair of texts, or messages. `model` is the directory
// of the tokenizer.
static status tokenize_encode(const struct tokenizer *tokenizer, const char *model, struct json *json,
                              struct buf *out) {
    struct json *given, *pair, *list;
    struct arena memory = {0};
    struct token_list tokens = {0};
    status result;
    TRY(json_get(json, "text", JSON_STRING, &given));
    TRY(json_get(json, "pair", JSON_STRING, &pair));
    TRY(json_get(json, "messages", JSON_ARRAY, &list));
    if (pair && !given) return fail(DATAERR, "the object has a pair but no text");
    if (!given == !list)
        return fail(DATAERR,
                    given ? "the object has both text and messages" : "the object has neither text nor messages");
    if (given) {
        const struct string text = json_string(given), other = json_string(pair);
        TRY_TO(result, done, tokenizer_encode_pair(tokenizer, text.data, text.size, other.data, other.size, &tokens));
    } else {
        size_t count = json_count(list);
        TRY_TO(result, done, chat_template_check(tokenizer, model));
        struct message *messages = arena_alloc(&memory, (count + 1) * sizeof *messages);
        if (!count) TRY_TO(result, done, fail(DATAERR, "messages: empty"));
        for (size_t i = 0; i < count; i++) {
            result = tokenize_read_message(&memory, json_item(list, i), &messages[i]);
            if (result != OK) TRY_TO(result, done, fail_prefix(result, "messages[%zu]", i));
        }
        TRY_TO(result, done, chat_template_encode(tokenizer, messages, count, &tokens));
    }
    buf_puts(out, "{\"tokens\": [");
    for (size_t i = 0; i < tokens.count; i++) buf_printf(out, i ? ", %lld" : "%lld", (long long)tokens.data[i]);
    buf_puts(out, "]}\n");
done:
    token_list_release(&tokens);
    arena_release(&memory);
    return result;
}

// Appends the line {"text": ...} for an object with tokens, each of which is below `limit`.
static status tokenize_decode(const struct tokenizer *tokenizer, int64_t limit, bool skip_special, struct json *json,
                              struct buf *out) {
    struct json *list;
    struct token_list tokens = {0};
    struct buf decoded = {0};
    status result = OK;
    TRY(json_require(json, "tokens", JSON_ARRAY, &list));
    for (size_t i = 0; i < json_count(list); i++) {
        int64_t value;
        if (!json_int(json_item(list, i), &value))
            TRY_TO(result, done, fail(DATAERR, "tokens[%zu]: not an integer", i));
        if (value < 0 || value >= limit)
            TRY_TO(result, done, fail(DATAERR, "tokens[%zu]: %lld is not in the vocabulary", i, (long long)value));
        token_list_append(&tokens, value);
    }
    tokenizer_decode_utf8(tokenizer, tokens.data, tokens.count, skip_special, &decoded);
    buf_puts(out, "{\"text\": ");
    json_print_string(out, decoded.data ? decoded.data : "", decoded.size);
    buf_puts(out, "}\n");
done:
    buf_release(&decoded);
    token_list_release(&tokens);
    return result;
}

status tokenize_main(struct subcommand_call *call) {
    const struct tokenize_options *given = call->given;
    struct tokenizer *tokenizer = NULL;
    struct line_reader lines = {.fd = STDIN_FILENO};
    struct json *json, *text_config, *vocab_size;
    struct arena memory = {0};
    struct buf out = {0};
    status result;
    if (given->skip_special && !given->decode) TRY_TO(result, done, fail(USAGE, "--skip-special needs --decode"));
    result = tokenizer_open(&tokenizer, given->model);
    if (result != OK) (void)model_check_dir(given->model); // says more, if it has adapters
    TRY_TO(result, done, result);
    // Ids are valid up to the number of rows of the model's embedding: vocab_size of config.json, which may be larger
    // than the tokenizer's vocabulary. Without a config.json the size of that vocabulary is the limit.
    int64_t limit = tokenizer_vocab_size(tokenizer);
    char *path = path_join(&memory, given->model, "config.json");
    if (path_exists(path)) {
        TRY_TO(result, done, json_parse_file(&json, &memory, path));
        TRY_TO(result, done, json_get(json, "vocab_size", JSON_NUMBER, &vocab_size));
        TRY_TO(result, done, json_get(json, "text_config", JSON_OBJECT, &text_config));
        if (!vocab_size && text_config)
            TRY_TO(result, done, json_get(text_config, "vocab_size", JSON_NUMBER, &vocab_size));
        if (json_int_or(vocab_size, 0) > limit) limit = json_int_or(vocab_size, 0);
    }
    for (;;) {
        const char *line;
        size_t size;
        TRY_TO(result, done, line_reader_next(&lines, -1, &line, &size));
        if (!line) continue;
        buf_clear(&out);
        arena_release(&memory);
        result = json_parse(&json, &memory, line, size);
        if (result == OK && !json_is(json, JSON_OBJECT)) result = fail(DATAERR, "not a JSON object");
        if (result == OK)
            result = given->decode ? tokenize_decode(tokenizer, limit, given->skip_special, json, &out)
                                   : tokenize_encode(tokenizer, given->model, json, &out);
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "line %zu", lines.number));
        if (fwrite(out.data, 1, out.size, stdout) != out.size || fflush(stdout))
            TRY_TO(result, done, fail(UNAVAILABLE, "cannot write to standard output"));
    }
done:
    arena_release(&memory);
    buf_release(&out);
    line_reader_release(&lines);
    tokenizer_free(&tokenizer);
    return result;
}
