// caravan plan FILE --gpu GPU: what each stage of a pipeline will take of a GPU's memory, of the machine's and of the
// disk, item by item, computed from the model's configuration before anything runs (shared/resources).
#include <stdio.h>
#include <string.h>

#include "shared/resources/resource_plan.h"
#include "tools/check/plan.h"
#include "tools/tools.h"

enum { MEBIBYTE = 1 << 20 };

struct plan_options {
    struct pipeline_file_options file;
    const char *gpu;
    int64_t gpus;                                         // of each machine, 0: not given
    int64_t prompt_tokens, completion_tokens, group_size; // 0: not given
};

static const struct option plan_options[] = {
    {.name = "gpu",
     .offset = offsetof(struct plan_options, gpu),
     .type = OPTION_STRING,
     .help = "h100 (80 GB), h200 (141 GB), a100 (80 GB), a100-40gb, l40s, 4090, or a size such as 24GB or 80GiB "
             "(default: stages without `device` compute on the CPU)"},
    {.name = "gpus",
     .offset = offsetof(struct plan_options, gpus),
     .type = OPTION_INT,
     .low = 1,
     .high = 64,
     .help = "GPUs of each machine: stages that all name one GPU, or none, are spread over them"},
    {.name = "prompt_tokens",
     .offset = offsetof(struct plan_options, prompt_tokens),
     .type = OPTION_INT,
     .low = 1,
     .high = 1 << 24,
     .help = "tokens of the longest prompt, without a rollout (default: the largest clip's or image's, and 1024)"},
    {.name = "completion_tokens",
     .offset = offsetof(struct plan_options, completion_tokens),
     .type = OPTION_INT,
     .low = 1,
     .high = 1 << 24,
     .help = "tokens of the longest completion, without a rollout (default: 1024)"},
    {.name = "group_size",
     .offset = offsetof(struct plan_options, group_size),
     .type = OPTION_INT,
     .low = 1,
     .high = 1 << 16,
     .help = "completions of a group, without a rollout (default: 1)"},
    PIPELINE_SET,
    {0},
};
const struct option_table plan_table = {
    .program = "caravan plan",
    .operands = "FILE|RUN",
    .help = "says what each stage takes of a GPU's memory, of the machine's and of the disk",
    .options = plan_options,
    .size = sizeof(struct plan_options)};

static status plan_capacity(const char *gpu, uint64_t *bytes) {
    static const struct {
        const char *name;
        int mebibytes; // as nvidia-smi says
    } gpus[] = {{"h100", 81559},      {"h200", 143771}, {"a100", 81920},
                {"a100-40gb", 40960}, {"l40s", 46068},  {"4090", 24564}};
    int64_t size = 0;
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        if (strcmp(gpu, gpus[i].name) != 0) continue;
        *bytes = (uint64_t)gpus[i].mebibytes * MEBIBYTE;
        return OK;
    }
    if (!parse_bytes(gpu, &size) || size < 1)
        return fail(USAGE, "--gpu: %s is none of h100, h200, a100, a100-40gb, l40s, 4090 and a size such as 24GB", gpu);
    *bytes = (uint64_t)size;
    return OK;
}

static double plan_gb(uint64_t bytes) {
    return (double)bytes * 1e-9;
}

// ---- a machine ----

// Prints what one stage needs of its device, item by item.
static status plan_print_stage(const struct planned_stage *stage, int replicas) {
    struct memory_item items[MEMORY_ITEMS];
    uint64_t bytes = 0;
    size_t count;
    TRY(planned_stage_needs(stage, items, &count));
    for (size_t i = 0; i < count; i++) bytes += items[i].bytes;
    if (!count) printf("%s: a program of your own, which is not counted", stage->stage->name);
    if (count) printf("%s: %.2f GB", stage->stage->name, plan_gb(bytes));
    printf(replicas > 1 ? ", %d times\n" : "\n", replicas);
    for (size_t i = 0; count > 1 && i < count; i++) printf("  %8.2f  %s\n", plan_gb(items[i].bytes), items[i].name);
    return OK;
}

