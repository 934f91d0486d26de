// caravan eval: figures of scored groups, a column for each file or store.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"
#include "shared/reward/verdict.h"
#include "tools/eval/figures.h"
#include "tools/tools.h"

// What `categories` is counted by; the field of the prompt.
enum eval_by { EVAL_BY_CATEGORY, EVAL_BY_LEVEL, EVAL_BY_PROBLEM_TYPE };

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

enum eval_section { EVAL_TOTALS, EVAL_CATEGORIES, EVAL_CONSISTENCY, EVAL_SECTIONS };
static const struct figure_section eval_sections[EVAL_SECTIONS] = {
    [EVAL_CATEGORIES] = {"categories", "mean by category", false},
    [EVAL_CONSISTENCY] = {"consistency", "consistency by ", true},
};
static const struct string eval_no_name = {"", 0};

// What is counted of a file, of a category or of a judge of consistency. A quarantined group counts as one wrong
// completion.
struct eval_counts {
    enum eval_section section;
    struct string name;                   // of the category or the judge; empty in EVAL_TOTALS
    size_t records, regressions, letters; // letters: records whose question has a letter
    long double accuracy, mra, letter;    // sums over the records, of accuracy without regressions, of mra with them
    struct judged judged;
};

struct eval_column {
    const char *path;
    struct arena memory;
    struct eval_counts *counts; // sorted by section and name
    size_t count;
    size_t quarantined, truncated, parsed, formatted, token_counts; // token_counts: completions with tokens
    long double tokens;
    struct string *samples; // the id of each group's sample
    size_t sample_count;
    struct buf failures;  // a line for each quarantined group
    struct buf *released; // the file of the released evaluation; NULL: not wanted
    enum eval_by by;
};

// ---- counting ----

// Returns the counts of that name, which are made if there are none. Valid until the next call.
static struct eval_counts *eval_find(struct eval_column *column, enum eval_section section, struct string name) {
    size_t at = 0;
    for (; at < column->count && column->counts[at].section <= section; at++) {
        const int order = figure_compare_names(column->counts[at].name, name);
        if (column->counts[at].section < section || order < 0) continue;
        if (order == 0) return &column->counts[at];
        break;
    }
    GROW(&column->counts, column->count);
    struct eval_counts *made = &column->counts[at];
    memmove(made + 1, made, (column->count++ - at) * sizeof *made);
    *made = (struct eval_counts){.section = section};
    arena_string(&column->memory, &made->name, name.data, name.size);
    return made;
}

// Counts a completion for the file and for its category, if it has one.
static void eval_count(struct eval_column *column, struct string category, bool regression, double accuracy,
                       double letter) {
    for (int section = EVAL_TOTALS; section <= (category.data ? EVAL_CATEGORIES : EVAL_TOTALS); section++) {
        struct eval_counts *counts = eval_find(column, (enum eval_section)section, section ? category : eval_no_name);
        counts->records++;
        counts->regressions += regression;
        *(regression ? &counts->mra : &counts->accuracy) += accuracy;
        if (isnan(letter)) continue;
        counts->letters++;
        counts->letter += letter;
    }
}

static status eval_check(const struct group *group, const char *name, const struct double_array *values, bool nulls) {
    if (!values->data)
        return fail(DATAERR, "not scored: %s: missing; for the rewards of a training: caravan report", name);
    return group_check_fractions(group, name, values, nulls);
}

