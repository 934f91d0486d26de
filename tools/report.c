// caravan report: files of report_groups (JSON lines) side by side: how right, how well formed, how consistent, how
// fast.
#include <json-c/json.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
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
    size_t count, room;
};

struct column {
    const char *name, *path;
    size_t groups, quarantined, completions, rewarded, likely;
    double accuracy, format, total, bonus, likelihood; // sums
    double tokens, prompt_tokens;
    size_t truncated;
    struct intervals work[stage_count];
};

static double report_sum(const struct double_array *values) {
    double report_sum = 0;
    for (size_t i = 0; i < values->count; i++) report_sum += isnan(values->data[i]) ? 0 : values->data[i];
    return report_sum;
}

static status report_add_interval(struct intervals *list, double from, double to) {
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 64;
        TRY(RESIZE(&list->data, list->room));
    }
    list->data[list->count++] = (struct interval){from, to};
    return OK;
}

static status report_add_times(struct column *column, const struct group *group) {
    if (!group->times.data) return OK;
    struct json_object *times = json_tokener_parse(group->times.data);
    status result = OK;
    for (int i = 0; times && result == OK && i < stage_count; i++) {
        struct json_object *pair;
        if (!json_object_object_get_ex(times, stage_names[i], &pair)) continue;
        if (!json_object_is_type(pair, json_type_array) || json_object_array_length(pair) != 2) continue;
        result = report_add_interval(&column->work[i], json_object_get_double(json_object_array_get_idx(pair, 0)),
                                     json_object_get_double(json_object_array_get_idx(pair, 1)));
    }
    json_object_put(times);
    return result;
}

static status report_add_group(struct column *column, const struct group *group) {
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
        column->likely++;
        column->likelihood += exp(group->reference.answer_logprob.data[i]);
    }
    return report_add_times(column, group);
}

static status report_read_column(struct column *column) {
    struct buf content = {0};
    status result = file_read(column->path, &content);
    size_t number = 0;
    const char *end = content.data + content.size;
    for (const char *at = content.data; result == OK && at && at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t size = (size_t)((newline ? newline : end) - at);
        number++;
        if (strspn(at, " \t\r\n") < size) {
            struct group *group = NULL;
            result = group_from_json(&group, at, size);
            if (result == OK) result = report_add_group(column, group);
            group_free(&group);
        }
        if (result != OK) fail_prefix(result, "%s: line %zu", column->path, number);
        at = newline ? newline + 1 : NULL;
    }
    buf_release(&content);
    return result;
}

static int report_by_start(const void *a, const void *b) {
    double first = ((const struct interval *)a)->from, second = ((const struct interval *)b)->from;
    return (first > second) - (first < second);
}

// Seconds during which the stage had at least one group in hand.
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

typedef double (*measure)(struct column *column);

static double report_accuracy(struct column *c) {
    return c->accuracy / (double)c->rewarded;
}
static double report_format(struct column *c) {
    return c->format / (double)c->rewarded;
}
static double report_reward(struct column *c) {
    return c->total / (double)c->rewarded;
}
static double report_bonus(struct column *c) {
    return c->bonus / (double)c->rewarded;
}
static double report_likelihood(struct column *c) {
    return c->likelihood / (double)c->likely;
}
static double report_length(struct column *c) {
    return c->tokens / (double)c->completions;
}
static double report_truncated(struct column *c) {
    return (double)c->truncated / (double)c->completions;
}
static double report_groups(struct column *c) {
    return (double)c->groups;
}
static double report_quarantined(struct column *c) {
    return (double)c->quarantined;
}
static double report_frames_rate(struct column *c) {
    return (double)c->work[0].count / report_busy(&c->work[0]);
}
static double report_rollout_rate(struct column *c) {
    return c->tokens / report_busy(&c->work[1]);
}
static double report_refscore_rate(struct column *c) {
    return (c->tokens + c->prompt_tokens) / report_busy(&c->work[2]);
}
static double report_optim_rate(struct column *c) {
    return (c->tokens + c->prompt_tokens) / report_busy(&c->work[4]);
}

static const struct {
    const char *name;
    int decimals;
    measure measure;
} rows[] = {
    {"groups", 0, report_groups},
    {"set aside", 0, report_quarantined},
    {"accuracy", 3, report_accuracy},
    {"format", 3, report_format},
    {"reward", 3, report_reward},
    {"consistency bonus", 3, report_bonus},
    {"answer likelihood", 3, report_likelihood},
    {"tokens a completion", 1, report_length},
    {"truncated", 3, report_truncated},
    {"frames, groups/s", 1, report_frames_rate},
    {"rollout, tokens/s", 0, report_rollout_rate},
    {"refscore, tokens/s", 0, report_refscore_rate},
    {"optim, tokens/s", 0, report_optim_rate},
};

static void report_print_table(struct column *columns, int count) {
    printf("%-22s", "");
    for (int c = 0; c < count; c++) printf(" %16s", columns[c].name);
    putchar('\n');
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char cells[most_files][32];
        bool any = false;
        for (int c = 0; c < count; c++) {
            double value = rows[r].measure(&columns[c]);
            any |= isfinite(value);
            if (isfinite(value)) {
                snprintf(cells[c], sizeof cells[c], "%.*f", rows[r].decimals, value);
            } else {
                strcpy(cells[c], "-");
            }
        }
        if (!any) continue;
        printf("%-22s", rows[r].name);
        for (int c = 0; c < count; c++) printf(" %16s", cells[c]);
        putchar('\n');
    }
}

static void report_release(struct column *column) {
    for (int i = 0; i < stage_count; i++) free(column->work[i].data);
}

static const struct option_table report_table = {
    .program = "caravan report",
    .operands = "[NAME=]FILE...",
    .help = "prints a table with a column for each file of groups",
    .details =
        "The files are JSON lines, as the stages and `caravan groups export` write them. The rows are accuracy,\n"
        "format, reward, bonus, likelihood, lengths, and each stage's rate.\n",
};

int report_main(int argc, char **argv) {
    struct column columns[most_files] = {0};
    struct options options = {0};
    struct operands files = {.least = 1, .most = most_files};
    status result = subcommand_parse(&options, &report_table, NULL, argc, argv, &files);
    for (int i = 0; result == OK && i < files.count; i++) {
        char *equals = strchr(files.list[i], '=');
        columns[i].name = files.list[i];
        columns[i].path = equals ? equals + 1 : files.list[i];
        if (equals) *equals = 0;
        result = report_read_column(&columns[i]);
    }
    if (result == OK) report_print_table(columns, files.count);
    for (int i = 0; i < most_files; i++) report_release(&columns[i]);
    options_release(&options);
    return subcommand_exit(result);
}
