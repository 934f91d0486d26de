// The formats of annotation files, the wording of prompts, and what the layouts share.
#include "shared/data/format.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/rng.h"
#include "shared/reward/python_text.h"

// ---- templates ----

// pipelines/templates/default.txt has the same text, as a start for users' own templates.
const char prompt_template_default[] =
    "{question}\n"
    "Look closely at what is shown and reason step by step before you answer: say what you see, compare the "
    "possibilities, and check your conclusion. Write your reasoning between <think> and </think>, and after it your "
    "final answer between <answer> and </answer>.{how}\n"
    "\n"
    "[multiple choice]\n"
    " Between <answer> and </answer> write the letter of the right option and nothing else.\n"
    "\n"
    "[numerical]\n"
    " Between <answer> and </answer> write one number, such as 42 or 3.14, and nothing else.\n"
    "\n"
    "[OCR]\n"
    " Between <answer> and </answer> write the text exactly as it can be read, and nothing else.\n"
    "\n"
    "[free-form]\n"
    " Between <answer> and </answer> write your answer as a short text.\n"
    "\n"
    "[regression]\n"
    " Between <answer> and </answer> write your estimate as one number, and nothing else.\n";

static struct string format_template_strip(struct string text) {
    while (text.size && (text.data[text.size - 1] == '\n' || text.data[text.size - 1] == '\r')) text.size--;
    return text;
}

status prompt_template_parse(struct prompt_template *out, const char *name, struct string text) {
    *out = (struct prompt_template){.body = {text.data, 0}};
    struct string *part = &out->body;
    size_t number = 1;
    for (size_t at = 0; at < text.size; number++) {
        size_t end = string_find(text, "\n", at);
        end = end == SIZE_MAX ? text.size : end;
        size_t next = end + (end < text.size);
        struct string line = string_slice(text, at, end);
        if (line.size && line.data[line.size - 1] == '\r') line.size--;
        enum problem_type type;
        bool header = line.size >= 2 && line.data[0] == '[' && line.data[line.size - 1] == ']' &&
                      problem_type_parse(string_slice(line, 1, line.size - 1), &type);
        if (header) {
            part = &out->sections[type];
            if (part->data) return fail(DATAERR, "%s:%zu: a second [%s]", name, number, problem_type_name(type));
            *part = string_slice(text, next, next);
        } else {
            part->size += next - at;
        }
        at = next;
    }
    out->body = format_template_strip(out->body);
    for (int i = 0; i < PROBLEM_TYPES; i++) out->sections[i] = format_template_strip(out->sections[i]);
    if (string_find(out->body, "{question}", 0) == SIZE_MAX)
        return fail(DATAERR, "%s: no {question} before the sections", name);
    return OK;
}

status template_read(const char *path, struct buf *out) {
    static const char byte_order_mark[] = "\xef\xbb\xbf";
    assert(!out->size);
    TRY(file_read(path, out));
    if (!utf8_valid(out->data, out->size)) return fail(DATAERR, "%s: not UTF-8", path);
    if (out->size < 3 || memcmp(out->data, byte_order_mark, 3) != 0) return OK;
    out->size -= 3;
    memmove(out->data, out->data + 3, out->size + 1);
    return OK;
}

void template_fill(struct buf *out, struct string template, const char *const names[2], const struct string values[2]) {
    size_t from = 0;
    for (;;) {
        const size_t first = string_find(template, names[0], from), second = string_find(template, names[1], from);
        const int which = second < first;
        const size_t at = which ? second : first;
        if (at == SIZE_MAX) break;
        buf_append(out, template.data + from, at - from);
        buf_append(out, values[which].data, values[which].size);
        from = at + strlen(names[which]);
    }
    buf_append(out, template.data + from, template.size - from);
}

status prompt_template_render(const struct prompt_template *template, enum problem_type type, struct string question,
                              struct buf *out) {
    assert(type < PROBLEM_TYPES);
    struct string section = template->sections[type], body = template->body;
    bool has_sections = false;
    for (int i = 0; i < PROBLEM_TYPES; i++) has_sections |= template->sections[i].data != NULL;
    if (has_sections && !section.data)
        return fail(DATAERR, "the template has no section [%s]", problem_type_name(type));
    template_fill(out, body, (const char *const[2]){"{question}", "{how}"},
                  (const struct string[2]){question, section});
    if (string_find(body, "{how}", 0) == SIZE_MAX) buf_append(out, section.data, section.size);
    return OK;
}

