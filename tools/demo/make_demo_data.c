// caravan make-demo-data DIR: makes data to try a training with: short clips of a moving shape that changes its
// colour (H.264, so that the real decoder is used), questions on them in the Video-R1 layout, supervised examples for a
// warm-up, and a text to learn a tokenizer from. A share of the warm-up's examples has a wrong reasoning or a wrong
// answer on purpose, so that reinforcement learning has something to improve.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "tools/demo/clip_writer.h"
#include "tools/tools.h"

enum { SIDE = 112, FRAME_COUNT = 16, RATE = 8, KINDS = 2, CHOICES = 4, MAX_WORDINGS = 4 };

static const char *const colours[CHOICES] = {"red", "green", "blue", "yellow"};
static const uint8_t colour_rgb[CHOICES][3] = {{210, 40, 40}, {40, 170, 60}, {50, 80, 220}, {225, 205, 50}};

// What one clip shows.
struct scene {
    int colour, new_colour; // index of colours[], in the first half of the clip and in the second
    int shape;              // circle, square, triangle, cross
    int direction;          // of its movement: left, right, up, down
    double x, y, size;      // the shape's centre in the middle of the clip, and half its width, in pixels
    int background;
};

struct question {
    const char *texts[MAX_WORDINGS]; // the same question in other words
    const char *reasoning;           // without the word and the full stop at its end
    const char *const *words;
};

static const struct question questions[KINDS] = {
    {{"What colour is the shape at first?", "At first, what is the colour of the shape?",
      "Which colour does the shape have at first?", "What is the first colour of the shape?"},
     "At first the shape is",
     colours},
    {{"What colour does the shape become?", "At last, what is the colour of the shape?",
      "Which colour does the shape have at last?", "What is the last colour of the shape?"},
     "The shape becomes",
     colours},
};

enum make_answers { MAKE_ANSWERS_REASONING, MAKE_ANSWERS_CLIP };

struct make_options {
    int64_t clips, held_out, examples, wordings;
    int answers; // enum make_answers
    double wrong_reasoning, wrong_answer;
    int64_t seed;
};

static const struct option make_options[] = {
    TOOL_OPTION(make_options, clips, OPTION_INT, "number of clips to train on", .default_value = "240", .low = 1,
                .high = 100000),
    TOOL_OPTION(make_options, held_out, OPTION_INT, "number of clips to test on", .default_value = "32",
                .high = 100000),
    TOOL_OPTION(make_options, examples, OPTION_INT, "number of supervised examples for a warm-up",
                .default_value = "4800", .high = 10000000),
    TOOL_OPTION(make_options, wordings, OPTION_INT,
                "wordings of each of the two questions; a clip and an example get one of them", .default_value = "1",
                .low = 1, .high = MAX_WORDINGS),
    TOOL_OPTION(make_options, wrong_reasoning, OPTION_NUMBER, "share of the examples with a wrong reasoning",
                .default_value = "0.1", .high = 1),
    TOOL_OPTION(make_options, answers, OPTION_CHOICE,
                "what an example's answer follows: its reasoning, or the clip even where the reasoning is wrong",
                .default_value = "reasoning", .choices = "reasoning|clip"),
    TOOL_OPTION(make_options, wrong_answer, OPTION_NUMBER,
                "share of the examples with an answer that contradicts what it follows", .default_value = "0.35",
                .high = 1),
    TOOL_OPTION(make_options, seed, OPTION_INT, "seed of all random numbers", .default_value = "1",
                .high = 9007199254740992.0),
    {0},
};
const struct option_table make_demo_data_table = {
    .program = "caravan make-demo-data",
    .operands = "DIR",
    .help = "makes clips of moving shapes with questions on them",
    .details = "Writes into DIR the clips, train.jsonl and held-out.jsonl (questions in the\n"
               "Video-R1 layout), warm-up.jsonl (supervised groups in the format caravan) and\n"
               "text.txt (a text to train a tokenizer on).\n",
    .options = make_options,
    .size = sizeof(struct make_options),
};

