// The group on the heap: making one, its arrays and texts, what stages may ask of it.
#include "shared/group/group.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/base/string.h"
#include "shared/base/json.h"
#include "shared/group/fields.h"

status group_new(struct group **out) {
    TRY(NEW(out, 1));
    fields_clear(&group_table, *out);
    return OK;
}

void group_free(struct group **group) {
    if (!*group) return;
    struct arena arena = (*group)->arena;
    free(*group);
    *group = NULL;
    arena_release(&arena);
}

status group_ints(struct group *group, struct int_array *array, size_t count) {
    return list_new(&group->arena, array, count, sizeof *array->data);
}

status group_floats(struct group *group, struct float_array *array, size_t count) {
    return list_new(&group->arena, array, count, sizeof *array->data);
}

status group_doubles(struct group *group, struct double_array *array, size_t count) {
    return list_new(&group->arena, array, count, sizeof *array->data);
}

static status new_structs(struct group *group, const char *name, void *at, size_t count) {
    const struct field *field = field_find(&group_table, name, strlen(name));
    size_t size = field_element(field);
    TRY(list_new(&group->arena, at, count, size));
    for (size_t i = 0; i < count; i++) fields_clear(field->table, (char *)((struct list *)at)->data + i * size);
    return OK;
}

status group_completions(struct group *group, size_t count) {
    return new_structs(group, "completions", &group->completions, count);
}

status group_media(struct group *group, size_t count) {
    return new_structs(group, "media", &group->media, count);
}

status group_string(struct group *group, struct string *out, const char *data, size_t size) {
    struct buf mended = {0};
    bool valid = utf8_valid(data, size);
    status result = valid ? OK : utf8_replace(data, size, &mended);
    if (result == OK) {
        size_t length = valid ? size : mended.size;
        *out = (struct string){arena_strndup(&group->arena, valid ? data : mended.data, length), length};
        if (!out->data) result = fail_oom();
    }
    buf_release(&mended);
    return result;
}

status group_quarantine(struct group *group, const char *stage, const char *format, ...) {
    char reason[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    group->quarantine = (struct quarantine){.present = true};
    TRY(group_string(group, &group->quarantine.stage, stage, strlen(stage)));
    return group_string(group, &group->quarantine.reason, reason, strlen(reason));
}

static size_t media_in_messages(const struct prompt *prompt) {
    size_t count = 0;
    for (size_t m = 0; m < prompt->message_count; m++)
        for (size_t p = 0; p < prompt->messages[m].part_count; p++)
            count += prompt->messages[m].parts[p].kind != PART_TEXT;
    return count;
}

static status check_media(const struct group *group) {
    size_t wanted = media_in_messages(&group->prompt);
    if (!group->media && wanted) return fail(DATAERR, "not a group: media: missing");
    if (group->media_count != wanted)
        return fail(DATAERR, "not a group: media: %zu for %zu images and clips", group->media_count, wanted);
    return OK;
}

static status check_completions(const struct group *group, bool texts) {
    if (!group->completions) return fail(DATAERR, "not a group: completions: missing");
    if (!group->completion_count) return fail(DATAERR, "not a group: completions: empty");
    for (size_t i = 0; texts && i < group->completion_count; i++)
        if (!group->completions[i].text.data) return fail(DATAERR, "not a group: completions[%zu].text: missing", i);
    return OK;
}

static status check_length(const char *name, const void *data, size_t count, size_t wanted) {
    if (!data || count == wanted) return OK;
    return fail(DATAERR, "not a group: %s: %zu for %zu completions", name, count, wanted);
}

static status check_reference(const struct group *group) {
    const struct reference *r = &group->reference;
    size_t wanted = group->completion_count;
    if (!r->present) return fail(DATAERR, "not a group: reference: missing");
    TRY(check_length("reference.answer_span", r->answer_span.data, r->answer_span.count, wanted));
    TRY(check_length("reference.answer_logprob", r->answer_logprob.data, r->answer_logprob.count, wanted));
    TRY(check_length("reference.answer_probability", r->answer_probability.data, r->answer_probability.count, wanted));
    TRY(check_length("reference.logprobs", r->logprobs, r->logprob_count, wanted));
    return check_length("reference.generated", r->generated.data, r->generated.count, wanted);
}

static status check_advantages(const struct group *group) {
    const struct double_array *advantages = &group->advantages;
    if (!advantages->data) return fail(DATAERR, "not a group: advantages: missing");
    TRY(check_length("advantages", advantages->data, advantages->count, group->completion_count));
    for (size_t i = 0; i < advantages->count; i++)
        if (!isfinite(advantages->data[i])) return fail(DATAERR, "not a group: advantages[%zu]: null", i);
    return OK;
}

status group_check(const struct group *group, unsigned needs) {
    if (needs & NEED_MEDIA) TRY(check_media(group));
    if (needs & (NEED_COMPLETIONS | NEED_TARGETS)) TRY(check_completions(group, needs & NEED_COMPLETIONS));
    if (needs & NEED_REFERENCE) TRY(check_reference(group));
    if (needs & NEED_ADVANTAGES) TRY(check_advantages(group));
    return OK;
}
