// A file of annotations as records: JSON lines, or one JSON list whose elements may stand over many lines. The file is
// mapped; only where each record stands is kept.
#ifndef SHARED_DATA_RECORDS_H
#define SHARED_DATA_RECORDS_H

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/base/status.h"

struct record {
    const char *data; // in the mapped file
    size_t size;
    size_t line; // of its first character, from 1
};

struct records {
    struct file_map map;
    struct record *list;
    size_t count;
    size_t room;
};

// Opens `path` and finds its records: a file whose first character is [ is a list, any other is lines, blank ones left
// out. A byte order mark is skipped. DATAERR "PATH: LINE: ..." when a list is broken between its elements; what is
// inside a record is not looked at. Release with records_release, also after a failure.
status records_open(struct records *records, const char *path);

// The same over bytes that the caller keeps; `name` stands for the path in messages.
status records_parse(struct records *records, const char *name, const char *data, size_t size);

// Unmaps and frees; a zeroed one is fine.
void records_release(struct records *records);

#endif