// Adds a group to the counts of a column. DATAERR when it is not quarantined and not scored.
static status eval_add(struct eval_column *column, const struct group *group) {
    const struct prompt *prompt = &group->prompt;
    const struct string category = column->by == EVAL_BY_CATEGORY ? prompt->category
                                   : column->by == EVAL_BY_LEVEL  ? prompt->level
                                                                  : prompt->problem_type;
    const struct string sample = group->sample_id.data ? group->sample_id : group->id;
    const struct scores *scores = &group->scores;
    const struct consistency *consistency = &group->consistency;
    enum problem_type type;
    GROW(&column->samples, column->sample_count);
    arena_string(&column->memory, &column->samples[column->sample_count++], sample.data, sample.size);
    if (group->quarantine.present) { // one wrong completion, and a line without control characters
        const struct quarantine *quarantine = &group->quarantine;
        struct buf *failures = &column->failures;
        const size_t begin = failures->size;
        eval_count(column, category, string_equals(prompt->problem_type, problem_type_name(PROBLEM_REGRESSION)), 0,
                   string_equals(prompt->problem_type, problem_type_name(PROBLEM_CHOICE)) ? 0 : NAN);
        column->quarantined++;
        buf_printf(failures, "%s: %s: %s", sample.data, quarantine->stage.data ? quarantine->stage.data : "?",
                   quarantine->reason.data ? quarantine->reason.data : "no reason given");
        log_clean(failures->data + begin);
        buf_puts(failures, "\n");
        return OK;
    }
    TRY(group_check(group, NEED_COMPLETIONS));
    TRY(problem_type_of(group, &type));
    TRY(eval_check(group, "scores.accuracy", &scores->accuracy, false));
    TRY(eval_check(group, "scores.letter", &scores->letter, true));
    TRY(eval_check(group, "scores.correct", &scores->correct, false));
    TRY(eval_check(group, "scores.parsed", &scores->parsed, false));
    TRY(eval_check(group, "scores.formatted", &scores->formatted, false));
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct completion *completion = &group->completions[i];
        eval_count(column, category, type == PROBLEM_REGRESSION, scores->accuracy.data[i], scores->letter.data[i]);
        column->truncated += string_equals(completion->finish, "length");
        column->parsed += scores->parsed.data[i] >= 1;
        column->formatted += scores->formatted.data[i] >= 1;
        column->token_counts += completion->tokens.data != NULL;
        column->tokens += (long double)completion->tokens.count;
    }
    if (!consistency->verdict.data) return OK;
    if (!consistency->judge.data) return fail(DATAERR, "not a group: consistency.judge: missing");
    TRY(verdict_check(group));
    struct judged *judged = &eval_find(column, EVAL_CONSISTENCY, consistency->judge)->judged;
    for (size_t i = 0; i < group->completion_count; i++)
        judged_add(judged, consistency->verdict.data[i], scores->correct.data[i] >= 1);
    return OK;
}

// ---- figures ----

static double eval_accuracy(const struct eval_counts *counts) {
    return figure_ratio(counts->accuracy, counts->records - counts->regressions);
}

static double eval_mean(const struct eval_counts *counts) {
    return figure_ratio(counts->accuracy + counts->mra, counts->records);
}

// Adds the figures of a file, of a category or of a judge to the table.
static void eval_put(const struct eval_column *column, const struct eval_counts *counts, struct figure_table *table,
                     size_t index) {
    const double accuracy = eval_accuracy(counts), letter = figure_ratio(counts->letter, counts->letters),
                 mra = figure_ratio(counts->mra, counts->regressions), mean = eval_mean(counts);
    const size_t judged = counts->records - counts->regressions;
    if (counts->section == EVAL_TOTALS) {
        // The mean over the categories of their means. The three levels of VSI-Bench's object_rel_direction count as
        // one.
        static const char merged[] = "object_rel_direction_";
        static const char *const levels[] = {"easy", "medium", "hard"};
        long double sum = 0, merged_sum = 0;
        size_t categories = 0, merged_count = 0;
        for (size_t i = 0; i < column->count; i++) {
            const struct string name = column->counts[i].name;
            bool is_level = false;
            if (column->counts[i].section != EVAL_CATEGORIES) continue;
            for (int k = 0; k < 3 && string_find(name, merged, 0) == 0; k++)
                is_level |= string_equals(string_slice(name, sizeof merged - 1, name.size), levels[k]);
            *(is_level ? &merged_sum : &sum) += eval_mean(&column->counts[i]);
            *(is_level ? &merged_count : &categories) += 1;
        }
        if (merged_count) sum += merged_sum / (long double)merged_count;
        const struct figure figures[] = {
            {"records", FIGURE_COUNT, (double)counts->records},
            {"answered", FIGURE_COUNT, (double)(counts->records - column->quarantined)},
            {"quarantined", FIGURE_COUNT, (double)column->quarantined},
            {"truncated", FIGURE_COUNT, (double)column->truncated},
            {"parsed", FIGURE_COUNT, (double)column->parsed},
            {"formatted", FIGURE_COUNT, (double)column->formatted},
            {"accuracy", FIGURE_INTERVAL, accuracy},
            {"accuracy_low", FIGURE_HIDDEN, figure_wilson(accuracy, judged, -1)},
            {"accuracy_high", FIGURE_HIDDEN, figure_wilson(accuracy, judged, 1)},
            {"letter", FIGURE_INTERVAL, letter},
            {"letter_low", FIGURE_HIDDEN, figure_wilson(letter, counts->letters, -1)},
            {"letter_high", FIGURE_HIDDEN, figure_wilson(letter, counts->letters, 1)},
            {"mra", FIGURE_SHARE, mra},
            {"mean", FIGURE_SHARE, mean},
            {"macro_mean", FIGURE_SHARE, figure_ratio(sum, categories + (merged_count > 0))},
            {"tokens_mean", FIGURE_TENTHS, figure_ratio(column->tokens, column->token_counts)},
        };
        figure_table_add(table, index, EVAL_TOTALS, counts->name, figures, sizeof figures / sizeof *figures);
    } else if (counts->section == EVAL_CATEGORIES) {
        const struct figure figures[] = {
            {"records", FIGURE_HIDDEN, (double)counts->records},
            {"accuracy", FIGURE_HIDDEN, accuracy},
            {"letter", FIGURE_HIDDEN, letter},
            {"mra", FIGURE_HIDDEN, mra},
            {"mean", FIGURE_OF_RECORDS, mean},
        };
        figure_table_add(table, index, EVAL_CATEGORIES, counts->name, figures, sizeof figures / sizeof *figures);
        if (table->label_width < counts->name.size + 2) table->label_width = counts->name.size + 2;
    } else {
        struct figure figures[JUDGED_FIGURES];
        judged_list(&counts->judged, figures);
        figure_table_add(table, index, EVAL_CONSISTENCY, counts->name, figures, JUDGED_FIGURES);
    }
}

