// caravan draw DIR: makes the miniature benchmark: clips of shapes that move, meet, change and hide, questions on them
// in SEED-Bench-R1's layout with its three levels, and supervised examples whose reasoning or answer is wrong at times.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/rng.h"
#include "shared/media/media.h"
#include "tools/demo/clip_writer.h"
#include "tools/miniature/world.h"
#include "tools/tools.h"

struct draw_options {
    int64_t training, validation, warm_up, letters, rules, review, pretraining, examples;
    double wrong_reasoning, wrong_answer;
    int64_t seed;
};

static const struct option draw_options[] = {
    TOOL_OPTION(draw_options, training, OPTION_INT, "clips to train on; each has three questions",
                .default_value = "400", .low = 1, .high = 100000),
    TOOL_OPTION(draw_options, validation, OPTION_INT, "clips of each of the three levels; each has three questions",
                .default_value = "128", .low = 1, .high = 100000),
    TOOL_OPTION(draw_options, warm_up, OPTION_INT, "clips of the supervised examples", .default_value = "1600",
                .low = 1, .high = 1000000),
    TOOL_OPTION(draw_options, letters, OPTION_INT, "examples of names and their letters, without clips",
                .default_value = "19200", .high = 10000000),
    TOOL_OPTION(draw_options, rules, OPTION_INT,
                "examples of what follows from facts, and of names and their letters, without clips",
                .default_value = "24000", .high = 10000000),
    TOOL_OPTION(draw_options, review, OPTION_INT, "more of these, most of them names and letters",
                .default_value = "19200", .high = 10000000),
    TOOL_OPTION(draw_options, pretraining, OPTION_INT, "examples on clips of the pretraining", .default_value = "16000",
                .high = 10000000),
    TOOL_OPTION(draw_options, examples, OPTION_INT, "examples of the warm-up, some of them with mistakes",
                .default_value = "3200", .high = 10000000),
    TOOL_OPTION(draw_options, wrong_reasoning, OPTION_NUMBER,
                "share of the warm-up's examples that state wrong facts after a right first impression",
                .default_value = "0.7", .high = 1),
    TOOL_OPTION(draw_options, wrong_answer, OPTION_NUMBER,
                "share of these that answer what they conclude, and not the first impression", .default_value = "0.1",
                .high = 1),
    TOOL_OPTION(draw_options, seed, OPTION_INT, "seed of all random numbers", .default_value = "1",
                .high = 9007199254740992.0),
    {0},
};
const struct option_table draw_table = {
    .program = "caravan draw",
    .operands = "DIR",
    .help = "makes a miniature of SEED-Bench-R1: clips of shapes, questions on three levels, supervised examples",
    .details = "Writes into DIR: annotations/training_6k.jsonl, training_with_cot_6k.jsonl and\n"
               "validation_L1.jsonl, _L2, _L3 (the layouts seed-bench-r1 and sft), videos/,\n"
               "images/, letters.jsonl, rules.jsonl, review.jsonl, pretraining.jsonl and\n"
               "warm-up.jsonl (sft), and text.txt (a text to train a tokenizer on).\n",
    .options = draw_options,
    .size = sizeof(struct draw_options),
};

static const char *const task_names[TASKS] = {"change", "move", "meet", "hide"};
static const char *const tense_names[TENSES] = {"past", "present", "next"};

enum draw_stream {
    STREAM_ORDER,
    STREAM_CLIP,
    STREAM_TENSE,
    STREAM_REASONING,
    STREAM_ANSWER,
    STREAM_WHICH,
    STREAM_IMPRESSION
};

// Shares of examples with mistakes.
struct mistakes {
    double reasoning;  // wrong facts, and what they imply as the conclusion; the answer is the first impression
    double answer;     // of these: the answer is what is concluded
    double impression; // of the others: another first impression; the answer is what is concluded
};

