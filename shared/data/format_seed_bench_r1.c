// The layout of SEED-Bench-R1's training and validation files.
//
// Negatives are drawn and options are shuffled by the sample's id, so that a sample has the same question wherever it
// stands in the file and in every epoch.
#include <assert.h>

#include "shared/base/rng.h"
#include "shared/data/format.h"

enum { CHOICES = 4, NEGATIVES = CHOICES - 1 };

enum { STREAM_NEGATIVES, STREAM_OPTIONS }; // of random numbers

// Draws three negatives without replacement and shuffles them with the answer, whose index becomes *right.
static status format_draw_choices(const struct format_options *options, const struct group *group, struct json *record,
                                  struct string choices[CHOICES], size_t *right) {
    struct json *negatives;
    struct string drawn[CHOICES];
    size_t order[CHOICES];
    TRY(format_string(record, "answer", false, &drawn[0]));
    TRY(format_strings(record, "negative_answers", &negatives));
    size_t count = json_count(negatives);
    if (count < NEGATIVES) return fail(DATAERR, "negative_answers: %zu, but %d are needed", count, NEGATIVES);
    struct arena arena = {0};
    size_t *shuffled = arena_alloc(&arena, count * sizeof *shuffled);
    uint64_t key = rng_key(options->seed, group->sample_id.data);
    rng_shuffle(key, STREAM_NEGATIVES, count, shuffled);
    for (size_t i = 0; i < NEGATIVES; i++) drawn[i + 1] = json_string(json_item(negatives, shuffled[i]));
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

status format_read_seed_bench_r1(const struct format_options *options, struct json *record, struct record_place place,
                                 struct group **out) {
    static const char *const keys[] = {"choice_a", "choice_b", "choice_c", "choice_d"};
    static_assert(sizeof keys / sizeof *keys == CHOICES, "one key per choice");
    struct string choices[CHOICES] = {0}, problem;
    struct buf text = {0};
    struct format_media media = FORMAT_NO_MEDIA;
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
        TRY(format_draw_choices(options, *out, record, choices, &right));
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