// ---- keys of a record; DATAERR "KEY: what is wrong" ----

// Sets *out to the string of a key, valid as long as the record.
static status format_string(struct json *record, const char *key, bool allow_empty, struct string *out) {
    struct json *value = json_at(record, key);
    if (!value) return fail(DATAERR, "%s: missing", key);
    if (!json_is(value, JSON_STRING)) return fail(DATAERR, "%s: not a string", key);
    *out = json_string(value);
    return out->size || allow_empty ? OK : fail(DATAERR, "%s: empty", key);
}

// Sets *out to the array of strings of a key, valid as long as the record.
static status format_strings(struct json *record, const char *key, struct json **out) {
    *out = json_at(record, key);
    if (!*out) return fail(DATAERR, "%s: missing", key);
    if (!json_is(*out, JSON_ARRAY)) return fail(DATAERR, "%s: not an array", key);
    for (size_t i = 0; i < json_count(*out); i++)
        if (!json_is(json_item(*out, i), JSON_STRING)) return fail(DATAERR, "%s[%zu]: not a string", key, i);
    return OK;
}

// *out stays as it is if the key is missing and not required.
static status format_number(struct json *record, const char *key, bool required, double *out) {
    struct json *value = json_at(record, key);
    if (!value) return required ? fail(DATAERR, "%s: missing", key) : OK;
    return json_double(value, out) ? OK : fail(DATAERR, "%s: not a number", key);
}

// Returns a copy of the text in the group's memory, and releases the buffer.
static struct string format_take(struct group *group, struct buf *text) {
    struct string taken;
    group_string(group, &taken, text->data, text->size);
    buf_release(text);
    return taken;
}

// Copies the string or the number of a key into the group. *out stays as it is if the key is missing or the string
// empty.
static status format_label(struct group *group, struct json *record, const char *key, struct string *out) {
    struct json *value = json_at(record, key);
    struct string text = json_string(value);
    if (!value || (text.data && !text.size)) return OK;
    if (text.data) {
        group_string(group, out, text.data, text.size);
        return OK;
    }
    if (!json_is(value, JSON_NUMBER)) return fail(DATAERR, "%s: neither a string nor a number", key);
    struct buf printed = {0};
    json_print(&printed, value);
    *out = format_take(group, &printed);
    return OK;
}

// Sets the group's sample_id to the string or the number of a key, or to the line number if there is no such key.
static status format_sample_id(struct group *group, struct json *record, const char *key, size_t line) {
    char number[24];
    TRY(format_label(group, record, key, &group->sample_id));
    if (group->sample_id.data) return OK;
    int length = snprintf(number, sizeof number, "%zu", line);
    assert(length > 0 && (size_t)length < sizeof number);
    group_string(group, &group->sample_id, number, (size_t)length);
    return OK;
}

// ---- the prompt ----

enum { MAX_FORMAT_MEDIA = 2 };

// The media of one record before its message is made.
struct format_media {
    enum part_kind kinds[MAX_FORMAT_MEDIA];
    struct string paths[MAX_FORMAT_MEDIA];
    double start, end, frame_rate; // of the first one, as in struct part
    size_t count;
};

// Sets *out to the path, below media_root if the path is relative; file:// and file://localhost in front of it stay.
static void format_media_path(const struct format_options *options, struct group *group, struct string path,
                              struct string *out) {
    static const char scheme[] = "file://", host[] = "file://localhost/";
    bool has_scheme = path.size >= sizeof scheme - 1 && !memcmp(path.data, scheme, sizeof scheme - 1);
    bool has_host = path.size >= sizeof host - 1 && !memcmp(path.data, host, sizeof host - 1);
    struct string bare = has_scheme ? string_slice(path, sizeof scheme - 1, path.size) : path;
    if (!options->media_root || has_host || (bare.size && bare.data[0] == '/')) {
        group_string(group, out, path.data, path.size);
        return;
    }
    struct buf joined = {0};
    buf_printf(&joined, "%s%s/", has_scheme ? scheme : "", options->media_root);
    buf_append(&joined, bare.data, bare.size);
    *out = format_take(group, &joined);
}

