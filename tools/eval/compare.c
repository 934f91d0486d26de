// caravan compare: evaluations of methods that were trained with several seeds each: means with intervals, and the
// differences to one of them, over seeds and over samples.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"
#include "shared/reward/verdict.h"
#include "tools/eval/figures.h"
#include "tools/tools.h"

enum compare_output { COMPARE_TEXT, COMPARE_MARKDOWN, COMPARE_CSV, COMPARE_JSON };

struct compare_options {
    const char *baseline;
    int output; // enum compare_output
};

static const struct option compare_options[] = {
    TOOL_OPTION(compare_options, baseline, OPTION_STRING, "the method that the others are compared with"),
    TOOL_OPTION(compare_options, output, OPTION_CHOICE, "form of the tables", .default_value = "text",
                .choices = "text|markdown|csv|json"),
    {0},
};

const struct option_table compare_table = {
    .program = "caravan compare",
    .operands = "NAME=RUN[,RUN...]...",
    .help = "compares evaluations of methods, each trained with several seeds",
    .details = "A RUN is the directory of an evaluation, its store, or a file of groups; all\n"
               "have the same samples. The figures are per cent, for each level and for all\n"
               "samples. ± is half an interval of 95 % over the seeds (Student's t). A\n"
               "difference to the baseline is of the runs in their order, which have the same\n"
               "seeds; it has a second interval, over the samples, each with its mean over the\n"
               "seeds.\n"
               "accuracy is the mean over the samples of their completions' accuracy, which is\n"
               "the relative one (MRA) for a regression: what caravan eval calls mean.\n"
               "consistency is the share of the judged completions that are consistent.\n",
    .options = compare_options,
    .size = sizeof(struct compare_options),
};

// What one run says of one sample.
struct compare_sample {
    struct string id, level;
    double accuracy;           // mean over its completions; 0 where it was quarantined
    double consistent, judged; // completions
};

struct compare_run {
    const char *path;
    struct compare_sample *samples; // sorted by id
    size_t count;
};

struct compare_method {
    struct string name;
    struct compare_run *runs;
    size_t count;
};

// A figure of a method at a level.
struct compare_figure {
    const char *what;
    struct string method, level;
    size_t seeds;
    double mean, seeds_half, samples_half; // NaN: there is none
};

struct comparison {
    struct arena memory;
    struct compare_method *methods;
    size_t method_count;
    struct string *levels; // sorted; the last one, "all", has each sample
    size_t level_count;
    struct compare_figure *figures;
    size_t figure_count;
};

// ---- reading ----

struct compare_reading {
    struct comparison *comparison;
    struct compare_run *run;
};

static status compare_add_group(void *context, const struct group *group) {
    struct compare_reading *reading = context;
    struct arena *memory = &reading->comparison->memory;
    struct compare_run *run = reading->run;
    const struct double_array *accuracy = &group->scores.accuracy, *verdict = &group->consistency.verdict;
    const struct string id = group->sample_id.data ? group->sample_id : group->id, level = group->prompt.level;
    struct compare_sample sample = {0};
    arena_string(memory, &sample.id, id.data, id.size);
    if (level.data) arena_string(memory, &sample.level, level.data, level.size);
    if (!group->quarantine.present) {
        if (!accuracy->count) return fail(DATAERR, "not scored: scores.accuracy: missing");
        TRY(group_check_fractions(group, "scores.accuracy", accuracy, false));
        TRY(verdict_check(group));
        for (size_t i = 0; i < accuracy->count; i++) sample.accuracy += accuracy->data[i] / (double)accuracy->count;
        for (size_t i = 0; i < verdict->count; i++) {
            sample.judged += !isnan(verdict->data[i]);
            sample.consistent += verdict->data[i] == 1;
        }
    }
    GROW(&run->samples, run->count);
    run->samples[run->count++] = sample;
    return OK;
}

static int compare_samples(const void *a, const void *b) {
    return figure_compare_names(((const struct compare_sample *)a)->id, ((const struct compare_sample *)b)->id);
}

