// Keys and settings: what a command line and a --config file may say, and how a mistake is named.
#include "tests/unit/unit.h"

#include <math.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/stage_kinds.h"

static struct settings *fresh(const char *stage) {
    struct settings *settings;
    assert_int_equal(settings_new(&settings, stage), OK);
    return settings;
}

static status arguments(struct settings *settings, const char *words) {
    char copy[512], *argv[32] = {"program"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return settings_arguments(settings, argc, argv, NULL);
}

static void test_every_default_is_in_range(void **state) {
    (void)state;
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        const struct option_table *table = &stage_kinds[stage].options;
        struct settings *settings = fresh(stage_kinds[stage].name);
        for (const struct option *key = table->options; key->name; key++) {
            assert_non_null(key->help);
            if (key->default_value) assert_int_equal(option_check(key, key->default_value), OK);
            if (key->not_above) assert_non_null(option_find(table, key->not_above));
            assert_false(settings_given(settings, key->name));
        }
        settings_free(&settings);
        assert_null(settings);
    }
}

static void test_published_defaults(void **state) {
    (void)state;
    struct settings *settings = fresh("optim");
    assert_true(settings_number(settings, "lr") == 1e-6);
    assert_true(settings_number(settings, "clip_norm") == 5);
    assert_true(settings_bool(settings, "train_vision"));
    assert_true(settings_is(settings, "schedule", "cosine"));
    assert_true(settings_int(settings, "save_every") == INT64_MIN);
    settings_free(&settings);
    settings = fresh("reward");
    double from, to;
    settings_range(settings, "length_reward", &from, &to);
    assert_true(isnan(from) && isnan(to) && isnan(settings_number(settings, "margin")));
    assert_true(settings_number(settings, "upper_bound") == 0.95);
    settings_free(&settings);
}

static void test_both_spellings_and_forms(void **state) {
    (void)state;
    struct settings *settings = fresh("source");
    assert_int_equal(arguments(settings, "--data /dev/null --group-size=3 --max_staleness 2 --no-shuffle --stdio"), OK);
    assert_int_equal(settings_int(settings, "group_size"), 3);
    assert_int_equal(settings_int(settings, "max_staleness"), 2);
    assert_false(settings_bool(settings, "shuffle"));
    assert_true(settings_bool(settings, "stdio"));
    assert_int_equal(arguments(settings, "--data /dev/null --shuffle true --stdio false --template none"), OK);
    assert_true(settings_bool(settings, "shuffle"));
    assert_false(settings_bool(settings, "stdio"));
    settings_free(&settings);
}

static void test_mistakes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *stage, *words, *said;
        status status;
    } cases[] = {
        {"rollout", "--model / --temprature 1", "--temprature: no such option; did you mean --temperature?", USAGE},
        {"rollout", "--model / --xyzzy 1", "--xyzzy: no such option", USAGE},
        {"rollout", "--model / --top-p 1.5", "top_p: 1.5 is out of range: 1e-09 to 1", USAGE},
        {"rollout", "--model / --top-p 0.5x", "top_p: '0.5x' is not a number", USAGE},
        {"rollout", "--model / --top-p nan", "top_p: 'nan' is not a number", USAGE},
        {"rollout", "--model / --top-k 0x10", "top_k: '0x10' is not a whole number", USAGE},
        {"rollout", "--model / --seed 99999999999999999999",
         "seed: 99999999999999999999 is out of range: 0 to "
         "9.00719925474099e+15",
         USAGE},
        {"rollout", "--model / --top-k", "--top-k: a value is missing", USAGE},
        {"rollout", "--model /nowhere", "model: /nowhere: No such file or directory", DATAERR},
        {"rollout", "--model / file", "file: not expected here", USAGE},
        {"rollout", "", "missing: model", USAGE},
        {"optim", "--lr 1", "missing: model, out", USAGE},
        {"frames", "--min-frames 20", "min_frames: 20 is above max_frames, which is 16", USAGE},
        {"frames", "--seconds-per-grid often", "seconds_per_grid: 'often' is neither a number nor one of measured",
         USAGE},
        {"reward", "--method car",
         "method: 'car' is not one of "
         "care|grpo|nokl|densecons|kl-ema|kl-ema-ha|sepkl-ema-ha|refgen|cora",
         USAGE},
        {"reward", "--length-reward 5..2", "length_reward: 5..2 ends before it begins", USAGE},
        {"reward", "--device gpu", "device: 'gpu' is not cpu, cuda or cuda:N", USAGE},
        {"reward", "--no-method", "--no-method: no such option; did you mean --method?", USAGE},
        {"source", "--data / --shuffle=maybe", "shuffle: 'maybe' is not true or false", USAGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct settings *settings = fresh(cases[i].stage);
        assert_int_equal(arguments(settings, cases[i].words), cases[i].status);
        assert_string_equal(fail_text(), cases[i].said);
        settings_free(&settings);
    }
}

