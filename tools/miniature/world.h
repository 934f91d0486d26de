// The world of the miniature benchmark: what its clips show, what is asked about them, and the rule that answers.
//
// A clip is a story of two moments. Something has one of four values at first and one of four then. The values stand in
// a circle (red, green, blue, yellow, and red again; the sides clockwise), and the step from the first to the second
// is 0 to 3 places on, each as likely. What comes next is the same step again. So neither moment alone says anything
// about the other, about the step or about what comes next.
//
// Every number is drawn from the seed and the sample's name: rng.h.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"

enum {
    WORLD_VALUES = 4, // places of each circle
    WORLD_SIDE = 112, // of a frame, in pixels
    WORLD_FRAMES = 16,
    WORLD_RATE = 8 // frames a second: at 2 a second, of the four that are looked at, two show each moment
};

enum task {
    TASK_CHANGE, // a shape changes its colour
    TASK_MOVE,   // a shape moves from side to side
    TASK_MEET,   // a white ball meets one of four coloured squares, then another
    TASK_HIDE,   // a shape hides in a box, and another comes out
    TASKS
};

enum tense { TENSE_PAST, TENSE_PRESENT, TENSE_NEXT, TENSES };

// What a clip looks like beside its story.
enum look {
    LOOK_PLAIN,   // levels L1: one background, fixed colours, sizes and times, a still camera
    LOOK_VARIOUS, // levels L2 and L3: patterns, other colours, sizes and times, a moving camera, noise
    LOOKS
};

struct story {
    enum task task;
    enum look look;
    int first, then;          // index of the value at each moment
    int places[WORLD_VALUES]; // the corner of each value (meet), or places[0]: of the shape (change, hide)
    int shape, colour;        // of the one shape (change: shape; move: both; hide: colour)
    uint64_t key;             // of all chance
};

// Returns the story of a name: seed and name decide everything but task and look.
struct story story_draw(uint64_t seed, const char *name, enum task task, enum look look);

// Draws frame `index` (0 to WORLD_FRAMES - 1): rgb[WORLD_SIDE, WORLD_SIDE, 3]. The first moment lasts until a third of
// the clip at least, the second one begins at two thirds at the latest. A frame of the second moment depends on `first`
// in no pixel.
void story_frame(const struct story *story, int index, uint8_t *rgb);

// ---- words ----

// Returns the question of a tense about a task, without options.
const char *world_question(enum task task, enum tense tense);

// Returns the name of an answer: a value of the task, or, in the present tense, a step.
const char *world_answer_name(enum task task, enum tense tense, int answer);

// Returns the answer that the two moments imply: past: the first; present: the step from the first to the second; next:
// the second and the step again.
int world_answer(enum tense tense, int first, int then);

// Appends what a reasoning may begin with: a first impression of the answer and its letter, which the facts need not
// bear out.
void world_impression(struct buf *out, enum task task, enum tense tense, int answer, char letter);

// Appends what a reasoning concludes with: an answer and its letter, unless that is 0.
void world_conclusion(struct buf *out, enum tense tense, const char *answer, char letter);

// Appends a reasoning that states two facts and concludes with an answer and its letter, unless that is 0.
void world_reasoning(struct buf *out, enum task task, enum tense tense, int first, int then, int concluded,
                     char letter);

// What a reasoning says: the values stated, -1 where none is, and the answer concluded.
struct reading {
    int first, then, concluded;
};

// Reads a reasoning on a task and tense. What stands before the facts counts for nothing: a first impression, or how
// the sentence begins.
struct reading world_read(struct string thinking, enum task task, enum tense tense);

// Finds task and tense of a question (with its options or without). False if it is none of this world.
bool world_recognise(struct string question, enum task *task, enum tense *tense);
