// caravan report: a table that compares files of groups (JSON lines): accuracy, format, consistency bonus, speed; with
// --by step how consistent and how correct the completions were while a run trained.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"
#include "shared/reward/verdict.h"
#include "tools/eval/figures.h"
#include "tools/tools.h"

// The stages whose rates are shown.
enum report_stage { REPORT_FRAMES, REPORT_ROLLOUT, REPORT_REFSCORE, REPORT_OPTIM, REPORT_STAGES };
static const char *const report_stages[REPORT_STAGES] = {"frames", "rollout", "refscore", "optim"};

struct interval {
    double from, to;
};

struct intervals {
    struct interval *data;
    size_t count;
};

// The completions of consecutive steps that one judge judged.
struct report_row {
    struct string judge;
    struct judged judged;
    int64_t first, last; // steps
};

struct report_mean {
    double sum;
    size_t count;
};

// What is known of one file.
struct report_column {
    const char *name, *path;
    // By file.
    size_t groups, quarantined;
    struct report_mean accuracy, format, reward, bonus, likelihood, tokens, truncated; // over the completions
    double prompt_tokens, scored_tokens; // sums; scored_tokens: that refscore has worked on
    struct intervals work[REPORT_STAGES];
    // By step.
    double threshold; // a completion without a verdict is consistent from this probability on
    struct arena memory;
    struct report_row *rows; // one for each group, then for each judge and bin
    size_t count;
    size_t untrained; // groups left out: that no step trained
    size_t unjudged;  // of the others, without a verdict or probability
};

// ---- by file ----

// Adds the values of `count` completions; what does not apply is 0.
static void report_add(struct report_mean *mean, const struct double_array *values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += isnan(values->data[i]) ? 0 : values->data[i];
    mean->sum += sum;
    mean->count += count;
}

// Adds a group to the sums of `context`, a column, and the times of its stages to the column's intervals.
static status report_add_group(void *context, const struct group *group) {
    struct report_column *column = context;
    column->groups++;
    if (group->quarantine.present) {
        column->quarantined++;
        return OK;
    }
    const struct rewards *rewards = &group->rewards;
    column->prompt_tokens += (double)group->prompt_tokens.count;
    column->tokens.count += group->completion_count;
    column->truncated.count += group->completion_count;
    if (rewards->present) {
        report_add(&column->accuracy, &rewards->accuracy, rewards->accuracy.count);
        report_add(&column->format, &rewards->format, rewards->format.count);
        report_add(&column->reward, &rewards->total, group->completion_count);
        report_add(&column->bonus, &rewards->bonus, group->completion_count);
    }
    // Without `logprobs` refscore works on completions with an answer alone, and on no prompt without them.
    const struct double_array *answers = &group->reference.answer_logprob;
    bool scored = group->reference.logprob_count > 0;
    for (size_t i = 0; i < group->completion_count; i++) {
        const double tokens = (double)group->completions[i].tokens.count;
        const bool answered = i < answers->count && !isnan(answers->data[i]);
        column->tokens.sum += tokens;
        column->truncated.sum += string_equals(group->completions[i].finish, "length");
        if (answered || group->reference.logprob_count) column->scored_tokens += tokens;
        scored |= answered;
        if (!answered) continue;
        column->likelihood.count++;
        column->likelihood.sum += exp(answers->data[i]);
    }
    if (scored) column->scored_tokens += (double)group->prompt_tokens.count;
    for (int i = 0; i < REPORT_STAGES; i++) {
        struct intervals *work = &column->work[i];
        if (i == REPORT_REFSCORE && !scored) continue;
        for (size_t k = 0; k < group->times.count; k++) {
            const struct stage_time *time = &group->times.data[k];
            if (!string_equals(time->stage, report_stages[i])) continue;
            GROW(&work->data, work->count);
            work->data[work->count++] = (struct interval){time->in, time->out};
        }
    }
    return OK;
}

// Returns `work` by the seconds during which the stage had at least one group in progress. Sorts the intervals.
static double report_rate(struct report_column *column, enum report_stage stage, double work) {
    struct intervals *list = &column->work[stage];
    double seconds = 0, until = -INFINITY;
    if (list->count) qsort(list->data, list->count, sizeof *list->data, figure_compare_numbers);
    for (size_t i = 0; i < list->count; i++) {
        double from = list->data[i].from > until ? list->data[i].from : until;
        if (list->data[i].to > from) seconds += list->data[i].to - from;
        if (list->data[i].to > until) until = list->data[i].to;
    }
    return work / seconds;
}

