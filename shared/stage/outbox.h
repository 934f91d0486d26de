// The groups that a stage has finished, sorted by seq. Each is kept after it was given away, until it is settled, so
// that it can be given away again when a process is lost.
//
// A replica of a reading stage holds a group (GIVEN) until it has given it on itself (PASSED). An entry without data is
// a ghost: this process was restarted, a reader told it that it has the group, and so nobody need make it anew.
#ifndef SHARED_STAGE_OUTBOX_H
#define SHARED_STAGE_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Replicas of the stage before this one, by number: those that may give a group again.
enum { ORIGINS_MAX = 3 };
struct origins {
    int count; // above ORIGINS_MAX: every replica
    int replicas[ORIGINS_MAX];
};

// Adds a replica, once.
void origins_add(struct origins *origins, int replica);

// Whether it is one of them.
bool origins_include(const struct origins *origins, int replica);

enum lease_state { LEASE_AVAILABLE, LEASE_GIVEN, LEASE_PASSED };

// What a reading stage has of a group.
struct lease {
    uint8_t state;      // lease_state
    bool unconfirmed;   // the replica's connection is new, and it has not said yet whether it has the group
    int replica;        // GIVEN, PASSED: of the reading stage
    int losses;         // times that a process was restarted while it had the group
    int suspect;        // a replica that was lost with the group: a loss if it comes back restarted; 0: none
    int64_t release_at; // the replica is gone: when the group is available again, ms; 0: not
};

struct outbox_entry {
    int64_t seq;
    struct buf data; // the group in msgpack; empty: a ghost
    struct origins origins;
    struct lease leases[]; // of each reader
};

// Zeroed but for reader_count, it is empty.
struct outbox {
    size_t reader_count;
    struct outbox_entry **entries;
    size_t count;
};

// Adds a group for all readers, or fills a ghost; a group that is there already stays as it is. Takes over `data`,
// whatever the result.
void outbox_add(struct outbox *outbox, int64_t seq, const struct origins *origins, struct buf *data);

// Returns the group's entry, NULL if there is none. Valid until the outbox changes.
struct outbox_entry *outbox_find(const struct outbox *outbox, int64_t seq);

// Returns the first group that this replica of a reader may take, NULL if there is none. A group that was lost with its
// process twice is given to a replica that has no other, which then gets no other: so the third and the fourth loss are
// this group's doing.
struct outbox_entry *outbox_next(const struct outbox *outbox, size_t reader, int replica);

// Gives the group to a replica.
void outbox_give(struct outbox_entry *entry, size_t reader, int replica);

// Whether every reader has the group.
bool outbox_passed(const struct outbox *outbox, const struct outbox_entry *entry);

// A replica says that it has a group, and whether it has given it on. Makes a ghost if the group is not there: *ghost.
void outbox_claim(struct outbox *outbox, int64_t seq, size_t reader, int replica, bool passed, bool *ghost);

enum outbox_loss {
    LOSS_BROKEN,    // the connection is new: the replica is about to say what it still has
    LOSS_SYNCED,    // it has said what it has
    LOSS_GONE,      // it is silent or has stopped
    LOSS_RESTARTED, // its process was lost, and another one is there
    LOSS_CRASHED,   // the same, and a group that it had may be the cause
};

// Groups that have just been lost for the second time: they are given out alone from now on.
struct lost_again {
    size_t count;
    int64_t first; // its seq
};

// Makes the groups available again that a replica of a reader has lost, at once or later than `now` (ms): one that is
// gone may have lost its connection only, and what it had passed on is probably safe.
struct lost_again outbox_lose(struct outbox *outbox, size_t reader, int replica, enum outbox_loss loss, int64_t now);

// A replica cannot give a group again that it had passed on.
void outbox_return(struct outbox *outbox, int64_t seq, size_t reader, int replica);

// Makes available what is due at `now` (ms). Returns whether there was something.
bool outbox_release_due(struct outbox *outbox, int64_t now);

// Removes a ghost that no reader has; false if there is none.
bool outbox_remove_orphan(struct outbox *outbox, int64_t *seq);

// Returns a group that was lost `losses` times by a reader, and that reader; NULL if there is none.
struct outbox_entry *outbox_find_lost(const struct outbox *outbox, int losses, size_t *reader);

// Removes the groups below a seq.
void outbox_settle_below(struct outbox *outbox, int64_t seq);

// Returns how many groups are available to this reader; -1: to any.
int64_t outbox_available(const struct outbox *outbox, int reader);

// Frees all entries and leaves an empty outbox.
void outbox_release(struct outbox *outbox);

#endif
