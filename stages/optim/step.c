// One optimizer step on a batch of groups.
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "shared/base/clock.h"
#include "shared/reward/reward.h"
#include "stages/optim/optim.h"

status step_add(struct optim *optim, struct group *group) {
    const struct optim_options *options = optim->options;
    const struct reference *reference = &group->reference;
    const struct double_array *accuracy = &group->rewards.accuracy;
    const bool kl = options->kl > 0, on_accurate = options->kl_on == OPTIM_KL_ACCURATE,
               separate = options->kl_parts == OPTIM_KL_SEPARATE;
    struct stage_input input = {0};
    struct model_completion *completions = NULL;
    struct step_group added = {.group = group};
    const size_t count = group->completion_count;
    int64_t tokens = 0;
    bool has_grad = kl;
    status result = OK;
    group->trained = (struct trained){0}; // by an earlier run
    TRY_TO(result, done, stage_input_open(&optim->input, group, INPUT_COMPLETIONS, &input));
    // What the KL term needs.
    if (kl && reference->logprob_count != count)
        result =
            fail(DATAERR, "not a group: reference.logprobs: missing (the KL term needs refscore with logprobs: all)");
    else if (on_accurate && accuracy->count != count)
        result = fail(DATAERR, "not a group: rewards.accuracy: %zu for %zu completions (kl_on: accurate needs it)",
                      accuracy->count, count);
    else if (separate && reference->answer_span.count != count)
        result =
            fail(DATAERR, "not a group: reference.answer_span: %zu for %zu completions (kl_parts: separate needs it)",
                 reference->answer_span.count, count);
    NEW(&completions, count);
    added.lengths = arena_alloc(&group->arena, count * sizeof *added.lengths);
    for (size_t i = 0; i < count && result == OK; i++) {
        const size_t length = added.lengths[i] = input.completions[i].count;
        completions[i] = (struct model_completion){input.completions[i].data, length};
        tokens += (int64_t)length;
        if (kl && reference->logprobs[i].count != length)
            result = fail(DATAERR, "not a group: reference.logprobs[%zu]: not one number for each token", i);
        for (size_t t = 0; kl && t < length && result == OK; t++)
            if (!isfinite(reference->logprobs[i].data[t]))
                result = fail(DATAERR, "not a group: reference.logprobs[%zu][%zu]: null", i, t);
        if (result == OK && on_accurate && !isfinite(accuracy->data[i]))
            result = fail(DATAERR, "not a group: rewards.accuracy[%zu]: null", i);
        if (result == OK && separate && reference->answer_span.data[i].end > (int64_t)length)
            result = fail(DATAERR, "not a group: reference.answer_span[%zu]: ends after the completion's tokens", i);
        has_grad |= group->advantages.data[i] != 0;
    }
    TRY_TO(result, done, result);
    TRY_TO(result, done, model_check(optim->model, &input.prompt, completions, count));
    assert(!optim->returning && optim->batch_count < (size_t)options->groups_per_step);
    leaf_divide(optim->leaves, &optim->leaf_count, optim->batch_count, optim->parts, (int64_t)input.prompt.count,
                added.lengths, count, has_grad);
    optim->batch[optim->batch_count++] = added;
    optim->batch_tokens += tokens;
done:
    free(completions);
    stage_input_release(&input);
    return result;
}

