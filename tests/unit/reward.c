// Compares rewards with the results of Python and its packages in tests/data/reward.json, which
// tests/parity/make_reward_golden.py writes. Another such file may be given on the command line.
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/config/methods.h"
#include "shared/config/stage_kinds.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"
#include "shared/reward/reward.h"
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
