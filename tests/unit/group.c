// The group: JSON and msgpack written and read back, what is refused, sections.
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/group/group.h"
#include "tests/support/groups.h"

#define PROMPT                                                                                                         \
    "\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"?\"}]}],"                 \
    "\"problem_type\":\"OCR\",\"solution\":\"<answer>x</answer>\"}"
#define HEAD "\"v\":1,\"id\":\"a\","

static const char whole[] =
    "{\"v\":1,\"id\":\"e0-000017\",\"sample_id\":\"s\",\"prompt\":{\"messages\":[{\"role\":\"system\",\"content\":"
    "\"plain\"},{\"role\":\"user\",\"content\":[{\"type\":\"video\",\"video\":\"a.mp4\",\"start\":0.5,\"end\":4,"
    "\"frame_rate\":3,\"fps\":2.50},{\"type\":"
    "\"image\",\"image\":\"file://b.png\"},{\"type\":\"text\",\"text\":\"é\\u0000\\\"\\\\\\n\"}],\"name\":null}],"
    "\"problem_type\":\"multiple "
    "choice\",\"solution\":\"<answer>C</answer>\",\"question\":\"?\\n\",\"options\":[\"a\",\"b\"],"
    "\"category\":\"Work\",\"level\":\"L3\",\"more\":[1,2.0,{\"x\":\"y\"}]},"
    "\"requires\":{\"policy\":3,\"reference\":2,\"exact\":1,\"order\":17},"
    "\"media\":[{\"kind\":\"video\",\"key\":\"00\",\"frames\":2,\"height\":28,\"width\":56,\"seconds_per_grid\":1,"
    "\"timestamps\":[0,0.1]},{\"kind\":\"image\",\"key\":\"01\",\"frames\":1,\"height\":28,\"width\":56}],"
    "\"prompt_tokens\":[1,2,151645],"
    "\"completions\":[{\"tokens\":[5,6],\"logprobs\":[-0.1,null],\"versions\":[3,3],\"text\":\"\",\"finish\":\"eos\"},"
    "{\"tokens\":[],\"text\":\"b\"}],"
    "\"reference\":{\"version\":10,\"answer_span\":[[1,2],null],\"answer_logprob\":[-0.1,null],"
    "\"answer_probability\":[0.9,null],\"logprobs\":[[-1e-07,16777216],null],\"generated\":[\"x\",null]},"
    "\"consistency\":{\"probability\":[0.25,0.3333333333333333],\"model\":\"0a\",\"verdict\":[1,null],"
    "\"reason\":[\"it names C\",null],\"judge\":\"concludes\"},"
    "\"rewards\":{\"accuracy\":[1,0],\"format\":[1,1],\"consistency\":[0.5,0],\"total\":[2,1]},\"advantages\":[0.7,-0."
    "7],"
    "\"scores\":{\"accuracy\":[1,0],\"letter\":[1,null],\"correct\":[1,0],\"parsed\":[1,1],\"formatted\":[1,0]},"
    "\"trained\":{\"step\":12},\"times\":{\"frames\":[1.5,2.5],\"rollout\":[2.5,3.5,2]},\"quarantine\":{\"stage\":"
    "\"frames\",\"reason\":\"r\"},"
    "\"z\":123456789012345678901234567890,\"a\":-0,\"pi\":3.14159265358979323846,\"e\":1E+2,\"w\":1.0,\"n\":null}";

static void assert_json(const struct group *group, const char *wanted) {
    SCOPED(struct buf, buf_release) json = {0};
    group_to_json(group, &json);
    assert_string_equal(json.data, wanted);
}

TEST(everything_comes_back) {
    struct group *first = group_of_json(whole), *second = NULL;
    assert_json(first, whole);
    SCOPED(struct buf, buf_release) packed = {0};
    group_to_msgpack(first, &packed);
    assert_int_equal(group_from_msgpack(&second, packed.data, packed.size), OK);
    assert_json(second, whole);
    group_free(&first);
    group_free(&second);
    assert_null(first);
}

