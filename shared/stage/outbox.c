#include "shared/stage/outbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

status outbox_add(struct outbox *outbox, int64_t seq, const char *id, uint64_t readers, struct buf *data) {
    assert(readers != 0);
    struct outbox_entry *entry = calloc(1, sizeof *entry);
    char *copy = strdup(id);
    if (!entry || !copy) {
        free(entry);
        free(copy);
        buf_release(data);
        return fail_oom();
    }
    *entry = (struct outbox_entry){.seq = seq, .id = copy, .data = *data, .readers = readers};
    *data = (struct buf){0};
    struct outbox_entry **link = &outbox->first;
    while (*link && (*link)->seq <= seq) link = &(*link)->next;
    entry->next = *link;
    *link = entry;
    assert(!entry->next || entry->next->seq > seq);
    return OK;
}

struct outbox_entry *outbox_first(const struct outbox *outbox, int reader) {
    struct outbox_entry *at = outbox->first;
    assert(reader >= 0 && reader < 64);
    while (at && !(at->readers >> reader & 1)) at = at->next;
    return at;
}

static void outbox_entry_free(struct outbox_entry *entry) {
    buf_release(&entry->data);
    free(entry->id);
    free(entry);
}

void outbox_take(struct outbox *outbox, struct outbox_entry *given, int reader) {
    assert(given->readers >> reader & 1);
    given->readers &= ~((uint64_t)1 << reader);
    if (given->readers) return;
    struct outbox_entry **link = &outbox->first;
    while (*link != given) {
        assert(*link);
        link = &(*link)->next;
    }
    *link = given->next;
    outbox_entry_free(given);
}

int64_t outbox_count(const struct outbox *outbox, int reader) {
    int64_t count = 0;
    for (const struct outbox_entry *at = outbox->first; at; at = at->next)
        if (reader < 0 || at->readers >> reader & 1) count++;
    return count;
}

bool outbox_has(const struct outbox *outbox, const char *id) {
    for (const struct outbox_entry *at = outbox->first; at; at = at->next)
        if (!strcmp(at->id, id)) return true;
    return false;
}

void outbox_release(struct outbox *outbox) {
    while (outbox->first) {
        struct outbox_entry *next = outbox->first->next;
        outbox_entry_free(outbox->first);
        outbox->first = next;
    }
}
