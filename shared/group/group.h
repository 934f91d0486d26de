// The group: one prompt and its G completions, the one thing that flows from source to optim.
//
// It is a C struct, a msgpack map, a JSON object and a record of the store; the table of fields in fields.c describes
// all four. Each section is added by the stage that owns it and never changed by another. Keys that the table does not
// know are kept, at any depth, and written again as they were read. Everything that a group points to lives in its
// arena.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// In every array data == NULL means absent; an empty array has data != NULL and count 0.
struct int_array {
    int64_t *data;
    size_t count;
};

// NaN stands for null. A number is printed so that it reads back as the same float32 (in double_array: double).
struct float_array {
    float *data;
    size_t count;
};

struct double_array {
    double *data;
    size_t count;
};

struct string_array {
    struct string *data; // an element with data == NULL is null
    size_t count;
};

// A half-open range of tokens; first < 0 stands for null.
struct span {
    int64_t first;
    int64_t end;
};

struct span_array {
    struct span *data;
    size_t count;
};

// The value of an integer that is absent.
#define ABSENT INT64_MIN

// Keys that the table does not know, each with its JSON text, in their order.
struct unknown_field {
    struct unknown_field *next;
    struct string key;
    struct string json;
};

struct unknown_fields {
    struct unknown_field *first;
    struct unknown_field *last;
};

// The JSON text that a long array of integers was read from. It counts as long as the field is {data, count}.
struct array_text {
    struct array_text *next;
    const void *data;
    size_t count;
    struct string text;
};

enum part_kind { PART_TEXT, PART_IMAGE, PART_VIDEO };

// One part of a message: a text, or the path of a medium as it was written (file:// and relative paths are kept).
struct part {
    struct unknown_fields unknown;
    struct string type; // "text", "image", "video"
    struct string text, image, video;
    enum part_kind kind;
    double start, end; // of a video: frames are taken between these seconds; NaN: from its beginning, to its end
    double frame_rate; // of a video that is a directory of pictures: how many make a second; NaN: it is a file
};

struct message {
    struct unknown_fields unknown;
    struct string role;
    struct part *parts;
    size_t part_count;
    bool plain; // the content was a plain string, kept as one text part, and is written as one
};

struct prompt {
    struct unknown_fields unknown;
    bool present;
    struct message *messages;
    size_t message_count;
    struct string problem_type; // may be absent: only reward needs it
    struct string solution;
    struct string question;      // with its options, before a template is applied; may be absent, as all that follow
    struct string_array options; // bare texts, without a letter of their own
    struct string category, level;
};

// One image or clip, added by frames, in the order of the messages.
struct medium {
    struct unknown_fields unknown;
    struct string kind; // "video" or "image"
    struct string key;  // 32 hex digits: the frames' key in frames.lmdb
    int64_t frames, height, width;
    double seconds_per_grid;        // NaN for an image
    struct double_array timestamps; // seconds from the clip's first frame; absent for an image
};

struct completion {
    struct unknown_fields unknown;
    struct int_array tokens;     // with the end-of-sequence token if there was one
    struct float_array logprobs; // of the policy at temperature 1, over the full vocabulary
    struct int_array versions;   // of the policy, one per token
    struct string text;          // without special tokens
    struct string finish;        // "eos" or "length"
};

struct reference {
    struct unknown_fields unknown;
    bool present;
    int64_t version; // may be ABSENT
    struct span_array answer_span;
    struct double_array answer_logprob;     // mean over the span; NaN: no answer
    struct double_array answer_probability; // mean of the answer tokens' probabilities
    struct float_array *logprobs;           // one array per completion, or NULL
    size_t logprob_count;
    struct string_array generated;
};

struct rewards {
    struct unknown_fields unknown;
    bool present;
    struct double_array accuracy, format, length, bonus, consistency, total;
};

// What an evaluation counts. NaN: does not apply.
struct scores {
    struct unknown_fields unknown;
    bool present;
    struct double_array accuracy, letter, correct, parsed, formatted;
};

// Whether the reasoning supports the answer: by a consistency reward model, by a judge, or by both.
struct consistency {
    struct unknown_fields unknown;
    bool present;
    struct double_array probability; // r_cons of the consistency reward model
    struct string model;             // the hash of that model's weights
    struct double_array verdict;     // 1, 0, NaN: not judged
    struct string_array reason;      // of the verdict
    struct string judge;
};

// The versions that a group may be sampled and scored with.
struct requirement {
    struct unknown_fields unknown;
    bool present;
    int64_t policy;    // lowest policy version
    int64_t reference; // lowest reference version
    int64_t exact;     // 1: exactly that version (max_staleness 0)
    int64_t order;     // sequence number in the order of issue, from 0; step = order / groups_per_step
};

struct trained {
    struct unknown_fields unknown;
    bool present;
    int64_t step;
};

struct quarantine {
    struct unknown_fields unknown;
    bool present;
    struct string stage;
    struct string reason;
};

