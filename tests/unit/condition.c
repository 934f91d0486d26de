// Conditions on completions: what holds for which completion, and what is said of a mistake.
#include "tests/unit/unit.h"

#include "tests/support/groups.h"
#include "tools/groups/condition.h"

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

TEST(a_condition_holds_for_the_completions_with_such_a_value) {
    static const struct {
        const char *text;
        int holds; // bit i: for completion i
    } cases[] = {
        {"accuracy = 1", 1},
        {"rewards.accuracy<=0.1", 2},
        {"  accuracy  !=  1  ", 2}, // the third has none
        {"scores.accuracy = 1", 6},
        {"letter = 1", 1},
        {"consistency.verdict = 0", 2},
        {"total > -1e0", 7},
        {"total < 1", 4},
        {"advantages >= 0", 5},
        {"answer_logprob < -0.05", 5},
        {"logprobs = 2", 0}, // completions.logprobs comes first
        {"reference.logprobs = 2", 1},
        {"generated = C", 1},
        {"reason != ", 1},
        {"judge = concludes", 7},
        {"reference.version = 10", 7},
        {"step = 12", 7},
        {"finish = eos", 1},
        {"completions.finish != eos", 2},
        {"completions.tokens >= 1", 3},
        {"tokens < 2", 2},
        {"text >= x", 6},
        {"text < CC", 1},
        {"prompt_tokens = 3", 7},
        {"media = 1", 7},
        {"completions = 3", 7},
        {"options = 2", 7},
        {"messages = 1", 7},
        {"problem_type = multiple choice", 7},
        {"sample_id = it's", 7},
        {"id = e0-000001", 7},
        {"quarantine.reason != x", 0},
        {"level != x", 0},
        {"bonus = 0", 0},
    };
    SCOPED(struct group *, group_free) group = group_of_json(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct condition condition;
        int holds = 0;
        if (condition_parse(&condition, cases[i].text) != OK) assert_string_equal(fail_text(), cases[i].text);
        for (size_t k = 0; k < 4; k++) holds |= condition_holds(&condition, group, k) << k;
        if ((holds & 7) != cases[i].holds) print_error("%s\n", cases[i].text);
        assert_int_equal(holds & 7, cases[i].holds);
    }
}

TEST(a_mistake_is_said_with_the_condition) {
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", "'': expected FIELD OP VALUE, as in accuracy = 1"},
        {"= 1", "'= 1': expected FIELD OP VALUE, as in accuracy = 1"},
        {"acuracy = 1", "'acuracy = 1': no field has the name 'acuracy'"},
        {"1 = accuracy", "'1 = accuracy': no field has the name '1'"},
        {"rewards.acuracy = 1", "'rewards.acuracy = 1': no field has the name 'rewards.acuracy'"},
        {"rewards. = 1", "'rewards. = 1': no field has the name 'rewards.'"},
        {"a.b.c = 1", "'a.b.c = 1': no field has the name 'a.b.c'"},
        {"rewards = 1", "'rewards = 1': rewards cannot be compared"},
        {"media.frames = 1", "'media.frames = 1': media.frames cannot be compared"},
        {"answer_span = 1", "'answer_span = 1': answer_span cannot be compared"},
        {"times = 1", "'times = 1': times cannot be compared"},
        {"accuracy", "'accuracy': expected =, !=, <, <=, > or >= behind accuracy"},
        {"accuracy == 1", "'accuracy == 1': expected =, !=, <, <=, > or >= behind accuracy"},
        {"accuracy =", "'accuracy =': accuracy is compared with a number, not with ''"},
        {"accuracy = 1 and format = 1",
         "'accuracy = 1 and format = 1': accuracy is compared with a number, not with '1 and format = 1'"},
        {"accuracy = 1.", "'accuracy = 1.': accuracy is compared with a number, not with '1.'"},
        {"accuracy = 1e999", "'accuracy = 1e999': accuracy is compared with a number, not with '1e999'"},
        {"accuracy = 0x1", "'accuracy = 0x1': accuracy is compared with a number, not with '0x1'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct condition condition;
        assert_int_equal(condition_parse(&condition, cases[i].text), USAGE);
        assert_string_equal(fail_text(), cases[i].said);
    }
}

TEST(a_field_without_a_value_is_known) {
    struct condition condition;
    SCOPED(struct group *, group_free) group = group_of_json(text);
    SCOPED(struct buf, buf_release) path = {0};
    assert_int_equal(condition_parse(&condition, "bonus > 0"), OK);
    for (size_t k = 0; k < 3; k++) assert_false(condition_holds(&condition, group, k));
    assert_false(condition.seen);
    condition_path(&condition, &path);
    assert_string_equal(path.data, "rewards.bonus");
    assert_int_equal(condition_parse(&condition, "total > 9"), OK);
    assert_false(condition_holds(&condition, group, 0));
    assert_true(condition.seen);
}
