// caravan tokenize: converts JSON lines of texts or messages to JSON lines of tokens, and back.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/stage/line_reader.h"
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
     .help = "model directory that has the tokenizer"},
    {.name = "decode",
     .offset = offsetof(struct tokenize_options, decode),
     .type = OPTION_BOOL,
     .help = "convert {\"tokens\": [...]} to {\"text\": ...}"},
    {.name = "skip_special",
     .offset = offsetof(struct tokenize_options, skip_special),
     .type = OPTION_BOOL,
     .help = "with --decode: omit special tokens from the text"},
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

static status tokenize_require(struct json_object *object, const char *key, enum json_type type,
                               struct json_object **out) {
    TRY(json_get(object, key, type, out));
    return *out ? OK : fail(DATAERR, "%s: missing", key);
}

// Reads one message. The kinds of its parts are told apart as the chat template does it.
static status tokenize_read_message(struct arena *memory, struct json_object *json, struct message *message) {
    struct json_object *value;
    if (!json_object_is_type(json, json_type_object)) return fail(DATAERR, "not an object");
    TRY(tokenize_require(json, "role", json_type_string, &value));
    message->role = json_string(value);
    if (!json_object_object_get_ex(json, "content", &value)) return fail(DATAERR, "content: missing");
    bool plain = json_object_is_type(value, json_type_string);
    if (!plain && !json_object_is_type(value, json_type_array))
        return fail(DATAERR, "content: neither a string nor an array");
    message->part_count = plain ? 1 : json_object_array_length(value);
    message->parts = arena_alloc(memory, (message->part_count + 1) * sizeof *message->parts);
    if (plain) message->parts[0] = (struct part){.kind = PART_TEXT, .text = json_string(value)};
    for (size_t i = 0; !plain && i < message->part_count; i++) {
        struct json_object *part = json_object_array_get_idx(value, i), *field = NULL;
        bool object = json_object_is_type(part, json_type_object);
        status result = object ? json_get(part, "type", json_type_string, &field) : fail(DATAERR, "not an object");
        if (result != OK) return fail_prefix(result, "content[%zu]", i);
        const char *type = field ? json_object_get_string(field) : "";
        if (!strcmp(type, "image") || json_object_object_get_ex(part, "image", NULL) ||
            json_object_object_get_ex(part, "image_url", NULL)) {
            message->parts[i].kind = PART_IMAGE;
        } else if (!strcmp(type, "video") || json_object_object_get_ex(part, "video", NULL)) {
            message->parts[i].kind = PART_VIDEO;
        } else {
            result = tokenize_require(part, "text", json_type_string, &field);
            if (result != OK) return fail_prefix(result, "content[%zu]", i);
            message->parts[i] = (struct part){.kind = PART_TEXT, .text = json_string(field)};
        }
    }
    return OK;
}

// Appends the line {"tokens": [...]} for an object with a text, a pair of texts, or messages. `model` is the directory
// of the tokenizer.
static status tokenize_encode(const struct tokenizer *tokenizer, const char *model, struct json_object *json,
                              struct buf *out) {
    struct json_object *given, *pair, *list;
    struct arena memory = {0};
    struct token_list tokens = {0};
    status result;
    TRY(json_get(json, "text", json_type_string, &given));
    TRY(json_get(json, "pair", json_type_string, &pair));
    TRY(json_get(json, "messages", json_type_array, &list));
    if (pair && !given) return fail(DATAERR, "the object has a pair but no text");
    if (!given == !list)
        return fail(DATAERR,
                    given ? "the object has both text and messages" : "the object has neither text nor messages");
    if (given) {
        const struct string text = json_string(given), other = json_string(pair);
        TRY_TO(result, done, tokenizer_encode_pair(tokenizer, text.data, text.size, other.data, other.size, &tokens));
    } else {
        size_t count = json_object_array_length(list);
        TRY_TO(result, done, chat_template_check(tokenizer, model));
        struct message *messages = arena_alloc(&memory, (count + 1) * sizeof *messages);
        if (!count) TRY_TO(result, done, fail(DATAERR, "messages: empty"));
        for (size_t i = 0; i < count; i++) {
            result = tokenize_read_message(&memory, json_object_array_get_idx(list, i), &messages[i]);
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
static status tokenize_decode(const struct tokenizer *tokenizer, int64_t limit, bool skip_special,
                              struct json_object *json, struct buf *out) {
    struct json_object *list;
    struct token_list tokens = {0};
    struct buf decoded = {0};
    status result;
    TRY(tokenize_require(json, "tokens", json_type_array, &list));
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *id = json_object_array_get_idx(list, i);
        if (!json_object_is_type(id, json_type_int))
            TRY_TO(result, done, fail(DATAERR, "tokens[%zu]: not an integer", i));
        int64_t value = json_object_get_int64(id);
        if (value < 0 || value >= limit)
            TRY_TO(result, done,
                   fail(DATAERR, "tokens[%zu]: %s is not in the vocabulary", i, json_object_to_json_string(id)));
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

int tokenize_main(int argc, char **argv) {
    struct tokenize_options given;
    struct options options = {0};
    struct operands none = {0};
    struct tokenizer *tokenizer = NULL;
    struct line_reader lines = {.fd = STDIN_FILENO};
    struct json_object *json = NULL, *text_config, *vocab_size = NULL;
    struct arena memory = {0};
    struct buf out = {0};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &tokenize_table, &given, argc, argv, &none));
    if (given.skip_special && !given.decode) TRY_TO(result, done, fail(USAGE, "--skip-special needs --decode"));
    TRY_TO(result, done, tokenizer_open(&tokenizer, given.model));
    // Ids are valid up to the number of rows of the model's embedding: vocab_size of config.json, which may be larger
    // than the tokenizer's vocabulary. Without a config.json the size of that vocabulary is the limit.
    int64_t limit = tokenizer_vocab_size(tokenizer);
    char *path = path_join(&memory, given.model, "config.json");
    if (path_exists(path)) {
        TRY_TO(result, done, json_parse_file(&json, path));
        TRY_TO(result, done, json_get(json, "vocab_size", json_type_int, &vocab_size));
        TRY_TO(result, done, json_get(json, "text_config", json_type_object, &text_config));
        if (!vocab_size && text_config)
            TRY_TO(result, done, json_get(text_config, "vocab_size", json_type_int, &vocab_size));
        if (vocab_size && json_object_get_int64(vocab_size) > limit) limit = json_object_get_int64(vocab_size);
        json_object_put(json);
        json = NULL;
    }
    for (;;) {
        const char *line;
        size_t size;
        TRY_TO(result, done, line_reader_next(&lines, -1, &line, &size));
        if (!line) continue;
        buf_clear(&out);
        result = json_parse(&json, line, size);
        if (result == OK && !json_object_is_type(json, json_type_object)) result = fail(DATAERR, "not a JSON object");
        if (result == OK)
            result = given.decode ? tokenize_decode(tokenizer, limit, given.skip_special, json, &out)
                                  : tokenize_encode(tokenizer, given.model, json, &out);
        json_object_put(json);
        json = NULL;
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "line %zu", lines.number));
        if (fwrite(out.data, 1, out.size, stdout) != out.size || fflush(stdout))
            TRY_TO(result, done, fail(UNAVAILABLE, "cannot write to standard output"));
    }
done:
    json_object_put(json);
    arena_release(&memory);
    buf_release(&out);
    line_reader_release(&lines);
    tokenizer_free(&tokenizer);
    options_release(&options);
    return subcommand_exit(result);
}
