// caravan plan FILE --gpu GPU: what each stage of a pipeline will take of a GPU's memory, of the machine's and of the
// disk, item by item, computed from the model's configuration before anything runs (shared/resources).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/resources/resource_plan.h"
#include "tools/tools.h"

enum { MEBIBYTE = 1 << 20 };

struct plan_options {
    struct pipeline_file_options file;
    const char *gpu;
    int64_t gpus;                                         // of each machine, 0: not given
    int64_t prompt_tokens, completion_tokens, group_size; // 0: not given
};

static const struct option plan_options[] = {
    TOOL_OPTION(plan_options, gpu, OPTION_STRING,
                "h100 (80 GB), h200 (141 GB), a100 (80 GB), a100-40gb, l40s, 4090, or a size such as 24GB or 80GiB "
                "(default: stages without `device` compute on the CPU)"),
    TOOL_OPTION(plan_options, gpus, OPTION_INT,
                "GPUs of each machine: stages that all name one GPU, or none, are spread over them", .low = 1,
                .high = 64),
    TOOL_OPTION(plan_options, prompt_tokens, OPTION_INT,
                "tokens of the longest prompt, without a rollout (default: the largest clip's or image's, and 1024)",
                .low = 1, .high = 1 << 24),
    TOOL_OPTION(plan_options, completion_tokens, OPTION_INT,
                "tokens of the longest completion, without a rollout (default: 1024)", .low = 1, .high = 1 << 24),
    TOOL_OPTION(plan_options, group_size, OPTION_INT, "completions of a group, without a rollout (default: 1)",
                .low = 1, .high = 1 << 16),
    PIPELINE_SET,
    {0},
};
const struct option_table plan_table = {
    .program = "caravan plan",
    .operands = "FILE|RUN",
    .help = "says what each stage takes of a GPU's memory, of the machine's and of the disk",
    .options = plan_options,
    .size = sizeof(struct plan_options)};

static double plan_gb(uint64_t bytes) {
    return (double)bytes * 1e-9;
}

// ---- what to change in a pipeline that does not fit ----

// A number is changed to the largest round value that fits, which is found by computing the sum for one value after
// another.

// A switch, which becomes 0 (a precision that is NULL is bfloat16), or a number with a key of the pipeline.
#define FIELD(member) offsetof(struct planned_stage, member), sizeof((struct planned_stage){0}.member)
static const struct plan_change {
    const char *what;
    const char *given;    // of a number: what it is where there is no rollout
    size_t offset, size;  // in struct planned_stage; a number is an int64_t
    int64_t round, least; // of a number; round is 0 for a switch
} plan_changes[] = {
    {"precision: bfloat16", NULL, FIELD(request.precision), 0, 0},
    {"optim.gradient_precision: bfloat16", NULL, FIELD(request.gradient_precision), 0, 0},
    {"optim.sum_precision: bfloat16", NULL, FIELD(request.sum_precision), 0, 0},
    {"optim.moment_precision: bfloat16", NULL, FIELD(request.moment_precision), 0, 0},
    {"rollout.max_prompt_tokens", "tokens of a prompt (frames.max_frames, frames.max_pixels)",
     FIELD(request.prompt_tokens), 256, 512},
    {"rollout.max_new_tokens", "tokens of a completion", FIELD(request.new_tokens), 64, 64},
    {"source.group_size", "completions of a group", FIELD(request.group_size), 1, 2},
    {"consistency.max_tokens", NULL, FIELD(text_tokens), 256, 512},
    {"optim.train_vision: false", NULL, FIELD(request.train_vision), 0, 0},
};
#undef FIELD

// The number of a stage that a change is about.
static int64_t *plan_number(const struct plan_change *change, struct planned_stage *stage) {
    return (int64_t *)(void *)((char *)stage + change->offset);
}

// *bytes = the sum on a GPU of a machine after a change, with `value` for a number. The plan is as before afterwards.
static status plan_change_sum(struct resource_plan *plan, const struct plan_change *change, int64_t value,
                              const char *device, int machine, uint64_t *bytes) {
    struct planned_stage *const before = plan->stages;
    NEW(&plan->stages, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        struct planned_stage *stage = &plan->stages[i];
        *stage = before[i];
        if (!change->round) memset((char *)stage + change->offset, 0, change->size);
        // A stage without that number has 0.
        if (change->round && *plan_number(change, stage)) *plan_number(change, stage) = value;
    }
    const status result = resource_plan_memory(plan, device, machine, bytes);
    free(plan->stages);
    plan->stages = before;
    return result;
}

