// caravan-optim: trains the policy. Every `groups_per_step` groups make one step; they leave with `trained`.
//
// All training state is here. Groups are held until their step is complete, in the order in which they came.
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "stages/optim/optim.h"

static status optim_open(void **state, struct stage_context *context) {
    static const double saved_bytes_per_second = 0.5e9; // assumed until the first save
    struct optim *optim;
    NEW(&optim, 1);
    *state = optim;
    const struct optim_options *options = stage_options(context);
    optim->context = context;
    optim->options = options;
    if (options->warmup_ratio > 0 && !options->steps) return fail(USAGE, "--warmup-ratio: needs --steps");
    optim->warmup =
        options->warmup_ratio > 0 ? (int64_t)ceil(options->warmup_ratio * (double)options->steps) : options->warmup;
    if (options->schedule == OPTIM_SCHEDULE_COSINE && !options->steps) {
        if (stage_in_pipeline(context)) return fail(BUG, "the pipeline did not set the number of steps");
        log_info("--steps is not given: the learning rate stays constant instead of falling along a cosine");
    } else if (options->schedule == OPTIM_SCHEDULE_COSINE && optim->warmup >= options->steps && optim->warmup) {
        return fail(USAGE, "--%s: %lld steps, but the whole schedule has %lld",
                    options->warmup_ratio > 0 ? "warmup-ratio" : "warmup", (long long)optim->warmup,
                    (long long)options->steps);
    }
    NEW(&optim->batch, (size_t)options->groups_per_step);
    optim->parts = options->parts ? (int)options->parts : 1;
    NEW(&optim->leaves, (size_t)options->groups_per_step * (size_t)optim->parts);
    TRY(dir_make(options->out));
    TRY(input_builder_open(&optim->input, context));
    optim->ranks = stage_ranks(context);
    TRY(orders_open_model(&optim->model, options, optim->ranks));
    const struct model_info *info = model_get_info(optim->model);
    optim->input.info = info;
    TRY(model_hash(optim->model, &optim->initial_hash));
    TRY(model_hash_files(optim->model, &optim->files_hash));
    TRY(orders_join(optim->model, optim->ranks));
    optim->joined = optim->ranks != NULL;
    optim->model_path = realpath(options->model.dir, NULL);
    if (!optim->model_path) return fail(UNAVAILABLE, "%s: %s", options->model.dir, strerror(errno));
    optim->save_seconds = (double)model_saved_bytes(optim->model, false) / saved_bytes_per_second;
    TRY(checkpoint_resume(optim));
    TRY(publish_weights(optim, true));
    publish_remove_old(optim);
    return OK;
}

static status optim_position(void *state, int64_t *step, int64_t *seq) {
    const struct optim *optim = state;
    *step = model_version(optim->model);
    *seq = optim->never_trained ? -1 : optim->cursor;
    return OK;
}

static int optim_capacity(void *state) {
    const struct optim *optim = state;
    return optim->returning ? 0 : (int)((size_t)optim->options->groups_per_step - optim->batch_count);
}

static status optim_submit(void *state, struct group *group) {
    return step_add(state, group);
}

// Removes the checkpoints and states that are not kept, now that the newest one is known to be sound.
static void optim_remove_old(struct optim *optim) {
    optim->unproven = false;
    if (retention_apply(optim, true) != OK) log_info("%s", fail_text());
}

// Whether this process can neither train nor save any more.
static bool optim_lost_ranks(const struct optim *optim) {
    return optim->ranks && optim->ranks->failed;
}

// Writes the last checkpoint, unless the newest one has the last step already. A state of that step is as good, unless
// a model directory is needed. `patient`: it is tried for a while, since every step would have to be trained again.
static status optim_save_last(struct optim *optim, bool need_whole, bool patient) {
    enum { PATIENCE_S = 600, PAUSE_S = 5, LOGGED_EVERY_S = 60 };
    const double begun = clock_monotonic();
    double logged_at = -LOGGED_EVERY_S; // when it was last logged, in seconds since `begun`
    if (optim->untrained)
        log_info("%zu groups did not fill a step of %lld and were not trained", optim->untrained,
                 (long long)optim->options->groups_per_step);
    optim->untrained = 0;
    if (optim->finished || !optim->opened || optim->unsound || optim_lost_ranks(optim)) return OK;
    optim->finished = true;
    const int64_t saved_step = optim->saved_step;
    const bool due = model_version(optim->model) > saved_step || (need_whole && !optim->saved_whole);
    while (due) {
        const status result = checkpoint_write(optim, true);
        const double waited = clock_monotonic() - begun;
        if (result != UNAVAILABLE || !patient || optim_lost_ranks(optim)) {
            TRY(result);
            break;
        }
        if (waited >= PATIENCE_S)
            return fail(UNAVAILABLE,
                        "%s. The steps after %lld are lost: make room, and the same command trains them again",
                        fail_text(), (long long)saved_step);
        if (waited - logged_at >= LOGGED_EVERY_S) {
            stage_notify(optim->context, "%s; it is tried again for %.0f s: make room in %s", fail_text(),
                         PATIENCE_S - waited, optim->options->out);
            logged_at = waited;
        }
        sleep(PAUSE_S);
    }
    if (!signals_stopping()) optim_remove_old(optim); // no step will be trained from the last one
    return OK;
}