static double report_value(const struct report_mean *mean) {
    return mean->sum / (double)mean->count;
}

// Appends the figures of the files.
static void report_by_file(struct report_column *columns, size_t count, struct buf *out) {
    static const struct figure_section section = {NULL, NULL, false};
    struct string names[MAX_REPORT_FILES];
    struct figure_table table = {.sections = &section,
                                 .section_count = 1,
                                 .names = names,
                                 .columns = count,
                                 .label_width = 22,
                                 .column_width = 17,
                                 .sparse = true};
    for (size_t c = 0; c < count; c++) {
        struct report_column *column = &columns[c];
        const double all_tokens = column->tokens.sum + column->prompt_tokens;
        struct figure figures[] = {
            {"groups", FIGURE_COUNT, (double)column->groups},
            {"quarantined", FIGURE_COUNT, (double)column->quarantined},
            {"accuracy", FIGURE_THOUSANDTHS, report_value(&column->accuracy)},
            {"format", FIGURE_THOUSANDTHS, report_value(&column->format)},
            {"reward", FIGURE_THOUSANDTHS, report_value(&column->reward)},
            {"consistency bonus", FIGURE_THOUSANDTHS, report_value(&column->bonus)},
            {"answer likelihood", FIGURE_THOUSANDTHS, report_value(&column->likelihood)},
            {"tokens a completion", FIGURE_TENTHS, report_value(&column->tokens)},
            {"truncated", FIGURE_THOUSANDTHS, report_value(&column->truncated)},
            {"frames, groups/s", FIGURE_TENTHS, report_rate(column, REPORT_FRAMES, (double)column->work[0].count)},
            {"rollout, tokens/s", FIGURE_COUNT, report_rate(column, REPORT_ROLLOUT, column->tokens.sum)},
            {"refscore, tokens/s", FIGURE_COUNT, report_rate(column, REPORT_REFSCORE, column->scored_tokens)},
            {"optim, tokens/s", FIGURE_COUNT, report_rate(column, REPORT_OPTIM, all_tokens)},
        };
        enum { FIGURES = sizeof figures / sizeof *figures };
        for (size_t i = 0; i < FIGURES; i++)
            if (!isfinite(figures[i].value)) figures[i].value = NAN;
        figure_table_add(&table, c, 0, (struct string){"", 0}, figures, FIGURES);
        names[c] = string_of(column->name);
    }
    figure_table_print(&table, FIGURE_TEXT, out);
    figure_table_release(&table);
}

// ---- by step ----

// Adds a group to `context`, a column. The answer is correct if scores.correct says so or, without scores, if
// rewards.accuracy is 1. DATAERR when the group has neither, or arrays of the wrong length.
static status report_add_step(void *context, const struct group *group) {
    struct report_column *column = context;
    const struct consistency *consistency = &group->consistency;
    const bool judged = consistency->verdict.data != NULL;
    const bool scored = group->scores.correct.data != NULL;
    const struct double_array *correct = scored ? &group->scores.correct : &group->rewards.accuracy;
    const bool trained = !group->quarantine.present && group->trained.present;
    if (!trained || (!judged && !consistency->probability.data)) {
        column->untrained += !trained;
        column->unjudged += trained;
        return OK;
    }
    if (group->trained.step < 0) return fail(DATAERR, "not a group: trained.step: negative");
    TRY(verdict_check(group));
    if (judged && !consistency->judge.data) return fail(DATAERR, "not a group: consistency.judge: missing");
    if (!judged) TRY(group_check_fractions(group, "consistency.probability", &consistency->probability, true));
    TRY(group_check_fractions(group, scored ? "scores.correct" : "rewards.accuracy", correct, false));
    GROW(&column->rows, column->count);
    struct report_row *row = &column->rows[column->count];
    const struct string judge = judged ? consistency->judge : string_of("probability"); // of the consistency model
    *row = (struct report_row){.first = group->trained.step, .last = group->trained.step};
    if (column->count && string_equals(judge, row[-1].judge.data))
        row->judge = row[-1].judge;
    else
        arena_string(&column->memory, &row->judge, judge.data, judge.size);
    column->count++;
    for (size_t i = 0; i < group->completion_count; i++) {
        const double given = judged ? consistency->verdict.data[i] : consistency->probability.data[i];
        judged_add(&row->judged, judged || isnan(given) ? given : given >= column->threshold, correct->data[i] >= 1);
    }
    return OK;
}

