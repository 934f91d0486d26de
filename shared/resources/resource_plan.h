// What the stages of a pipeline need of the machines that they run on, computed from the pipeline and the
// configurations of its models alone, before anything runs.
//
// The largest group counts: a prompt of rollout's max_prompt_tokens, all of them media, and group_size completions of
// max_new_tokens. Replicas on one machine with the same `device` share its GPU, and the weights where caravan run lets
// rollout and refscore use those of optim.
#ifndef SHARED_RESOURCES_RESOURCE_PLAN_H
#define SHARED_RESOURCES_RESOURCE_PLAN_H

#include "shared/base/memory.h"
#include "shared/config/pipeline.h"
#include "shared/model/model.h"

enum { PLANNED_STAGES = 64 };

// A stage that computes on a GPU.
struct planned_stage {
    const struct pipeline_stage *stage;
    const char *dir;
    const char **devices; // of the replicas on a machine
    struct memory_request request;
    int64_t text_tokens, batch_tokens; // a classifier's max_tokens and batch_tokens; otherwise 0
};

struct resource_plan {
    struct arena arena;
    struct planned_stage stages[PLANNED_STAGES];
    size_t count;
};

// Lists the stages with a model; the pipeline, whose optim has its `publish`, must outlive the plan. DATAERR when
// nothing says how long a group may be. The caller calls resource_plan_release, also after a failure.
status resource_plan_make(struct resource_plan *plan, const struct pipeline *pipeline);

// Frees the plan's memory. A zeroed struct is fine.
void resource_plan_release(struct resource_plan *plan);

// Returns how many of the stage's replicas on a machine use a GPU, up to the one with the slot `end`.
int planned_stage_replicas_on(const struct planned_stage *stage, const char *device, int machine, int end);

// Computes what one replica of a stage needs of a GPU: items[0..*count), at most MEMORY_ITEMS. DATAERR as in
// model_open, classifier_open.
status planned_stage_needs(const struct planned_stage *stage, struct memory_item *items, size_t *count);

#endif
