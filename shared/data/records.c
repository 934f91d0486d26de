#include "shared/data/records.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Where the cutting stands.
struct cursor {
    const char *name;
    const char *at, *end;
    size_t line;
};

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_space(struct cursor *cursor) {
    for (; cursor->at < cursor->end && is_space(*cursor->at); cursor->at++) cursor->line += *cursor->at == '\n';
}

static status add(struct records *records, struct record record) {
    if (records->count == records->room) {
        size_t room = records->room ? records->room * 2 : 256;
        TRY(RESIZE(&records->list, room));
        records->room = room;
    }
    records->list[records->count++] = record;
    return OK;
}

static status cut_lines(struct records *records, struct cursor *cursor) {
    for (skip_space(cursor); cursor->at < cursor->end; skip_space(cursor)) {
        const char *end = memchr(cursor->at, '\n', (size_t)(cursor->end - cursor->at));
        if (!end) end = cursor->end;
        TRY(add(records, (struct record){cursor->at, (size_t)(end - cursor->at), cursor->line}));
        cursor->at = end;
    }
    return OK;
}

// Moves behind one element: up to a comma or bracket that is in no string and in no bracket of its own.
static void skip_element(struct cursor *cursor) {
    size_t depth = 0;
    bool quoted = false;
    for (; cursor->at < cursor->end; cursor->at++) {
        char c = *cursor->at;
        cursor->line += c == '\n';
        if (quoted) {
            if (c == '\\' && cursor->at + 1 < cursor->end) cursor->at++;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if (c == ']' || c == '}') {
            if (!depth) return;
            depth--;
        } else if (c == ',' && !depth) {
            return;
        }
    }
}

// cursor->at is the opening bracket.
static status cut_list(struct records *records, struct cursor *cursor) {
    cursor->at++;
    skip_space(cursor);
    bool more = cursor->at < cursor->end && *cursor->at != ']';
    while (more) {
        skip_space(cursor);
        struct record record = {cursor->at, 0, cursor->line};
        skip_element(cursor);
        record.size = (size_t)(cursor->at - record.data);
        if (cursor->at == cursor->end) return fail(DATAERR, "%s:%zu: the list does not end", cursor->name, record.line);
        if (!record.size) return fail(DATAERR, "%s:%zu: an element is missing", cursor->name, record.line);
        TRY(add(records, record));
        more = *cursor->at == ',';
        cursor->at += more;
    }
    if (cursor->at == cursor->end) return fail(DATAERR, "%s:%zu: the list does not end", cursor->name, cursor->line);
    if (*cursor->at != ']') return fail(DATAERR, "%s:%zu: not a JSON list", cursor->name, cursor->line);
    cursor->at++;
    skip_space(cursor);
    if (cursor->at < cursor->end) return fail(DATAERR, "%s:%zu: text behind the list", cursor->name, cursor->line);
    return OK;
}

status records_parse(struct records *records, const char *name, const char *data, size_t size) {
    if (size >= 3 && !memcmp(data, "\xef\xbb\xbf", 3)) data += 3, size -= 3;
    if (!size) return OK;
    struct cursor cursor = {name, data, data + size, 1};
    skip_space(&cursor);
    if (cursor.at < cursor.end && *cursor.at == '[') return cut_list(records, &cursor);
    return cut_lines(records, &cursor);
}

status records_open(struct records *records, const char *path) {
    TRY(file_map_open(&records->map, path));
    return records_parse(records, path, records->map.data, records->map.size);
}

void records_release(struct records *records) {
    file_map_release(&records->map);
    free(records->list);
    *records = (struct records){0};
}
