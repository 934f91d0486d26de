// What a step's groups say about the run: means over completions, groups and tokens.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "stages/optim/optim.h"

void metrics_begin(struct step_metrics *metrics, struct group *const *groups, size_t count) {
    size_t completions = 0;
    for (size_t i = 0; i < count; i++) completions += groups[i]->completion_count;
    *metrics = (struct step_metrics){.groups = (int64_t)count};
    NEW(&metrics->lengths, completions);
    NEW(&metrics->rewards, completions);
}

void metrics_release(struct step_metrics *metrics) {
    free(metrics->lengths);
    free(metrics->rewards);
    metrics->lengths = metrics->rewards = NULL;
}

static double metrics_sum(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum;
}

// The unbiased standard deviation of two values or more.
static double metrics_deviation(const struct double_array *values) {
    const double mean = metrics_sum(values) / (double)values->count;
    double squares = 0;
    for (size_t i = 0; i < values->count; i++) squares += (values->data[i] - mean) * (values->data[i] - mean);
    return sqrt(squares / (double)(values->count - 1));
}

static void metrics_add_rewards(struct step_metrics *metrics, const struct rewards *rewards, size_t count) {
    const bool accuracies = rewards->accuracy.count > 0;
    bool all_correct = accuracies, all_wrong = accuracies;
    for (size_t i = 0; i < rewards->accuracy.count; i++) {
        all_correct = all_correct && rewards->accuracy.data[i] == 1;
        all_wrong = all_wrong && rewards->accuracy.data[i] == 0;
    }
    metrics->all_correct += all_correct;
    metrics->all_wrong += all_wrong;
    metrics->reward += metrics_sum(&rewards->total);
    metrics->accuracy += metrics_sum(&rewards->accuracy);
    metrics->bonus += metrics_sum(&rewards->bonus);
    metrics->format += metrics_sum(&rewards->format);
    for (size_t i = 0; i < rewards->bonus.count; i++) metrics->bonus_rate += rewards->bonus.data[i] > 0;
    if (rewards->total.count > 1) {
        metrics->reward_std += metrics_deviation(&rewards->total);
        metrics->compared_groups++;
    }
    for (size_t i = 0; i < rewards->total.count && i < count; i++)
        metrics->rewards[metrics->reward_count++] = rewards->total.data[i];
    metrics->rewarded += (int64_t)count;
    metrics->accuracies += (int64_t)rewards->accuracy.count;
    metrics->accuracy_groups += accuracies;
    metrics->formats += (int64_t)rewards->format.count;
}

void metrics_add(struct step_metrics *metrics, const struct group *group, const struct int_array *completions,
                 const struct train_result *trained, double weight, double share) {
    const struct double_array *consistency = &group->consistency.probability;
    const size_t count = group->completion_count;
    for (size_t i = 0; i < count; i++) {
        const struct string *finish = &group->completions[i].finish;
        metrics->lengths[metrics->completions++] = (double)completions[i].count;
        metrics->truncated += finish->data && !strcmp(finish->data, "length");
    }
    metrics->loss += weight * trained->loss;
    metrics->nll += weight * trained->nll;
    metrics->kl += share * trained->kl;
    metrics->logprob_diff_mean += share * trained->logprob_diff_mean;
    metrics->logprob_diff_max = fmax(metrics->logprob_diff_max, trained->logprob_diff_max);
    metrics->tokens += trained->tokens;
    metrics->prompt_tokens += trained->prompt_tokens;
    for (size_t i = 0; i < consistency->count; i++) {
        if (!isfinite(consistency->data[i])) continue;
        metrics->consistency += consistency->data[i];
        metrics->judged++;
    }
    if (!group->rewards.present) return; // a supervised group
    metrics_add_rewards(metrics, &group->rewards, count);
    metrics->entropy += trained->entropy * (double)trained->tokens;
    metrics->rewarded_tokens += trained->tokens;
}

static double metrics_mean(double sum, int64_t count) {
    return count ? sum / (double)count : NAN;
}

void metrics_finish(struct step_metrics *metrics) {
    metrics->reward = metrics_mean(metrics->reward, metrics->rewarded);
    metrics->accuracy = metrics_mean(metrics->accuracy, metrics->accuracies);
    metrics->bonus = metrics_mean(metrics->bonus, metrics->rewarded);
    metrics->format = metrics_mean(metrics->format, metrics->formats);
    metrics->bonus_rate = metrics_mean(metrics->bonus_rate, metrics->rewarded);
    metrics->completion_length = metrics_mean((double)metrics->tokens, metrics->completions);
    metrics->truncated = metrics_mean(metrics->truncated, metrics->completions);
    metrics->consistency = metrics_mean(metrics->consistency, metrics->judged);
    metrics->reward_std = metrics_mean(metrics->reward_std, metrics->compared_groups);
    metrics->all_correct = metrics_mean(metrics->all_correct, metrics->accuracy_groups);
    metrics->all_wrong = metrics_mean(metrics->all_wrong, metrics->accuracy_groups);
    metrics->entropy = metrics_mean(metrics->entropy, metrics->rewarded_tokens);
    if (metrics->tokens) metrics->age_mean /= (double)metrics->tokens;
}

void metrics_list(const struct step_metrics *metrics, struct event_scalar list[METRIC_COUNT]) {
    const struct event_scalar all[METRIC_COUNT] = {
        {"loss", metrics->loss},
        {"nll", metrics->nll},
        {"grad_norm", metrics->grad_norm},
        {"lr", metrics->lr},
        {"tokens", (double)metrics->tokens},
        {"reward", metrics->reward},
        {"accuracy", metrics->accuracy},
        {"format", metrics->format},
        {"bonus", metrics->bonus},
        {"kl", metrics->kl},
        {"reward_std", metrics->reward_std},
        {"all_correct", metrics->all_correct},
        {"all_wrong", metrics->all_wrong},
        {"bonus_rate", metrics->bonus_rate},
        {"completion_length", metrics->completion_length},
        {"truncated", metrics->truncated},
        {"entropy", metrics->entropy},
        {"consistency", metrics->consistency},
        {"logprob_difference", metrics->logprob_diff_mean},
        {"logprob_difference_max", metrics->logprob_diff_max},
        {"age_mean", metrics->age_mean},
        {"age_max", (double)metrics->age_max},
        {"groups", (double)metrics->groups},
        {"completions", (double)metrics->completions},
        {"prompt_tokens", (double)metrics->prompt_tokens},
        {"seconds", metrics->seconds},
        {"epoch", metrics->epoch},
    };
    assert(all[METRIC_COUNT - 1].tag);
    memcpy(list, all, sizeof all);
}
