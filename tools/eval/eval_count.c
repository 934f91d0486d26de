// The counts behind the figures of `caravan eval`, and the figures.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/reward/accuracy.h"
#include "shared/reward/verdict.h"
#include "tools/eval/eval.h"

const char *const *eval_keys(enum eval_section section) {
    static const char *const totals[] = {"records",     "answered",    "quarantined",  "truncated",     "parsed",
                                         "formatted",   "accuracy",    "accuracy_low", "accuracy_high", "letter",
                                         "letter_low",  "letter_high", "mra",          "mean",          "macro_mean",
                                         "tokens_mean", NULL};
    static const char *const categories[] = {"records", "accuracy", "letter", "mra", "mean", NULL};
    static const char *const consistency[] = {"judged",
                                              "consistent",
                                              "rate",
                                              "rate_correct",
                                              "consistent_correct",
                                              "inconsistent_correct",
                                              "consistent_wrong",
                                              "inconsistent_wrong",
                                              "not_judged",
                                              NULL};
    static_assert(sizeof totals / sizeof *totals == EVAL_TOTAL_COUNT + 1, "one name for each key");
    static_assert(sizeof categories / sizeof *categories == EVAL_OF_COUNT + 1, "one name for each key");
    static_assert(sizeof consistency / sizeof *consistency == EVAL_JUDGE_COUNT + 1, "one name for each key");
    static const char *const *const keys[EVAL_SECTIONS] = {totals, categories, consistency};
    return keys[section];
}

