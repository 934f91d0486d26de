// The group on the heap: its life, its arrays and strings, and what stages may demand of it.
#include "shared/group/group.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/group/fields.h"

void group_new(struct group **out) {
    NEW(out, 1);
    fields_clear(&group_table, *out);
}

void group_free(struct group **group) {
    if (!*group) return;
    struct arena arena = (*group)->arena;
    free(*group);
    *group = NULL;
    arena_release(&arena);
}

static void group_new_objects(struct group *group, const char *name, void *array, size_t count) {
    const struct field *field = field_find(&group_table, name, strlen(name));
    assert(field && field->table);
    size_t size = field_element_size(field);
    field_array_new(&group->arena, array, count, size);
    char *data = field_array_load(array).data;
    for (size_t i = 0; i < count; i++) fields_clear(field->table, data + i * size);
}

void group_completions(struct group *group, size_t count) {
    group_new_objects(group, "completions", &group->completions, count);
}

void group_media(struct group *group, size_t count) {
    group_new_objects(group, "media", &group->media, count);
}

void group_string(struct group *group, struct string *out, const char *data, size_t size) {
    if (utf8_valid(data, size)) {
        arena_string(&group->arena, out, data, size);
        return;
    }
    struct buf mended = {0};
    utf8_replace(data, size, &mended);
    arena_string(&group->arena, out, mended.data, mended.size);
    buf_release(&mended);
}

void group_quarantine(struct group *group, const char *stage, const char *format, ...) {
    char reason[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    group->quarantine = (struct quarantine){.present = true};
    group_string(group, &group->quarantine.stage, stage, strlen(stage));
    group_string(group, &group->quarantine.reason, reason, strlen(reason));
}

void group_set_times(struct group *group, const struct stage_time *time) {
    struct stage_times *times = &group->times, wider;
    size_t at = 0;
    while (at < times->count && !string_equals(times->data[at].stage, time->stage.data)) at++;
    if (at == MAX_STAGE_TIMES) return;
    if (at == times->count) {
        GROUP_ARRAY(group, &wider, at + 1);
        if (at) memcpy(wider.data, times->data, at * sizeof *wider.data);
        *times = wider;
        group_string(group, &times->data[at].stage, time->stage.data, time->stage.size);
    }
    times->data[at].in = time->in;
    times->data[at].out = time->out;
    times->data[at].replica = time->replica;
}

// ---- what a filter has dropped ----

// Copies each field that `object` lacks from `sent`; the memory that it points to becomes that of `object` later.
static void group_restore_fields(const struct field_table *table, char *object, const char *sent) {
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        if (!field_present(field, sent)) continue;
        char *to = object + field->offset;
        const char *from = sent + field->offset;
        if (!field_present(field, object)) {
            memcpy(to, from, field_size(field));
        } else if (field->type == FIELD_OBJECT) {
            group_restore_fields(field->table, to, from);
        } else if (field->type == FIELD_OBJECTS) {
            const struct field_array mine = field_array_load(to), before = field_array_load(from);
            for (size_t k = 0; mine.count == before.count && k < mine.count; k++)
                group_restore_fields(field->table, (char *)mine.data + k * field->table->size,
                                     (const char *)before.data + k * field->table->size);
        }
    }
}

status group_restore(struct group *answer, struct group *sent) {
    if (answer->id.size != sent->id.size || memcmp(answer->id.data, sent->id.data, sent->id.size) != 0)
        return fail(DATAERR, "the answer is group %s, not %s", answer->id.data, sent->id.data);
    if (answer->completions && sent->completions && answer->completion_count != sent->completion_count)
        return fail(DATAERR, "the answer has %zu completions, the group %zu", answer->completion_count,
                    sent->completion_count);
    answer->requires = sent->requires;
    answer->trained = sent->trained;
    answer->times = sent->times;
    group_restore_fields(&group_table, (char *)answer, (const char *)sent);
    arena_adopt(&answer->arena, &sent->arena);
    return OK;
}

// ---- checks ----

// An array with a value for each completion; an absent one passes.
static status group_check_count(const struct group *group, const char *name, const void *data, size_t count) {
    if (!data || count == group->completion_count) return OK;
    return fail(DATAERR, "not a group: %s: %zu for %zu completions", name, count, group->completion_count);
}

status group_check(const struct group *group, unsigned needs) {
    if (needs & NEED_MEDIA) {
        size_t wanted = 0;
        for (size_t m = 0; m < group->prompt.message_count; m++)
            for (size_t p = 0; p < group->prompt.messages[m].part_count; p++)
                wanted += group->prompt.messages[m].parts[p].kind != PART_TEXT;
        if (!group->media && wanted) return fail(DATAERR, "not a group: media: missing");
        if (group->media_count != wanted)
            return fail(DATAERR, "not a group: media: %zu for %zu images and clips", group->media_count, wanted);
    }
    if (needs & (NEED_COMPLETIONS | NEED_TARGETS)) {
        if (!group->completions) return fail(DATAERR, "not a group: completions: missing");
        if (!group->completion_count) return fail(DATAERR, "not a group: completions: empty");
    }
    for (size_t i = 0; needs & NEED_COMPLETIONS && i < group->completion_count; i++)
        if (!group->completions[i].text.data) return fail(DATAERR, "not a group: completions[%zu].text: missing", i);
    if (needs & NEED_REFERENCE) {
        const struct reference *r = &group->reference;
        if (!r->present) return fail(DATAERR, "not a group: reference: missing");
        TRY(group_check_count(group, "reference.answer_span", r->answer_span.data, r->answer_span.count));
        TRY(group_check_count(group, "reference.answer_logprob", r->answer_logprob.data, r->answer_logprob.count));
        TRY(group_check_count(group, "reference.answer_probability", r->answer_probability.data,
                              r->answer_probability.count));
        TRY(group_check_count(group, "reference.logprobs", r->logprobs, r->logprob_count));
        TRY(group_check_count(group, "reference.generated", r->generated.data, r->generated.count));
    }
    if (needs & NEED_ADVANTAGES) {
        const struct double_array *advantages = &group->advantages;
        if (!advantages->data) return fail(DATAERR, "not a group: advantages: missing");
        TRY(group_check_count(group, "advantages", advantages->data, advantages->count));
        for (size_t i = 0; i < advantages->count; i++)
            if (!isfinite(advantages->data[i])) return fail(DATAERR, "not a group: advantages[%zu]: null", i);
    }
    return OK;
}

status group_check_fractions(const struct group *group, const char *name, const struct double_array *values,
                             bool nulls) {
    if (!values->data) return fail(DATAERR, "not a group: %s: missing", name);
    TRY(group_check_count(group, name, values->data, values->count));
    for (size_t i = 0; i < values->count; i++) {
        const double value = values->data[i];
        if (isnan(value) && !nulls) return fail(DATAERR, "not a group: %s[%zu]: null", name, i);
        if (value < 0 || value > 1)
            return fail(DATAERR, "not a group: %s[%zu]: %.9g is not from 0 to 1", name, i, value);
    }
    return OK;
}
