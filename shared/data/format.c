// The formats of annotation files, one function each, and what they share.
//
// In SEED-Bench-R1, negatives are drawn and options are shuffled by the sample's id, so that a sample has the same
// question wherever it stands in the file and in every epoch.
#include "shared/data/format.h"

#include <assert.h>
#include <string.h>

#include "shared/base/rng.h"
#include "shared/reward/accuracy.h"

enum { CHOICES = 4, NEGATIVES = CHOICES - 1, MAX_MEDIA = 2 };

enum { STREAM_NEGATIVES, STREAM_OPTIONS }; // of random numbers

// Sets *out to the string of a key.
static status format_string(json_object *record, const char *key, bool allow_empty, struct string *out) {
    json_object *value = json_object_object_get(record, key);
    if (!value) return fail(DATAERR, "%s: missing", key);
    if (!json_object_is_type(value, json_type_string)) return fail(DATAERR, "%s: not a string", key);
    *out = json_string(value);
    return out->size || allow_empty ? OK : fail(DATAERR, "%s: empty", key);
}

// Sets *out to the array of strings of a key.
static status format_strings(json_object *record, const char *key, json_object **out) {
    *out = json_object_object_get(record, key);
    if (!*out) return fail(DATAERR, "%s: missing", key);
    if (!json_object_is_type(*out, json_type_array)) return fail(DATAERR, "%s: not an array", key);
    for (size_t i = 0; i < json_object_array_length(*out); i++)
        if (!json_object_is_type(json_object_array_get_idx(*out, i), json_type_string))
            return fail(DATAERR, "%s[%zu]: not a string", key, i);
    return OK;
}

// Sets the group's sample_id to the string or the number of a key, or to the line number if there is no such key.
static status format_sample_id(struct group *group, json_object *record, const char *key, size_t line) {
    json_object *value = json_object_object_get(record, key);
    struct buf printed = {0};
    status result;
    if (!value)
        result = buf_printf(&printed, "%zu", line);
    else if (json_object_is_type(value, json_type_string))
        result = buf_append(&printed, json_object_get_string(value), (size_t)json_object_get_string_len(value));
    else if (json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double))
        result = json_print(&printed, value);
    else
        result = fail(DATAERR, "%s: neither a string nor a number", key);
    if (result == OK) result = group_string(group, &group->sample_id, printed.data, printed.size);
    buf_release(&printed);
    return result;
}

// Sets *out to the path, below media_root if the path is relative; file:// in front of it stays.
static status format_media_path(const struct format_options *options, struct group *group, struct string path,
                                struct string *out) {
    static const char scheme[] = "file://";
    bool has_scheme = path.size >= sizeof scheme - 1 && !memcmp(path.data, scheme, sizeof scheme - 1);
    struct string bare = has_scheme ? string_slice(path, sizeof scheme - 1, path.size) : path;
    if (!options->media_root || (bare.size && bare.data[0] == '/'))
        return group_string(group, out, path.data, path.size);
    struct buf joined = {0};
    status result = buf_printf(&joined, "%s%s/", has_scheme ? scheme : "", options->media_root);
    if (result == OK) result = buf_append(&joined, bare.data, bare.size);
    if (result == OK) result = group_string(group, out, joined.data, joined.size);
    buf_release(&joined);
    return result;
}

// The media of one record before its message is made.
struct format_media {
    enum part_kind kinds[MAX_MEDIA];
    struct string paths[MAX_MEDIA];
    size_t count;
};

