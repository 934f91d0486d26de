// Pipeline files: what stages inherit, where mistakes are located, and that what is written reads back the same.
#include "tests/unit/unit.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/pipeline.h"
#include "shared/config/stage_options.h"

static char *below(const char *name) {
    static char path[4][256];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", unit_directory(), name);
    return path[next];
}

static int write_files(void **state) {
    (void)state;
    if (dir_make(below("model")) != OK) return 1;
    if (file_write_atomic(below("train.jsonl"), "", 0) != OK ||
        file_write_atomic(below("mine.py"), "#!/bin/cat\n", 11) != OK)
        return 1;
    return chmod(below("mine.py"), 0755);
}

static status read_text(struct pipeline **out, const char *text, const char *const *sets, size_t count,
                        struct buf *mistakes) {
    assert_int_equal(file_write_atomic(below("p.yaml"), text, strlen(text)), OK);
    return pipeline_read(out, below("p.yaml"), false, sets, count, mistakes);
}

// Reads a file without mistakes.
static struct pipeline *read_good(const char *text, const char *const *sets, size_t count) {
    struct pipeline *pipeline;
    SCOPED(struct buf, buf_release) mistakes = {0};
    if (read_text(&pipeline, text, sets, count, &mistakes) != OK) assert_string_equal(mistakes.data, "");
    return pipeline;
}

// The file's mistakes must have this text.
static void expect_mistake(const char *text, const char *said) {
    struct pipeline *pipeline;
    SCOPED(struct buf, buf_release) mistakes = {0};
    assert_int_equal(read_text(&pipeline, text, NULL, 0, &mistakes), DATAERR);
    if (!strstr(mistakes.data, said)) assert_string_equal(mistakes.data, said);
}

static const char good[] = "name: demo\n"
                           "give_up_after: 30\n"
                           "run: runs/demo\n"
                           "model: model\n"
                           "seed: 7\n"
                           "precision: bfloat16\n"
                           "stages:\n"
                           "  - source: {data: train.jsonl, group-size: 4, media_root: .}\n"
                           "  - frames: {replicas: 2, on: near}\n"
                           "  - rollout: {seed: 9, max_new_tokens: 32}\n"
                           "  - refscore:\n"
                           "  - mine: {program: ./mine.py, model: crm, strict: true, timeout: 2.5}\n"
                           "  - reward: {margin: 0.01}\n"
                           "  - optim: {on: near}\n"
                           "machines:\n"
                           "  near: {address: 10.0.0.1, key: abc, port: 7000}\n";

static void check_good(const struct pipeline *pipeline) {
    assert_string_equal(pipeline->name, "demo");
    assert_string_equal(pipeline->run, below("runs/demo"));
    assert_int_equal(pipeline->stage_count, 7);
    const struct pipeline_stage *stages = pipeline->stages;
    assert_string_equal(pipeline_value(&stages[0], "data"), below("train.jsonl"));
    assert_string_equal(pipeline_value(&stages[0], "group_size"), "4");
    assert_string_equal(pipeline_value(&stages[0], "seed"), "7");
    assert_null(pipeline_value(&stages[0], "model"));
    assert_int_equal(stages[1].replicas, 2);
    assert_int_equal(stages[1].machine_count, 1);
    assert_int_equal(stages[1].machines[0], 0);
    assert_int_equal(stages[2].machine_count, 0);
    assert_string_equal(pipeline_value(&stages[1], "media_root"), unit_directory());
    assert_string_equal(pipeline_value(&stages[2], "group_size"), "4");
    assert_string_equal(pipeline_value(&stages[2], "seed"), "9");
    assert_string_equal(pipeline_value(&stages[2], "store"), below("runs/demo/store"));
    assert_string_equal(pipeline_value(&stages[2], "precision"), "bfloat16");
    assert_string_equal(pipeline_value(&stages[3], "model"), below("model"));
    assert_string_equal(stages[4].program, below("mine.py"));
    assert_null(stages[4].kind);
    assert_int_equal(key_list_count(&stages[4].options.given), 2);
    assert_true(stages[4].timeout == 2.5 && stages[3].timeout == 0 && pipeline->give_up_after == 30);
    assert_string_equal(pipeline_value(&stages[4], "model"), "crm");
    assert_string_equal(pipeline_value(&stages[6], "out"), below("runs/demo/checkpoints"));
    assert_int_equal(pipeline->machine_count, 1);
    assert_int_equal(pipeline->machines[0].port, 7000);
    assert_string_equal(pipeline->machines[0].key, "abc");
    const struct reward_options *reward = pipeline_options(&stages[5]);
    assert_true(reward->margin == 0.01);
}

