// What a pipeline needs of machines and disks, and where its processes go on several GPUs.
#include "tests/unit/unit.h"

#include <string.h>

#include "shared/base/file.h"
#include "shared/resources/resource_plan.h"

// Reads a pipeline with shapes for models. The stages are those of a training unless given.
static struct pipeline *read_pipeline(const char *top, const char *stages, const char *const *sets, size_t count) {
    struct pipeline *pipeline = NULL;
    SCOPED(struct buf, buf_release) diagnostics = {0}, text = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/file.yaml", unit_directory());
    buf_printf(&text, "run: run\nmodel: 3b\n%s\nstages:\n%s", top, stages);
    assert_int_equal(file_write_atomic(path, text.data, text.size), OK);
    const status result = pipeline_read(&pipeline, path, true, sets, count, &diagnostics);
    if (result != OK) print_error("%.*s\n", (int)diagnostics.size, diagnostics.data ? diagnostics.data : "");
    assert_int_equal(result, OK);
    return pipeline;
}

static const char training[] = "  - source: {data: none.jsonl}\n  - frames: {}\n  - rollout: {max_prompt_tokens: 512}\n"
                               "  - refscore: {}\n  - reward: {}\n  - optim: {}\n";

static void disk_of(struct disk_needs *needs, const char *const *sets, size_t count) {
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_pipeline("", training, sets, count);
    SCOPED(struct resource_plan, resource_plan_release) plan = {0};
    assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){0}), OK);
    assert_int_equal(resource_plan_disk(&plan, 0, needs), OK);
}

TEST(checkpoints_on_the_disk_are_counted) {
    static const struct {
        const char *sets[4];
        int64_t checkpoints; // 0: all stay
    } cases[] = {
        {{"optim.ema_every=1"}, 1}, // the last step's
        {{"optim.save_every=100"}, 0},
        {{"optim.save_every=100", "optim.keep=2"}, 3},
        {{"optim.save_every=100", "optim.keep=2", "source.max_steps=150"}, 2},
        {{"optim.save_every=100", "source.max_steps=950"}, 10},
        {{"optim.save_every=100", "source.limit=1000", "source.epochs=2"}, 5}, // 4 groups a step
        {{"optim.save_every=100", "optim.keep=2", "optim.keep_every=500"}, 0},
        {{"optim.save_every=100", "optim.keep=2", "optim.keep_every=500", "source.max_steps=5000"}, 13},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct disk_needs needs;
        size_t count = 0;
        while (count < 4 && cases[i].sets[count]) count++;
        disk_of(&needs, cases[i].sets, count);
        assert_int_equal(needs.checkpoints, cases[i].checkpoints);
        assert_true(needs.checkpoint > needs.state && needs.state > 4 * needs.published / 2);
        const int64_t counted = cases[i].checkpoints ? cases[i].checkpoints : 1;
        assert_int_equal(disk_needs_sum(&needs),
                         (uint64_t)counted * needs.checkpoint + needs.state + 6 * needs.published);
    }
}

TEST(adapters_are_planned_with_the_rank_of_their_directory) {
    // Adapters of "even" do not fit a shape that has a name, so the model is that directory.
    static const char *const given[] = {"model=tests/data/model/even", "optim.adapter=tests/data/adapters/even",
                                        "optim.save_every=100"},
                             *const asked[] = {"model=tests/data/model/even", "optim.lora=3", "optim.save_every=100"},
                             *const wrong[] = {"model=3b", "optim.adapter=tests/data/adapters/even"};
    struct disk_needs by_directory, by_rank, all;
    disk_of(&by_directory, given, 3);
    disk_of(&by_rank, asked, 3);
    assert_memory_equal(&by_directory, &by_rank, sizeof by_rank);
    disk_of(&all, (const char *const[]){"model=tests/data/model/even", "optim.save_every=100"}, 2);
    assert_true(by_rank.checkpoint < all.checkpoint / 4 && by_rank.published < all.published / 4);
    SCOPED(struct pipeline *, pipeline_free) pipeline = read_pipeline("", training, given, 3);
    SCOPED(struct resource_plan, resource_plan_release) plan = {0};
    assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){0}), OK);
    for (size_t i = 0; i < plan.count; i++) assert_int_equal(plan.stages[i].request.lora, plan.stages[i].model ? 3 : 0);
    pipeline_free(&pipeline);
    resource_plan_release(&plan);
    pipeline = read_pipeline("", training, wrong, 2);
    assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){0}), DATAERR);
    assert_non_null(strstr(fail_text(), "not adapters of 3b"));
}

