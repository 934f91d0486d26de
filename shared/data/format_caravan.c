// caravan's own layout: a record is a group. Its sample_id is its sample_id, else its id, else its line.
#include <string.h>

#include "shared/data/format.h"

static status root_parts(const struct format_options *rules, struct group *group, struct message *message) {
    for (size_t i = 0; i < message->part_count; i++) {
        struct part *part = &message->parts[i];
        if (part->kind == PART_IMAGE) TRY(format_media_path(rules, group, part->image, &part->image));
        if (part->kind == PART_VIDEO) TRY(format_media_path(rules, group, part->video, &part->video));
    }
    return OK;
}

static status check(const struct group *group) {
    enum problem_type type;
    const struct string *name = &group->prompt.problem_type;
    if (!problem_type_parse(*name, &type))
        return fail(DATAERR,
                    "prompt.problem_type: '%s' of sample %s is none of multiple choice, numerical, OCR, free-form, "
                    "regression",
                    name->data ? name->data : "", group->sample_id.data);
    status result = solution_check(type, group->prompt.solution);
    return result == OK ? OK : fail_prefix(result, "prompt.solution");
}

static status finish(const struct format_options *rules, json_object *record, size_t line, struct group *group) {
    const char *key = json_object_object_get(record, "sample_id") ? "sample_id" : "id";
    group->requires = (struct requirement){0};
    group->trained = (struct trained){0};
    group->times = (struct string){0};
    group->quarantine = (struct quarantine){0};
    TRY(format_sample_id(group, record, key, line));
    for (size_t i = 0; i < group->prompt.message_count; i++) TRY(root_parts(rules, group, &group->prompt.messages[i]));
    return check(group);
}

// The group's own reader wants an id, which a record may lack; the record keeps what it has.
static status read_group(json_object *record, struct group **out) {
    struct buf printed = {0};
    json_object *copy = NULL, *id = json_object_new_string("-");
    status result = id && !json_object_deep_copy(record, &copy, NULL) ? OK : fail_oom();
    if (result == OK && !json_object_object_add(copy, "id", id)) id = NULL;
    if (result == OK) result = json_print(&printed, copy);
    if (result == OK) result = group_from_json(out, printed.data, printed.size);
    json_object_put(copy);
    json_object_put(id);
    buf_release(&printed);
    return result;
}

status format_caravan(const struct format_options *rules, json_object *record, size_t line, struct group **out) {
    *out = NULL;
    TRY(read_group(record, out));
    status result = finish(rules, record, line, *out);
    if (result != OK) group_free(out);
    return result;
}
