// What the files of the optim stage share.
//
// The model counts the steps: model_version() is the number of steps trained, in every file and message of this stage.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/file.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"
#include "shared/model/model.h"
#include "shared/stage/stage.h"
#include "shared/stage/stage_model.h"

// ---- leaf.c ----
//
// The leaves of a step: its groups, or parts of them, in the one order in which their gradients are computed and added.
// The order depends on the groups alone.

// A run of a group's completions.
struct leaf {
    size_t group; // its place in the step, where groups stand in their order of issue
    int part;
    size_t first, count; // completions
    int64_t cost;        // rows of its forward pass; three times as many if it has a gradient
};

// Appends the leaves of a group to out[*count..]: `parts` runs of its completions as long as each other, or one
// shorter, without those that would be empty. `has_grad`: whether the group's loss can have a gradient.
void leaf_divide(struct leaf *out, size_t *count, size_t group, int parts, int64_t prompt_tokens, const size_t *lengths,
                 size_t completions, bool has_grad);

// A leaf with everything that its pass reads, so that any process can compute it.
struct leaf_input {
    const char *group; // its id
    struct model_prompt prompt;
    struct train_completion *completions;
    size_t count; // 0: there is no leaf
    struct loss_options loss;
    double weight; // of the group's loss
};

// Puts leaves into their order: the most expensive first, so that those that several processes compute at the same time
// take about as long; then by group, then by part.
void leaf_sort(struct leaf *leaves, size_t count);

// Adds what a leaf says to what other leaves of its group have said, or to zeros.
void leaf_add_result(struct train_result *group, const struct train_result *leaf);

// Appends a leaf's bytes, pixels included, for a process of the same program on the same type of machine. UNAVAILABLE
// when memory is short.
status leaf_write(const struct leaf_input *leaf, struct buf *out);

// Reads what leaf_write has written. `data` is aligned to 8, and *leaf refers to it and to the arena. BUG when it is
// damaged: every size is checked here, tokens and the fit of media to the prompt by model_accumulate.
status leaf_read(struct leaf_input *leaf, struct arena *arena, const void *data, size_t size);

// ---- the stage ----

// A group of the next step.
struct step_group {
    struct group *group;
    size_t *lengths;             // tokens of each completion; in the group's arena
    struct train_result trained; // what its leaves have said so far
};

struct optim {
    const struct optim_options *options;
    struct stage_context *context;
    struct input_builder input;
    struct model *model;
    struct ranks *ranks;   // that train it with this process; NULL: none
    bool joined;           // they follow its orders
    bool compared;         // a step of this process was the same on all ranks
    uint64_t initial_hash; // of the weights in options->model.dir, as they are used
    uint64_t files_hash;   // of the same, as they stand in the files
    char *model_path;      // options->model.dir without links
    int64_t warmup;        // steps of warm-up
    int64_t ema_step;      // the step at which the reference last changed, 0: never
    int64_t cursor;        // the seq below which everything is trained
    double lr;             // of the last step
    bool schedule_over;    // it was said that the learning rate is 0 from now on
    bool never_trained;    // no process has trained a step in options->out
    int64_t saved_step;    // of the last checkpoint or state
    bool saved_whole;      // that was a checkpoint
    bool unproven;         // no step was trained from it yet: its weights may be unsound
    bool unsound;          // the numbers of a step were not finite: its weights are not saved
    bool opened;           // what OUT had fits this run
    double saved_at;       // monotonic seconds
    double save_seconds;   // that it took, or that the first will take
    bool unsaved_whole;    // the last attempt to write one failed, and it was a checkpoint
    int64_t failed_saves;  // attempts since the last one that succeeded

    // Of the files of lent weights: what is unique to this process; NULL: each version is written to a file.
    char *lent_name;
    bool publishes_files; // nothing is lent

    // metrics.jsonl and this process's file for TensorBoard; the latter has no path before the first step.
    struct append_queue metrics, events;

    // The groups of the next step in the order in which they came; then the same groups, to be returned.
    struct step_group *batch;
    size_t batch_count, returned;
    int parts;           // of each of these groups
    struct leaf *leaves; // of all
    size_t leaf_count;
    int64_t batch_tokens; // of all completions of these groups
    bool returning;
    size_t untrained; // groups returned that did not fill a step
    bool unsaved;     // a step was trained since the last call of on_idle
    bool finished;    // the run is over and its checkpoint was written or cannot be
};

// A mean while it is added up: NaN of nothing.
struct step_mean {
    double sum;
    int64_t count;
};

// The metrics of one step, a line of metrics.jsonl. What no group of the step has is NaN.
struct step_metrics {
    int64_t step; // from 1
    double loss, nll, kl, grad_norm, lr, seconds, rank_wait;
    double time;                                // at its end, seconds since 1970
    double epoch;                               // how often the data have been used, NaN outside a pipeline
    double logprob_diff_mean, logprob_diff_max; // the sampler's against the trainer's, over on-policy tokens
    int64_t tokens, prompt_tokens, groups, completions;
    struct step_mean reward, accuracy, bonus, format; // over completions; accuracy and format over those that have one
    struct step_mean truncated;                       // share of the completions that ended at max_new_tokens
    struct step_mean uncounted;                       // share of the completions, see answer_is_uncounted
    struct step_mean bonus_rate;                      // share of the completions with a bonus above 0
    struct step_mean consistency;                     // probability of the consistency model, over completions with one
    struct step_mean consistent;                      // share of the judged completions that a judge finds consistent
    struct step_mean reward_std;                      // over groups: the unbiased standard deviation of their rewards
    struct step_mean all_correct, all_wrong; // share of the groups in which every accuracy is 1, or every one is 0
    struct step_mean entropy;                // over sampled tokens: minus their log-probability
    double ages;                             // of all tokens, in steps
    int64_t age_max;