TEST(a_reference_that_stands_still_is_not_borrowed) {
    for (int frozen = 0; frozen < 2; frozen++) {
        const char *const sets[] = {"device=cuda", "optim.publish=lend", "optim.lora=8",
                                    frozen ? "reward.method=grpo" : "reward.method=care"};
        SCOPED(struct pipeline *, pipeline_free) pipeline = read_pipeline("", training, sets, 4);
        SCOPED(struct resource_plan, resource_plan_release) plan = {0};
        assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){0}), OK);
        for (size_t i = 0; i < plan.count; i++) {
            const struct memory_request *request = &plan.stages[i].request;
            const char *stage = plan.stages[i].stage->name;
            if (!plan.stages[i].model) continue;
            const bool borrows = !strcmp(stage, "rollout") || (!strcmp(stage, "refscore") && !frozen);
            assert_int_equal(request->borrows, borrows);
            assert_int_equal(request->borrows_base, borrows);
        }
    }
}

TEST(files_of_weights_are_counted) {
    struct disk_needs needs;
    disk_of(&needs, (const char *[]){"optim.ema_every=0", "reward.method=nokl", "frames.store_limit=1GB"}, 3);
    assert_int_equal(needs.copies, 3); // of the policy alone
    assert_int_equal(needs.frames, 1000000000);
    disk_of(&needs, (const char *[]){"optim.publish=lend"}, 1);
    assert_int_equal(needs.copies, 6); // the CPU lends nothing
    disk_of(&needs, (const char *[]){"optim.publish=lend", "device=cuda"}, 2);
    assert_int_equal(needs.copies, 0);
}

// Ranks of other machines write nothing.
TEST(only_the_machine_of_the_first_rank_has_checkpoints) {
    SCOPED(struct pipeline *, pipeline_free)
    pipeline = read_pipeline("machines: {a: {address: a}, b: {address: b}}", training,
                             (const char *[]){"optim.on=b,a", "rollout.on=b", "refscore.on=b"}, 3);
    SCOPED(struct resource_plan, resource_plan_release) plan = {0};
    struct disk_needs needs;
    assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){0}), OK);
    assert_int_equal(resource_plan_disk(&plan, 0, &needs), OK);
    assert_true(!needs.checkpoint && !needs.state && !needs.copies);
    assert_int_equal(resource_plan_disk(&plan, 1, &needs), OK);
    assert_true(needs.checkpoint > needs.state && needs.state && needs.copies);
}

// A process of its own for each stage with a model on the CPU, whatever the others name.
TEST(memory_is_added_up_by_device) {
    struct pipeline *pipeline =
        read_pipeline("", training, (const char *[]){"refscore.device=cuda:1", "rollout.replicas=2"}, 2);
    SCOPED(struct resource_plan, resource_plan_release) plan = {0};
    uint64_t cpu, gpu, other, more;
    assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){0}), OK);
    assert_int_equal(plan.on_gpu, 1);
    assert_int_equal(resource_plan_memory(&plan, "cpu", 0, &cpu), OK);
    assert_int_equal(resource_plan_memory(&plan, "cuda:1", 0, &gpu), OK);
    assert_int_equal(resource_plan_memory(&plan, "cuda", 0, &other), OK);
    assert_true(other == 0 && gpu > UINT64_C(8000000000) && gpu < UINT64_C(16000000000));
    resource_plan_release(&plan);
    // 3.75 G parameters: two samplers with 4 bytes each, a tied head beside the embedding, and optim with 20.
    assert_true(cpu > UINT64_C(28) * 3754622976 && cpu < UINT64_C(35) * 3754622976);
    assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){.gpu = true}), OK);
    assert_int_equal(resource_plan_memory(&plan, "cuda", 0, &more), OK);
    assert_true(more > cpu / 3 && plan.on_gpu == 3);
    pipeline_free(&pipeline);
}

static void expect_device(const struct pipeline *pipeline, const char *stage, const char *device, int replicas) {
    const struct pipeline_stage *found = pipeline_find_stage(pipeline, stage);
    assert_string_equal(pipeline_value(found, "device"), device);
    assert_int_equal(found->replicas, replicas);
}

TEST(processes_are_spread_over_the_gpus) {
    static const struct {
        int gpus;
        const char *rollout, *refscore;
        int replicas;
    } cases[] = {{2, "cuda:1", "cuda:1", 1}, {3, "cuda:1", "cuda:2", 1}, {5, "cuda:[1,3,4]", "cuda:2", 3}};
    const struct resource_options options = {.gpu = true};
    SCOPED(struct resource_plan, resource_plan_release) plan = {0};
    SCOPED(struct pipeline *, pipeline_free) pipeline = NULL;
    bool placed;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pipeline = read_pipeline("", training, NULL, 0);
        assert_int_equal(resource_plan_make(&plan, pipeline, &options), OK);
        assert_int_equal(resource_spread(&plan, pipeline, cases[i].gpus, &placed), OK);
        assert_true(placed);
        expect_device(pipeline, "optim", "cuda:0", 1);
        expect_device(pipeline, "rollout", cases[i].rollout, cases[i].replicas);
        expect_device(pipeline, "refscore", cases[i].refscore, 1);
        resource_plan_release(&plan);
        pipeline_free(&pipeline);
    }
    // What names GPUs stays, if there are so many.
    pipeline = read_pipeline("", training, (const char *[]){"rollout.device=cuda:[0-2]", "rollout.replicas=3"}, 2);
    assert_int_equal(resource_plan_make(&plan, pipeline, &options), OK);
    assert_int_equal(resource_spread(&plan, pipeline, 3, &placed), OK);
    assert_false(placed);
    assert_int_equal(resource_spread(&plan, pipeline, 2, &placed), USAGE);
    assert_string_equal(fail_text(), "rollout.device: cuda:2, but --gpus is 2");
}

