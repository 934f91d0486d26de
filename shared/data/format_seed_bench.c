// The SEED-Bench-R1 layout. Options and negatives are drawn by the sample's id, so that a sample asks the same question
// wherever it stands in the file and in every epoch.
#include <string.h>

#include "shared/base/rng.h"
#include "shared/data/format.h"

enum { CHOICES = 4, NEGATIVES = CHOICES - 1 };

enum { STREAM_NEGATIVES, STREAM_OPTIONS };

static status list_of_texts(json_object *record, const char *key, json_object **out) {
    *out = json_object_object_get(record, key);
    if (!*out) return fail(DATAERR, "%s: missing", key);
    if (!json_object_is_type(*out, json_type_array)) return fail(DATAERR, "%s: not a list", key);
    for (size_t i = 0; i < json_object_array_length(*out); i++)
        if (!json_object_is_type(json_object_array_get_idx(*out, i), json_type_string))
            return fail(DATAERR, "%s[%zu]: not a text", key, i);
    return OK;
}

// Draws three negatives without replacement and shuffles them with the answer, which options[0] is.
static status draw_options(const struct format_options *rules, const struct group *group, json_object *record,
                           struct string options[CHOICES], size_t *right) {
    json_object *negatives;
    struct string drawn[CHOICES];
    size_t order[CHOICES];
    TRY(format_string(record, "answer", false, &drawn[0]));
    TRY(list_of_texts(record, "negative_answers", &negatives));
    size_t count = json_object_array_length(negatives);
    if (count < NEGATIVES) return fail(DATAERR, "negative_answers: %zu, %d are needed", count, NEGATIVES);
    struct arena arena = {0};
    size_t *picked = arena_alloc(&arena, count * sizeof *picked);
    if (!picked) return fail_oom();
    uint64_t key = rng_key(rules->seed, group->sample_id.data);
    rng_shuffle(key, STREAM_NEGATIVES, count, picked);
    for (size_t i = 0; i < NEGATIVES; i++) {
        json_object *negative = json_object_array_get_idx(negatives, picked[i]);
        drawn[i + 1] = json_string(negative);
    }
    arena_release(&arena);
    rng_shuffle(key, STREAM_OPTIONS, CHOICES, order);
    for (size_t i = 0; i < CHOICES; i++) {
        options[i] = drawn[order[i]];
        if (order[i] == 0) *right = i;
    }
    return OK;
}

// choice_a..d in their order; golden_choice_idx is the right one's letter.
static status read_options(json_object *record, struct string options[CHOICES], size_t *right) {
    static const char *const keys[CHOICES] = {"choice_a", "choice_b", "choice_c", "choice_d"};
    struct string letter;
    for (size_t i = 0; i < CHOICES; i++) TRY(format_string(record, keys[i], false, &options[i]));
    TRY(format_string(record, "golden_choice_idx", false, &letter));
    for (*right = 0; *right < CHOICES; ++*right)
        if (letter.size == 1 && (letter.data[0] == 'A' + (int)*right || letter.data[0] == 'a' + (int)*right)) return OK;
    return fail(DATAERR, "golden_choice_idx: not a letter from A to D");
}

static status print_path(struct buf *out, const char *folder, json_object *record, const char *name_key) {
    struct string source, name;
    TRY(format_string(record, "video_source", false, &source));
    TRY(format_string(record, name_key, false, &name));
    TRY(buf_printf(out, "%s/", folder));
    TRY(buf_append(out, source.data, source.size));
    TRY(buf_puts(out, "/"));
    return buf_append(out, name.data, name.size);
}

static status add_path(struct group *group, struct media_paths *media, enum part_kind kind, json_object *record) {
    struct buf path = {0};
    status result = kind == PART_VIDEO ? print_path(&path, "videos", record, "video_basename")
                                       : print_path(&path, "images", record, "current_observation_basename");
    media->kinds[media->count] = kind;
    if (result == OK) result = group_string(group, &media->paths[media->count++], path.data, path.size);
    buf_release(&path);
    return result;
}

static status find_media(struct group *group, json_object *record, struct media_paths *media) {
    json_object *progress = json_object_object_get(record, "task_progress_metadata");
    if (progress && !json_object_is_type(progress, json_type_array))
        return fail(DATAERR, "task_progress_metadata: not a list");
    if (progress && json_object_array_length(progress)) TRY(add_path(group, media, PART_VIDEO, record));
    return add_path(group, media, PART_IMAGE, record);
}

// question, "Options:" and the options, each on a line of its own.
static status print_question(struct buf *out, json_object *record, const struct string options[CHOICES]) {
    struct string question;
    TRY(format_string(record, "question", false, &question));
    TRY(buf_append(out, question.data, question.size));
    TRY(buf_puts(out, "Options:\n"));
    for (size_t i = 0; i < CHOICES; i++) {
        TRY(buf_printf(out, "%c. ", (char)('A' + i)));
        TRY(buf_append(out, options[i].data, options[i].size));
        TRY(buf_puts(out, "\n"));
    }
    return OK;
}

static status make(const struct format_options *rules, json_object *record, size_t line, struct group *group,
                   struct buf *question) {
    struct string options[CHOICES] = {0};
    size_t right = 0;
    struct media_paths media = {0};
    TRY(format_sample_id(group, record, "sample_id", line));
    if (json_object_object_get(record, "golden_choice_idx"))
        TRY(read_options(record, options, &right));
    else
        TRY(draw_options(rules, group, record, options, &right));
    TRY(print_question(question, record, options));
    TRY(find_media(group, record, &media));
    char solution[] = "<answer>A</answer>";
    solution[sizeof "<answer>" - 1] = (char)('A' + right);
    return format_prompt(rules, group, PROBLEM_CHOICE, &media, (struct string){question->data, question->size},
                         (struct string){solution, sizeof solution - 1});
}

status format_seed_bench(const struct format_options *rules, json_object *record, size_t line, struct group **out) {
    struct buf question = {0};
    TRY(group_new(out));
    status result = make(rules, record, line, *out, &question);
    buf_release(&question);
    if (result != OK) group_free(out);
    return result;
}