    double *lengths; // of every completion
    double *rewards; // every total reward
    size_t reward_count;
};

// ---- step.c ----

// Adds a group to the next step, unless it cannot be trained on, so that a step does not fail halfway. DATAERR
// "not a group: ..."; BAD_SAMPLE where its prompt does not fit its media.
status step_add(struct optim *optim, struct group *group);

// Trains one step on the groups that were added: accumulates the gradients of their leaves, clips them, updates the
// weights and the reference, publishes both. Marks the groups as trained. DATAERR names the group that cannot be
// trained on, or those of a step whose numbers are not finite: optim->unsound is set then. Release *metrics with
// metrics_release in any case.
status step_train(struct optim *optim, struct step_metrics *metrics);

// Returns the learning rate of a step, 0 for the first: it rises linearly during the warm-up, then it falls along half
// a cosine to 0. Without a number of steps it stays constant.
double step_lr(const struct optim *optim, int64_t step);

// ---- orders.c ----

// Each of these is carried out by all ranks together; without ranks by this process. A failure is that of the call of
// model.h, or of another rank, which it names; then optim->ranks->failed is set. But when files cannot be written or
// read, all ranks can go on.

// Opens the model to be trained, as the options say.
status orders_open_model(struct model **model, const struct optim_options *options, struct ranks *ranks);

// All ranks show rank 0 what they have opened. USAGE or DATAERR names one that would compute other bits.
status orders_join(struct model *model, struct ranks *ranks);

// A turn: results[r] = what leaf r says, which rank r has accumulated, r < sources, which is at most the number of
// ranks. A failure in a leaf names its group; BUG, UNAVAILABLE, or as model_accumulate.
status order_turn(struct optim *optim, const struct leaf_input *leaves, int sources, struct train_result *results);

// As model_step; BUG when the weights of the ranks differ after the first one.
status order_step(struct optim *optim, const struct optimizer_options *adamw, double *norm);

// As model_update_ema.
status order_update_ema(struct optim *optim, double decay);

// Writes the training state into `dir`, and a model directory if `whole`. BUG when the weights of the ranks differ.
status order_save(struct optim *optim, const char *dir, bool whole);

// As model_load_state.
status order_load(struct optim *optim, const char *dir);

// As model_lend, by each rank on this machine. One whose device cannot share says so in its log.
status order_lend(struct optim *optim, bool reference, bool copied, const char *path, uint64_t *hash);

// Tells the other ranks that the training is over.
void orders_end(struct optim *optim);

// Runs a process of rank 1 or above: the function follow of the stage.
status orders_follow(const void *options, struct ranks *ranks);

// ---- metrics.c ----

// Frees the arrays; a zeroed struct is fine.
void metrics_release(struct step_metrics *metrics);

// Adds a group that was trained: its loss with `weight`, other means of the group with `share`.
void metrics_add(struct step_metrics *metrics, const struct step_group *added, double weight, double share);

// Returns the mean of what was added.
double metrics_mean(const struct step_mean *mean);

// Appends the metrics of a step to OUT/metrics.jsonl, and to this process's event file, which the first call makes:
// OUT/events.out.tfevents.N.caravan, with N above those of earlier processes. What cannot be written, for example on a
// full disk, waits in memory. UNAVAILABLE.
status metrics_write(struct optim *optim, const struct step_metrics *metrics);

// Tries again to write what waits: before a checkpoint, after which these steps are not trained again.
void metrics_flush(struct optim *optim);

// Removes the lines of the steps after the model's from OUT/metrics.jsonl: they will be trained again. Sets *exists to
// whether there is such a file: the first step writes it, long before the first checkpoint. Called once. UNAVAILABLE.
status metrics_open(struct optim *optim, bool *exists);

// ---- publish.c ----

// Publishes the newest policy, and the newest reference if `both`: writes their files, or lends them where the option
// `publish` says so and the device can. Does nothing outside a pipeline. While a file cannot be written, for example on
// a full disk, tries again; END when asked to stop meanwhile. DATAERR, UNAVAILABLE.
status publish_weights(struct optim *optim, bool both);

// Publishes the newest weights in files, and says so with `reason`; so do later calls of publish_weights. The function
// publish_files of the stage.
status publish_files(void *state, const char *reason);

// Removes the files of weights that an earlier process published. Called after the first publish_weights.
void publish_remove_old(const struct optim *optim);

// ---- checkpoint.c ----

// Writes OUT/step-NNNNNN if `whole`: a model directory, the training state and the cursor; and moves the link
// OUT/latest to it. Otherwise writes OUT/state-NNNNNN: only what is needed to resume. The older checkpoints and states
// stay as they were, also after a failure, and nothing incomplete is left. UNAVAILABLE, DATAERR.
status checkpoint_write(struct optim *optim, bool whole);

// Loads the newest checkpoint or state under OUT, if there is one. Otherwise the training begins with the weights of
// options->model.dir, whatever training state is beside them. Tells the user which it is. Removes what an earlier
// process has left incomplete. USAGE when it does not fit the options; DATAERR when it cannot be read, and when the
// training began with other weights than those of options->model.dir; UNAVAILABLE.
status checkpoint_resume(struct optim *optim);

// Removes from OUT what is incomplete and, if the newest checkpoint or state is `proven`, the states of other steps
// than saved_step, and the complete checkpoints that the options `keep` and `keep_every` do not keep and no other link
// than `latest` refers to. UNAVAILABLE.
status retention_apply(const struct optim *optim, bool proven);