// Does so with the paths of the media in all messages of the group.
static void format_media_paths(const struct format_options *options, struct group *group) {
    for (size_t i = 0; i < group->prompt.message_count; i++)
        for (size_t k = 0; k < group->prompt.messages[i].part_count; k++) {
            struct part *part = &group->prompt.messages[i].parts[k];
            struct string *path = part->kind == PART_IMAGE ? &part->image : &part->video;
            if (part->kind != PART_TEXT) format_media_path(options, group, *path, path);
        }
}

// Copies the bare texts of the options into the group's prompt.
static void format_set_options(struct group *group, const struct string *options, size_t count) {
    struct string_array *copies = &group->prompt.options;
    GROUP_ARRAY(group, copies, count);
    for (size_t i = 0; i < count; i++) group_string(group, &copies->data[i], options[i].data, options[i].size);
}

// Makes the group's prompt: one user message, first the media, then the question as the template renders it. DATAERR
// when the solution does not suit the problem type, or when the template has no section for it.
static status format_prompt(const struct format_options *options, struct group *group, enum problem_type type,
                            const struct format_media *media, struct string question, struct string solution) {
    struct prompt *prompt = &group->prompt;
    const char *type_name = problem_type_name(type);
    status result = solution_check(type, solution);
    if (result != OK) return fail_prefix(result, "solution");
    assert(media->count <= MAX_FORMAT_MEDIA);
    prompt->present = true;
    prompt->message_count = 1;
    prompt->messages = arena_alloc(&group->arena, sizeof *prompt->messages);
    struct message *message = prompt->messages;
    message->part_count = media->count + 1;
    message->parts = arena_alloc(&group->arena, message->part_count * sizeof *message->parts);
    group_string(group, &message->role, "user", 4);
    for (size_t i = 0; i < media->count; i++) {
        struct part *part = &message->parts[i];
        bool video = media->kinds[i] == PART_VIDEO;
        part->kind = media->kinds[i];
        part->start = i == 0 ? media->start : NAN;
        part->end = i == 0 ? media->end : NAN;
        part->frame_rate = i == 0 ? media->frame_rate : NAN;
        group_string(group, &part->type, video ? "video" : "image", 5);
        format_media_path(options, group, media->paths[i], video ? &part->video : &part->image);
    }
    struct part *part = &message->parts[media->count];
    part->kind = PART_TEXT;
    part->start = part->end = part->frame_rate = NAN;
    group_string(group, &part->type, "text", 4);
    struct buf rendered = {0};
    if (options->template)
        result = prompt_template_render(options->template, type, question, &rendered);
    else
        buf_append(&rendered, question.data, question.size);
    if (result == OK) group_string(group, &part->text, rendered.data, rendered.size);
    buf_release(&rendered);
    TRY(result);
    group_string(group, &prompt->question, question.data, question.size);
    group_string(group, &prompt->problem_type, type_name, strlen(type_name));
    group_string(group, &prompt->solution, solution.data, solution.size);
    return OK;
}

// ---- the layout caravan ----

// The layout caravan: a record is a group.
static status format_read_caravan(const struct format_options *options, struct json *record, struct record_place place,
                                  struct group **out) {
    const char *key = json_at(record, "sample_id") ? "sample_id" : "id";
    enum problem_type type;
    struct buf printed = {0};
    struct arena arena = {0};
    // group_from_json requires an id, which a record may lack, and no number as sample_id, so a copy with others is
    // parsed.
    struct json *copy = json_new(&arena, JSON_OBJECT);
    json_merge(copy, &arena, record);
    json_set_string(copy, &arena, "id", "-");
    if (json_is(json_at(record, key), JSON_NUMBER)) json_set_string(copy, &arena, "sample_id", "-");
    json_print(&printed, copy);
    status result = group_from_json(out, printed.data, printed.size);
    buf_release(&printed);
    arena_release(&arena);
    TRY(result);
    struct group *group = *out;
    const struct prompt *prompt = &group->prompt;
    group->requires = (struct requirement){0};
    group->trained = (struct trained){0};
    group->times = (struct stage_times){0};
    group->quarantine = (struct quarantine){0};
    TRY(format_sample_id(group, record, key, place.line));
    format_media_paths(options, group);
    if (!problem_type_parse(prompt->problem_type, &type))
        return fail(DATAERR, "prompt.problem_type: '%s' of sample %s is not one of " PROBLEM_TYPE_NAMES,
                    prompt->problem_type.data ? prompt->problem_type.data : "", group->sample_id.data);
    result = solution_check(type, prompt->solution);
    return result == OK ? OK : fail_prefix(result, "prompt.solution");
}