// Reads NAME=RUN[,RUN...] into the next method. DATAERR names a sample that is not in the run and the first one.
static status compare_read_method(struct comparison *comparison, const char *operand) {
    struct compare_method *method = &comparison->methods[comparison->method_count++];
    struct string_list runs;
    TRY(subcommand_read_runs(operand, &comparison->memory, &method->name, &runs));
    for (size_t i = 0; i < runs.count; i++) {
        GROW(&method->runs, method->count);
        struct compare_run *run = &method->runs[method->count++];
        *run = (struct compare_run){.path = runs.data[i]};
        struct compare_reading reading = {comparison, run};
        TRY(subcommand_each_group(run->path, compare_add_group, &reading));
        if (!run->count) return fail(DATAERR, "%s: no groups", run->path);
        qsort(run->samples, run->count, sizeof *run->samples, compare_samples);
        const struct compare_run *first = &comparison->methods[0].runs[0];
        for (size_t k = 0; k < run->count || k < first->count; k++) {
            const int order = k == run->count     ? 1
                              : k == first->count ? -1
                                                  : compare_samples(&run->samples[k], &first->samples[k]);
            if (order)
                return fail(DATAERR, "%s: sample %s is not in %s", order < 0 ? run->path : first->path,
                            order < 0 ? run->samples[k].id.data : first->samples[k].id.data,
                            order < 0 ? first->path : run->path);
        }
    }
    return OK;
}

// ---- statistics ----

enum compare_what { COMPARE_ACCURACY, COMPARE_CONSISTENCY, COMPARE_WHATS };
static const char *const compare_names[COMPARE_WHATS] = {"accuracy", "consistency"};

static bool compare_is_at(const struct comparison *comparison, size_t level, const struct compare_sample *sample) {
    return level + 1 == comparison->level_count ||
           (sample->level.data && !figure_compare_names(sample->level, comparison->levels[level]));
}

// Returns a figure of a run at a level, in per cent.
static double compare_of_run(const struct comparison *comparison, const struct compare_run *run, size_t level,
                             enum compare_what what) {
    long double sum = 0, count = 0;
    for (size_t i = 0; i < run->count; i++) {
        const struct compare_sample *sample = &run->samples[i];
        if (!compare_is_at(comparison, level, sample)) continue;
        sum += what == COMPARE_ACCURACY ? sample->accuracy : sample->consistent;
        count += what == COMPARE_ACCURACY ? 1 : sample->judged;
    }
    return count > 0 ? 100 * (double)(sum / count) : NAN;
}

// Returns a figure of one sample in per cent, the mean over a method's runs; NaN where none judged it.
static double compare_of_sample(const struct compare_method *method, size_t index, enum compare_what what) {
    long double sum = 0, count = 0;
    for (size_t run = 0; run < method->count; run++) {
        const struct compare_sample *sample = &method->runs[run].samples[index];
        sum += what == COMPARE_ACCURACY ? sample->accuracy : sample->consistent;
        count += what == COMPARE_ACCURACY ? 1 : sample->judged;
    }
    return count > 0 ? 100 * (double)(sum / count) : NAN;
}