// Prints what each change alone would save on a GPU of a machine, which has `capacity` bytes and needs `total`. If
// `fitting` is empty, it gets the first change after which the stages fit. DATAERR as in planned_stage_needs.
static status plan_print_advice(const struct resource_plan *plan, const char *device, int machine, uint64_t capacity,
                                uint64_t total, struct buf *fitting) {
    const bool sampled = pipeline_find_stage(plan->pipeline, "rollout") != NULL;
    struct resource_plan changed = *plan;
    printf("each of these changes alone would save (GB):\n");
    for (size_t i = 0; i < sizeof plan_changes / sizeof *plan_changes; i++) {
        const struct plan_change *change = &plan_changes[i];
        char text[160];
        uint64_t bytes;
        int64_t value = 0;
        if (change->round) {
            // The largest round number below the present one with which the stages fit. The sum grows with the number.
            int64_t now = 0, low = change->least / change->round - 1, high; // low fits, or is below the least
            value = 0;
            for (size_t k = 0; k < changed.count; k++)
                if (*plan_number(change, &changed.stages[k]) > now) now = *plan_number(change, &changed.stages[k]);
            high = (now + change->round - 1) / change->round;
            while (high - low > 1) {
                const int64_t middle = low + (high - low) / 2;
                TRY(plan_change_sum(&changed, change, middle * change->round, device, machine, &bytes));
                if (bytes <= capacity)
                    low = middle;
                else
                    high = middle;
            }
            if (low * change->round >= change->least) value = low * change->round;
            if (!value) value = change->least;
        }
        TRY(plan_change_sum(&changed, change, value, device, machine, &bytes));
        if (bytes >= total) continue;
        snprintf(text, sizeof text, "%s", !sampled && change->given ? change->given : change->what);
        if (change->round) snprintf(text + strlen(text), sizeof text - strlen(text), ": %lld", (long long)value);
        printf("  %8.2f  %s%s\n", (double)(total - bytes) * 1e-9, text, bytes <= capacity ? ", and then it fits" : "");
        if (bytes <= capacity && !fitting->size) buf_puts(fitting, text);
    }
    const struct pipeline_stage *optim = pipeline_optim(plan->pipeline);
    const int ranks = optim && pipeline_stage_ranks(optim) ? optim->replicas : 0;
    printf("or give a stage another GPU, with `device` (--gpus %d shows how) or `on`\n", ranks > 2 ? ranks : 2);
    if (optim && pipeline_stage_runs_on(optim, machine))
        printf("or share optim's arrays among %s GPUs, with optim.ranks and --gpus\n", ranks ? "more" : "several");
    return OK;
}

// ---- a machine ----

// Whether the same stages run on both machines, and neither has the checkpoints alone.
static bool plan_same_machine(const struct resource_plan *plan, int a, int b) {
    const struct pipeline_stage *optim = pipeline_optim(plan->pipeline);
    for (size_t i = 0; i < plan->count; i++)
        if (pipeline_stage_runs_on(plan->stages[i].stage, a) != pipeline_stage_runs_on(plan->stages[i].stage, b))
            return false;
    const int saving = optim ? pipeline_stage_machine(optim, 0) : -1;
    return (a == saving) == (b == saving);
}

// Prints a title with the names of all machines that have the same stages.
static void plan_print_title(const struct resource_plan *plan, const char *title, int machine) {
    const struct pipeline *pipeline = plan->pipeline;
    const char *between = " of ";
    printf("%s", title);
    for (int m = machine; m < (int)pipeline->machine_count; m++) {
        if (!plan_same_machine(plan, machine, m)) continue;
        printf("%s%s", between, pipeline->machines[m].name);
        between = ", ";
    }
    printf("\n");
}