// Whether the same stages run on both machines.
static bool plan_same_machine(const struct resource_plan *plan, int a, int b) {
    for (size_t i = 0; i < plan->count; i++)
        if (pipeline_stage_runs_on(plan->stages[i].stage, a) != pipeline_stage_runs_on(plan->stages[i].stage, b))
            return false;
    return true;
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

// Prints what is on a device of a machine, and the sum.
static status plan_print_device(const struct resource_plan *plan, const char *device, int machine, uint64_t *total) {
    TRY(resource_plan_memory(plan, device, machine, total)); // before anything is printed
    plan_print_title(plan, device, machine);
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        const int replicas = planned_stage_replicas_on(stage, device, machine, stage->stage->replicas);
        if (replicas) TRY(plan_print_stage(stage, replicas));
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
static status plan_print(const struct resource_plan *plan, uint64_t capacity) {
    const int machines = plan->pipeline->machine_count ? (int)plan->pipeline->machine_count : 1;
    struct buf fitting = {0};
    uint64_t largest = 0, total;
    status result = OK;
    for (int m = 0; m < machines; m++) {
        int before = 0;
        while (before < m && !plan_same_machine(plan, before, m)) before++;
        if (before < m) continue;
        TRY_TO(result, done, plan_print_gpus(plan, m, capacity, &largest, &fitting));
        TRY_TO(result, done, plan_print_device(plan, "cpu", m, &total));
        printf("together %.2f GB of memory\n", plan_gb(total));
        TRY_TO(result, done, plan_print_disk(plan, m));
    }
    if (!plan->on_gpu) printf("no stage computes on a GPU\n");
    if (capacity && largest > capacity)
        result = fail(DATAERR, "the pipeline needs %.2f GB of a GPU that has %.2f%s%s", plan_gb(largest),
                      plan_gb(capacity), fitting.size ? "; it fits with " : "", fitting.size ? fitting.data : "");
done:
    buf_release(&fitting);
    return result;
}

// Spreads the stages over the GPUs of each machine, and prints how to write that.
static status plan_spread(struct pipeline *pipeline, const struct resource_options *options, int gpus) {
    struct resource_plan plan = {0};
    bool placed = false;
    status result = resource_plan_make(&plan, pipeline, options);
    if (result == OK) result = resource_spread(&plan, pipeline, gpus, &placed);
    if (result == OK && placed) printf("spread over %d GPU%s, by\n", gpus, gpus == 1 ? "" : "s");
    for (size_t i = 0; result == OK && placed && i < plan.count; i++) {
        const struct pipeline_stage *stage = plan.stages[i].stage;
        if (plan.stages[i].on_cpu) continue;
        if (stage->replicas > 1) printf("  --set %s.replicas=%d", stage->name, stage->replicas);
        printf("  --set '%s.device=%s'\n", stage->name, pipeline_value(stage, "device"));
    }
    if (result == OK && pipeline_optim(pipeline)) printf("optim is one process on one GPU: it is not divided\n");
    resource_plan_release(&plan);
    return result;
}

int plan_main(int argc, char **argv) {
    struct plan_options given = {0};
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    struct resource_plan plan = {0};
    uint64_t capacity = 0;
    const char *path;
    status result = subcommand_open_pipeline_alone(&pipeline, &options, &plan_table, &given, argc, argv, &path);
    if (result == OK && given.gpu) result = plan_capacity(given.gpu, &capacity);
    const struct resource_options resources = {.gpu = given.gpu != NULL,
                                               .prompt_tokens = given.prompt_tokens,
                                               .completion_tokens = given.completion_tokens,
                                               .group_size = given.group_size};
    if (result == OK && given.gpus && !given.gpu) result = fail(USAGE, "--gpus needs --gpu, which says what they have");
    if (result == OK && given.gpus) result = plan_spread(pipeline, &resources, (int)given.gpus);
    if (result == OK) subcommand_set_publish(pipeline);
    if (result == OK) result = resource_plan_make(&plan, pipeline, &resources);
    if (result == OK) result = plan_print(&plan, capacity);
    resource_plan_release(&plan);
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
