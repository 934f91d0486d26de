// Compares rewards with the results of Python and its packages in tests/data/reward.json, which
// tests/parity/make_reward_golden.py writes. Another such file may be given on the command line.
// The judge `concludes`: which option a thinking names last, and what is written into the group.
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/config/methods.h"
#include "shared/config/stage_kinds.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"
#include "shared/reward/reward.h"
#include "shared/reward/verdict.h"
#include "tests/support/groups.h"

static struct json *golden;

static struct json *key(struct json *object, const char *name) {
    return json_at(object, name);
}

static const char *string_at(const struct json *array, size_t i) {
    return json_text(json_item(array, i));
}

TEST(white_space_is_that_of_python) {
    struct json *white = key(golden, "white");
    size_t next = 0, count = json_count(white);
    for (int32_t code = 0; code < 0x110000; code++) {
        bool wanted = next < count && json_int_or(json_item(white, next), -1) == code;
        if (python_isspace(code) != wanted) print_error("U+%04X\n", (unsigned)code);
        assert_true(python_isspace(code) == wanted);
        next += wanted;
    }
    assert_int_equal(next, count);
}

TEST(stems_are_those_of_nltk) {
    struct json *stems = key(golden, "stems");
    for (size_t i = 0; i < json_count(stems); i++) {
        struct json *pair = json_item(stems, i);
        char word[128] = {0};
        snprintf(word, sizeof word, "%s", string_at(pair, 0));
        word[porter_stem(word, strlen(word))] = 0;
        if (strcmp(word, string_at(pair, 1)) != 0) print_error("%s\n", string_at(pair, 0));
        assert_string_equal(word, string_at(pair, 1));
    }
}

static void assert_number(double value, const char *wanted) {
    double number = strtod(wanted, NULL);
    assert_true(isnan(number) ? isnan(value) : value == number);
}

TEST(floats_are_read_as_by_python) {
    struct json *numbers = key(golden, "numbers");
    for (size_t i = 0; i < json_count(numbers); i++) {
        struct json *row = json_item(numbers, i);
        double value = 0;
        const bool found = python_float(json_string(json_item(row, 0)), &value);
        if (found != (json_item(row, 1) != NULL)) print_error("%s\n", string_at(row, 0));
        assert_true(found == (json_item(row, 1) != NULL));
        if (found) assert_number(value, string_at(row, 1));
        if (found && isfinite(value)) assert_number(python_round2(value), string_at(row, 2));
    }
}

// Fills the options of the stage from what a row gives: a number, a word, a range [from, to], or null for none.
static void options_of(struct json *given, struct options *options, struct reward_options *values) {
    options_init(options, &stage_kinds[STAGE_REWARD].options, values);
    for (size_t i = 0; i < given->count; i++) {
        const struct json *value = json_at(given, given->items[i].key.data);
        const char *name = given->items[i].key.data;
        char text[64];
        const char *none = strcmp(name, "length_reward") != 0 ? "none" : "off";
        snprintf(text, sizeof text, "%s", value ? json_text(value) : none);
        if (json_is(value, JSON_ARRAY)) snprintf(text, sizeof text, "%s..%s", string_at(value, 0), string_at(value, 1));
        assert_int_equal(options_set(options, name, text), OK);
    }
}

static void assert_values(const struct double_array *got, struct json *wanted) {
    assert_true((got->data != NULL) == (wanted != NULL));
    if (!wanted || !got->data) return;
    assert_int_equal(got->count, json_count(wanted));
    for (size_t i = 0; i < got->count; i++)
        assert_true(fabs(got->data[i] - json_double_or(json_item(wanted, i), 0)) <= 1e-12);
}

static struct group *group_of(struct json *json) {
    SCOPED(struct buf, buf_release) line = {0};
    json_print(&line, json);
    struct group *group = group_of_json(line.data);
    return group;
}

