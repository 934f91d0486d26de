// The formats of annotation files. A format turns one record into a group, which depends on the record, the options and
// the line number alone.
#ifndef SHARED_DATA_FORMAT_H
#define SHARED_DATA_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/json.h"
#include "shared/base/status.h"
#include "shared/data/prompt_template.h"
#include "shared/group/group.h"

struct format_options {
    uint64_t seed;
    const char *media_root;                 // absolute; NULL: paths stay as they are
    const struct prompt_template *template; // NULL: the prompt is the question alone
};

struct format {
    const char *name;
    bool has_messages; // records contain their messages, so the template is not used

    // Makes the group of a record, which is a JSON object. The group has no id; `line` is its sample_id if the record
    // has none. DATAERR "FIELD: what is wrong". Free *out with group_free; it is NULL after a failure.
    status (*read)(const struct format_options *options, json_object *record, size_t line, struct group **out);
};

// The formats:
// caravan: a record is a group in JSON. id and v may be absent; completions, advantages and unknown keys are kept;
//   requires, trained, times and quarantine are dropped. sample_id is that of the record, else its id.
// seed-bench-r1: question with answer and negative_answers, of which three are drawn and shuffled with the answer, or
//   choice_a to choice_d with golden_choice_idx. The media are a video if task_progress_metadata is not empty, then the
//   image of the last observation.
// video-r1: problem, options, problem_type, data_type, path, solution. Also the format of the general video benchmarks.
extern const struct format format_all[];
extern const size_t format_count;

// Returns the format of that name, NULL if there is none.
const struct format *format_find(const char *name);

#endif
