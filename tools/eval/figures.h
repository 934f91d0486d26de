// Figures side by side, which `caravan eval` and `caravan report` print as text, JSON or comma-separated values, and
// those that both have: how consistent completions are.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"

// How the text shows a figure.
enum figure_form {
    FIGURE_HIDDEN, // not at all
    FIGURE_COUNT,
    FIGURE_TEXT_COUNT, // a count that is in the text only
    FIGURE_TENTHS,
    FIGURE_THOUSANDTHS,
    FIGURE_SHARE,
    FIGURE_INTERVAL,  // a share with its bounds, which are the next two figures
    FIGURE_OF_RECORDS // a share with the number of its records, which is the first figure of the list
};

struct figure {
    const char *key;
    enum figure_form form;
    double value; // NaN: does not apply
};

// Figures that belong together: those of the whole file, those of each category.
struct figure_section {
    const char *name;    // before the figure's path: "categories" of categories.NAME.mean; NULL: the path is the key
    const char *heading; // of the text, NULL: none
    bool by_name;        // each name has a heading, which ends with it; else the names are the labels of the rows
};

// Zeroed but for the first members. The strings must outlive it. Release with figure_table_release.
struct figure_table {
    const struct figure_section *sections;
    size_t section_count;
    const struct string *names; // of the columns
    const char *columns_key;    // of JSON's array of the columns; NULL: files
    size_t columns;
    size_t label_width, column_width; // of the text, in characters
    bool sparse;                      // the text has no row in which no column has a number
    struct figure_block *blocks;
    size_t count;
    struct arena memory;
};

enum figure_output { FIGURE_TEXT, FIGURE_JSON, FIGURE_CSV };

// Returns the sum divided by the count, NaN where that is 0.
double figure_ratio(long double sum, size_t count);

// Returns a bound of Wilson's interval of 95 % around the share `p` of `n` records, the lower one for side -1, the
// upper one for 1; NaN for none.
double figure_wilson(double p, size_t n, int side);

// Returns half the interval around the mean of the values, NaN for fewer than two. quantile: of the distribution of the
// mean, 1.96 for 95 % of many values.
double figure_half(const double *values, size_t count, double quantile);

// Orders strings by their bytes, as strcmp.
int figure_compare_names(struct string a, struct string b);

// Orders elements that begin with a double, for qsort.
int figure_compare_numbers(const void *a, const void *b);

// Adds a column's figures of a name ("" where the section has no names) in a section. Their number, keys and forms are
// the same in each column and for each name.
void figure_table_add(struct figure_table *table, size_t column, size_t section, struct string name,
                      const struct figure *figures, size_t count);

// Returns whether the column has a figure with this path ("accuracy", "categories.NAME.mean"), and sets *value to it.
bool figure_table_find(const struct figure_table *table, size_t column, struct string path, double *value);

// Appends the columns side by side as text for people, as one JSON object, or as a line of comma-separated values for
// each figure. Sorted by section, then by name.
void figure_table_print(struct figure_table *table, enum figure_output output, struct buf *out);

// Frees what the table holds.
void figure_table_release(struct figure_table *table);

// Appends the text with '?' for control characters, padded with blanks to `width` characters: on its left, where at
// least one is, if `right`.
void figure_print_cell(struct buf *out, struct string text, size_t width, bool right);

// Appends a comma-separated value, in quotes where it needs them (RFC 4180).
void figure_print_field(struct buf *out, struct string text);

// Appends each figure with a comma before it, as a member of a JSON object or a comma-separated value.
void figure_print_list(struct buf *out, enum figure_output output, const struct figure *figures, size_t count);

// ---- consistency ----

// Completions that one judge has judged: [consistent][correct].
struct judged {
    size_t counts[2][2], not_judged;
};

enum { JUDGED_FIGURES = 9 };

// Counts a completion; `consistent` is 1, 0 or, if nobody says, NaN.
void judged_add(struct judged *judged, double consistent, bool correct);

// Returns the share of the judged completions that are consistent.
double judged_rate(const struct judged *judged);

// Sets `figures` to what is to be said of the completions.
void judged_list(const struct judged *judged, struct figure figures[JUDGED_FIGURES]);
