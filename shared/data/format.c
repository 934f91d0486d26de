// What the layouts share: reading a record's keys, and the prompt that they all make.
#include "shared/data/format.h"

#include <string.h>

status format_string(json_object *record, const char *key, bool allowed_empty, struct string *out) {
    json_object *value = json_object_object_get(record, key);
    if (!value) return fail(DATAERR, "%s: missing", key);
    if (!json_object_is_type(value, json_type_string)) return fail(DATAERR, "%s: not a text", key);
    *out = json_string(value);
    return out->size || allowed_empty ? OK : fail(DATAERR, "%s: empty", key);
}

status format_sample_id(struct group *group, json_object *record, const char *key, size_t line) {
    json_object *value = json_object_object_get(record, key);
    struct buf printed = {0};
    status result = OK;
    if (!value)
        result = buf_printf(&printed, "%zu", line);
    else if (json_object_is_type(value, json_type_string))
        result = buf_append(&printed, json_object_get_string(value), (size_t)json_object_get_string_len(value));
    else if (json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double))
        result = json_print(&printed, value);
    else
        result = fail(DATAERR, "%s: neither a text nor a number", key);
    if (result == OK) result = group_string(group, &group->sample_id, printed.data, printed.size);
    buf_release(&printed);
    return result;
}

status format_media_path(const struct format_options *rules, struct group *group, struct string path,
                         struct string *out) {
    static const char scheme[] = "file://";
    bool schemed = path.size >= sizeof scheme - 1 && !memcmp(path.data, scheme, sizeof scheme - 1);
    struct string bare = schemed ? string_slice(path, sizeof scheme - 1, path.size) : path;
    if (!rules->media_root || (bare.size && bare.data[0] == '/')) return group_string(group, out, path.data, path.size);
    struct buf joined = {0};
    status result = buf_printf(&joined, "%s%s/", schemed ? scheme : "", rules->media_root);
    if (result == OK) result = buf_append(&joined, bare.data, bare.size);
    if (result == OK) result = group_string(group, out, joined.data, joined.size);
    buf_release(&joined);
    return result;
}

static status add_medium(const struct format_options *rules, struct group *group, struct part *part,
                         enum part_kind kind, struct string path) {
    const char *type = kind == PART_VIDEO ? "video" : "image";
    part->kind = kind;
    TRY(group_string(group, &part->type, type, strlen(type)));
    return format_media_path(rules, group, path, kind == PART_VIDEO ? &part->video : &part->image);
}

static status add_question(const struct format_options *rules, struct group *group, struct part *part,
                           enum problem_type type, struct string question) {
    struct buf wording = {0};
    part->kind = PART_TEXT;
    TRY(group_string(group, &part->type, "text", 4));
    if (!rules->template) return group_string(group, &part->text, question.data, question.size);
    status result = prompt_template_render(rules->template, type, question, &wording);
    if (result == OK) result = group_string(group, &part->text, wording.data, wording.size);
    buf_release(&wording);
    return result;
}

status format_prompt(const struct format_options *rules, struct group *group, enum problem_type type,
                     const struct media_paths *media, struct string question, struct string solution) {
    struct prompt *prompt = &group->prompt;
    status result = solution_check(type, solution);
    if (result != OK) return fail_prefix(result, "solution");
    prompt->present = true;
    prompt->message_count = 1;
    prompt->messages = arena_alloc(&group->arena, sizeof *prompt->messages);
    if (!prompt->messages) return fail_oom();
    struct message *message = prompt->messages;
    message->part_count = media->count + 1;
    message->parts = arena_alloc(&group->arena, message->part_count * sizeof *message->parts);
    if (!message->parts) return fail_oom();
    TRY(group_string(group, &message->role, "user", 4));
    for (size_t i = 0; i < media->count; i++)
        TRY(add_medium(rules, group, &message->parts[i], media->kinds[i], media->paths[i]));
    TRY(add_question(rules, group, &message->parts[media->count], type, question));
    TRY(group_string(group, &prompt->problem_type, problem_type_name(type), strlen(problem_type_name(type))));
    return group_string(group, &prompt->solution, solution.data, solution.size);
}
