#include "shared/text/chat_template.h"

#include <assert.h>
#include <string.h>

#include "shared/text/tokenizer_internal.h"

const char chat_template_jinja[] =
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
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

status chat_template_check(const struct tokenizer *t, const char *dir) {
    static const char *const needed[] = {"<|im_start|>",   "<|im_end|>",    "<|vision_start|>",
                                         "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!added_tokens_find(&t->added, needed[i], strlen(needed[i])))
            return fail(DATAERR, "%s: the tokenizer has no token %s, which the chat template needs", dir, needed[i]);
    if (!t->post_processor.is_template) return OK;
    return fail(DATAERR, "%s: post_processor: TemplateProcessing does not suit the chat template", dir);
}

status chat_template_render(const struct message *messages, size_t count, struct buf *out) {
    if (count && !string_equals(messages[0].role, "system"))
        TRY(buf_puts(out, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"));
    for (size_t i = 0; i < count; i++) {
        TRY(buf_puts(out, "<|im_start|>"));
        TRY(buf_append(out, messages[i].role.data, messages[i].role.size));
        TRY(buf_puts(out, "\n"));
        for (size_t k = 0; k < messages[i].part_count; k++) {
            const struct part *part = &messages[i].parts[k];
            if (part->kind == PART_TEXT) {
                TRY(buf_append(out, part->text.data, part->text.size));
            } else {
                TRY(buf_printf(out, "<|vision_start|>%s<|vision_end|>", chat_template_pads[part->kind]));
            }
        }
        TRY(buf_puts(out, "<|im_end|>\n"));
    }
    return buf_puts(out, "<|im_start|>assistant\n");
}

status chat_template_encode(const struct tokenizer *t, const struct message *messages, size_t count,
                            struct token_list *out) {
    struct buf rendered = {0};
    status result = chat_template_render(messages, count, &rendered);
    if (result == OK) result = tokenizer_encode(t, rendered.data, rendered.size, out);
    buf_release(&rendered);
    return result;
}

status chat_template_encode_prompt(const struct tokenizer *t, const struct group *group, struct vision_grid grid,
                                   struct token_list *out) {
    enum { LIMIT = 1 << 24 }; // vision tokens of a medium
    int64_t image_pad = tokenizer_token_to_id(t, chat_template_pads[PART_IMAGE]);
    int64_t video_pad = tokenizer_token_to_id(t, chat_template_pads[PART_VIDEO]);
    struct token_list tokens = {0}; // with one placeholder for each medium
    size_t used = 0;
    status result;
    assert(grid.pixels > 0 && grid.frames > 0);
    TRY_TO(result, done, chat_template_encode(t, group->prompt.messages, group->prompt.message_count, &tokens));
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
            if (rows > LIMIT / columns || grids > LIMIT / (rows * columns))
                TRY_TO(result, done, fail(DATAERR, "media: too large"));
            count = rows * columns * grids;
        }
        for (; count; count--) TRY_TO(result, done, token_list_append(out, id));
    }
    if (used != group->media_count)
        result = fail(DATAERR, "the prompt has %zu media, but the group has %zu", used, group->media_count);
done:
    token_list_release(&tokens);
    return result;
}