// *out = a leaf with everything that its pass reads, most of it in `input`, which is to be released in any case.
// `weight` is that of the group's loss.
static status step_open_leaf(struct optim *optim, const struct leaf *leaf, double weight, struct stage_input *input,
                             struct leaf_input *out) {
    const struct optim_options *options = optim->options;
    const int64_t version = model_version(optim->model);
    struct group *group = optim->batch[leaf->group].group;
    const struct loss_options loss = {.kl_beta = options->kl,
                                      .clip_low = options->clip_low,
                                      .clip_high = options->clip_high,
                                      .group_size = group->completion_count,
                                      .kl_separate = options->kl_parts == OPTIM_KL_SEPARATE,
                                      .token_weight =
                                          options->loss == OPTIM_LOSS_TOKENS ? 1.0 / (double)optim->batch_tokens : 0};
    assert(group->advantages.count == group->completion_count);
    TRY(stage_input_open(&optim->input, group, INPUT_COMPLETIONS, input));
    struct train_completion *completions = arena_alloc(&input->arena, leaf->count * sizeof *completions);
    bool *accurate = arena_alloc(&input->arena, group->completion_count * sizeof *accurate);
    if (options->kl_on == OPTIM_KL_ACCURATE) reward_find_accurate(&group->rewards.accuracy, accurate);
    for (size_t k = 0; k < leaf->count; k++) {
        const size_t i = leaf->first + k;
        const struct span *answer = loss.kl_separate ? &group->reference.answer_span.data[i] : NULL;
        const struct completion *completion = &group->completions[i];
        bool older = false; // some token was sampled by an older policy
        for (size_t t = 0; t < completion->versions.count; t++) older |= completion->versions.data[t] < version;
        completions[k] = (struct train_completion){
            .completion = {input->completions[i].data, input->completions[i].count},
            .advantage = group->advantages.data[i],
            .old_logprobs = completion->logprobs.data,
            .ref_logprobs = loss.kl_beta > 0 ? group->reference.logprobs[i].data : NULL,
            .stale = completion->logprobs.data && older,
            .kl_excluded = options->kl_on == OPTIM_KL_ACCURATE && !accurate[i],
        };
        if (!answer || answer->first < 0) continue;
        completions[k].has_answer = true;
        completions[k].answer = (struct token_range){(size_t)answer->first, (size_t)answer->end};
    }
    *out = (struct leaf_input){.group = group->id.data,
                               .prompt = input->prompt,
                               .completions = completions,
                               .count = leaf->count,
                               .loss = loss,
                               .weight = weight};
    return OK;
}

// Adds the gradients of the next leaves, one a rank, and what they say to their groups.
static status step_turn(struct optim *optim, const struct leaf *leaves, int sources, double weight) {
    struct stage_input *inputs;
    struct leaf_input *opened;
    struct train_result *results;
    status result = OK;
    NEW(&inputs, (size_t)sources);
    NEW(&opened, (size_t)sources);
    NEW(&results, (size_t)sources);
    for (int i = 0; i < sources && result == OK; i++) {
        result = step_open_leaf(optim, &leaves[i], weight, &inputs[i], &opened[i]);
        if (result != OK) fail_prefix(result, "group %s", optim->batch[leaves[i].group].group->id.data);
    }
    if (result == OK) {
        result = order_turn(optim, opened, sources, results);
        optim->unsound = result == DATAERR;
    }
    for (int i = 0; i < sources && result == OK; i++)
        leaf_add_result(&optim->batch[leaves[i].group].trained, &results[i]);
    for (int i = 0; i < sources; i++) stage_input_release(&inputs[i]);
    free(results);
    free(opened);
    free(inputs);
    return result;
}

double step_lr(const struct optim *optim, int64_t step) {
    const struct optim_options *options = optim->options;
    const int64_t warmup = optim->warmup;
    if (step < warmup) return options->lr * (double)step / (double)warmup;
    if (options->schedule != OPTIM_SCHEDULE_COSINE || !options->steps) return options->lr;
    if (step >= options->steps) return 0;
    double progress = (double)(step - warmup) / (double)(options->steps - warmup);
    return options->lr * 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
}

