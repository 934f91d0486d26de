#include "shared/text/chat_template.h"

static const char *const placeholders[] = {[PART_IMAGE] = "<|image_pad|>", [PART_VIDEO] = "<|video_pad|>"};

static status render_part(const struct part *part, struct buf *out) {
    if (part->kind == PART_TEXT) return buf_append(out, part->text.data, part->text.size);
    return buf_printf(out, "<|vision_start|>%s<|vision_end|>", placeholders[part->kind]);
}

status chat_template_render(const struct message *messages, size_t count, struct buf *out) {
    if (count && !string_equals(messages[0].role, "system"))
        TRY(buf_puts(out, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"));
    for (size_t i = 0; i < count; i++) {
        TRY(buf_puts(out, "<|im_start|>"));
        TRY(buf_append(out, messages[i].role.data, messages[i].role.size));
        TRY(buf_puts(out, "\n"));
        for (size_t k = 0; k < messages[i].part_count; k++) TRY(render_part(&messages[i].parts[k], out));
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

// How many vision tokens a medium has.
static status vision_tokens(const struct medium *medium, struct vision_grid grid, int64_t *count) {
    enum { LIMIT = 1 << 24 };
    int64_t time = string_equals(medium->kind, "video") ? grid.time : 1;
    if (medium->height < 1 || medium->height % grid.unit || medium->width < 1 || medium->width % grid.unit)
        return fail(DATAERR, "media: %lld x %lld pixels are no multiple of %lld", (long long)medium->height,
                    (long long)medium->width, (long long)grid.unit);
    if (medium->frames < 1 || medium->frames % time)
        return fail(DATAERR, "media: %lld frames are no multiple of %lld", (long long)medium->frames, (long long)time);
    int64_t high = medium->height / grid.unit, wide = medium->width / grid.unit, deep = medium->frames / time;
    if (high > LIMIT / wide || deep > LIMIT / (high * wide)) return fail(DATAERR, "media: too large");
    *count = high * wide * deep;
    return OK;
}

// Copies `short_form` to `out`, each placeholder as often as its medium has vision tokens.
static status expand(const struct tokenizer *t, const struct group *group, struct vision_grid grid,
                     const struct token_list *short_form, struct token_list *out) {
    int64_t image = tokenizer_token_to_id(t, placeholders[PART_IMAGE]),
            video = tokenizer_token_to_id(t, placeholders[PART_VIDEO]);
    size_t used = 0;
    for (size_t i = 0; i < short_form->count; i++) {
        int64_t id = short_form->data[i], count = 1;
        if (id == image || id == video) {
            if (used == group->media_count || string_equals(group->media[used].kind, "video") != (id == video))
                return fail(BAD_SAMPLE, "the prompt's text holds %s itself",
                            placeholders[id == video ? PART_VIDEO : PART_IMAGE]);
            TRY(vision_tokens(&group->media[used++], grid, &count));
        }
        for (; count; count--) TRY(token_list_append(out, id));
    }
    if (used == group->media_count) return OK;
    return fail(DATAERR, "the prompt has places for %zu media, the group has %zu", used, group->media_count);
}

status chat_template_encode_prompt(const struct tokenizer *t, const struct group *group, struct vision_grid grid,
                                   struct token_list *out) {
    struct token_list short_form = {0};
    status result = chat_template_encode(t, group->prompt.messages, group->prompt.message_count, &short_form);
    if (result == OK) result = expand(t, group, grid, &short_form, out);
    token_list_release(&short_form);
    return result;
}