// Makes the group's prompt: one user message, first the media, then the question as the template renders it. Checks the
// solution against the problem type.
static status format_prompt(const struct format_options *options, struct group *group, enum problem_type type,
                            const struct format_media *media, struct string question, struct string solution) {
    struct prompt *prompt = &group->prompt;
    const char *type_name = problem_type_name(type);
    status result = solution_check(type, solution);
    if (result != OK) return fail_prefix(result, "solution");
    assert(media->count <= MAX_MEDIA);
    prompt->present = true;
    prompt->message_count = 1;
    prompt->messages = arena_alloc(&group->arena, sizeof *prompt->messages);
    if (!prompt->messages) return fail_oom();
    struct message *message = prompt->messages;
    message->part_count = media->count + 1;
    message->parts = arena_alloc(&group->arena, message->part_count * sizeof *message->parts);
    if (!message->parts) return fail_oom();
    TRY(group_string(group, &message->role, "user", 4));
    for (size_t i = 0; i < media->count; i++) {
        struct part *part = &message->parts[i];
        bool video = media->kinds[i] == PART_VIDEO;
        part->kind = media->kinds[i];
        TRY(group_string(group, &part->type, video ? "video" : "image", 5));
        TRY(format_media_path(options, group, media->paths[i], video ? &part->video : &part->image));
    }
    struct part *part = &message->parts[media->count];
    part->kind = PART_TEXT;
    TRY(group_string(group, &part->type, "text", 4));
    struct buf rendered = {0};
    result = options->template ? prompt_template_render(options->template, type, question, &rendered)
                               : buf_append(&rendered, question.data, question.size);
    if (result == OK) result = group_string(group, &part->text, rendered.data, rendered.size);
    buf_release(&rendered);
    TRY(result);
    TRY(group_string(group, &prompt->problem_type, type_name, strlen(type_name)));
    return group_string(group, &prompt->solution, solution.data, solution.size);
}

static status format_read_caravan(const struct format_options *options, json_object *record, size_t line,
                                  struct group **out) {
    const char *key = json_object_object_get(record, "sample_id") ? "sample_id" : "id";
    enum problem_type type;
    struct buf printed = {0};
    *out = NULL;

    // group_from_json requires an id, which a record may lack, so a copy with another id is parsed.
    json_object *copy = NULL, *id = json_object_new_string("-");
    status result = id && !json_object_deep_copy(record, &copy, NULL) ? OK : fail_oom();
    if (result == OK && json_object_object_add(copy, "id", id)) result = fail_oom();
    if (result == OK) id = NULL; // the copy owns it now
    if (result == OK) result = json_print(&printed, copy);
    if (result == OK) result = group_from_json(out, printed.data, printed.size);
    json_object_put(copy);
    json_object_put(id);
    buf_release(&printed);
    TRY(result);
    struct group *group = *out;
    const struct prompt *prompt = &group->prompt;
    group->requires = (struct requirement){0};
    group->trained = (struct trained){0};
    group->times = (struct string){0};
    group->quarantine = (struct quarantine){0};
    TRY_TO(result, failed, format_sample_id(group, record, key, line));
    for (size_t i = 0; i < prompt->message_count; i++)
        for (size_t k = 0; k < prompt->messages[i].part_count; k++) {
            struct part *part = &prompt->messages[i].parts[k];
            struct string *path = part->kind == PART_IMAGE ? &part->image : &part->video;
            if (part->kind != PART_TEXT) TRY_TO(result, failed, format_media_path(options, group, *path, path));
        }
    if (!problem_type_parse(prompt->problem_type, &type))
        TRY_TO(result, failed,
               fail(DATAERR, "prompt.problem_type: '%s' of sample %s is not one of " PROBLEM_TYPE_NAMES,
                    prompt->problem_type.data ? prompt->problem_type.data : "", group->sample_id.data));
    result = solution_check(type, prompt->solution);
    if (result != OK) TRY_TO(result, failed, fail_prefix(result, "prompt.solution"));
    return OK;
failed:
    group_free(out);
    return result;
}

// Draws three negatives without replacement and shuffles them with the answer, whose index becomes *right.
static status format_draw_choices(const struct format_options *options, const struct group *group, json_object *record,
                                  struct string choices[CHOICES], size_t *right) {
    json_object *negatives;
    struct string drawn[CHOICES];
    size_t order[CHOICES];
    TRY(format_string(record, "answer", false, &drawn[0]));
    TRY(format_strings(record, "negative_answers", &negatives));
    size_t count = json_object_array_length(negatives);
    if (count < NEGATIVES) return fail(DATAERR, "negative_answers: %zu, but %d are needed", count, NEGATIVES);
    struct arena arena = {0};
    size_t *shuffled = arena_alloc(&arena, count * sizeof *shuffled);
    if (!shuffled) return fail_oom();
    uint64_t key = rng_key(options->seed, group->sample_id.data);
    rng_shuffle(key, STREAM_NEGATIVES, count, shuffled);
    for (size_t i = 0; i < NEGATIVES; i++)
        drawn[i + 1] = json_string(json_object_array_get_idx(negatives, shuffled[i]));
    arena_release(&arena);
    rng_shuffle(key, STREAM_OPTIONS, CHOICES, order);
    for (size_t i = 0; i < CHOICES; i++) {
        choices[i] = drawn[order[i]];
        if (order[i] == 0) *right = i;
    }
    return OK;
}

