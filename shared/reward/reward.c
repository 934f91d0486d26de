#include "shared/reward/reward.h"

#include <math.h>

#include "shared/config/methods.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"

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

// ---- bonus ----

static const double likelihood_tolerance = 1e-6; // in the comparison with the mean

static status bonus_from_likelihood(struct group *group, const struct reward_options *options) {
    struct double_array likelihoods;
    const struct double_array *accuracy = &group->rewards.accuracy;
    const struct reference *reference = &group->reference;
    const bool relative = methods[options->method].bonus == BONUS_LIKELY;
    double sum = 0;
    size_t count = 0;
    bool *accurate = arena_alloc(&group->arena, accuracy->count * sizeof *accurate);
    reward_find_accurate(accuracy, accurate);
    GROUP_ARRAY(group, &likelihoods, accuracy->count);
    for (size_t i = 0; i < likelihoods.count; i++) {
        // The mean probability of the answer's tokens is the reference's own, or computed from its log-probabilities of
        // all tokens; NaN without an answer.
        double likelihood = NAN;
        if (options->likelihood == REWARD_LIKELIHOOD_GEOMETRIC) {
            if (!reference->answer_logprob.data) return fail(DATAERR, "not a group: reference.answer_logprob: missing");
            likelihood = exp(reference->answer_logprob.data[i]);
        } else if (reference->answer_probability.data) {
            likelihood = reference->answer_probability.data[i];
        } else {
            if (!reference->logprobs || !reference->answer_span.data)
                return fail(DATAERR, "not a group: reference.answer_probability: missing");
            const struct span *span = &reference->answer_span.data[i];
            const struct float_array *logprobs = &reference->logprobs[i];
            if (span->first >= 0 && (size_t)span->end > logprobs->count)
                return fail(DATAERR, "not a group: reference.answer_span[%zu]: ends after its log-probabilities", i);
            double tokens = 0;
            for (int64_t t = span->first; t >= 0 && t < span->end; t++) tokens += exp((double)logprobs->data[t]);
            if (span->first >= 0) likelihood = span->end > span->first ? tokens / (double)(span->end - span->first) : 1;
        }
        if (likelihood > options->upper_bound) likelihood = options->upper_bound;
        likelihoods.data[i] = likelihood;
        if (!accurate[i] || isnan(likelihood)) continue;
        sum += likelihood;
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

// ---- advantages ----

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

static void advantages_compute(struct group *group, const struct reward_options *options) {
    const struct rewards *rewards = &group->rewards;
    const bool split =
        methods[options->method].bonus == BONUS_CONSISTENCY && options->advantages == REWARD_ADVANTAGES_SPLIT;
    GROUP_ARRAY(group, &group->advantages, group->completion_count); // zeros
    if (!split) {
        advantages_add(group, &rewards->total, NULL, 1, deviation_epsilon);
        return;
    }
    struct double_array task;
    GROUP_ARRAY(group, &task, group->completion_count);
    for (size_t i = 0; i < task.count; i++)
        task.data[i] =
            rewards->accuracy.data[i] + rewards->format.data[i] + (rewards->length.data ? rewards->length.data[i] : 0);
    advantages_add(group, &task, NULL, options->alpha, deviation_epsilon);
    bool *accurate = arena_alloc(&group->arena, task.count * sizeof *accurate);
    reward_find_accurate(&rewards->accuracy, accurate);
    // The weight of the consistency rises linearly from 0 over the first steps and falls linearly to 0 over the last
    // ones, as its schedule says.
    const int schedule = options->beta_schedule;
    double factor = 1;
    if (schedule != REWARD_BETA_SCHEDULE_CONSTANT && group->requires.present && group->requires.order >= 0 &&
        options->steps) {
        const int64_t step = group->requires.order / options->groups_per_step;
        const double done = fmin(1, (double)step / (double)options->steps);
        if (schedule != REWARD_BETA_SCHEDULE_DECAY && done < options->beta_warmup) factor = done / options->beta_warmup;
        if (schedule != REWARD_BETA_SCHEDULE_WARMUP && 1 - done < options->beta_decay)
            factor = fmin(factor, (1 - done) / options->beta_decay);
    }
    const bool *part = options->consistency_on == REWARD_CONSISTENCY_ON_CORRECT ? accurate : NULL;
    advantages_add(group, &rewards->consistency, part, options->beta * factor,
                   fmax(deviation_epsilon, options->consistency_floor));
}

// ---- the group ----

status reward_group(struct group *group, const struct reward_options *options) {
    TRY(group_check(group, NEED_COMPLETIONS));
    struct unknown_fields unknown = group->rewards.unknown;
    struct rewards *rewards = &group->rewards;
    size_t count = group->completion_count;
    *rewards = (struct rewards){.present = true, .unknown = unknown};
    GROUP_ARRAY(group, &rewards->accuracy, count);
    GROUP_ARRAY(group, &rewards->format, count);

    enum problem_type type;
    const char *sample = group->sample_id.data ? group->sample_id.data : group->id.data;
    TRY(problem_type_of(group, &type));
    const struct string truth = answer_extract(group->prompt.solution);
    status result = solution_check(type, group->prompt.solution);
    for (size_t i = 0; i < count && result == OK; i++) {
        const struct string text = group->completions[i].text;
        result = accuracy_of_answer(type, truth, answer_extract(text), &rewards->accuracy.data[i]);
        rewards->format.data[i] = format_matches(text);
    }
    if (result != OK) return fail_prefix(result, "sample %s", sample);
    // The length reward goes to accurate completions of the right length, if more than one completion is accurate.
    const struct option_range *range = &options->length_reward;
    const double *accuracy = rewards->accuracy.data;
    size_t accurate = 0;
    for (size_t i = 0; i < count; i++) accurate += accuracy[i] > accuracy_threshold;
    if (!isnan(range->from)) GROUP_ARRAY(group, &rewards->length, count); // zeros
    for (size_t i = 0; i < rewards->length.count; i++) {
        const struct int_array *tokens = &group->completions[i].tokens;
        if (!tokens->data) return fail(DATAERR, "not a group: completions[%zu].tokens: missing", i);
        const bool fits = (double)tokens->count >= range->from && (double)tokens->count <= range->to;
        if (accurate > 1 && accuracy[i] > accuracy_threshold && fits) rewards->length.data[i] = length_reward;
    }
    const enum method_bonus bonus = methods[options->method].bonus;
    if (bonus == BONUS_CONSISTENCY) {
        const struct double_array *probability = &group->consistency.probability;
        TRY(group_check_fractions(group, "consistency.probability", probability, false));
        GROUP_ARRAY(group, &rewards->consistency, count);
        for (size_t i = 0; i < count; i++) rewards->consistency.data[i] = probability->data[i];
    }
    if (bonus != BONUS_CONSISTENCY && bonus != BONUS_NONE) {
        TRY(group_check(group, NEED_REFERENCE));
        GROUP_ARRAY(group, &rewards->bonus, count); // zeros
        const struct string_array *generated = &group->reference.generated;
        if (bonus != BONUS_GENERATED)
            TRY(bonus_from_likelihood(group, options));
        else if (!generated->data)
            return fail(DATAERR, "not a group: reference.generated: missing");
        for (size_t i = 0; bonus == BONUS_GENERATED && i < generated->count; i++) {
            double generated_accuracy;
            if (!generated->data[i].data) continue; // the completion has no <answer> tag
            TRY(accuracy_of_answer(type, truth, python_strip(generated->data[i]), &generated_accuracy));
            rewards->bonus.data[i] = options->coefficient * generated_accuracy;
        }
    }

    GROUP_ARRAY(group, &rewards->total, count);
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