// Adds a figure of the method at a level; its difference to the baseline unless that is NULL.
static void compare_add(struct comparison *comparison, const struct compare_method *method,
                        const struct compare_method *baseline, size_t level, enum compare_what what) {
    // Student's quantiles 0.975 for 1, 2, 3... degrees of freedom.
    static const double quantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                       2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                       2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
    const struct compare_run *first = &method->runs[0];
    const size_t degrees = method->count - 1; // of freedom
    double *seeds, *samples, sum = 0;
    size_t sample_count = 0;
    NEW(&seeds, method->count);
    NEW(&samples, first->count);
    for (size_t i = 0; i < method->count; i++) {
        seeds[i] = compare_of_run(comparison, &method->runs[i], level, what);
        if (baseline) seeds[i] -= compare_of_run(comparison, &baseline->runs[i], level, what);
        sum += seeds[i];
    }
    for (size_t i = 0; baseline && i < first->count; i++) {
        if (!compare_is_at(comparison, level, &first->samples[i])) continue;
        const double difference = compare_of_sample(method, i, what) - compare_of_sample(baseline, i, what);
        if (!isnan(difference)) samples[sample_count++] = difference;
    }
    GROW(&comparison->figures, comparison->figure_count);
    comparison->figures[comparison->figure_count++] = (struct compare_figure){
        .what = arena_printf(&comparison->memory, baseline ? "%s, difference to %s" : "%s", compare_names[what],
                             baseline ? baseline->name.data : ""),
        .method = method->name,
        .level = comparison->levels[level],
        .seeds = method->count,
        .mean = sum / (double)method->count,
        .seeds_half = figure_half(seeds, method->count,
                                  degrees < 1                                       ? NAN
                                  : degrees <= sizeof quantiles / sizeof *quantiles ? quantiles[degrees - 1]
                                                                                    : 1.96 + 2.45 / (double)degrees),
        .samples_half = baseline ? figure_half(samples, sample_count, 1.96) : NAN,
    };
    free(seeds);
    free(samples);
}

// ---- printing ----

// Appends the figures as tables, one for each of what they say, a row for each method, with cells such as "+3.1 ± 1.2
// (samples ± 2.0)".
static void compare_print_tables(const struct comparison *comparison, bool markdown, struct buf *out) {
    const size_t columns = comparison->level_count;
    size_t widths[2] = {12, 0}; // of the methods' names and of a figure, in characters
    for (size_t i = 0; i < comparison->method_count; i++)
        if (widths[0] < comparison->methods[i].name.size + 2) widths[0] = comparison->methods[i].name.size + 2;
    assert(comparison->figure_count % columns == 0);
    for (size_t i = 0; i < comparison->figure_count; i++) {
        const struct compare_figure *figure = &comparison->figures[i];
        const bool begins = i == 0 || strcmp((figure - 1)->what, figure->what) != 0;
        struct buf cell = {0};
        widths[1] = strchr(figure->what, ',') ? 29 : 14;
        if (begins) {
            buf_printf(out, markdown ? "%s%s, per cent\n\n| method | seeds |" : "%s%s, per cent\n", i ? "\n" : "",
                       figure->what);
            if (!markdown) {
                figure_print_cell(out, string_of("  method"), widths[0], false);
                buf_puts(out, "  seeds");
            }
            for (size_t k = 0; k < columns; k++) {
                if (markdown)
                    buf_printf(out, " %s |", comparison->levels[k].data);
                else
                    figure_print_cell(out, comparison->levels[k], widths[1], true);
            }
            if (markdown) buf_puts(out, "\n|---|---|");
            for (size_t k = 0; markdown && k < columns; k++) buf_puts(out, "---|");
            buf_puts(out, "\n");
        }
        if (i % columns == 0) {
            if (markdown) {
                buf_printf(out, "| %s | %zu |", figure->method.data, figure->seeds);
            } else {
                buf_puts(out, "  ");
                figure_print_cell(out, figure->method, widths[0] - 2, false);
                buf_printf(out, "%7zu", figure->seeds);
            }
        }
        if (isnan(figure->mean)) {
            buf_puts(&cell, "-");
        } else {
            buf_printf(&cell, strchr(figure->what, ',') ? "%+.1f" : "%.1f", figure->mean);
            if (!isnan(figure->seeds_half)) buf_printf(&cell, " ± %.1f", figure->seeds_half);
            if (!isnan(figure->samples_half)) buf_printf(&cell, " (samples ± %.1f)", figure->samples_half);
        }
        if (markdown)
            buf_printf(out, " %s |", cell.data);
        else
            figure_print_cell(out, (struct string){cell.data, cell.size}, widths[1], true);
        if (i % columns == columns - 1) buf_puts(out, "\n");
        buf_release(&cell);
    }
}

