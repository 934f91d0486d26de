// Finished groups that wait for the next stages: sorted by order of issue, each until every reader has had it.
#ifndef SHARED_STAGE_OUTBOX_H
#define SHARED_STAGE_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct outbox_entry {
    struct outbox_entry *next;
    int64_t seq;
    char *id;
    struct buf data;
    uint64_t readers; // a bit for each that has not had it
};

// A zeroed struct has none.
struct outbox {
    struct outbox_entry *first;
};

// Puts one in its place; takes over `data`, whatever the result. UNAVAILABLE when memory is short.
status outbox_add(struct outbox *outbox, int64_t seq, const char *id, uint64_t readers, struct buf *data);

// The first that this reader has not had, NULL if there is none.
struct outbox_entry *outbox_first(const struct outbox *outbox, int reader);

// The reader has had it; frees it when it was the last one.
void outbox_take(struct outbox *outbox, struct outbox_entry *entry, int reader);

// How many wait for this reader; -1 counts all.
int64_t outbox_count(const struct outbox *outbox, int reader);

// Whether a group with that id waits here.
bool outbox_has(const struct outbox *outbox, const char *id);

// Frees all.
void outbox_release(struct outbox *outbox);

#endif
