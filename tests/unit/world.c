// The world of the miniature benchmark: no short way to an answer, and words that say what they should.
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/rng.h"
#include "shared/reward/verdict.h"
#include "tools/miniature/world.h"

enum { FRAME_BYTES = WORLD_SIDE * WORLD_SIDE * 3 };

// For each combination of a task, a tense and two values.
#define EACH_CASE                                                                                                      \
    for (enum task task = 0; task < TASKS; task++)                                                                     \
        for (enum tense tense = 0; tense < TENSES; tense++)                                                            \
            for (int first = 0; first < WORLD_VALUES; first++)                                                         \
                for (int then = 0; then < WORLD_VALUES; then++)

TEST(the_last_frame_alone_does_not_tell_what_was_before) {
    uint8_t *shown, *expected;
    NEW(&shown, FRAME_BYTES);
    NEW(&expected, FRAME_BYTES);
    for (int i = 0; i < 24; i++) {
        char name[32];
        snprintf(name, sizeof name, "clip-%d", i);
        struct story story = story_draw(1, name, (enum task)(i % TASKS), (enum look)(i / TASKS % LOOKS));
        const int first = story.first, then = story.then;
        // The frames of the second moment, with each other value at first.
        for (int frame = 10; frame < WORLD_FRAMES; frame += 5) {
            story_frame(&story, frame, expected);
            for (story.first = 0; story.first < WORLD_VALUES; story.first++) {
                story_frame(&story, frame, shown);
                assert_memory_equal(shown, expected, FRAME_BYTES);
            }
            story.first = first;
        }
        // The frames of the first one, with each other value then.
        for (int frame = 0; frame <= 5; frame += 5) {
            story_frame(&story, frame, expected);
            for (story.then = 0; story.then < WORLD_VALUES; story.then++) {
                story_frame(&story, frame, shown);
                assert_memory_equal(shown, expected, FRAME_BYTES);
            }
            story.then = then;
        }
        // Each value looks like itself.
        story_frame(&story, WORLD_FRAMES - 1, expected);
        story.then = (then + 1) % WORLD_VALUES;
        story_frame(&story, WORLD_FRAMES - 1, shown);
        assert_memory_not_equal(shown, expected, FRAME_BYTES);
    }
    free(shown);
    free(expected);
}

TEST(no_answer_is_likelier_by_its_question_or_by_the_last_value) {
    enum { STORIES = 4800 };
    int counts[TASKS][TENSES][WORLD_VALUES][WORLD_VALUES] = {{{{0}}}}; // by the last value, then by the answer
    for (int i = 0; i < STORIES * TASKS; i++) {
        char name[32];
        snprintf(name, sizeof name, "clip-%d", i);
        const struct story story = story_draw(7, name, (enum task)(i % TASKS), LOOK_PLAIN);
        for (enum tense tense = 0; tense < TENSES; tense++)
            counts[story.task][tense][story.then][world_answer(tense, story.first, story.then)]++;
    }
    // 300 are expected in each; five standard deviations are 84.
    for (enum task task = 0; task < TASKS; task++)
        for (enum tense tense = 0; tense < TENSES; tense++)
            for (int then = 0; then < WORLD_VALUES; then++)
                for (int answer = 0; answer < WORLD_VALUES; answer++)
                    assert_in_range(counts[task][tense][then][answer], 300 - 84, 300 + 84);
}

TEST(a_reasoning_is_read_as_it_was_written) {
    EACH_CASE {
        for (int concluded = 0; concluded < WORLD_VALUES; concluded++) {
            struct buf text = {0};
            if (concluded % 2) world_impression(&text, task, tense, (first + 1) % WORLD_VALUES, 'B');
            const size_t begin = text.size;
            world_reasoning(&text, task, tense, first, then, concluded, 'C');
            struct reading reading = world_read((struct string){text.data, text.size}, task, tense);
            assert_int_equal(reading.first, first);
            assert_int_equal(reading.then, then);
            assert_int_equal(reading.concluded, concluded);
            // Cut anywhere, it states less.
            for (size_t size = 0; size < text.size; size++)
                assert_int_equal(world_read((struct string){text.data, size}, task, tense).concluded, -1);
            reading = world_read((struct string){text.data, begin + (text.size - begin) / 2}, task, tense);
            assert_int_equal(reading.then, -1);
            buf_release(&text);
        }
    }
}

TEST(the_conclusion_is_the_option_that_the_judge_concludes_finds) {
    EACH_CASE {
        struct buf text = {0};
        struct string names[WORLD_VALUES];
        const int answer = world_answer(tense, first, then);
        for (int i = 0; i < WORLD_VALUES; i++) names[i] = string_of(world_answer_name(task, tense, i));
        const struct string_array options = {names, WORLD_VALUES};
        world_reasoning(&text, task, tense, first, then, answer, (char)('A' + answer));
        assert_int_equal(concludes_option((struct string){text.data, text.size}, &options), 'A' + answer);
        buf_release(&text);
    }
}

TEST(a_step_goes_on_round_the_circle) {
    assert_int_equal(world_answer(TENSE_PAST, 3, 1), 3);
    assert_int_equal(world_answer(TENSE_PRESENT, 3, 1), 2);
    assert_int_equal(world_answer(TENSE_NEXT, 3, 1), 3);
    assert_int_equal(world_answer(TENSE_PRESENT, 0, 3), 3);
    assert_int_equal(world_answer(TENSE_NEXT, 0, 3), 2);
    assert_int_equal(world_answer(TENSE_PRESENT, 2, 2), 0);
    assert_int_equal(world_answer(TENSE_NEXT, 2, 2), 2);
}

TEST(a_question_says_its_task_and_tense) {
    enum task found_task;
    enum tense found_tense;
    for (enum task task = 0; task < TASKS; task++) {
        for (enum tense tense = 0; tense < TENSES; tense++) {
            char text[256];
            snprintf(text, sizeof text, "%s\nOptions:\nA. red\n", world_question(task, tense));
            assert_true(world_recognise(string_of(text), &found_task, &found_tense));
            assert_int_equal(found_task, task);
            assert_int_equal(found_tense, tense);
        }
    }
    assert_false(world_recognise(string_of("Which colour comes?"), &found_task, &found_tense));
    assert_false(world_recognise(string_of(""), &found_task, &found_tense));
}