TEST(rewards_are_those_of_the_released_code) {
    struct json *groups = key(golden, "groups");
    for (size_t i = 0; i < json_count(groups); i++) {
        struct json *row = json_item(groups, i), *rewards = key(row, "rewards");
        SCOPED(struct options, options_release) options = {0};
        struct reward_options values;
        options_of(key(row, "options"), &options, &values);
        SCOPED(struct group *, group_free) group = group_of(key(row, "group"));
        assert_int_equal(reward_group(group, &values), OK);
        assert_values(&group->rewards.accuracy, key(rewards, "accuracy"));
        assert_values(&group->rewards.format, key(rewards, "format"));
        assert_values(&group->rewards.length, key(rewards, "length"));
        assert_values(&group->rewards.bonus, key(rewards, "bonus"));
        assert_values(&group->rewards.consistency, key(rewards, "consistency"));
        assert_values(&group->rewards.total, key(rewards, "total"));
        assert_values(&group->advantages, key(row, "advantages"));
    }
}

static const char line[] =
    "{\"v\":1,\"id\":\"a\",\"sample_id\":\"s7\",\"prompt\":{\"messages\":[],\"problem_type\":\"%s\","
    "\"solution\":\"<answer>%s</answer>\"},\"completions\":[{\"text\":\"<answer>1</answer>\"}]%s}";

static void assert_method_refuses(int method, const char *type, const char *truth, const char *more, double shortest,
                                  const char *says) {
    struct group *group = group_of_format(line, type, truth, more);
    struct reward_options rules = {.method = method,
                                   .coefficient = 0.5,
                                   .margin = NAN,
                                   .upper_bound = 0.95,
                                   .length_reward = {shortest, shortest}};
    assert_int_equal(reward_group(group, &rules), DATAERR);
    if (!strstr(fail_text(), says)) print_error("%s\n", fail_text());
    assert_non_null(strstr(fail_text(), says));
    group_free(&group);
}

static void assert_refused(const char *type, const char *truth, const char *more, double shortest, const char *says) {
    assert_method_refuses(METHOD_CARE, type, truth, more, shortest, says);
}

TEST(an_invalid_group_is_refused_with_its_sample) {
    assert_refused("Numerical", "1", "", NAN, "sample s7: problem type 'Numerical'");
    assert_refused("regression", "inf", "", NAN, "sample s7");
    assert_refused("regression", "nan", "", NAN, "sample s7");
    assert_refused("OCR", "1", "", NAN, "reference: missing");
    assert_refused("OCR", "1", ",\"reference\":{}", NAN, "reference.answer_logprob: missing");
    assert_refused("OCR", "1", ",\"reference\":{\"answer_logprob\":[0,0]}", NAN, "2 for 1 completions");
    assert_refused("OCR", "1", ",\"reference\":{\"answer_logprob\":[0]}", 3, "completions[0].tokens: missing");
}

