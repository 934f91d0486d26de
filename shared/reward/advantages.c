#include "shared/reward/advantages.h"

#include <math.h>

#include "shared/config/methods.h"
#include "shared/reward/reward.h"

static const double deviation_epsilon = 1e-4;

// Adds weight * (value - mean) / (s + epsilon) of the completions that `part` marks (NULL: all): nothing if it marks
// fewer than two, or if all their values are equal.
static void advantages_add(struct group *group, const struct double_array *values, const bool *part, double weight,
                           double epsilon) {
    const double *value = values->data;
    double sum = 0, squares = 0, first = 0;
    size_t count = 0;
    bool all_equal = true;
    for (size_t i = 0; i < values->count; i++) {
        if (part && !part[i]) continue;
        if (!count++) first = value[i];
        all_equal = all_equal && value[i] == first;
        sum += value[i];
    }
    if (all_equal) return; // also for one value or none
    const double mean = sum / (double)count;
    for (size_t i = 0; i < values->count; i++)
        if (!part || part[i]) squares += (value[i] - mean) * (value[i] - mean);
    const double deviation = sqrt(squares / (double)(count - 1));
    for (size_t i = 0; i < values->count; i++)
        if (!part || part[i]) group->advantages.data[i] += weight * ((value[i] - mean) / (deviation + epsilon));
}

// The weight of the consistency at the group's step: beta rises linearly from 0 over the first steps and falls linearly
// to 0 over the last ones, as its schedule says.
static double advantages_beta(const struct group *group, const struct reward_options *options) {
    const int schedule = options->beta_schedule;
    const bool placed = group->requires.present && group->requires.order >= 0 && options->steps;
    if (schedule == REWARD_BETA_SCHEDULE_CONSTANT || !placed) return options->beta;
    const int64_t step = group->requires.order / options->groups_per_step;
    const double done = fmin(1, (double)step / (double)options->steps);
    double factor = 1;
    if (schedule != REWARD_BETA_SCHEDULE_DECAY && done < options->beta_warmup) factor = done / options->beta_warmup;
    if (schedule != REWARD_BETA_SCHEDULE_WARMUP && 1 - done < options->beta_decay)
        factor = fmin(factor, (1 - done) / options->beta_decay);
    return options->beta * factor;
}

void advantages_compute(struct group *group, const struct reward_options *options) {
    const struct rewards *rewards = &group->rewards;
    const bool split =
        methods[options->method].bonus == BONUS_CONSISTENCY && options->advantages == REWARD_ADVANTAGES_SPLIT;
    group_doubles(group, &group->advantages, group->completion_count); // zeros
    if (!split) {
        advantages_add(group, &rewards->total, NULL, 1, deviation_epsilon);
        return;
    }
    struct double_array task;
    group_doubles(group, &task, group->completion_count);
    for (size_t i = 0; i < task.count; i++)
        task.data[i] =
            rewards->accuracy.data[i] + rewards->format.data[i] + (rewards->length.data ? rewards->length.data[i] : 0);
    advantages_add(group, &task, NULL, options->alpha, deviation_epsilon);
    bool *accurate = arena_alloc(&group->arena, task.count * sizeof *accurate);
    reward_find_accurate(&rewards->accuracy, accurate);
    advantages_add(group, &rewards->consistency,
                   options->consistency_on == REWARD_CONSISTENCY_ON_CORRECT ? accurate : NULL,
                   advantages_beta(group, options), fmax(deviation_epsilon, options->consistency_floor));
}