static void test_ranges(void **state) {
    (void)state;
    struct settings *settings = fresh("reward");
    double from, to;
    assert_int_equal(arguments(settings, "--length-reward 320..512 --margin none --upper-bound none --device cuda:1"),
                     OK);
    settings_range(settings, "length_reward", &from, &to);
    assert_true(from == 320 && to == 512);
    assert_true(settings_is(settings, "upper_bound", "none"));
    assert_int_equal(arguments(settings, "--length-reward ..512"), OK);
    settings_range(settings, "length_reward", &from, &to);
    assert_true(isinf(from) && from < 0 && to == 512);
    settings_free(&settings);
}

// Runs with a --config file of that content and returns its status.
static status with_config(struct settings *settings, const char *content, const char *more) {
    char path[] = "/tmp/caravan-config-XXXXXX", words[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(file_write_atomic(path, content, strlen(content)), OK);
    snprintf(words, sizeof words, "%s --config %s", more, path);
    status result = arguments(settings, words);
    unlink(path);
    return result;
}

static void test_config_file(void **state) {
    (void)state;
    struct settings *settings = fresh("frames");
    assert_int_equal(with_config(settings, "fps: 1.5\nmax_frames: 8\nstore: here\n", "--max-frames 12"), OK);
    assert_true(settings_number(settings, "fps") == 1.5);
    assert_int_equal(settings_int(settings, "max_frames"), 12);
    assert_string_equal(settings_text(settings, "store"), "/tmp/here");
    assert_int_equal(with_config(settings, "fps: 1\nmax_frame: 8\n", ""), USAGE);
    assert_non_null(strstr(fail_text(), ":2:1: max_frame: no such key; did you mean max_frames?"));
    assert_int_equal(with_config(settings, "fps: [1]\n", ""), USAGE);
    assert_non_null(strstr(fail_text(), ":1:6: fps: an array where a value belongs"));
    assert_int_equal(with_config(settings, "fps: 1\n\tx", ""), DATAERR);
    assert_non_null(strstr(fail_text(), "not YAML"));
    assert_int_equal(with_config(settings, "- fps\n", ""), DATAERR);
    assert_int_equal(with_config(settings, "", ""), OK);
    settings_free(&settings);
}

static uint64_t hash_of_stage(const char *stage, const char *words) {
    struct settings *settings = fresh(stage);
    assert_int_equal(arguments(settings, words), OK);
    uint64_t hash = settings_hash(settings);
    settings_free(&settings);
    return hash;
}

static uint64_t hash_of(const char *words) {
    return hash_of_stage("rollout", words);
}

// The keys of the store depend on these values: a change here makes every stored section unreachable.
static void test_hash_values_stay(void **state) {
    (void)state;
    static const struct {
        const char *stage, *words;
        uint64_t hash;
    } cases[] = {
        {"source", "--data /dev/null --no-shuffle --limit 3 --template none", 0x9f8db260e066f307},
        {"frames", "", 0x808fe38346d73263},
        {"frames", "--seconds-per-grid measured --total-pixels 1000000 --media-root /", 0x43fe3afc303a4420},
        {"rollout", "--model /", 0x8752c7f164425cc2},
        {"rollout", "--model / --temperature 0.9 --top-k 5 --seed 7 --precision bfloat16 --device cuda:1",
         0xb31d06614f10d05b},
        {"refscore", "--model / --logprobs all --span released", 0x6e62e648c69cff1f},
        {"reward", "--length-reward ..512 --margin 0.01", 0x65217526a1d238f4},
        {"reward", "--length-reward 320..512 --upper-bound none --method grpo --coefficient -0", 0x4fdc8d0d58b9195b},
        {"optim", "--model / --out /x --steps 100 --schedule constant --train-vision no --lr 3e-5", 0x2fd4c1b4216095d8},
        {"optim", "--model / --out /y --save-every 3", 0x937f5c8f16b6a8a3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(hash_of_stage(cases[i].stage, cases[i].words) == cases[i].hash);
}

static void test_hash_sees_what_counts(void **state) {
    (void)state;
    uint64_t plain = hash_of("--model /");
    assert_true(hash_of("--model / --threads 1 --store /tmp/x --stdio") == plain);
    assert_true(hash_of("--model / --temperature 1") == plain);
    assert_true(hash_of("--model / --temperature 0.9") != plain);
    assert_true(hash_of("--model / --seed 1") != plain);
    assert_true(hash_of("--model / --precision bfloat16") != plain);
}

static void test_help_has_every_key(void **state) {
    (void)state;
    struct buf text = {0};
    assert_int_equal(options_help(&stage_kinds[STAGE_ROLLOUT].options, &text), OK);
    for (const struct option *key = stage_kinds[STAGE_ROLLOUT].options.options; key->name; key++)
        assert_non_null(strstr(text.data, key->help));
    assert_non_null(strstr(text.data, "--max-new-tokens N"));
    buf_clear(&text);
    assert_int_equal(options_markdown(&text), OK);
    for (int stage = 0; stage < STAGE_COUNT; stage++)
        for (const struct option *key = stage_kinds[stage].options.options; key->name; key++)
            assert_non_null(strstr(text.data, key->name));
    buf_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_default_is_in_range),
        cmocka_unit_test(test_published_defaults),
        cmocka_unit_test(test_both_spellings_and_forms),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_config_file),
        cmocka_unit_test(test_hash_values_stay),
        cmocka_unit_test(test_hash_sees_what_counts),
        cmocka_unit_test(test_help_has_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
