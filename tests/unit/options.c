// Options: what a command line and a --config file may say, and how a mistake is named; lists of names with ranges.
#include "tests/unit/unit.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/methods.h"
#include "shared/config/name_list.h"
#include "shared/config/stage_kinds.h"
#include "shared/config/stage_options.h"

// The options of a stage with their defaults. One struct has room for those of any stage.
struct given {
    struct options options;
    union {
        struct source_options source;
        struct frames_options frames;
        struct rollout_options rollout;
        struct refscore_options refscore;
        struct reward_options reward;
        struct optim_options optim;
    };
};

static void given_release(struct given *given) {
    options_release(&given->options);
}

static void init_defaults(struct given *given, const char *stage) {
    const struct stage_kind *kind = stage_kind_find(stage);
    assert_non_null(kind);
    assert_true(kind->options.size <= sizeof *given - offsetof(struct given, source));
    options_init(&given->options, &kind->options, &given->source);
}

static status arguments(struct given *given, const char *words) {
    char program[] = "program", copy[512], *argv[32] = {program};
    int argc = 1, rest;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return options_parse(&given->options, argc, argv, &rest);
}

// What options_init, options_next_broken_rule and options_hash count on.
static void check_option(const struct option_table *table, const struct option *option) {
    assert_non_null(option->help);
    assert_true(option->offset < table->size);
    if (option->default_value) assert_int_equal(option_check(option, option->default_value), OK);
    if (option->rule) {
        const struct option *other = option_find(table, option->other);
        assert_non_null(other);
        if (option->rule == RULE_NOT_ABOVE) assert_true(other->type >= OPTION_INT);
        if (option->rule == RULE_NEEDS) assert_int_equal(other->type, OPTION_FILE);
        if (option->rule == RULE_CONFLICTS) assert_int_equal(other->type, OPTION_CHOICE);
        if (option->rule == RULE_CONFLICTS) assert_true(choice_index(other->choices, option->other_value) >= 0);
        if (option->rule == RULE_NEEDS || option->rule == RULE_CONFLICTS) {
            assert_true(option->type == OPTION_CHOICE || option->type == OPTION_NAME);
            assert_true(choice_index(option->choices, option->this_value) >= 0);
        }
    }
    if (option->type == OPTION_INT && !option->default_value) assert_true(option->low >= 1);
    if (option->type == OPTION_CHOICE || (option->type > OPTION_INT && option->type != OPTION_SIZE))
        assert_non_null(option->default_value);
    if (option->type > OPTION_INT && option->choices) assert_null(strchr(option->choices, '|'));
    if (option->required) assert_true(option->type < OPTION_CHOICE && !option->default_value);
    if (option->repeatable) assert_true(option->type == OPTION_STRING && option->not_hashed);
}

TEST(every_default_is_in_range) {
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        const struct option_table *table = &stage_kinds[stage].options;
        for (const struct option *option = table->options; option->name; option++) check_option(table, option);
        for (const struct option *option = table->common; option->name; option++) check_option(table, option);
        for (const struct option *option = table->internal; option->name; option++)
            if (option->default_value) assert_int_equal(option_check(option, option->default_value), OK);
    }
}

// Marks the bytes of the options' fields, each of which belongs to one option.
static void mark_fields(const struct option *option, unsigned char *marks, size_t size) {
    for (; option->name; option++) {
        bool string = option->type < OPTION_CHOICE;
        size_t bytes = option->type == OPTION_BOOL     ? sizeof(bool)
                       : option->type == OPTION_CHOICE ? sizeof(int)
                       : option->type == OPTION_RANGE  ? sizeof(struct option_range)
                       : option->type == OPTION_KEEP   ? sizeof(struct option_keep)
                       : string                        ? sizeof(const char *)
                                                       : sizeof(double);
        assert_true(option->offset + bytes <= size);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(marks[option->offset + i]++, 0);
    }
}