TEST(keys_are_inherited_and_written_back) {
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(good, NULL, 0);
    SCOPED(struct buf, buf_release) text = {0}, again = {0};
    check_good(pipeline);
    assert_int_equal(pipeline_write(pipeline, &text), OK);
    pipeline_free(&pipeline);
    assert_null(pipeline);
    pipeline = read_good(text.data, NULL, 0);
    check_good(pipeline);
    assert_int_equal(pipeline_write(pipeline, &again), OK);
    assert_string_equal(again.data, text.data);
    buf_clear(&again);
    pipeline_dot(pipeline, &again);
    assert_non_null(strstr(again.data, "\"mine\" -> \"reward\""));
    buf_clear(&again);
    pipeline_text(pipeline, &again);
    assert_non_null(strstr(again.data, "frames x2 on near"));
}

TEST(ranks_are_processes_of_optim_and_written_back_as_ranks) {
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(good, NULL, 0);
    SCOPED(struct buf, buf_release) text = {0};
    assert_int_equal(pipeline_stage_ranks(pipeline_optim(pipeline)), 0);
    pipeline_free(&pipeline);
    pipeline = read_good(good, (const char *[]){"optim.ranks=3"}, 1);
    for (int written = 0; written < 2; written++) {
        const struct pipeline_stage *optim = pipeline_optim(pipeline);
        assert_int_equal(optim->replicas, 3);
        assert_int_equal(pipeline_stage_ranks(optim), 3);
        assert_int_equal(pipeline_stage_ranks(pipeline_find_stage(pipeline, "frames")), 0);
        buf_clear(&text);
        assert_int_equal(pipeline_write(pipeline, &text), OK);
        pipeline_free(&pipeline);
        pipeline = read_good(text.data, NULL, 0);
    }
}

// What `caravan run` prints as arguments is read back by the stage as what the file was read as.
TEST(the_arguments_of_a_process_make_the_same_struct) {
    static const char *const sets[] = {"optim.lr=1e-5", "reward.method=grpo", "frames.fps=0.25", "reward.margin=none"};
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(good, sets, 4);
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        SCOPED(struct options, options_release) again = {0};
        char program[] = "program", texts[32][512], *argv[33] = {program};
        double values[256];
        int argc = 1, rest;
        if (!stage->kind) continue;
        assert_true(stage->kind->options.size <= sizeof values);
        for (const struct key *key = stage->options.given.first; key; key = key->next) {
            assert_true(key->stored);
            snprintf(texts[argc], sizeof *texts, "--%s=%s", key->name, key->value);
            argv[argc] = texts[argc];
            argc++;
        }
        options_init(&again, &stage->kind->options, values);
        assert_int_equal(options_parse(&again, argc, argv, &rest), OK);
        assert_true(options_hash(&stage->options, false) == options_hash(&again, false));
    }
    const struct optim_options *optim = pipeline_options(&pipeline->stages[6]);
    assert_true(optim->lr == 1e-5 && optim->kl == 0.04 && optim->ema_every == 0);
}

TEST(set_goes_on_top) {
    static const char *const sets[] = {"frames.fps=0.5", "seed=11", "rollout.group-size=4", "run=/tmp/elsewhere"};
    struct pipeline *pipeline;
    SCOPED(struct buf, buf_release) mistakes = {0};
    assert_int_equal(read_text(&pipeline, good, sets, 4, &mistakes), OK);
    assert_string_equal(pipeline_value(&pipeline->stages[1], "fps"), "0.5");
    assert_string_equal(pipeline_value(&pipeline->stages[0], "seed"), "11");
    assert_string_equal(pipeline_value(&pipeline->stages[6], "out"), "/tmp/elsewhere/checkpoints");
    pipeline_free(&pipeline);
    static const char *const wrong[] = {"frame.fps=1", "fps", "frames.fps=0"};
    assert_int_equal(read_text(&pipeline, good, wrong, 3, &mistakes), USAGE);
    assert_null(pipeline);
    assert_non_null(strstr(mistakes.data, "--set: frame.fps=1: the file has no stage frame\n"));
    assert_non_null(strstr(mistakes.data, "--set: fps: not of the form stage.key=value\n"));
    assert_non_null(strstr(mistakes.data, "--set: frames: fps: 0 is out of range"));
}

