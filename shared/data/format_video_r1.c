// The layout of Video-R1, which the general video benchmarks have, too.
#include <assert.h>
#include <string.h>

#include "shared/data/benchmark.h"
#include "shared/data/format_internal.h"
#include "shared/reward/python_text.h"

// Whether option number `index` begins with its own letter, as in "B. y", "(B) y" or "B y". *bare = what follows it.
// *marked: punctuation and then white space or the end follow the letter, so that it can be nothing else.
static bool format_skip_letter(struct string option, size_t index, struct string *bare, bool *marked) {
    option = python_strip(option);
    size_t at = option.size && (option.data[0] == '(' || option.data[0] == '[');
    if (index >= 26 || at >= option.size || option.data[at] != 'A' + (int)index) return false;
    size_t letter_end = ++at, end = option.size, length = 1;
    while (at < end && python_isspace(python_char_at(option, at, &length))) at += length;
    size_t space_end = at;
    while (at < end && strchr(".:)]", option.data[at]) && option.data[at]) at++;
    bool punctuation = at > space_end, spaced = at == end || python_isspace(python_char_at(option, at, &length));
    *marked = punctuation && spaced;
    *bare = python_strip(string_slice(option, at, end));
    return punctuation || space_end > letter_end || letter_end == end;
}

// Sets the prompt's options to those of the record without their own letters. A letter that could be a word or a part
// of one, as in "A knife" and "A.M.", counts as such only if all options begin with theirs.
static void format_set_bare_options(struct group *group, struct json *options) {
    size_t count = json_count(options), lettered = 0;
    struct arena arena = {0};
    struct string *texts = arena_alloc(&arena, count * sizeof *texts);
    struct string bare;
    bool marked;
    for (size_t i = 0; i < count; i++) {
        texts[i] = json_string(json_item(options, i));
        lettered += format_skip_letter(texts[i], i, &bare, &marked);
    }
    for (size_t i = 0; i < count; i++) {
        bool skips = format_skip_letter(texts[i], i, &bare, &marked) && (marked || (lettered == count && count > 1));
        if (skips && bare.size) texts[i] = bare; // the letter alone is the text
    }
    format_set_options(group, texts, count);
    arena_release(&arena);
}

// Adds the medium at `path`, as the record's data_type says; none in a group of an unknown kind, which is quarantined.
static status format_add_only_medium(const struct format_options *options, struct group *group, struct json *record,
                                     struct string path, struct format_media *media) {
    static const char ending[] = ".mp4";
    struct string kind;
    TRY(format_string(record, "data_type", true, &kind));
    const bool pictures = string_equals(kind, "frame"), video = pictures || string_equals(kind, "video");
    if (!video && !string_equals(kind, "image")) {
        group_quarantine(group, "source", "data_type: '%s' is not image, video or frame", kind.data);
        return OK;
    }
    if (pictures && options->no_frames) return OK;
    if (pictures) {
        size_t bare = path.size < sizeof ending ? 0 : path.size - (sizeof ending - 1);
        if (bare && !memcmp(path.data + bare, ending, sizeof ending - 1)) path.size = bare;
        TRY(format_number(record, "fps", true, &media->frame_rate));
    }
    if (pictures || (video && options->cut)) {
        TRY(format_number(record, "start", false, &media->start));
        TRY(format_number(record, "end", false, &media->end));
    }
    media->kinds[media->count] = video ? PART_VIDEO : PART_IMAGE;
    media->paths[media->count++] = path;
    return OK;
}

status format_read_video_r1(const struct format_options *options, struct json *record, struct record_place place,
                            struct group **out) {
    struct string type_name, problem, path, solution;
    struct buf question = {0};
    struct format_media media = format_no_media();
    enum problem_type type;
    status result;
    group_new(out);
    TRY_TO(result, done, format_sample_id(*out, record, "problem_id", place.line));
    TRY_TO(result, done, format_string(record, "problem_type", true, &type_name));
    if (!problem_type_parse(type_name, &type))
        TRY_TO(result, done,
               fail(DATAERR, "problem_type: '%s' of sample %s is not one of " PROBLEM_TYPE_NAMES, type_name.data,
                    (*out)->sample_id.data));
    TRY_TO(result, done, format_string(record, "problem", false, &problem));
    buf_append(&question, problem.data, problem.size);
    if (type == PROBLEM_CHOICE) {
        struct json *choices;
        TRY_TO(result, done, format_strings(record, "options", &choices));
        if (!json_count(choices)) TRY_TO(result, done, fail(DATAERR, "options: empty"));
        buf_puts(&question, "Options:\n");
        for (size_t i = 0; i < json_count(choices); i++) {
            struct string choice = json_string(json_item(choices, i));
            buf_append(&question, choice.data, choice.size);
            buf_puts(&question, "\n");
        }
        format_set_bare_options(*out, choices);
    }
    TRY_TO(result, done, format_string(record, "path", false, &path));
    if (path.size > 2 && !memcmp(path.data, "./", 2)) path = string_slice(path, 2, path.size);
    TRY_TO(result, done, format_add_only_medium(options, *out, record, path, &media));
    TRY_TO(result, done, benchmark_set_category(*out, record, path, place.index));
    TRY_TO(result, done, format_string(record, "solution", false, &solution));
    if (string_find(solution, "<answer>", 0) == SIZE_MAX || string_find(solution, "</answer>", 0) == SIZE_MAX)
        TRY_TO(result, done, fail(DATAERR, "solution: no <answer>...</answer>"));
    result = format_prompt(options, *out, type, &media, (struct string){question.data, question.size}, solution);
done:
    buf_release(&question);
    if (result != OK) group_free(out);
    return result;
}
