// caravan tokenize: JSON lines of texts or messages to JSON lines of tokens, and back.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/stage/line_reader.h"
#include "shared/base/json.h"
#include "shared/text/chat_template.h"
#include "shared/text/tokenizer.h"
#include "tools/tools.h"

struct tokenize_options {
    const char *model;
    bool decode, skip_special;
};

static const struct option tokenize_options[] = {
    {.name = "model",
     .offset = offsetof(struct tokenize_options, model),
     .type = OPTION_FILE,
     .required = true,
     .help = "model directory whose tokenizer is used"},
    {.name = "decode",
     .offset = offsetof(struct tokenize_options, decode),
     .type = OPTION_BOOL,
     .help = "the other way: {\"tokens\": [...]} to {\"text\": ...}"},
    {.name = "skip_special",
     .offset = offsetof(struct tokenize_options, skip_special),
     .type = OPTION_BOOL,
     .help = "with --decode: leave special tokens out of the text"},
    {0},
};
static const struct option_table tokenize_table = {
    .program = "caravan tokenize",
    .help = "reads JSON lines {\"text\": ...} or {\"messages\": [...]} and writes {\"tokens\": [...]} for each",
    .options = tokenize_options,
    .size = sizeof(struct tokenize_options),
};

struct tokenize_task {
    struct tokenize_options options;
    struct tokenizer *tokenizer;
    int64_t limit; // one more than the highest id that the model has, padding of its table included
};

static status tokenize_require(struct json_object *object, const char *key, enum json_type type,
                               struct json_object **out) {
    TRY(json_get(object, key, type, out));
    return *out ? OK : fail(DATAERR, "%s: missing", key);
}

// One part of a message, told apart as the chat template does it.
static status tokenize_read_part(struct json_object *json, struct part *part) {
    struct json_object *value;
    const char *type = "";
    if (!json_object_is_type(json, json_type_object)) return fail(DATAERR, "not an object");
    TRY(json_get(json, "type", json_type_string, &value));
    if (value) type = json_object_get_string(value);
    if (!strcmp(type, "image") || json_object_object_get_ex(json, "image", NULL) ||
        json_object_object_get_ex(json, "image_url", NULL)) {
        part->kind = PART_IMAGE;
    } else if (!strcmp(type, "video") || json_object_object_get_ex(json, "video", NULL)) {
        part->kind = PART_VIDEO;
    } else {
        TRY(tokenize_require(json, "text", json_type_string, &value));
        part->kind = PART_TEXT;
        part->text = json_string(value);
    }
    return OK;
}

static status tokenize_read_message(struct arena *memory, struct json_object *json, struct message *message) {
    struct json_object *value;
    if (!json_object_is_type(json, json_type_object)) return fail(DATAERR, "not an object");
    TRY(tokenize_require(json, "role", json_type_string, &value));
    message->role = json_string(value);
    if (!json_object_object_get_ex(json, "content", &value)) return fail(DATAERR, "content: missing");
    bool plain = json_object_is_type(value, json_type_string);
    if (!plain && !json_object_is_type(value, json_type_array))
        return fail(DATAERR, "content: neither a text nor a list");
    message->part_count = plain ? 1 : json_object_array_length(value);
    message->parts = arena_alloc(memory, (message->part_count + 1) * sizeof *message->parts);
    if (!message->parts) return fail_oom();
    if (plain) message->parts[0] = (struct part){.kind = PART_TEXT, .text = json_string(value)};
    for (size_t i = 0; !plain && i < message->part_count; i++) {
        status result = tokenize_read_part(json_object_array_get_idx(value, i), &message->parts[i]);
        if (result != OK) return fail_prefix(result, "content[%zu]", i);
    }
    return OK;
}

static status tokenize_messages(const struct tokenize_task *task, struct json_object *list, struct token_list *tokens) {
    struct arena memory = {0};
    size_t count = json_object_array_length(list);
    struct message *messages = arena_alloc(&memory, (count + 1) * sizeof *messages);
    status result = !messages ? fail_oom() : count ? OK : fail(DATAERR, "messages: empty");
    for (size_t i = 0; result == OK && i < count; i++) {
        result = tokenize_read_message(&memory, json_object_array_get_idx(list, i), &messages[i]);
        if (result != OK) fail_prefix(result, "messages[%zu]", i);
    }
    if (result == OK) result = chat_template_encode(task->tokenizer, messages, count, tokens);
    arena_release(&memory);
    return result;
}