static int report_compare(const void *a, const void *b) {
    const struct report_row *one = a, *other = b;
    const int order = strcmp(one->judge.data, other->judge.data);
    return order ? order : (one->first > other->first) - (one->first < other->first);
}

// Appends a row: as text, below its judge's heading if it is the `first` of it, as a JSON object, or as a line of
// comma-separated values.
static void report_print_row(const char *name, const struct report_row *row, bool first, enum figure_output output,
                             struct buf *out) {
    const size_t(*counts)[2] = row->judged.counts;
    const double rate = 1 - judged_rate(&row->judged);
    struct figure figures[1 + JUDGED_FIGURES] = {{"inconsistency_rate", FIGURE_SHARE, rate}};
    char steps[64], inconsistent[32];
    if (output == FIGURE_TEXT) {
        if (first) {
            buf_puts(out, "consistency by ");
            figure_print_cell(out, row->judge, 0, false);
            buf_puts(out, "\n                                         -- consistent --   - inconsistent -\n"
                          "  steps            judged  inconsistent  correct    wrong   correct    wrong\n");
        }
        snprintf(steps, sizeof steps, row->first < row->last ? "%lld..%lld" : "%lld", (long long)row->first,
                 (long long)row->last);
        snprintf(inconsistent, sizeof inconsistent, isnan(rate) ? "-" : "%.1f %%", 100 * rate);
        buf_printf(out, "  %-14s %8zu %13s %8zu %8zu  %8zu %8zu\n", steps,
                   counts[0][0] + counts[0][1] + counts[1][0] + counts[1][1], inconsistent, counts[1][1], counts[1][0],
                   counts[0][1], counts[0][0]);
        return;
    }
    judged_list(&row->judged, figures + 1);
    if (output == FIGURE_JSON) {
        buf_printf(out, "\n{\"first_step\":%lld,\"last_step\":%lld,\"judge\":", (long long)row->first,
                   (long long)row->last);
        json_print_string(out, row->judge.data, row->judge.size);
    } else {
        figure_print_field(out, string_of(name));
        buf_printf(out, ",%lld,%lld,", (long long)row->first, (long long)row->last);
        figure_print_field(out, row->judge);
    }
    figure_print_list(out, output, figures, 1 + JUDGED_FIGURES);
    buf_puts(out, output == FIGURE_JSON ? "}" : "\n");
}

// Divides the steps of all columns into at most `bins` bins of equal width, and appends one row for each column, judge
// and bin, sorted by them.
static void report_by_step(const struct report_column *columns, size_t count, int64_t bins, enum figure_output output,
                           struct buf *out) {
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (size_t c = 0; c < count; c++)
        for (size_t i = 0; i < columns[c].count; i++) {
            const int64_t step = columns[c].rows[i].first;
            if (step < first) first = step;
            if (step > last) last = step;
        }
    const int64_t width = first > last ? 1 : (last - first) / bins + 1; // first > last: there are no rows
    if (output == FIGURE_JSON) buf_puts(out, "{\"files\":[");
    if (output == FIGURE_CSV)
        buf_puts(out, "name,first_step,last_step,judge,inconsistency_rate,judged,consistent,rate,rate_correct,"
                      "consistent_correct,inconsistent_correct,consistent_wrong,inconsistent_wrong\n");
    for (size_t c = 0; c < count; c++) {
        const struct report_column *column = &columns[c];
        struct report_row *rows = column->rows;
        size_t kept = 0;
        if (column->count) qsort(rows, column->count, sizeof *rows, report_compare);
        for (size_t i = 0; i < column->count; i++) {
            struct report_row row = rows[i], *before = kept ? &rows[kept - 1] : NULL;
            row.first -= (row.first - first) % width;
            row.last = last - row.first < width ? last : row.first + width - 1;
            if (!before || report_compare(before, &row)) {
                rows[kept++] = row;
                continue;
            }
            for (int k = 0; k < 4; k++) before->judged.counts[k / 2][k % 2] += row.judged.counts[k / 2][k % 2];
            before->judged.not_judged += row.judged.not_judged;
        }
        if (output == FIGURE_TEXT) buf_printf(out, "%s%s\n", c ? "\n" : "", column->name);
        if (output == FIGURE_JSON) {
            buf_puts(out, c ? ",\n{\"name\":" : "{\"name\":");
            json_print_string(out, column->name, strlen(column->name));
            buf_puts(out, ",\"steps\":[");
        }
        for (size_t i = 0; i < kept; i++) {
            if (output == FIGURE_JSON && i) buf_puts(out, ",");
            report_print_row(column->name, &rows[i], !i || strcmp(rows[i - 1].judge.data, rows[i].judge.data) != 0,
                             output, out);
        }
        if (output == FIGURE_JSON) buf_puts(out, "]}");
    }
    if (output == FIGURE_JSON) buf_puts(out, "]}\n");
}