// Adds the medium DIR/video_source/NAME, where NAME is the string of a key.
static status format_add_medium(struct group *group, struct format_media *media, enum part_kind kind, const char *dir,
                                json_object *record, const char *name_key) {
    struct string source, name;
    struct buf path = {0};
    assert(media->count < MAX_MEDIA);
    TRY(format_string(record, "video_source", false, &source));
    TRY(format_string(record, name_key, false, &name));
    status result = buf_printf(&path, "%s/", dir);
    if (result == OK) result = buf_append(&path, source.data, source.size);
    if (result == OK) result = buf_puts(&path, "/");
    if (result == OK) result = buf_append(&path, name.data, name.size);
    if (result == OK) result = group_string(group, &media->paths[media->count], path.data, path.size);
    media->kinds[media->count++] = kind;
    buf_release(&path);
    return result;
}

static status format_read_seed_bench_r1(const struct format_options *options, json_object *record, size_t line,
                                        struct group **out) {
    static const char *const keys[] = {"choice_a", "choice_b", "choice_c", "choice_d"};
    static_assert(sizeof keys / sizeof *keys == CHOICES, "one key per choice");
    struct string choices[CHOICES] = {0}, problem;
    struct buf question = {0};
    struct format_media media = {0};
    char solution[] = "<answer>A</answer>";
    size_t right = 0;
    status result;
    TRY(group_new(out));
    TRY_TO(result, done, format_sample_id(*out, record, "sample_id", line));
    if (json_object_object_get(record, "golden_choice_idx")) {
        struct string letter;
        for (size_t i = 0; i < CHOICES; i++) TRY_TO(result, done, format_string(record, keys[i], false, &choices[i]));
        TRY_TO(result, done, format_string(record, "golden_choice_idx", false, &letter));
        for (right = 0; right < CHOICES; right++)
            if (letter.size == 1 && (letter.data[0] == 'A' + (int)right || letter.data[0] == 'a' + (int)right)) break;
        if (right == CHOICES) TRY_TO(result, done, fail(DATAERR, "golden_choice_idx: not a letter from A to D"));
    } else {
        TRY_TO(result, done, format_draw_choices(options, *out, record, choices, &right));
    }
    TRY_TO(result, done, format_string(record, "question", false, &problem));
    TRY_TO(result, done, buf_append(&question, problem.data, problem.size));
    TRY_TO(result, done, buf_puts(&question, "Options:\n"));
    for (size_t i = 0; i < CHOICES; i++) {
        TRY_TO(result, done, buf_printf(&question, "%c. ", (char)('A' + i)));
        TRY_TO(result, done, buf_append(&question, choices[i].data, choices[i].size));
        TRY_TO(result, done, buf_puts(&question, "\n"));
    }
    json_object *progress = json_object_object_get(record, "task_progress_metadata");
    if (progress && !json_object_is_type(progress, json_type_array))
        TRY_TO(result, done, fail(DATAERR, "task_progress_metadata: not an array"));
    if (progress && json_object_array_length(progress))
        TRY_TO(result, done, format_add_medium(*out, &media, PART_VIDEO, "videos", record, "video_basename"));
    TRY_TO(result, done, format_add_medium(*out, &media, PART_IMAGE, "images", record, "current_observation_basename"));
    assert(right < CHOICES);
    solution[sizeof "<answer>" - 1] = (char)('A' + right);
    result = format_prompt(options, *out, PROBLEM_CHOICE, &media, (struct string){question.data, question.size},
                           string_of(solution));
done:
    buf_release(&question);
    if (result != OK) group_free(out);
    return result;
}

static status format_read_video_r1(const struct format_options *options, json_object *record, size_t line,
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

const struct format format_all[] = {
    {"caravan", true, format_read_caravan},
    {"seed-bench-r1", false, format_read_seed_bench_r1},
    {"video-r1", false, format_read_video_r1},
};
const size_t format_count = sizeof format_all / sizeof *format_all;

const struct format *format_find(const char *name) {
    for (size_t i = 0; i < format_count; i++)
        if (!strcmp(format_all[i].name, name)) return &format_all[i];
    return NULL;
}