TEST(fields_do_not_overlap) {
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        const struct option_table *table = &stage_kinds[stage].options;
        unsigned char marks[sizeof(struct given)] = {0};
        assert_true(table->size <= sizeof marks);
        mark_fields(table->options, marks, table->size);
        mark_fields(table->common, marks, table->size);
        mark_fields(table->internal, marks, table->size);
    }
}

TEST(choices_have_their_numbers) {
    static const struct {
        const char *option, *choice;
        enum stage_id stage;
        int index;
    } cases[] = {
        {"clip", "whole", STAGE_SOURCE, SOURCE_CLIP_WHOLE},
        {"clip", "cut", STAGE_SOURCE, SOURCE_CLIP_CUT},
        {"frame_records", "folder", STAGE_SOURCE, SOURCE_FRAME_RECORDS_FOLDER},
        {"frame_records", "released", STAGE_SOURCE, SOURCE_FRAME_RECORDS_RELEASED},
        {"span", "content", STAGE_REFSCORE, REFSCORE_SPAN_CONTENT},
        {"span", "released", STAGE_REFSCORE, REFSCORE_SPAN_RELEASED},
        {"logprobs", "answer", STAGE_REFSCORE, REFSCORE_LOGPROBS_ANSWER},
        {"logprobs", "all", STAGE_REFSCORE, REFSCORE_LOGPROBS_ALL},
        {"generate", "off", STAGE_REFSCORE, REFSCORE_GENERATE_OFF},
        {"generate", "answer", STAGE_REFSCORE, REFSCORE_GENERATE_ANSWER},
        {"likelihood", "geometric", STAGE_REWARD, REWARD_LIKELIHOOD_GEOMETRIC},
        {"likelihood", "arithmetic", STAGE_REWARD, REWARD_LIKELIHOOD_ARITHMETIC},
        {"beta_schedule", "constant", STAGE_REWARD, REWARD_BETA_SCHEDULE_CONSTANT},
        {"beta_schedule", "warmup", STAGE_REWARD, REWARD_BETA_SCHEDULE_WARMUP},
        {"beta_schedule", "decay", STAGE_REWARD, REWARD_BETA_SCHEDULE_DECAY},
        {"beta_schedule", "warmup-decay", STAGE_REWARD, REWARD_BETA_SCHEDULE_WARMUP_DECAY},
        {"consistency_on", "all", STAGE_REWARD, REWARD_CONSISTENCY_ON_ALL},
        {"consistency_on", "correct", STAGE_REWARD, REWARD_CONSISTENCY_ON_CORRECT},
        {"advantages", "split", STAGE_REWARD, REWARD_ADVANTAGES_SPLIT},
        {"advantages", "summed", STAGE_REWARD, REWARD_ADVANTAGES_SUMMED},
        {"schedule", "cosine", STAGE_OPTIM, OPTIM_SCHEDULE_COSINE},
        {"schedule", "constant", STAGE_OPTIM, OPTIM_SCHEDULE_CONSTANT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct option *option = option_find(&stage_kinds[cases[i].stage].options, cases[i].option);
        assert_int_equal(option->type, OPTION_CHOICE);
        assert_int_equal(choice_index(option->choices, cases[i].choice), cases[i].index);
    }
    for (int id = 0; id < METHOD_COUNT; id++) assert_int_equal(choice_index(METHOD_NAMES, methods[id].name), id);
}

TEST(defaults_are_the_published_ones) {
    struct given given;
    init_defaults(&given, "optim");
    assert_true(given.optim.lr == 1e-6);
    assert_true(given.optim.clip_norm == 5);
    assert_true(given.optim.train_vision);
    assert_int_equal(given.optim.schedule, OPTIM_SCHEDULE_COSINE);
    assert_int_equal(given.optim.save_every, 0);
    options_release(&given.options);
    init_defaults(&given, "refscore");
    assert_int_equal(given.refscore.generate, REFSCORE_GENERATE_OFF);
    assert_int_equal(given.refscore.generate_tokens, 32);
    assert_true(given.refscore.generate_temperature == 1 && given.refscore.generate_top_p == 0.95);
    options_release(&given.options);
    init_defaults(&given, "reward");
    assert_true(isnan(given.reward.length_reward.from) && isnan(given.reward.length_reward.to));
    assert_true(isnan(given.reward.margin));
    assert_true(given.reward.upper_bound == 0.95);
    assert_int_equal(given.reward.method, METHOD_CARE);
    assert_true(given.reward.alpha == 1 && given.reward.beta == 0.5 && given.reward.consistency_floor == 0.01);
    assert_true(given.reward.beta_warmup == 0.1 && given.reward.beta_decay == 0.3);
    assert_int_equal(given.reward.beta_schedule, REWARD_BETA_SCHEDULE_CONSTANT);
    options_release(&given.options);
}

TEST(both_spellings_and_forms_are_read) {
    SCOPED(struct given, given_release) given;
    init_defaults(&given, "source");
    assert_int_equal(arguments(&given, "--data /dev/null --group-size=3 --max_staleness 2 --no-shuffle --stdio"), OK);
    assert_int_equal(given.source.group_size, 3);
    assert_int_equal(given.source.max_staleness, 2);
    assert_false(given.source.shuffle);
    assert_true(given.source.common.stdio);
    assert_int_equal(arguments(&given, "--data /dev/null --shuffle true --stdio false --template none"), OK);
    assert_true(given.source.shuffle);
    assert_false(given.source.common.stdio);
    assert_string_equal(given.source.template, "none");
    assert_int_equal(arguments(&given, "--data /dev/null --shuffle False --stdio True"), OK); // as Python prints them
    assert_false(given.source.shuffle);
    assert_true(given.source.common.stdio);
    assert_int_equal(arguments(&given, "--data /dev/null --shuffle tRUE"), USAGE);
}

TEST(mistakes_are_named) {
    static const struct {
        const char *stage, *words, *said;
        status code;
    } cases[] = {
        {"rollout", "--model / --temprature 1", "--temprature: no such option; did you mean --temperature?", USAGE},
        {"rollout", "--model / --xyzzy 1", "--xyzzy: no such option", USAGE},
        {"rollout", "--model / --top-p 1.5", "top_p: 1.5 is out of range: 1e-09 to 1", USAGE},
        {"rollout", "--model / --top-p 0.5x", "top_p: '0.5x' is not a number", USAGE},
        {"rollout", "--model / --top-p nan", "top_p: 'nan' is not a number", USAGE},
        {"rollout", "--model / --top-k 0x10", "top_k: '0x10' is not an integer", USAGE},
        {"rollout", "--model / --seed 99999999999999999999",
         "seed: 99999999999999999999 is out of range: 0 to 9007199254740992", USAGE},
        {"rollout", "--model / --top-k", "--top-k: a value is missing", USAGE},
        {"rollout", "--model /nowhere", "model: /nowhere: No such file or directory", DATAERR},
        {"rollout", "--model / file", "file: not expected here", USAGE},
        {"rollout", "", "missing: model", USAGE},
        {"refscore", "--model / --generate all", "generate: 'all' is not one of off|answer", USAGE},
        {"refscore", "--model / --generate-tokens 0", "generate_tokens: 0 is out of range: 1 to 65536", USAGE},
        {"refscore", "--model / --generate-top-p 0", "generate_top_p: 0 is out of range: 1e-09 to 1", USAGE},
        {"refscore", "--model / --generate-temperature -1", "generate_temperature: -1 is out of range: 0 to 1000",
         USAGE},
        {"optim", "--lr 1", "missing: model, out", USAGE},
        {"consistency", "", "missing: model", USAGE},
        {"consistency", "--model / --max-tokens 0", "max_tokens: 0 is out of range: 1 to 1048576", USAGE},
        {"consistency", "--model / --hypothesis /nowhere", "hypothesis: /nowhere: No such file or directory", DATAERR},
        {"consistency", "--model / --hypothesis / --batch-tokens 1 --max_tokens 5", NULL, OK},
        {"judge", "--judge likelihood", "missing: model, for judge: likelihood", USAGE},
        {"judge", "--judge likelihood --model /nowhere", "model: /nowhere: No such file or directory", DATAERR},
        {"source", "--data / --format sft", "missing: model, for format: sft", USAGE},
        {"source", "--data / --format sft --model /", NULL, OK},
        {"optim", "--model / --out o --kl-on accurrate", "kl_on: 'accurrate' is not one of all|accurate", USAGE},
        {"optim", "--model / --out o --kl-parts parts", "kl_parts: 'parts' is not one of whole|separate", USAGE},
        {"optim", "--model / --out o --loss groups", "loss: 'groups' is not one of completions|tokens", USAGE},
        {"optim", "--model / --out o --loss tokens --kl-parts separate",
         "kl_parts: separate does not go with loss: tokens", USAGE},
        {"optim", "--model / --out o --loss completions --kl-parts separate --kl-on accurate", NULL, OK},
        {"optim", "--model / --out o --loss tokens --kl-on accurate --kl 0.04", NULL, OK},
        {"frames", "--media-root /dev/null", "media_root: /dev/null: Not a directory", DATAERR},
        {"optim", "--model / --out o --media-root /dev/null", "media_root: /dev/null: Not a directory", DATAERR},
        {"frames", "--media-root /dev", NULL, OK},
        {"frames", "--min-frames 20", "min_frames: 20 is above max_frames, which is 16", USAGE},
        {"optim", "--model / --out /x --warmup 0 --warmup-ratio 0.1",
         "warmup_ratio: cannot be given together with warmup", USAGE},
        {"optim", "--model / --out /x --warmup-ratio 1.5", "warmup_ratio: 1.5 is out of range: 0 to 1", USAGE},
        {"frames", "--seconds-per-grid often", "seconds_per_grid: 'often' is neither a number nor one of measured",
         USAGE},
        {"reward", "--method car",
         "method: 'car' is not one of "
         "care|grpo|nokl|densecons|kl-ema|kl-ema-ha|sepkl-ema-ha|refgen|cora",
         USAGE},
        {"reward", "--upper-bound 0", "upper_bound: 0 is out of range: 1e-09 to 1", USAGE},
        {"reward", "--upper-bound 1.01", "upper_bound: 1.01 is out of range: 1e-09 to 1", USAGE},
        {"reward", "--alpha inf", "alpha: 'inf' is not a number", USAGE},
        {"reward", "--beta none", "beta: 'none' is not a number", USAGE},
        {"reward", "--beta-schedule cosine", "beta_schedule: 'cosine' is not one of constant|warmup|decay|warmup-decay",
         USAGE},
        {"reward", "--beta-warmup 1.1", "beta_warmup: 1.1 is out of range: 0 to 1", USAGE},
        {"reward", "--beta-decay -0.1", "beta_decay: -0.1 is out of range: 0 to 1", USAGE},
        {"reward", "--consistency-floor -1", "consistency_floor: -1 is out of range: at least 0", USAGE},
        {"reward", "--consistency-on accurate", "consistency_on: 'accurate' is not one of all|correct", USAGE},
        {"reward", "--advantages sum", "advantages: 'sum' is not one of split|summed", USAGE},
        {"reward", "--steps 0", "steps: 0 is out of range: at least 1", USAGE},
        {"reward", "--length-reward 5..2", "length_reward: 5..2 ends before it begins", USAGE},
        {"reward", "--device gpu", "device: 'gpu' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cuda:[0-3]", NULL, OK},
        {"rollout", "--model / --device cuda:[4,6-7]", NULL, OK},
        {"rollout", "--model / --device cuda:[]", "device: 'cuda:[]' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cuda:[3-0]", "device: 'cuda:[3-0]' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cuda:[0-3", "device: 'cuda:[0-3' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cuda:[0-3]4", "device: 'cuda:[0-3]4' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cuda:[0-1000]", "device: 'cuda:[0-1000]' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cuda[0-3]", "device: 'cuda[0-3]' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device [0-3]", "device: '[0-3]' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cpu,cuda:[0]", "device: 'cpu,cuda:[0]' is not cpu, cuda or cuda:N", USAGE},
        {"rollout", "--model / --device cpu:[0]", "device: 'cpu:[0]' is not cpu, cuda or cuda:N", USAGE},
        {"reward", "--no-method", "--no-method: method is not true or false", USAGE},
        {"source", "--data / --no-shufle", "--no-shufle: no such option; did you mean --no-shuffle?", USAGE},
        {"source", "--data / --no-shuffle=false", "--no-shuffle: takes no value", USAGE},
        {"source", "--data / --no-such-thing", "--no-such-thing: no such option", USAGE},
        {"source", "--data / --shuffle=maybe", "shuffle: 'maybe' is not true or false", USAGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct given, given_release) given;
        init_defaults(&given, cases[i].stage);
        assert_int_equal(arguments(&given, cases[i].words), cases[i].code);
        if (cases[i].said) assert_string_equal(fail_text(), cases[i].said);
    }
}

TEST(amounts_to_keep_are_read) {
    static const struct {
        const char *text;
        int64_t steps, bytes;
    } cases[] = {{"all", 0, 0},
                 {"1 step", 1, 0},
                 {"100 steps", 100, 0},
                 {"5B", 0, 5},
                 {"3KiB", 0, 3072},
                 {"20GiB", 0, (int64_t)20 << 30},
                 {"20GB", 0, 20000000000},
                 {"1TiB", 0, (int64_t)1 << 40}};
    static const char *const bad[] = {"",      "none",    "100", "100steps",          "-1 steps",       "0 steps",
                                      "0GiB",  "1.5GiB",  "20G", "9999999999999999B", "99999999999TiB", "steps",
                                      "5 GiB", "1 stepss"};
    SCOPED(struct given, given_release) given;
    init_defaults(&given, "optim");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(options_set(&given.options, "store_keep", cases[i].text), OK);
        assert_int_equal(given.optim.model.common.store_keep.steps, cases[i].steps);
        assert_int_equal(given.optim.model.common.store_keep.bytes, cases[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(options_set(&given.options, "store_keep", bad[i]), USAGE);
        assert_non_null(strstr(fail_text(), "store_keep: '"));
    }
}

TEST(ranges_and_none_are_read) {
    SCOPED(struct given, given_release) given;
    init_defaults(&given, "reward");
    assert_int_equal(arguments(&given, "--length-reward 320..512 --margin none --upper-bound none --device cuda:1"),
                     OK);
    assert_true(given.reward.length_reward.from == 320 && given.reward.length_reward.to == 512);
    assert_true(isnan(given.reward.upper_bound));
    assert_string_equal(given.reward.common.device, "cuda:1");
    assert_int_equal(arguments(&given, "--length-reward ..512"), OK);
    const struct option_range *range = &given.reward.length_reward;
    assert_true(isinf(range->from) && range->from < 0 && range->to == 512);
}

// Runs with a --config file of that content and returns its status.
static status with_config(struct given *given, const char *content, const char *more) {
    char path[] = "/tmp/caravan-config-XXXXXX", words[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(file_write_atomic(path, content, strlen(content)), OK);
    snprintf(words, sizeof words, "%s --config %s", more, path);
    status result = arguments(given, words);
    unlink(path);
    return result;
}

TEST(arguments_override_a_config_file) {
    SCOPED(struct given, given_release) given;
    init_defaults(&given, "frames");
    assert_int_equal(with_config(&given, "fps: 1.5\nmax_frames: 8\nstore: here\n", "--max-frames 12"), OK);
    assert_true(given.frames.fps == 1.5);
    assert_int_equal(given.frames.max_frames, 12);
    assert_string_equal(given.frames.common.store, "/tmp/here");
    assert_int_equal(with_config(&given, "fps: 1\nmax_frame: 8\n", ""), USAGE);
    assert_non_null(strstr(fail_text(), ":2:1: max_frame: no such key; did you mean max_frames?"));
    assert_int_equal(with_config(&given, "max_frames: 8\nfps: 1\nmax-frames: 9\n", ""), USAGE);
    assert_non_null(strstr(fail_text(), ":3:1: max-frames is given twice"));
    assert_int_equal(with_config(&given, "node: /tmp/node\n", ""), USAGE);
    assert_non_null(strstr(fail_text(), ":1:7: node: not allowed in a configuration file"));
    assert_int_equal(with_config(&given, "fps: [1]\n", ""), USAGE);
    assert_non_null(strstr(fail_text(), ":1:6: fps: expected a value, not an array"));
    assert_int_equal(with_config(&given, "fps: 1\n\tx", ""), DATAERR);
    assert_non_null(strstr(fail_text(), "not YAML"));
    assert_int_equal(with_config(&given, "- fps\n", ""), DATAERR);
    assert_int_equal(with_config(&given, "", ""), OK);
}

static uint64_t hash_of_stage(const char *stage, const char *words) {
    SCOPED(struct given, given_release) given;
    init_defaults(&given, stage);
    assert_int_equal(arguments(&given, words), OK);
    return options_hash(&given.options, false);
}

static uint64_t hash_of(const char *words) {
    return hash_of_stage("rollout", words);
}

// The keys of the store depend on these values: a change here makes every stored section unreachable.
TEST(hash_values_stay) {
    static const struct {
        const char *stage, *words;
        uint64_t hash;
    } cases[] = {
        {"source", "--data /dev/null --no-shuffle --limit 3 --template none", 0x7841f73fed67cad8},
        {"frames", "", 0x808fe38346d73263},
        {"frames", "--seconds-per-grid measured --total-pixels 1000000 --media-root /", 0x43fe3afc303a4420},
        {"rollout", "--model /", 0x8752c7f164425cc2},
        {"rollout", "--model / --temperature 0.9 --top-k 5 --seed 7 --precision bfloat16 --device cuda:1",
         0xb31d06614f10d05b},
        {"refscore", "--model / --logprobs all --span released", 0x02eded779506aa94},
        {"reward", "--length-reward ..512 --margin 0.01", 0x6cfc65b62f90ba94},
        {"reward", "--length-reward 320..512 --upper-bound none --method grpo --coefficient -0", 0x2e4231ee3ea41fd5},
        {"optim", "--model / --out /x --steps 100 --schedule constant --train-vision no --lr 3e-5", 0xebce6954bdcdac79},
        {"optim", "--model / --out /y --save-every 3", 0x52e612bafea723fa},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(hash_of_stage(cases[i].stage, cases[i].words) == cases[i].hash);
}

TEST(hash_sees_what_counts) {
    uint64_t plain = hash_of("--model /");
    assert_true(hash_of("--model / --threads 1 --store /tmp/x --stdio") == plain);
    assert_true(hash_of("--model / --temperature 1") == plain);
    assert_true(hash_of("--model / --temperature 0.9") != plain);
    assert_true(hash_of("--model / --seed 1") != plain);
    assert_true(hash_of("--model / --precision bfloat16") != plain);
    const uint64_t cora = hash_of_stage("reward", "--method cora --beta-schedule decay --steps 10");
    assert_true(hash_of_stage("reward", "--method cora --beta-schedule decay --steps 11") != cora);
    assert_true(hash_of_stage("reward", "--method cora --beta-schedule decay --steps 10 --groups-per-step 2") != cora);
}

TEST(the_help_has_every_key) {
    SCOPED(struct buf, buf_release) text = {0}, words = {0};
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        for (int columns = 80; columns <= 100; columns += 20) {
            buf_clear(&text);
            options_help(&stage_kinds[stage].options, columns, &text);
            for (const char *line = text.data; *line; line += strcspn(line, "\n") + 1)
                assert_true(strcspn(line, "\n") <= (size_t)columns);
        }
        buf_clear(&words);
        text_wrap(text.data, 0, 0, INT_MAX, &words); // without the lines' ends
        for (const struct option *key = stage_kinds[stage].options.options; key->name; key++)
            assert_non_null(strstr(words.data, key->help));
        assert_true(stage != STAGE_ROLLOUT || strstr(words.data, "--max-new-tokens N"));
    }
    buf_clear(&text);
    stage_kinds_markdown(&text);
    for (int stage = 0; stage < STAGE_COUNT; stage++)
        for (const struct option *key = stage_kinds[stage].options.options; key->name; key++)
            assert_non_null(strstr(text.data, key->name));
}

TEST(lists_of_names_with_ranges_are_expanded) {
    static const struct {
        const char *text, *names;
    } cases[] = {
        {"a", "a"},
        {"a,b", "a b"},
        {" a , b", "a b"},
        {"a[1-3,7],b2", "a1 a2 a3 a7 b2"},
        {"gpu[08-11]", "gpu08 gpu09 gpu10 gpu11"},
        {"n[9-11]", "n9 n10 n11"},
        {"n[098-101]x", "n098x n099x n100x n101x"},
        {"r[1-2]n[0,3]", "r1n0 r1n3 r2n0 r2n3"},
        {"[2-4]", "2 3 4"},
        {"a[5]", "a5"},
        {"a[3,1]", "a3 a1"},
        {"login-1.example.org,10.0.0.[1-2]", "login-1.example.org 10.0.0.1 10.0.0.2"},
        {"a b", "a b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct arena, arena_release) arena = {0};
        struct string_list list;
        SCOPED(struct buf, buf_release) text = {0};
        if (name_list_expand(cases[i].text, &arena, &list) != OK) assert_string_equal(cases[i].text, fail_text());
        for (size_t k = 0; k < list.count; k++) buf_printf(&text, "%s%s", k ? " " : "", list.data[k]);
        assert_string_equal(text.data, cases[i].names);
    }
}

TEST(mistakes_in_lists_of_names_are_named) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "'': a name is empty"},
        {"a,", "'a,': a name is empty"},
        {",a", "a name is empty"},
        {"a,,b", "a name is empty"},
        {"a[", "'a[': a bracket is not closed"},
        {"a[1-2", "a bracket is not closed"},
        {"a]", "'a]': a bracket closes that is not open"},
        {"a[1]]", "a bracket closes that is not open"},
        {"a[]", "expected a number of 1 to 9 digits at ']'"},
        {"a[1,]", "expected a number of 1 to 9 digits at ']'"},
        {"a[-3]", "expected a number of 1 to 9 digits at '-3]'"},
        {"a[1-]", "expected a number of 1 to 9 digits at ']'"},
        {"a[x-y]", "expected a number of 1 to 9 digits at 'x-y]'"},
        {"a[1 -2]", "expected ',', '-' or ']' at ' -2]'"},
        {"a[1-2-3]", "expected ',', '-' or ']' at '-3]'"},
        {"a[3-1]", "'a[3-1]': 1 is below 3"},
        {"a[1-1234567890]", "expected a number of 1 to 9 digits"},
        {"a[1-999999999]", "more than 4096 names"},
        {"a[0-99]b[0-99]", "more than 4096 names"},
        {"a[1-[2]]", "expected a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct arena, arena_release) arena = {0};
        struct string_list list;
        assert_int_equal(name_list_expand(cases[i].text, &arena, &list), USAGE);
        if (!strstr(fail_text(), cases[i].says)) assert_string_equal(fail_text(), cases[i].says);
        assert_int_equal(list.count, 0);
    }
    char text[400];
    SCOPED(struct arena, arena_release) arena = {0};
    struct string_list list;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    assert_int_equal(name_list_expand(text, &arena, &list), USAGE);
    assert_string_equal(fail_text(), "a name is longer than 255 bytes");
}
