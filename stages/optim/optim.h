// What the files of the optim stage share.
#ifndef STAGES_OPTIM_OPTIM_H
#define STAGES_OPTIM_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shared/base/memory.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"
#include "shared/model/model.h"
#include "shared/stage/stage_model.h"
#include "shared/stage/stage.h"
#include "stages/optim/schedule.h"

// What one step found, for metrics.jsonl.
struct step_facts {
    int64_t step; // 1 for the first
    double loss, nll, norm, rate, kl, seconds;
    double difference, largest; // between the sampler's log-probabilities and the trainer's, on-policy tokens
    int64_t tokens, prompt_tokens, groups, completions;
    double reward, accuracy, bonus, format; // means over completions; NaN where no group has them
    double age_mean;                        // of the tokens, in steps
    int64_t age_most;
};

struct optim {
    const struct optim_options *options;
    struct schedule schedule;
    struct optimizer_options rates;
    struct loss_options loss;
    struct stage_context *context;
    struct input_builder *input;
    struct model *model;
    int64_t step;        // steps done
    int64_t averaged;    // the step at which the reference last changed, 0: never
    int64_t saved;       // the step of the last checkpoint or state
    bool whole;          // that one is a checkpoint, not a state alone
    bool unwritable;     // the last checkpoint could not be written
    bool untrained;      // no step was ever trained in options->out
    int64_t cursor;      // place in the order of issue below which all is done with
    uint64_t first_hash; // of the weights in options->model.dir
    double saved_at, save_seconds;
};

// Whether a group can be trained on: all that can be seen before any of its step is computed. DATAERR "not a group:
// ...", BAD_SAMPLE where its prompt does not fit its media.
status step_check(struct optim *optim, struct group *group);

// Trains one step on `count` groups, in their order: accumulates, clips, steps, averages. Marks the groups as trained.
// DATAERR names the group that cannot be trained on.
status step_train(struct optim *optim, struct group **groups, size_t count, struct step_facts *facts);

// Tells the run which weights are the newest now, and writes their files. `both`: the reference too.
status step_publish(struct optim *optim, bool both);

// Appends one line to OUT/metrics.jsonl.
status metrics_add(const struct optim *optim, const struct step_facts *facts);

// Whether `out` has a metrics.jsonl: the first step writes it, long before the first checkpoint.
bool metrics_exist(const char *out);

// Drops the lines of steps after `step`, which will be trained again. A missing file is fine.
status metrics_cut(const char *out, int64_t step);

// Writes OUT/step-NNNNNN whole: the model folder, the training state, the cursor; then moves the link OUT/latest to it.
// UNAVAILABLE leaves the older ones as they were.
status checkpoint_write(struct optim *optim);

// Writes OUT/state-NNNNNN: the training state and the cursor alone, to go on from; older ones are removed.
status state_write(struct optim *optim);

// Goes on from the newest checkpoint or state under OUT, if there is one; else from the state beside
// options->model.dir, if there is one.
status checkpoint_resume(struct optim *optim);

#endif