TEST(model_is_inherited_where_it_is_needed) {
    static const char text[] = "run: r\nmodel: model\nstages:\n"
                               "  - source: {data: train.jsonl, format: sft}\n"
                               "  - optim: {}\n";
    static const char *const sets[] = {"source.format=caravan"};
    for (size_t i = 0; i < 2; i++) {
        SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(text, sets, i);
        if (i == 0) assert_string_equal(pipeline_value(&pipeline->stages[0], "model"), below("model"));
        if (i == 1) assert_null(pipeline_value(&pipeline->stages[0], "model"));
    }
}

TEST(from_orders_the_flow) {
    static const char text[] = "run: r\nmodel: model\nstages:\n"
                               "  - source: {data: train.jsonl}\n"
                               "  - optim: {from: reward}\n"
                               "  - reward: {from: refscore}\n"
                               "  - refscore: {from: rollout}\n"
                               "  - rollout: {from: source}\n";
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(text, NULL, 0);
    static const char *const order[] = {"source", "rollout", "refscore", "reward", "optim"};
    assert_string_equal(pipeline->name, "p");
    for (int i = 0; i < 5; i++) assert_string_equal(pipeline->stages[i].name, order[i]);
}

// Any stage may be the last one. Without optim nothing is trained, and no weights go back.
TEST(optim_may_be_left_out) {
    static const char *const ends[] = {"  - frames: {}\n", "  - frames: {}\n  - rollout: {}\n",
                                       "  - rollout: {}\n  - refscore: {}\n  - reward: {}\n",
                                       "  - rollout: {}\n  - mine: {program: cat}\n", "  - optim: {program: cat}\n"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        SCOPED(struct buf, buf_release) text = {0};
        buf_printf(&text, "run: r\nmodel: model\nstages:\n  - source: {data: train.jsonl}\n%s", ends[i]);
        SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(text.data, NULL, 0);
        assert_null(pipeline_optim(pipeline));
        buf_clear(&text);
        pipeline_dot(pipeline, &text);
        pipeline_text(pipeline, &text);
        assert_null(strstr(text.data, "weights"));
        assert_null(strstr(text.data, "trained"));
        assert_non_null(strstr(text.data, "-> \"source\" [style=dotted, label=\"done\"]"));
    }
}

// Every stage has the file's store, unless it has its own; without any it is in the run's directory.
TEST(every_stage_has_the_files_store_unless_it_has_its_own) {
    static const char *const set[] = {"store=/scratch/set"};
    static const char text[] = "%srun: r\nmodel: model\nstages:\n"
                               "  - source: {data: train.jsonl}\n"
                               "  - frames: {store: mine}\n"
                               "  - rollout: {on: near}\n"
                               "machines: {near: {address: 10.0.0.1}, far: {address: 10.0.0.2}}\n";
    static const struct {
        const char *top;
        size_t sets;
        const char *store;
    } cases[] = {{"", 0, NULL}, {"store: /scratch/s\n", 0, "/scratch/s"}, {"store: /a\n", 1, "/scratch/set"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct buf, buf_release) file = {0};
        buf_printf(&file, text, cases[i].top);
        SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(file.data, set, cases[i].sets);
        const char *store = cases[i].store ? cases[i].store : below("r/store");
        assert_string_equal(pipeline_value(&pipeline->stages[0], "store"), store);
        assert_string_equal(pipeline_value(&pipeline->stages[1], "store"), below("mine"));
        assert_string_equal(pipeline_value(&pipeline->stages[2], "store"), store);
    }
}

// Its arguments are --KEY VALUE, with KEY as it is written.
TEST(the_keys_of_a_program_keep_their_spelling) {
    static const char text[] = "run: r\nmodel: model\nstages:\n  - source: {data: train.jsonl, group-size: 2}\n"
                               "  - mine: {max-frames: 3, program: cat, top_k: 1}\n";
    static const char *const sets[] = {"mine.max-frames=4", "mine.min-frames=2", "source.groups-per-step=1"};
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(text, sets, 3);
    const struct pipeline_stage *mine = &pipeline->stages[1];
    assert_string_equal(pipeline_value(mine, "max-frames"), "4");
    assert_string_equal(pipeline_value(mine, "min-frames"), "2");
    assert_string_equal(pipeline_value(mine, "top_k"), "1");
    assert_int_equal(key_list_count(&mine->options.given), 3);
    assert_string_equal(pipeline_value(&pipeline->stages[0], "groups_per_step"), "1");
}

