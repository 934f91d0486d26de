// Finished groups that wait for the next stages, sorted by seq, each until every reader has had it.
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
    struct buf data;  // the group in msgpack
    uint64_t readers; // a bit for each reader that has not had it
};

// A zeroed struct is empty.
struct outbox {
    struct outbox_entry *first;
};

// Adds a group for the readers in the bit set; takes over `data`, whatever the result. UNAVAILABLE when memory is
// short.
status outbox_add(struct outbox *outbox, int64_t seq, const char *id, uint64_t readers, struct buf *data);

// Returns the first group that this reader has not had, NULL if there is none. Valid until outbox_take.
struct outbox_entry *outbox_first(const struct outbox *outbox, int reader);

// Records that the reader has had the entry, and frees it when all have.
void outbox_take(struct outbox *outbox, struct outbox_entry *entry, int reader);

// Returns how many groups wait for this reader; -1 counts all.
int64_t outbox_count(const struct outbox *outbox, int reader);

// Returns whether a group with that id is in the outbox.
bool outbox_has(const struct outbox *outbox, const char *id);

// Frees all entries and leaves an empty outbox.
void outbox_release(struct outbox *outbox);

#endif
