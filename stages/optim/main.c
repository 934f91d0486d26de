// caravan-optim: trains the policy. Every `groups_per_step` groups make one step; they leave with `trained`.
//
// All training state is here. Groups are held until their step is complete, in the order in which they came.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "stages/optim/optim.h"

struct trainer {
    struct optim optim;
    struct group **held; // for the next step, in order
    size_t held_count;
    struct group **done; // trained, to be handed back in order
    size_t done_count, done_next;
    size_t left;  // groups that did not fill a step
    bool unsaved; // a step was trained since save() last looked
};

static status optim_read_options(struct optim *optim, const struct optim_options *options) {
    struct schedule *schedule = &optim->schedule;
    optim->options = options;
    *schedule = (struct schedule){.rate = options->lr,
                                  .cosine = options->schedule == OPTIM_SCHEDULE_COSINE,
                                  .steps = options->steps,
                                  .warmup = options->warmup};
    optim->rates = (struct optimizer_options){.beta1 = options->beta1,
                                              .beta2 = options->beta2,
                                              .eps = options->epsilon,
                                              .weight_decay = options->weight_decay,
                                              .max_grad_norm = options->clip_norm};
    optim->loss =
        (struct loss_options){.kl_beta = options->kl, .clip_low = options->clip_low, .clip_high = options->clip_high};
    if (schedule->cosine && !schedule->steps) {
        if (stage_in_pipeline(optim->context)) return fail(BUG, "the pipeline did not say how many steps there are");
        log_info("--steps is not given: the learning rate stays constant instead of falling along a cosine");
        schedule->cosine = false;
    }
    if (schedule->cosine && schedule->warmup >= schedule->steps && schedule->warmup)
        return fail(USAGE, "--warmup: %lld steps leave none of %lld", (long long)schedule->warmup,
                    (long long)schedule->steps);
    return OK;
}

// A state is written when the time since the last one is so many times what that took (before the first: what it would
// take at this speed).
enum { save_patience = 50 };
static const double save_speed = 0.5e9; // bytes a second

static status optim_open_model(struct optim *optim) {
    const struct optim_options *options = optim->options;
    const struct model_options how = {
        .device = options->model.common.device,
        .threads = (int)options->model.common.threads,
        .precision = options->model.common.precision,
        .training = true,
        .train_vision = options->train_vision,
        .ema = options->ema_every > 0,
        .scratch = options->out,
    };
    TRY(model_open(&optim->model, options->model.dir, &how));
    input_builder_set_model(optim->input, model_get_info(optim->model));
    optim->save_seconds = 16 * (double)model_get_info(optim->model)->parameter_count / save_speed;
    return model_hash(optim->model, &optim->first_hash);
}

static status optim_open(void **state, struct stage_context *context) {
    struct trainer *trainer;
    TRY(NEW(&trainer, 1));
    *state = trainer;
    trainer->optim.context = context;
    TRY(optim_read_options(&trainer->optim, stage_options(context)));
    size_t batch = (size_t)trainer->optim.options->groups_per_step;
    TRY(NEW(&trainer->held, batch));
    TRY(NEW(&trainer->done, batch));
    TRY(dir_make(trainer->optim.options->out));
    TRY(input_builder_new(&trainer->optim.input, context));
    TRY(optim_open_model(&trainer->optim));
    TRY(checkpoint_resume(&trainer->optim));
    return step_publish(&trainer->optim, true);
}

static status optim_position(void *state, int64_t *step, int64_t *place) {
    const struct trainer *trainer = state;
    *step = trainer->optim.step;
    *place = trainer->optim.untrained ? -1 : trainer->optim.cursor;
    return OK;
}

static int optim_capacity(void *state) {
    const struct trainer *trainer = state;
    if (trainer->done_next < trainer->done_count) return 0;
    return (int)((size_t)trainer->optim.options->groups_per_step - trainer->held_count);
}

