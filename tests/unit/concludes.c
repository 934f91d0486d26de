// The judge `concludes`: which option a thinking names last, and what is written into the group.
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/reward/verdict.h"
#include "tests/support/groups.h"

static struct string texts[] = {{"rinse the cloth", 15},
                                {"close the tap", 13},
                                {" tap\n", 5},
                                {"close the tap slowly", 20},
                                {"dry", 3},
                                {"B. wash", 7},
                                {"", 0},
                                {NULL, 0},
                                {"Rinse", 5}};
static const struct string_array options = {texts, sizeof texts / sizeof *texts}; // letters A to I

static void assert_option(const char *thinking, char wanted) {
    const char got = concludes_option(string_of(thinking), &options);
    if (got != wanted) print_error("'%s': %c instead of %c\n", thinking, got ? got : '-', wanted ? wanted : '-');
    assert_int_equal(got, wanted);
}

TEST(the_last_option_letter_of_a_sentence_counts) {
    assert_option("", 0);
    assert_option("nothing", 0);
    assert_option("It is C or D", 'D');
    assert_option("**C**", 'C');
    assert_option("\"B\" or (C)", 'C');
    assert_option("J is no option, K neither", 0);
    assert_option("C2 D_ DNA \xc3\x89"
                  "D D\xcc\x81 C's 'D D\xe2\x80\x99s \xd9\xa3"
                  "C",
                  0);
    assert_option("C\xe2\x80\x8b", 'C'); // a zero width space is no letter
    assert_option("I think", 0);
    assert_option("I\xc2\xa0 think", 0);
    assert_option("It is I Think", 'I');
    assert_option("So I.", 'I');
    assert_option("A knife", 0);
    assert_option("\"A knife", 0);
    assert_option("1. A knife", 0);   // a new sentence
    assert_option("1) A knife", 'A'); // here A is the second word
    assert_option("Take A knife", 'A');
    assert_option("A is", 0);
    assert_option("A, then", 'A');
    assert_option("(A) knife", 'A');
    assert_option("a b c [d] b)", 0);
    assert_option("(b)", 'B');
    assert_option("( b) (b", 0);
    assert_option("option b, Option\xc2\xa0 c", 'C');
    assert_option("adoption b, options b, optionb, option b2", 0);
    assert_option("option j", 0);
}

// The option may stand in any sentence of a long thinking, and the last one counts.
TEST(an_option_is_found_anywhere_in_a_long_thinking) {
    static const char filler[] = "They wait. ";
    for (int total = 250; total <= 1030; total += 130)
        for (int named = 0; named < total; named += named < total - 10 ? total / 5 : 1) {
            SCOPED(struct buf, buf_release) thinking = {0};
            for (int i = 0; i < total; i++) {
                const bool first = named > 100 && i == 50;
                buf_puts(&thinking, first ? "It is B. " : i == named ? "It is C. " : filler);
            }
            assert_option(thinking.data, 'C');
        }
}

TEST(an_option_is_found_by_its_text) {
    assert_option("They rinse the cloth", 'A');
    assert_option("they close the tap", 'B'); // C, "tap", is in it
    assert_option("they close the taps, rinse the clothes", 0);
    assert_option("the tap", 'C');
    assert_option("they close the tap slowly", 'D');
    assert_option("they close the tap, slowly", 'B');
    assert_option("rinse", 0);
    assert_option("Dry it, then dry it", 'E');
    assert_option("laundry dry_ drye\xcc\x81", 0);
    assert_option("dry's", 'E');
    assert_option("B. wash", 'F'); // longer than the letter
    assert_option("C: dry", 'E');
    assert_option("dry: C", 'C');
}

