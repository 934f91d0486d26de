// caravan report: prints a table that compares files of groups (JSON lines): accuracy, format, consistency, speed. What
// it prints by step is in report_steps.h.
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"
#include "tools/eval/report_steps.h"
#include "tools/tools.h"

enum { stage_refscore = 2, stage_count = 5, most_files = 16 };
static const char *const stage_names[stage_count] = {"frames", "rollout", "refscore", "reward", "optim"};

struct interval {
    double from, to;
};

struct intervals {
    struct interval *data;
    size_t count, capacity;
};

// What is known of one file.
struct column {
    const char *name, *path;
    size_t groups, quarantined, completions, truncated;
    size_t rewarded, accuracies, formats, likelihood_count; // completions that have rewards, each of these
    double accuracy, format, total, bonus, likelihood, tokens, prompt_tokens; // sums
    double scored_tokens;                                                     // that refscore has worked on
    struct intervals work[stage_count];
};

static double report_sum(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += isnan(values->data[i]) ? 0 : values->data[i];
    return sum;
}

// Adds a group to the sums of `context`, a column, and the times of its stages to the column's intervals.
static status report_add_group(void *context, const struct group *group) {
    struct column *column = context;
    column->groups++;
    if (group->quarantine.present) {
        column->quarantined++;
        return OK;
    }
    column->prompt_tokens += (double)group->prompt_tokens.count;
    for (size_t i = 0; i < group->completion_count; i++) {
        column->tokens += (double)group->completions[i].tokens.count;
        column->truncated += string_equals(group->completions[i].finish, "length");
    }
    column->completions += group->completion_count;
    if (group->rewards.present) {
        column->rewarded += group->completion_count;
        column->accuracies += group->rewards.accuracy.count;
        column->formats += group->rewards.format.count;
        column->accuracy += report_sum(&group->rewards.accuracy);
        column->format += report_sum(&group->rewards.format);
        column->total += report_sum(&group->rewards.total);
        column->bonus += report_sum(&group->rewards.bonus);
    }
    // Without `logprobs` refscore works on completions with an answer alone, and on no prompt without them.
    const struct double_array *answers = &group->reference.answer_logprob;
    bool scored = group->reference.logprob_count > 0;
    for (size_t i = 0; i < group->completion_count; i++) {
        const bool answered = i < answers->count && !isnan(answers->data[i]);
        if (answered || group->reference.logprob_count)
            column->scored_tokens += (double)group->completions[i].tokens.count;
        scored |= answered;
        if (!answered) continue;
        column->likelihood_count++;
        column->likelihood += exp(answers->data[i]);
    }
    if (scored) column->scored_tokens += (double)group->prompt_tokens.count;
    struct arena arena = {0};
    struct json *times = NULL;
    if (group->times.data) TRY(json_parse(&times, &arena, group->times.data, group->times.size));
    for (int i = 0; times && i < stage_count; i++) {
        struct intervals *work = &column->work[i];
        struct json *pair;
        if (i == stage_refscore && !scored) continue;
        if (!json_find(times, stage_names[i], &pair)) continue;
        if (!json_is(pair, JSON_ARRAY) || json_count(pair) != 2) continue;
        if (work->count == work->capacity) {
            size_t capacity = work->capacity ? 2 * work->capacity : 64;
            RESIZE(&work->data, capacity);
            work->capacity = capacity;
        }
        assert(work->count < work->capacity);
        work->data[work->count++] =
            (struct interval){json_double_or(json_item(pair, 0), 0), json_double_or(json_item(pair, 1), 0)};
    }
    arena_release(&arena);
    return OK;
}

static int report_by_start(const void *a, const void *b) {
    double first = ((const struct interval *)a)->from, second = ((const struct interval *)b)->from;
    return (first > second) - (first < second);
}

// Returns the seconds during which the stage had at least one group in progress. Sorts the intervals.
static double report_busy(struct intervals *list) {
    double seconds = 0, until = -INFINITY;
    if (list->count) qsort(list->data, list->count, sizeof *list->data, report_by_start);
    for (size_t i = 0; i < list->count; i++) {
        double from = list->data[i].from > until ? list->data[i].from : until;
        if (list->data[i].to > from) seconds += list->data[i].to - from;
        if (list->data[i].to > until) until = list->data[i].to;
    }
    return seconds;
}

static double report_per(double sum, size_t count) {
    return sum / (double)count;
}

