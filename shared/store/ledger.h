// The ledger of a run: the state of every group. A group is identified by `seq`, its position in the order of issue,
// which starts at 0.
//
// Changes are kept in memory and written together, by ledger_tick or ledger_flush, so that the thread which calls waits
// for the disk a few times a second and not at every group. A process that dies loses the last changes. This is
// harmless, because the ledger is only a cache: what is trained is what optim's checkpoint says, and ledger_rewind_to
// makes the ledger agree with it after every restart. In a run without optim, the stores have every finished section,
// so a group whose settling was lost is issued again and passes through without being computed. But other processes
// outlive this one, and drop what they take for settled: they may only be told what is on the disk. Those on other
// machines outlive a power failure too. So every write is durable, unlike those of the stores. A flush then takes twice
// as long, 0.3 ms on an idle SSD, and there is at most one in 50 ms.
//
// When optim goes back, groups that were settled are issued anew. The ledger's issue number then rises, which tells
// them from what is still under way from before. It is the only value that is on the disk before the call returns.
// A new ledger begins with the time at which it is made, because the run may have had an earlier one, which was removed
// while processes on other machines lived on: they drop what has a number below theirs, and what they take for settled.
// Only a clock that was set back to before the earlier ledger was made gives a lower number. The run then stands still
// until the processes on all machines are started again.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// The values are stored on disk. A group is settled in TRAINED, QUARANTINED and UNUSED.
enum ledger_state {
    LEDGER_NEW,         // not issued
    LEDGER_IN_FLIGHT,   // issued, not settled
    LEDGER_TRAINED,     // in `step`
    LEDGER_QUARANTINED, // by `stage` for `reason`
    LEDGER_UNUSED,      // left over at the end of the data: it did not fill a step
};

enum { LEDGER_STATES = LEDGER_UNUSED + 1 };

// Only the functions below change it.
struct ledger {
    int64_t settled;         // every group below this seq is settled
    int64_t settled_on_disk; // and on the disk too: only this may be told to other processes
    // The lowest seq that was neither issued nor settled since the last ledger_rewind_to. Higher ones may be settled:
    // the last stage tells a new source again what it told the one before, of whose changes the last were lost.
    int64_t next_unissued;
    int64_t counts[LEDGER_STATES]; // of the groups in each state; always 0 for NEW
    // The number with which groups are issued: at first the time at which the ledger was made, in ns since 1970; one
    // more each time that optim went back or the settings changed.
    int64_t issue_number;

    // The ledger's own.
    struct lmdb_env *env;
    uint8_t *states; // [size], a ledger_state for each seq
    size_t size, capacity;
    struct buf changes;  // not written yet: a ledger_change and its strings each
    double flushed_at;   // as of ledger_tick
    double read_changed; // when the entry below `settled` was changed, as of ledger_refresh
};

struct ledger_entry {
    int64_t seq;
    enum ledger_state state;
    int64_t step;       // TRAINED: the step, from 1; -1: unknown
    int64_t issues;     // how often the group was issued
    double changed;     // seconds since 1970
    const char *id;     // of the group
    const char *stage;  // QUARANTINED: which stage did it
    const char *reason; // QUARANTINED: why
};

// The data and settings of the run. A ledger is only continued with the same values.
struct ledger_config {
    uint64_t data; // a hash of the data and of all settings that determine the groups
    int64_t groups_per_step;
    const char *described; // lines "NAME VALUE" that say what `data` covers, for messages; NULL: nothing is known
};

// Returns the path of a run's ledger: RUN/ledger.lmdb. If the run's directory is on a network file system, where LMDB
// does not work, it is STORE/ledger-HASH.lmdb, with a hash of the directory's path, because runs may share a store.
// `store` may be NULL. The path is in the arena.
const char *ledger_path(struct arena *arena, const char *run_dir, const char *store);

// Opens or creates the ledger file. DATAERR, naming what differs, when it was written with another ledger_config,
// UNAVAILABLE when the disk
// fails. The caller closes it with ledger_close.
status ledger_open(struct ledger **out, const char *path, const struct ledger_config *config);

// Opens an existing ledger to read it, with whatever ledger_config it was written, also while its owner writes. Only
// ledger_refresh, ledger_state_of, ledger_each, ledger_each_from and ledger_close may be called with it. DATAERR when
// the file is missing or is no ledger of this version; UNAVAILABLE when it cannot be read.
status ledger_open_read_only(struct ledger **out, const char *path);

// Takes over what the owner of a ledger that was opened to be read has written since. *first is the lowest seq whose
// entry may be another one than before: what lies below it is settled and stays as it is. UNAVAILABLE, DATAERR.
status ledger_refresh(struct ledger *ledger, int64_t *first);

// Compares a hash of all settings of the run with that of the last call, and keeps it. If it differs, what the ledger
// has was done with other settings: *changed is set, all groups are forgotten, and the issue number rises. UNAVAILABLE
// when the disk fails.
status ledger_set_settings(struct ledger *ledger, uint64_t settings, bool *changed);

// Writes the changes, closes and frees; sets *ledger to NULL. NULL is fine.
void ledger_close(struct ledger **ledger);

// Returns the state of a group; NEW for a seq that the ledger does not have.
enum ledger_state ledger_state_of(const struct ledger *ledger, int64_t seq);

// Marks a group as in flight and counts one more issue of it. UNAVAILABLE when the disk fails.
status ledger_issue(struct ledger *ledger, int64_t seq, const char *id);

// Settles a group with the state TRAINED, QUARANTINED or UNUSED; entry->id NULL keeps the stored id. A group that is
// settled already stays as it is. *newly_settled (may be NULL) tells the two cases apart. UNAVAILABLE when the disk
// fails.
status ledger_settle(struct ledger *ledger, const struct ledger_entry *entry, bool *newly_settled);

// Makes the ledger agree with optim's checkpoint, in which `seq` is the next group to train: groups below it that are
// not settled become TRAINED, and all groups from it on are forgotten. If optim went back, that is, if `seq` is below
// `settled`, the issue number rises by one. DATAERR when seq is negative, UNAVAILABLE when the disk fails.
status ledger_rewind_to(struct ledger *ledger, int64_t seq);

// Writes the changes in one transaction. UNAVAILABLE when the disk fails; they are then kept for the next call.
status ledger_flush(struct ledger *ledger);

// Writes the changes as ledger_flush does, but only if `now`, in seconds of any clock that does not go back, is at
// least 0.05 s after the last time.
status ledger_tick(struct ledger *ledger, double now);

// Calls visit for every entry, in the order of their seq; the entry is valid during the call. END from visit ends
// the iteration with OK, any other failure is returned. DATAERR when an entry is damaged.
status ledger_each(struct ledger *ledger, status (*visit)(void *context, const struct ledger_entry *entry),
                   void *context);

// The same for the entries from a seq on, which is not negative.
status ledger_each_from(struct ledger *ledger, int64_t seq,
                        status (*visit)(void *context, const struct ledger_entry *entry), void *context);