// The slashes at the end and in the middle that a shell's completion leaves say nothing.
TEST(a_run_has_one_spelling) {
    static const char *const sets[] = {"run=/a//b/", "run=/a/b", "run=/a/b///", "run=//", "run=/"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(good, &sets[i], 1);
        assert_string_equal(pipeline->run, i < 3 ? "/a/b" : "/");
        assert_string_equal(pipeline_value(&pipeline->stages[2], "store"), i < 3 ? "/a/b/store" : "/store");
    }
}

// RUN/pipeline.yaml has the directories of RUN: another run with it must not write there.
TEST(a_written_file_with_another_run_has_the_directories_of_that) {
    static const char *const sets[] = {"run=/tmp/elsewhere", "frames.store=runs/demo/store", "rollout.store=/tmp/own"};
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(good, &sets[2], 1);
    SCOPED(struct buf, buf_release) text = {0};
    assert_int_equal(pipeline_write(pipeline, &text), OK);
    pipeline_free(&pipeline);
    pipeline = read_good(text.data, sets, 2);
    assert_string_equal(pipeline_value(&pipeline->stages[0], "store"), "/tmp/elsewhere/store");
    assert_non_null(strstr(pipeline_value(&pipeline->stages[1], "store"), "/runs/demo/store"));
    assert_string_equal(pipeline_value(&pipeline->stages[2], "store"), "/tmp/own");
    assert_string_equal(pipeline_value(&pipeline->stages[6], "out"), "/tmp/elsewhere/checkpoints");
    pipeline_free(&pipeline);
    // Each stage has its own seed there, so that another one of the file would change nothing.
    static const char *const seed = "seed=11";
    SCOPED(struct buf, buf_release) mistakes = {0};
    assert_int_equal(read_text(&pipeline, text.data, &seed, 1, &mistakes), USAGE);
    assert_string_equal(mistakes.data, "--set: seed=11 changes nothing: each stage that has it gives its own; say "
                                       "source.seed=11\n");
}

