// One optimizer step on a batch of groups (sections 1.5 and 5).
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "stages/optim/optim.h"

// Tokens of a completion sampled by an older policy: the oldest decides.
static bool is_stale(const struct completion *completion, int64_t version, struct step_facts *facts) {
    int64_t oldest = version;
    for (size_t i = 0; i < completion->versions.count; i++) {
        int64_t from = completion->versions.data[i];
        int64_t age = from < 0 ? version + 1 : from < version ? version - from : 0;
        if (version - age < oldest) oldest = version - age;
        facts->age_mean += (double)age; // divided by the tokens at the end
        if (age > facts->age_most) facts->age_most = age;
    }
    return completion->logprobs.data && oldest < version;
}

static void add_mean(double *sum, const struct double_array *values) {
    for (size_t i = 0; i < values->count; i++) *sum += values->data[i];
}

struct batch_sums {
    double reward, accuracy, bonus, format;
    size_t rewarded;
};

static void add_rewards(const struct group *group, struct batch_sums *sums) {
    if (!group->rewards.present) return;
    sums->rewarded += group->completion_count;
    add_mean(&sums->reward, &group->rewards.total);
    add_mean(&sums->accuracy, &group->rewards.accuracy);
    add_mean(&sums->bonus, &group->rewards.bonus);
    add_mean(&sums->format, &group->rewards.format);
}

// A number of the reference for each token, where the loss has a KL term.
static status check_reference(const struct optim *optim, const struct group *group, const struct stage_input *input) {
    if (optim->loss.kl_beta <= 0) return OK;
    if (group->reference.logprob_count != group->completion_count)
        return fail(DATAERR,
                    "not a group: reference.logprobs: missing (the KL term needs refscore with logprobs: all)");
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct float_array *logprobs = &group->reference.logprobs[i];
        if (logprobs->count != input->completions[i].count)
            return fail(DATAERR, "not a group: reference.logprobs[%zu]: not a number for each token", i);
        for (size_t t = 0; t < logprobs->count; t++)
            if (!isfinite(logprobs->data[t]))
                return fail(DATAERR, "not a group: reference.logprobs[%zu][%zu]: null", i, t);
    }
    return OK;
}

status step_check(struct optim *optim, struct group *group) {
    struct stage_input input = {0};
    struct model_completion *completions = NULL;
    status result = stage_input_open(optim->input, group, INPUT_COMPLETIONS, &input);
    if (result == OK) result = check_reference(optim, group, &input);
    if (result == OK) result = NEW(&completions, group->completion_count);
    for (size_t i = 0; result == OK && i < group->completion_count; i++)
        completions[i] = (struct model_completion){input.completions[i].data, input.completions[i].count};
    if (result == OK) result = model_check(optim->model, &input.prompt, completions, group->completion_count);
    free(completions);
    stage_input_release(&input);
    return result;
}

static void fill_completions(struct optim *optim, const struct group *group, const struct stage_input *input,
                             struct train_completion *out, struct step_facts *facts) {
    bool needs_reference = optim->loss.kl_beta > 0;
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct completion *completion = &group->completions[i];
        out[i] = (struct train_completion){
            .completion = {input->completions[i].data, input->completions[i].count},
            .advantage = group->advantages.data[i],
            .old_logprobs = completion->logprobs.data,
            .ref_logprobs = needs_reference ? group->reference.logprobs[i].data : NULL,
            .stale = is_stale(completion, optim->step, facts),
        };
    }
}

