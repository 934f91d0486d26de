// caravan plan FILE --gpu GPU: what each stage of a pipeline will take of a GPU's memory, item by item, computed from
// the model's configuration before anything runs (shared/resources).
#include <stdio.h>
#include <string.h>

#include "shared/config/option_value.h"
#include "shared/resources/resource_plan.h"
#include "tools/tools.h"

enum { MEBIBYTE = 1 << 20 };
// The allowance for the driver's context of one process, for copies and for small buffers.
static const uint64_t process_bytes = 640 * (uint64_t)MEBIBYTE;

struct plan_options {
    struct pipeline_file_options file;
    const char *gpu;
};

static const struct option plan_options[] = {
    {.name = "gpu",
     .offset = offsetof(struct plan_options, gpu),
     .type = OPTION_STRING,
     .required = true,
     .help = "h100 (80 GB), h200 (141 GB), a100 (80 GB), a100-40gb, l40s, 4090, or a size such as 24GB or 80GiB"},
    PIPELINE_SET,
    {0},
};
const struct option_table plan_table = {.program = "caravan plan",
                                        .operands = "FILE",
                                        .help = "says what each stage takes of a GPU's memory",
                                        .options = plan_options,
                                        .size = sizeof(struct plan_options)};

struct gpu_plan {
    uint64_t capacity; // of a GPU
    struct resource_plan stages;
};

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

// *total = the bytes of all stages on a GPU of a machine. Prints the items if `print`.
static status plan_sum(const struct gpu_plan *plan, const char *device, int machine, bool print, uint64_t *total) {
    *total = 0;
    for (size_t i = 0; i < plan->stages.count; i++) {
        const struct planned_stage *stage = &plan->stages.stages[i];
        const int replicas = planned_stage_replicas_on(stage, device, machine, stage->stage->replicas);
        struct memory_item items[MEMORY_ITEMS];
        size_t count;
        if (!replicas) continue;
        TRY(planned_stage_needs(stage, items, &count));
        uint64_t bytes = process_bytes;
        for (size_t k = 0; k < count; k++) bytes += items[k].bytes;
        *total += bytes * (uint64_t)replicas;
        if (!print) continue;
        printf("%s: %.2f GB", stage->stage->name, plan_gb(bytes));
        printf(replicas > 1 ? ", %d times\n" : "\n", replicas);
        for (size_t k = 0; k < count; k++) printf("  %8.2f  %s\n", plan_gb(items[k].bytes), items[k].name);
        printf("  %8.2f  the driver\n", plan_gb(process_bytes));
    }
    return OK;
}

// ---- what to change when it does not fit ----

static void plan_change_precision(struct planned_stage *stage) {
    stage->request.precision = NULL;
}

static void plan_change_gradients(struct planned_stage *stage) {
    stage->request.gradient_precision = NULL;
}

static void plan_change_moments(struct planned_stage *stage) {
    stage->request.moment_precision = NULL;
}

static void plan_change_prompt(struct planned_stage *stage) {
    stage->request.prompt_tokens = (stage->request.prompt_tokens + 1) / 2;
}

static void plan_change_completion(struct planned_stage *stage) {
    stage->request.new_tokens = (stage->request.new_tokens + 1) / 2;
}

static void plan_change_pair(struct planned_stage *stage) {
    stage->text_tokens = (stage->text_tokens + 1) / 2;
}

static void plan_change_vision(struct planned_stage *stage) {
    stage->request.train_vision = false;
}

static const struct plan_change {
    const char *what;
    void (*apply)(struct planned_stage *stage);
} plan_changes[] = {
    {"precision: bfloat16", plan_change_precision},
    {"optim.gradient_precision: bfloat16", plan_change_gradients},
    {"optim.moment_precision: bfloat16", plan_change_moments},
    {"half of rollout.max_prompt_tokens", plan_change_prompt},
    {"half of rollout.max_new_tokens", plan_change_completion},
    {"half of consistency.max_tokens", plan_change_pair},
    {"optim.train_vision: false", plan_change_vision},
};

