// Conditions on completions: what holds for which completion, and where a mistake is.
#include "tests/unit/unit.h"

#include "shared/group/condition.h"
#include "tests/support/groups.h"

// A group of three completions. The third has fewer values than the others.
static const char text[] =
    "{\"v\":1,\"id\":\"e0-000001\",\"sample_id\":\"it's\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":"
    "\"?\"}],\"problem_type\":\"multiple choice\",\"solution\":\"<answer>C</answer>\",\"options\":[\"a\",\"b\"]},"
    "\"media\":[{\"kind\":\"image\",\"key\":\"01\",\"frames\":1,\"height\":28,\"width\":56}],"
    "\"prompt_tokens\":[1,2,3],"
    "\"completions\":[{\"tokens\":[5,6],\"text\":\"C\",\"finish\":\"eos\"},{\"tokens\":[7],\"text\":\"\xC3\xA9\","
    "\"finish\":\"length\"},{\"text\":\"x\"}],"
    "\"reference\":{\"version\":10,\"answer_span\":[[1,2],null,null],\"answer_logprob\":[-0.1,null,-2],"
    "\"logprobs\":[[-1,-1],null],\"generated\":[\"C\",null,\"D\"]},"
    "\"consistency\":{\"verdict\":[1,0,null],\"reason\":[\"names C\",null,null],\"judge\":\"concludes\"},"
    "\"rewards\":{\"accuracy\":[1,0.1],\"format\":[1,1,0],\"total\":[2,1,0]},\"advantages\":[0.7,-0.7,0],"
    "\"scores\":{\"accuracy\":[0,1,1],\"letter\":[1,0,null]},\"trained\":{\"step\":12}}";

static void test_what_holds(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int holds; // bit i: for completion i
    } cases[] = {
        {"accuracy = 1 and format = 1", 1},
        {"rewards.accuracy<=0.1", 2},
        {"accuracy != 1", 2}, // the third has none
        {"not accuracy = 1", 6},
        {"not not accuracy = 1", 1},
        {"scores.accuracy = 1", 6},
        {"letter = 1 or consistency.verdict = 0", 3},
        {"format = 1 and accuracy = 1 or total = 0", 5},
        {"total = 0 or accuracy = 1 and format = 1", 5},
        {"(total = 0 or accuracy = 1) and format = 1", 1},
        {"not (total = 0 or accuracy = 1)", 2},
        {"not total = 0 and accuracy > -1e0", 3},
        {"1 = total", 2},
        {"scores.accuracy < rewards.accuracy", 1},
        {"advantages >= 0", 5},
        {"answer_logprob < -0.05", 5},
        {"logprobs = 2", 0}, // completions.logprobs comes first
        {"reference.logprobs = 2", 1},
        {"generated = 'C'", 1},
        {"reason != ''", 1},
        {"judge = 'concludes'", 7},
        {"reference.version = 10 and step = 12", 7},
        {"finish = 'eos'", 1},
        {"completions.finish != 'eos'", 2},
        {"completions.tokens >= 1", 3},
        {"tokens < 2", 2},
        {"text >= 'x'", 6},
        {"text < 'CC'", 1},
        {"prompt_tokens = 3 and media = 1 and completions = 3 and options = 2 and messages = 1", 7},
        {"problem_type = 'multiple choice'", 7},
        {"sample_id = 'it''s'", 7},
        {"'a' < 'b'\t and\n2 > 1", 7},
        {"trained.step = trained.step", 7},
        {"quarantine.reason = quarantine.reason or level = level or bonus = 0", 0},
        {"id = 'e0-000001'", 7},
    };
    struct group *group = group_of_json(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct condition *condition = NULL;
        int holds = 0;
        if (condition_parse(&condition, cases[i].text) != OK) assert_string_equal(fail_text(), cases[i].text);
        for (size_t k = 0; k < 4; k++) holds |= condition_holds(condition, group, k) << k;
        if ((holds & 7) != cases[i].holds) print_error("%s\n", cases[i].text);
        assert_int_equal(holds & 7, cases[i].holds);
        condition_free(&condition);
    }
    group_free(&group);
}

