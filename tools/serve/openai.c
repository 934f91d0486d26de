#include "tools/serve/openai.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// ---- refusals ----

static status openai_refuse(struct openai_refusal *refusal, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Sets the refusal of a parameter: 400.
static status openai_refuse(struct openai_refusal *refusal, const char *param, const char *format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    *refusal = (struct openai_refusal){.code = 400, .name = "invalid_value"};
    snprintf(refusal->param, sizeof refusal->param, "%s", param);
    return fail(DATAERR, "%s: %s", param, message);
}

// ---- parameters ----

static status openai_get_bool(const struct json *body, const char *key, bool *out, struct openai_refusal *refusal) {
    const struct json *value = json_at(body, key);
    if (value && value->type != JSON_BOOL) return openai_refuse(refusal, key, "must be true or false");
    *out = value && value->boolean;
    return OK;
}

// Leaves *out as it is if the parameter is not given.
static status openai_get_int(const struct json *body, const char *key, int64_t low, int64_t high, int64_t *out,
                             struct openai_refusal *refusal) {
    const struct json *value = json_at(body, key);
    if (value && (!json_int(value, out) || *out < low || *out > high))
        return openai_refuse(refusal, key, "must be an integer from %lld to %lld", (long long)low, (long long)high);
    return OK;
}

static status openai_get_double(const struct json *body, const char *key, double low, double high, double *out,
                                struct openai_refusal *refusal) {
    const struct json *value = json_at(body, key);
    if (value && (!json_double(value, out) || *out < low || *out > high))
        return openai_refuse(refusal, key, "must be a number from %g to %g", low, high);
    return OK;
}

// Refuses the parameters that are not known, unless they do nothing.
static status openai_check_parameters(const struct json *body, struct openai_refusal *refusal) {
    static const char *const known[] = {"messages",    "model", "stream",  "stream_options", "max_tokens",
                                        "temperature", "top_p", "top_k",   "seed",           "max_completion_tokens",
                                        "n",           "stop",  "logprobs"};
    static const char *const ignored[] = {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"};
    static const struct {
        const char *key, *neutral;
    } neutral[] = {{"frequency_penalty", "0"},
                   {"presence_penalty", "0"},
                   {"top_logprobs", "0"},
                   {"logit_bias", "{}"},
                   {"tools", "{}"},
                   {"functions", "{}"},
                   {"tool_choice", "none"},
                   {"response_format", "{text}"},
                   {"modalities", "[text]"}};
    JSON_EACH(item, body) {
        bool fine = item->type == JSON_NULL;
        for (size_t i = 0; i < sizeof known / sizeof *known && !fine; i++) fine = string_equals(item->key, known[i]);
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored && !fine; i++)
            fine = string_equals(item->key, ignored[i]);
        for (size_t i = 0; i < sizeof neutral / sizeof *neutral && !fine; i++) {
            const char *with = neutral[i].neutral; // the value with which the parameter does nothing
            double number;
            if (!string_equals(item->key, neutral[i].key)) continue;
            if (*with == '0')
                fine = json_double(item, &number) && number == 0;
            else if (!strcmp(with, "{}"))
                fine = (json_is(item, JSON_OBJECT) || json_is(item, JSON_ARRAY)) && !item->count;
            else if (*with == '{' || *with == '[')
                fine = json_count(item) == 1 &&
                       string_equals(json_string(*with == '[' ? json_item(item, 0) : json_at(item, "type")), "text");
            else
                fine = string_equals(json_string(item), with);
        }
        if (fine) continue;
        (void)openai_refuse(refusal, item->key.data, "this server cannot do what it asks for");
        refusal->name = "unsupported_parameter";
        return DATAERR;
    }
    return OK;
}

// Checks that a value is an object with no key but those of `keys`, which ends with NULL.
static status openai_check_keys(const struct json *object, const char *const *keys, const char *where,
                                struct openai_refusal *refusal) {
    if (!json_is(object, JSON_OBJECT)) return openai_refuse(refusal, where, "must be an object");
    JSON_EACH(item, object) {
        bool known = item->type == JSON_NULL;
        for (const char *const *key = keys; *key && !known; key++) known = string_equals(item->key, *key);
        if (!known) return openai_refuse(refusal, where, "'%s' is not supported", item->key.data);
    }
    return OK;
}

status openai_parse(struct openai_request *out, struct arena *arena, struct string text,
                    const struct openai_limits *limits, struct openai_refusal *refusal) {
    enum { MOST_VALUES = 1 << 20 }; // each takes far more memory than its text
    const int64_t most = limits->max_new_tokens;
    struct json *body;
    size_t values = 1; // at most
    for (size_t i = 0; i < text.size; i++) values += text.data[i] == ',' || text.data[i] == '[' || text.data[i] == '{';
    *refusal = (struct openai_refusal){.code = values > MOST_VALUES ? 413 : 400};
    if (values > MOST_VALUES) return fail(DATAERR, "the body has more than %d values or commas", MOST_VALUES);
    *out = (struct openai_request){.count = 1, .temperature = 1, .top_p = 1, .max_new_tokens = most};
    TRY(json_parse_object(&body, arena, text.data, text.size, "the body"));
    TRY(openai_check_parameters(body, refusal));
    out->messages = json_at(body, "messages");
    if (!json_is(out->messages, JSON_ARRAY) || !json_count(out->messages))
        return openai_refuse(refusal, "messages", "must be a list of messages, at least one");
    const struct string name = json_string(json_at(body, "model"));
    if (!name.data) return openai_refuse(refusal, "model", "must be '%s'", limits->model);
    if (!string_equals(name, limits->model)) {
        (void)openai_refuse(refusal, "model", "there is no model '%s' here, only '%s'", name.data, limits->model);
        refusal->code = 404;
        refusal->name = "model_not_found";
        return DATAERR;
    }
    const struct json *options = json_at(body, "stream_options");
    TRY(openai_get_bool(body, "stream", &out->stream, refusal));
    TRY(openai_get_bool(body, "logprobs", &out->logprobs, refusal));
    if (options && !out->stream) return openai_refuse(refusal, "stream_options", "belongs to a stream");
    if (options)
        TRY(openai_check_keys(options, (const char *const[]){"include_usage", NULL}, "stream_options", refusal));
    TRY(openai_get_bool(options, "include_usage", &out->include_usage, refusal));
    if (out->stream && out->logprobs)
        return openai_refuse(refusal, "logprobs", "a stream has no log-probabilities: ask without `stream`");
    TRY(openai_get_int(body, "max_tokens", 1, most, &out->max_new_tokens, refusal));
    TRY(openai_get_int(body, "max_completion_tokens", 1, most, &out->max_new_tokens, refusal));
    TRY(openai_get_int(body, "n", 1, limits->count, &out->count, refusal));
    TRY(openai_get_int(body, "top_k", 0, 1000000000, &out->top_k, refusal));
    TRY(openai_get_double(body, "temperature", 0, 1000, &out->temperature, refusal));
    TRY(openai_get_double(body, "top_p", 0, 1, &out->top_p, refusal));
    if (!((float)out->top_p > 0)) return openai_refuse(refusal, "top_p", "must be above 0");
    out->seeded = json_at(body, "seed") != NULL;
    TRY(openai_get_int(body, "seed", INT64_MIN, INT64_MAX, &out->seed, refusal));
    const struct json *stop = json_at(body, "stop");
    const bool list = json_is(stop, JSON_ARRAY);
    const size_t count = list ? json_count(stop) : stop ? 1 : 0;
    if (count > OPENAI_STOPS) return openai_refuse(refusal, "stop", "at most %d texts", OPENAI_STOPS);
    for (size_t i = 0; i < count; i++) {
        const struct string one = json_string(list ? json_item(stop, i) : stop);
        if (!one.size || memchr(one.data, 0, one.size))
            return openai_refuse(refusal, "stop", "must be a text, or a list of texts, none of them empty");
        out->stops[out->stop_count++] = one;
    }
    return OK;
}

// ---- messages ----

// Makes a part of a text, or of a medium's address: data: with base64, or a file below media_root.
static status openai_fill_part(struct chat_prompt *prompt, struct part *part, const struct json *given,
                               const char *media_root, const char *where, struct openai_refusal *refusal) {
    static const char base64[] = ";base64,";
    const struct string type = json_string(json_at(given, "type"));
    const bool video = string_equals(type, "video_url");
    if (string_equals(type, "text")) {
        const struct string text = json_string(json_at(given, "text"));
        TRY(openai_check_keys(given, (const char *const[]){"type", "text", NULL}, where, refusal));
        if (!text.data) return openai_refuse(refusal, where, "a part of type text needs a text");
        chat_set_text(prompt, part, text.data, text.size);
        return OK;
    }
    if (!video && !string_equals(type, "image_url"))
        return openai_refuse(refusal, where, "must be a part of type text, image_url or video_url");
    TRY(openai_check_keys(given, (const char *const[]){"type", type.data, NULL}, where, refusal));
    const struct json *object = json_at(given, type.data), *detail = json_at(object, "detail");
    TRY(openai_check_keys(object, (const char *const[]){"url", "detail", NULL}, where, refusal));
    if (detail && !string_equals(json_string(detail), "auto"))
        return openai_refuse(refusal, where, "the server's options decide the size of pictures: `detail` must be auto");
    const struct string url = json_string(json_at(object, "url"));
    if (!url.size || memchr(url.data, 0, url.size)) return openai_refuse(refusal, where, "must be an address");
    if (!strncmp(url.data, "data:", 5)) {
        const char *comma = strchr(url.data, ',');
        const size_t begin = comma ? (size_t)(comma + 1 - url.data) : 0;
        if (begin < sizeof base64 - 1 || memcmp(comma + 2 - sizeof base64, base64, sizeof base64 - 1) != 0)
            return openai_refuse(refusal, where, "a data: address must be one with base64");
        chat_set_data(prompt, part, video, string_slice(url, begin, url.size));
        return OK;
    }
    const char *colon = strstr(url.data, "://");
    if (colon && strncmp(url.data, "file://", 7) != 0)
        return openai_refuse(refusal, where, "nothing is fetched from other machines: send it as a data: address");
    if (!media_root)
        return openai_refuse(refusal, where, "the server was started without --media-root: send a data: address");
    chat_set_medium(prompt, part, video, url.data);
    return OK;
}

status openai_fill_prompt(const struct openai_request *request, struct chat_prompt *prompt, const char *media_root,
                          struct openai_refusal *refusal) {
    static const char *const keys[] = {"role", "content", NULL};
    for (size_t i = 0; i < json_count(request->messages); i++) {
        const struct json *message = json_item(request->messages, i), *content = json_at(message, "content");
        const struct string role = json_string(json_at(message, "role"));
        const char *name = role.data;
        char where[64];
        snprintf(where, sizeof where, "messages[%zu]", i);
        TRY(openai_check_keys(message, keys, where, refusal));
        if (string_equals(role, "developer")) name = "system"; // its new name
        if (!name || (strcmp(name, "system") != 0 && strcmp(name, "user") != 0 && strcmp(name, "assistant") != 0))
            return openai_refuse(refusal, where, "the role must be system, developer, user or assistant");
        if (json_is(content, JSON_STRING)) {
            chat_set_text(prompt, chat_add_message(prompt, name, 1), content->text.data, content->text.size);
            continue;
        }
        if (!json_is(content, JSON_ARRAY) || !json_count(content))
            return openai_refuse(refusal, where, "the content must be a text or a list of parts");
        struct part *parts = chat_add_message(prompt, name, json_count(content));
        for (size_t k = 0; k < json_count(content); k++) {
            snprintf(where, sizeof where, "messages[%zu].content[%zu]", i, k);
            TRY(openai_fill_part(prompt, &parts[k], json_item(content, k), media_root, where, refusal));
        }
    }
    return OK;
}

// ---- answers ----

// Appends ,"key":"text" or, of NULL, ,"key":null. A text that was cut may end within a character.
static void openai_print_member(struct buf *out, const char *key, const char *text) {
    struct buf whole = {0};
    buf_printf(out, ",\"%s\":", key);
    buf_puts(&whole, "");
    utf8_replace(text ? text : "", text ? strlen(text) : 0, &whole);
    if (text)
        json_print_string(out, whole.data, whole.size);
    else
        buf_puts(out, "null");
    buf_release(&whole);
}

void openai_print_error(struct buf *out, int code, const char *param, const char *name, const char *message) {
    buf_printf(out, "{\"error\":{\"type\":\"%s\"", code >= 500 ? "server_error" : "invalid_request_error");
    openai_print_member(out, "message", message);
    openai_print_member(out, "param", *param ? param : NULL);
    openai_print_member(out, "code", name);
    buf_puts(out, "}}");
}

void openai_print_model(struct buf *out, const char *name, int64_t created) {
    buf_puts(out, "{\"object\":\"model\"");
    openai_print_member(out, "id", name);
    buf_printf(out, ",\"created\":%lld,\"owned_by\":\"caravan\"}", (long long)created);
}

static void openai_print_head(struct buf *out, const struct openai_head *head, const char *object) {
    buf_printf(out, "{\"object\":\"%s\",\"created\":%lld", object, (long long)head->created);
    openai_print_member(out, "id", head->id);
    openai_print_member(out, "model", head->model);
    openai_print_member(out, "system_fingerprint", head->fingerprint);
}

static void openai_print_event(struct buf *out, const struct openai_head *head, int choice) {
    buf_puts(out, "data: ");
    openai_print_head(out, head, "chat.completion.chunk");
    buf_printf(out, ",\"choices\":[{\"index\":%d,\"logprobs\":null,\"delta\":{", choice);
}

void openai_print_piece(struct buf *out, const struct openai_head *head, int choice, bool first, struct string text) {
    openai_print_event(out, head, choice);
    buf_printf(out, "%s\"content\":", first ? "\"role\":\"assistant\"," : "");
    json_print_string(out, text.data, text.size);
    buf_puts(out, "},\"finish_reason\":null}]}\n\n");
}

void openai_print_finish(struct buf *out, const struct openai_head *head, int choice, const char *finish) {
    openai_print_event(out, head, choice);
    buf_printf(out, "},\"finish_reason\":\"%s\"}]}\n\n", finish);
}

static void openai_print_counts(struct buf *out, size_t prompt, size_t completion) {
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu}}", prompt,
               completion, prompt + completion);
}