// Everything that a group can lack is found here, before any of its step is computed.
static status optim_submit(void *state, struct group *group) {
    struct trainer *trainer = state;
    status result = step_check(&trainer->optim, group);
    if (result == OK) trainer->held[trainer->held_count++] = group;
    return result;
}

// Checkpoints when they are due; in a pipeline, the state now and then, so that a crash costs little.
static status save(struct trainer *trainer) {
    struct optim *optim = &trainer->optim;
    if (optim->options->save_every && optim->step % optim->options->save_every == 0) return checkpoint_write(optim);
    double waited = clock_monotonic() - optim->saved_at;
    if (stage_in_pipeline(optim->context) && waited > save_patience * optim->save_seconds) return state_write(optim);
    return OK;
}

// In a pipeline once the trained groups have left: the others work on while this one writes.
static status optim_on_idle(void *state) {
    struct trainer *trainer = state;
    if (!trainer->unsaved) return OK;
    trainer->unsaved = false;
    return save(trainer);
}

static void say_step(const struct step_facts *facts) {
    char rewards[64] = ""; // supervised groups have none
    if (!isnan(facts->reward))
        snprintf(rewards, sizeof rewards, "reward %.3f, accuracy %.3f, ", facts->reward, facts->accuracy);
    log_info("step %lld: loss %.4g, nll %.4g, gradient norm %.4g, %s%lld tokens, %.2f s", (long long)facts->step,
             facts->loss, facts->nll, facts->norm, rewards, (long long)facts->tokens, facts->seconds);
}

static status train(struct trainer *trainer) {
    struct optim *optim = &trainer->optim;
    struct step_facts facts;
    TRY(step_train(optim, trainer->held, trainer->held_count, &facts));
    TRY(metrics_add(optim, &facts));
    say_step(&facts);
    trainer->unsaved = true;
    if (!stage_in_pipeline(optim->context)) TRY(optim_on_idle(trainer));
    memcpy(trainer->done, trainer->held, trainer->held_count * sizeof *trainer->held);
    trainer->done_count = trainer->held_count;
    trainer->done_next = trainer->held_count = 0;
    return OK;
}

static status optim_poll(void *state, bool draining, struct group **done) {
    struct trainer *trainer = state;
    *done = NULL;
    if (trainer->done_next < trainer->done_count) {
        *done = trainer->done[trainer->done_next++];
        return OK;
    }
    if (trainer->held_count == (size_t)trainer->optim.options->groups_per_step) return train(trainer);
    if (!draining || !trainer->held_count) return END;
    trainer->left += trainer->held_count;
    memcpy(trainer->done, trainer->held, trainer->held_count * sizeof *trainer->held);
    trainer->done_count = trainer->held_count;
    trainer->done_next = trainer->held_count = 0;
    return OK;
}

static void say_left(struct trainer *trainer) {
    if (trainer->left)
        log_info("%zu groups did not fill a step of %lld and were not trained", trainer->left,
                 (long long)trainer->optim.options->groups_per_step);
    trainer->left = 0;
}

static status optim_finish(void *state) {
    struct trainer *trainer = state;
    struct optim *optim = &trainer->optim;
    say_left(trainer);
    return optim->step > optim->saved || !optim->whole ? checkpoint_write(optim) : OK;
}

static status optim_close(void *state) {
    struct trainer *trainer = state;
    if (!trainer) return OK;
    struct optim *optim = &trainer->optim;
    say_left(trainer);
    // What was trained before a failure is kept, unless this was the failure.
    bool due = optim->model && optim->step > optim->saved && !optim->unwritable;
    status result = due ? checkpoint_write(optim) : OK;
    model_free(&trainer->optim.model);
    input_builder_free(&trainer->optim.input);
    free(trainer->held);
    free(trainer->done);
    free(trainer);
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
    .position = optim_position,
    .finish = optim_finish,
    .close = optim_close,
};

int main(int argc, char **argv) {
    return stage_main(&optim_stage, argc, argv);
}
