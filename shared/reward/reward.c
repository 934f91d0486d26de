#include "shared/reward/reward.h"

#include <math.h>
#include <string.h>

#include "shared/reward/accuracy.h"

static const double tolerance = 1e-6; // of comparisons with a mean
static const double right = 0.1;      // an accuracy above it counts as right
static const double length_reward = 0.2;

static const char *name_of(const struct group *group) {
    return group->sample_id.data ? group->sample_id.data : group->id.data;
}

static double mean(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum / (double)values->count;
}

static status write_accuracy(struct group *group) {
    enum problem_type type;
    const struct string *named = &group->prompt.problem_type;
    if (!problem_type_parse(*named, &type))
        return fail(DATAERR,
                    "sample %s: problem type '%s' is none of multiple choice, numerical, OCR, free-form, "
                    "regression",
                    name_of(group), named->data ? named->data : "");
    for (size_t i = 0; i < group->completion_count; i++) {
        double *accuracy = &group->rewards.accuracy.data[i];
        status result = accuracy_compute(type, group->prompt.solution, group->completions[i].text, accuracy);
        if (result != OK) return fail_prefix(result, "sample %s", name_of(group));
    }
    return OK;
}

static status write_length(struct group *group, const struct reward_options *rules) {
    const double *accuracy = group->rewards.accuracy.data;
    size_t count = 0;
    TRY(group_doubles(group, &group->rewards.length, group->completion_count));
    for (size_t i = 0; i < group->completion_count; i++) count += accuracy[i] > right;
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct int_array *tokens = &group->completions[i].tokens;
        if (!tokens->data) return fail(DATAERR, "not a group: completions[%zu].tokens: missing", i);
        bool earns = (double)tokens->count >= rules->shortest && (double)tokens->count <= rules->longest;
        group->rewards.length.data[i] = count > 1 && accuracy[i] > right && earns ? length_reward : 0;
    }
    return OK;
}

// The mean of the probabilities of completion i's answer tokens from the reference's log-probabilities of all tokens.
static status mean_probability(const struct group *group, size_t i, double *out) {
    const struct reference *reference = &group->reference;
    if (!reference->logprobs || !reference->answer_span.data)
        return fail(DATAERR, "not a group: reference.answer_probability: missing");
    const struct span *span = &reference->answer_span.data[i];
    const struct float_array *row = &reference->logprobs[i];
    *out = NAN;
    if (span->first < 0) return OK;
    if ((size_t)span->end > row->count)
        return fail(DATAERR, "not a group: reference.answer_span[%zu]: ends behind its log-probabilities", i);
    double sum = 0;
    for (int64_t t = span->first; t < span->end; t++) sum += exp((double)row->data[t]);
    *out = span->end > span->first ? sum / (double)(span->end - span->first) : 1;
    return OK;
}

// Bounded likelihood of completion i's answer under the reference; NaN without an answer.
static status likelihood(const struct group *group, const struct reward_options *rules, size_t i, double *out) {
    const struct reference *reference = &group->reference;
    if (!rules->arithmetic) {
        if (!reference->answer_logprob.data) return fail(DATAERR, "not a group: reference.answer_logprob: missing");
        *out = exp(reference->answer_logprob.data[i]);
    } else if (reference->answer_probability.data) {
        *out = reference->answer_probability.data[i];
    } else {
        TRY(mean_probability(group, i, out));
    }
    if (*out > rules->upper_bound) *out = rules->upper_bound;
    return OK;
}

// The mean likelihood of those accurate completions that have an answer, less the margin; NaN when there are none.
static double threshold(const struct double_array *likelihoods, const double *accuracy, double least, double margin) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < likelihoods->count; i++) {
        if (!(accuracy[i] > right && accuracy[i] >= least) || isnan(likelihoods->data[i])) continue;
        sum += likelihoods->data[i];
        count++;
    }
    return count ? sum / (double)count - (isnan(margin) ? 0 : margin) : NAN;
}

static status write_bonus(struct group *group, const struct reward_options *rules) {
    struct double_array likelihoods;
    const double *accuracy = group->rewards.accuracy.data;
    double least = mean(&group->rewards.accuracy) - tolerance;
    TRY(group_check(group, NEED_REFERENCE));
    TRY(group_doubles(group, &likelihoods, group->completion_count));
    TRY(group_doubles(group, &group->rewards.bonus, group->completion_count));
    for (size_t i = 0; i < likelihoods.count; i++) TRY(likelihood(group, rules, i, &likelihoods.data[i]));
    double mu = threshold(&likelihoods, accuracy, least, rules->margin);
    for (size_t i = 0; i < likelihoods.count; i++) {
        double p = likelihoods.data[i], bonus = 0;
        if (rules->method == METHOD_DENSECONS)
            bonus = isnan(p) ? 0 : rules->coefficient * accuracy[i] * p;
        else if (accuracy[i] > right && accuracy[i] >= least && p >= mu - tolerance)
            bonus = rules->coefficient * accuracy[i];
        group->rewards.bonus.data[i] = bonus;
    }
    return OK;
}

static status write_total(struct group *group) {
    struct rewards *rewards = &group->rewards;
    TRY(group_doubles(group, &rewards->total, group->completion_count));
    for (size_t i = 0; i < group->completion_count; i++) {
        double total = rewards->accuracy.data[i] + rewards->format.data[i];
        if (rewards->length.data) total += rewards->length.data[i];
        if (rewards->bonus.data) total += rewards->bonus.data[i];
        rewards->total.data[i] = total;
    }
    return OK;
}

static bool all_equal(const struct double_array *values) {
    for (size_t i = 1; i < values->count; i++)
        if (values->data[i] != values->data[0]) return false;
    return true;
}

static status write_advantages(struct group *group) {
    const struct double_array *total = &group->rewards.total;
    TRY(group_doubles(group, &group->advantages, total->count));
    if (all_equal(total)) return OK;
    double average = mean(total), squares = 0;
    for (size_t i = 0; i < total->count; i++) squares += (total->data[i] - average) * (total->data[i] - average);
    double deviation = sqrt(squares / (double)(total->count - 1));
    for (size_t i = 0; i < total->count; i++)
        group->advantages.data[i] = (total->data[i] - average) / (deviation + 1e-4);
    return OK;
}

status reward_group(struct group *group, const struct reward_options *rules) {
    TRY(group_check(group, NEED_COMPLETIONS));
    struct unknown_fields unknown = group->rewards.unknown;
    group->rewards = (struct rewards){.present = true, .unknown = unknown};
    TRY(group_doubles(group, &group->rewards.accuracy, group->completion_count));
    TRY(group_doubles(group, &group->rewards.format, group->completion_count));
    TRY(write_accuracy(group));
    for (size_t i = 0; i < group->completion_count; i++)
        group->rewards.format.data[i] = format_matches(group->completions[i].text);
    if (!isnan(rules->shortest)) TRY(write_length(group, rules));
    if (rules->method != METHOD_PLAIN) TRY(write_bonus(group, rules));
    TRY(write_total(group));
    return write_advantages(group);
}
