// caravan eval: figures of scored groups, a column for each file or store.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/eval/eval.h"
#include "tools/tools.h"

struct eval_options {
    bool json, csv, any;
    int by; // enum eval_by
    const char *released;
    struct string_list require;
};

static const struct option eval_options[] = {
    TOOL_OPTION(eval_options, json, OPTION_BOOL, "print one JSON object", .default_value = "false"),
    TOOL_OPTION(eval_options, csv, OPTION_BOOL, "print comma-separated values, a line for each figure",
                .default_value = "false"),
    TOOL_OPTION(eval_options, by, OPTION_CHOICE, "what the categories are", .default_value = "category",
                .choices = "category|level|problem_type"),
    TOOL_OPTION(eval_options, require, OPTION_STRING,
                "KEY=NUMBER: exit 1 if this figure of a file is below the number; may be repeated", .repeatable = true,
                .not_hashed = true),
    TOOL_OPTION(eval_options, any, OPTION_BOOL, "compare files of different samples, too", .default_value = "false"),
    TOOL_OPTION(eval_options, released, OPTION_PATH, "also write the result file of the released evaluation"),
    {0},
};

const struct option_table eval_table = {
    .program = "caravan eval",
    .operands = "FILE|STORE...",
    .help = "prints the figures of scored groups",
    .details = "A FILE has groups as JSON lines, as caravan-score and caravan-judge write them;\n"
               "a STORE is a directory with groups.lmdb, or that of a run. Each has a column.\n\n"
               "accuracy    mean over the completions to questions that are no regression\n"
               "letter      share of the answers with the right letter, of multiple choice\n"
               "            (..): intervals of 95 % (Wilson)\n"
               "mra         mean relative accuracy of the regressions\n"
               "mean        mean over all completions, as the released evaluation has it\n"
               "macro_mean  mean over the categories of their means; the levels of\n"
               "            object_rel_direction count as one\n\n"
               "A quarantined group counts as one wrong completion. The keys of --json are those\n"
               "of --csv and --require: accuracy, categories.NAME.mean,\n"
               "consistency.JUDGE.rate ...\n",
    .options = eval_options,
    .size = sizeof(struct eval_options),
};

// ---- reading ----

// What each group of a file or store is added to.
struct eval_reader {
    struct eval_column *column;
    struct buf *released; // NULL: not wanted
    enum eval_by by;
};

static status eval_visit(void *context, const struct group *group) {
    const struct eval_reader *reader = context;
    status result = eval_add(reader->column, group, reader->by);
    if (result == OK && reader->released) eval_released_add(reader->released, group);
    return result == OK ? OK : fail_prefix(result, "group %s", group->id.data);
}

// Returns the name of a file's column: the last part of its path, without .jsonl.
static struct string eval_name(const char *path) {
    static const char suffix[] = ".jsonl";
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';) begin--;
    struct string name = {path + begin, end - begin};
    const size_t size = sizeof suffix - 1;
    if (name.size > size && !memcmp(name.data + name.size - size, suffix, size)) name.size -= size;
    return name;
}

// ---- comparing ----

static int eval_compare_samples(const void *a, const void *b) {
    return strcmp(((const struct string *)a)->data, ((const struct string *)b)->data);
}

// Sorts the column's sample ids and drops repetitions.
static void eval_sort_samples(struct eval_column *column) {
    size_t kept = 0;
    if (column->sample_count)
        qsort(column->samples, column->sample_count, sizeof *column->samples, eval_compare_samples);
    for (size_t i = 0; i < column->sample_count; i++)
        if (!kept || eval_compare_samples(&column->samples[kept - 1], &column->samples[i]))
            column->samples[kept++] = column->samples[i];
    column->sample_count = kept;
}