// ---- the layout of SEED-Bench-R1's training and validation files ----

// Negatives are drawn and options are shuffled by the sample's id, so that a sample has the same question wherever it
// stands in the file and in every epoch.

enum { CHOICES = 4, NEGATIVES = CHOICES - 1 };

enum { STREAM_NEGATIVES, STREAM_OPTIONS }; // of random numbers

// Adds the medium DIR/video_source/NAME, where NAME is the string of a key.
static status format_add_medium(struct group *group, struct format_media *media, enum part_kind kind, const char *dir,
                                struct json *record, const char *name_key) {
    struct string source, name;
    struct buf path = {0};
    assert(media->count < MAX_FORMAT_MEDIA);
    TRY(format_string(record, "video_source", false, &source));
    TRY(format_string(record, name_key, false, &name));
    buf_printf(&path, "%s/", dir);
    buf_append(&path, source.data, source.size);
    buf_puts(&path, "/");
    buf_append(&path, name.data, name.size);
    media->paths[media->count] = format_take(group, &path);
    media->kinds[media->count++] = kind;
    return OK;
}

static status format_read_seed_bench_r1(const struct format_options *options, struct json *record,
                                        struct record_place place, struct group **out) {
    static const char *const keys[] = {"choice_a", "choice_b", "choice_c", "choice_d"};
    static_assert(sizeof keys / sizeof *keys == CHOICES, "one key per choice");
    struct string choices[CHOICES] = {0}, problem;
    struct buf text = {0};
    struct format_media media = {.start = NAN, .end = NAN, .frame_rate = NAN};
    char solution[] = "<answer>A</answer>";
    size_t right = 0;
    group_new(out);
    TRY(format_sample_id(*out, record, "sample_id", place.line));
    if (json_at(record, "golden_choice_idx")) {
        struct string letter;
        for (size_t i = 0; i < CHOICES; i++) TRY(format_string(record, keys[i], false, &choices[i]));
        TRY(format_string(record, "golden_choice_idx", false, &letter));
        for (right = 0; right < CHOICES; right++)
            if (letter.size == 1 && (letter.data[0] == 'A' + (int)right || letter.data[0] == 'a' + (int)right)) break;
        if (right == CHOICES) return fail(DATAERR, "golden_choice_idx: not a letter from A to D");
    } else {
        // Three negatives are drawn without replacement and shuffled with the answer.
        struct json *negatives;
        struct string drawn[CHOICES];
        size_t order[CHOICES];
        TRY(format_string(record, "answer", false, &drawn[0]));
        TRY(format_strings(record, "negative_answers", &negatives));
        size_t count = json_count(negatives);
        if (count < NEGATIVES) return fail(DATAERR, "negative_answers: %zu, but %d are needed", count, NEGATIVES);
        struct arena arena = {0};
        size_t *shuffled = arena_alloc(&arena, count * sizeof *shuffled);
        uint64_t key = rng_key(options->seed, (*out)->sample_id.data);
        rng_shuffle(key, STREAM_NEGATIVES, count, shuffled);
        for (size_t i = 0; i < NEGATIVES; i++) drawn[i + 1] = json_string(json_item(negatives, shuffled[i]));
        arena_release(&arena);
        rng_shuffle(key, STREAM_OPTIONS, CHOICES, order);
        for (size_t i = 0; i < CHOICES; i++) {
            choices[i] = drawn[order[i]];
            if (order[i] == 0) right = i;
        }
    }
    TRY(format_string(record, "question", false, &problem));
    buf_append(&text, problem.data, problem.size);
    buf_puts(&text, "Options:\n");
    for (size_t i = 0; i < CHOICES; i++) {
        buf_printf(&text, "%c. ", (char)('A' + i));
        buf_append(&text, choices[i].data, choices[i].size);
        buf_puts(&text, "\n");
    }
    const struct string question = format_take(*out, &text);
    struct json *progress = json_at(record, "task_progress_metadata");
    if (progress && !json_is(progress, JSON_ARRAY)) return fail(DATAERR, "task_progress_metadata: not an array");
    if (progress && json_count(progress))
        TRY(format_add_medium(*out, &media, PART_VIDEO, "videos", record, "video_basename"));
    TRY(format_add_medium(*out, &media, PART_IMAGE, "images", record, "current_observation_basename"));
    format_set_options(*out, choices, CHOICES);
    TRY(format_label(*out, record, "domain", &(*out)->prompt.category));
    TRY(format_label(*out, record, "task_level", &(*out)->prompt.level));
    assert(right < CHOICES);
    solution[sizeof "<answer>" - 1] = (char)('A' + right);
    return format_prompt(options, *out, PROBLEM_CHOICE, &media, question, string_of(solution));
}

