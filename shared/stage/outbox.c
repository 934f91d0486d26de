#include "shared/stage/outbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALONE_LOSSES = 2 }; // a group that was lost so often is given out alone

// ---- leases ----

// The states, and L: FREE, and counted as a loss.
enum {
    F = LEASE_FREE,
    G = LEASE_GIVEN,
    GA = LEASE_GIVEN_ASKED,
    GD = LEASE_GIVEN_DUE,
    P = LEASE_PASSED,
    PA = LEASE_PASSED_ASKED,
    PD = LEASE_PASSED_DUE,
    L
};

// clang-format off
static const uint8_t lease_rules[LEASE_EVENTS][LEASE_STATES] = {
    // in the state        F  G   GA  GD  P   PA  PD
    [LEASE_SENT]        = {G, G,  GA, GD, P,  PA, PD},
    [LEASE_HAVE]        = {G, G,  G,  G,  G,  G,  G},
    [LEASE_PASS]        = {P, P,  P,  P,  P,  P,  P},
    [LEASE_GONE]        = {F, GD, GD, GD, PD, PD, PD},
    [LEASE_RESTARTED]   = {F, L,  L,  L,  PA, PA, PA},
    [LEASE_RECONNECTED] = {F, GA, GA, GA, PA, PA, PA},
    [LEASE_SYNCED]      = {F, G,  F,  GD, P,  F,  PD},
    [LEASE_EXPIRED]     = {F, G,  GA, F,  P,  PA, F},
};
// clang-format on

// A replica that is gone may have lost its connection only, and what it had passed on is probably safe.
static const uint16_t lease_after_ms[LEASE_STATES] = {[LEASE_GIVEN_DUE] = 300, [LEASE_PASSED_DUE] = 5000};

struct lease_rule lease_rule_of(enum lease_event event, enum lease_state state) {
    const uint8_t rule = lease_rules[event][state];
    const enum lease_state next = rule == L ? LEASE_FREE : (enum lease_state)rule;
    return (struct lease_rule){.next = next, .loss = rule == L, .after_ms = lease_after_ms[next]};
}

// Applies an event that is about this replica.
static void lease_apply(struct lease *lease, enum lease_event event, int replica, bool blamed, int64_t now) {
    const struct lease_rule rule = lease_rule_of(event, lease->state);
    // If two replicas have a group, the one that is further counts.
    const bool further = event == LEASE_PASS && lease->state < LEASE_PASSED;
    const bool own = lease->state == LEASE_FREE || lease->replica == replica || further;
    const bool known = event == LEASE_HAVE || event == LEASE_PASS || event == LEASE_RESTARTED || event == LEASE_SYNCED;
    if (blamed && ((own && rule.loss) || (event == LEASE_RESTARTED && lease->suspect == replica))) lease->losses++;
    if (known && lease->suspect == replica) lease->suspect = 0;
    if (!own) return;
    lease->state = rule.next;
    lease->replica = replica;
    lease->due_at = now + rule.after_ms;
    if (event == LEASE_PASS) lease->losses = lease->suspect = 0;
    if (event == LEASE_GONE && lease->state == LEASE_GIVEN_DUE) lease->suspect = replica;
}

// ---- origins ----

void origins_add(struct origins *origins, int replica) {
    if (origins_include(origins, replica)) return;
    if (origins->count < MAX_ORIGINS) origins->replicas[origins->count] = replica;
    origins->count++;
}

bool origins_include(const struct origins *origins, int replica) {
    for (int i = 0; i < origins->count && i < MAX_ORIGINS; i++)
        if (origins->replicas[i] == replica) return true;
    return origins->count > MAX_ORIGINS;
}

// ---- the list ----