// Prints what is on a device of a machine, each stage item by item. *total = the sum.
static status plan_print_device(const struct resource_plan *plan, const char *device, int machine, uint64_t *total) {
    TRY(resource_plan_memory(plan, device, machine, total)); // before anything is printed
    plan_print_title(plan, device, machine);
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        const int replicas = planned_stage_replicas_on(stage, device, machine, stage->stage->replicas);
        struct memory_item items[MEMORY_ITEMS];
        uint64_t bytes = 0;
        size_t count;
        if (!replicas) continue;
        TRY(planned_stage_needs(stage, items, &count));
        for (size_t k = 0; k < count; k++) bytes += items[k].bytes;
        if (!count) printf("%s: a program of your own, which is not counted", stage->stage->name);
        const int ranks = pipeline_stage_ranks(stage->stage);
        if (count) printf("%s", stage->stage->name);
        if (count && ranks) printf(", one of %d ranks", ranks);
        if (count) printf(": %.2f GB", plan_gb(bytes));
        printf(replicas > 1 ? ", %d times\n" : "\n", replicas);
        for (size_t k = 0; count > 1 && k < count; k++) printf("  %8.2f  %s\n", plan_gb(items[k].bytes), items[k].name);
    }
    return OK;
}

// Prints the GPUs of a machine, each once. *largest is the most bytes of a GPU so far; `fitting` gets a change that
// fits.
static status plan_print_gpus(const struct resource_plan *plan, int machine, uint64_t capacity, uint64_t *largest,
                              struct buf *fitting) {
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        for (int slot = 0; slot < stage->stage->replicas && !stage->on_cpu; slot++) {
            const char *device = stage->devices[slot];
            int before = planned_stage_replicas_on(stage, device, machine, slot);
            uint64_t total;
            for (size_t k = 0; k < i; k++)
                before += planned_stage_replicas_on(&plan->stages[k], device, machine, plan->stages[k].stage->replicas);
            if (before || !pipeline_stage_runs_on(stage->stage, machine)) continue;
            TRY(plan_print_device(plan, device, machine, &total));
            if (capacity) printf("together %.2f of %.2f GB\n", plan_gb(total), plan_gb(capacity));
            if (!capacity) printf("together %.2f GB; --gpu says whether that fits\n", plan_gb(total));
            if (capacity && total > capacity) TRY(plan_print_advice(plan, device, machine, capacity, total, fitting));
            if (total > *largest) *largest = total;
        }
    }
    return OK;
}

// Each rank needs a GPU of its own. DATAERR.
static status plan_check_ranks(const struct resource_plan *plan) {
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        const int ranks = pipeline_stage_ranks(stage->stage) ? stage->stage->replicas : 0;
        const int machine = ranks ? pipeline_stage_machine(stage->stage, 0) : 0;
        for (int slot = 0; slot < ranks && !stage->on_cpu && strcmp(stage->devices[slot], "emulated") != 0; slot++)
            if (planned_stage_replicas_on(stage, stage->devices[slot], machine, slot))
                return fail(DATAERR,
                            "%s.device: %d ranks would share %s: each needs a GPU of its own, as cuda:[0-%d] says, or "
                            "--gpus",
                            stage->stage->name, ranks, stage->devices[slot], ranks - 1);
    }
    return OK;
}

// Prints what the run writes on a machine.
static status plan_print_disk(const struct resource_plan *plan, int machine) {
    struct disk_needs needs;
    TRY(resource_plan_disk(plan, machine, &needs));
    plan_print_title(plan, "disk", machine);
    if (needs.checkpoints)
        printf("  %8.2f  checkpoints: %lld of %.2f GB at a time\n",
               plan_gb((uint64_t)needs.checkpoints * needs.checkpoint), (long long)needs.checkpoints,
               plan_gb(needs.checkpoint));
    else if (needs.checkpoint)
        printf("  %8.2f  each checkpoint, and all stay: optim.keep says how many\n", plan_gb(needs.checkpoint));
    if (needs.state) printf("  %8.2f  the training state between two checkpoints\n", plan_gb(needs.state));
    if (needs.copies)
        printf("  %8.2f  weights: %d files of %.2f GB\n", plan_gb((uint64_t)needs.copies * needs.published),
               needs.copies, plan_gb(needs.published));
    if (needs.frames) printf("  %8.2f  frames of the store, by store_limit\n", plan_gb(needs.frames));
    if (!needs.frames && plan->medium)
        printf("            frames of the store: %.4f GB a clip at most, without a limit (frames.store_limit)\n",
               plan_gb(plan->medium));
    if (needs.groups) printf("  %8.2f  groups of the store, by store_keep\n", plan_gb(needs.groups));
    printf("together %.2f GB\n", plan_gb(disk_needs_sum(&needs)));
    return OK;
}