static void report_print_table(struct column *columns, int count) {
    enum { row_count = 13 };
    static const struct {
        const char *name;
        int digits;
    } rows[row_count] = {
        {"groups", 0},         {"quarantined", 0},       {"accuracy", 3},          {"format", 3},
        {"reward", 3},         {"consistency bonus", 3}, {"answer likelihood", 3}, {"tokens a completion", 1},
        {"truncated", 3},      {"frames, groups/s", 1},  {"rollout, tokens/s", 0}, {"refscore, tokens/s", 0},
        {"optim, tokens/s", 0}};
    double values[most_files][row_count];
    printf("%-22s", "");
    for (int c = 0; c < count; c++) {
        struct column *column = &columns[c];
        double all_tokens = column->tokens + column->prompt_tokens;
        const double measured[row_count] = {(double)column->groups,
                                            (double)column->quarantined,
                                            report_per(column->accuracy, column->accuracies),
                                            report_per(column->format, column->formats),
                                            report_per(column->total, column->rewarded),
                                            report_per(column->bonus, column->rewarded),
                                            report_per(column->likelihood, column->likelihood_count),
                                            report_per(column->tokens, column->completions),
                                            report_per((double)column->truncated, column->completions),
                                            (double)column->work[0].count / report_busy(&column->work[0]),
                                            column->tokens / report_busy(&column->work[1]),
                                            column->scored_tokens / report_busy(&column->work[stage_refscore]),
                                            all_tokens / report_busy(&column->work[4])};
        static_assert(sizeof measured == sizeof values[c], "one value per row");
        memcpy(values[c], measured, sizeof measured);
        printf(" %16s", column->name);
    }
    putchar('\n');
    for (int r = 0; r < row_count; r++) {
        bool any = false;
        for (int c = 0; c < count; c++) any |= isfinite(values[c][r]) != 0;
        if (!any) continue;
        printf("%-22s", rows[r].name);
        for (int c = 0; c < count; c++) {
            if (isfinite(values[c][r]))
                printf(" %16.*f", rows[r].digits, values[c][r]);
            else
                printf(" %16s", "-");
        }
        putchar('\n');
    }
}

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

// Says how to judge the groups, which no step of a training does by itself.
static void report_say_unjudged(const char *path, size_t count) {
    struct stat info;
    const bool lines = !stat(path, &info) && S_ISREG(info.st_mode) && !subcommand_is_pipeline(path);
    log_info(
        "%s: %zu groups left out: not judged; judge them with: %s%s%s > judged.jsonl, then: caravan report --by step "
        "judged.jsonl",
        path, count, lines ? "caravan-judge --stdio < " : "caravan groups export ", path,
        lines ? "" : " | caravan-judge --stdio");
}

// Prints the figures of the files by step.
static status report_by_step(const struct report_options *given, const struct column *columns, int count) {
    struct report_series series[most_files] = {0};
    struct buf out = {0};
    status result = OK;
    for (int i = 0; i < count; i++) {
        series[i].name = columns[i].name;
        series[i].threshold = given->threshold;
        TRY_TO(result, done, subcommand_each_group(columns[i].path, report_steps_add, &series[i]));
        if (series[i].untrained) log_info("%s: %zu groups left out: not trained", columns[i].path, series[i].untrained);
        if (series[i].unjudged) report_say_unjudged(columns[i].path, series[i].unjudged);
    }
    report_steps_bin(series, (size_t)count, given->bins);
    status (*const print)(const struct report_series *, size_t, struct buf *) = given->json  ? report_steps_json
                                                                                : given->csv ? report_steps_csv
                                                                                             : report_steps_text;
    TRY_TO(result, done, print(series, (size_t)count, &out));
    fwrite(out.data, 1, out.size, stdout);
done:
    for (int i = 0; i < count; i++) report_steps_release(&series[i]);
    buf_release(&out);
    return result;
}

int report_main(int argc, char **argv) {
    struct report_options given;
    struct column columns[most_files] = {0};
    struct options options = {0};
    struct operands files = {.least = 1, .most = most_files};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &report_table, &given, argc, argv, &files));
    assert(files.count <= most_files);
    if (given.json && given.csv) TRY_TO(result, done, fail(USAGE, "json and csv cannot both be printed"));
    if ((given.json || given.csv) && given.by != REPORT_BY_STEP)
        TRY_TO(result, done, fail(USAGE, "json and csv need --by step"));
    for (int i = 0; i < files.count; i++) {
        char *equals = strchr(files.list[i], '=');
        columns[i].name = files.list[i];
        columns[i].path = equals ? equals + 1 : files.list[i];
        if (equals) *equals = 0;
    }
    if (given.by == REPORT_BY_STEP) {
        result = report_by_step(&given, columns, files.count);
        goto done;
    }
    for (int i = 0; i < files.count; i++)
        TRY_TO(result, done, subcommand_each_group(columns[i].path, report_add_group, &columns[i]));
    report_print_table(columns, files.count);
done:
    for (int i = 0; i < most_files; i++)
        for (int k = 0; k < stage_count; k++) free(columns[i].work[k].data);
    options_release(&options);
    return subcommand_exit(result);
}