// The index of the first entry that is not below seq.
static size_t outbox_position(const struct outbox *outbox, int64_t seq) {
    size_t low = 0, high = outbox->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (outbox->entries[middle]->seq < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct outbox_entry *outbox_find(const struct outbox *outbox, int64_t seq) {
    const size_t at = outbox_position(outbox, seq);
    return at < outbox->count && outbox->entries[at]->seq == seq ? outbox->entries[at] : NULL;
}

// Returns the group's entry; one that is added has no data.
static struct outbox_entry *outbox_entry_of(struct outbox *outbox, int64_t seq) {
    const size_t at = outbox_position(outbox, seq);
    struct outbox_entry *entry;
    if (at < outbox->count && outbox->entries[at]->seq == seq) return outbox->entries[at];
    mem_new(&entry, 1, sizeof *entry + outbox->reader_count * sizeof *entry->leases);
    assert(outbox->reader_count > 0);
    RESIZE(&outbox->entries, outbox->count + 1);
    memmove(&outbox->entries[at + 1], &outbox->entries[at], (outbox->count - at) * sizeof *outbox->entries);
    outbox->entries[at] = entry;
    outbox->count++;
    entry->seq = seq;
    return entry;
}

// Removes the first entries.
static void outbox_remove(struct outbox *outbox, size_t count) {
    assert(count <= outbox->count);
    if (!count) return; // there may be no array yet
    for (size_t i = 0; i < count; i++) {
        buf_release(&outbox->entries[i]->data);
        free(outbox->entries[i]);
    }
    outbox->count -= count;
    memmove(outbox->entries, outbox->entries + count, outbox->count * sizeof *outbox->entries);
}

struct outbox_entry *outbox_add(struct outbox *outbox, int64_t seq, const struct origins *origins, struct buf *data) {
    struct outbox_entry *entry = outbox_entry_of(outbox, seq);
    if (!entry->data.size) {
        entry->data = *data;
        entry->origins = *origins;
        *data = (struct buf){0};
    }
    buf_release(data);
    return entry;
}

void outbox_settle_below(struct outbox *outbox, int64_t seq) {
    outbox_remove(outbox, outbox_position(outbox, seq));
}

int64_t outbox_available(const struct outbox *outbox, int reader) {
    int64_t count = 0;
    for (size_t i = 0; i < outbox->count; i++) {
        const struct outbox_entry *entry = outbox->entries[i];
        bool available = false;
        for (size_t k = 0; k < outbox->reader_count; k++)
            if (reader < 0 || (size_t)reader == k) available |= entry->leases[k].state == LEASE_FREE;
        count += available && entry->data.size;
    }
    return count;
}

void outbox_release(struct outbox *outbox) {
    outbox_remove(outbox, outbox->count);
    free(outbox->entries);
    outbox->entries = NULL;
}

// ---- giving ----

struct outbox_entry *outbox_next(const struct outbox *outbox, size_t reader, int replica) {
    struct outbox_entry *first = NULL, *first_alone = NULL;
    bool has_any = false;
    for (size_t i = 0; i < outbox->count; i++) {
        struct outbox_entry *entry = outbox->entries[i];
        const struct lease *lease = &entry->leases[reader];
        const bool alone = lease->losses >= ALONE_LOSSES;
        if (lease->state != LEASE_FREE && lease->state < LEASE_PASSED && lease->replica == replica) {
            if (alone) return NULL;
            has_any = true;
        }
        if (lease->state != LEASE_FREE || !entry->data.size) continue;
        if (alone && !first_alone) first_alone = entry;
        if (!alone && !first) first = entry;
    }
    return !first_alone ? first : has_any ? NULL : first_alone;
}

void outbox_give(struct outbox_entry *entry, size_t reader, int replica) {
    assert(entry->leases[reader].state == LEASE_FREE && entry->data.size);
    lease_apply(&entry->leases[reader], LEASE_SENT, replica, false, 0);
}

bool outbox_passed(const struct outbox *outbox, const struct outbox_entry *entry) {
    bool passed = true;
    for (size_t i = 0; i < outbox->reader_count; i++) passed &= entry->leases[i].state != LEASE_FREE;
    return passed;
}

// ---- what happens to the readers ----

struct outbox_entry *outbox_claim(struct outbox *outbox, int64_t seq, size_t reader, int replica, bool passed) {
    struct outbox_entry *entry = outbox_entry_of(outbox, seq);
    lease_apply(&entry->leases[reader], passed ? LEASE_PASS : LEASE_HAVE, replica, false, 0);
    return entry;
}

struct lost_again outbox_apply(struct outbox *outbox, size_t reader, int replica, enum lease_event event, bool blamed,
                               int64_t now) {
    struct lost_again again = {0};
    for (size_t i = 0; i < outbox->count; i++) {
        struct lease *lease = &outbox->entries[i]->leases[reader];
        const int before = lease->losses;
        lease_apply(lease, event, replica, blamed && outbox->entries[i]->data.size, now);
        if (lease->losses != ALONE_LOSSES || before == ALONE_LOSSES) continue;
        if (!again.count++) again.first = outbox->entries[i]->seq;
    }
    return again;
}

bool outbox_expire(struct outbox *outbox, int64_t now) {
    bool expired = false;
    for (size_t i = 0; i < outbox->count; i++)
        for (size_t k = 0; k < outbox->reader_count; k++) {
            struct lease *lease = &outbox->entries[i]->leases[k];
            const bool due = lease->state == LEASE_GIVEN_DUE || lease->state == LEASE_PASSED_DUE;
            if (!due || lease->due_at > now) continue;
            lease_apply(lease, LEASE_EXPIRED, lease->replica, false, now);
            expired = true;
        }
    return expired;
}

struct outbox_entry *outbox_find_lost(const struct outbox *outbox, size_t reader, int losses) {
    for (size_t i = 0; i < outbox->count; i++)
        if (outbox->entries[i]->leases[reader].losses >= losses) return outbox->entries[i];
    return NULL;
}
