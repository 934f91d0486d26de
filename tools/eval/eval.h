// What the files of `caravan eval` share: one column of figures for each file of groups or store.
#ifndef TOOLS_EVAL_EVAL_H
#define TOOLS_EVAL_EVAL_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"

// The sections of the figures: those of the whole file, of each category, of each judge of consistency.
enum eval_section { EVAL_TOTALS, EVAL_CATEGORIES, EVAL_CONSISTENCY, EVAL_SECTIONS };

// The keys of each section, in the order of eval_keys().
enum eval_total {
    EVAL_RECORDS,
    EVAL_ANSWERED,
    EVAL_QUARANTINED,
    EVAL_TRUNCATED,
    EVAL_PARSED,
    EVAL_FORMATTED,
    EVAL_ACCURACY,
    EVAL_ACCURACY_LOW,
    EVAL_ACCURACY_HIGH,
    EVAL_LETTER,
    EVAL_LETTER_LOW,
    EVAL_LETTER_HIGH,
    EVAL_MRA,
    EVAL_MEAN,
    EVAL_MACRO_MEAN,
    EVAL_TOKENS_MEAN,
    EVAL_TOTAL_COUNT
};
enum eval_of_category { EVAL_OF_RECORDS, EVAL_OF_ACCURACY, EVAL_OF_LETTER, EVAL_OF_MRA, EVAL_OF_MEAN, EVAL_OF_COUNT };
enum eval_of_judge {
    EVAL_JUDGED,
    EVAL_CONSISTENT,
    EVAL_RATE,
    EVAL_RATE_CORRECT,
    EVAL_CONSISTENT_CORRECT,
    EVAL_INCONSISTENT_CORRECT,
    EVAL_CONSISTENT_WRONG,
    EVAL_INCONSISTENT_WRONG,
    EVAL_NOT_JUDGED, // in the text only
    EVAL_JUDGE_COUNT
};

// One figure. The figures of a column are sorted by section, name and key.
struct eval_figure {
    enum eval_section section;
    struct string name; // of the category or the judge; empty in EVAL_TOTALS
    int key;
    double value; // NaN: does not apply
};

// Sums over completions; a quarantined group counts as one wrong completion.
struct eval_tally {
    size_t records, regressions, letters; // letters: records whose question has a letter
    long double accuracy, mra, letter;    // sums over the records, of accuracy without regressions, of mra with them
};

struct eval_category {
    struct string name;
    struct eval_tally tally;
};

struct eval_judge {
    struct string name;
    size_t judged[2][2]; // [consistent][correct]
    size_t not_judged;
};

struct eval_column {
    const char *path;
    struct string name;
    struct arena memory;
    struct eval_tally all;
    size_t quarantined, truncated, parsed, formatted, token_counts; // token_counts: completions with tokens
    long double tokens;
    struct eval_category *categories; // sorted by name
    size_t category_count, category_capacity;
    struct eval_judge *judges; // sorted by name
    size_t judge_count;
    struct string *samples; // the id of each group's sample
    size_t sample_count, sample_capacity;
    struct buf failures; // a line for each quarantined group
    struct eval_figure *figures;
    size_t figure_count;
};

// What `categories` is counted by; the field of the prompt.
enum eval_by { EVAL_BY_CATEGORY, EVAL_BY_LEVEL, EVAL_BY_PROBLEM_TYPE };

// Returns the NULL-terminated keys of a section.
const char *const *eval_keys(enum eval_section section);

// Adds a group to the counts of a column. DATAERR when it is not quarantined and not scored.
status eval_add(struct eval_column *column, const struct group *group, enum eval_by by);

// Sets `values` to the figures of a judge, by enum eval_of_judge.
void eval_judge_figures(const struct eval_judge *judge, double values[EVAL_JUDGE_COUNT]);

// Computes the column's figures from its counts.
void eval_finish(struct eval_column *column);

// Frees what the column holds.
void eval_release(struct eval_column *column);

// Orders figures by section, name and key.
int eval_compare(const void *a, const void *b);

// Returns the value of a figure, NaN if the column does not have it.
double eval_value(const struct eval_column *column, enum eval_section section, struct string name, int key);

// Appends the path of a figure: "accuracy", "categories.NAME.mean".
void eval_path(const struct eval_figure *figure, struct buf *out);

// Appends the columns side by side as text for people. UNAVAILABLE.
status eval_print_text(const struct eval_column *columns, size_t count, struct buf *out);

// Appends the columns as one JSON object. UNAVAILABLE.
status eval_print_json(const struct eval_column *columns, size_t count, struct buf *out);

// Appends the text with '?' for control characters, padded with spaces to `width` characters: on its left if `right`.
void eval_print_cell(struct buf *out, struct string text, size_t width, bool right);

// Appends a comma-separated value, in quotes where it needs them (RFC 4180).
void eval_print_field(struct buf *out, struct string text);

// Appends a line of comma-separated values for each figure that any column has. UNAVAILABLE.
status eval_print_csv(const struct eval_column *columns, size_t count, struct buf *out);

// Appends the results of a group to those of the released evaluation; `results` begins empty.
void eval_released_add(struct buf *results, const struct group *group);

// Appends the end of the released evaluation's file.
void eval_released_finish(struct buf *results, const struct eval_column *column);

#endif