TEST(the_last_sentence_that_names_an_option_counts) {
    assert_option("It is C. The pan is hot. Nothing more!", 'C');
    assert_option("It is C\nA knife", 'C');
    assert_option("It is C.\rA knife", 'C');
    assert_option("It is C! A knife", 'C');
    assert_option("It is C!A knife", 'A');
    assert_option("It is C\xe3\x80\x82 A knife", 'C');
    assert_option("It is C\xe2\x80\xa6\xe3\x80\x80"
                  "A knife",
                  'C');
    assert_option("It is C. A knife", 'A'); // C stands alone, so the sentence goes on
    assert_option("It is (C). A knife", 'C');
    assert_option("It is TC. A knife", 0);
    assert_option("\xc3\x89. A knife", 'A'); // also a capital
    assert_option("U.S. A knife", 'A');
    assert_option("It is D. close\nthe tap", 'C');
    assert_option("I\nthink", 'I');
}

static struct group *make_group(const char *type, const char *given, const char *consistency, const char *text) {
    return group_of_format(
        "{\"id\":\"a\",\"sample_id\":\"s7\",\"prompt\":{\"messages\":[],\"problem_type\":\"%s\",\"solution\":"
        "\"\"%s},%s\"completions\":[{\"text\":\"%s\"}]}",
        type, given, consistency, text);
}

static void assert_verdict(const char *type, const char *given, const char *text, double verdict, const char *reason) {
    struct group *group =
        make_group(type, given, "\"consistency\":{\"verdict\":[0,0],\"probability\":[0.5],\"x\":1},", text);
    assert_int_equal(concludes_group(group), OK);
    const struct consistency *consistency = &group->consistency;
    assert_int_equal(consistency->verdict.count, 1);
    const double got = consistency->verdict.data[0];
    assert_true(isnan(verdict) ? isnan(got) : got >= verdict && got <= verdict);
    assert_string_equal(consistency->reason.data[0].data, reason);
    assert_string_equal(consistency->judge.data, "concludes");
    assert_true(consistency->probability.count == 1 && consistency->probability.data[0] >= 0.5);
    assert_true(string_equals(consistency->unknown.first->json, "1"));
    group_free(&group);
}

TEST(a_verdict_compares_what_is_concluded_with_the_answer) {
    const char *type = "multiple choice", *given = ",\"options\":[\"cup\",\"pan\",\"lid\"]";
    assert_verdict(type, given, "<think>It is C</think><answer>C</answer>", 1,
                   "the last option named is C, the answer is C");
    assert_verdict(type, given, "<think>the lid</think><answer>(C) lid</answer>", 1,
                   "the last option named is C, the answer is C");
    assert_verdict(type, given, "<think>It is B</think><answer>lid</answer>", 0,
                   "the last option named is B, the answer is C");
    assert_verdict(type, given, "<think>B</think><think>C</think><answer>C</answer>", 0,
                   "the last option named is B, the answer is C");
    assert_verdict(type, given, "<answer>C</answer>", NAN, "there is no thinking");
    assert_verdict(type, given, "<think>C<answer>C</answer>", NAN, "there is no thinking");
    assert_verdict(type, given, "</think><think>C<answer>C</answer>", NAN, "there is no thinking");
    assert_verdict(type, given, "<think></think><answer>C</answer>", NAN, "the thinking names no option");
    assert_verdict(type, given, "<think>C</think>C", NAN, "the answer names no option");
    assert_verdict(type, given, "<think>C</think><answer>pot</answer>", NAN, "the answer names no option");
    assert_verdict(type, "", "<think>C</think><answer>C</answer>", NAN, "the question has no options");
    assert_verdict(type, ",\"options\":[]", "<think>C</think><answer>C</answer>", NAN, "the question has no options");
    assert_verdict("OCR", given, "<think>C</think><answer>C</answer>", NAN, "the question is no multiple choice");
}

TEST(an_invalid_group_is_refused_with_its_sample) {
    SCOPED(struct group *, group_free) group = make_group("puzzle", "", "", "");
    assert_int_equal(concludes_group(group), DATAERR);
    assert_non_null(strstr(fail_text(), "sample s7: problem type 'puzzle' is not one of"));
    assert_false(group->consistency.present);
    group_completions(group, 0);
    assert_int_equal(concludes_group(group), DATAERR);
}