static struct scene scene_at(uint64_t key) {
    struct scene scene = {.colour = (int)rng_below(key, 1, 0, CHOICES), .shape = (int)rng_below(key, 3, 0, CHOICES)};
    scene.new_colour = (scene.colour + 1 + (int)rng_below(key, 2, 0, CHOICES - 1)) % CHOICES;
    assert(scene.new_colour != scene.colour);
    scene.direction = (int)rng_below(key, 4, 0, CHOICES);
    scene.x = SIDE * (0.4 + 0.2 * rng_uniform(key, 5, 0));
    scene.y = SIDE * (0.4 + 0.2 * rng_uniform(key, 5, 1));
    scene.size = SIDE * (0.16 + 0.06 * rng_uniform(key, 5, 2));
    scene.background = 90 + (int)rng_below(key, 6, 0, 80);
    return scene;
}

static status make_write_clip(const char *path, const struct scene *scene) {
    struct clip_writer *writer = NULL;
    const double half = scene->size;
    uint8_t *rgb;
    NEW(&rgb, SIDE * SIDE * 3);
    status result = clip_writer_open(&writer, path, SIDE, SIDE, RATE);
    for (int frame = 0; result == OK && frame < FRAME_COUNT; frame++) {
        double shift = SIDE * 0.5 * ((double)frame / (FRAME_COUNT - 1) - 0.5);
        double x = scene->x + (scene->direction == 0 ? -shift : scene->direction == 1 ? shift : 0);
        double y = scene->y + (scene->direction == 2 ? -shift : scene->direction == 3 ? shift : 0);
        const uint8_t *inside = colour_rgb[frame < FRAME_COUNT / 2 ? scene->colour : scene->new_colour];
        uint8_t *pixel = rgb;
        for (int row = 0; row < SIDE; row++) {
            for (int column = 0; column < SIDE; column++, pixel += 3) {
                const double dx = column - x, dy = row - y;
                const bool contained =
                    scene->shape == 0   ? dx * dx + dy * dy <= half * half
                    : scene->shape == 1 ? fabs(dx) <= 0.85 * half && fabs(dy) <= 0.85 * half
                    : scene->shape == 2
                        ? dy <= 0.8 * half && dy >= -half && fabs(dx) <= (dy + half) * 0.6
                        : (fabs(dx) <= half / 3 && fabs(dy) <= half) || (fabs(dy) <= half / 3 && fabs(dx) <= half);
                if (contained) {
                    memcpy(pixel, inside, 3);
                } else {
                    memset(pixel, scene->background, 3);
                }
            }
        }
        result = clip_writer_add(writer, rgb);
    }
    status closed = clip_writer_close(&writer);
    free(rgb);
    return result != OK ? result : closed;
}

static int scene_answer(const struct scene *scene, int kind) {
    return kind == 0 ? scene->colour : scene->new_colour;
}

// Returns the right choice, or with probability `share` one of the three others.
static int make_wrong(int right, double share, uint64_t key, uint64_t stream) {
    if (rng_uniform(key, stream, 0) >= share) return right;
    return (right + 1 + (int)rng_below(key, stream, 1, CHOICES - 1)) % CHOICES;
}

