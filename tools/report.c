// caravan report: prints a table that compares files of groups (JSON lines): accuracy, format, consistency, speed.
#include <assert.h>
#include <json-c/json.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/group/group.h"
#include "tools/tools.h"

enum { stage_count = 5, most_files = 16 };
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
    size_t rewarded, likelihood_count; // completions that have rewards, that have a likelihood
    double accuracy, format, total, bonus, likelihood, tokens, prompt_tokens; // sums
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
        column->accuracy += report_sum(&group->rewards.accuracy);
        column->format += report_sum(&group->rewards.format);
        column->total += report_sum(&group->rewards.total);
        column->bonus += report_sum(&group->rewards.bonus);
    }
    for (size_t i = 0; i < group->reference.answer_logprob.count; i++) {
        if (isnan(group->reference.answer_logprob.data[i])) continue;
        column->likelihood_count++;
        column->likelihood += exp(group->reference.answer_logprob.data[i]);
    }
    struct json_object *times = group->times.data ? json_tokener_parse(group->times.data) : NULL;
    status result = OK;
    for (int i = 0; times && i < stage_count; i++) {
        struct intervals *work = &column->work[i];
        struct json_object *pair;
        if (!json_object_object_get_ex(times, stage_names[i], &pair)) continue;
        if (!json_object_is_type(pair, json_type_array) || json_object_array_length(pair) != 2) continue;
        if (work->count == work->capacity) {
            size_t capacity = work->capacity ? 2 * work->capacity : 64;
            TRY_TO(result, done, RESIZE(&work->data, capacity));
            work->capacity = capacity;
        }
        assert(work->count < work->capacity);
        work->data[work->count++] = (struct interval){json_object_get_double(json_object_array_get_idx(pair, 0)),
                                                      json_object_get_double(json_object_array_get_idx(pair, 1))};
    }
done:
    json_object_put(times);
    return result;
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
                                            report_per(column->accuracy, column->rewarded),
                                            report_per(column->format, column->rewarded),
                                            report_per(column->total, column->rewarded),
                                            report_per(column->bonus, column->rewarded),
                                            report_per(column->likelihood, column->likelihood_count),
                                            report_per(column->tokens, column->completions),
                                            report_per((double)column->truncated, column->completions),
                                            (double)column->work[0].count / report_busy(&column->work[0]),
                                            column->tokens / report_busy(&column->work[1]),
                                            all_tokens / report_busy(&column->work[2]),
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

static const struct option_table report_table = {
    .program = "caravan report",
    .operands = "[NAME=]FILE|STORE...",
    .help = "prints a table with a column for each file or store of groups",
    .details =
        "The files are JSON lines, as the stages and `caravan groups export` write them. The rows are accuracy,\n"
        "format, reward, bonus, likelihood, lengths, and each stage's rate.\n",
};

int report_main(int argc, char **argv) {
    struct column columns[most_files] = {0};
    struct options options = {0};
    struct operands files = {.least = 1, .most = most_files};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &report_table, NULL, argc, argv, &files));
    assert(files.count <= most_files);
    for (int i = 0; i < files.count; i++) {
        char *equals = strchr(files.list[i], '=');
        struct column *column = &columns[i];
        column->name = files.list[i];
        column->path = equals ? equals + 1 : files.list[i];
        if (equals) *equals = 0;
        TRY_TO(result, done, subcommand_each_group(column->path, report_add_group, column));
    }
    report_print_table(columns, files.count);
done:
    for (int i = 0; i < most_files; i++)
        for (int k = 0; k < stage_count; k++) free(columns[i].work[k].data);
    options_release(&options);
    return subcommand_exit(result);
}
