// What to change in a pipeline that does not fit. A number is changed to the largest round value that fits, which is
// found by computing the sum for one value after another.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check/plan.h"

static void plan_narrow_precision(struct planned_stage *stage) {
    stage->request.precision = NULL;
}

static void plan_narrow_gradients(struct planned_stage *stage) {
    stage->request.gradient_precision = NULL;
}

static void plan_narrow_moments(struct planned_stage *stage) {
    stage->request.moment_precision = NULL;
}

static void plan_freeze_vision(struct planned_stage *stage) {
    stage->request.train_vision = false;
}

static int64_t *plan_prompt_tokens(struct planned_stage *stage) {
    return &stage->request.prompt_tokens;
}

static int64_t *plan_new_tokens(struct planned_stage *stage) {
    return &stage->request.new_tokens;
}

static int64_t *plan_group_size(struct planned_stage *stage) {
    return &stage->request.group_size;
}

static int64_t *plan_text_tokens(struct planned_stage *stage) {
    return &stage->text_tokens;
}

// A switch, or a number with a key of the pipeline.
static const struct plan_change {
    const char *what;
    void (*apply)(struct planned_stage *stage);
    const char *given; // of a number: what it is where there is no rollout
    int64_t *(*number)(struct planned_stage *stage);
    int64_t round, least;
} plan_changes[] = {
    {.what = "precision: bfloat16", .apply = plan_narrow_precision},
    {.what = "optim.gradient_precision: bfloat16", .apply = plan_narrow_gradients},
    {.what = "optim.moment_precision: bfloat16", .apply = plan_narrow_moments},
    {.what = "rollout.max_prompt_tokens",
     .given = "tokens of a prompt (frames.max_frames, frames.max_pixels)",
     .number = plan_prompt_tokens,
     .round = 256,
     .least = 512},
    {.what = "rollout.max_new_tokens",
     .given = "tokens of a completion",
     .number = plan_new_tokens,
     .round = 64,
     .least = 64},
    {.what = "source.group_size", .given = "completions of a group", .number = plan_group_size, .round = 1, .least = 2},
    {.what = "consistency.max_tokens", .number = plan_text_tokens, .round = 256, .least = 512},
    {.what = "optim.train_vision: false", .apply = plan_freeze_vision},
};

// *bytes = the sum on a GPU of a machine after a change, with `value` for a number. The plan is as before afterwards.
static status plan_change_sum(struct resource_plan *plan, const struct plan_change *change, int64_t value,
                              const char *device, int machine, uint64_t *bytes) {
    struct planned_stage *const before = plan->stages;
    NEW(&plan->stages, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        plan->stages[i] = before[i];
        if (change->apply) change->apply(&plan->stages[i]);
        // A stage without that number has 0.
        if (change->number && *change->number(&plan->stages[i])) *change->number(&plan->stages[i]) = value;
    }
    const status result = resource_plan_memory(plan, device, machine, bytes);
    free(plan->stages);
    plan->stages = before;
    return result;
}

// *value = the largest round number below the present one with which the stages fit, 0 if there is none. The sum grows
// with the number.
static status plan_find_number(struct resource_plan *plan, const struct plan_change *change, const char *device,
                               int machine, uint64_t capacity, int64_t *value) {
    uint64_t bytes;
    int64_t now = 0, low = change->least / change->round - 1, high; // low fits, or is below the least
    *value = 0;
    for (size_t i = 0; i < plan->count; i++)
        if (*change->number(&plan->stages[i]) > now) now = *change->number(&plan->stages[i]);
    high = (now + change->round - 1) / change->round;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        TRY(plan_change_sum(plan, change, middle * change->round, device, machine, &bytes));
        if (bytes <= capacity)
            low = middle;
        else
            high = middle;
    }
    if (low * change->round >= change->least) *value = low * change->round;
    return OK;
}

status plan_print_advice(const struct resource_plan *plan, const char *device, int machine, uint64_t capacity,
                         uint64_t total, struct buf *fitting) {
    const bool sampled = pipeline_find_stage(plan->pipeline, "rollout") != NULL;
    struct resource_plan changed = *plan;
    printf("each of these changes alone would save (GB):\n");
    for (size_t i = 0; i < sizeof plan_changes / sizeof *plan_changes; i++) {
        const struct plan_change *change = &plan_changes[i];
        char text[160];
        uint64_t bytes;
        int64_t value = 0;
        if (change->number) {
            TRY(plan_find_number(&changed, change, device, machine, capacity, &value));
            if (!value) value = change->least;
        }
        TRY(plan_change_sum(&changed, change, value, device, machine, &bytes));
        if (bytes >= total) continue;
        snprintf(text, sizeof text, "%s", !sampled && change->given ? change->given : change->what);
        if (change->number) snprintf(text + strlen(text), sizeof text - strlen(text), ": %lld", (long long)value);
        printf("  %8.2f  %s%s\n", (double)(total - bytes) * 1e-9, text, bytes <= capacity ? ", and then it fits" : "");
        if (bytes <= capacity && !fitting->size) buf_puts(fitting, text);
    }
    printf("or give a stage another GPU, with `device` (--gpus 2 shows how) or `on`\n");
    return OK;
}