TEST(fields_are_read) {
    SCOPED(struct group *, group_free) group = group_of_json(whole);
    assert_int_equal(group->requires.order, 17);
    assert_true(group->prompt.messages[0].plain);
    assert_int_equal(group->prompt.messages[1].parts[0].kind, PART_VIDEO);
    assert_int_equal(group->prompt.messages[1].parts[2].text.size, 6); // the NUL counts
    assert_true(isnan(group->media[1].seconds_per_grid));
    assert_true(isnan(group->completions[0].logprobs.data[1]));
    assert_null(group->completions[1].logprobs.data);
    assert_non_null(group->completions[1].tokens.data);
    assert_int_equal(group->completions[1].tokens.count, 0);
    assert_int_equal(group->reference.answer_span.data[1].first, -1);
    assert_null(group->reference.logprobs[1].data);
    assert_null(group->reference.generated.data[1].data);
}

TEST(null_and_integral_floats_are_read) {
    struct group *group =
        group_of_json("{\"id\":\"a\"," PROMPT ",\"quarantine\":null,\"media\":null,\"prompt_tokens\":[1.0,2e2]}");
    assert_false(group->quarantine.present);
    assert_null(group->media);
    assert_json(group, "{" HEAD PROMPT ",\"prompt_tokens\":[1,200]}");
    group_free(&group);
}

// Reads prompt_tokens of `count` zeros and one more element, and asserts what is written.
static void assert_tokens(size_t count, const char *element, const char *written) {
    SCOPED(struct buf, buf_release) json = {0}, wanted = {0};
    buf_puts(&json, "{" HEAD PROMPT ",\"prompt_tokens\":[");
    for (size_t i = 0; i < count; i++) buf_puts(&json, "0,");
    buf_append(&wanted, json.data, json.size);
    buf_printf(&json, "%s],\"seen\":true}", element);
    buf_printf(&wanted, "%s],\"seen\":true}", written);
    SCOPED(struct group *, group_free) group = group_of_json(json.data), packed = NULL;
    assert_json(group, wanted.data);
    assert_int_equal(group->prompt_tokens.count, count + 1);
    buf_clear(&json);
    group_to_msgpack(group, &json);
    assert_int_equal(group_from_msgpack(&packed, json.data, json.size), OK);
    assert_json(packed, wanted.data);
}

TEST(long_arrays_of_integers_come_back) {
    static const char *const same[] = {"9223372036854775807", "-9223372036854775808", "-7", "151643", "12345678"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) assert_tokens(100, same[i], same[i]);
    assert_tokens(100, " 7", "7");
    assert_tokens(100, "7 ", "7");
    assert_tokens(100, "7.0", "7");
    assert_tokens(100, "70e-1", "7");
    assert_tokens(100, "-0", "0");
    assert_tokens(2, "7", "7");
    static const char *const wrong[] = {"01", "1.5", "\"7\"", "null", "", "7,", "9223372036854775808", "[7]", "7;8"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        SCOPED(struct buf, buf_release) json = {0};
        struct group *group = NULL;
        buf_puts(&json, "{" HEAD PROMPT ",\"prompt_tokens\":[");
        for (int k = 0; k < 100; k++) buf_puts(&json, "151643,");
        buf_printf(&json, "%s]}", wrong[i]);
        assert_int_equal(group_from_json(&group, json.data, json.size), DATAERR);
        assert_null(group);
    }
}

