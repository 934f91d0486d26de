// The scores of an evaluation, on plain and on odd completions.
#include <math.h>
#include <time.h>
#include "tests/unit/unit.h"

#include "shared/base/json.h"
#include "shared/reward/accuracy.h"
#include "tests/support/groups.h"

// Makes a group of one completion; the strings must need no escapes in JSON.
static struct group *make_group(const char *type, const char *solution, const char *text) {
    SCOPED(struct buf, buf_release) line = {0};
    buf_puts(&line, "{\"id\":\"a\",\"sample_id\":\"s7\",\"prompt\":{\"messages\":[],\"problem_type\":");
    json_print_string(&line, type, strlen(type));
    buf_puts(&line, ",\"solution\":");
    json_print_string(&line, solution, strlen(solution));
    buf_puts(&line, "},\"scores\":{\"mine\":1.50,\"accuracy\":[9]},\"completions\":[{\"text\":");
    json_print_string(&line, text, strlen(text));
    buf_puts(&line, "}]}");
    struct group *group = group_of_json(line.data);
    return group;
}

static void assert_scores(const char *type, const char *truth, const char *text, double accuracy, double letter,
                          int parsed) {
    char solution[256];
    snprintf(solution, sizeof solution, "<answer>%s</answer>", truth);
    struct group *group = make_group(type, solution, text);
    assert_int_equal(score_group(group, false), OK);
    const struct scores *scores = &group->scores;
    const double got = scores->letter.data[0];
    if (!(fabs(scores->accuracy.data[0] - accuracy) <= 1e-12) || isnan(got) != isnan(letter) || got < letter ||
        got > letter || (int)scores->parsed.data[0] != parsed)
        print_error("'%s' against '%s': accuracy %g, letter %g\n", text, truth, scores->accuracy.data[0], got);
    assert_true(fabs(scores->accuracy.data[0] - accuracy) <= 1e-12);
    assert_true(isnan(letter) ? isnan(got) : got >= letter && got <= letter);
    assert_int_equal((int)scores->parsed.data[0], parsed);
    assert_int_equal((int)scores->correct.data[0], accuracy >= 1);
    group_free(&group);
}

TEST(multiple_choice_is_scored_by_letter) {
    const char *type = "multiple choice";
    assert_scores(type, "C", "<answer> C\n</answer>", 1, 1, 1);
    assert_scores(type, "C", "<answer>C.</answer>", 0, 1, 1);
    assert_scores(type, "C", "<answer>B</answer><answer>C</answer>", 0, 0, 1); // the first tag counts
    assert_scores(type, "C", "C", 1, 0, 0);                                    // the whole output
    assert_scores(type, "C", "\xe3\x80\x80 C\n", 1, 0, 0);
    assert_scores(type, "C", "<answer>C", 0, 0, 0);
    assert_scores(type, "C", "<answer> </answer>", 0, 0, 0);
    assert_scores(type, "C", "<answer></answer><answer>C</answer>", 0, 0, 0);
    assert_scores(type, "C", "", 0, 0, 0);
    assert_scores(type, "", "<answer>C</answer>", 0, NAN, 1); // no letter in the ground truth
    assert_scores(type, "cup", "<answer>cup</answer>", 1, NAN, 1);
    assert_scores(type, "(C) cup", "<answer>C cup</answer>", 0, 1, 1);
    struct group *group = make_group(type, "C", "<answer>C</answer>"); // a solution without the tag is none
    assert_int_equal(score_group(group, false), OK);
    assert_true(group->scores.accuracy.data[0] <= 0 && isnan(group->scores.letter.data[0]));
    group_free(&group);
}

