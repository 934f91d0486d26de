// The layout caravan: a record is a group.
#include "shared/data/format_internal.h"

status format_read_caravan(const struct format_options *options, struct json *record, struct record_place place,
                           struct group **out) {
    const char *key = json_at(record, "sample_id") ? "sample_id" : "id";
    enum problem_type type;
    struct buf printed = {0};
    struct arena arena = {0};
    *out = NULL;

    // group_from_json requires an id, which a record may lack, so a copy with another id is parsed.
    struct json *copy = json_new(&arena, JSON_OBJECT);
    json_merge(copy, &arena, record);
    json_set_string(copy, &arena, "id", "-");
    json_print(&printed, copy);
    status result = group_from_json(out, printed.data, printed.size);
    buf_release(&printed);
    arena_release(&arena);
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