static status tokenize_encode(const struct tokenize_task *task, struct json_object *json, struct buf *out) {
    struct json_object *given, *messages;
    struct token_list tokens = {0};
    status result;
    TRY(json_get(json, "text", json_type_string, &given));
    TRY(json_get(json, "messages", json_type_array, &messages));
    if (!given == !messages) return fail(DATAERR, given ? "both text and messages" : "neither text nor messages");
    result = given ? tokenizer_encode(task->tokenizer, json_object_get_string(given),
                                      (size_t)json_object_get_string_len(given), &tokens)
                   : tokenize_messages(task, messages, &tokens);
    if (result == OK) result = buf_puts(out, "{\"tokens\": [");
    for (size_t i = 0; result == OK && i < tokens.count; i++)
        result = buf_printf(out, i ? ", %lld" : "%lld", (long long)tokens.data[i]);
    if (result == OK) result = buf_puts(out, "]}\n");
    token_list_release(&tokens);
    return result;
}

static status tokenize_read_ids(const struct tokenize_task *task, struct json_object *list, struct token_list *tokens) {
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *id = json_object_array_get_idx(list, i);
        if (!json_object_is_type(id, json_type_int)) return fail(DATAERR, "tokens[%zu]: not an integer", i);
        int64_t value = json_object_get_int64(id);
        if (value < 0 || value >= task->limit)
            return fail(DATAERR, "tokens[%zu]: %s is not in the vocabulary", i, json_object_to_json_string(id));
        TRY(token_list_append(tokens, value));
    }
    return OK;
}

static status tokenize_decode(const struct tokenize_task *task, struct json_object *json, struct buf *out) {
    struct json_object *list;
    struct token_list tokens = {0};
    struct buf decoded = {0};
    status result;
    TRY(tokenize_require(json, "tokens", json_type_array, &list));
    TRY_TO(result, done, tokenize_read_ids(task, list, &tokens));
    TRY_TO(result, done,
           tokenizer_decode_utf8(task->tokenizer, tokens.data, tokens.count, task->options.skip_special, &decoded));
    TRY_TO(result, done, buf_puts(out, "{\"text\": "));
    TRY_TO(result, done, json_print_string(out, decoded.data ? decoded.data : "", decoded.size));
    TRY_TO(result, done, buf_puts(out, "}\n"));
done:
    buf_release(&decoded);
    token_list_release(&tokens);
    return result;
}

static status tokenize_line(const struct tokenize_task *task, const char *line, size_t size, struct buf *out) {
    struct json_object *json;
    TRY(json_parse(&json, line, size));
    status result = !json_object_is_type(json, json_type_object) ? fail(DATAERR, "not a JSON object")
                    : task->options.decode                       ? tokenize_decode(task, json, out)
                                                                 : tokenize_encode(task, json, out);
    json_object_put(json);
    return result;
}

// The vocabulary's size by config.json, which may be larger than the tokenizer's; without one, the tokenizer's.
static status tokenize_find_limit(struct tokenize_task *task) {
    struct arena memory = {0};
    struct json_object *config = NULL, *nested, *size = NULL;
    status result = OK;
    task->limit = tokenizer_vocab_size(task->tokenizer);
    char *path = path_join(&memory, task->options.model, "config.json");
    if (!path) TRY_TO(result, done, fail_oom());
    if (!path_exists(path)) goto done;
    TRY_TO(result, done, json_parse_file(&config, path));
    TRY_TO(result, done, json_get(config, "vocab_size", json_type_int, &size));
    TRY_TO(result, done, json_get(config, "text_config", json_type_object, &nested));
    if (!size && nested) TRY_TO(result, done, json_get(nested, "vocab_size", json_type_int, &size));
    if (size && json_object_get_int64(size) > task->limit) task->limit = json_object_get_int64(size);
done:
    json_object_put(config);
    arena_release(&memory);
    return result;
}

static status tokenize_all(const struct tokenize_task *task) {
    struct line_reader lines = {.fd = STDIN_FILENO};
    struct buf out = {0};
    status result;
    for (;;) {
        const char *line;
        size_t size;
        TRY_TO(result, done, line_reader_next(&lines, -1, &line, &size));
        if (!line) continue;
        buf_clear(&out);
        result = tokenize_line(task, line, size, &out);
        if (result != OK) {
            fail_prefix(result, "line %zu", lines.number);
            goto done;
        }
        if (fwrite(out.data, 1, out.size, stdout) != out.size || fflush(stdout))
            TRY_TO(result, done, fail(UNAVAILABLE, "cannot write to standard output"));
    }
done:
    buf_release(&out);
    line_reader_release(&lines);
    return result;
}

int tokenize_main(int argc, char **argv) {
    struct tokenize_task task = {0};
    struct options options = {0};
    struct operands none = {0};
    status result = subcommand_parse(&options, &tokenize_table, &task.options, argc, argv, &none);
    if (result == OK && task.options.skip_special && !task.options.decode)
        result = fail(USAGE, "--skip-special needs --decode");
    if (result == OK) result = tokenizer_open(&task.tokenizer, task.options.model);
    if (result == OK) result = tokenize_find_limit(&task);
    if (result == OK) result = tokenize_all(&task);
    tokenizer_free(&task.tokenizer);
    options_release(&options);
    return subcommand_exit(result);
}
