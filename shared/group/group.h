// The group: one prompt and its G completions, the one thing that flows from source to optim.
//
// It is one C struct, one msgpack map, one JSON object and one record of the store; all four come from the one table
// of fields in fields.c. Sections are added by the stage that owns them and never rewritten by another. Keys that the
// table does not know are kept, wherever they stand, and written again as they were read.
// Everything a group points to lives in its arena.
#ifndef SHARED_GROUP_GROUP_H
#define SHARED_GROUP_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// A text: `data` is NUL-terminated, but may have NULs inside; data == NULL is "absent".
typedef struct text {
    char *data;
    size_t size;
} text;

// Arrays: data == NULL is "absent" (an empty array has data != NULL and count 0).
typedef struct int_array {
    int64_t *data;
    size_t count;
} int_array;

// NaN stands for null. Printed so that reading it back gives the same float32 (double_array: the same double).
typedef struct float_array {
    float *data;
    size_t count;
} float_array;

typedef struct double_array {
    double *data;
    size_t count;
} double_array;

typedef struct text_array {
    text *data; // an element with data == NULL is null
    size_t count;
} text_array;

// Half-open ranges of tokens; first < 0 stands for null.
typedef struct span {
    int64_t first;
    int64_t end;
} span;

typedef struct span_array {
    span *data;
    size_t count;
} span_array;

// A whole number that is absent where the table lets it be.
#define ABSENT INT64_MIN

// Keys that the table does not know, as JSON text by key, in their order.
typedef struct unknown_field {
    struct unknown_field *next;
    text key;
    text json;
} unknown_field;

typedef struct unknown_fields {
    struct unknown_field *first;
    struct unknown_field *last;
} unknown_fields;

typedef enum part_kind { PART_TEXT, PART_IMAGE, PART_VIDEO } part_kind;

// One piece of a message: a text or the path of a medium (as written: file:// and relative paths are kept).
typedef struct part {
    unknown_fields unknown;
    text type; // "text", "image", "video"
    text text, image, video;
    part_kind kind;
} part;

typedef struct message {
    unknown_fields unknown;
    text role;
    part *parts;
    size_t part_count;
    bool plain; // the content was a plain string, kept as one text part, and is written as one
} message;

typedef struct prompt {
    unknown_fields unknown;
    bool present;
    message *messages;
    size_t message_count;
    text problem_type; // may be absent: only reward needs it
    text solution;
} prompt;

// One image or clip after frames; in the order in which they stand in the messages.
typedef struct medium {
    unknown_fields unknown;
    text kind; // "video" or "image"
    text key;  // 32 hex digits: the frames' key in frames.lmdb
    int64_t frames, height, width;
    double seconds_per_grid; // NaN for an image
    double_array timestamps; // seconds from the clip's first frame; absent for an image
} medium;

typedef struct completion {
    unknown_fields unknown;
    int_array tokens;     // with the end-of-sequence token if there was one
    float_array logprobs; // of the policy at temperature 1, over the full vocabulary
    int_array versions;   // policy version, a token
    text text;            // without special tokens
    text finish;          // "eos" or "length"
} completion;

typedef struct reference {
    unknown_fields unknown;
    bool present;
    int64_t version; // may be ABSENT
    span_array answer_span;
    double_array answer_logprob;     // mean over the span; NaN: no answer
    double_array answer_probability; // mean of the answer tokens' probabilities
    float_array *logprobs;           // one array a completion, or NULL
    size_t logprob_count;
    text_array generated;
} reference;

typedef struct rewards {
    unknown_fields unknown;
    bool present;
    double_array accuracy, format, length, bonus, total;
} rewards;

typedef struct consistency {
    unknown_fields unknown;
    bool present;
    double_array probability; // r_cons of the consistency reward model
} consistency;

// What a group may be sampled and scored with: the lowest policy and reference version.
typedef struct requirement {
    unknown_fields unknown;
    bool present;
    int64_t policy;    // lowest policy version
    int64_t reference; // lowest reference version
    int64_t exact;     // 1: exactly that version (max_staleness 0)
    int64_t order;     // place in the order of issue, from 0; step = order / groups_per_step
} requirement;

