// The formats of annotation files. A format turns one record into a group, which depends on the record, the options and
// its place in the file alone.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/data/records.h"
#include "shared/group/group.h"
#include "shared/reward/accuracy.h"
#include "shared/text/tokenizer.h"

// ---- templates ----

// The wording of a prompt: the question, and how to answer it. It is text of this form:
//
//     {question}
//     Think first, inside <think> and </think>, then answer inside <answer> and </answer>.{how}
//
//     [multiple choice]
//      Answer with the letter of the right option.
//
//     [numerical]
//      ...
//
// The text before the first line that is a problem type in brackets is the body, which must contain {question}. The
// text of a problem's section replaces {how}, or follows the body if there is no {how}. Empty lines at the end of the
// body and of a section do not belong to it. A template without sections has one wording for all types; a template with
// sections must have one for each type that occurs in the data.
struct prompt_template {
    struct string body;
    struct string sections[PROBLEM_TYPES]; // data == NULL: no such section
};

// The default template, in the form above.
extern const char prompt_template_default[];

// Parses a template; the strings are slices of `text`. DATAERR with "NAME:LINE: what is wrong".
status prompt_template_parse(struct prompt_template *out, const char *name, struct string text);

// Appends the text of a prompt. DATAERR when there are sections but none for this type.
status prompt_template_render(const struct prompt_template *template, enum problem_type type, struct string question,
                              struct buf *out);

// Reads the file of a template, without a byte order mark, into an empty buffer. DATAERR with the path, also when it is
// not UTF-8; UNAVAILABLE.
status template_read(const char *path, struct buf *out);

// Appends the template with the two names replaced by their values wherever they stand. What was put in is not looked
// at again.
void template_fill(struct buf *out, struct string template, const char *const names[2], const struct string values[2]);

// ---- formats ----

struct format_options {
    uint64_t seed;
    const char *media_root;                 // absolute; NULL: paths stay as they are
    const struct prompt_template *template; // NULL: the prompt is the question alone
    const struct tokenizer *tokenizer;      // of format sft; NULL: its completions have no tokens
    bool cut;                               // only the part of a clip between the record's start and end is used
    bool no_frames;                         // a record of pictures has no medium, as in the released evaluation
};

struct format {
    const char *name;
    bool has_messages;   // records contain their messages, so the template is not used
    bool has_tokens;     // its groups get tokens, so a tokenizer is needed
    const char *example; // records of each kind as a JSON array, to copy

    // As format_read, but *out, NULL at first, may be a group also after a failure.
    status (*read)(const struct format_options *options, struct json *record, struct record_place place,
                   struct group **out);
};

// The formats:
// caravan: a record is a group in JSON. id and v may be absent; completions, advantages and unknown keys are kept;
//   requires, trained, times and quarantine are dropped. sample_id is that of the record, else its id.
// seed-bench-r1: question with answer and negative_answers, of which three are drawn and shuffled with the answer, or
//   choice_a to choice_d with golden_choice_idx. The media are a video if task_progress_metadata is not empty, then the
//   image of the last observation. The category is the domain, the level is task_level.
// video-r1: problem, options, problem_type, data_type, path, solution. Also the format of the general video benchmarks,
//   whose records have a category. A directory in the path tells the benchmark:
//     VSI-Bench, TempCompass: original_question_type
//     VideoMME: duration
//     VideoMMMU: the subject in the file's name, which is validation_Art_Theory_12.mp4
//     MMVU: the subject, which is the directory below videos
//     MVBench: one of 20 tasks; the file has 200 records of each, in a fixed order
//   A record whose data_type is `frame` has a clip that is a directory of pictures: the path without .mp4, with `fps`
//   pictures a second, cut to the record's start and end.
// sft: data for supervised fine-tuning. SEED-Bench-R1's records have prompt, which is messages, and response;
//   Video-R1's are those of video-r1 with process, and the response is process, a newline and solution. The
//   completion's tokens are those of the response and of the end of its message in the chat template: <|im_end|> and a
//   newline.
extern const struct format format_all[];
extern const size_t format_count;

// Returns the format of that name, NULL if there is none.
const struct format *format_find(const char *name);

// Makes the group of a record, which is a JSON object. The group has no id; the line is its sample_id if the record has
// none. DATAERR "FIELD: what is wrong". A record of a kind of medium that is unknown makes a group in quarantine,
// without media. Free *out with group_free; it is NULL after a failure.
status format_read(const struct format *format, const struct format_options *options, struct json *record,
                   struct record_place place, struct group **out);
