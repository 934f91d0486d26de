// What the stages of a pipeline need of the machines that they run on, computed from the pipeline and the
// configurations of its models alone, before anything runs.
//
// The largest group counts: a prompt of rollout's max_prompt_tokens, all of them media, and group_size completions of
// max_new_tokens. Without a rollout the groups are given with their completions: a prompt then has the largest clip or
// image of the frames stage and some text. What a process on a GPU takes of the machine's own memory is not known.
// Replicas on one machine with the same `device` share its GPU, and the weights where caravan run lets rollout and
// refscore use those of optim.
#pragma once

#include "shared/base/memory.h"
#include "shared/config/pipeline.h"
#include "shared/model/model.h"

// What the pipeline does not say. 0 is the default.
struct resource_options {
    bool expected; // of prompts not the longest allowed, but the largest medium and some text
    bool gpu;      // a stage without `device` computes on a GPU, not on the CPU
    int64_t prompt_tokens, group_size, completion_tokens; // of the largest group, without a rollout
};

// A stage, or a user's program.
struct planned_stage {
    const struct pipeline_stage *stage;
    const char *model;    // its directory, config.json or shape; NULL: the stage computes with none
    const char **devices; // of the replicas on a machine; all "cpu", or each a GPU
    bool on_cpu;
    struct memory_request request;
    int64_t text_tokens, batch_tokens; // a classifier's max_tokens and batch_tokens; otherwise 0
    uint64_t program_bytes;            // of the process itself: on a GPU what its driver takes there
};

// What a run writes on a machine, in bytes.
struct disk_needs {
    uint64_t checkpoint, state; // one checkpoint, and one training state without the model directory
    int64_t checkpoints;        // at a time at most; 0: all stay, and the pipeline does not say how many there will be
    uint64_t published;         // one file of weights
    int copies;                 // files of weights at a time at most; 0: none are read from files
    uint64_t frames, groups;    // limits of the store; 0: it has none
};

struct resource_plan {
    struct arena arena;
    const struct pipeline *pipeline;
    struct resource_options options; // with what was computed for 0
    struct planned_stage *stages;    // as those of the pipeline
    size_t count;
    size_t on_gpu;           // stages
    uint64_t frames, groups; // limits of the store in bytes; 0: it has none
    uint64_t medium;         // bytes of the largest clip or image in the store; 0 without a frames stage
};

// Lists the stages; the pipeline, whose optim has its `publish`, must outlive the plan. USAGE when the options say how
// long a group may be, and a rollout does, too. The caller calls resource_plan_release, also after a failure.
status resource_plan_make(struct resource_plan *plan, const struct pipeline *pipeline,
                          const struct resource_options *options);

// Frees the plan's memory. A zeroed struct is fine.
void resource_plan_release(struct resource_plan *plan);

// Returns how many of the stage's replicas on a machine use a device, up to the one with the slot `end`.
int planned_stage_replicas_on(const struct planned_stage *stage, const char *device, int machine, int end);

// Computes what one replica of a stage needs of its device's memory: items[0..*count), at most MEMORY_ITEMS. DATAERR as
// in model_open, classifier_open.
status planned_stage_needs(const struct planned_stage *stage, struct memory_item *items, size_t *count);

// *bytes = the sum of these. Errors as planned_stage_needs.
status planned_stage_bytes(const struct planned_stage *stage, uint64_t *bytes);

// *bytes = what all stages on a device of a machine need of its memory; `device` "cpu" is the machine's own. Errors as
// planned_stage_needs.
status resource_plan_memory(const struct resource_plan *plan, const char *device, int machine, uint64_t *bytes);

// Computes what the run writes on a machine. DATAERR as in model_open.
status resource_plan_disk(const struct resource_plan *plan, int machine, struct disk_needs *needs);

// Returns the sum of what is known of it: one checkpoint where nobody knows how many there will be.
uint64_t disk_needs_sum(const struct disk_needs *needs);

// ---- where the processes go ----

// Gives each replica of the pipeline's stages one of `gpus` GPUs of its machine, so that the largest sum is small: sets
// the stages' `device`. GPUs that are left get replicas of rollout, if there is one: sets its replicas. No process is
// divided; each rank of optim gets a GPU of its own. *placed = whether anything was set: stages that name GPUs already
// stay where they are. USAGE when one of these is not among the `gpus`, or these are fewer than the ranks; DATAERR as
// in planned_stage_needs. The plan is of the pipeline before.
status resource_spread(const struct resource_plan *plan, struct pipeline *pipeline, int gpus, bool *placed);

// ---- this machine ----

// Returns the bytes of memory that a process can take on this machine now: what is available there or, if that is less,
// what the limits of the process's cgroups leave; 0: it is not known.
uint64_t machine_memory_available(void);

// Appends a line for what this machine has too little of now for its part of the run: "memory: ..." and "disk: ...".
// `machine` is its index in the pipeline, whose optim has its `publish`. A user's program does not count, and what the
// run has written already counts as free. DATAERR when a model's configuration cannot be read; UNAVAILABLE for a
// directory that does not say how much room it has.
status machine_resources_check(const struct pipeline *pipeline, int machine, struct buf *lines);
