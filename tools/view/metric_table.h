// metrics.jsonl in memory: a column of numbers for each of its keys, a row for each step.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "tools/view/run_files.h"

enum { METRIC_COLUMNS = 256 }; // at most: further keys are left out

struct metric_column {
    const char *name;
    double *values; // a row each; NaN: null, or the line does not have the key
};

// A zeroed struct is an empty table.
struct metric_table {
    struct line_file file;
    struct arena arena; // of the names
    int64_t *steps;     // ascending
    size_t count, capacity;
    struct metric_column columns[METRIC_COLUMNS];
    size_t column_count;
    char device[64]; // that the last line names, "": none
};

// Adds the lines that the file has got since the last time; a file that was written anew, as by a run that went on, is
// read anew. A step that comes again takes the place of itself and of all later ones. While table->file.more a part of
// the file was read alone. DATAERR, UNAVAILABLE.
status metric_table_read(struct metric_table *table, const char *path);

// Adds lines, each with its end. One that is no object with a step is left out.
void metric_table_add(struct metric_table *table, const char *lines, size_t size);

// Frees and zeroes.
void metric_table_release(struct metric_table *table);

// Returns the values of a key, NULL if no line has it.
const double *metric_table_find(const struct metric_table *table, const char *name);

// Returns the first row with a step of at least `step`, table->count if there is none.
size_t metric_table_row(const struct metric_table *table, int64_t step);

// Appends the rows of the steps from `from` to `to` as a JSON object of columns: those of the table that have a number
// there, and behind them all of `more`, which have as many rows as the table. Above `points` rows each of as many bins
// has the first and the last step, the last number, the lowest, the highest and the mean.
void metric_table_print(const struct metric_table *table, int64_t from, int64_t to, size_t points,
                        const struct metric_column *more, size_t more_count, struct buf *out);
