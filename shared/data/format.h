// A layout turns one record of a data set into a group. Each is a function of the record and the seed alone.
#ifndef SHARED_DATA_FORMAT_H
#define SHARED_DATA_FORMAT_H

#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/data/prompt_template.h"
#include "shared/group/group.h"

// What a layout needs besides the record.
struct format_options {
    uint64_t seed;
    const char *media_root;                 // absolute; NULL: paths stay as they are
    const struct prompt_template *template; // NULL: the question alone
};

// Makes the group of one record (an object), without its id; `line` stands in for a sample_id that is missing. DATAERR
// "FIELD: what is wrong".
typedef status layout(const struct format_options *rules, json_object *record, size_t line, struct group **out);

// Groups in the form of caravan's own JSON, id and v optional: completions, advantages and unknown keys are kept,
// requires, trained, times and quarantine are not.
layout format_caravan;

// SEED-Bench-R1: question with answer and negative_answers (three drawn, options shuffled), or choice_a..d with
// golden_choice_idx; a clip if task_progress_metadata is not empty, then the last observation's image.
layout format_seed_bench;

// Video-R1: problem, options, problem_type, data_type, path, solution.
layout format_video_r1;

// The text under a key. DATAERR when it is missing, no text, or empty where that is not `allowed_empty`.
status format_string(json_object *record, const char *key, bool allowed_empty, struct string *out);

// group->sample_id from a text or whole number under `key`, or the line's number if there is none. DATAERR.
status format_sample_id(struct group *group, json_object *record, const char *key, size_t line);

// Where media of one record are collected before their message is made.
struct media_paths {
    enum part_kind kinds[2];
    struct string paths[2];
    size_t count;
};

// Makes the group's prompt: one user message, the media first, then the question in the template's wording. Checks the
// solution against the problem type. DATAERR.
status format_prompt(const struct format_options *rules, struct group *group, enum problem_type type,
                     const struct media_paths *media, struct string question, struct string solution);

// Puts media_root before a relative path, also behind file://.
status format_media_path(const struct format_options *rules, struct group *group, struct string path,
                         struct string *out);

#endif
