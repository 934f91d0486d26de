// The filter: groups as JSON lines in, groups as JSON lines out, in the same order. A group that is done before an
// earlier one waits in its slot. A line that is not a group ends the run when everything before it is written.
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/signals.h"
#include "shared/stage/runner.h"

enum { SLOTS_MAX = 1024 }; // slots above which no more lines are read while there is other work

struct stdio_slot {
    const struct group *group; // while the stage has it
    size_t line;
    char *passing;   // a quarantined group's line, to be written as it came
    struct buf done; // the line to be written
    char *refused;   // why the line is not a group
};

struct stdio_filter {
    struct line_reader lines;
    int output;
    struct stdio_slot *slots; // a ring in the order of the lines
    size_t first, count, capacity;
    bool closed; // a line was not a group, so no more are read
};

static struct stdio_slot *stdio_slot(struct stdio_filter *filter, size_t index) {
    assert(index < filter->capacity);
    return &filter->slots[(filter->first + index) % filter->capacity];
}

static void stdio_release_slot(struct stdio_slot *slot) {
    buf_release(&slot->done);
    free(slot->passing);
    free(slot->refused);
    *slot = (struct stdio_slot){0};
}

// Adds a slot at the end, for the line that was read last.
static void stdio_add_slot(struct stdio_filter *filter, struct stdio_slot **out) {
    if (filter->count == filter->capacity) {
        size_t capacity = filter->capacity ? filter->capacity * 2 : 64;
        struct stdio_slot *wider;
        NEW(&wider, capacity);
        for (size_t i = 0; i < filter->count; i++) wider[i] = *stdio_slot(filter, i);
        free(filter->slots);
        filter->slots = wider;
        filter->first = 0;
        filter->capacity = capacity;
    }
    *out = stdio_slot(filter, filter->count++);
    **out = (struct stdio_slot){.line = filter->lines.number};
}

// Writes the slots at the front that are done. DATAERR when the line of the first one is not a group.
static status stdio_flush(struct stdio_filter *filter) {
    while (filter->count) {
        struct stdio_slot *slot = stdio_slot(filter, 0);
        if (slot->refused) return fail(DATAERR, "line %zu: %s", slot->line, slot->refused);
        if (!slot->done.size) return OK;
        if (!fd_write_all(filter->output, slot->done.data, slot->done.size))
            return errno == EPIPE ? fail(END, "standard output is closed")
                                  : fail(UNAVAILABLE, "standard output: %s", strerror(errno));
        stdio_release_slot(slot);
        filter->first = (filter->first + 1) % filter->capacity;
        filter->count--;
    }
    return OK;
}

// Records that a line is not a group, for the reason in fail_text(). Nothing after it is read.
static status stdio_refuse_slot(struct stdio_filter *filter, struct stdio_slot *slot) {
    assert(!slot->refused && !slot->done.size);
    filter->closed = true;
    slot->group = NULL;
    slot->refused = mem_strdup(fail_text());
    return stdio_flush(filter);
}

static status stdio_receive(void *self, int capacity, int timeout_ms, struct group **out) {
    struct stdio_filter *filter = self;
    struct stdio_slot *slot;
    const char *line;
    size_t size = 0;
    (void)capacity;
    if (filter->closed) return END;
    if (timeout_ms >= 0 && filter->count >= SLOTS_MAX) return OK;
    TRY(line_reader_next(&filter->lines, timeout_ms, &line, &size));
    if (!line) return OK;
    stdio_add_slot(filter, &slot);
    status result = group_from_json(out, line, size);
    if (result == DATAERR) {
        TRY(stdio_refuse_slot(filter, slot));
        return END;
    }
    TRY(result);
    slot->group = *out;
    if (!(*out)->quarantine.present) return OK;
    slot->passing = mem_strndup(line, size);
    return OK;
}

static status stdio_deliver(void *self, struct group **group, status outcome) {
    struct stdio_filter *filter = self;
    struct stdio_slot *slot = NULL;
    status result = OK;
    for (size_t i = 0; i < filter->count && !slot; i++)
        if (stdio_slot(filter, i)->group == *group) slot = stdio_slot(filter, i);
    if (!slot) stdio_add_slot(filter, &slot); // a source's group
    if (result == OK && outcome != OK) {
        result = stdio_refuse_slot(filter, slot);
    } else if (result == OK) {
        if (slot->passing)
            buf_puts(&slot->done, slot->passing);
        else
            group_to_json(*group, &slot->done);
        if (result == OK) buf_puts(&slot->done, "\n");
        slot->group = NULL;
        if (result == OK) result = stdio_flush(filter);
    }
    group_free(group);
    return result;
}

status stdio_run(struct stage_context *context, int input, int output) {
    struct stdio_filter filter = {.lines = {.fd = input}, .output = output};
    struct channel channel = {&filter, stdio_receive, stdio_deliver, NULL, NULL};
    status result = runner_run(context, &channel);
    if (result == OK) result = stdio_flush(&filter);
    while (filter.count) {
        stdio_release_slot(stdio_slot(&filter, 0));
        filter.first = (filter.first + 1) % filter.capacity;
        filter.count--;
    }
    free(filter.slots);
    line_reader_release(&filter.lines);
    return result;
}