// Writes the clip of a story and, as the present observation, its last frame.
static status draw_media(const char *dir, const char *name, const struct story *story) {
    struct arena memory = {0};
    struct clip_writer *writer = NULL;
    uint8_t *rgb;
    NEW(&rgb, WORLD_SIDE * WORLD_SIDE * 3);
    status result = clip_writer_open(&writer, arena_printf(&memory, "%s/videos/miniature/%s.mp4", dir, name),
                                     WORLD_SIDE, WORLD_SIDE, WORLD_RATE);
    for (int frame = 0; result == OK && frame < WORLD_FRAMES; frame++) {
        story_frame(story, frame, rgb);
        result = clip_writer_add(writer, rgb);
    }
    const status closed = clip_writer_close(&writer);
    if (result == OK) result = closed;
    const struct frames last = {.count = 1, .height = WORLD_SIDE, .width = WORLD_SIDE, .pixels = rgb};
    if (result == OK)
        result = contact_sheet_write(&last, arena_printf(&memory, "%s/images/miniature/%s.png", dir, name));
    free(rgb);
    arena_release(&memory);
    return result;
}

// Sets names[] to the four possible answers, in the order of a question's options, and returns the right one's index.
static int draw_order(uint64_t key, const struct story *story, enum tense tense, const char *names[WORLD_VALUES]) {
    size_t order[WORLD_VALUES];
    const size_t right = (size_t)world_answer(tense, story->first, story->then);
    int index = 0;
    rng_shuffle(key, STREAM_ORDER, WORLD_VALUES, order);
    for (int i = 0; i < WORLD_VALUES; i++) {
        names[i] = world_answer_name(story->task, tense, (int)order[i]);
        if (order[i] == right) index = i;
    }
    return index;
}

static void draw_string(struct buf *out, const char *key, const char *value) {
    buf_printf(out, "\"%s\": ", key);
    json_print_string(out, value, strlen(value));
    buf_puts(out, ", ");
}

// Appends a line of the layout sft, with a clip unless that is NULL; to the corpus, unless it is NULL, prompt and
// response, there with a blank behind each tag: were ">B" one token, a model could not answer behind "<answer>" alone
// (reward.method refgen).
static void draw_line(struct buf *out, struct buf *corpus, const char *id, const char *clip, const struct buf *prompt,
                      const struct buf *response) {
    buf_printf(out, "{\"sample_id\": \"%s\", \"prompt\": [{\"role\": \"user\", \"content\": [", id);
    if (clip)
        buf_printf(out,
                   "{\"type\": \"video\", \"video\": \"videos/miniature/%s.mp4\"}, "
                   "{\"type\": \"image\", \"image\": \"images/miniature/%s.png\"}, ",
                   clip, clip);
    buf_puts(out, "{\"type\": \"text\", \"text\": ");
    json_print_string(out, prompt->data, prompt->size);
    buf_puts(out, "}]}], \"response\": ");
    json_print_string(out, response->data, response->size);
    buf_puts(out, "}\n");
    if (!corpus) return;
    buf_printf(corpus, "system\nYou are a helpful assistant.\nuser\n%sassistant\n", prompt->data);
    for (size_t i = 0; i < response->size; i++)
        buf_printf(corpus, "%c%s", response->data[i], response->data[i] == '>' ? " " : "");
    buf_puts(corpus, "\n");
}

// Returns the letter of a name among the options.
static char draw_letter(const char *const names[WORLD_VALUES], const char *name) {
    for (int i = 0; i < WORLD_VALUES; i++)
        if (names[i] == name) return (char)('A' + i);
    assert(!"a name among the options");
    return 0;
}

// Appends a reasoning that begins with an impression, and an answer: what is concluded, or the impression.
static void draw_response(struct buf *out, const char *const names[WORLD_VALUES], enum task task, enum tense tense,
                          int impression, int first, int then, bool answers_impression) {
    const int concluded = world_answer(tense, first, then);
    const char seen = draw_letter(names, world_answer_name(task, tense, impression));
    const char meant = draw_letter(names, world_answer_name(task, tense, concluded));
    buf_puts(out, "<think>");
    world_impression(out, task, tense, impression, seen);
    world_reasoning(out, task, tense, first, then, concluded, meant);
    buf_printf(out, "</think><answer>%c</answer>", answers_impression ? seen : meant);
}