// The text of an array is written only while the array is the one that was read.
TEST(integers_that_were_changed_are_written) {
    SCOPED(struct buf, buf_release) json = {0}, wanted = {0};
    buf_puts(&json, "{" HEAD PROMPT ",\"prompt_tokens\":[0");
    for (int i = 1; i < 64; i++) buf_printf(&json, ",%d", i);
    buf_puts(&json, "],\"completions\":[{\"tokens\":[0");
    for (int i = 1; i < 64; i++) buf_puts(&json, ",5");
    const size_t end = json.size;
    buf_puts(&json, "],\"text\":\"\"}]}");
    SCOPED(struct group *, group_free) group = group_of_json(json.data);
    assert_json(group, json.data);
    group->completions[0].tokens.count = 63; // one less
    buf_append(&wanted, json.data, end - 2);
    buf_puts(&wanted, "],\"text\":\"\"}]}");
    assert_json(group, wanted.data);
    GROUP_ARRAY(group, &group->prompt_tokens, 64);
    buf_clear(&wanted);
    buf_puts(&wanted, "{" HEAD PROMPT ",\"prompt_tokens\":[0");
    for (int i = 1; i < 64; i++) buf_puts(&wanted, ",0");
    buf_puts(&wanted, "]}");
    group->completions = NULL;
    assert_json(group, wanted.data);
}

// What is read in other forms than it is written in.
TEST(other_forms_of_the_same_json_are_read) {
    struct group *group =
        group_of_json(" { \"v\" : null , "
                      "\"id\":\"x\",\"id\":\"\\ud83d\\ude00\\ud83d\\u0041\\/"
                      "\\u00e9\",\"prompt\":{\"solution\":\"a\",\"level\":\"b\",\"messages\":[]},"
                      "\"prompt\" : { \"solution\" : \"\", \"messages\":[ ] } "
                      ",\t\"x\":1,\"z\":{\"a\":1,\"b\":2,\"a\":3},\"y\":[ 1 , \"\\u0041 b\" ],\"x\":{ },"
                      "\"trained\":{\"step\":1},\"trained\":null,\"sample_id\":\"a\",\"sample_id\":null,\"times\":{ },"
                      "\"prompt_tokens\":[1.0,2e2,-0,9223372036854775807,-9223372036854775808, 12345678901234567],"
                      "\"advantages\":[-0,1e-400,0.1e1,12345678901234567890,0.30000000000000004441,null,1E+22],"
                      "\"completions\":[{\"tokens\":[],\"logprobs\":[16777217,8388609.5,0.1,1e-45]}]}\r\n");
    assert_json(group, "{\"v\":1,\"id\":\"\xf0\x9f\x98\x80\xef\xbf\xbd"
                       "A/\xc3\xa9\",\"prompt\":{\"messages\":[],\"solution\":\"\"},\"prompt_tokens\":[1,200,0,"
                       "9223372036854775807,-9223372036854775808,12345678901234567],\"completions\":[{\"tokens\":[],"
                       "\"logprobs\":[16777216,8.38861e+06,0.1,1.4013e-45]}],\"advantages\":[-0.0,0,1,"
                       "1.2345678901234567e+19,0.30000000000000004,null,1e+22],\"times\":{},\"x\":{},\"z\":{\"a\":3,"
                       "\"b\":2},\"y\":[1,\"A b\"]}");
    group_free(&group);
}

