// caravan plan FILE --gpu GPU: what each stage of a pipeline will take of a GPU's memory, item by item, computed from
// the model's configuration before anything runs.
//
// The largest group counts: a prompt of rollout's max_prompt_tokens, all of them media, and group_size completions of
// max_new_tokens. Replicas on one machine with the same `device` share its GPU, and the weights where caravan run lets
// rollout and refscore use those of optim.
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "shared/config/device_list.h"
#include "shared/config/option_value.h"
#include "shared/config/stage_options.h"
#include "shared/model/classifier.h"
#include "shared/model/model.h"
#include "tools/tools.h"

enum { PLANNED_STAGES = 64, MEBIBYTE = 1 << 20 };
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

// A stage that computes on a GPU.
struct planned_stage {
    const struct pipeline_stage *stage;
    const char *dir;
    const char **devices; // of the replicas on a machine
    struct memory_request request;
    int64_t text_tokens, batch_tokens; // a classifier's max_tokens and batch_tokens; otherwise 0
};

struct memory_plan {
    uint64_t capacity;
    struct arena arena;
    struct planned_stage stages[PLANNED_STAGES];
    size_t count;
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

// The options of every stage that has a model, whatever its kind.
union model_stage_options {
    struct stage_model_options model;
    struct rollout_options rollout;
    struct refscore_options refscore;
    struct consistency_options consistency;
    struct judge_options judge;
    struct optim_options optim;
};

// Adds a stage unless it computes on the CPU. `group` has the sizes of the largest group.
static status plan_add_stage(struct memory_plan *plan, const struct pipeline_stage *stage,
                             const struct memory_request *group) {
    union model_stage_options values;
    struct options options = {0};
    status result = pipeline_options(stage, &options, &values);
    const struct stage_model_options *model = &values.model;
    if (result == OK && (!model->common.device || strcmp(model->common.device, "cpu") != 0)) {
        if (plan->count == PLANNED_STAGES) TRY_TO(result, done, fail(DATAERR, "more than %d stages", PLANNED_STAGES));
        struct planned_stage *planned = &plan->stages[plan->count++];
        *planned =
            (struct planned_stage){.stage = stage,
                                   .dir = arena_strndup(&plan->arena, model->dir, strlen(model->dir)),
                                   .devices = arena_alloc(&plan->arena, (size_t)stage->replicas * sizeof(char *)),
                                   .request = *group};
        if (!planned->dir || !planned->devices) TRY_TO(result, done, fail_oom());
        for (int slot = 0; slot < stage->replicas; slot++) {
            const char **device = &planned->devices[slot];
            TRY_TO(result, done,
                   device_of_slot(model->common.device ? model->common.device : "cuda", slot, &plan->arena, device));
            if (!strcmp(*device, "cuda:0")) *device = "cuda";
        }
        struct memory_request *request = &planned->request;
        // Copies of the names, which end with the options; bfloat16 is a GPU's default.
        request->precision = model->common.precision && !strcmp(model->common.precision, "float32") ? "float32" : NULL;
        request->generates = stage->kind == &stage_kinds[STAGE_ROLLOUT];
        request->training = stage->kind == &stage_kinds[STAGE_OPTIM];
        request->borrows = group->borrows && stage->kind->follows_weights;
        if (stage->kind == &stage_kinds[STAGE_REFSCORE] && values.refscore.generate == REFSCORE_GENERATE_ANSWER)
            request->continued_tokens = values.refscore.generate_tokens;
        if (stage->kind == &stage_kinds[STAGE_CONSISTENCY]) {
            planned->text_tokens = values.consistency.max_tokens;
            planned->batch_tokens = values.consistency.batch_tokens;
        }
        if (request->training) {
            const struct optim_options *optim = &values.optim;
            request->train_vision = optim->train_vision;
            request->ema = optim->ema_every > 0;
            bool wide = optim->gradient_precision && !strcmp(optim->gradient_precision, "float32");
            request->gradient_precision = wide ? "float32" : NULL;
            wide = optim->moment_precision && !strcmp(optim->moment_precision, "float32");
            request->moment_precision = wide ? "float32" : NULL;
        }
    }
done:
    options_release(&options);
    return result;
}

// Whether the stage has a model. The judge's question has no media and its answers are letters: a group of rollout's
// has room for both.
static bool plan_has_model(const struct pipeline_stage *stage) {
    const char *judge = stage->kind == &stage_kinds[STAGE_JUDGE] ? pipeline_value(stage, "judge") : NULL;
    return stage->kind == &stage_kinds[STAGE_OPTIM] || stage->kind == &stage_kinds[STAGE_CONSISTENCY] ||
           (stage->kind && stage->kind->follows_weights) || (judge && !strcmp(judge, "likelihood"));
}

static status plan_make(struct memory_plan *plan, struct pipeline *pipeline) {
    const struct pipeline_stage *rollout = pipeline_find_stage(pipeline, "rollout");
    if (!rollout || rollout->kind != &stage_kinds[STAGE_ROLLOUT])
        return fail(DATAERR, "there is no rollout, whose options say how long a group may be");
    struct rollout_options values;
    struct options options = {0};
    struct memory_request group = {0};
    status result = pipeline_options(rollout, &options, &values);
    if (result == OK) {
        group.prompt_tokens = values.max_prompt_tokens;
        group.group_size = values.group_size;
        group.new_tokens = values.max_new_tokens;
    }
    options_release(&options);
    if (result == OK) result = subcommand_set_publish(pipeline);
    const char *publish = pipeline_value(&pipeline->stages[pipeline->stage_count - 1], "publish");
    group.borrows = publish && strcmp(publish, "lend") == 0;
    for (size_t i = 0; result == OK && i < pipeline->stage_count; i++)
        if (plan_has_model(&pipeline->stages[i])) result = plan_add_stage(plan, &pipeline->stages[i], &group);
    return result;
}

static double plan_gb(uint64_t bytes) {
    return (double)bytes * 1e-9;
}

// Counts the stage's replicas that use a GPU of a machine, up to the one with the slot `end`.
static int plan_replicas_on(const struct planned_stage *stage, const char *device, int machine, int end) {
    int count = 0;
    for (int slot = 0; slot < end && pipeline_stage_runs_on(stage->stage, machine); slot++)
        count += strcmp(stage->devices[slot], device) == 0;
    return count;
}

// What one replica of a stage needs. A classifier's batch ends with the group that fills it.
static status plan_needs(const struct planned_stage *stage, struct memory_item *items, size_t *count) {
    const struct memory_request *request = &stage->request;
    if (!stage->text_tokens) return model_memory_needs(stage->dir, request, items, count);
    int64_t tokens = stage->batch_tokens - 1 + request->group_size * stage->text_tokens;
    return classifier_memory_needs(stage->dir, request->precision, stage->text_tokens, tokens, items, count);
}

// *total = the bytes of all stages on a GPU of a machine. Prints the items if `print`.
static status plan_sum(const struct memory_plan *plan, const char *device, int machine, bool print, uint64_t *total) {
    *total = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        const int replicas = plan_replicas_on(stage, device, machine, stage->stage->replicas);
        struct memory_item items[MEMORY_ITEMS];
        size_t count;
        if (!replicas) continue;
        TRY(plan_needs(stage, items, &count));
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
static status plan_advise(const struct memory_plan *plan, const char *device, int machine, uint64_t total) {
    printf("each of these changes alone would save (GB):\n");
    for (size_t i = 0; i < sizeof plan_changes / sizeof *plan_changes; i++) {
        struct memory_plan changed = *plan;
        uint64_t bytes;
        for (size_t k = 0; k < changed.count; k++) plan_changes[i].apply(&changed.stages[k]);
        TRY(plan_sum(&changed, device, machine, false, &bytes));
        if (bytes < total) printf("  %8.2f  %s\n", plan_gb(total - bytes), plan_changes[i].what);
    }
    printf("or give a stage another GPU, with `device` or `on`\n");
    return OK;
}

// Whether the same stages run on both machines.
static bool plan_same_machine(const struct memory_plan *plan, int a, int b) {
    for (size_t i = 0; i < plan->count; i++)
        if (pipeline_stage_runs_on(plan->stages[i].stage, a) != pipeline_stage_runs_on(plan->stages[i].stage, b))
            return false;
    return true;
}

// Prints what is on a GPU of a machine, with the names of all machines that have the same stages. *largest is the most
// bytes of a GPU so far.
static status plan_print_gpu(const struct memory_plan *plan, const struct pipeline *pipeline, const char *device,
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
static status plan_print_machine(const struct memory_plan *plan, const struct pipeline *pipeline, int machine,
                                 uint64_t *largest) {
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        if (!pipeline_stage_runs_on(stage->stage, machine)) continue;
        for (int slot = 0; slot < stage->stage->replicas; slot++) {
            const char *device = stage->devices[slot];
            int before = plan_replicas_on(stage, device, machine, slot);
            for (size_t k = 0; k < i; k++)
                before += plan_replicas_on(&plan->stages[k], device, machine, plan->stages[k].stage->replicas);
            if (!before) TRY(plan_print_gpu(plan, pipeline, device, machine, largest));
        }
    }
    return OK;
}

// Prints every GPU's stages and sum. DATAERR if one does not fit.
static status plan_print(const struct memory_plan *plan, const struct pipeline *pipeline) {
    const int machines = pipeline->machine_count ? (int)pipeline->machine_count : 1;
    uint64_t largest = 0;
    for (int m = 0; m < machines; m++) {
        int before = 0;
        while (before < m && !plan_same_machine(plan, before, m)) before++;
        if (before == m) TRY(plan_print_machine(plan, pipeline, m, &largest));
    }
    if (!plan->count) printf("no stage computes on a GPU\n");
    if (largest <= plan->capacity) return OK;
    return fail(DATAERR, "the pipeline needs %.2f GB of a GPU that has %.2f", plan_gb(largest),
                plan_gb(plan->capacity));
}

int plan_main(int argc, char **argv) {
    struct plan_options given = {0};
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    struct memory_plan plan = {0};
    const char *path;
    status result = subcommand_open_pipeline(&pipeline, &options, &plan_table, &given, argc, argv, &path);
    if (result == OK) result = plan_capacity(given.gpu, &plan.capacity);
    if (result == OK) result = plan_make(&plan, pipeline);
    if (result == OK) result = plan_print(&plan, pipeline);
    arena_release(&plan.arena);
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
