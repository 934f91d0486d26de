// The layout sft: what is learned of a record, with the tokens that transformers 4.51.3 gives for the whole
// conversation behind its last <|im_start|>assistant and newline.
#include "tests/unit/unit.h"

#include "shared/data/format.h"

static struct tokenizer *tokenizer;

static int open_tokenizer(void **state) {
    (void)state;
    return tokenizer_open(&tokenizer, "tests/data/tokenizer/plain") == OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    tokenizer_free(&tokenizer);
    return 0;
}

static status read_record(struct group **out, const char *text, const struct tokenizer *with) {
    const struct format_options options = {.media_root = "/m", .tokenizer = with};
    SCOPED(struct arena, arena_release) arena = {0};
    struct json *record;
    assert_int_equal(json_parse(&record, &arena, text, strlen(text)), OK);
    status result = format_read(format_find("sft"), &options, record, (struct record_place){.line = 9}, out);
    return result;
}

static void assert_learned(const struct group *group, const char *text, const int *tokens, size_t count) {
    assert_int_equal(group->completion_count, 1);
    const struct completion *completion = &group->completions[0];
    assert_string_equal(completion->text.data, text);
    assert_string_equal(completion->finish.data, "eos");
    assert_int_equal(completion->tokens.count, count);
    for (size_t i = 0; i < count; i++) assert_int_equal(completion->tokens.data[i], tokens[i]);
    assert_int_equal(group->advantages.count, 1);
    assert_true(group->advantages.data[0] == 1);
}

TEST(records_of_seed_bench_r1_become_tokens) {
    static const int tokens[] = {27, 297, 29,  40, 83,  299, 220, 127, 102, 158, 222, 99, 198, 198, 82,
                                 78, 272, 297, 29, 198, 27,  296, 29,  33,  272, 296, 29, 422, 198};
    static const char response[] = "<think>It's \xC3\xA9\xE2\x80\xA6\n\nso</think>\n<answer>B</answer>";
    SCOPED(struct group *, group_free) group = NULL;
    assert_int_equal(read_record(&group,
                                 "{\"sample_id\":\"s1\",\"prompt\":[{\"role\":\"system\",\"content\":\"S\"},"
                                 "{\"role\":\"user\",\"content\":[{\"type\":\"video\",\"video\":\"a.mp4\",\"fps\":2},"
                                 "{\"type\":\"image\",\"image\":\"/b.jpg\"},{\"type\":\"text\",\"text\":\"Which?\"}]}],"
                                 "\"response\":\"<think>It's \\u00e9\\u2026\\n\\nso</think>\\n<answer>B</answer>\"}",
                                 tokenizer),
                     OK);
    assert_learned(group, response, tokens, sizeof tokens / sizeof *tokens);
    assert_string_equal(group->sample_id.data, "s1");
    assert_string_equal(group->prompt.solution.data, "<answer>B</answer>");
    assert_string_equal(group->prompt.problem_type.data, "multiple choice");
    assert_int_equal(group->prompt.message_count, 2);
    const struct message *message = &group->prompt.messages[1];
    assert_int_equal(message->part_count, 3);
    assert_string_equal(message->parts[0].video.data, "/m/a.mp4");
    assert_string_equal(message->parts[1].image.data, "/b.jpg");
    assert_string_equal(message->parts[2].text.data, "Which?");
}

TEST(records_of_video_r1_become_tokens) {
    static const int tokens[] = {27, 297, 29, 64, 272, 297, 29, 198, 27, 296, 29, 19, 17, 272, 296, 29, 422, 198};
    SCOPED(struct group *, group_free) group = NULL;
    assert_int_equal(read_record(&group,
                                 "{\"problem_id\":7,\"problem\":\"Which?\",\"data_type\":\"video\",\"problem_type\":"
                                 "\"numerical\",\"options\":[],\"path\":\"./v/a.mp4\",\"process\":\"<think>a</think>\","
                                 "\"solution\":\"<answer>42</answer>\"}",
                                 tokenizer),
                     OK);
    assert_learned(group, "<think>a</think>\n<answer>42</answer>", tokens, sizeof tokens / sizeof *tokens);
    assert_string_equal(group->sample_id.data, "7");
    assert_string_equal(group->prompt.messages[0].parts[0].video.data, "/m/v/a.mp4");
    assert_string_equal(group->prompt.solution.data, "<answer>42</answer>");
    group_free(&group);
    // A sample that cannot be opened is quarantined as in the layout video-r1, and has nothing to learn.
    assert_int_equal(read_record(&group,
                                 "{\"problem\":\"Which?\",\"data_type\":\"sound\",\"problem_type\":\"numerical\","
                                 "\"path\":\"a\",\"process\":\"p\",\"solution\":\"<answer>42</answer>\"}",
                                 tokenizer),
                     OK);
    assert_true(group->quarantine.present);
    assert_int_equal(group->completion_count, 0);
}

TEST(records_without_id_or_answer_are_read) {
    static const int tokens[] = {33, 198, 422, 198};
    SCOPED(struct group *, group_free) group = NULL;
    // A plain string as content, no id, no answer; the response keeps its own newline.
    static const char odd[] = "{\"prompt\":[{\"role\":\"user\",\"content\":\"Which?\"}],\"response\":\"B\\n\"}";
    assert_int_equal(read_record(&group, odd, tokenizer), OK);
    assert_learned(group, "B\n", tokens, 4);
    assert_string_equal(group->sample_id.data, "9");
    assert_string_equal(group->prompt.solution.data, "");
    group_free(&group);
    assert_int_equal(read_record(&group, odd, NULL), OK);
    assert_null(group->completions[0].tokens.data);
    group_free(&group);
    assert_int_equal(
        read_record(&group,
                    "{\"prompt\":[{\"role\":\"user\",\"content\":[]}],\"response\":\"<answer>A</answer> or "
                    "<answer>B</answer> or <answer>\"}",
                    NULL),
        OK);
    assert_string_equal(group->prompt.solution.data, "");
}

TEST(mistakes_are_named) {
    static const struct {
        const char *record, *said;
    } cases[] = {
        {"{\"prompt\":[]}", "neither response nor process, so that nothing is to be learned"},
        {"{\"response\":\"x\"}", "prompt: missing"},
        {"{\"prompt\":\"x\",\"response\":\"x\"}", "prompt: not an array of messages"},
        {"{\"prompt\":[],\"response\":\"x\"}", "prompt: empty"},
        {"{\"prompt\":[{\"content\":\"x\"}],\"response\":\"x\"}", "not a group: prompt.messages[0].role: missing"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}],\"response\":\"x\"}",
         "not a group: prompt.messages[0].content[0].video: missing"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],\"response\":\"\"}", "response: empty"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],\"response\":7}", "response: not a string"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],\"response\":\"x\",\"sample_id\":[]}",
         "sample_id: neither a string nor a number"},
        {"{\"process\":\"\"}", "process: empty"},
        {"{\"process\":\"x\",\"problem\":\"?\"}", "problem_type: missing"},
        {"{\"process\":\"x\",\"problem\":\"?\",\"problem_type\":\"OCR\",\"data_type\":\"image\",\"path\":\"a\"}",
         "solution: missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct group *group;
        assert_int_equal(read_record(&group, cases[i].record, tokenizer), DATAERR);
        assert_null(group);
        assert_string_equal(fail_text(), cases[i].said);
    }
}

int main(void) {
    return unit_run(open_tokenizer, close_tokenizer);
}
