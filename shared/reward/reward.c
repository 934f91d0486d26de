#include "shared/reward/reward.h"

#include <math.h>

#include "shared/reward/accuracy.h"
#include "shared/reward/advantages.h"
#include "shared/reward/bonus.h"

static const double tolerance = 1e-6;         // in comparisons with a mean, and of an accuracy that was a float32
static const double accuracy_threshold = 0.1; // a higher accuracy counts as accurate
static const double length_reward = 0.2;      // of an accurate completion of the right length

void reward_find_accurate(const struct double_array *accuracy, bool *accurate) {
    const double above = accuracy_threshold + tolerance;
    double sum = 0;
    for (size_t i = 0; i < accuracy->count; i++) sum += accuracy->data[i];
    const double least = sum / (double)accuracy->count - tolerance;
    for (size_t i = 0; i < accuracy->count; i++) accurate[i] = accuracy->data[i] > above && accuracy->data[i] >= least;
}

// The length reward goes to accurate completions of the right length, if more than one completion is accurate.
static status reward_length(struct group *group, const struct option_range *range) {
    const double *accuracy = group->rewards.accuracy.data;
    size_t accurate = 0;
    group_doubles(group, &group->rewards.length, group->completion_count); // zeros
    for (size_t i = 0; i < group->completion_count; i++) accurate += accuracy[i] > accuracy_threshold;
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct int_array *tokens = &group->completions[i].tokens;
        if (!tokens->data) return fail(DATAERR, "not a group: completions[%zu].tokens: missing", i);
        const bool fits = (double)tokens->count >= range->from && (double)tokens->count <= range->to;
        if (accurate > 1 && accuracy[i] > accuracy_threshold && fits) group->rewards.length.data[i] = length_reward;
    }
    return OK;
}

status reward_group(struct group *group, const struct reward_options *options) {
    TRY(group_check(group, NEED_COMPLETIONS));
    struct unknown_fields unknown = group->rewards.unknown;
    struct rewards *rewards = &group->rewards;
    size_t count = group->completion_count;
    *rewards = (struct rewards){.present = true, .unknown = unknown};
    group_doubles(group, &rewards->accuracy, count);
    group_doubles(group, &rewards->format, count);

    enum problem_type type;
    const char *sample = group->sample_id.data ? group->sample_id.data : group->id.data;
    TRY(problem_type_of(group, &type));
    for (size_t i = 0; i < count; i++) {
        const struct string text = group->completions[i].text;
        status result = accuracy_compute(type, group->prompt.solution, text, &rewards->accuracy.data[i]);
        if (result != OK) return fail_prefix(result, "sample %s", sample);
        rewards->format.data[i] = format_matches(text);
    }
    if (!isnan(options->length_reward.from)) TRY(reward_length(group, &options->length_reward));
    TRY(bonus_compute(group, type, options));

    group_doubles(group, &rewards->total, count);
    for (size_t i = 0; i < count; i++) {
        double total = rewards->accuracy.data[i] + rewards->format.data[i];
        if (rewards->length.data) total += rewards->length.data[i];
        if (rewards->bonus.data) total += rewards->bonus.data[i];
        if (rewards->consistency.data) total += options->coefficient * rewards->consistency.data[i];
        rewards->total.data[i] = total;
    }
    advantages_compute(group, options);
    return OK;
}