typedef struct trained {
    unknown_fields unknown;
    bool present;
    int64_t step;
} trained;

typedef struct quarantine {
    unknown_fields unknown;
    bool present;
    text stage;
    text reason;
} quarantine;

typedef struct group {
    unknown_fields unknown;
    arena arena;
    int64_t v;
    text id;
    text sample_id;
    prompt prompt;
    requirement requires;
    medium *media; // NULL: absent; made by group_media
    size_t media_count;
    int_array prompt_tokens;
    completion *completions; // NULL: absent; made by group_completions
    size_t completion_count;
    reference reference;
    consistency consistency;
    rewards rewards;
    double_array advantages;
    trained trained;
    text times; // JSON object text: {"frames":[in,out],...}
    quarantine quarantine;
} group;

// An empty group on the heap. Free with group_free.
status group_new(group **out);

// NULL is fine; sets *group to NULL.
void group_free(group **group);

// Reads one JSON object. INPUT "not a group: completions[2].text: missing" when it is none: not JSON, wrong types, v
// other than 1, no id, prompt or solution, a completion with neither text nor tokens. A null where a key may be absent
// is absence; an absent v is 1. problem_type is not judged here: reward and source do.
status group_from_json(group **out, const char *json, size_t size);

// Appends the group as one line of JSON, without the newline.
status group_to_json(const group *group, bytes *out);

// The same from msgpack; also INPUT when a key unknown to the table is not carried as JSON.
status group_from_msgpack(group **out, const void *data, size_t size);

// Appends the group as one msgpack map.
status group_to_msgpack(const group *group, bytes *out);

// What a stage needs of the group before it can work; INPUT "not a group: ..." names what is missing.
typedef enum group_need {
    NEED_MEDIA = 1,       // media, as many as the messages have
    NEED_COMPLETIONS = 2, // at least one, each with a text
    NEED_REFERENCE = 4,   // reference, its arrays (where there are any) as long as completions
    NEED_ADVANTAGES = 8,  // advantages, finite and as long as completions
    NEED_TARGETS = 16,    // at least one completion, each with a text or tokens (supervised data)
} group_need;

// Checks what `needs` (group_need, or-ed) says. INPUT.
status group_check(const group *group, unsigned needs);

// Puts the group aside: later stages pass it through untouched. Marks `stage` and the formatted reason.
status group_quarantine(group *group, const char *stage, const char *format, ...) __attribute__((format(printf, 3, 4)));

// The sections by which a stage's work is stored and found again.
typedef enum group_section {
    SECTION_PROMPT,  // id, sample_id, prompt, requires
    SECTION_MEDIA,   // media
    SECTION_ROLLOUT, // prompt_tokens, completions
    SECTION_REFERENCE,
    SECTION_CONSISTENCY,
    SECTION_REWARD,     // rewards, advantages
    SECTION_TRAINED,    // trained
    SECTION_QUARANTINE, // quarantine
    SECTION_TIMES,      // times
} group_section;

// One section as a msgpack map.
status group_section_to_msgpack(const group *group, group_section section, bytes *out);

// Reads what group_section_to_msgpack wrote in place of that section. INPUT.
status group_section_from_msgpack(group *group, group_section section, const void *data, size_t size);

// `count` empty completions in place of those there are.
status group_completions(group *group, size_t count);

// `count` empty media in place of those there are.
status group_media(group *group, size_t count);

// Arrays in the group's arena, zeroed; NULL data when memory is short (SERVICE).
status group_ints(group *group, int_array *array, size_t count);

// The same for floats.
status group_floats(group *group, float_array *array, size_t count);

// The same for doubles.
status group_doubles(group *group, double_array *array, size_t count);

// A copy of `size` bytes as a text of the group; bytes that are not UTF-8 become U+FFFD.
status group_text(group *group, text *out, const char *data, size_t size);

// Whether a text is this NUL-terminated one.
bool text_is(text text, const char *other);

// Appends the reference page: every field of the table as Markdown.
status group_reference_page(bytes *out);

#endif
