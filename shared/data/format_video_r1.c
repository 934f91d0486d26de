// The layout of Video-R1, which the general video benchmarks have, too.
#include <assert.h>
#include <string.h>

#include "shared/data/format_internal.h"

status format_read_video_r1(const struct format_options *options, json_object *record, size_t line,
                            struct group **out) {
    struct string type_name, problem, kind, path, solution;
    struct buf question = {0};
    struct format_media media = {.count = 1};
    enum problem_type type;
    status result;
    TRY(group_new(out));
    TRY_TO(result, done, format_sample_id(*out, record, "problem_id", line));
    TRY_TO(result, done, format_string(record, "problem_type", true, &type_name));
    if (!problem_type_parse(type_name, &type))
        TRY_TO(result, done,
               fail(DATAERR, "problem_type: '%s' of sample %s is not one of " PROBLEM_TYPE_NAMES, type_name.data,
                    (*out)->sample_id.data));
    TRY_TO(result, done, format_string(record, "problem", false, &problem));
    TRY_TO(result, done, buf_append(&question, problem.data, problem.size));
    if (type == PROBLEM_CHOICE) {
        json_object *choices;
        TRY_TO(result, done, format_strings(record, "options", &choices));
        if (!json_object_array_length(choices)) TRY_TO(result, done, fail(DATAERR, "options: empty"));
        TRY_TO(result, done, buf_puts(&question, "Options:\n"));
        for (size_t i = 0; i < json_object_array_length(choices); i++) {
            struct string choice = json_string(json_object_array_get_idx(choices, i));
            TRY_TO(result, done, buf_append(&question, choice.data, choice.size));
            TRY_TO(result, done, buf_puts(&question, "\n"));
        }
    }
    TRY_TO(result, done, format_string(record, "data_type", true, &kind));
    TRY_TO(result, done, format_string(record, "path", false, &path));
    media.kinds[0] = string_equals(kind, "video") ? PART_VIDEO : PART_IMAGE;
    if (media.kinds[0] == PART_IMAGE && !string_equals(kind, "image"))
        TRY_TO(result, done, fail(DATAERR, "data_type: '%s' is neither image nor video", kind.data));
    if (path.size > 2 && !memcmp(path.data, "./", 2)) path = string_slice(path, 2, path.size);
    media.paths[0] = path;
    TRY_TO(result, done, format_string(record, "solution", false, &solution));
    if (string_find(solution, "<answer>", 0) == SIZE_MAX || string_find(solution, "</answer>", 0) == SIZE_MAX)
        TRY_TO(result, done, fail(DATAERR, "solution: no <answer>...</answer>"));
    result = format_prompt(options, *out, type, &media, (struct string){question.data, question.size}, solution);
done:
    buf_release(&question);
    if (result != OK) group_free(out);
    return result;
}
