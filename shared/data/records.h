// The records of an annotation file: JSON lines, or one JSON array whose elements may extend over several lines. The
// file is mapped; only the position of each record is kept.
#pragma once

#include <stddef.h>

#include "shared/base/file.h"
#include "shared/base/status.h"

struct record_place {
    size_t line;  // of the first character, from 1
    size_t index; // among the records of the file, from 0
};

struct record {
    const char *data; // in the mapped file
    size_t size;
    struct record_place place;
};

struct records {
    struct file_map map;
    struct record *items;
    size_t count;
    size_t capacity;
};

// Opens `path` and finds its records: a file whose first character is [ is an array, any other is JSON lines, in which
// blank lines are ignored. A byte order mark is skipped. The records themselves are not parsed. DATAERR "PATH:LINE:
// ..." when an array is malformed between its elements. Release with records_release, also after a failure.
status records_open(struct records *records, const char *path);

// The same for bytes that the caller keeps; `name` replaces the path in messages.
status records_parse(struct records *records, const char *name, const char *data, size_t size);

// Unmaps the file and frees the memory. A zeroed struct is fine.
void records_release(struct records *records);