TEST(the_option_letter_is_found) {
    static const struct {
        const char *answer;
        char letter;
    } cases[] = {
        {"D", 'D'},
        {"D.", 'D'},
        {"(D)", 'D'},
        {"[D", 'D'},
        {"D. rinse cloth", 'D'},
        {"C . close", 'C'},
        {"A knife", 'A'},
        {"D\xe3\x80\x82", 'D'},
        {"D\xc2\xa0x", 'D'},
        {"", 0},
        {"((D", 0},
        {"( D", 0},
        {"d", 0},
        {"D2", 0},
        {"D_", 0},
        {"Do", 0},
        {"D\xcc\x81", 0},
        {"D\xc3\xa9", 0},
        {"D\xd9\xa3", 0},
        {"\xd0\xa1", 0},
        {"\xef\xbc\xa4", 0},
        {"D\xe2\x80\x8b", 'D'},
        {"D\xc2\xb2", 0},
        {"D'", 'D'},
        {"*D*", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(option_letter(string_of(cases[i].answer)), cases[i].letter);
    struct string texts[] = {{0}, {"", 0}, string_of("cup"), string_of("cup")};
    const struct string_array options = {texts, 4};
    assert_int_equal(option_of_answer(string_of("cup"), &options), 'C');
    assert_int_equal(option_of_answer(string_of("A cup"), &options), 'A');
    assert_int_equal(option_of_answer(string_of("Cup"), &options), 0);
    assert_int_equal(option_of_answer(string_of(""), &options), 0);
}

TEST(numbers_are_compared_as_published) {
    assert_scores("numerical", "3.14", "<answer>3.141</answer>", 1, NAN, 1);
    assert_scores("numerical", "3", "<answer>3.0</answer>", 0, NAN, 1);
    assert_scores("numerical", "3", "3", 1, NAN, 0);
    assert_scores("numerical", "inf", "<answer>inf</answer>", 0, NAN, 1);
    assert_scores("regression", "4", "<answer>3</answer>", 0.5, NAN, 1);
    assert_scores("regression", "4", "\x1c 4.0\n", 1, NAN, 0);
    assert_scores("regression", "1,000", "<answer>1_000</answer>", 1, NAN, 1);
    assert_scores("regression", "4", "<answer>nan</answer>", 0, NAN, 1);
    assert_scores("regression", "4", "<answer>4 m</answer>", 0, NAN, 1);
    assert_scores("regression", "", "<answer>4</answer>", 0, NAN, 1);
    assert_scores("regression", "nan", "<answer>nan</answer>", 0, NAN, 1);
    assert_scores("regression", "1e39", "<answer>1e39</answer>", 0, NAN, 1); // infinite - infinite is NaN
    assert_scores("regression", "3", "<answer>1e39</answer>", 0, NAN, 1);
    assert_scores("regression", "0", "<answer>1e-9</answer>", 0.9, NAN, 1); // an error of 0.1 + 2e-8
    assert_scores("regression", "0", "<answer>-0.0</answer>", 1, NAN, 1);
}

TEST(regression_is_scored_by_relative_accuracy) {
    static const struct {
        double truth, number, tenths;
    } cases[] = {{3, 4, 4},    {4, 3, 5},    {2, 3, 0},   {2, 1, 0}, {-2, -2, 10},
                 {20, 21, 10}, {20, 19, 10}, {10, 11, 9}, {-2, 2, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double got = 10 * mean_relative_accuracy(cases[i].truth, cases[i].number);
        assert_true(fabs(got - cases[i].tenths) < 1e-9);
    }
}

TEST(the_released_scoring_is_reproduced) {
    static const char *const types[] = {"OCR", "free-form", "multiple choice", "regression"};
    for (int i = 0; i < 4; i++) {
        SCOPED(struct group *, group_free)
        group = make_group(types[i], "<answer>7</answer>", "<think>x</think><answer>7</answer>");
        assert_int_equal(score_group(group, true), OK);
        assert_int_equal((int)group->scores.accuracy.data[0], i > 1);
        assert_int_equal((int)group->scores.formatted.data[0], 1);
        assert_int_equal(group->scores.accuracy.count, 1);
        assert_true(string_equals(group->scores.unknown.first->json, "1.50"));
    }
    assert_scores("OCR", "no entry", "no entry", 1, NAN, 0);
    assert_scores("free-form", "no entry", "<answer>No entries</answer>", 1, NAN, 1);
}

TEST(an_output_of_many_words_is_scored_at_once) {
    enum { WORDS = 100000, SECONDS = 20 };
    SCOPED(struct buf, buf_release) output = {0};
    for (int i = 0; i < WORDS; i++) buf_printf(&output, "w%d ", i);
    const clock_t begun = clock(); // the processor's time: a busy machine may let it wait
    const double precision = 1.0 / WORDS, recall = 1 / 3.0;
    const double common = 2 * precision * recall / (precision + recall); // ROUGE-1 and ROUGE-L; ROUGE-2 is 0
    const double mean = rouge_mean(string_of("the w7 cat"), (struct string){output.data, output.size});
    assert_true(fabs(mean - 2 * common / 3) < 1e-12);
    assert_true(clock() - begun < SECONDS * CLOCKS_PER_SEC);
}

TEST(an_invalid_group_is_refused_with_its_sample) {
    SCOPED(struct group *, group_free) group = make_group("puzzle", "", "");
    assert_int_equal(score_group(group, false), DATAERR);
    assert_non_null(strstr(fail_text(), "sample s7: problem type 'puzzle' is not one of"));
    group->prompt.problem_type = (struct string){0};
    assert_int_equal(score_group(group, false), DATAERR);
    group_completions(group, 0);
    assert_int_equal(score_group(group, false), DATAERR);
    assert_non_null(strstr(fail_text(), "completions: empty"));
}