static int eval_compare_names(struct string a, struct string b) {
    const size_t size = a.size < b.size ? a.size : b.size;
    const int order = size ? memcmp(a.data, b.data, size) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

// ---- counting ----

// *out = the category of that name, which is made if there is none.
static void eval_find_category(struct eval_column *column, struct string name, struct eval_category **out) {
    size_t low = 0, high = column->category_count;
    if (high == column->category_capacity) {
        const size_t capacity = high ? 2 * high : 32;
        RESIZE(&column->categories, capacity);
        column->category_capacity = capacity;
    }
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (eval_compare_names(column->categories[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *out = column->categories + low;
    if (low < column->category_count && !eval_compare_names((*out)->name, name)) return;
    memmove(*out + 1, *out, (column->category_count - low) * sizeof **out);
    **out = (struct eval_category){0};
    column->category_count++;
    arena_string(&column->memory, &(*out)->name, name.data, name.size);
}

static void eval_find_judge(struct eval_column *column, struct string name, struct eval_judge **out) {
    size_t at = 0;
    while (at < column->judge_count && eval_compare_names(column->judges[at].name, name) < 0) at++;
    if (at == column->judge_count || eval_compare_names(column->judges[at].name, name)) {
        RESIZE(&column->judges, column->judge_count + 1);
        memmove(column->judges + at + 1, column->judges + at, (column->judge_count - at) * sizeof *column->judges);
        column->judges[at] = (struct eval_judge){0};
        column->judge_count++;
        arena_string(&column->memory, &column->judges[at].name, name.data, name.size);
    }
    *out = &column->judges[at];
}

static void eval_tally_add(struct eval_tally *tally, bool regression, double accuracy, double letter) {
    tally->records++;
    tally->regressions += regression;
    *(regression ? &tally->mra : &tally->accuracy) += accuracy;
    if (isnan(letter)) return;
    tally->letters++;
    tally->letter += letter;
}

static status eval_check(const struct group *group, const char *name, const struct double_array *values, bool nulls) {
    if (!values->data) return fail(DATAERR, "not scored: %s: missing", name);
    return group_check_fractions(group, name, values, nulls);
}

static status eval_add_verdicts(struct eval_column *column, const struct group *group) {
    const struct consistency *consistency = &group->consistency;
    struct eval_judge *judge;
    if (!consistency->verdict.data) return OK;
    if (!consistency->judge.data) return fail(DATAERR, "not a group: consistency.judge: missing");
    TRY(verdict_check(group));
    eval_find_judge(column, consistency->judge, &judge);
    for (size_t i = 0; i < group->completion_count; i++) {
        const double verdict = consistency->verdict.data[i];
        if (isnan(verdict))
            judge->not_judged++;
        else
            judge->judged[verdict >= 1][group->scores.correct.data[i] >= 1]++;
    }
    return OK;
}

// Adds the completions of a group that is not quarantined.
static status eval_add_completions(struct eval_column *column, struct eval_category *category,
                                   const struct group *group) {
    const struct scores *scores = &group->scores;
    enum problem_type type;
    TRY(group_check(group, NEED_COMPLETIONS));
    TRY(problem_type_of(group, &type));
    TRY(eval_check(group, "scores.accuracy", &scores->accuracy, false));
    TRY(eval_check(group, "scores.letter", &scores->letter, true));
    TRY(eval_check(group, "scores.correct", &scores->correct, false));
    TRY(eval_check(group, "scores.parsed", &scores->parsed, false));
    TRY(eval_check(group, "scores.formatted", &scores->formatted, false));
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct completion *completion = &group->completions[i];
        const double accuracy = scores->accuracy.data[i], letter = scores->letter.data[i];
        eval_tally_add(&column->all, type == PROBLEM_REGRESSION, accuracy, letter);
        if (category) eval_tally_add(&category->tally, type == PROBLEM_REGRESSION, accuracy, letter);
        column->truncated += string_equals(completion->finish, "length");
        column->parsed += scores->parsed.data[i] >= 1;
        column->formatted += scores->formatted.data[i] >= 1;
        column->token_counts += completion->tokens.data != NULL;
        column->tokens += (long double)completion->tokens.count;
    }
    return eval_add_verdicts(column, group);
}

// Appends a line about a quarantined group, without control characters.
static void eval_add_failure(struct eval_column *column, struct string sample, const struct quarantine *quarantine) {
    const size_t begin = column->failures.size;
    buf_printf(&column->failures, "%s: %s: %s", sample.data, quarantine->stage.data ? quarantine->stage.data : "?",
               quarantine->reason.data ? quarantine->reason.data : "no reason given");
    for (size_t i = begin; i < column->failures.size; i++) {
        const unsigned char c = (unsigned char)column->failures.data[i];
        if (c < 0x20 || c == 0x7f) column->failures.data[i] = '?';
    }
    buf_puts(&column->failures, "\n");
}

status eval_add(struct eval_column *column, const struct group *group, enum eval_by by) {
    const struct prompt *prompt = &group->prompt;
    const struct string names[] = {[EVAL_BY_CATEGORY] = prompt->category,
                                   [EVAL_BY_LEVEL] = prompt->level,
                                   [EVAL_BY_PROBLEM_TYPE] = prompt->problem_type};
    const struct string sample = group->sample_id.data ? group->sample_id : group->id;
    struct eval_category *category = NULL;
    if (column->sample_count == column->sample_capacity) {
        const size_t capacity = column->sample_capacity ? 2 * column->sample_capacity : 1024;
        RESIZE(&column->samples, capacity);
        column->sample_capacity = capacity;
    }
    arena_string(&column->memory, &column->samples[column->sample_count++], sample.data, sample.size);
    if (names[by].data) eval_find_category(column, names[by], &category);
    if (!group->quarantine.present) return eval_add_completions(column, category, group);

    const bool regression = string_equals(prompt->problem_type, problem_type_name(PROBLEM_REGRESSION));
    const double letter = string_equals(prompt->problem_type, problem_type_name(PROBLEM_CHOICE)) ? 0 : NAN;
    eval_tally_add(&column->all, regression, 0, letter);
    if (category) eval_tally_add(&category->tally, regression, 0, letter);
    column->quarantined++;
    eval_add_failure(column, sample, &group->quarantine);
    return OK;
}

void eval_release(struct eval_column *column) {
    free(column->categories);
    free(column->judges);
    free(column->samples);
    free(column->figures);
    buf_release(&column->failures);
    arena_release(&column->memory);
}

// ---- figures ----

static double eval_ratio(long double sum, size_t count) {
    return count ? (double)(sum / (long double)count) : NAN;
}

static double eval_tally_accuracy(const struct eval_tally *tally) {
    return eval_ratio(tally->accuracy, tally->records - tally->regressions);
}

static double eval_tally_mean(const struct eval_tally *tally) {
    return eval_ratio(tally->accuracy + tally->mra, tally->records);
}

// The bounds of Wilson's interval of 95 % around the share `p` of `n` records; NaN for none.
static double eval_wilson(double p, size_t n, int side) {
    const double z = 1.959963984540054, count = (double)n, z2 = z * z / count;
    const double half = z * sqrt(p * (1 - p) / count + z2 / (4 * count));
    return n ? fmin(1, fmax(0, (p + z2 / 2 + side * half) / (1 + z2))) : NAN;
}

// The mean over the categories of their means. The three levels of VSI-Bench's object_rel_direction count as one.
static double eval_macro_mean(const struct eval_column *column) {
    static const char merged[] = "object_rel_direction_";
    static const char *const levels[] = {"easy", "medium", "hard"};
    long double sum = 0, merged_sum = 0;
    size_t count = 0, merged_count = 0;
    for (size_t i = 0; i < column->category_count; i++) {
        const struct string name = column->categories[i].name;
        const double mean = eval_tally_mean(&column->categories[i].tally);
        bool is_level = false;
        for (int k = 0; k < 3 && string_find(name, merged, 0) == 0; k++)
            is_level |= string_equals(string_slice(name, sizeof merged - 1, name.size), levels[k]);
        *(is_level ? &merged_sum : &sum) += mean;
        *(is_level ? &merged_count : &count) += 1;
    }
    if (merged_count) sum += merged_sum / (long double)merged_count;
    return eval_ratio(sum, count + (merged_count > 0));
}

static void eval_put(struct eval_column *column, enum eval_section section, struct string name, const double *values,
                     int count) {
    for (int key = 0; key < count; key++)
        column->figures[column->figure_count++] = (struct eval_figure){section, name, key, values[key]};
}

void eval_judge_figures(const struct eval_judge *judge, double values[EVAL_JUDGE_COUNT]) {
    const size_t consistent = judge->judged[1][0] + judge->judged[1][1];
    const size_t correct = judge->judged[0][1] + judge->judged[1][1];
    const size_t count = consistent + judge->judged[0][0] + judge->judged[0][1];
    values[EVAL_JUDGED] = (double)count;
    values[EVAL_CONSISTENT] = (double)consistent;
    values[EVAL_RATE] = eval_ratio((long double)consistent, count);
    values[EVAL_RATE_CORRECT] = eval_ratio((long double)judge->judged[1][1], correct);
    values[EVAL_CONSISTENT_CORRECT] = (double)judge->judged[1][1];
    values[EVAL_INCONSISTENT_CORRECT] = (double)judge->judged[0][1];
    values[EVAL_CONSISTENT_WRONG] = (double)judge->judged[1][0];
    values[EVAL_INCONSISTENT_WRONG] = (double)judge->judged[0][0];
    values[EVAL_NOT_JUDGED] = (double)judge->not_judged;
}

void eval_finish(struct eval_column *column) {
    const struct eval_tally *all = &column->all;
    const double accuracy = eval_tally_accuracy(all), letter = eval_ratio(all->letter, all->letters);
    const size_t judged = all->records - all->regressions;
    const size_t capacity =
        EVAL_TOTAL_COUNT + column->category_count * EVAL_OF_COUNT + column->judge_count * EVAL_JUDGE_COUNT;
    NEW(&column->figures, capacity);
    const double totals[EVAL_TOTAL_COUNT] = {
        [EVAL_RECORDS] = (double)all->records,
        [EVAL_ANSWERED] = (double)(all->records - column->quarantined),
        [EVAL_QUARANTINED] = (double)column->quarantined,
        [EVAL_TRUNCATED] = (double)column->truncated,
        [EVAL_PARSED] = (double)column->parsed,
        [EVAL_FORMATTED] = (double)column->formatted,
        [EVAL_ACCURACY] = accuracy,
        [EVAL_ACCURACY_LOW] = eval_wilson(accuracy, judged, -1),
        [EVAL_ACCURACY_HIGH] = eval_wilson(accuracy, judged, 1),
        [EVAL_LETTER] = letter,
        [EVAL_LETTER_LOW] = eval_wilson(letter, all->letters, -1),
        [EVAL_LETTER_HIGH] = eval_wilson(letter, all->letters, 1),
        [EVAL_MRA] = eval_ratio(all->mra, all->regressions),
        [EVAL_MEAN] = eval_tally_mean(all),
        [EVAL_MACRO_MEAN] = eval_macro_mean(column),
        [EVAL_TOKENS_MEAN] = eval_ratio(column->tokens, column->token_counts),
    };
    eval_put(column, EVAL_TOTALS, (struct string){"", 0}, totals, EVAL_TOTAL_COUNT);
    for (size_t i = 0; i < column->category_count; i++) {
        const struct eval_tally *tally = &column->categories[i].tally;
        const double values[EVAL_OF_COUNT] = {
            [EVAL_OF_RECORDS] = (double)tally->records,
            [EVAL_OF_ACCURACY] = eval_tally_accuracy(tally),
            [EVAL_OF_LETTER] = eval_ratio(tally->letter, tally->letters),
            [EVAL_OF_MRA] = eval_ratio(tally->mra, tally->regressions),
            [EVAL_OF_MEAN] = eval_tally_mean(tally),
        };
        eval_put(column, EVAL_CATEGORIES, column->categories[i].name, values, EVAL_OF_COUNT);
    }
    for (size_t i = 0; i < column->judge_count; i++) {
        double values[EVAL_JUDGE_COUNT];
        eval_judge_figures(&column->judges[i], values);
        eval_put(column, EVAL_CONSISTENCY, column->judges[i].name, values, EVAL_JUDGE_COUNT);
    }
    assert(column->figure_count == capacity);
}

int eval_compare(const void *a, const void *b) {
    const struct eval_figure *first = a, *second = b;
    if (first->section != second->section) return (int)first->section - (int)second->section;
    const int order = eval_compare_names(first->name, second->name);
    return order ? order : first->key - second->key;
}

double eval_value(const struct eval_column *column, enum eval_section section, struct string name, int key) {
    const struct eval_figure wanted = {section, name, key, NAN};
    const struct eval_figure *found =
        bsearch(&wanted, column->figures, column->figure_count, sizeof wanted, eval_compare);
    return found ? found->value : NAN;
}
