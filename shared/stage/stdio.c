// The filter: groups as JSON lines in, groups as JSON lines out, in the order in which they came. A group that is done
// before an earlier one waits in its slot; a line that is no group ends the run when everything before it is written.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/stage/lines.h"
#include "shared/stage/runner.h"

enum { WINDOW = 1024 }; // slots above which no more lines are read while there is other work

struct slot {
    const struct group *group; // while the stage has it
    size_t line;
    char *passing;   // a quarantined group's line, to be written as it came
    struct buf done; // the line to be written
    char *refused;   // why the line is no group
};

struct filter {
    struct lines lines;
    int output;
    struct slot *slots; // a ring in the order of the lines
    size_t first, count, room;
    bool closed; // no more lines are read: one was no group
};

static struct slot *slot_at(struct filter *filter, size_t index) {
    return &filter->slots[(filter->first + index) % filter->room];
}

static void slot_release(struct slot *slot) {
    buf_release(&slot->done);
    free(slot->passing);
    free(slot->refused);
    *slot = (struct slot){0};
}

// A new slot behind the others.
static status slot_add(struct filter *filter, struct slot **out) {
    if (filter->count == filter->room) {
        size_t room = filter->room ? filter->room * 2 : 64;
        struct slot *wider;
        TRY(NEW(&wider, room));
        for (size_t i = 0; i < filter->count; i++) wider[i] = *slot_at(filter, i);
        free(filter->slots);
        filter->slots = wider;
        filter->first = 0;
        filter->room = room;
    }
    *out = slot_at(filter, filter->count++);
    **out = (struct slot){.line = filter->lines.number};
    return OK;
}

static status write_all(int fd, const char *data, size_t size) {
    if (fd_write_all(fd, data, size)) return OK;
    if (errno == EPIPE) return fail(END, "standard output is closed");
    return fail(UNAVAILABLE, "standard output: %s", strerror(errno));
}

// Writes the slots at the front that are done. DATAERR when the one in front is no group.
static status flush(struct filter *filter) {
    while (filter->count) {
        struct slot *slot = slot_at(filter, 0);
        if (slot->refused) return fail(DATAERR, "line %zu: %s", slot->line, slot->refused);
        if (!slot->done.size) return OK;
        TRY(write_all(filter->output, slot->done.data, slot->done.size));
        slot_release(slot);
        filter->first = (filter->first + 1) % filter->room;
        filter->count--;
    }
    return OK;
}

// A line is no group: nothing behind it is read any more.
static status refuse_slot(struct filter *filter, struct slot *slot) {
    filter->closed = true;
    slot->group = NULL;
    slot->refused = strdup(fail_text());
    return slot->refused ? flush(filter) : fail_oom();
}

static status read_group(struct filter *filter, const char *line, size_t size, struct group **out) {
    struct slot *slot;
    TRY(slot_add(filter, &slot));
    status result = group_from_json(out, line, size);
    if (result == DATAERR) {
        TRY(refuse_slot(filter, slot));
        return END;
    }
    TRY(result);
    slot->group = *out;
    if (!(*out)->quarantine.present) return OK;
    slot->passing = strndup(line, size);
    return slot->passing ? OK : fail_oom();
}

static status filter_receive(void *self, int room, int timeout_ms, struct group **out) {
    struct filter *filter = self;
    const char *line;
    size_t size = 0;
    (void)room;
    if (filter->closed) return END;
    if (timeout_ms >= 0 && filter->count >= WINDOW) return OK;
    TRY(lines_next(&filter->lines, timeout_ms, &line, &size));
    return line ? read_group(filter, line, size, out) : OK;
}

static struct slot *slot_of(struct filter *filter, const struct group *group) {
    for (size_t i = 0; i < filter->count; i++)
        if (slot_at(filter, i)->group == group) return slot_at(filter, i);
    return NULL;
}

// The slot of a group, a new one for a source's.
static status find_slot(struct filter *filter, const struct group *group, struct slot **out) {
    *out = slot_of(filter, group);
    return *out ? OK : slot_add(filter, out);
}

static status filter_deliver(void *self, struct group **group) {
    struct filter *filter = self;
    struct slot *slot;
    status result = find_slot(filter, *group, &slot);
    if (result == OK && slot->passing) result = buf_puts(&slot->done, slot->passing);
    if (result == OK && !slot->passing) result = group_to_json(*group, &slot->done);
    if (result == OK) result = buf_puts(&slot->done, "\n");
    if (result == OK) slot->group = NULL;
    group_free(group);
    return result == OK ? flush(filter) : result;
}

static status filter_refuse(void *self, struct group **group) {
    struct filter *filter = self;
    struct slot *slot;
    status result = find_slot(filter, *group, &slot);
    group_free(group);
    return result == OK ? refuse_slot(filter, slot) : result;
}

static status filter_finish(void *self) {
    return flush(self);
}

status stdio_run(struct stage_context *context, int input, int output) {
    struct filter filter = {.lines = {.fd = input}, .output = output};
    struct channel channel = {&filter, filter_receive, filter_deliver, filter_refuse, filter_finish};
    status result = runner_loop(context, &channel);
    while (filter.count) {
        slot_release(slot_at(&filter, 0));
        filter.first = (filter.first + 1) % filter.room;
        filter.count--;
    }
    free(filter.slots);
    lines_release(&filter.lines);
    return result;
}
