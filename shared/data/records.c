#include "shared/data/records.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

struct records_cursor {
    const char *at, *end;
    size_t line;
};

static void records_skip_space(struct records_cursor *cursor) {
    for (; cursor->at < cursor->end; cursor->at++) {
        char c = *cursor->at;
        if (c != ' ' && c != '\t' && c != '\r' && c != '\n') return;
        cursor->line += c == '\n';
    }
}

// Adds the record from `start` to the cursor.
static status records_add(struct records *records, const char *start, const struct records_cursor *cursor,
                          size_t line) {
    assert(start <= cursor->at && cursor->at <= cursor->end);
    if (records->count == records->capacity) {
        size_t capacity = records->capacity ? records->capacity * 2 : 256;
        TRY(RESIZE_LARGE(&records->items, capacity));
        records->capacity = capacity;
    }
    records->items[records->count] = (struct record){start, (size_t)(cursor->at - start), {line, records->count}};
    records->count++;
    return OK;
}

status records_parse(struct records *records, const char *name, const char *data, size_t size) {
    static const char byte_order_mark[] = "\xef\xbb\xbf";
    if (size >= 3 && !memcmp(data, byte_order_mark, 3)) data += 3, size -= 3;
    if (!size) return OK;
    struct records_cursor cursor = {data, data + size, 1};
    records_skip_space(&cursor);
    if (cursor.at == cursor.end || *cursor.at != '[') {
        for (; cursor.at < cursor.end; records_skip_space(&cursor)) {
            const char *start = cursor.at, *end = memchr(start, '\n', (size_t)(cursor.end - start));
            cursor.at = end ? end : cursor.end;
            TRY(records_add(records, start, &cursor, cursor.line));
        }
        return OK;
    }
    cursor.at++;
    records_skip_space(&cursor);
    bool more = cursor.at < cursor.end && *cursor.at != ']';
    while (more) {
        records_skip_space(&cursor);
        const char *start = cursor.at;
        size_t line = cursor.line, depth = 0;
        bool in_string = false;
        // The element ends at a comma or bracket that is neither in a string nor in brackets of its own.
        for (; cursor.at < cursor.end; cursor.at++) {
            char c = *cursor.at;
            if (!in_string && depth == 0 && (c == ']' || c == '}' || c == ',')) break;
            cursor.line += c == '\n';
            if (in_string && c == '\\' && cursor.at + 1 < cursor.end) {
                cursor.at++;
            } else if (c == '"') {
                in_string = !in_string;
            } else if (!in_string) {
                depth += c == '[' || c == '{';
                depth -= c == ']' || c == '}';
            }
        }
        if (cursor.at == cursor.end) return fail(DATAERR, "%s:%zu: the array is not closed", name, line);
        if (cursor.at == start) return fail(DATAERR, "%s:%zu: an element is missing", name, line);
        TRY(records_add(records, start, &cursor, line));
        more = *cursor.at == ',';
        cursor.at += more;
    }
    if (cursor.at == cursor.end) return fail(DATAERR, "%s:%zu: the array is not closed", name, cursor.line);
    if (*cursor.at != ']') return fail(DATAERR, "%s:%zu: not a JSON array", name, cursor.line);
    cursor.at++;
    records_skip_space(&cursor);
    return cursor.at == cursor.end ? OK : fail(DATAERR, "%s:%zu: text after the array", name, cursor.line);
}

status records_open(struct records *records, const char *path) {
    TRY(file_map_open(&records->map, path));
    if (file_is_lfs_pointer(records->map.data, records->map.size))
        return fail(DATAERR, "%s: a pointer of Git LFS, not the file: type git lfs pull in its directory", path);
    return records_parse(records, path, records->map.data, records->map.size);
}

void records_release(struct records *records) {
    file_map_release(&records->map);
    free(records->items);
    *records = (struct records){0};
}