// Appends each figure as a line of comma-separated values, or all as one JSON object.
static void compare_print_list(const struct comparison *comparison, bool json, struct buf *out) {
    buf_puts(out, json ? "{\"figures\":[" : "figure,method,level,seeds,mean,seeds_half,samples_half\n");
    for (size_t i = 0; i < comparison->figure_count; i++) {
        const struct compare_figure *figure = &comparison->figures[i];
        const struct string texts[] = {string_of(figure->what), figure->method, figure->level};
        static const char *const keys[] = {"figure", "method", "level"};
        for (size_t k = 0; k < 3; k++) {
            if (json) buf_printf(out, "%s\"%s\":", k ? "," : i ? ",\n{" : "\n{", keys[k]);
            if (json)
                json_print_string(out, texts[k].data, texts[k].size);
            else if (k)
                buf_puts(out, ",");
            if (!json) figure_print_field(out, texts[k]);
        }
        const struct figure numbers[] = {{"seeds", FIGURE_COUNT, (double)figure->seeds},
                                         {"mean", FIGURE_TENTHS, figure->mean},
                                         {"seeds_half", FIGURE_TENTHS, figure->seeds_half},
                                         {"samples_half", FIGURE_TENTHS, figure->samples_half}};
        figure_print_list(out, json ? FIGURE_JSON : FIGURE_CSV, numbers, sizeof numbers / sizeof *numbers);
        buf_puts(out, json ? "}" : "\n");
    }
    if (json) buf_puts(out, "\n]}\n");
}

status compare_main(struct subcommand_call *call) {
    const struct compare_options *given = call->given;
    struct comparison comparison = {0};
    const struct compare_method *baseline = NULL;
    status result = OK;
    NEW(&comparison.methods, (size_t)call->count);
    for (int i = 0; i < call->count; i++) TRY_TO(result, done, compare_read_method(&comparison, call->list[i]));
    for (size_t i = 0; i < comparison.methods[0].runs[0].count; i++) {
        const struct string level = comparison.methods[0].runs[0].samples[i].level;
        size_t at = 0;
        int order = 1;
        if (!level.data) continue;
        while (at < comparison.level_count && (order = figure_compare_names(comparison.levels[at], level)) < 0) at++;
        if (order == 0) continue;
        GROW(&comparison.levels, comparison.level_count);
        memmove(&comparison.levels[at + 1], &comparison.levels[at],
                (comparison.level_count++ - at) * sizeof *comparison.levels);
        comparison.levels[at] = level;
    }
    GROW(&comparison.levels, comparison.level_count);
    comparison.levels[comparison.level_count++] = string_of("all");
    for (size_t i = 0; given->baseline && i < comparison.method_count; i++)
        if (string_equals(comparison.methods[i].name, given->baseline)) baseline = &comparison.methods[i];
    if (given->baseline && !baseline)
        TRY_TO(result, done, fail(USAGE, "baseline: there is no method '%s'", given->baseline));
    for (size_t i = 0; baseline && i < comparison.method_count; i++)
        if (comparison.methods[i].count != baseline->count)
            TRY_TO(result, done,
                   fail(USAGE, "baseline: %s has %zu runs, but %s has %zu", comparison.methods[i].name.data,
                        comparison.methods[i].count, given->baseline, baseline->count));
    for (int difference = 0; difference <= (baseline != NULL); difference++)
        for (enum compare_what what = 0; what < COMPARE_WHATS; what++)
            for (size_t i = 0; i < comparison.method_count; i++)
                for (size_t level = 0; level < comparison.level_count; level++)
                    if (!difference || &comparison.methods[i] != baseline)
                        compare_add(&comparison, &comparison.methods[i], difference ? baseline : NULL, level, what);
    if (given->output == COMPARE_TEXT || given->output == COMPARE_MARKDOWN)
        compare_print_tables(&comparison, given->output == COMPARE_MARKDOWN, &call->out);
    else
        compare_print_list(&comparison, given->output == COMPARE_JSON, &call->out);
done:
    for (size_t i = 0; i < comparison.method_count; i++) {
        for (size_t k = 0; k < comparison.methods[i].count; k++) free(comparison.methods[i].runs[k].samples);
        free(comparison.methods[i].runs);
    }
    free(comparison.methods);
    free(comparison.levels);
    free(comparison.figures);
    arena_release(&comparison.memory);
    return result;
}