// ---- the benchmarks, which have the layout of Video-R1; the path of a medium tells which one it is ----

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
    case VIDEO_MMMU: { // Art_Theory of DIR/validation_Art_Theory_12.mp4; empty if the name has another form
        while (benchmark_next_directory(&path, &directory)) continue;
        const char *dot = memrchr(path.data, '.', path.size), *first = memchr(path.data, '_', path.size);
        size_t end = dot ? (size_t)(dot - path.data) : path.size, digits = 0;
        while (digits < end && isdigit((unsigned char)path.data[end - 1 - digits])) digits++;
        const size_t begin = first ? (size_t)(first - path.data) + 1 : end;
        end -= digits;
        if (digits && end > begin && path.data[end - 1] == '_') found = string_slice(path, begin, end - 1);
        break;
    }
    case MMVU: // the directory below MMVU's videos
        while (benchmark_next_directory(&rest, &directory) && !string_equals(directory, "videos")) continue;
        benchmark_next_directory(&rest, &found);
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

// ---- the layout of Video-R1 ----

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

// Adds the record's medium, as its data_type says; none in a group of an unknown kind, which is quarantined.
static status format_add_only_medium(const struct format_options *options, struct group *group, struct json *record,
                                     struct format_media *media) {
    static const char ending[] = ".mp4";
    struct string kind, path;
    TRY(format_string(record, "data_type", true, &kind));
    const bool pictures = string_equals(kind, "frame"), video = pictures || string_equals(kind, "video");
    if (!video && !string_equals(kind, "image")) {
        group_quarantine(group, "source", "data_type: '%s' is not image, video or frame", kind.data);
        return OK;
    }
    TRY(format_string(record, "path", false, &path));
    if (path.size > 2 && !memcmp(path.data, "./", 2)) path = string_slice(path, 2, path.size);
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

static status format_read_video_r1(const struct format_options *options, struct json *record, struct record_place place,
                                   struct group **out) {
    struct string type_name, problem, solution;
    struct json *choices = NULL;
    struct buf text = {0};
    struct format_media media = {.start = NAN, .end = NAN, .frame_rate = NAN};
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
        // The prompt's options are those of the record without their own letters. A letter that could be a word or a
        // part of one, as in "A knife" and "A.M.", counts as such only if all options begin with theirs.
        size_t count = json_count(choices), lettered = 0;
        struct arena arena = {0};
        struct string *texts = arena_alloc(&arena, count * sizeof *texts);
        struct string bare;
        bool marked;
        for (size_t i = 0; i < count; i++) {
            texts[i] = json_string(json_item(choices, i));
            lettered += format_skip_letter(texts[i], i, &bare, &marked);
        }
        for (size_t i = 0; i < count; i++) {
            bool skips =
                format_skip_letter(texts[i], i, &bare, &marked) && (marked || (lettered == count && count > 1));
            if (skips && bare.size) texts[i] = bare; // the letter alone is the text
        }
        format_set_options(*out, texts, count);
        arena_release(&arena);
    }
    buf_append(&text, problem.data, problem.size);
    if (choices) buf_puts(&text, "Options:\n");
    for (size_t i = 0; choices && i < json_count(choices); i++) {
        const struct string choice = json_string(json_item(choices, i));
        buf_append(&text, choice.data, choice.size);
        buf_puts(&text, "\n");
    }
    const struct string question = format_take(*out, &text);
    TRY(format_add_only_medium(options, *out, record, &media));
    TRY(format_label(*out, record, "category", &(*out)->prompt.category)); // unless a benchmark has its own
    TRY(benchmark_set_category(*out, record, json_string(json_at(record, "path")), place.index));
    TRY(format_string(record, "solution", false, &solution));
    if (string_find(solution, "<answer>", 0) == SIZE_MAX || string_find(solution, "</answer>", 0) == SIZE_MAX)
        return fail(DATAERR, "solution: no <answer>...</answer>");
    return format_prompt(options, *out, type, &media, question, solution);
}

