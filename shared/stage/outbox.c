#include "shared/stage/outbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALONE_LOSSES = 2,        // a group that was lost so often is given out alone
    GIVEN_RELEASE_MS = 300,  // after a replica is gone, for what it had
    PASSED_RELEASE_MS = 5000 // for what it had passed on
};

void origins_add(struct origins *origins, int replica) {
    if (origins_include(origins, replica)) return;
    if (origins->count < ORIGINS_MAX) origins->replicas[origins->count] = replica;
    origins->count++;
}

bool origins_include(const struct origins *origins, int replica) {
    for (int i = 0; i < origins->count && i < ORIGINS_MAX; i++)
        if (origins->replicas[i] == replica) return true;
    return origins->count > ORIGINS_MAX;
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

// Adds an entry without data.
static void outbox_insert(struct outbox *outbox, int64_t seq, struct outbox_entry **out) {
    const size_t at = outbox_position(outbox, seq);
    struct outbox_entry *entry;
    mem_new(&entry, 1, sizeof *entry + outbox->reader_count * sizeof *entry->leases);
    assert(outbox->reader_count > 0);
    RESIZE(&outbox->entries, outbox->count + 1);
    memmove(&outbox->entries[at + 1], &outbox->entries[at], (outbox->count - at) * sizeof *outbox->entries);
    outbox->entries[at] = entry;
    outbox->count++;
    entry->seq = seq;
    *out = entry;
}

static void outbox_remove(struct outbox *outbox, size_t begin, size_t end) {
    assert(begin <= end && end <= outbox->count);
    if (begin == end) return; // there may be no array yet
    for (size_t i = begin; i < end; i++) {
        buf_release(&outbox->entries[i]->data);
        free(outbox->entries[i]);
    }
    memmove(&outbox->entries[begin], &outbox->entries[end], (outbox->count - end) * sizeof *outbox->entries);
    outbox->count -= end - begin;
}

void outbox_add(struct outbox *outbox, int64_t seq, const struct origins *origins, struct buf *data) {
    struct outbox_entry *entry = outbox_find(outbox, seq);
    if (!entry) outbox_insert(outbox, seq, &entry);
    if (!entry->data.size) {
        entry->data = *data;
        entry->origins = *origins;
        *data = (struct buf){0};
    }
    buf_release(data);
}

void outbox_settle_below(struct outbox *outbox, int64_t seq) {
    outbox_remove(outbox, 0, outbox_position(outbox, seq));
}

int64_t outbox_available(const struct outbox *outbox, int reader) {
    int64_t count = 0;
    for (size_t i = 0; i < outbox->count; i++) {
        const struct outbox_entry *entry = outbox->entries[i];
        bool available = false;
        for (size_t k = 0; k < outbox->reader_count; k++)
            if (reader < 0 || (size_t)reader == k) available |= entry->leases[k].state == LEASE_AVAILABLE;
        count += available && entry->data.size;
    }
    return count;
}

void outbox_release(struct outbox *outbox) {
    outbox_remove(outbox, 0, outbox->count);
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
        if (lease->state == LEASE_GIVEN && lease->replica == replica) {
            if (alone) return NULL;
            has_any = true;
        }
        if (lease->state != LEASE_AVAILABLE || !entry->data.size) continue;
        if (alone && !first_alone) first_alone = entry;
        if (!alone && !first) first = entry;
    }
    return !first_alone ? first : has_any ? NULL : first_alone;
}

void outbox_give(struct outbox_entry *entry, size_t reader, int replica) {
    struct lease *lease = &entry->leases[reader];
    assert(lease->state == LEASE_AVAILABLE && entry->data.size);
    *lease =
        (struct lease){.state = LEASE_GIVEN, .replica = replica, .losses = lease->losses, .suspect = lease->suspect};
}

bool outbox_passed(const struct outbox *outbox, const struct outbox_entry *entry) {
    bool passed = true;
    for (size_t i = 0; i < outbox->reader_count; i++) passed &= entry->leases[i].state != LEASE_AVAILABLE;
    return passed;
}

// ---- claims and losses ----