// Prints what each change would save on a GPU of a machine.
static status plan_advise(const struct gpu_plan *plan, const char *device, int machine, uint64_t total) {
    printf("each of these changes alone would save (GB):\n");
    for (size_t i = 0; i < sizeof plan_changes / sizeof *plan_changes; i++) {
        struct gpu_plan changed = *plan;
        uint64_t bytes;
        for (size_t k = 0; k < changed.stages.count; k++) plan_changes[i].apply(&changed.stages.stages[k]);
        TRY(plan_sum(&changed, device, machine, false, &bytes));
        if (bytes < total) printf("  %8.2f  %s\n", plan_gb(total - bytes), plan_changes[i].what);
    }
    printf("or give a stage another GPU, with `device` or `on`\n");
    return OK;
}

// Whether the same stages run on both machines.
static bool plan_same_machine(const struct gpu_plan *plan, int a, int b) {
    for (size_t i = 0; i < plan->stages.count; i++)
        if (pipeline_stage_runs_on(plan->stages.stages[i].stage, a) !=
            pipeline_stage_runs_on(plan->stages.stages[i].stage, b))
            return false;
    return true;
}

// Prints what is on a GPU of a machine, with the names of all machines that have the same stages. *largest is the most
// bytes of a GPU so far.
static status plan_print_gpu(const struct gpu_plan *plan, const struct pipeline *pipeline, const char *device,
                             int machine, uint64_t *largest) {
    const char *between = " of ";
    uint64_t total;
    printf("%s", device);
    for (int m = machine; m < (int)pipeline->machine_count; m++) {
        if (!plan_same_machine(plan, machine, m)) continue;
        printf("%s%s", between, pipeline->machines[m].name);
        between = ", ";
    }
    printf("\n");
    TRY(plan_sum(plan, device, machine, true, &total));
    printf("together %.2f of %.2f GB\n", plan_gb(total), plan_gb(plan->capacity));
    if (total > plan->capacity) TRY(plan_advise(plan, device, machine, total));
    if (total > *largest) *largest = total;
    return OK;
}

// Prints the GPUs of a machine, each once.
static status plan_print_machine(const struct gpu_plan *plan, const struct pipeline *pipeline, int machine,
                                 uint64_t *largest) {
    for (size_t i = 0; i < plan->stages.count; i++) {
        const struct planned_stage *stage = &plan->stages.stages[i];
        if (!pipeline_stage_runs_on(stage->stage, machine)) continue;
        for (int slot = 0; slot < stage->stage->replicas; slot++) {
            const char *device = stage->devices[slot];
            int before = planned_stage_replicas_on(stage, device, machine, slot);
            for (size_t k = 0; k < i; k++)
                before += planned_stage_replicas_on(&plan->stages.stages[k], device, machine,
                                                    plan->stages.stages[k].stage->replicas);
            if (!before) TRY(plan_print_gpu(plan, pipeline, device, machine, largest));
        }
    }
    return OK;
}

// Prints every GPU's stages and sum. DATAERR if one does not fit.
static status plan_print(const struct gpu_plan *plan, const struct pipeline *pipeline) {
    const int machines = pipeline->machine_count ? (int)pipeline->machine_count : 1;
    uint64_t largest = 0;
    for (int m = 0; m < machines; m++) {
        int before = 0;
        while (before < m && !plan_same_machine(plan, before, m)) before++;
        if (before == m) TRY(plan_print_machine(plan, pipeline, m, &largest));
    }
    if (!plan->stages.count) printf("no stage computes on a GPU\n");
    if (largest <= plan->capacity) return OK;
    return fail(DATAERR, "the pipeline needs %.2f GB of a GPU that has %.2f", plan_gb(largest),
                plan_gb(plan->capacity));
}

int plan_main(int argc, char **argv) {
    struct plan_options given = {0};
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    struct gpu_plan plan = {0};
    const char *path;
    status result = subcommand_open_pipeline(&pipeline, &options, &plan_table, &given, argc, argv, &path);
    if (result == OK) result = plan_capacity(given.gpu, &plan.capacity);
    if (result == OK) result = subcommand_set_publish(pipeline);
    if (result == OK) result = resource_plan_make(&plan.stages, pipeline);
    if (result == OK) result = plan_print(&plan, pipeline);
    resource_plan_release(&plan.stages);
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
