// What the layouts share. Used inside shared/data only.
#ifndef SHARED_DATA_FORMAT_INTERNAL_H
#define SHARED_DATA_FORMAT_INTERNAL_H

#include "shared/data/format.h"
#include "shared/reward/accuracy.h"

// ---- the layouts, each as `read` of struct format ----

// A record is a group.
status format_read_caravan(const struct format_options *options, struct json *record, struct record_place place,
                           struct group **out);

// SEED-Bench-R1's training and validation files.
status format_read_seed_bench_r1(const struct format_options *options, struct json *record, struct record_place place,
                                 struct group **out);

// Video-R1 and the general video benchmarks.
status format_read_video_r1(const struct format_options *options, struct json *record, struct record_place place,
                            struct group **out);

// Data for supervised fine-tuning.
status format_read_sft(const struct format_options *options, struct json *record, struct record_place place,
                       struct group **out);

// ---- keys of a record; DATAERR "KEY: what is wrong" ----

// Sets *out to the string of a key, valid as long as the record.
status format_string(struct json *record, const char *key, bool allow_empty, struct string *out);

// Sets *out to the array of strings of a key, valid as long as the record.
status format_strings(struct json *record, const char *key, struct json **out);

// Sets *out to the number of a key; *out stays as it is if the key is missing and not required.
status format_number(struct json *record, const char *key, bool required, double *out);

// Copies the string or the number of a key into the group. *out stays as it is if the key is missing or the string
// empty.
status format_label(struct group *group, struct json *record, const char *key, struct string *out);

// Sets the group's sample_id to the string or the number of a key, or to the line number if there is no such key.
status format_sample_id(struct group *group, struct json *record, const char *key, size_t line);

// ---- the prompt ----

enum { FORMAT_MAX_MEDIA = 2 };

// The media of one record before its message is made.
struct format_media {
    enum part_kind kinds[FORMAT_MAX_MEDIA];
    struct string paths[FORMAT_MAX_MEDIA];
    double start, end, frame_rate; // of the first one, as in struct part
    size_t count;
};

// No media.
struct format_media format_no_media(void);

// Sets *out to the path, below media_root if the path is relative; file:// in front of it stays.
void format_media_path(const struct format_options *options, struct group *group, struct string path,
                       struct string *out);

// Copies the bare texts of the options into the group's prompt.
void format_set_options(struct group *group, const struct string *options, size_t count);

// Puts the paths of the media in all messages of the group below media_root, as format_media_path does.
void format_media_paths(const struct format_options *options, struct group *group);

// Makes the group's prompt: one user message, first the media, then the question as the template renders it. DATAERR
// when the solution does not suit the problem type, or when the template has no section for it.
status format_prompt(const struct format_options *options, struct group *group, enum problem_type type,
                     const struct format_media *media, struct string question, struct string solution);

#endif
