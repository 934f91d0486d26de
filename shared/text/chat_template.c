#include "shared/text/chat_template.h"

#include <assert.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/text/tokenizer_internal.h"

#define SYSTEM_PROMPT "You are a helpful assistant."

const char chat_template_jinja[] =
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n" SYSTEM_PROMPT
    "<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static const char *const chat_template_pads[] = {[PART_IMAGE] = "<|image_pad|>", [PART_VIDEO] = "<|video_pad|>"};

static const char *const chat_template_tokens[] = {"<|im_start|>",   "<|im_end|>",    "<|vision_start|>",
                                                   "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"};
enum { CHAT_TEMPLATE_TOKENS = sizeof chat_template_tokens / sizeof *chat_template_tokens };

status chat_template_check(const struct tokenizer *t, const char *dir) {
    for (size_t i = 0; i < CHAT_TEMPLATE_TOKENS; i++)
        if (!added_tokens_find(&t->added, chat_template_tokens[i], strlen(chat_template_tokens[i])))
            return fail(DATAERR, "%s: the tokenizer has no token %s, which the chat template needs", dir,
                        chat_template_tokens[i]);
    if (!t->post_processor.is_template) return OK;
    return fail(DATAERR, "%s: post_processor: TemplateProcessing does not suit the chat template", dir);
}

// ---- the model's own template ----

// Appends a template without what does not count in a comparison. A newline in a string of Jinja is written as \n.
static void chat_template_reduce(const char *template, struct buf *out) {
    for (const char *at = template; *at; at++) {
        const bool opens = at > template + 1 && at[-2] == '{' && (at[-1] == '%' || at[-1] == '{');
        const bool closes = (at[1] == '%' || at[1] == '}') && at[1] && at[2] == '}';
        if (strchr(" \t\r\n", *at) || (*at == '-' && (opens || closes))) continue;
        if (at[0] == '\\' && at[1] == 'n')
            at++;
        else
            buf_append(out, *at == '\'' ? "\"" : at, 1);
    }
}

// Returns what follows the last "NAME newline" in a template, up to the next quote or brace: the text that begins a
// message of that role in every prompt. Absent when there is no such message.
static struct string chat_template_beginning(const char *template, const char *name) {
    struct string found = {0};
    for (const char *at = template; (at = strstr(at, name));) {
        at += strlen(name);
        if (*at != '\n' && strncmp(at, "\\n", 2) != 0) continue;
        at += *at == '\n' ? 1 : 2;
        found = (struct string){at, strcspn(at, "'\"{")};
    }
    return found;
}

status chat_template_compare(const char *dir, struct buf *difference) {
    enum { MAX_QUOTED = 60, FILES = 3 };
    static const char *const files[FILES] = {"chat_template.jinja", "chat_template.json", "tokenizer_config.json"};
    struct arena arena = {0};
    struct buf template = {0}, own = {0}, used = {0};
    const char *path = NULL; // of the file that has the template
    status result = OK;
    for (size_t i = 0; i < FILES && !path; i++) {
        const char *file = path_join(&arena, dir, files[i]);
        struct json *root = NULL;
        if (!path_exists(file)) continue;
        TRY_TO(result, done, i == 0 ? file_read(file, &template) : json_parse_file(&root, &arena, file));
        const struct string text = json_string(json_at(root, "chat_template"));
        if (text.data) buf_append(&template, text.data, text.size);
        if (i == 0 || template.size) path = file;
    }
    if (!path) goto done;
    buf_puts(&template, ""); // a string, even if the file is empty
    chat_template_reduce(template.data, &own);
    chat_template_reduce(chat_template_jinja, &used);
    if (string_equals((struct string){own.data, own.size}, used.data)) goto done;
    buf_printf(difference, "%s: the model's own chat template ", path);
    struct string system = chat_template_beginning(template.data, "<|im_start|>system"),
                  answer = chat_template_beginning(template.data, "<|im_start|>assistant");
    const char *end = system.data ? strstr(system.data, "<|im_end|>") : NULL;
    if (end && end < system.data + system.size) system.size = (size_t)(end - system.data);
    for (size_t i = 0; i < CHAT_TEMPLATE_TOKENS; i++) {
        if (strstr(template.data, chat_template_tokens[i])) continue;
        buf_printf(difference, "has no %s", chat_template_tokens[i]);
        goto done;
    }
    if (!strstr(template.data, SYSTEM_PROMPT "<|im_end|>") || (system.size && !string_equals(system, SYSTEM_PROMPT))) {
        if (system.size)
            buf_printf(difference, "has the system prompt '%.*s', not '%s'",
                       (int)(system.size < MAX_QUOTED ? system.size : MAX_QUOTED), system.data, SYSTEM_PROMPT);
        else
            buf_printf(difference, "does not have the system prompt '%s'", SYSTEM_PROMPT);
    } else if (answer.size)
        buf_printf(difference, "begins the answer with '%.*s'",
                   (int)(answer.size < MAX_QUOTED ? answer.size : MAX_QUOTED), answer.data);
    else
        buf_puts(difference, "has other statements");
done:
    buf_release(&template);
    buf_release(&own);
    buf_release(&used);
    arena_release(&arena);
    return result;
}