// When a stage got the group and when it had finished it, seconds since 1970.
struct stage_time {
    struct string stage;
    double in, out;
    int64_t replica; // which of the stage's processes, from 1; 0: outside a run
};

enum { MAX_STAGE_TIMES = 64 };

struct stage_times {
    struct stage_time *data; // NULL: absent
    size_t count;
};

struct group {
    struct unknown_fields unknown;
    struct arena arena;
    struct array_text *texts, *last_text; // in the order in which they were read
    int64_t v;
    struct string id;
    struct string sample_id;
    struct prompt prompt;
    struct requirement requires;
    struct medium *media; // NULL: absent; made by group_media
    size_t media_count;
    struct int_array prompt_tokens;
    struct completion *completions; // NULL: absent; made by group_completions
    size_t completion_count;
    struct reference reference;
    struct consistency consistency;
    struct rewards rewards;
    struct double_array advantages;
    struct scores scores;
    struct trained trained;
    struct stage_times times;
    struct quarantine quarantine;
};

// Makes an empty group on the heap. Free with group_free.
void group_new(struct group **out);

// Frees the group with everything in its arena and sets *group to NULL; NULL is fine.
void group_free(struct group **group);

// Reads one JSON object. DATAERR, for instance "not a group: completions[2].text: missing": not JSON, wrong types, v
// other than 1, no id, prompt or solution, a completion with neither text nor tokens. A null for an optional key means
// absent; an absent v is 1. problem_type is not checked here, but by source and reward.
status group_from_json(struct group **out, const char *json, size_t size);

// Appends the group as one line of JSON, without the newline.
void group_to_json(const struct group *group, struct buf *out);

// Reads one msgpack map. DATAERR as above, and for a key unknown to the table that does not carry JSON.
status group_from_msgpack(struct group **out, const void *data, size_t size);

// Appends the group as one msgpack map.
void group_to_msgpack(const struct group *group, struct buf *out);

// What a stage needs of the group before it can work; DATAERR "not a group: ..." names what is missing.
enum group_need {
    NEED_MEDIA = 1,       // media, as many as the messages have
    NEED_COMPLETIONS = 2, // at least one, each with a text
    NEED_REFERENCE = 4,   // reference, its arrays (where there are any) as long as completions
    NEED_ADVANTAGES = 8,  // advantages, finite and as long as completions
    NEED_TARGETS = 16,    // at least one completion, each with a text or tokens (supervised data)
};

// Checks what `needs` (group_need, or-ed) says. DATAERR.
status group_check(const struct group *group, unsigned needs);

// Checks that an array has a number from 0 to 1 for each completion; `nulls`: or NaN. DATAERR names it by `name`.
status group_check_fractions(const struct group *group, const char *name, const struct double_array *values,
                             bool nulls);

// Quarantines the group: later stages pass it through unchanged. Records `stage` and the formatted reason.
void group_quarantine(struct group *group, const char *stage, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Completes the answer of a filter that is not caravan's, given the group that it had. Every field that the answer
// lacks is put back, also in a completion; `requires`, `trained` and `times` are always those of `sent`. DATAERR when
// the answer is another group or has another number of completions; else what `sent` points to belongs to the answer,
// and `sent` may only be freed.
status group_restore(struct group *answer, struct group *sent);

// The sections by which a stage's work is stored and found again.
enum group_section {
    SECTION_PROMPT,  // id, sample_id, prompt, requires
    SECTION_MEDIA,   // media
    SECTION_ROLLOUT, // prompt_tokens, completions
    SECTION_REFERENCE,
    SECTION_CONSISTENCY,
    SECTION_REWARD,     // rewards, advantages
    SECTION_SCORES,     // scores
    SECTION_TRAINED,    // trained
    SECTION_QUARANTINE, // quarantine
    SECTION_TIMES,      // times
};

// Appends one section as a msgpack map.
void group_section_to_msgpack(const struct group *group, enum group_section section, struct buf *out);

// Replaces a section by what group_section_to_msgpack wrote. DATAERR.
status group_section_from_msgpack(struct group *group, enum group_section section, const void *data, size_t size);

// Replaces the completions by `count` empty ones.
void group_completions(struct group *group, size_t count);

// Replaces the media by `count` empty ones.
void group_media(struct group *group, size_t count);

// Makes `count` zeroed elements in the arena; data is not NULL even for none. `array` begins with {data, count}.
void field_array_new(struct arena *arena, void *array, size_t count, size_t element_size);

// The same in the group's arena, for an array of any type: GROUP_ARRAY(group, &completion->tokens, count).
#define GROUP_ARRAY(group, array, count) field_array_new(&(group)->arena, (array), (count), sizeof *(array)->data)

// Copies `size` bytes into the group's arena; bytes that are not UTF-8 become U+FFFD.
void group_string(struct group *group, struct string *out, const char *data, size_t size);

// Appends the reference page, a Markdown table of every field.
void group_reference_page(struct buf *out);

// Sets when time->stage, which is copied, got the group and when it had finished it; there are MAX_STAGE_TIMES at most,
// further ones are left out.
void group_set_times(struct group *group, const struct stage_time *time);