TEST(what_is_not_a_group_is_refused_with_its_key) {
    static const struct {
        const char *json, *says;
    } lines[] = {
        {"", "not JSON"},
        {"[]", "not a group: not an object"},
        {"null", "not an object"},
        {"{}", "id: missing"},
        {"{" HEAD PROMPT ",}", "not JSON"},
        {"{" HEAD PROMPT "} x", "not JSON"},
        {"{" HEAD PROMPT ",\"x\":NaN}", "not JSON"},
        {"{" HEAD PROMPT ",\"x\":1.}", "not JSON"},
        {"{" HEAD PROMPT ",\"x\":01}", "not JSON"},
        {"{" HEAD PROMPT ",'x':1}", "not JSON"},
        {"{" HEAD PROMPT ",\"x\":\"\x01\"}", "control character"},
        {"{" HEAD PROMPT ",\"x\":\"\xff\"}", "not UTF-8"},
        {"{" HEAD PROMPT ",\"x\":\"\xed\xa0\x80\"}", "not UTF-8"},
        {"{" HEAD PROMPT ",\"x\\u0000\":1}", "NUL in a key"},
        {"{\"v\":2,\"id\":\"a\"," PROMPT "}", "v: not 1"},
        {"{\"v\":1,\"id\":7," PROMPT "}", "id: not a string"},
        {"{" HEAD "\"x\":1}", "prompt: missing"},
        {"{" HEAD "\"prompt\":[]}", "prompt: not an object"},
        {"{" HEAD "\"prompt\":{\"messages\":[]}}", "prompt.solution: missing"},
        {"{" HEAD "\"prompt\":{\"messages\":[{}],\"solution\":\"\"}}", "prompt.messages[0].role: missing"},
        {"{" HEAD "\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"sound\"}]}]}}",
         "prompt.messages[0].content[0].type: not text, image or video"},
        {"{" HEAD "\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}]}}",
         "content[0].video: missing"},
        {"{" HEAD
         "\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\",\"video\":\"a\",\"end\":"
         "\"4\"}]}]}}",
         "content[0].end: not a number"},
        {"{" HEAD PROMPT ",\"completions\":{}}", "completions: not an array"},
        {"{" HEAD PROMPT ",\"completions\":[{\"finish\":\"eos\"}]}", "completions[0].text: missing"},
        {"{" HEAD PROMPT ",\"completions\":[{\"text\":\"\"},{\"text\":3}]}", "completions[1].text: not a string"},
        {"{" HEAD PROMPT ",\"completions\":[{\"text\":\"\",\"tokens\":[1,\"2\"]}]}", "tokens[1]: not an integer"},
        {"{" HEAD PROMPT ",\"completions\":[{\"text\":\"\",\"tokens\":[1.5]}]}", "tokens[0]: not an integer"},
        {"{" HEAD PROMPT ",\"completions\":[{\"text\":\"\",\"tokens\":[99999999999999999999]}]}", "not an integer"},
        {"{" HEAD PROMPT ",\"completions\":[{\"text\":\"\",\"logprobs\":[1e39]}]}", "logprobs[0]: not a number"},
        {"{" HEAD PROMPT ",\"advantages\":[true]}", "advantages[0]: not a number"},
        {"{" HEAD PROMPT ",\"reference\":{\"answer_span\":[[2,1]]}}", "answer_span[0]: not [first, end]"},
        {"{" HEAD PROMPT ",\"trained\":{}}", "trained.step: missing"},
        {"{" HEAD PROMPT ",\"times\":[]}", "times: not an object"},
        {"{" HEAD PROMPT ",\"times\":{\"frames\":[1]}}", "times: not [in, out]"},
        {"{" HEAD PROMPT ",\"times\":{\"frames\":[1,2,0]}}", "times: not [in, out] or [in, out, replica]"},
        {"{" HEAD PROMPT ",\"times\":{\"frames\":[1,2,1.5]}}", "times: not [in, out] or [in, out, replica]"},
        {"{" HEAD PROMPT ",\"times\":{\"frames\":[1,2,3,4]}}", "times: not [in, out] or [in, out, replica]"},
        {"{" HEAD PROMPT ",\"times\":{\"frames\":[1,\"2\"]}}", "times: not [in, out]"},
        {"no json", "not JSON: unexpected character at byte 1"},
        {"{" HEAD PROMPT ",\"x\":[1,]}", "not JSON: unexpected character"},
        {"{" HEAD PROMPT ",\"x\":\"\\x\"}", "not JSON"},
        {"{" HEAD PROMPT ",\"media\":[,]}", "media[0]: not an object"},
        {"{" HEAD PROMPT ",\"prompt_tokens\":[1,]}", "not JSON: unexpected character"},
        {"{" HEAD PROMPT ",\"prompt_tokens\":[1 2]}", "not JSON: unexpected character"},
        {"{" HEAD PROMPT ",\"prompt_tokens\":[1", "not JSON: unexpected end"},
        {"{" HEAD PROMPT ",\"prompt_tokens\":[1,\"],,\"]}", "prompt_tokens[1]: not an integer"},
        {"{" HEAD PROMPT ",\"prompt_tokens\":[01]}", "not JSON: bad number"},
        {"{" HEAD PROMPT ",\"prompt_tokens\":[9223372036854775808]}", "prompt_tokens[0]: not an integer"},
        {"{" HEAD PROMPT ",\"advantages\":[1e999]}", "advantages[0]: not a number"},
        {"{" HEAD PROMPT ",\"trained\" {}}", "not JSON: unexpected character"},
        {"{" HEAD PROMPT ",\"sample_id\":\"\\u12g4\"}", "not JSON: invalid escape"},
        {"{" HEAD PROMPT ",\"sample_id\":\"a", "not JSON: unterminated string"},
        {"{" HEAD PROMPT ",\"sample_id\":nul}", "not JSON: unexpected character"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct group *group = NULL;
        assert_int_equal(group_from_json(&group, lines[i].json, strlen(lines[i].json)), DATAERR);
        assert_null(group);
        if (!strstr(fail_text(), lines[i].says)) print_error("%s: says %s\n", lines[i].json, fail_text());
        assert_non_null(strstr(fail_text(), lines[i].says));
        assert_non_null(strstr(fail_text(), "not a group"));
    }
}

TEST(deep_nesting_is_refused) {
    SCOPED(struct buf, buf_release) json = {0};
    buf_puts(&json, "{" HEAD PROMPT ",\"x\":");
    for (int i = 0; i < 100000; i++) buf_puts(&json, "[");
    struct group *group = NULL;
    assert_int_equal(group_from_json(&group, json.data, json.size), DATAERR);
}

TEST(a_section_comes_back_and_replaces_only_its_own) {
    SCOPED(struct group *, group_free) from = group_of_json(whole);
    SCOPED(struct group *, group_free) to = group_of_json("{" HEAD PROMPT ",\"advantages\":[3]}");
    SCOPED(struct buf, buf_release) packed = {0};
    group_section_to_msgpack(from, SECTION_REWARD, &packed);
    assert_int_equal(group_section_from_msgpack(to, SECTION_REWARD, packed.data, packed.size), OK);
    assert_json(to, "{" HEAD PROMPT ",\"rewards\":{\"accuracy\":[1,0],\"format\":[1,1],\"consistency\":[0.5,0],"
                    "\"total\":[2,1]},\"advantages\":[0.7,-0.7]}");
}

TEST(broken_msgpack_is_refused) {
    SCOPED(struct group *, group_free) from = group_of_json(whole);
    SCOPED(struct buf, buf_release) packed = {0};
    group_to_msgpack(from, &packed);
    struct group *to = NULL;
    for (size_t size = 0; size < packed.size; size++) {
        assert_int_equal(group_from_msgpack(&to, packed.data, size), DATAERR);
        assert_null(to);
    }
    assert_int_equal(group_from_msgpack(&to, "\xdd\xff\xff\xff\xff", 5), DATAERR);
}

// Reads a group whose last fields are `fields` and the msgpack of one value.
static status read_msgpack(struct group **group, const char *fields, const char *value, size_t size) {
    SCOPED(struct buf, buf_release) packed = {0};
    buf_puts(&packed, "\x84\xa2id\xa1x\xa6prompt\x82\xa8messages\x90\xa8solution\xa1y\xa9sample_id\xa1x");
    buf_puts(&packed, fields);
    buf_append(&packed, value, size);
    return group_from_msgpack(group, packed.data, packed.size);
}

// Reads a group with one completion of three tokens whose versions are this msgpack.
static status read_versions(struct group **group, const char *versions, size_t size) {
    return read_msgpack(group,
                        "\xab"
                        "completions\x91\x82\xa6tokens\x93\x05\x06\x07\xa8versions",
                        versions, size);
}

// Versions are written as runs. Each number for itself, and mixtures, are read as well.
TEST(versions_are_runs) {
    static const char *const good[] = {"\x93\x02\x02\x04", "\x92\x92\x02\x02\x04", "\x92\x92\x02\x02\x92\x01\x04"};
    static const char *const bad[] = {"\x91\x92\x04\x02",
                                      "\x92\x92\x03\x02\x02",
                                      "\x91\x92\x00\x02",
                                      "\x91\x92\xff\x02",
                                      "\x91\x91\x02",
                                      "\x91\x93\x01\x02\x03",
                                      "\x91\xa1z",
                                      "\x91\x92\x01\xa1z",
                                      "\x02",
                                      "\x91\x92\xcb\x3f\xf0\x30\x30\x30\x30\x30\x30\x02"};
    struct group *group = NULL;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(read_versions(&group, good[i], strlen(good[i])), OK);
        const struct int_array *versions = &group->completions[0].versions;
        assert_int_equal(versions->count, 3);
        assert_true(versions->data[0] == 2 && versions->data[1] == 2 && versions->data[2] == 4);
        SCOPED(struct buf, buf_release) packed = {0};
        group_to_msgpack(group, &packed);
        assert_non_null(memmem(packed.data, packed.size, good[2], strlen(good[2])));
        group_free(&group);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const size_t size = bad[i][1] == '\x92' && bad[i][2] == 0 ? 4 : strlen(bad[i]);
        assert_int_equal(read_versions(&group, bad[i], size), DATAERR);
        assert_non_null(strstr(fail_text(), "not a group"));
    }
}