// Prints every GPU's stages and sum, and what each machine needs besides. DATAERR if a GPU is too small.
status plan_main(struct subcommand_call *call) {
    static const struct {
        const char *name;
        int mebibytes; // as nvidia-smi says
    } gpus[] = {{"h100", 81559},      {"h200", 143771}, {"a100", 81920},
                {"a100-40gb", 40960}, {"l40s", 46068},  {"4090", 24564}};
    const struct plan_options *given = call->given;
    const char *gpu = given->gpu;
    struct pipeline *pipeline = call->pipeline;
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    const int machines = pipeline->machine_count ? (int)pipeline->machine_count : 1;
    struct resource_plan plan = {0};
    struct buf fitting = {0};
    int64_t capacity = 0; // of a GPU; 0: not given
    uint64_t largest = 0, total;
    bool placed = false;
    status result;
    for (size_t i = 0; gpu && i < sizeof gpus / sizeof *gpus; i++)
        if (!strcmp(gpu, gpus[i].name)) capacity = (int64_t)gpus[i].mebibytes * MEBIBYTE;
    if (gpu && !capacity && (!parse_bytes(gpu, &capacity) || capacity < 1))
        return fail(USAGE, "--gpu: %s is none of h100, h200, a100, a100-40gb, l40s, 4090 and a size such as 24GB", gpu);
    if (given->gpus && !gpu) return fail(USAGE, "--gpus needs --gpu, which says what they have");
    const struct resource_options resources = {.gpu = gpu != NULL,
                                               .prompt_tokens = given->prompt_tokens,
                                               .completion_tokens = given->completion_tokens,
                                               .group_size = given->group_size};
    if (given->gpus) { // the stages are spread over the GPUs of each machine, and it is printed how to write that
        TRY_TO(result, done, resource_plan_make(&plan, pipeline, &resources));
        TRY_TO(result, done, resource_spread(&plan, pipeline, (int)given->gpus, &placed));
        if (placed) printf("spread over %d GPU%s, by\n", (int)given->gpus, given->gpus == 1 ? "" : "s");
        for (size_t i = 0; placed && i < plan.count; i++) {
            const struct pipeline_stage *stage = plan.stages[i].stage;
            if (plan.stages[i].on_cpu) continue;
            if (stage->replicas > 1 && !pipeline_stage_ranks(stage))
                printf("  --set %s.replicas=%d", stage->name, stage->replicas);
            printf("  --set '%s.device=%s'\n", stage->name, pipeline_value(stage, "device"));
        }
        if (optim && !pipeline_stage_ranks(optim))
            printf("optim is one process on one GPU: optim.ranks shares its work among several\n");
        resource_plan_release(&plan);
    }
    subcommand_set_publish(pipeline);
    TRY_TO(result, done, resource_plan_make(&plan, pipeline, &resources));
    TRY_TO(result, done, plan_check_ranks(&plan));
    if (pipeline->slurm && !pipeline->slurm_job)
        log_info(
            "outside a Slurm job all stages are counted on one node; with SLURM_JOB_NODELIST='n[1-2]' set, on two");
    for (int m = 0; m < machines; m++) {
        int before = 0;
        while (before < m && !plan_same_machine(&plan, before, m)) before++;
        if (before < m) continue;
        TRY_TO(result, done, plan_print_gpus(&plan, m, (uint64_t)capacity, &largest, &fitting));
        TRY_TO(result, done, plan_print_device(&plan, "cpu", m, &total));
        printf("together %.2f GB of memory\n", plan_gb(total));
        TRY_TO(result, done, plan_print_disk(&plan, m));
    }
    if (!plan.on_gpu) printf("no stage computes on a GPU\n");
    if (capacity && largest > (uint64_t)capacity)
        result =
            fail(DATAERR, "the pipeline needs %.2f GB of a GPU that has %.2f%s%s", plan_gb(largest),
                 plan_gb((uint64_t)capacity), fitting.size ? "; it fits with " : "", fitting.size ? fitting.data : "");
done:
    buf_release(&fitting);
    resource_plan_release(&plan);
    return result;
}