// ---- prompts ----

void chat_template_render(const struct message *messages, size_t count, struct buf *out) {
    if (count && !string_equals(messages[0].role, "system"))
        buf_puts(out, "<|im_start|>system\n" SYSTEM_PROMPT "<|im_end|>\n");
    for (size_t i = 0; i < count; i++) {
        buf_puts(out, "<|im_start|>");
        buf_append(out, messages[i].role.data, messages[i].role.size);
        buf_puts(out, "\n");
        for (size_t k = 0; k < messages[i].part_count; k++) {
            const struct part *part = &messages[i].parts[k];
            if (part->kind == PART_TEXT) {
                buf_append(out, part->text.data, part->text.size);
            } else {
                buf_printf(out, "<|vision_start|>%s<|vision_end|>", chat_template_pads[part->kind]);
            }
        }
        buf_puts(out, "<|im_end|>\n");
    }
    buf_puts(out, "<|im_start|>assistant\n");
}

status chat_template_encode(const struct tokenizer *t, const struct message *messages, size_t count,
                            struct token_list *out) {
    struct buf rendered = {0};
    chat_template_render(messages, count, &rendered);
    status result = tokenizer_encode(t, rendered.data, rendered.size, out);
    buf_release(&rendered);
    return result;
}

status chat_template_encode_prompt(const struct tokenizer *t, const struct group *group, struct vision_grid grid,
                                   struct token_list *out) {
    enum { MAX_TOKENS = 1 << 24 }; // vision tokens of a medium
    int64_t image_pad = tokenizer_token_to_id(t, chat_template_pads[PART_IMAGE]);
    int64_t video_pad = tokenizer_token_to_id(t, chat_template_pads[PART_VIDEO]);
    struct token_list tokens = {.most = out->most}; // with one placeholder for each medium
    size_t used = 0;
    status result;
    assert(grid.pixels > 0 && grid.frames > 0);
    result = chat_template_encode(t, group->prompt.messages, group->prompt.message_count, &tokens);
    if (result == BAD_SAMPLE) (void)fail_prefix(result, "prompt too long");
    if (result != OK) goto done;
    for (size_t i = 0; i < tokens.count; i++) {
        int64_t id = tokens.data[i], count = 1;
        if (id == image_pad || id == video_pad) {
            bool video = id == video_pad;
            if (used == group->media_count || string_equals(group->media[used].kind, "video") != video)
                TRY_TO(result, done,
                       fail(BAD_SAMPLE, "the text of the prompt contains %s",
                            chat_template_pads[video ? PART_VIDEO : PART_IMAGE]));
            const struct medium *medium = &group->media[used++];
            int64_t frames = video ? grid.frames : 1;
            if (medium->height < 1 || medium->height % grid.pixels || medium->width < 1 || medium->width % grid.pixels)
                TRY_TO(result, done,
                       fail(DATAERR, "media: %lld x %lld pixels are not multiples of %lld", (long long)medium->height,
                            (long long)medium->width, (long long)grid.pixels));
            if (medium->frames < 1 || medium->frames % frames)
                TRY_TO(result, done,
                       fail(DATAERR, "media: %lld frames are not a multiple of %lld", (long long)medium->frames,
                            (long long)frames));
            int64_t rows = medium->height / grid.pixels, columns = medium->width / grid.pixels;
            int64_t grids = medium->frames / frames;
            if (rows > MAX_TOKENS / columns || grids > MAX_TOKENS / (rows * columns))
                TRY_TO(result, done, fail(DATAERR, "media: too large"));
            count = rows * columns * grids;
        }
        for (; count; count--) token_list_append(out, id);
    }
    if (used != group->media_count)
        result = fail(DATAERR, "the prompt has %zu media, but the group has %zu", used, group->media_count);
done:
    token_list_release(&tokens);
    return result;
}