// ---- the layout sft ----

// The layout sft: prompts with the response that is to be learned, as SEED-Bench-R1 and Video-R1 publish them.
static status format_read_sft(const struct format_options *options, struct json *record, struct record_place place,
                              struct group **out) {
    struct string response, process, solution;
    struct token_list tokens = {0};
    struct buf target = {0}; // what is to be learned
    if (json_at(record, "process")) {
        TRY(format_string(record, "process", false, &process));
        TRY(format_read_video_r1(options, record, place, out));
        if ((*out)->quarantine.present) return OK;
        TRY(format_string(record, "solution", false, &solution));
        buf_append(&target, process.data, process.size);
        buf_puts(&target, "\n");
        buf_append(&target, solution.data, solution.size);
    } else if (json_at(record, "response")) {
        TRY(format_string(record, "response", false, &response));
        // SEED-Bench-R1: the prompt is messages, and the solution is the response's last answer.
        struct json *messages = json_at(record, "prompt");
        struct buf text = {0};
        if (!messages) return fail(DATAERR, "prompt: missing");
        if (!json_is(messages, JSON_ARRAY)) return fail(DATAERR, "prompt: not an array of messages");
        if (!json_count(messages)) return fail(DATAERR, "prompt: empty");
        size_t first = SIZE_MAX, end = SIZE_MAX;
        for (size_t at = 0; (at = string_find(response, "<answer>", at)) != SIZE_MAX; at++) first = at;
        if (first != SIZE_MAX) end = string_find(response, "</answer>", first);
        const struct string answer =
            end == SIZE_MAX ? string_of("") : string_slice(response, first, end + sizeof "</answer>" - 1);
        buf_puts(&text, "{\"id\":\"-\",\"prompt\":{\"messages\":");
        json_print(&text, messages);
        buf_printf(&text, ",\"problem_type\":\"%s\",\"solution\":", problem_type_name(PROBLEM_CHOICE));
        json_print_string(&text, answer.data, answer.size);
        buf_puts(&text, "}}");
        const status read = group_from_json(out, text.data, text.size);
        buf_release(&text);
        TRY(read);
        TRY(format_sample_id(*out, record, "sample_id", place.line));
        format_media_paths(options, *out);
        buf_append(&target, response.data, response.size);
    } else {
        return fail(DATAERR, "neither response nor process, so that nothing is to be learned");
    }
    struct group *group = *out;
    group_completions(group, 1);
    struct completion *completion = &group->completions[0];
    group_string(group, &completion->text, target.data, target.size);
    group_string(group, &completion->finish, "eos", 3);
    GROUP_ARRAY(group, &group->advantages, 1);
    group->advantages.data[0] = 1;
    status result = OK;
    if (options->tokenizer) { // in the chat template the message ends with <|im_end|> and a newline; both are learned
        buf_puts(&target, "<|im_end|>\n");
        TRY_TO(result, done, tokenizer_encode(options->tokenizer, target.data, target.size, &tokens));
        GROUP_ARRAY(group, &completion->tokens, tokens.count);
        memcpy(completion->tokens.data, tokens.data, tokens.count * sizeof *tokens.data);
    }
done:
    token_list_release(&tokens);
    buf_release(&target);
    return result;
}

// ---- the formats ----

