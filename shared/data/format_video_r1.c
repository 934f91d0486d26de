// The layout of Video-R1, which the general video benchmarks have, too. Which benchmark it is, is told from the path of
// a medium.
#include <assert.h>
#include <ctype.h>
#include <string.h>

#include "shared/data/format.h"
#include "shared/reward/python_text.h"

// ---- benchmark ----

enum benchmark { VSI_BENCH, VIDEO_MMMU, MMVU, MVBENCH, TEMPCOMPASS, VIDEO_MME, BENCHMARKS };

// In small letters, without - and _, in which spellings of a directory differ.
static const char *const benchmark_names[] = {"vsibench", "videommmu", "mmvu", "mvbench", "tempcompass", "videomme"};
static_assert(sizeof benchmark_names / sizeof *benchmark_names == BENCHMARKS, "one name for each benchmark");

// MVBench has no key for the task, but 200 records of each in this order.
enum { RECORDS_OF_TASK = 200 };
static const char *const mvbench_tasks[] = {
    "action_antonym",
    "action_count",
    "action_localization",
    "action_prediction",
    "action_sequence",
    "character_order",
    "counterfactual_inference",
    "egocentric_navigation",
    "episodic_reasoning",
    "fine_grained_action",
    "fine_grained_pose",
    "moving_attribute",
    "moving_count",
    "moving_direction",
    "object_existence",
    "object_interaction",
    "object_shuffle",
    "scene_transition",
    "state_change",
    "unexpected_action",
};

// Cuts the next part of a path up to a slash off *rest. Returns whether it is a directory, and not the file's name.
static bool benchmark_next_directory(struct string *rest, struct string *directory) {
    const char *slash = rest->size ? memchr(rest->data, '/', rest->size) : NULL;
    if (!slash) return false;
    *directory = (struct string){rest->data, (size_t)(slash - rest->data)};
    *rest = string_slice(*rest, directory->size + 1, rest->size);
    return true;
}

// Returns Art_Theory of DIR/validation_Art_Theory_12.mp4: without the first word and the last number. Empty if the name
// has another form.
static struct string benchmark_subject(struct string path) {
    struct string directory;
    while (benchmark_next_directory(&path, &directory)) {
    }
    const char *dot = memrchr(path.data, '.', path.size), *first = memchr(path.data, '_', path.size);
    size_t end = dot ? (size_t)(dot - path.data) : path.size, digits = 0;
    while (digits < end && isdigit((unsigned char)path.data[end - 1 - digits])) digits++;
    size_t begin = first ? (size_t)(first - path.data) + 1 : end;
    end -= digits;
    bool formed = digits && end > begin && path.data[end - 1] == '_';
    return formed ? string_slice(path, begin, end - 1) : (struct string){0};
}

// Sets the category of the group's prompt, which the benchmark's figures are counted by, where the record tells it.
// `path` is the path of its medium, one of whose directories names the benchmark; `index` is the record's place in the
// file, from 0. DATAERR "KEY: what is wrong".
static status benchmark_set_category(struct group *group, struct json *record, struct string path, size_t index) {
    struct string *category = &group->prompt.category, found = {0}, directory, rest = path;
    enum benchmark benchmark = BENCHMARKS; // none of them
    while (benchmark == BENCHMARKS && benchmark_next_directory(&rest, &directory)) {
        char name[16] = ""; // as in benchmark_names
        size_t size = 0;
        for (size_t i = 0; i < directory.size && size < sizeof name - 1; i++)
            if (directory.data[i] != '-' && directory.data[i] != '_')
                name[size++] = (char)tolower((unsigned char)directory.data[i]);
        benchmark = VSI_BENCH;
        while (benchmark < BENCHMARKS && strcmp(name, benchmark_names[benchmark]) != 0) benchmark++;
    }
    switch (benchmark) {
    case VSI_BENCH:
    case TEMPCOMPASS:
        return format_label(group, record, "original_question_type", category);
    case VIDEO_MME:
        return format_label(group, record, "duration", category);
    case VIDEO_MMMU:
        found = benchmark_subject(path);
        break;
    case MMVU: // the directory below videos
        while (benchmark_next_directory(&path, &directory) && !string_equals(directory, "videos")) continue;
        benchmark_next_directory(&path, &found);
        break;
    case MVBENCH:
        index /= RECORDS_OF_TASK;
        if (index < sizeof mvbench_tasks / sizeof *mvbench_tasks) found = string_of(mvbench_tasks[index]);
        break;
    case BENCHMARKS:
        break;
    }
    if (found.size) group_string(group, category, found.data, found.size);
    return OK;
}

// ---- format ----

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
    struct json *choices = NULL;
    struct buf text = {0};
    struct format_media media = FORMAT_NO_MEDIA;
    enum problem_type type;
    group_new(out);
    TRY(format_sample_id(*out, record, "problem_id", place.line));
    TRY(format_string(record, "problem_type", true, &type_name));
    if (!problem_type_parse(type_name, &type))
        return fail(DATAERR, "problem_type: '%s' of sample %s is not one of " PROBLEM_TYPE_NAMES, type_name.data,
                    (*out)->sample_id.data);
    TRY(format_string(record, "problem", false, &problem));
    if (type == PROBLEM_CHOICE) {
        TRY(format_strings(record, "options", &choices));
        if (!json_count(choices)) return fail(DATAERR, "options: empty");
        format_set_bare_options(*out, choices);
    }
    buf_append(&text, problem.data, problem.size);
    if (choices) buf_puts(&text, "Options:\n");
    for (size_t i = 0; choices && i < json_count(choices); i++) {
        const struct string choice = json_string(json_item(choices, i));
        buf_append(&text, choice.data, choice.size);
        buf_puts(&text, "\n");
    }
    const struct string question = format_take(*out, &text);
    TRY(format_string(record, "path", false, &path));
    if (path.size > 2 && !memcmp(path.data, "./", 2)) path = string_slice(path, 2, path.size);
    TRY(format_add_only_medium(options, *out, record, path, &media));
    TRY(benchmark_set_category(*out, record, path, place.index));
    TRY(format_string(record, "solution", false, &solution));
    if (string_find(solution, "<answer>", 0) == SIZE_MAX || string_find(solution, "</answer>", 0) == SIZE_MAX)
        return fail(DATAERR, "solution: no <answer>...</answer>");
    return format_prompt(options, *out, type, &media, question, solution);
}