// Reads a group whose prompt_tokens are this msgpack.
static status read_prompt_tokens(struct group **group, const char *tokens, size_t size) {
    return read_msgpack(group, "\xadprompt_tokens", tokens, size);
}

// Integers of 32 bits are written flat, others as an array; an array of any integers is read.
TEST(integers_are_flat) {
    static const char flat[] = "\xc4\x08\x05\x00\x00\x00\xff\xff\xff\x7f", wide[] = "\x92\x05\xce\x80\x00\x00\x00";
    static const struct {
        const char *read, *written;
        size_t read_size, written_size;
        int64_t second;
    } good[] = {{flat, flat, sizeof flat - 1, sizeof flat - 1, INT32_MAX},
                {"\x92\x05\xce\x7f\xff\xff\xff", flat, 7, sizeof flat - 1, INT32_MAX},
                {"\x92\x05\xd2\x80\x00\x00\x00", "\x05\x00\x00\x00\x00\x00\x00\x80", 7, 8, INT32_MIN},
                {wide, wide, sizeof wide - 1, sizeof wide - 1, (int64_t)INT32_MAX + 1}};
    struct group *group = NULL;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        SCOPED(struct buf, buf_release) packed = {0};
        assert_int_equal(read_prompt_tokens(&group, good[i].read, good[i].read_size), OK);
        assert_int_equal(group->prompt_tokens.count, 2);
        assert_true(group->prompt_tokens.data[0] == 5 && group->prompt_tokens.data[1] == good[i].second);
        group_to_msgpack(group, &packed);
        assert_non_null(memmem(packed.data, packed.size, good[i].written, good[i].written_size));
        group_free(&group);
    }
    assert_int_equal(read_prompt_tokens(&group, "\xc4\x05zzzzz", 7), DATAERR);
    assert_non_null(strstr(fail_text(), "prompt_tokens: not an array of integers"));
    assert_int_equal(read_prompt_tokens(&group, "\xc4\x08zzzz", 6), DATAERR);
}