static const char format_example_caravan[] =
    "[\n"
    "{\"sample_id\": \"kitchen-1\",\n"
    " \"prompt\": {\"messages\": [{\"role\": \"user\", \"content\": [\n"
    "                {\"type\": \"video\", \"video\": \"videos/kitchen.mp4\"},\n"
    "                {\"type\": \"text\", \"text\": \"What is opened first? A. the fridge B. the drawer\"}]}],\n"
    "            \"problem_type\": \"multiple choice\",\n"
    "            \"solution\": \"<answer>B</answer>\"}}\n"
    "]\n";

static const char format_example_seed_bench_r1[] =
    "[\n"
    "{\"sample_id\": \"train-1\", \"video_source\": \"EpicKitchens\", \"video_basename\": \"P01_01.mp4\",\n"
    " \"current_observation_basename\": \"P01_01.jpg\", \"task_progress_metadata\": [{\"narration\": \"open the "
    "drawer\"}],\n"
    " \"question\": \"What should be done next?\\n\", \"answer\": \"take the knife\",\n"
    " \"negative_answers\": [\"close the drawer\", \"wash the cup\", \"open the fridge\"]},\n"
    "{\"sample_id\": \"validation-1\", \"video_source\": \"EpicKitchens\", \"video_basename\": \"P02_01.mp4\",\n"
    " \"current_observation_basename\": \"P02_01.jpg\", \"task_progress_metadata\": [],\n"
    " \"question\": \"What should be done next?\\n\", \"choice_a\": \"take the knife\", \"choice_b\": \"close the "
    "drawer\",\n"
    " \"choice_c\": \"wash the cup\", \"choice_d\": \"open the fridge\", \"golden_choice_idx\": \"A\",\n"
    " \"domain\": \"Daily life\", \"task_level\": \"L1\"}\n"
    "]\n";

static const char format_example_video_r1[] =
    "[\n"
    "{\"problem_id\": 1, \"problem_type\": \"multiple choice\", \"data_type\": \"video\", \"path\": "
    "\"videos/kitchen.mp4\",\n"
    " \"problem\": \"What is opened first?\\n\", \"options\": [\"A. the fridge\", \"B. the drawer\"],\n"
    " \"solution\": \"<answer>B</answer>\"},\n"
    "{\"problem_id\": 2, \"problem_type\": \"numerical\", \"data_type\": \"image\", \"path\": \"images/shelf.jpg\",\n"
    " \"problem\": \"How many cups are there?\", \"solution\": \"<answer>3</answer>\"}\n"
    "]\n";

static const char format_example_sft[] =
    "[\n"
    "{\"sample_id\": \"train-1\",\n"
    " \"prompt\": [{\"role\": \"user\", \"content\": [\n"
    "     {\"type\": \"video\", \"video\": \"videos/EpicKitchens/P01_01.mp4\"},\n"
    "     {\"type\": \"text\", \"text\": \"What should be done next? A. take the knife B. wash the cup\"}]}],\n"
    " \"response\": \"<think>The drawer with the knives is open.</think><answer>A</answer>\"},\n"
    "{\"problem_id\": 1, \"problem_type\": \"multiple choice\", \"data_type\": \"video\", \"path\": "
    "\"videos/kitchen.mp4\",\n"
    " \"problem\": \"What is opened first?\\n\", \"options\": [\"A. the fridge\", \"B. the drawer\"],\n"
    " \"process\": \"<think>A hand pulls the drawer.</think>\", \"solution\": \"<answer>B</answer>\"}\n"
    "]\n";

const struct format format_all[] = {
    {"caravan", true, false, format_example_caravan, format_read_caravan},
    {"seed-bench-r1", false, false, format_example_seed_bench_r1, format_read_seed_bench_r1},
    {"video-r1", false, false, format_example_video_r1, format_read_video_r1},
    {"sft", false, true, format_example_sft, format_read_sft},
};
const size_t format_count = sizeof format_all / sizeof *format_all;

const struct format *format_find(const char *name) {
    for (size_t i = 0; i < format_count; i++)
        if (!strcmp(format_all[i].name, name)) return &format_all[i];
    return NULL;
}

status format_read(const struct format *format, const struct format_options *options, struct json *record,
                   struct record_place place, struct group **out) {
    *out = NULL;
    const status result = format->read(options, record, place, out);
    if (result != OK) group_free(out);
    return result;
}