// Appends a line of the layout sft, and prompt and response to the corpus: an example on a clip.
static void draw_example(struct buf *out, struct buf *corpus, const char *id, const char *clip,
                         const struct story *story, enum tense tense, struct mistakes mistakes) {
    const uint64_t key = rng_key(story->key, id);
    struct buf prompt = {0}, response = {0};
    const char *names[WORLD_VALUES];
    int first = story->first, then = story->then, impression = world_answer(tense, first, then);
    draw_order(key, story, tense, names);
    buf_printf(&prompt, "%s\nOptions:\n", world_question(story->task, tense));
    for (int i = 0; i < WORLD_VALUES; i++) buf_printf(&prompt, "%c. %s\n", 'A' + i, names[i]);
    // Another first value changes every answer; another second one by one place those of the present and next.
    const bool wrong = rng_uniform(key, STREAM_REASONING, 0) < mistakes.reasoning;
    if (wrong) {
        if (tense == TENSE_PAST || rng_below(key, STREAM_WHICH, 0, 2))
            first = (first + 1 + (int)rng_below(key, STREAM_REASONING, 1, WORLD_VALUES - 1)) % WORLD_VALUES;
        else
            then = (then + (rng_below(key, STREAM_REASONING, 1, 2) ? 1 : WORLD_VALUES - 1)) % WORLD_VALUES;
    } else if (rng_uniform(key, STREAM_IMPRESSION, 0) < mistakes.impression) {
        impression = (impression + 1 + (int)rng_below(key, STREAM_IMPRESSION, 1, WORLD_VALUES - 1)) % WORLD_VALUES;
    }
    draw_response(&response, names, story->task, tense, impression, first, then,
                  wrong && rng_uniform(key, STREAM_ANSWER, 0) >= mistakes.answer);
    draw_line(out, corpus, id, clip, &prompt, &response);
    buf_release(&prompt);
    buf_release(&response);
}

// Draws `count` clips of a part of the benchmark. Adds a line for each question on them to `lines`, and, unless it is
// NULL, an example without mistakes to `examples`.
static status draw_part(const struct draw_options *given, const char *dir, const char *part, int64_t count,
                        const char *level, enum task first_task, enum look look, struct buf *lines,
                        struct buf *examples) {
    for (int64_t i = 0; i < count; i++) {
        char clip[64], id[96];
        snprintf(clip, sizeof clip, "%s-%05lld", part, (long long)i);
        const struct story story = story_draw((uint64_t)given->seed, clip, first_task + (enum task)(i % 2), look);
        TRY(draw_media(dir, clip, &story));
        for (enum tense tense = 0; tense < TENSES; tense++) {
            struct arena memory = {0};
            const char *names[WORLD_VALUES], *sample = arena_printf(&memory, "%s-%s", clip, tense_names[tense]);
            const int right = draw_order(rng_key(story.key, tense_names[tense]), &story, tense, names);
            buf_puts(lines, "{");
            draw_string(lines, "sample_id", sample);
            draw_string(lines, "question", arena_printf(&memory, "%s\n", world_question(story.task, tense)));
            draw_string(lines, "video_source", "miniature");
            draw_string(lines, "video_basename", arena_printf(&memory, "%s.mp4", clip));
            draw_string(lines, "current_observation_basename", arena_printf(&memory, "%s.png", clip));
            draw_string(lines, "domain", task_names[story.task]);
            if (level) {
                draw_string(lines, "task_level", level);
                for (int k = 0; k < WORLD_VALUES; k++)
                    draw_string(lines, arena_printf(&memory, "choice_%c", 'a' + k), names[k]);
                draw_string(lines, "golden_choice_idx", arena_printf(&memory, "%c", 'A' + right));
            } else {
                draw_string(lines, "answer", names[right]);
                buf_puts(lines, "\"negative_answers\": [");
                for (int k = 1; k < WORLD_VALUES; k++)
                    buf_printf(lines, "%s\"%s\"", k > 1 ? ", " : "", names[(right + k) % WORLD_VALUES]);
                buf_puts(lines, "], ");
            }
            buf_printf(lines, "\"task_progress_metadata\": [{\"start_frame\": 0, \"stop_frame\": %d}]}\n",
                       WORLD_FRAMES - 1);
            arena_release(&memory);
            snprintf(id, sizeof id, "%s-%s-cot", clip, tense_names[tense]);
            if (examples) draw_example(examples, NULL, id, clip, &story, tense, (struct mistakes){0});
        }
    }
    return OK;
}

