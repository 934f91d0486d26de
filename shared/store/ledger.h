// The run's ledger: what became of every group, by its place in the order of issue ("order", from 0).
//
// What is trained is optim's to say: after a crash its checkpoint may be older than the ledger, which then goes back to
// it (ledger_follow). The ledger is a cache of that truth, so its writes need not survive a power failure.
#ifndef SHARED_STORE_LEDGER_H
#define SHARED_STORE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/status.h"

struct ledger;

enum ledger_state {
    LEDGER_NEW,     // not issued
    LEDGER_FLYING,  // issued and not heard of since
    LEDGER_TRAINED, // in `step`
    LEDGER_ASIDE,   // quarantined
    LEDGER_LEFT,    // did not fill a step at the end of the data
};

struct ledger_entry {
    int64_t order;
    enum ledger_state state;
    int64_t step;    // TRAINED: in which, from 1; -1: not known any more
    int64_t issues;  // how often it was issued
    double changed;  // seconds since 1970
    const char *id;  // of the group
    const char *who; // ASIDE: the stage
    const char *why; // ASIDE: its reason
};

// What the run was begun with: a ledger goes on with the same data alone.
struct ledger_plan {
    uint64_t data;    // a hash of the data and of all settings that make its groups
    int64_t per_step; // groups a step
};

// Opens or makes the ledger file. DATAERR when it belongs to other data or group sizes, UNAVAILABLE when the disk
// refuses.
status ledger_open(struct ledger **out, const char *path, const struct ledger_plan *plan);

// NULL is fine; sets *ledger to NULL.
void ledger_close(struct ledger **ledger);

// The order below which everything is settled: trained, aside or left.
int64_t ledger_settled(const struct ledger *ledger);

// The order that was never issued (since the last ledger_follow), and all above it.
int64_t ledger_fresh(const struct ledger *ledger);

// Groups in flight.
int64_t ledger_flying(const struct ledger *ledger);

// How many are in that state.
int64_t ledger_count(const struct ledger *ledger, enum ledger_state state);

// The state of an order.
enum ledger_state ledger_state_of(const struct ledger *ledger, int64_t order);

// Marks an order as in flight (once more).
status ledger_issue(struct ledger *ledger, int64_t order, const char *id);

// Settles an order: `entry` with state TRAINED, ASIDE or LEFT. *news (may be NULL): it was not settled before.
status ledger_settle(struct ledger *ledger, const struct ledger_entry *entry, bool *news);

// Optim stands at `order`: what is below and was in flight is trained; what is from it on is forgotten.
status ledger_follow(struct ledger *ledger, int64_t order);

// Calls visit for every entry from `first` on. END from visit ends the walk with OK.
status ledger_each(struct ledger *ledger, int64_t first,
                   status (*visit)(void *context, const struct ledger_entry *entry), void *context);

#endif