TEST(accurate_completions_are_above_a_bound_and_the_mean) {
    static const struct {
        double accuracy[3];
        bool accurate[3];
    } cases[] = {
        {{1, 0, 1}, {true, false, true}},
        {{0, 0, 0}, {false, false, false}},
        {{0.1, 0.1, 0.1}, {false, false, false}},
        {{0.1F, 0, 0}, {false, false, false}}, // above 0.1 as a double
        {{0.2, 0, 0}, {true, false, false}},
        {{0.9, 0.5, 0.2}, {true, false, false}},
        {{0.7, 0.7, 0.7 - 1e-7}, {true, true, true}}, // the last is below the mean by less than the tolerance
        {{0.7, 0.7, 0.7 - 1e-5}, {true, true, false}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double values[3];
        bool accurate[3];
        memcpy(values, cases[c].accuracy, sizeof values);
        reward_find_accurate(&(struct double_array){values, 3}, accurate);
        assert_memory_equal(accurate, cases[c].accurate, sizeof accurate);
    }
}

// What a method needs besides the completions.
TEST(a_method_says_what_it_needs) {
    static const struct {
        enum method_id method;
        const char *more, *says;
    } cases[] = {
        {METHOD_DENSECONS, "", "not a group: reference: missing"},
        {METHOD_DENSECONS, ",\"reference\":{\"answer_logprob\":[]}", "reference.answer_logprob: 0 for 1 completions"},
        {METHOD_REFGEN, "", "not a group: reference: missing"},
        {METHOD_REFGEN, ",\"reference\":{\"answer_logprob\":[0]}", "reference.generated: missing"},
        {METHOD_REFGEN, ",\"reference\":{\"generated\":[\"1\",null]}", "reference.generated: 2 for 1 completions"},
        {METHOD_CORA, "", "not a group: consistency.probability: missing"},
        {METHOD_CORA, ",\"consistency\":{\"verdict\":[1]}", "consistency.probability: missing"},
        {METHOD_CORA, ",\"consistency\":{\"probability\":[]}", "consistency.probability: 0 for 1 completions"},
        {METHOD_CORA, ",\"consistency\":{\"probability\":[1,1]}", "consistency.probability: 2 for 1 completions"},
        {METHOD_CORA, ",\"consistency\":{\"probability\":[null]}", "consistency.probability[0]: null"},
        {METHOD_CORA, ",\"consistency\":{\"probability\":[1.5]}", "consistency.probability[0]: 1.5 is not from 0 to 1"},
        {METHOD_CORA, ",\"consistency\":{\"probability\":[-1e-9]}", "consistency.probability[0]: -1e-09 is not"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_method_refuses((int)cases[i].method, "OCR", "1", cases[i].more, NAN, cases[i].says);
}

TEST(the_answer_and_its_form_are_found) {
    assert_int_equal(answer_extract(string_of("x<answer>")).size, 0);
    assert_int_equal(answer_extract(string_of("")).size, 0);
    struct string answer = answer_extract(string_of("<answer>\xe3\x80\x80 a b\x1c</answer></answer>"));
    assert_int_equal(answer.size, 3);
    assert_memory_equal(answer.data, "a b", 3);
    // The first tag counts, up to the next closing one: a wrong answer in a right form.
    const struct string twice = string_of("<think>green, <answer>B green.</think><answer>B</answer>");
    assert_true(string_equals(answer_extract(twice), "B green.</think><answer>B"));
    assert_true(format_matches(twice));
    assert_true(format_matches(string_of("<think></think><answer></answer>")));
    assert_true(format_matches(string_of("<think></think>x</think>\n<answer></answer>y</answer>")));
    assert_false(format_matches(string_of("<think></think><answer></answer>\n")));
    assert_false(format_matches(string_of("<think></think><answer>")));
    assert_false(format_matches(string_of("<think></answer>")));
    assert_false(format_matches(string_of("<think></think>\xe2\x80\x8b<answer></answer>"))); // U+200B
}

static struct string texts[] = {{"rinse the cloth", 15},
                                {"close the tap", 13},
                                {" tap\n", 5},
                                {"close the tap slowly", 20},
                                {"dry", 3},
                                {"B. wash", 7},
                                {"", 0},
                                {NULL, 0},
                                {"Rinse", 5}};
static const struct string_array lettered = {texts, sizeof texts / sizeof *texts}; // letters A to I

static void assert_option(const char *thinking, char wanted) {
    const char got = concludes_option(string_of(thinking), &lettered);
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

TEST(a_group_without_a_verdict_is_refused_with_its_sample) {
    SCOPED(struct group *, group_free) group = make_group("puzzle", "", "", "");
    assert_int_equal(concludes_group(group), DATAERR);
    assert_non_null(strstr(fail_text(), "sample s7: problem type 'puzzle' is not one of"));
    assert_false(group->consistency.present);
    group_completions(group, 0);
    assert_int_equal(concludes_group(group), DATAERR);
}

int main(int argc, char **argv) {
    SCOPED(struct arena, arena_release) arena = {0};
    SCOPED(struct buf, buf_release) data = {0};
    if (file_read(argc > 1 ? argv[1] : "tests/data/reward.json", &data) != OK ||
        json_parse(&golden, &arena, data.data, data.size) != OK) {
        print_error("%s\n", fail_text());
        return 1;
    }
    int failed = unit_run(NULL, NULL);
    return failed;
}