// Checks that two columns are of the same samples. DATAERR names one that only one of them has.
static status eval_check_samples(const struct eval_column *first, const struct eval_column *other) {
    size_t i = 0;
    while (i < first->sample_count && i < other->sample_count &&
           !eval_compare_samples(&first->samples[i], &other->samples[i]))
        i++;
    if (i == first->sample_count && i == other->sample_count) return OK;
    const bool lacks = i == other->sample_count ||
                       (i < first->sample_count && eval_compare_samples(&first->samples[i], &other->samples[i]) < 0);
    return fail(DATAERR, "%s: sample %s is not in %s; --any compares them all the same",
                lacks ? first->path : other->path, lacks ? first->samples[i].data : other->samples[i].data,
                lacks ? other->path : first->path);
}

// Sets *value to the figure of that path, NaN if it is no number. USAGE if the column has no such figure.
static status eval_look_up(const struct eval_column *column, struct string path, double *value) {
    struct buf own = {0};
    bool found = false;
    for (size_t i = 0; i < column->figure_count && !found; i++) {
        buf_clear(&own);
        eval_path(&column->figures[i], &own);
        found = own.size == path.size && !memcmp(own.data, path.data, path.size);
        *value = column->figures[i].value;
    }
    buf_release(&own);
    return found ? OK : fail(USAGE, "require: %s has no figure '%.*s'", column->path, (int)path.size, path.data);
}

// Checks KEY=NUMBER for every column; *below is set if a figure is below the number. USAGE for what is no requirement.
static status eval_require(const struct eval_column *columns, int count, const char *text, bool *below) {
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    const double bound = equals ? strtod(equals + 1, &end) : NAN;
    if (!equals || end == equals + 1 || *end || !isfinite(bound))
        return fail(USAGE, "require: '%s' is not KEY=NUMBER", text);
    for (int i = 0; i < count; i++) {
        double value = NAN;
        TRY(eval_look_up(&columns[i], (struct string){text, (size_t)(equals - text)}, &value));
        if (isnan(value))
            return fail(USAGE, "require: %s has no number for '%.*s'", columns[i].path, (int)(equals - text), text);
        if (value >= bound) continue;
        *below = true;
        log_info("%s: %.*s is %g, below %s", columns[i].path, (int)(equals - text), text, value, equals + 1);
    }
    return OK;
}

int eval_main(int argc, char **argv) {
    struct eval_options given;
    struct options options = {0};
    struct operands files = {.least = 1, .most = INT_MAX};
    struct eval_column *columns = NULL;
    struct buf output = {0}, released = {0};
    bool below = false;
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &eval_table, &given, argc, argv, &files));
    if (given.json && given.csv) TRY_TO(result, done, fail(USAGE, "json and csv cannot both be printed"));
    if (given.released && files.count > 1) TRY_TO(result, done, fail(USAGE, "released: takes one FILE or STORE"));
    NEW(&columns, (size_t)files.count);
    for (int i = 0; i < files.count; i++) {
        struct eval_reader reader = {&columns[i], given.released ? &released : NULL, (enum eval_by)given.by};
        columns[i].path = files.list[i];
        columns[i].name = eval_name(files.list[i]);
        TRY_TO(result, done, subcommand_each_group(files.list[i], eval_visit, &reader));
        eval_finish(&columns[i]);
        eval_sort_samples(&columns[i]);
        if (i && !given.any) TRY_TO(result, done, eval_check_samples(&columns[0], &columns[i]));
    }
    for (size_t i = 0; i < given.require.count; i++)
        TRY_TO(result, done, eval_require(columns, files.count, given.require.data[i], &below));
    if (given.released) {
        eval_released_finish(&released, &columns[0]);
        TRY_TO(result, done, file_write_atomic(given.released, released.data, released.size));
    }
    status (*const print)(const struct eval_column *, size_t, struct buf *) = given.json  ? eval_print_json
                                                                              : given.csv ? eval_print_csv
                                                                                          : eval_print_text;
    TRY_TO(result, done, print(columns, (size_t)files.count, &output));
    fwrite(output.data, 1, output.size, stdout);
done:
    for (int i = 0; columns && i < files.count; i++) eval_release(&columns[i]);
    free(columns);
    buf_release(&output);
    buf_release(&released);
    options_release(&options);
    const int code = subcommand_exit(result);
    return code == 0 && below ? 1 : code;
}