TEST(a_group_is_checked_for_what_a_stage_needs) {
    SCOPED(struct group *, group_free) group = group_of_json("{" HEAD PROMPT "}");
    assert_int_equal(group_check(group, NEED_MEDIA), OK);
    assert_int_equal(group_check(group, NEED_COMPLETIONS), DATAERR);
    group_completions(group, 2);
    assert_int_equal(group_check(group, NEED_COMPLETIONS), DATAERR);
    for (int i = 0; i < 2; i++) group_string(group, &group->completions[i].text, "x", 1);
    assert_int_equal(group_check(group, NEED_COMPLETIONS | NEED_TARGETS), OK);
    assert_int_equal(group_check(group, NEED_REFERENCE), DATAERR);
    assert_int_equal(group_check(group, NEED_ADVANTAGES), DATAERR);
    GROUP_ARRAY(group, &group->advantages, 2);
    assert_int_equal(group_check(group, NEED_ADVANTAGES), OK);
    group->advantages.data[1] = NAN;
    assert_int_equal(group_check(group, NEED_ADVANTAGES), DATAERR);
}

TEST(a_quarantine_has_stage_and_valid_text) {
    SCOPED(struct group *, group_free) group = group_of_json("{" HEAD PROMPT "}");
    group_quarantine(group, "frames", "no \xff %d", 3);
    assert_json(group, "{" HEAD PROMPT ",\"quarantine\":{\"stage\":\"frames\",\"reason\":\"no \xef\xbf\xbd 3\"}}");
}

