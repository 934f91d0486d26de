// The groups that a stage has finished, sorted by seq. Each is kept after it was given away, until it is settled, so
// that it can be given away again when a process is lost.
//
// A replica of a reading stage has a lease of a group: it holds the group (GIVEN) until it has given it on (PASSED).
// What becomes of a lease is in one table, lease_rules; PROTOCOL.md shows it. An entry without data was only claimed:
// this process was restarted, and a reader has told it what it has.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Replicas of the stage before this one, by number: those that may give a group again, or were told who has it.
enum { MAX_ORIGINS = 3 };
struct origins {
    int count; // above MAX_ORIGINS: every replica
    int replicas[MAX_ORIGINS];
};

// Adds a replica, once.
void origins_add(struct origins *origins, int replica);

// Whether it is one of them.
bool origins_include(const struct origins *origins, int replica);

enum lease_state {
    LEASE_FREE, // any replica may take the group
    LEASE_GIVEN,
    LEASE_GIVEN_ASKED, // the replica's connection is new, and it has not said yet whether it has the group
    LEASE_GIVEN_DUE,   // the replica is gone: FREE after a while
    LEASE_PASSED,
    LEASE_PASSED_ASKED,
    LEASE_PASSED_DUE,
    LEASE_STATES
};

// What happens to a replica, or to a lease of it.
enum lease_event {
    LEASE_SENT,        // the group was sent to it
    LEASE_HAVE,        // it says that it has the group
    LEASE_PASS,        // it says that it has given it on
    LEASE_GONE,        // it is silent or has stopped
    LEASE_RESTARTED,   // another process of it has connected
    LEASE_RECONNECTED, // the same process has connected again
    LEASE_SYNCED,      // it has said what it has
    LEASE_EXPIRED,     // the time of a state DUE is over
    LEASE_EVENTS
};

// What an event does to a lease of this replica.
struct lease_rule {
    enum lease_state next;
    bool loss;    // the group was lost with a process: counts, if the group may be the cause
    int after_ms; // of a state DUE
};

// Returns the rule for an event in a state.
struct lease_rule lease_rule_of(enum lease_event event, enum lease_state state);

// What a reading stage has of a group.
struct lease {
    enum lease_state state;
    int replica;    // not FREE: of the reading stage
    int losses;     // times that a process was restarted while it had the group
    int suspect;    // a replica that went with the group: a loss if it comes back restarted; 0: none
    int64_t due_at; // DUE: ms
};

struct outbox_entry {
    int64_t seq;
    struct buf data; // the group in msgpack; empty: it was only claimed
    struct origins origins;
    struct lease leases[]; // of each reader
};

// Zeroed but for reader_count, it is empty.
struct outbox {
    size_t reader_count;
    struct outbox_entry **entries;
    size_t count;
};

// Adds a group for all readers, or the data of one that was only claimed; a group that is there already stays as it is.
// Takes over `data`. Returns its entry.
struct outbox_entry *outbox_add(struct outbox *outbox, int64_t seq, const struct origins *origins, struct buf *data);

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

// A replica says that it has a group, and whether it has given it on. If the group is not there, its entry has no data.
// Returns the entry.
struct outbox_entry *outbox_claim(struct outbox *outbox, int64_t seq, size_t reader, int replica, bool passed);

// Groups that have just been lost for the second time: they are given out alone from now on.
struct lost_again {
    size_t count;
    int64_t first; // its seq
};

// Something has happened to a replica of a reader, GONE to SYNCED, at `now` (ms): applies it to the leases that it has.
// `blamed`: a group that it had may be the cause of its restart.
struct lost_again outbox_apply(struct outbox *outbox, size_t reader, int replica, enum lease_event event, bool blamed,
                               int64_t now);

// Makes available what is due at `now` (ms). Returns whether there was something.
bool outbox_expire(struct outbox *outbox, int64_t now);

// Returns a group that was lost `losses` times by a reader, NULL if there is none.
struct outbox_entry *outbox_find_lost(const struct outbox *outbox, size_t reader, int losses);

// Removes the groups below a seq.
void outbox_settle_below(struct outbox *outbox, int64_t seq);

// Returns how many groups are available to this reader; -1: to any.
int64_t outbox_available(const struct outbox *outbox, int reader);

// Frees all entries and leaves an empty outbox.
void outbox_release(struct outbox *outbox);
