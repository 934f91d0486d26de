// The Video-R1 layout, also that of the general video benchmarks.
#include <string.h>

#include "shared/data/format.h"

static status read_type(struct group *group, json_object *record, enum problem_type *out) {
    struct string name;
    TRY(format_string(record, "problem_type", true, &name));
    if (problem_type_parse(name, out)) return OK;
    return fail(DATAERR,
                "problem_type: '%s' of sample %s is none of multiple choice, numerical, OCR, free-form, regression",
                name.data, group->sample_id.data);
}

static status print_options(struct buf *out, json_object *record) {
    json_object *options = json_object_object_get(record, "options");
    if (!options) return fail(DATAERR, "options: missing");
    if (!json_object_is_type(options, json_type_array)) return fail(DATAERR, "options: not a list");
    if (!json_object_array_length(options)) return fail(DATAERR, "options: empty");
    TRY(buf_puts(out, "Options:\n"));
    for (size_t i = 0; i < json_object_array_length(options); i++) {
        json_object *option = json_object_array_get_idx(options, i);
        if (!json_object_is_type(option, json_type_string)) return fail(DATAERR, "options[%zu]: not a text", i);
        TRY(buf_append(out, json_object_get_string(option), (size_t)json_object_get_string_len(option)));
        TRY(buf_puts(out, "\n"));
    }
    return OK;
}

static status print_question(struct buf *out, json_object *record, enum problem_type type) {
    struct string problem;
    TRY(format_string(record, "problem", false, &problem));
    TRY(buf_append(out, problem.data, problem.size));
    return type == PROBLEM_CHOICE ? print_options(out, record) : OK;
}

static status find_medium(json_object *record, struct media_paths *media) {
    struct string kind, path;
    TRY(format_string(record, "data_type", true, &kind));
    TRY(format_string(record, "path", false, &path));
    if (string_equals(kind, "video"))
        media->kinds[0] = PART_VIDEO;
    else if (string_equals(kind, "image"))
        media->kinds[0] = PART_IMAGE;
    else
        return fail(DATAERR, "data_type: '%s' is neither image nor video", kind.data);
    if (path.size > 2 && !memcmp(path.data, "./", 2)) path = string_slice(path, 2, path.size);
    media->paths[0] = path;
    media->count = 1;
    return OK;
}

static status make(const struct format_options *rules, json_object *record, size_t line, struct group *group,
                   struct buf *question) {
    struct media_paths media = {0};
    enum problem_type type;
    struct string solution;
    TRY(format_sample_id(group, record, "problem_id", line));
    TRY(read_type(group, record, &type));
    TRY(print_question(question, record, type));
    TRY(find_medium(record, &media));
    TRY(format_string(record, "solution", false, &solution));
    if (string_find(solution, "<answer>", 0) == SIZE_MAX || string_find(solution, "</answer>", 0) == SIZE_MAX)
        return fail(DATAERR, "solution: no <answer>...</answer>");
    return format_prompt(rules, group, type, &media, (struct string){question->data, question->size}, solution);
}

status format_video_r1(const struct format_options *rules, json_object *record, size_t line, struct group **out) {
    struct buf question = {0};
    TRY(group_new(out));
    status result = make(rules, record, line, *out, &question);
    buf_release(&question);
    if (result != OK) group_free(out);
    return result;
}
