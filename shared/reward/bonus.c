#include "shared/reward/bonus.h"

#include <math.h>

#include "shared/config/methods.h"
#include "shared/reward/python_text.h"
#include "shared/reward/reward.h"

static const double likelihood_tolerance = 1e-6; // in the comparison with the mean

// Sets *out to the likelihood of completion i's answer under the reference, NaN if it has no answer. The mean
// probability of the answer's tokens is the reference's own, or computed from its log-probabilities of all tokens.
static status bonus_likelihood(const struct group *group, const struct reward_options *options, size_t i, double *out) {
    const struct reference *reference = &group->reference;
    if (options->likelihood == REWARD_LIKELIHOOD_GEOMETRIC) {
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

static status bonus_from_likelihood(struct group *group, const struct reward_options *options) {
    struct double_array likelihoods;
    const struct double_array *accuracy = &group->rewards.accuracy;
    const bool relative = methods[options->method].bonus == BONUS_LIKELY;
    double sum = 0;
    size_t count = 0;
    bool *accurate = arena_alloc(&group->arena, accuracy->count * sizeof *accurate);
    reward_find_accurate(accuracy, accurate);
    group_doubles(group, &likelihoods, accuracy->count);
    for (size_t i = 0; i < likelihoods.count; i++) {
        TRY(bonus_likelihood(group, options, i, &likelihoods.data[i]));
        if (!accurate[i] || isnan(likelihoods.data[i])) continue;
        sum += likelihoods.data[i];
        count++;
    }
    const double margin = isnan(options->margin) ? 0 : options->margin;
    const double threshold = count ? sum / (double)count - margin - likelihood_tolerance : NAN;
    for (size_t i = 0; i < likelihoods.count; i++) {
        const double p = likelihoods.data[i];
        const bool earned = relative ? accurate[i] && p >= threshold : !isnan(p);
        if (earned) group->rewards.bonus.data[i] = options->coefficient * accuracy->data[i] * (relative ? 1 : p);
    }
    return OK;
}

static status bonus_from_generated(struct group *group, enum problem_type type, const struct reward_options *options) {
    const struct string_array *generated = &group->reference.generated;
    const struct string truth = answer_extract(group->prompt.solution);
    if (!generated->data) return fail(DATAERR, "not a group: reference.generated: missing");
    for (size_t i = 0; i < generated->count; i++) {
        double accuracy;
        if (!generated->data[i].data) continue; // the completion has no <answer> tag
        TRY(accuracy_of_answer(type, truth, python_strip(generated->data[i]), &accuracy));
        group->rewards.bonus.data[i] = options->coefficient * accuracy;
    }
    return OK;
}

static status bonus_copy_consistency(struct group *group) {
    const struct double_array *probability = &group->consistency.probability;
    struct double_array *consistency = &group->rewards.consistency;
    TRY(group_check_fractions(group, "consistency.probability", probability, false));
    group_doubles(group, consistency, probability->count);
    for (size_t i = 0; i < probability->count; i++) consistency->data[i] = probability->data[i];
    return OK;
}

status bonus_compute(struct group *group, enum problem_type type, const struct reward_options *options) {
    const enum method_bonus bonus = methods[options->method].bonus;
    if (bonus == BONUS_NONE) return OK;
    if (bonus == BONUS_CONSISTENCY) return bonus_copy_consistency(group);
    TRY(group_check(group, NEED_REFERENCE));
    group_doubles(group, &group->rewards.bonus, group->completion_count); // zeros
    if (bonus == BONUS_GENERATED) return bonus_from_generated(group, type, options);
    return bonus_from_likelihood(group, options);
}