// The options of a question that is not asked.
struct option_list {
    enum task task;
    enum tense tense;
    const char *names[WORLD_VALUES]; // in the order of the letters
    int given[WORLD_VALUES], count;  // those that are in the list, by their places among the letters
};

// Draws a list, and appends it. If `some`, it has one to four options, with any letters.
static void draw_option_list(struct buf *out, struct option_list *list, uint64_t key, bool some) {
    size_t order[WORLD_VALUES], chosen[WORLD_VALUES];
    bool has[WORLD_VALUES] = {0};
    *list = (struct option_list){.task = (enum task)rng_below(key, STREAM_CLIP, 0, TASKS),
                                 .tense = (enum tense)rng_below(key, STREAM_TENSE, 0, TENSES)};
    const size_t count = some ? 1 + (size_t)rng_below(key, STREAM_IMPRESSION, 0, WORLD_VALUES) : WORLD_VALUES;
    rng_shuffle(key, STREAM_ORDER, WORLD_VALUES, order);
    rng_shuffle(key, STREAM_WHICH, WORLD_VALUES, chosen);
    for (size_t i = 0; i < count; i++) has[chosen[i]] = true;
    buf_puts(out, "Options:\n");
    for (int i = 0; i < WORLD_VALUES; i++) {
        list->names[i] = world_answer_name(list->task, list->tense, (int)order[i]);
        if (!has[i]) continue;
        list->given[list->count++] = i;
        buf_printf(out, "%c. %s\n", 'A' + i, list->names[i]);
    }
}

// Appends names of a list with their letters, then conclusions with answers.
static void draw_letters(struct buf *out, const struct option_list *list, uint64_t key, uint64_t names,
                         uint64_t conclusions) {
    for (uint64_t i = 0; i < names + conclusions; i++) {
        const int at = list->given[rng_below(key, STREAM_ANSWER, i, (uint64_t)list->count)];
        if (i < names) {
            buf_printf(out, " %s %c,", list->names[at], 'A' + at);
            continue;
        }
        buf_puts(out, "<think>");
        world_conclusion(out, list->tense, list->names[at], (char)('A' + at));
        buf_printf(out, "</think><answer>%c</answer>\n", 'A' + at);
    }
}

// What an example without a clip has: a sequence of words that repeats; options with names and conclusions, some
// options or all four; what follows from facts; or options with whole reasonings.
enum exercise { EXERCISE_ROUNDS, EXERCISE_SOME_LETTERS, EXERCISE_LETTERS, EXERCISE_RULES, EXERCISE_REASONINGS };

