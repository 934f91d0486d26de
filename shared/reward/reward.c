#include "shared/reward/reward.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "shared/reward/accuracy.h"

static const double tolerance = 1e-6;         // in comparisons with a mean, and of an accuracy that was a float32
static const double accuracy_threshold = 0.1; // a higher accuracy counts as accurate
static const double length_reward = 0.2;      // of an accurate completion of the right length
static const double advantage_epsilon = 1e-4; // added to the standard deviation

static double reward_mean(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum / (double)values->count;
}

void reward_find_accurate(const struct double_array *accuracy, bool *accurate) {
    const double above = accuracy_threshold + tolerance, least = reward_mean(accuracy) - tolerance;
    for (size_t i = 0; i < accuracy->count; i++) accurate[i] = accuracy->data[i] > above && accuracy->data[i] >= least;
}

// Sets *out to the likelihood of completion i's answer under the reference, NaN if it has no answer. The mean
// probability of the answer's tokens is the reference's own, or computed from its log-probabilities of all tokens.
static status reward_likelihood(const struct group *group, const struct reward_options *options, size_t i,
                                double *out) {
    const struct reference *reference = &group->reference;
    if (!options->arithmetic_mean) {
        if (!reference->answer_logprob.data) return fail(DATAERR, "not a group: reference.answer_logprob: missing");
        *out = exp(reference->answer_logprob.data[i]);
    } else if (reference->answer_probability.data) {
        *out = reference->answer_probability.data[i];
    } else {
        if (!reference->logprobs || !reference->answer_span.data)
            return fail(DATAERR, "not a group: reference.answer_probability: missing");
        const struct span *span = &reference->answer_span.data[i];
        const struct float_array *logprobs = &reference->logprobs[i];
        *out = NAN;
        if (span->first < 0) return OK;
        if ((size_t)span->end > logprobs->count)
            return fail(DATAERR, "not a group: reference.answer_span[%zu]: ends after its log-probabilities", i);
        double sum = 0;
        for (int64_t t = span->first; t < span->end; t++) sum += exp((double)logprobs->data[t]);
        *out = span->end > span->first ? sum / (double)(span->end - span->first) : 1;
    }
    if (*out > options->upper_bound) *out = options->upper_bound;
    return OK;
}

// The consistency bonus. Completions without an answer count neither for the mean likelihood nor get a bonus.
static status reward_bonus(struct group *group, const struct reward_options *options) {
    struct double_array likelihoods;
    const double *accuracy = group->rewards.accuracy.data;
    double sum = 0;
    size_t count = 0;
    bool *accurate = arena_alloc(&group->arena, group->completion_count * sizeof *accurate);
    if (!accurate) return fail_oom();
    TRY(group_check(group, NEED_REFERENCE));
    TRY(group_doubles(group, &likelihoods, group->completion_count));
    TRY(group_doubles(group, &group->rewards.bonus, group->completion_count));
    reward_find_accurate(&group->rewards.accuracy, accurate);
    for (size_t i = 0; i < likelihoods.count; i++) {
        TRY(reward_likelihood(group, options, i, &likelihoods.data[i]));
        if (!accurate[i] || isnan(likelihoods.data[i])) continue;
        sum += likelihoods.data[i];
        count++;
    }
    double threshold = count ? sum / (double)count - (isnan(options->margin) ? 0 : options->margin) : NAN;
    for (size_t i = 0; i < likelihoods.count; i++) {
        double p = likelihoods.data[i], bonus = 0;
        if (options->method == METHOD_DENSECONS)
            bonus = isnan(p) ? 0 : options->coefficient * accuracy[i] * p;
        else if (accurate[i] && p >= threshold - tolerance)
            bonus = options->coefficient * accuracy[i];
        group->rewards.bonus.data[i] = bonus;
    }
    return OK;
}

status reward_group(struct group *group, const struct reward_options *options) {
    TRY(group_check(group, NEED_COMPLETIONS));
    struct unknown_fields unknown = group->rewards.unknown;
    struct rewards *rewards = &group->rewards;
    size_t count = group->completion_count;
    *rewards = (struct rewards){.present = true, .unknown = unknown};
    TRY(group_doubles(group, &rewards->accuracy, count));
    TRY(group_doubles(group, &rewards->format, count));

    enum problem_type type;
    const char *sample = group->sample_id.data ? group->sample_id.data : group->id.data;
    TRY(problem_type_of(group, &type));
    for (size_t i = 0; i < count; i++) {
        const struct string text = group->completions[i].text;
        status result = accuracy_compute(type, group->prompt.solution, text, &rewards->accuracy.data[i]);
        if (result != OK) return fail_prefix(result, "sample %s", sample);
        rewards->format.data[i] = format_matches(text);
    }

    // The length reward goes to accurate completions of the right length, if more than one completion is accurate.
    size_t accurate = 0;
    if (!isnan(options->min_length)) TRY(group_doubles(group, &rewards->length, count)); // zeros
    for (size_t i = 0; i < count; i++) accurate += rewards->accuracy.data[i] > accuracy_threshold;
    for (size_t i = 0; rewards->length.data && i < count; i++) {
        const struct int_array *tokens = &group->completions[i].tokens;
        if (!tokens->data) return fail(DATAERR, "not a group: completions[%zu].tokens: missing", i);
        bool fits = (double)tokens->count >= options->min_length && (double)tokens->count <= options->max_length;
        if (accurate > 1 && rewards->accuracy.data[i] > accuracy_threshold && fits)
            rewards->length.data[i] = length_reward;
    }
    if (options->method != METHOD_PLAIN) TRY(reward_bonus(group, options));

    bool all_equal = true;
    TRY(group_doubles(group, &rewards->total, count));
    for (size_t i = 0; i < count; i++) {
        double total = rewards->accuracy.data[i] + rewards->format.data[i];
        if (rewards->length.data) total += rewards->length.data[i];
        if (rewards->bonus.data) total += rewards->bonus.data[i];
        rewards->total.data[i] = total;
        all_equal = all_equal && total == rewards->total.data[0];
    }

    TRY(group_doubles(group, &group->advantages, count)); // zeros
    if (all_equal) return OK;
    assert(count > 1);
    double mean = reward_mean(&rewards->total), squares = 0;
    for (size_t i = 0; i < count; i++) squares += (rewards->total.data[i] - mean) * (rewards->total.data[i] - mean);
    double deviation = sqrt(squares / (double)(count - 1));
    for (size_t i = 0; i < count; i++)
        group->advantages.data[i] = (rewards->total.data[i] - mean) / (deviation + advantage_epsilon);
    return OK;
}
