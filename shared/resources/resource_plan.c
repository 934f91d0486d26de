#include "shared/resources/resource_plan.h"

#include <string.h>

#include "shared/config/device_list.h"
#include "shared/config/stage_options.h"
#include "shared/model/classifier.h"

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
static status resource_add_stage(struct resource_plan *plan, const struct pipeline_stage *stage,
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
static bool resource_has_model(const struct pipeline_stage *stage) {
    const char *judge = stage->kind == &stage_kinds[STAGE_JUDGE] ? pipeline_value(stage, "judge") : NULL;
    return stage->kind == &stage_kinds[STAGE_OPTIM] || stage->kind == &stage_kinds[STAGE_CONSISTENCY] ||
           (stage->kind && stage->kind->follows_weights) || (judge && !strcmp(judge, "likelihood"));
}

status resource_plan_make(struct resource_plan *plan, const struct pipeline *pipeline) {
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
    const char *publish = pipeline_value(&pipeline->stages[pipeline->stage_count - 1], "publish");
    group.borrows = publish && strcmp(publish, "lend") == 0;
    for (size_t i = 0; result == OK && i < pipeline->stage_count; i++)
        if (resource_has_model(&pipeline->stages[i])) result = resource_add_stage(plan, &pipeline->stages[i], &group);
    return result;
}

void resource_plan_release(struct resource_plan *plan) {
    arena_release(&plan->arena);
    *plan = (struct resource_plan){0};
}

int planned_stage_replicas_on(const struct planned_stage *stage, const char *device, int machine, int end) {
    int count = 0;
    for (int slot = 0; slot < end && pipeline_stage_runs_on(stage->stage, machine); slot++)
        count += strcmp(stage->devices[slot], device) == 0;
    return count;
}

// A classifier's batch ends with the group that fills it.
status planned_stage_needs(const struct planned_stage *stage, struct memory_item *items, size_t *count) {
    const struct memory_request *request = &stage->request;
    if (!stage->text_tokens) return model_memory_needs(stage->dir, request, items, count);
    int64_t tokens = stage->batch_tokens - 1 + request->group_size * stage->text_tokens;
    return classifier_memory_needs(stage->dir, request->precision, stage->text_tokens, tokens, items, count);
}