static void draw_exercise(struct buf *out, struct buf *corpus, uint64_t seed, enum exercise exercise, int64_t index) {
    static const char *const names[] = {"rounds", "some-letters", "letters", "rules", "reasonings"};
    struct buf prompt = {0}, response = {0};
    struct option_list list;
    char id[64];
    snprintf(id, sizeof id, "%s-%06lld", names[exercise], (long long)index);
    const uint64_t key = rng_key(seed, id);
    switch (exercise) {
    case EXERCISE_ROUNDS:
        buf_puts(&prompt, "Which words come again?\n");
        // A sequence of names and letters that repeats.
        enum { WORDS = 48, SHORTEST = 4, LONGEST = 12 };
        const uint64_t round = SHORTEST + rng_below(key, STREAM_WHICH, 0, LONGEST - SHORTEST + 1);
        for (uint64_t i = 0; i < WORDS; i++) {
            const uint64_t word = i % round, value = rng_below(key, STREAM_REASONING, word, WORLD_VALUES);
            if (rng_below(key, STREAM_TENSE, word, 5) == 0)
                buf_printf(&response, " %c", (char)('A' + value));
            else
                buf_printf(&response, " %s",
                           world_answer_name((enum task)rng_below(key, STREAM_CLIP, word, TASKS),
                                             rng_below(key, STREAM_ANSWER, word, 4) ? TENSE_PAST : TENSE_PRESENT,
                                             (int)value));
        }
        break;
    case EXERCISE_SOME_LETTERS:
    case EXERCISE_LETTERS:
        buf_puts(&prompt, "Which letters do these have?\n");
        draw_option_list(&prompt, &list, key, exercise == EXERCISE_SOME_LETTERS);
        draw_letters(&response, &list, key, 12, 2);
        break;
    case EXERCISE_RULES:
        buf_puts(&prompt, "What follows?\n");
        // What follows from made-up facts, without letters.
        enum { RULES = 10 };
        for (uint64_t i = 0; i < RULES; i++) {
            const enum task task = (enum task)rng_below(key, STREAM_CLIP, i, TASKS);
            const enum tense tense = (enum tense)rng_below(key, STREAM_TENSE, i, TENSES);
            const int first = (int)rng_below(key, STREAM_REASONING, 2 * i, WORLD_VALUES);
            const int then = (int)rng_below(key, STREAM_REASONING, 2 * i + 1, WORLD_VALUES);
            world_reasoning(&response, task, tense, first, then, world_answer(tense, first, then), 0);
            buf_puts(&response, "\n");
        }
        break;
    case EXERCISE_REASONINGS:
        buf_puts(&prompt, "Which letters do these have?\n");
        draw_option_list(&prompt, &list, key, false);
        draw_letters(&response, &list, key, 6, 0);
        // Reasonings on made-up facts. Half of them have any impression, and half of the answers follow it.
        enum { REASONINGS = 3 };
        for (uint64_t i = 0; i < REASONINGS; i++) {
            const int first = (int)rng_below(key, STREAM_REASONING, 2 * i, WORLD_VALUES);
            const int then = (int)rng_below(key, STREAM_REASONING, 2 * i + 1, WORLD_VALUES);
            int impression = world_answer(list.tense, first, then);
            if (rng_below(key, STREAM_IMPRESSION, 2 * i, 2))
                impression = (int)rng_below(key, STREAM_IMPRESSION, 2 * i + 1, WORLD_VALUES);
            draw_response(&response, list.names, list.task, list.tense, impression, first, then,
                          rng_below(key, STREAM_WHICH, i, 2));
            buf_puts(&response, "\n");
        }
        break;
    }
    draw_line(out, corpus, id, NULL, &prompt, &response);
    buf_release(&prompt);
    buf_release(&response);
}

// Writes the files of exercises. They take turns, so that none is forgotten.
static status draw_exercises(const struct draw_options *given, const char *dir, struct buf *corpus) {
    enum { LETTERS, RULES, REVIEW, PARTS };
    const struct {
        const char *file;
        int64_t count, turns;
        enum exercise turn[8];
    } parts[PARTS] = {
        [LETTERS] = {"letters.jsonl", given->letters, 2, {EXERCISE_ROUNDS, EXERCISE_SOME_LETTERS}},
        [RULES] = {"rules.jsonl",
                   given->rules,
                   8,
                   {EXERCISE_RULES, EXERCISE_LETTERS, EXERCISE_RULES, EXERCISE_ROUNDS, EXERCISE_SOME_LETTERS,
                    EXERCISE_RULES, EXERCISE_LETTERS, EXERCISE_LETTERS}},
        [REVIEW] = {"review.jsonl",
                    given->review,
                    6,
                    {EXERCISE_LETTERS, EXERCISE_SOME_LETTERS, EXERCISE_LETTERS, EXERCISE_ROUNDS, EXERCISE_LETTERS,
                     EXERCISE_RULES}},
    };
    struct buf lines = {0};
    int64_t exercise = 0;
    status result = OK;
    for (size_t part = 0; result == OK && part < PARTS; part++) {
        struct buf *text = part == REVIEW ? NULL : corpus; // the review has no words that are new
        buf_clear(&lines);
        for (int64_t i = 0; i < parts[part].count; i++, exercise++)
            draw_exercise(&lines, text, (uint64_t)given->seed, parts[part].turn[i % parts[part].turns], exercise);
        result = subcommand_write_file(dir, parts[part].file, &lines);
    }
    buf_release(&lines);
    return result;
}