void outbox_claim(struct outbox *outbox, int64_t seq, size_t reader, int replica, bool passed, bool *ghost) {
    struct outbox_entry *entry = outbox_find(outbox, seq);
    *ghost = !entry;
    if (!entry) outbox_insert(outbox, seq, &entry);
    struct lease *lease = &entry->leases[reader];
    // If another replica has it, too, the one that is further counts.
    const bool own = lease->state == LEASE_AVAILABLE || lease->replica == replica;
    if (!own && (!passed || lease->state == LEASE_PASSED)) return;
    *lease = (struct lease){.state = passed ? LEASE_PASSED : LEASE_GIVEN,
                            .replica = replica,
                            .losses = passed ? 0 : lease->losses,
                            .suspect = passed || lease->suspect == replica ? 0 : lease->suspect};
}

static void lease_lose(struct lease *lease, enum outbox_loss loss, int64_t now) {
    const bool passed = lease->state == LEASE_PASSED;
    bool available = false;
    lease->suspect = loss == LOSS_GONE && !passed ? lease->replica : 0;
    switch (loss) {
    case LOSS_BROKEN:
        lease->unconfirmed = true;
        lease->release_at = 0;
        return;
    case LOSS_SYNCED:
        available = lease->unconfirmed;
        break;
    case LOSS_GONE:
    case LOSS_RESTARTED:
    case LOSS_CRASHED:
        available = loss != LOSS_GONE && !passed;
        lease->losses += loss == LOSS_CRASHED && !passed;
        lease->unconfirmed = false;
        lease->release_at = now + (passed ? PASSED_RELEASE_MS : GIVEN_RELEASE_MS);
        break;
    }
    if (available) *lease = (struct lease){.losses = lease->losses};
}

// The replica was lost with the group before, which another one may have by now. Now it is known how.
static void lease_clear_suspect(struct lease *lease, enum outbox_loss loss) {
    if (loss == LOSS_BROKEN || loss == LOSS_GONE) return;
    lease->losses += loss == LOSS_CRASHED;
    lease->suspect = 0;
}

struct lost_again outbox_lose(struct outbox *outbox, size_t reader, int replica, enum outbox_loss loss, int64_t now) {
    struct lost_again again = {0};
    for (size_t i = 0; i < outbox->count; i++) {
        struct lease *lease = &outbox->entries[i]->leases[reader];
        const int before = lease->losses;
        if (lease->state != LEASE_AVAILABLE && lease->replica == replica)
            lease_lose(lease, loss, now);
        else if (lease->suspect == replica)
            lease_clear_suspect(lease, loss);
        if (lease->losses != ALONE_LOSSES || before == ALONE_LOSSES) continue;
        if (!again.count++) again.first = outbox->entries[i]->seq;
    }
    return again;
}

void outbox_return(struct outbox *outbox, int64_t seq, size_t reader, int replica) {
    struct outbox_entry *entry = outbox_find(outbox, seq);
    struct lease *lease = entry ? &entry->leases[reader] : NULL;
    if (lease && lease->state != LEASE_AVAILABLE && lease->replica == replica)
        *lease = (struct lease){.losses = lease->losses};
}

bool outbox_release_due(struct outbox *outbox, int64_t now) {
    bool released = false;
    for (size_t i = 0; i < outbox->count; i++)
        for (size_t k = 0; k < outbox->reader_count; k++) {
            struct lease *lease = &outbox->entries[i]->leases[k];
            if (!lease->release_at || lease->release_at > now) continue;
            *lease = (struct lease){.losses = lease->losses, .suspect = lease->suspect};
            released = true;
        }
    return released;
}

bool outbox_remove_orphan(struct outbox *outbox, int64_t *seq) {
    for (size_t i = 0; i < outbox->count; i++) {
        const struct outbox_entry *entry = outbox->entries[i];
        bool held = entry->data.size > 0;
        for (size_t k = 0; k < outbox->reader_count; k++) held |= entry->leases[k].state != LEASE_AVAILABLE;
        if (held) continue;
        *seq = entry->seq;
        outbox_remove(outbox, i, i + 1);
        return true;
    }
    return false;
}

struct outbox_entry *outbox_find_lost(const struct outbox *outbox, int losses, size_t *reader) {
    for (size_t i = 0; i < outbox->count; i++)
        for (size_t k = 0; k < outbox->reader_count; k++) {
            *reader = k;
            if (outbox->entries[i]->leases[k].losses >= losses) return outbox->entries[i];
        }
    return NULL;
}