void openai_print_usage(struct buf *out, const struct openai_head *head, size_t prompt, size_t completion) {
    buf_puts(out, "data: ");
    openai_print_head(out, head, "chat.completion.chunk");
    buf_puts(out, ",\"choices\":[]");
    openai_print_counts(out, prompt, completion);
    buf_puts(out, "\n\n");
}

void openai_print_answer(struct buf *out, const struct openai_head *head, const struct openai_choice *choices,
                         size_t count, size_t prompt, size_t completion, const struct tokenizer *tokenizer) {
    openai_print_head(out, head, "chat.completion");
    buf_puts(out, ",\"choices\":[");
    for (size_t i = 0; i < count; i++) {
        buf_printf(
            out, "%s{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"refusal\":null,\"content\":", i ? "," : "", i);
        json_print_string(out, choices[i].text.data, choices[i].text.size);
        buf_puts(out, "},\"logprobs\":");
        const struct generated *tokens = choices[i].tokens;
        const char *separator = "";
        buf_puts(out, tokens ? "{\"refusal\":null,\"content\":[" : "null");
        for (size_t t = 0; tokens && t < tokens->count; t++) {
            size_t size;
            struct buf text = {0};
            const char *piece = tokenizer_piece(tokenizer, tokens->tokens[t], &size);
            if (!piece || tokenizer_is_special(tokenizer, tokens->tokens[t])) continue; // the text has neither
            buf_puts(&text, "");
            utf8_replace(piece, size, &text);
            buf_printf(out, "%s{\"token\":", separator);
            json_print_string(out, text.data, text.size);
            buf_puts(out, ",\"logprob\":");
            buf_reserve(out, JSON_NUMBER_SIZE);
            out->size = (size_t)(json_put_number(out->data + out->size, (double)tokens->logprobs[t], true) - out->data);
            buf_puts(out, ",\"bytes\":[");
            for (size_t b = 0; b < size; b++) buf_printf(out, b ? ",%d" : "%d", (unsigned char)piece[b]);
            buf_puts(out, "],\"top_logprobs\":[]}");
            buf_release(&text);
            separator = ",";
        }
        if (tokens) buf_puts(out, "]}");
        buf_printf(out, ",\"finish_reason\":\"%s\"}", choices[i].finish);
    }
    buf_puts(out, "]");
    openai_print_counts(out, prompt, completion);
}