// Appends one supervised example: a group with one completion whose text is given, and advantage 1.
static void make_add_example(const struct make_options *given, struct buf *out, struct buf *corpus, int example,
                             int clip, const struct scene *scene) {
    uint64_t key = rng_key((uint64_t)given->seed ^ (uint64_t)example, "example");
    int kind = (int)rng_below(key, 0, 0, KINDS), right = scene_answer(scene, kind);
    const struct question *question = &questions[kind];
    int word = make_wrong(right, given->wrong_reasoning, key, 1);
    int letter = make_wrong(given->answers == MAKE_ANSWERS_CLIP ? right : word, given->wrong_answer, key, 2);
    char completion[128], reasoning[64];
    struct buf prompt = {0};
    const char *text = question->texts[rng_below(key, 3, 0, (uint64_t)given->wordings)];
    buf_printf(&prompt, "%sOptions:\\n", text);
    for (int i = 0; i < CHOICES; i++) buf_printf(&prompt, "%c. %s\\n", 'A' + i, question->words[i]);
    snprintf(reasoning, sizeof reasoning, "%s %s.", question->reasoning, question->words[word]);
    snprintf(completion, sizeof completion, "<think>%s</think><answer>%c</answer>", reasoning, 'A' + letter);
    buf_printf(out,
               "{\"v\": 1, \"id\": \"w-%06d\", \"sample_id\": \"w-%06d\", \"prompt\": {\"messages\": [{\"role\": "
               "\"user\", \"content\": "
               "[{\"type\": \"video\", \"video\": \"clips/%04d.mp4\"}, {\"type\": \"text\", \"text\": \"%s\"}]}], "
               "\"problem_type\": \"multiple choice\", \"solution\": \"<answer>%c</answer>\"}, "
               "\"completions\": [{\"text\": \"%s\", \"finish\": \"eos\"}], \"advantages\": [1]}\n",
               example, example, clip, prompt.data, 'A' + right, completion);
    for (char *c = prompt.data; *c; c++) {
        bool newline = c[0] == '\\' && c[1] == 'n';
        buf_append(corpus, newline ? "\n" : c, 1);
        c += newline;
    }
    buf_printf(corpus, "%s\n", completion);
    buf_release(&prompt);
}

status make_demo_data_main(struct subcommand_call *call) {
    const struct make_options *given = call->given;
    struct arena *memory = &call->arena;
    struct buf training = {0}, held_out = {0}, warm_up = {0}, corpus = {0};
    status result;
    const char *dir = call->list[0];
    char *path = path_join(memory, dir, "clips");
    TRY_TO(result, done, dir_make(path));
    for (int i = 0; i < given->clips + given->held_out; i++) {
        const uint64_t key = rng_key((uint64_t)given->seed + (uint64_t)i, "clip");
        struct scene scene = scene_at(key);
        path = arena_printf(memory, "%s/clips/%04d.mp4", dir, i);
        TRY_TO(result, done, make_write_clip(path, &scene));
        // A line of the Video-R1 layout for each question on the clip.
        struct buf *lines = i < given->clips ? &training : &held_out;
        for (int kind = 0; kind < KINDS; kind++) {
            const struct question *question = &questions[kind];
            const char *text = question->texts[rng_below(key, 7, (uint64_t)kind, (uint64_t)given->wordings)];
            buf_printf(lines,
                       "{\"problem_id\": %d, \"problem\": \"%s\", \"data_type\": \"video\", "
                       "\"problem_type\": \"multiple choice\", \"options\": [",
                       i * KINDS + kind, text);
            for (int k = 0; k < CHOICES; k++)
                buf_printf(lines, "%s\"%c. %s\"", k ? ", " : "", 'A' + k, question->words[k]);
            buf_printf(lines, "], \"path\": \"./clips/%04d.mp4\", \"solution\": \"<answer>%c</answer>\"}\n", i,
                       'A' + scene_answer(&scene, kind));
        }
    }
    for (int i = 0; i < given->examples; i++) {
        int clip = (int)rng_below((uint64_t)given->seed, 9, (uint64_t)i, (uint64_t)given->clips);
        struct scene scene = scene_at(rng_key((uint64_t)given->seed + (uint64_t)clip, "clip"));
        make_add_example(given, &warm_up, &corpus, i, clip, &scene);
    }
    TRY_TO(result, done, subcommand_write_file(dir, "train.jsonl", &training));
    TRY_TO(result, done, subcommand_write_file(dir, "held-out.jsonl", &held_out));
    TRY_TO(result, done, subcommand_write_file(dir, "warm-up.jsonl", &warm_up));
    TRY_TO(result, done, subcommand_write_file(dir, "text.txt", &corpus));
done:
    buf_release(&training);
    buf_release(&held_out);
    buf_release(&warm_up);
    buf_release(&corpus);
    return result;
}