// Checks KEY=NUMBER for every column; *below is set if a figure is below the number. USAGE for what is no requirement.
static status eval_require(const struct eval_column *columns, const struct figure_table *table, const char *text,
                           bool *below) {
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    const double bound = equals ? strtod(equals + 1, &end) : NAN;
    if (!equals || end == equals + 1 || *end || !isfinite(bound))
        return fail(USAGE, "require: '%s' is not KEY=NUMBER", text);
    const int size = (int)(equals - text);
    for (size_t i = 0; i < table->columns; i++) {
        double value = NAN;
        if (!figure_table_find(table, i, (struct string){text, (size_t)size}, &value))
            return fail(USAGE, "require: %s has no figure '%.*s'", columns[i].path, size, text);
        if (isnan(value)) return fail(USAGE, "require: %s has no number for '%.*s'", columns[i].path, size, text);
        if (value >= bound) continue;
        *below = true;
        log_info("%s: %.*s is %g, below %s", columns[i].path, size, text, value, equals + 1);
    }
    return OK;
}

// ---- samples ----

static int eval_compare_samples(const void *a, const void *b) {
    return strcmp(((const struct string *)a)->data, ((const struct string *)b)->data);
}

// Sorts the sample ids of a column and drops repetitions; then checks that they are those of the `first` column, unless
// that is NULL. DATAERR names one that only one of them has.
static status eval_sort_samples(struct eval_column *other, const struct eval_column *first) {
    size_t i = 0, kept = 0;
    if (other->sample_count) qsort(other->samples, other->sample_count, sizeof *other->samples, eval_compare_samples);
    for (size_t k = 0; k < other->sample_count; k++)
        if (!kept || eval_compare_samples(&other->samples[kept - 1], &other->samples[k]))
            other->samples[kept++] = other->samples[k];
    other->sample_count = kept;
    if (!first) return OK;
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

// ---- released ----

// The result file of the released evaluation, with the fields that its readers use.

static void released_string(struct buf *results, const char *before, struct string value) {
    buf_puts(results, before);
    if (value.data)
        json_print_string(results, value.data, value.size);
    else
        buf_puts(results, "null");
}

// Appends the result of one output of the group; `results` begins empty.
static void released_result(struct buf *results, const struct group *group, struct string output, double accuracy) {
    const struct string answer = answer_extract(output), thinking = thinking_extract(output);
    const struct string process = thinking.data ? python_strip(thinking) : thinking;
    buf_puts(results, results->size ? ",\n" : "{\"results\":[\n");
    released_string(results, "{\"problem_type\":", group->prompt.problem_type);
    released_string(results, ",\"solution\":", group->prompt.solution);
    released_string(results, ",\"output\":", output);
    released_string(results, ",\"prediction\":", answer.size ? answer : output);
    buf_puts(results, ",\"reward\":");
    json_print_double(results, accuracy);
    buf_puts(results, accuracy >= 1 ? ",\"correct\":true" : ",\"correct\":false");
    if (process.size) {
        struct buf tagged = {0};
        buf_puts(&tagged, "<think>");
        buf_append(&tagged, process.data, process.size);
        buf_puts(&tagged, "</think>");
        released_string(results, ",\"process\":", (struct string){tagged.data, tagged.size});
        buf_release(&tagged);
    }
    buf_puts(results, "}");
}

// ---- eval ----

static status eval_visit(void *context, const struct group *group) {
    struct eval_column *column = context;
    const status result = eval_add(column, group);
    if (result != OK) return fail_prefix(result, "group %s", group->id.data);
    if (!column->released) return OK;
    if (group->quarantine.present) released_result(column->released, group, eval_no_name, 0);
    for (size_t i = 0; i < group->completion_count && !group->quarantine.present; i++)
        released_result(column->released, group, group->completions[i].text, group->scores.accuracy.data[i]);
    return OK;
}

status eval_main(struct subcommand_call *call) {
    const struct eval_options *given = call->given;
    struct eval_column *columns = NULL;
    struct string *names = NULL;
    struct figure_table table = {
        .sections = eval_sections, .section_count = EVAL_SECTIONS, .label_width = 22, .column_width = 24};
    static const char suffix[] = ".jsonl";
    struct buf released = {0};
    bool below = false;
    status result = OK;
    if (given->json && given->csv) return fail(USAGE, "json and csv cannot both be printed");
    if (given->released && call->count > 1) return fail(USAGE, "released: takes one FILE or STORE");
    table.columns = (size_t)call->count;
    NEW(&columns, table.columns);
    NEW(&names, table.columns);
    table.names = names;
    for (size_t i = 0; i < table.columns; i++) {
        columns[i].released = given->released ? &released : NULL;
        columns[i].by = (enum eval_by)given->by;
        columns[i].path = call->list[i];
        names[i] = subcommand_last_part(call->list[i]); // without .jsonl
        const size_t stem = names[i].size > sizeof suffix - 1 ? names[i].size - (sizeof suffix - 1) : 0;
        if (stem && !memcmp(names[i].data + stem, suffix, sizeof suffix - 1)) names[i].size = stem;
        if (table.column_width < names[i].size + 2) table.column_width = names[i].size + 2;
        TRY_TO(result, done, subcommand_each_group(call->list[i], eval_visit, &columns[i]));
        (void)eval_find(&columns[i], EVAL_TOTALS, eval_no_name); // an empty file has them, too
        for (size_t k = 0; k < columns[i].count; k++) eval_put(&columns[i], &columns[i].counts[k], &table, i);
        TRY_TO(result, done, eval_sort_samples(&columns[i], i && !given->any ? &columns[0] : NULL));
    }
    for (size_t i = 0; i < given->require.count; i++)
        TRY_TO(result, done, eval_require(columns, &table, given->require.data[i], &below));
    if (given->released) {
        // The released code leaves the mean of no regressions at 0; other means of nothing are NaN there, null here.
        const struct eval_counts *all = eval_find(&columns[0], EVAL_TOTALS, eval_no_name);
        buf_puts(&released,
                 released.size ? "\n],\"final_acc\":[{\"mean_acc\":" : "{\"results\":[],\"final_acc\":[{\"mean_acc\":");
        json_print_double(&released, eval_accuracy(all));
        buf_puts(&released, ",\"mean_mra\":");
        json_print_double(&released, all->regressions ? figure_ratio(all->mra, all->regressions) : 0);
        buf_puts(&released, ",\"mean_rewards\":");
        json_print_double(&released, eval_mean(all));
        buf_puts(&released, "}]}\n");
        TRY_TO(result, done, file_write_atomic(given->released, released.data, released.size));
    }
    figure_table_print(&table, given->json ? FIGURE_JSON : given->csv ? FIGURE_CSV : FIGURE_TEXT, &call->out);
    for (size_t i = 0; i < table.columns && !given->json && !given->csv; i++) {
        if (!columns[i].failures.size) continue;
        buf_puts(&call->out, "\nquarantined in ");
        figure_print_cell(&call->out, names[i], 0, false);
        buf_puts(&call->out, "\n");
        buf_append(&call->out, columns[i].failures.data, columns[i].failures.size);
    }
    call->code = below;
done:
    figure_table_release(&table);
    for (size_t i = 0; columns && i < table.columns; i++) {
        free(columns[i].counts);
        free(columns[i].samples);
        buf_release(&columns[i].failures);
        arena_release(&columns[i].memory);
    }
    free(columns);
    free(names);
    buf_release(&released);
    return result;
}
