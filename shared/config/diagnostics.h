// The mistakes in a pipeline file, and warnings of what is allowed but makes no sense, each with its location. All
// those of a file are collected, sorted and shown at once.
#ifndef SHARED_CONFIG_DIAGNOSTICS_H
#define SHARED_CONFIG_DIAGNOSTICS_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// A position in a file. Both count from 1; line 0 stands for the command line.
struct location {
    size_t line, column;
};

struct diagnostic {
    struct location at;
    const char *text;
    bool warning; // not a mistake
};

// A zeroed struct is an empty list.
struct diagnostics {
    struct arena arena; // of the texts
    struct diagnostic *list;
    size_t count, capacity;
};

// Adds a mistake.
void diagnostic_add(struct diagnostics *diagnostics, struct location at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Adds a warning.
void diagnostic_warn(struct diagnostics *diagnostics, struct location at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Returns the number of warnings.
size_t diagnostics_warnings(const struct diagnostics *diagnostics);

// Sorts them by line and column, those of the command line first, and appends "PATH:LINE:COLUMN: TEXT" lines to `out`,
// with "warning: " before the text of a warning. OK without mistakes; USAGE when all mistakes are about the command
// line; DATAERR otherwise. UNAVAILABLE when memory was short at any time before.
status diagnostics_report(struct diagnostics *diagnostics, const char *path, struct buf *out);

// Frees the list and its texts and leaves an empty list.
void diagnostics_release(struct diagnostics *diagnostics);

#endif