status step_train(struct optim *optim, struct step_metrics *metrics) {
    enum { LISTED = 8 };
    const size_t count = optim->batch_count;
    const struct step_group *groups = optim->batch;
    const double started = clock_monotonic(), waited = optim->ranks ? optim->ranks->waited : NAN;
    const struct optim_options *options = optim->options;
    const int64_t step = model_version(optim->model) + 1;
    const struct optimizer_options adamw = {.lr = step_lr(optim, step - 1),
                                            .beta1 = options->beta1,
                                            .beta2 = options->beta2,
                                            .eps = options->epsilon,
                                            .weight_decay = options->weight_decay,
                                            .max_grad_norm = options->clip_norm};
    optim->lr = adamw.lr;
    if (options->schedule == OPTIM_SCHEDULE_COSINE && options->steps && step > options->steps &&
        !optim->schedule_over) {
        optim->schedule_over = true;
        stage_notify(optim->context,
                     "the learning rate is 0 from step %lld on, and nothing is learned: `steps`, the end of its "
                     "schedule, is %lld",
                     (long long)step, (long long)options->steps);
    }
    *metrics = (struct step_metrics){.step = step, .lr = adamw.lr, .groups = (int64_t)count};
    status trained = OK;
    // The mean over the step's groups of their losses, or the mean over the step's tokens.
    const double share = 1.0 / (double)count, weight = options->loss == OPTIM_LOSS_TOKENS ? 1 : share;
    leaf_sort(optim->leaves, optim->leaf_count);
    const size_t ranks = optim->ranks ? (size_t)optim->ranks->count : 1;
    for (size_t i = 0; i < optim->leaf_count && trained == OK; i += ranks) {
        const size_t left = optim->leaf_count - i;
        trained = step_turn(optim, &optim->leaves[i], (int)(left < ranks ? left : ranks), weight);
    }
    for (size_t i = 0; i < count && trained == OK; i++) metrics_add(metrics, &groups[i], weight, share);
    if (trained == OK && options->gradients) trained = model_save_grads(optim->model, options->gradients);
    if (trained == OK) {
        trained = order_step(optim, &adamw, &metrics->grad_norm);
        optim->unsound = trained == DATAERR;
        if (optim->unsound) { // with the ids of the groups, as many as fit a line
            struct buf ids = {0};
            for (size_t i = 0; i < count && i < LISTED; i++)
                buf_printf(&ids, "%s%s", i ? ", " : "", groups[i].group->id.data);
            if (count > LISTED) buf_printf(&ids, " and %zu more", count - LISTED);
            trained = fail_prefix(DATAERR, "groups %s", ids.data);
            buf_release(&ids);
        }
    }
    if (optim->unsound) { // says from which weights the run would go on
        const long long saved = optim->saved_step;
        if (step == 1) return fail(DATAERR, "step 1: %s. It has the weights of %s", fail_text(), optim->model_path);
        if (saved < step - 1)
            return fail(DATAERR,
                        "step %lld: %s. Nothing is saved of the steps after %lld, from which the run would go on",
                        (long long)step, fail_text(), saved);
        return fail(DATAERR,
                    "step %lld: %s. The checkpoint of step %lld has its weights: to go on from an older one, remove "
                    "%s/%s-%06lld",
                    (long long)step, fail_text(), saved, options->out, optim->saved_whole ? "step" : "state", saved);
    }
    TRY(trained);
    assert(model_version(optim->model) == step);
    // From here on a checkpoint has this step, so that its cursor must be behind these groups.
    for (size_t i = 0; i < count; i++) {
        groups[i].group->trained.present = true;
        groups[i].group->trained.step = step;
        if (groups[i].group->requires.present && groups[i].group->requires.order >= optim->cursor)
            optim->cursor = groups[i].group->requires.order + 1;
    }
    const bool ema_due = options->ema_every && step % options->ema_every == 0;
    if (ema_due) {
        TRY(order_update_ema(optim, options->ema_decay));
        optim->ema_step = step;
    }
    const status published = publish_weights(optim, ema_due);
    if (published != END) TRY(published); // asked to stop: nobody needs them now
    const int64_t epoch = stage_epoch(optim->context);
    metrics->epoch = epoch ? (double)optim->cursor / (double)epoch : NAN;
    metrics->time = clock_realtime();
    metrics->seconds = clock_monotonic() - started;
    metrics->rank_wait = optim->ranks ? optim->ranks->waited - waited : NAN;
    return OK;
}