static void test_mistakes_have_their_column(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", "column 1: expected a number, a string or a field"},
        {"  ", "column 3: expected a number, a string or a field"},
        {"acuracy = 1", "column 1: no field has the name acuracy (a string is written 'acuracy')"},
        {"finish = eos", "column 10: no field has the name eos (a string is written 'eos')"},
        {"rewards.acuracy = 1", "column 1: no field has the name rewards.acuracy (a string is written "
                                "'rewards.acuracy')"},
        {"rewards. = 1", "column 1: no field has the name rewards. (a string is written 'rewards.')"},
        {"a.b.c = 1", "column 1: no field has the name a.b.c (a string is written 'a.b.c')"},
        {"rewards = 1", "column 1: rewards cannot be compared"},
        {"media.frames = 1", "column 1: media.frames cannot be compared"},
        {"answer_span = 1", "column 1: answer_span cannot be compared"},
        {"reference.answer_span = 1", "column 1: reference.answer_span cannot be compared"},
        {"times = 1", "column 1: times cannot be compared"},
        {"accuracy", "column 9: expected =, !=, <, <=, > or >="},
        {"accuracy == 1", "column 10: expected =, !=, <, <=, > or >="},
        {"accuracy =", "column 11: expected a number, a string or a field"},
        {"accuracy = and", "column 12: expected a number, a string or a field"},
        {"accuracy = 1 format = 1", "column 14: expected and, or, or the end"},
        {"accuracy = 1 and", "column 17: expected a number, a string or a field"},
        {"accuracy = 1 or or format = 1", "column 17: expected a number, a string or a field"},
        {"(accuracy = 1", "column 14: expected ), and, or or"},
        {"accuracy = 1)", "column 13: expected and, or, or the end"},
        {"accuracy = '1'", "column 12: a string, but a number is on the left"},
        {"finish = 1", "column 10: a number, but a string is on the left"},
        {"accuracy = 1.", "column 12: not a number"},
        {"accuracy = 1e999", "column 12: not a number"},
        {"accuracy = 0x1", "column 13: expected and, or, or the end"},
        {"accuracy = 'x", "column 12: the string has no end"},
        {"finish = '\xC3\xA9' & 1", "column 14: a character that no condition contains"},
        {"accuracy = \"1\"", "column 12: a character that no condition contains"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct condition *condition = NULL;
        assert_int_equal(condition_parse(&condition, cases[i].text), USAGE);
        assert_null(condition);
        assert_string_equal(fail_text(), cases[i].said);
    }
}

static void test_nesting_is_limited(void **state) {
    (void)state;
    struct condition *condition = NULL;
    struct buf nested = {0};
    for (int i = 0; i < 100; i++) buf_puts(&nested, "1 = 2 or 1 = 1 and (");
    buf_puts(&nested, "1 = 1");
    for (int i = 0; i < 100; i++) buf_puts(&nested, ")");
    assert_int_equal(condition_parse(&condition, nested.data), OK);
    struct group group = {0};
    assert_true(condition_holds(condition, &group, 0));
    condition_free(&condition);
    buf_clear(&nested);
    for (int i = 0; i < 101; i++) buf_puts(&nested, "not ");
    assert_int_equal(condition_parse(&condition, nested.data), USAGE);
    assert_string_equal(fail_text(), "column 401: nested too deeply");
    buf_release(&nested);
}

static void test_fields_without_a_value_are_named(void **state) {
    (void)state;
    struct condition *condition = NULL;
    struct group *group = group_of_json(text);
    struct buf missing = {0};
    assert_int_equal(condition_parse(&condition, "accuracy = 1 or bonus > 0 and level = 'L1'"), OK);
    for (size_t k = 0; k < 3; k++) condition_holds(condition, group, k);
    condition_missing(condition, &missing);
    assert_string_equal(missing.data, "rewards.bonus, prompt.level");
    buf_release(&missing);
    condition_free(&condition);
    condition_free(&condition);
    group_free(&group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_holds),
        cmocka_unit_test(test_mistakes_have_their_column),
        cmocka_unit_test(test_nesting_is_limited),
        cmocka_unit_test(test_fields_without_a_value_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
