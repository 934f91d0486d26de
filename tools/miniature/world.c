#include "tools/miniature/world.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "shared/base/rng.h"

struct task_words {
    const char *const *values;
    const char *questions[TENSES];
    const char *verb; // of the two facts
};

static const char *const colours[WORLD_VALUES] = {"red", "green", "blue", "yellow"};
static const char *const sides[WORLD_VALUES] = {"top", "right", "bottom", "left"};
static const char *const shapes[WORLD_VALUES] = {"circle", "square", "triangle", "cross"};
static const char *const steps[WORLD_VALUES] = {"none", "forward", "across", "back"};

static const struct task_words tasks[TASKS] = {
    [TASK_CHANGE] = {colours,
                     {"Which colour did the shape have at first?", "Which step does the colour take?",
                      "Which colour does the shape get next?"},
                     "the colour is"},
    [TASK_MOVE] = {sides,
                   {"Where was the shape at first?", "Which step does the shape take?",
                    "Where does the shape go next?"},
                   "the shape is"},
    [TASK_MEET] = {colours,
                   {"Which square did the ball meet at first?", "Which step does the ball take?",
                    "Which square does the ball meet next?"},
                   "the ball meets"},
    [TASK_HIDE] = {shapes,
                   {"Which shape hid in the box at first?", "Which step does the box take?",
                    "Which shape comes out of the box next?"},
                   "the box has"},
};

static const char facts_middle[] = ", then ", facts_end[] = ". ";
static const char *const conclusions[TENSES] = {"So it was ", "So the step is ", "So next is "};

// ---- chance ----

enum stream { STREAM_FIRST, STREAM_THEN, STREAM_PLACES, STREAM_SHAPE, STREAM_COLOUR };

struct story story_draw(uint64_t seed, const char *name, enum task task, enum look look) {
    struct story story = {.task = task, .look = look, .key = rng_key(seed, name)};
    size_t places[WORLD_VALUES];
    story.first = (int)rng_below(story.key, STREAM_FIRST, 0, WORLD_VALUES);
    story.then = (int)rng_below(story.key, STREAM_THEN, 0, WORLD_VALUES);
    story.shape = (int)rng_below(story.key, STREAM_SHAPE, 0, WORLD_VALUES);
    story.colour = (int)rng_below(story.key, STREAM_COLOUR, 0, WORLD_VALUES);
    rng_shuffle(story.key, STREAM_PLACES, WORLD_VALUES, places);
    for (int i = 0; i < WORLD_VALUES; i++) story.places[i] = (int)places[i];
    return story;
}

// ---- words ----

const char *world_question(enum task task, enum tense tense) {
    return tasks[task].questions[tense];
}

const char *world_answer_name(enum task task, enum tense tense, int answer) {
    assert(answer >= 0 && answer < WORLD_VALUES);
    return tense == TENSE_PRESENT ? steps[answer] : tasks[task].values[answer];
}

int world_answer(enum tense tense, int first, int then) {
    const int step = (then - first + WORLD_VALUES) % WORLD_VALUES;
    switch (tense) {
    case TENSE_PAST:
        return first;
    case TENSE_PRESENT:
        return step;
    default:
        return (then + step) % WORLD_VALUES;
    }
}

void world_impression(struct buf *out, enum task task, enum tense tense, int answer, char letter) {
    buf_printf(out, "It looks like %s %c. ", world_answer_name(task, tense, answer), letter);
}

void world_conclusion(struct buf *out, enum tense tense, const char *answer, char letter) {
    buf_printf(out, "%s%s", conclusions[tense], answer);
    if (letter) buf_printf(out, " %c", letter);
    buf_puts(out, ".");
}

void world_reasoning(struct buf *out, enum task task, enum tense tense, int first, int then, int concluded,
                     char letter) {
    const struct task_words *words = &tasks[task];
    buf_printf(out, "At first %s %s%s%s%s", words->verb, words->values[first], facts_middle, words->values[then],
               facts_end);
    world_conclusion(out, tense, world_answer_name(task, tense, concluded), letter);
}

// Whether the text goes on with `word`; then *text is what follows.
static bool world_skip(struct string *text, const char *word) {
    const size_t size = strlen(word);
    if (text->size < size || memcmp(text->data, word, size) != 0) return false;
    *text = string_slice(*text, size, text->size);
    return true;
}

// Returns the index of the name that the text goes on with, -1 if it is none. No name begins with another one.
static int world_skip_name(struct string *text, const char *const *names) {
    for (int i = 0; i < WORLD_VALUES; i++)
        if (world_skip(text, names[i])) return i;
    return -1;
}

struct reading world_read(struct string thinking, enum task task, enum tense tense) {
    const struct task_words *words = &tasks[task];
    const char *const *answers = tense == TENSE_PRESENT ? steps : words->values;
    struct reading reading = {-1, -1, -1};
    while (thinking.size && !world_skip(&thinking, words->verb)) thinking = string_slice(thinking, 1, thinking.size);
    if (!world_skip(&thinking, " ")) return reading;
    reading.first = world_skip_name(&thinking, words->values);
    if (reading.first < 0 || !world_skip(&thinking, facts_middle)) return reading;
    reading.then = world_skip_name(&thinking, words->values);
    if (reading.then < 0 || !world_skip(&thinking, facts_end) || !world_skip(&thinking, conclusions[tense]))
        return reading;
    const int concluded = world_skip_name(&thinking, answers);
    if (!world_skip(&thinking, " ") || !thinking.size) return reading;
    const bool letter = thinking.data[0] >= 'A' && thinking.data[0] < 'A' + WORLD_VALUES; // of an option
    if (letter && string_equals(string_slice(thinking, 1, thinking.size), ".")) reading.concluded = concluded;
    return reading;
}

bool world_recognise(struct string question, enum task *task, enum tense *tense) {
    for (*task = 0; *task < TASKS; ++*task) {
        for (*tense = 0; *tense < TENSES; ++*tense) {
            struct string rest = question;
            if (world_skip(&rest, world_question(*task, *tense)) && (!rest.size || rest.data[0] == '\n')) return true;
        }
    }
    return false;
}