// Restores `dropped`, the answer to `whole`.
static status restore(const char *dropped, struct group **out) {
    SCOPED(struct group *, group_free) sent = group_of_json(whole);
    *out = group_of_json(dropped);
    return group_restore(*out, sent);
}

TEST(dropped_fields_come_back) {
    SCOPED(struct group *, group_free) group = NULL;
    // Everything of the table comes back; keys that the table does not know are the filter's to keep.
    assert_int_equal(restore("{\"id\":\"e0-000017\"," PROMPT ",\"requires\":{\"policy\":0,\"reference\":0,\"exact\":0,"
                             "\"order\":99},\"completions\":[{\"text\":\"new\"},{\"text\":\"b\",\"mine\":1}],"
                             "\"advantages\":[1,-1],\"times\":{},\"rewards\":{\"total\":[5,6]}}",
                             &group),
                     OK);
    assert_int_equal(group->requires.order, 17);
    assert_int_equal(group->trained.step, 12);
    assert_int_equal(group->times.count, 2);
    assert_string_equal(group->times.data[0].stage.data, "frames");
    assert_true(group->times.data[0].in == 1.5 && group->times.data[0].out == 2.5);
    assert_string_equal(group->sample_id.data, "s");
    assert_string_equal(group->prompt.problem_type.data, "OCR");
    assert_string_equal(group->prompt.category.data, "Work");
    assert_int_equal(group->prompt.message_count, 1);
    assert_int_equal(group->media_count, 2);
    assert_int_equal(group->prompt_tokens.count, 3);
    assert_string_equal(group->completions[0].text.data, "new");
    assert_int_equal(group->completions[0].tokens.data[1], 6);
    assert_string_equal(group->completions[0].finish.data, "eos");
    assert_string_equal(group->completions[1].unknown.first->key.data, "mine");
    assert_true(group->advantages.data[0] == 1 && group->rewards.total.data[1] == 6);
    assert_true(group->rewards.accuracy.data[0] == 1);
    assert_string_equal(group->reference.generated.data[0].data, "x");
    assert_string_equal(group->consistency.judge.data, "concludes");
    assert_null(group->unknown.first);
    group_free(&group);
    assert_int_equal(restore("{\"id\":\"b\"," PROMPT "}", &group), DATAERR);
    assert_string_equal(fail_text(), "the answer is group b, not e0-000017");
    group_free(&group);
    assert_int_equal(restore("{\"id\":\"e0-000017\"," PROMPT ",\"completions\":[{\"text\":\"\"}]}", &group), DATAERR);
    assert_string_equal(fail_text(), "the answer has 1 completions, the group 2");
}

TEST(the_reference_page_has_the_fields) {
    SCOPED(struct buf, buf_release) page = {0};
    group_reference_page(&page);
    assert_non_null(strstr(page.data, "| `prompt.messages[].content[].video` | string |"));
    assert_non_null(strstr(page.data, "| `requires.order` | integer | yes |"));
}