static status accumulate(struct optim *optim, struct group *group, double weight, struct step_facts *facts) {
    struct stage_input input = {0};
    struct train_completion *completions = NULL;
    struct train_result found = {0};
    status result = stage_input_open(optim->input, group, INPUT_COMPLETIONS, &input);
    if (result == OK) result = NEW(&completions, group->completion_count);
    if (result == OK) fill_completions(optim, group, &input, completions, facts);
    if (result == OK)
        result = model_accumulate(optim->model, &input.prompt, completions, group->completion_count, &optim->loss,
                                  weight, &found);
    if (result == OK) {
        facts->loss += weight * found.loss;
        facts->nll += weight * found.nll;
        facts->kl += weight * found.kl;
        facts->difference += weight * found.logprob_diff_mean;
        if (found.logprob_diff_max > facts->largest) facts->largest = found.logprob_diff_max;
        facts->tokens += found.tokens;
        facts->prompt_tokens += found.prompt_tokens;
        facts->completions += (int64_t)group->completion_count;
    }
    free(completions);
    stage_input_release(&input);
    return result == OK ? OK : fail_prefix(result, "group %s", group->id.data);
}

static status finish(struct optim *optim, struct step_facts *facts) {
    const struct optim_options *options = optim->options;
    struct optimizer_options rates = optim->rates;
    rates.lr = facts->rate = schedule_rate(&optim->schedule, optim->step);
    if (options->gradients) TRY(model_save_grads(optim->model, options->gradients));
    TRY(model_step(optim->model, &rates, &facts->norm));
    if (!isfinite(facts->norm)) log_info("step %lld: the gradient's norm is not finite", (long long)facts->step);
    optim->step++;
    if (options->ema_every && optim->step % options->ema_every == 0) {
        TRY(model_update_ema(optim->model, options->ema_decay));
        optim->averaged = optim->step;
    }
    return step_publish(optim, optim->averaged == optim->step);
}

static status publish(struct optim *optim, bool reference, int64_t version) {
    struct stage_weights weights = {.reference = reference, .version = version};
    if (version == 0) { // the model folder as it is
        TRY(model_hash(optim->model, &weights.hash));
        return stage_publish(optim->context, &weights);
    }
    struct arena memory = {0};
    char *path = arena_printf(&memory, "%s/%s-%06lld.safetensors", stage_weights_dir(optim->context),
                              reference ? "reference" : "policy", (long long)version);
    char *recycled = arena_printf(&memory, "%s.tmp", path ? path : "");
    status result = path && recycled ? OK : fail_oom();
    if (result == OK) stage_recycle(optim->context, reference, recycled);
    if (result == OK) result = model_publish(optim->model, reference, path, &weights.hash);
    weights.path = path;
    if (result == OK) result = stage_publish(optim->context, &weights);
    arena_release(&memory);
    return result;
}

// Before the first average the reference is what optim began with: the model folder, also when it has gone on since.
static status publish_first_reference(struct optim *optim) {
    struct stage_weights weights = {.reference = true, .hash = optim->first_hash};
    return stage_publish(optim->context, &weights);
}

status step_publish(struct optim *optim, bool both) {
    if (!stage_weights_dir(optim->context)) return OK; // nobody follows
    if (both) TRY(optim->averaged ? publish(optim, true, optim->averaged) : publish_first_reference(optim));
    return publish(optim, false, optim->step);
}

status step_train(struct optim *optim, struct group **groups, size_t count, struct step_facts *facts) {
    double began = clock_monotonic();
    struct batch_sums sums = {0};
    *facts = (struct step_facts){.step = optim->step + 1, .groups = (int64_t)count};
    for (size_t i = 0; i < count; i++) {
        TRY(accumulate(optim, groups[i], 1.0 / (double)count, facts));
        add_rewards(groups[i], &sums);
    }
    TRY(finish(optim, facts));
    double rewarded = sums.rewarded ? (double)sums.rewarded : NAN;
    facts->reward = sums.reward / rewarded;
    facts->accuracy = sums.accuracy / rewarded;
    facts->bonus = sums.bonus / rewarded;
    facts->format = sums.format / rewarded;
    if (facts->tokens) facts->age_mean /= (double)facts->tokens;
    for (size_t i = 0; i < count; i++) {
        groups[i]->trained.present = true;
        groups[i]->trained.step = optim->step;
        if (groups[i]->requires.present && groups[i]->requires.order >= optim->cursor)
        optim->cursor = groups[i]->requires.order + 1;
    }
    facts->seconds = clock_monotonic() - began;
    return OK;
}