// Writes a checkpoint when it is due; in a pipeline also the state from time to time, so that a crash costs little.
// When it cannot be written, for example on a full disk, training continues until the next one is due or a minute
// later.
static status optim_on_idle(void *state, bool run_over) {
    enum { STATE_INTERVAL = 50, RETRY_S = 60 }; // times the seconds that the last save took
    struct optim *optim = state;
    const int64_t step = model_version(optim->model), save_every = optim->options->save_every;
    if (run_over) return optim_save_last(optim, true, true);
    if (!optim->unsaved) return OK;
    optim->unsaved = false;
    if (optim->unproven) optim_remove_old(optim);
    const bool now = save_every && step % save_every == 0;
    const double elapsed = clock_monotonic() - optim->saved_at;
    const bool state_due = stage_in_pipeline(optim->context) && elapsed > STATE_INTERVAL * optim->save_seconds;
    if (!now && !state_due && !(optim->failed_saves && elapsed >= RETRY_S)) return OK;
    const bool whole = now || optim->unsaved_whole;
    status result = checkpoint_write(optim, whole);
    if (result == BUG || optim_lost_ranks(optim)) return result;
    optim->unsaved_whole = result != OK && whole;
    if (result == OK) return OK;
    optim->saved_at = clock_monotonic();
    stage_notify(optim->context, "%s; training goes on and saves a later step", fail_text());
    return OK;
}

static status optim_poll(void *state, bool draining, struct group **done) {
    struct optim *optim = state;
    *done = NULL;
    if (optim->returning) {
        *done = optim->batch[optim->returned++].group;
        if (optim->returned < optim->batch_count) return OK;
        optim->batch_count = optim->leaf_count = 0;
        optim->batch_tokens = 0;
        optim->returning = false;
        return OK;
    }
    if (optim->batch_count == (size_t)optim->options->groups_per_step) {
        struct step_metrics metrics = {0};
        char reward[32] = "", accuracy[32] = ""; // supervised groups have none
        status result = step_train(optim, &metrics);
        if (result == OK) result = metrics_write(optim, &metrics);
        const double mean_reward = metrics_mean(&metrics.reward), mean_accuracy = metrics_mean(&metrics.accuracy);
        if (!isnan(mean_reward)) snprintf(reward, sizeof reward, "reward %.3f, ", mean_reward);
        if (!isnan(mean_accuracy)) snprintf(accuracy, sizeof accuracy, "accuracy %.3f, ", mean_accuracy);
        if (result == OK)
            log_info("step %lld: loss %.4g, nll %.4g, gradient norm %.4g, %s%s%lld tokens, %.2f s",
                     (long long)metrics.step, metrics.loss, metrics.nll, metrics.grad_norm, reward, accuracy,
                     (long long)metrics.tokens, metrics.seconds);
        metrics_release(&metrics);
        TRY(result);
        optim->unsaved = true;
        // In a pipeline the groups are handed back first: the other stages work on while this one saves.
        if (!stage_in_pipeline(optim->context)) TRY(optim_on_idle(optim, false));
    } else if (draining && optim->batch_count) {
        optim->untrained += optim->batch_count;
    } else {
        return END;
    }
    optim->returning = true;
    optim->returned = 0;
    return OK;
}

static status optim_on_stop(void *state) {
    return optim_save_last(state, false, true);
}

// After a failure of the stage, too, saves what was trained: at once, because nobody hears from it any more, and what
// has failed may be the device.
static status optim_close(void *state) {
    struct optim *optim = state;
    if (!optim) return OK;
    struct append_queue *const queues[] = {&optim->metrics, &optim->events};
    for (size_t i = 0; i < sizeof queues / sizeof *queues; i++)
        if (append_queue_release(queues[i]) != OK) log_info("%s: the last steps are missing", fail_text());
    status result = optim_save_last(optim, false, false);
    orders_end(optim);
    input_builder_close(&optim->input); // before the model, which it refers to
    model_free(&optim->model);
    free(optim->batch);
    free(optim->leaves);
    free(optim->lent_name);
    free(optim->model_path);
    free(optim);
    return result;
}

static const struct stage optim_stage = {
    .name = "optim",
    .needs = NEED_TARGETS | NEED_ADVANTAGES,
    .section = -1,
    .open = optim_open,
    .capacity = optim_capacity,
    .submit = optim_submit,
    .poll = optim_poll,
    .on_idle = optim_on_idle,
    .on_stop = optim_on_stop,
    .publish_files = publish_files,
    .position = optim_position,
    .follow = orders_follow,
    .close = optim_close,
};

int main(int argc, char **argv) {
    return stage_main(&optim_stage, argc, argv);
}