// Each text has one mistake, which the line must name.
TEST(a_mistake_has_its_place) {
#define HEAD "run: r\nmodel: model\nstages:\n  - source: {data: train.jsonl}\n"
#define TAIL "  - refscore: {}\n  - reward: {}\n  - optim: {}\n"

#define SIXTEEN "sixteen-letters-"
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", ":1:1: a pipeline file is a mapping"},
        {"- a\n", ":1:1: a pipeline file is a mapping"},
        {"run: r\n", ":1:1: missing: stages"},
        {"run: r\nstages: []\n", ":2:9: stages: empty"},
        {"run: r\nstages: x\n", ":2:9: stages: expected an array of stages, not a string"},
        {"a: [1\nb: 2", ":2:2: not YAML"},
        {HEAD "\t- refscore: {}\n", ":5:1: not YAML: a tab; YAML is indented with spaces"},
        {HEAD "# \xc3\xa4\n# f\xc3\xbcr \xfc\n", ":6:7: not YAML: the byte 0xFC is not UTF-8: save the file as UTF-8"},
        {HEAD TAIL "---\nx: 1\n", ":9:1: a second YAML document"},
        {HEAD TAIL "sead: 3\n", ":8:1: pipeline: no such key: sead; did you mean seed?"},
        {HEAD TAIL "fps: 3\n", ":8:1: pipeline: no such key: fps; it is a key of frames"},
        {HEAD TAIL "seed: x\n", ":8:7: pipeline: seed: 'x' is not an integer"},
        {HEAD TAIL "seed: -1\n", ":8:7: pipeline: seed: -1 is out of range: at least 0\n"},
        {HEAD TAIL "seed: 9e15\n", ":8:7: pipeline: seed: '9e15' is not an integer"},
        {HEAD TAIL "seed: 9007199254740993000\n",
         ":8:7: pipeline: seed: 9007199254740993000 is out of range: 0 to 9007199254740992\n"},
        {HEAD TAIL "seed: [x]\n", ":8:7: seed: expected a value, not an array"},
        {HEAD TAIL "seed: 1\nseed: 2\n", ":9:1: seed is given twice"},
        {HEAD TAIL "stages: []\n", ":8:1: stages is given twice"},
        {HEAD TAIL "machines: []\n", ":8:11: machines: expected a mapping of machines, not an array"},
        {HEAD TAIL "machines: {a: {address: b, kay: c}}\n", ":8:28: a: no such key: kay; did you mean key?"},
        {HEAD TAIL "machines: {a: {}}\n", ":8:12: a: missing: address"},
        {HEAD TAIL "machines: {a: {address: b}, a: {address: b}}\n", ":8:29: a: a second machine"},
        {HEAD TAIL "give_up_after: -1\n", ":8:16: pipeline: give_up_after: -1 is out of range"},
        {HEAD TAIL "give_up_after: soon\n", ":8:16: pipeline: give_up_after: 'soon' is not a number"},
        {HEAD "  - frames: {timeout: 5}\n" TAIL, ":5:14: frames: timeout: only for a stage with `program`"},
        {"run: r\nmodel: model\nstages:\n  - source: {program: cat}\n  - rollout: {}\n",
         ":4:14: source: program: only for stages behind it; write the groups to a file"},
        {HEAD "  - a: {program: cat, timeout: -1}\n" TAIL, ":5:32: a: timeout: -1 is out of range"},
        {HEAD "  - 7: {}\n" TAIL, ":5:5: 7: no such stage"},
        {HEAD "  - mine: {program: cat, prompt: \"a\\nb\"}\n" TAIL,
         ":5:34: mine: prompt: a line break, which is not passed to a program"},
        {"run: \"a\\nb\"\nmodel: model\nstages:\n  - source: {data: train.jsonl}\n" TAIL,
         ":1:6: pipeline: run: its path has a line break"},
        {HEAD "  - a/b: {program: cat}\n" TAIL, ":5:5: a/b: a stage's name has no spaces and no '/'"},
        {HEAD "  - a b: {program: cat}\n" TAIL, ":5:5: a b: a stage's name has no spaces and no '/'"},
        {HEAD "  - \"a\\nb\": {program: cat}\n" TAIL, "b: a stage's name has no spaces and no '/'"},
        {HEAD "  - caravan: {program: cat}\n" TAIL, ":5:5: caravan: the name of the program itself"},
        {HEAD "  - caravan-2: {program: cat}\n" TAIL, ":5:5: caravan-2: the name of the program itself"},
        {HEAD "  - " SIXTEEN SIXTEEN SIXTEEN SIXTEEN ": {program: cat}\n" TAIL,
         SIXTEEN ": a stage's name has at most 63 bytes"},
        {HEAD "  - rollout: {replicas: 3}\n  - rollout-3: {program: cat}\n" TAIL,
         ":6:5: rollout-3: replica 3 of rollout has this name"},
        {HEAD "  - [a]\n" TAIL, ":5:5: a stage must have a name"},
        {HEAD "  - {frames: {}, rollout: {}}\n" TAIL, ":5:5: expected one name with its keys"},
        {HEAD "  - frames: [1]\n" TAIL, ":5:13: frames: expected a mapping of keys, not an array"},
        {HEAD "  - frame: {}\n" TAIL, ":5:5: frame: no such stage; did you mean frames?"},
        {HEAD "  - frames: {fps: 0}\n" TAIL, ":5:19: frames: fps: 0 is out of range"},
        {HEAD "  - frames: {fpss: 1}\n" TAIL, ":5:14: frames: no such key: fpss; did you mean fps?"},
        {HEAD "  - frames: {top_k: 1}\n" TAIL, ":5:14: frames: no such key: top_k; it is a key of rollout"},
        {HEAD "  - frames: {stdio: true}\n" TAIL, ":5:14: frames: stdio: allowed on the command line only"},
        {HEAD "  - frames: {max_frames: 2}\n" TAIL, ":5:26: frames: min_frames: 4 is above max_frames, which is 2"},
        {HEAD "  - refscore: {}\n  - reward: {}\n  - optim: {loss: tokens, kl_parts: separate}\n",
         ":7:37: optim: kl_parts: separate does not go with loss: tokens"},
        {HEAD "  - frames: {replicas: 0}\n" TAIL, ":5:24: frames: replicas: 0 is out of range: 1 to 256"},
        {HEAD "  - frames: {on: here}\n" TAIL, ":5:18: frames: on: no machine is named here"},
        {HEAD "  - frames: {from: sorce}\n" TAIL, ":5:20: frames: from: no stage is named sorce; did you mean source?"},
        {HEAD "  - frames: {from: frames}\n" TAIL, ":5:20: frames: from: itself"},
        {HEAD "  - frames: {}\n  - a: {program: cat, from: source}\n" TAIL,
         ":6:29: a: reads from source, but frames reads from it already"},
        {HEAD "  - a: {program: no-such-program}\n" TAIL, ":5:18: a: program: no-such-program is not in PATH"},
        {HEAD "  - a: {program: ./train.jsonl}\n" TAIL, ": program: "},
        {HEAD "  - refscore: {}\n" TAIL, ":6:5: refscore: a second stage with this name; the first is in line 5"},
        {HEAD "  - rollout: {group_size: 4}\n" TAIL, ":5:27: rollout: group_size: 4 here, but 8 at source"},
        {HEAD "  - reward: {}\n  - optim: {}\n", ":5:5: reward: method care needs refscore before it"},
        {HEAD, ":4:3: stages: no stage comes after source"},
        {HEAD "  - optim: {}\n  - a: {program: cat}\n", ":6:5: a: no stage may come after optim"},
        {HEAD TAIL "  - a: {program: cat}\n", ":8:5: a: no stage may come after optim"},
        {HEAD "  - refscore: {}\n  - rollout: {}\n  - reward: {}\n  - optim: {replicas: 1}\n",
         ":6:5: rollout: comes after refscore, but must come before it"},
        {HEAD "  - refscore: {}\n  - reward: {}\n  - optim: {replicas: 2}\n", ":7:23: optim: replicas: must be 1"},
        {HEAD "  - frames: {}\n  - a: {program: cat, from: b}\n  - b: {program: cat, from: a}\n  - refscore: {from: "
              "frames}\n"
              "  - reward: {}\n  - optim: {}\n",
         ":6:5: a: no group of source reaches this stage"},
        {HEAD "  - optim: {warmup: 3, warmup-ratio: 0.1}\n",
         ":5:24: optim: warmup_ratio: cannot be given together with warmup"},
        {HEAD "  - optim: {warmup_ratio: -1}\n", ":5:27: optim: warmup_ratio: -1 is out of range: 0 to 1"},
        {"run: r\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n", ":4:5: optim: missing: model"},
        {"run: r\nstages:\n  - source: {data: train.jsonl}\n  - judge: {judge: likelihood}\n",
         ":4:20: judge: missing: model, for judge: likelihood"},
        {"run: r\nstages:\n  - source: {data: train.jsonl, format: sft}\n  - optim: {model: model}\n",
         ":3:41: source: missing: model, for format: sft"},
        {"run: r\nmodel: model\nstages:\n  - source: {}\n  - optim: {}\n", ":4:5: source: missing: data"},
        {"run: r\nmodel: nowhere\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n",
         ":2:8: pipeline: model: "},
        {"run: r\nmodel: Qwen/Qwen2.5-VL-3B-Instruct\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n",
         "; for the model of that name: hf download Qwen/Qwen2.5-VL-3B-Instruct --local-dir "
         "models/Qwen2.5-VL-3B-Instruct, then model: models/Qwen2.5-VL-3B-Instruct, from this file's directory\n"},
        {"run: r\nmodel: models/Qwen2.5-VL-3B-Instruct\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n",
         "/models/Qwen2.5-VL-3B-Instruct: No such file or directory; to have the released model there: hf download "
         "Qwen/Qwen2.5-VL-3B-Instruct --local-dir /"},
        {"run: r\nmodel: models/mine\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n",
         "/models/mine: No such file or directory\n"},
        {"run: r\nmodel: ~/m\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n",
         "~/m: No such file or directory; ~ and variables are not replaced in a file: write the whole path\n"},
        {"run: ~/r\nmodel: model\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n",
         ":1:6: pipeline: run: ~/r: ~ and variables are not replaced in a file: write the whole path\n"},
        {HEAD "  - optim: {out: $HOME/out}\n", ":5:18: optim: out: $HOME/out: ~ and variables are not replaced"},
        {"model: model\nstages:\n  - source: {data: train.jsonl}\n  - optim: {}\n", ":1:1: pipeline: missing: run"},
        {HEAD "  - optim: {ranks: 0}\n", ":5:20: optim: ranks: 0 is out of range: 1 to 64"},
        {HEAD "  - optim: {rank_timeout: 0}\n", ":5:27: optim: rank_timeout: 0 is out of range"},
        {HEAD "  - optim: {replicas: 2}\n",
         ":5:23: optim: replicas: must be 1; `ranks` are processes that train together"},
        {HEAD "  - rollout: {ranks: 2}\n", ":5:15: rollout: no such key: ranks; it is a key of optim"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_mistake(cases[i].text, cases[i].said);
}

// libyaml's time grows with the square of the depth: all of this would take a minute.
TEST(deep_nesting_is_refused_at_once) {
    enum { DEPTH = 100000 };
    static const char *const parts[] = {"[", "- ", "{a: ", "[\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        SCOPED(struct buf, buf_release) text = {0};
        const clock_t start = clock(); // the processor's time: a busy machine may let it wait
        for (int depth = 0; depth < DEPTH; depth++) buf_puts(&text, parts[i]);
        expect_mistake(text.data, ": nested more than 100 deep\n");
        assert_true(clock() - start < 10 * CLOCKS_PER_SEC);
    }
}

TEST(all_mistakes_are_said_at_once) {
    static const char text[] = "run: r\n"
                               "modell: model\n"                               // 1
                               "stages:\n"                                     //
                               "  - source: {data: nowhere, format: csv}\n"    // 2, 3
                               "  - frames: {fps: -1, min_frame: 3}\n"         // 4, 5
                               "  - rollout: {on: mars, model: model}\n"       // 6
                               "  - refscore: {model: model, span: [1]}\n"     // 7
                               "  - reward: {method: best, from: roll}\n"      // 8, 9
                               "  - optim: {model: model, lr: fast, lr: 1}\n"; // 10, 11
    struct pipeline *pipeline;
    SCOPED(struct buf, buf_release) mistakes = {0};
    int lines = 0;
    assert_int_equal(read_text(&pipeline, text, NULL, 0, &mistakes), DATAERR);
    for (const char *at = mistakes.data; (at = strchr(at, '\n')); at++) lines++;
    if (lines != 11) assert_string_equal(mistakes.data, "eleven lines");
    assert_non_null(strstr(fail_text(), "11 mistakes"));
}

#define METHOD(name, refscore, optim)                                                                                  \
    HEAD "  - refscore: {" refscore "}\n  - p: {program: cat}\n  - reward: {method: " name "}\n  - optim: {" optim "}" \
         "\n"

// What a method sets in other stages where the file says nothing.
TEST(a_method_sets_keys_of_other_stages) {
    static const struct {
        const char *text, *stage, *key, *value;
    } cases[] = {
        {METHOD("care", "", ""), "optim", "kl", NULL},
        {METHOD("care", "", ""), "optim", "ema_every", NULL},
        {METHOD("care", "", ""), "refscore", "logprobs", NULL},
        {METHOD("grpo", "", ""), "optim", "kl", "0.04"},
        {METHOD("grpo", "", ""), "optim", "ema_every", "0"},
        {METHOD("grpo", "", ""), "refscore", "logprobs", "all"},
        {METHOD("grpo", "", "kl: 0.1"), "optim", "kl", "0.1"},
        {METHOD("nokl", "", ""), "optim", "kl", NULL},
        {METHOD("nokl", "", ""), "optim", "ema_every", "0"},
        {METHOD("nokl", "", "ema_every: 3"), "optim", "ema_every", "3"},
        {METHOD("kl-ema", "", ""), "optim", "kl", "0.04"},
        {METHOD("kl-ema", "", ""), "optim", "ema_every", NULL},
        {METHOD("kl-ema", "", "ema_every: 3"), "optim", "ema_every", "3"},
        {METHOD("kl-ema-ha", "", ""), "refscore", "logprobs", "all"},
        {METHOD("kl-ema-ha", "", ""), "optim", "kl_on", "accurate"},
        {METHOD("kl-ema-ha", "", ""), "optim", "kl_parts", NULL},
        {METHOD("sepkl-ema-ha", "", ""), "optim", "kl", "0.04"},
        {METHOD("sepkl-ema-ha", "", ""), "optim", "kl_on", "accurate"},
        {METHOD("sepkl-ema-ha", "", ""), "optim", "kl_parts", "separate"},
        {METHOD("kl-ema", "", ""), "optim", "kl_on", NULL},
        {METHOD("cora", "", "kl: 0.1, kl_on: accurate"), "optim", "kl_on", "accurate"},
        {METHOD("refgen", "", ""), "optim", "kl", NULL},
        {METHOD("refgen", "", ""), "refscore", "generate", "answer"},
        {METHOD("care", "", ""), "refscore", "generate", NULL},
        {METHOD("care", "generate: answer", ""), "refscore", "generate", "answer"},
        {METHOD("cora", "", ""), "optim", "kl", NULL},
        {METHOD("cora", "", ""), "optim", "ema_every", "0"},
        {METHOD("cora", "", ""), "refscore", "logprobs", NULL},
        {METHOD("cora", "", "kl: 0.1, ema_every: 5"), "refscore", "logprobs", "all"},
        {METHOD("cora", "", "kl: 0.1, ema_every: 5"), "optim", "ema_every", "5"},
        {HEAD "  - p: {program: cat}\n  - optim: {kl: 0.1}\n", "optim", "kl", "0.1"},
        {HEAD "  - p: {program: cat}\n  - reward: {method: cora}\n  - optim: {kl: 0.1}\n", "optim", "kl", "0.1"},
        {HEAD "  - consistency: {model: model}\n  - reward: {method: cora}\n  - optim: {}\n", "optim", "ema_every",
         "0"},
        {HEAD "  - reward: {method: nokl}\n  - optim: {}\n", "optim", "ema_every", "0"},
        {HEAD "  - reward: {method: grpo}\n", "reward", "method", "grpo"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct pipeline *, pipeline_free) pipeline = read_good(cases[i].text, NULL, 0);
        const char *value = pipeline_value(pipeline_find_stage(pipeline, cases[i].stage), cases[i].key);
        if (!value != !cases[i].value) print_error("case %zu: %s\n", i, value ? value : "not set");
        assert_true(!value == !cases[i].value);
        if (value) assert_string_equal(value, cases[i].value);
    }
}

TEST(what_contradicts_a_method_is_refused) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {METHOD("care", "", "kl: 0.1"),
         ":8:17: optim: kl: 0.1 contradicts method care, which has no KL term; leave it out or set 0\n"},
        {METHOD("care", "", "ema_every: 0"), ":8:24: optim: ema_every: 0 contradicts method care, whose reference "
                                             "follows the policy; leave it out or set 10\n"},
        {METHOD("grpo", "", "kl: 0"), ":8:17: optim: kl: 0 contradicts method grpo, which has a KL term; "},
        {METHOD("grpo", "", "ema_every: 10"),
         ":8:24: optim: ema_every: 10 contradicts method grpo, whose reference is frozen; leave it out or set 0\n"},
        {METHOD("grpo", "logprobs: answer", ""), ":5:26: refscore: logprobs: answer contradicts the KL term, which"},
        {METHOD("nokl", "", "kl: 1"), ":8:17: optim: kl: 1 contradicts method nokl, which has no KL term"},
        {METHOD("kl-ema", "", "ema_every: 0"), ":8:24: optim: ema_every: 0 contradicts method kl-ema, whose"},
        {METHOD("kl-ema-ha", "", "kl: 0"), ":8:17: optim: kl: 0 contradicts method kl-ema-ha, which has a KL term"},
        {METHOD("kl-ema-ha", "", "kl_on: all"), ":8:20: optim: kl_on: all contradicts method kl-ema-ha, whose KL term "
                                                "counts the accurate completions; leave it out or set accurate\n"},
        {METHOD("grpo", "", "kl_on: accurate"), ":8:20: optim: kl_on: accurate contradicts method grpo, whose KL"},
        {METHOD("sepkl-ema-ha", "", "kl_parts: whole"),
         ":8:23: optim: kl_parts: whole contradicts method sepkl-ema-ha, whose KL term has a mean for the thinking"},
        {METHOD("kl-ema-ha", "", "kl_parts: separate"), ":8:23: optim: kl_parts: separate contradicts method"},
        {METHOD("sepkl-ema-ha", "", "loss: tokens"), ":7:22: optim: kl_parts: separate does not go with loss: tokens"},
        {METHOD("refgen", "generate: off", ""), ":5:26: refscore: generate: off contradicts method refgen, which needs "
                                                "an answer of the reference's own; leave it out or set answer\n"},
        {METHOD("cora", "logprobs: answer", "kl: 1"), ":5:26: refscore: logprobs: answer contradicts the KL term"},
        {HEAD "  - reward: {method: kl-ema}\n  - optim: {}\n", ":5:22: reward: method kl-ema needs refscore before"},
        {HEAD "  - reward: {method: refgen}\n  - optim: {}\n", ":5:22: reward: method refgen needs refscore before"},
        {HEAD "  - reward: {method: grpo}\n  - p: {program: cat}\n  - optim: {}\n",
         ":5:22: reward: method grpo needs refscore before"},
        {HEAD "  - refscore: {}\n  - reward: {method: cora}\n  - optim: {}\n",
         ":6:22: reward: method cora needs consistency before it, or a program that writes consistency.probability\n"},
        {HEAD "  - consistency: {}\n  - reward: {method: cora}\n  - optim: {}\n",
         ":5:5: consistency: missing: model\n"},
        {HEAD "  - consistency: {model: nowhere}\n  - reward: {method: cora}\n  - optim: {}\n",
         ":5:26: consistency: model: "},
        {HEAD "  - optim: {kl: 0.1}\n", ":5:17: optim: kl above 0 needs refscore before it\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_mistake(cases[i].text, cases[i].says);
        assert_non_null(strstr(fail_text(), "1 mistake"));
    }
}

int main(void) {
    return unit_run(write_files, NULL);
}