// Ranks need GPUs of their own; who has them already gets less of the rest.
TEST(each_rank_gets_a_gpu_of_its_own) {
    const struct resource_options options = {.gpu = true};
    SCOPED(struct resource_plan, resource_plan_release) plan = {0};
    SCOPED(struct pipeline *, pipeline_free) pipeline = NULL;
    uint64_t alone, one, all;
    bool placed;
    pipeline = read_pipeline("", training, NULL, 0);
    assert_int_equal(resource_plan_make(&plan, pipeline, &options), OK);
    assert_int_equal(planned_stage_bytes(&plan.stages[plan.count - 1], &alone), OK);
    resource_plan_release(&plan);
    pipeline_free(&pipeline);
    pipeline = read_pipeline("", training, (const char *[]){"optim.ranks=3"}, 1);
    assert_int_equal(resource_plan_make(&plan, pipeline, &options), OK);
    assert_int_equal(resource_plan_memory(&plan, "cuda", 0, &all), OK);
    assert_int_equal(planned_stage_bytes(&plan.stages[plan.count - 1], &one), OK);
    assert_true(all > 3 * one && one < alone * 2 / 3); // moments, sums and remainders are divided
    assert_int_equal(resource_spread(&plan, pipeline, 2, &placed), USAGE);
    assert_string_equal(fail_text(), "optim.ranks: 3 ranks need so many GPUs, but --gpus is 2");
    assert_int_equal(resource_spread(&plan, pipeline, 3, &placed), OK);
    expect_device(pipeline, "optim", "cuda:[0,1,2]", 3);
    expect_device(pipeline, "rollout", "cuda:0", 1);
    expect_device(pipeline, "refscore", "cuda:1", 1);
}

// On each of several machines, the same GPUs have what runs there.
TEST(each_machine_has_the_processes_that_run_there) {
    struct pipeline *pipeline =
        read_pipeline("machines: {a: {address: a}, b: {address: b}}", training,
                      (const char *[]){"rollout.on=b", "rollout.replicas=2", "refscore.on=b", "optim.on=a"}, 4);
    SCOPED(struct resource_plan, resource_plan_release) plan = {0};
    struct disk_needs needs;
    bool placed;
    assert_int_equal(resource_plan_make(&plan, pipeline, &(struct resource_options){.gpu = true}), OK);
    assert_int_equal(resource_plan_disk(&plan, 1, &needs), OK); // b reads optim's weights, and has no checkpoint
    assert_true(needs.copies == 6 && !needs.checkpoint && !needs.checkpoints);
    assert_int_equal(resource_spread(&plan, pipeline, 2, &placed), OK);
    expect_device(pipeline, "optim", "cuda:0", 1);
    expect_device(pipeline, "rollout", "cuda:[0,1]", 2);
    expect_device(pipeline, "refscore", "cuda:0", 1);
    pipeline_free(&pipeline);
}

TEST(what_this_machine_lacks_is_said) {
    SCOPED(struct buf, buf_release) lines = {0};
    assert_true(machine_memory_available() > 0);
    SCOPED(struct pipeline *, pipeline_free)
    pipeline = read_pipeline("device: cpu", training, (const char *[]){"model=tiny"}, 1);
    assert_int_equal(machine_resources_check(pipeline, 0, &lines), OK);
    assert_int_equal(lines.size, 0);
    pipeline_free(&pipeline);
    pipeline = read_pipeline("device: cpu", training,
                             (const char *[]){"refscore.replicas=256", "optim.save_every=1", "optim.keep=10000000"}, 3);
    assert_int_equal(machine_resources_check(pipeline, 0, &lines), OK);
    assert_non_null(strstr(lines.data, "memory: the run needs "));
    assert_non_null(strstr(lines.data, " GB, refscore "));
    assert_non_null(strstr(lines.data, "\ndisk: the run needs "));
    assert_non_null(strstr(lines.data, "; 10000001 checkpoints of "));
    pipeline_free(&pipeline);
    buf_clear(&lines); // what a model lacks is for others to say
    pipeline = read_pipeline("device: cpu", training, (const char *[]){"model=nowhere"}, 1);
    assert_int_equal(machine_resources_check(pipeline, 0, &lines), DATAERR);
}
