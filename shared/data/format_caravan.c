// The layout caravan: a record is a group.
#include "shared/data/format_internal.h"

status format_read_caravan(const struct format_options *options, json_object *record, struct record_place place,
                           struct group **out) {
    const char *key = json_object_object_get(record, "sample_id") ? "sample_id" : "id";
    enum problem_type type;
    struct buf printed = {0};
    *out = NULL;

    // group_from_json requires an id, which a record may lack, so a copy with another id is parsed.
    json_object *copy = NULL, *id = json_object_new_string("-");
    status result = id && !json_object_deep_copy(record, &copy, NULL) ? OK : fail_oom();
    if (result == OK && json_object_object_add(copy, "id", id)) result = fail_oom();
    if (result == OK) id = NULL; // the copy owns it now
    if (result == OK) json_print(&printed, copy);
    if (result == OK) result = group_from_json(out, printed.data, printed.size);
    json_object_put(copy);
    json_object_put(id);
    buf_release(&printed);
    TRY(result);
    struct group *group = *out;
    const struct prompt *prompt = &group->prompt;
    group->requires = (struct requirement){0};
    group->trained = (struct trained){0};
    group->times = (struct string){0};
    group->quarantine = (struct quarantine){0};
    TRY_TO(result, failed, format_sample_id(group, record, key, place.line));
    format_media_paths(options, group);
    if (!problem_type_parse(prompt->problem_type, &type))
        TRY_TO(result, failed,
               fail(DATAERR, "prompt.problem_type: '%s' of sample %s is not one of " PROBLEM_TYPE_NAMES,
                    prompt->problem_type.data ? prompt->problem_type.data : "", group->sample_id.data));
    result = solution_check(type, prompt->solution);
    if (result != OK) TRY_TO(result, failed, fail_prefix(result, "prompt.solution"));
    return OK;
failed:
    group_free(out);
    return result;
}