// Draws the supervised examples on clips: all tasks, every other clip of each in each look. Before every fourth of the
// pretraining there are reasonings on made-up facts.
static status draw_supervised(const struct draw_options *given, const char *dir, struct buf *pretraining,
                              struct buf *warm_up, struct buf *corpus) {
    // In the pretraining every answer is right, whether the impression or the facts are wrong: so it follows the one as
    // often as the other where they disagree.
    const struct mistakes even = {.reasoning = 0.15, .impression = 0.15},
                          hasty = {.reasoning = given->wrong_reasoning, .answer = given->wrong_answer};
    const uint64_t key = rng_key((uint64_t)given->seed, "warm-up");
    struct story *stories;
    char clip[64], id[64];
    status result = OK;
    NEW(&stories, (size_t)given->warm_up);
    for (int64_t i = 0; result == OK && i < given->warm_up; i++) {
        snprintf(clip, sizeof clip, "warm-up-%05lld", (long long)i);
        stories[i] = story_draw((uint64_t)given->seed, clip, (enum task)(i % TASKS), (enum look)(i / TASKS % LOOKS));
        result = draw_media(dir, clip, &stories[i]);
    }
    for (int64_t i = 0; result == OK && i < given->pretraining + given->examples; i++) {
        const bool first = i < given->pretraining;
        if (first && i % 4 == 0) draw_exercise(pretraining, corpus, (uint64_t)given->seed, EXERCISE_REASONINGS, i / 4);
        const int64_t at = (int64_t)rng_below(key, STREAM_CLIP, (uint64_t)i, (uint64_t)given->warm_up);
        const enum tense tense = (enum tense)rng_below(key, STREAM_TENSE, (uint64_t)i, TENSES);
        snprintf(clip, sizeof clip, "warm-up-%05lld", (long long)at);
        snprintf(id, sizeof id, "%s-%06lld", first ? "pretraining" : "warm-up", (long long)i);
        draw_example(first ? pretraining : warm_up, corpus, id, clip, &stories[at], tense, first ? even : hasty);
    }
    free(stories);
    return result;
}

status draw_main(struct subcommand_call *call) {
    static const struct level {
        const char *name, *part, *file;
        enum task first_task;
        enum look look;
    } levels[] = {
        {"L1", "validation-L1", "validation_L1.jsonl", TASK_CHANGE, LOOK_PLAIN},
        {"L2", "validation-L2", "validation_L2.jsonl", TASK_CHANGE, LOOK_VARIOUS},
        {"L3", "validation-L3", "validation_L3.jsonl", TASK_MEET, LOOK_VARIOUS},
    };
    const struct draw_options *given = call->given;
    const char *dir = call->list[0], *annotations = path_join(&call->arena, dir, "annotations");
    struct buf lines = {0}, examples = {0}, corpus = {0};
    status result;
    TRY(dir_make(annotations));
    TRY(dir_make(path_join(&call->arena, dir, "videos/miniature")));
    TRY(dir_make(path_join(&call->arena, dir, "images/miniature")));
    TRY_TO(result, done,
           draw_part(given, dir, "training", given->training, NULL, TASK_CHANGE, LOOK_PLAIN, &lines, &examples));
    TRY_TO(result, done, subcommand_write_file(annotations, "training_6k.jsonl", &lines));
    TRY_TO(result, done, subcommand_write_file(annotations, "training_with_cot_6k.jsonl", &examples));
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        const struct level *level = &levels[i];
        buf_clear(&lines);
        TRY_TO(result, done,
               draw_part(given, dir, level->part, given->validation, level->name, level->first_task, level->look,
                         &lines, NULL));
        TRY_TO(result, done, subcommand_write_file(annotations, level->file, &lines));
    }
    TRY_TO(result, done, draw_exercises(given, dir, &corpus));
    buf_clear(&lines);
    buf_clear(&examples);
    TRY_TO(result, done, draw_supervised(given, dir, &lines, &examples, &corpus));
    TRY_TO(result, done, subcommand_write_file(dir, "pretraining.jsonl", &lines));
    TRY_TO(result, done, subcommand_write_file(dir, "warm-up.jsonl", &examples));
    result = subcommand_write_file(dir, "text.txt", &corpus);
done:
    buf_release(&lines);
    buf_release(&examples);
    buf_release(&corpus);
    return result;
}