// ---- report ----

struct report_options {
    int by; // enum report_by
    bool json, csv;
    int64_t bins;
    double threshold;
};

enum report_by { REPORT_BY_FILE, REPORT_BY_STEP };

static const struct option report_options[] = {
    TOOL_OPTION(report_options, by, OPTION_CHOICE,
                "file: compare files; step: consistency through the training of each", .default_value = "file",
                .choices = "file|step"),
    TOOL_OPTION(report_options, bins, OPTION_INT, "by step: how many lines there are at most; many steps share a line",
                .default_value = "20", .low = 1, .high = 1e6),
    TOOL_OPTION(report_options, threshold, OPTION_NUMBER,
                "by step: the probability from which on a completion without a verdict is consistent",
                .default_value = "0.5", .high = 1),
    TOOL_OPTION(report_options, json, OPTION_BOOL, "by step: print one JSON object", .default_value = "false"),
    TOOL_OPTION(report_options, csv, OPTION_BOOL, "by step: print comma-separated values", .default_value = "false"),
    {0},
};

const struct option_table report_table = {
    .program = "caravan report",
    .operands = "[NAME=]FILE|STORE...",
    .help = "prints a table with a column for each file or store of groups",
    .details = "The files are JSON lines, as the stages and `caravan groups export` write them.\n"
               "The rows are accuracy, format, reward, bonus, likelihood, lengths, and each\n"
               "stage's rate while it was at work.\n"
               "\n"
               "With --by step it prints, for each step that has trained groups, how many\n"
               "completions have thinking that does not support the answer, by the judge's\n"
               "verdicts or else by the consistency model's probabilities, and the counts of\n"
               "consistent and inconsistent x correct and wrong ones.\n",
    .options = report_options,
    .size = sizeof(struct report_options),
};

status report_main(struct subcommand_call *call) {
    const struct report_options *given = call->given;
    struct report_column columns[MAX_REPORT_FILES] = {0};
    status result = OK;
    const bool by_step = given->by == REPORT_BY_STEP;
    const size_t count = (size_t)call->count;
    if (given->json && given->csv) return fail(USAGE, "json and csv cannot both be printed");
    if ((given->json || given->csv) && !by_step) return fail(USAGE, "json and csv need --by step");
    for (size_t i = 0; i < count; i++) {
        char *equals = path_exists(call->list[i]) ? NULL : strchr(call->list[i], '='); // a path may have a '=', too
        columns[i].name = call->list[i];
        columns[i].path = equals ? equals + 1 : call->list[i];
        columns[i].threshold = given->threshold;
        if (equals) *equals = 0;
        TRY_TO(result, done,
               subcommand_each_group(columns[i].path, by_step ? report_add_step : report_add_group, &columns[i]));
        // Says which groups are left out, and how to judge them, which no step of a training does by itself.
        const char *path = columns[i].path;
        struct stat info;
        if (columns[i].untrained) log_info("%s: %zu groups left out: not trained", path, columns[i].untrained);
        const bool lines = !stat(path, &info) && S_ISREG(info.st_mode) && !subcommand_is_pipeline(path);
        if (columns[i].unjudged)
            log_info("%s: %zu groups left out: not judged; judge them with: %s%s%s > judged.jsonl, then: caravan "
                     "report --by step judged.jsonl",
                     path, columns[i].unjudged, lines ? "caravan-judge --stdio < " : "caravan groups export ", path,
                     lines ? "" : " | caravan-judge --stdio");
    }
    if (by_step)
        report_by_step(columns, count, given->bins,
                       given->json  ? FIGURE_JSON
                       : given->csv ? FIGURE_CSV
                                    : FIGURE_TEXT,
                       &call->out);
    else
        report_by_file(columns, count, &call->out);
done:
    for (size_t i = 0; i < MAX_REPORT_FILES; i++) {
        for (int k = 0; k < REPORT_STAGES; k++) free(columns[i].work[k].data);
        free(columns[i].rows);
        arena_release(&columns[i].memory);
    }
    return result;
}
