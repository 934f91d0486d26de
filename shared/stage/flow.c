#include "shared/stage/flow.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/group/group.h"

enum {
    READERS_MAX = 64,
    CREDITS_MAX = 1 << 20,
    LOSSES_MAX = 4, // a group that was lost so often is quarantined
    SYNC_MS = 1000  // how long a new process waits for its readers to say what they have
};

// A replica of the stage before this one, kept at the peer's tag.
struct upstream {
    struct upstream *next;
    int64_t available; // groups that it announced
    int credits;       // CREDITs that it has not answered
    bool told;         // it knows what this process has; nothing is asked of it before
};

// A replica of a stage that reads from this one; remembered when it is gone.
struct taker {
    struct taker *next;
    size_t reader;
    int replica;
    int64_t life; // of its last process; 0: that one ended in order
    bool synced;  // it has said what it has
    bool refused; // its CREDIT was answered with EMPTY though groups were there
};

// A group that has come.
struct queued_group {
    int64_t seq;
    struct origins origins;
    struct buf data;
};

// A group that the worker has.
struct group_in_hand {
    int64_t seq;
    struct origins origins;
    bool stale; // of an earlier issue
};

struct flow {
    const struct node_config *config;
    struct wire *wire;
    bool greedy, announce;
    int64_t issue, settled; // the present issue; every seq below is settled
    struct outbox outbox;
    struct queued_group *inbox;
    size_t inbox_count;
    struct group_in_hand *held;
    size_t held_count;
    struct group_in_hand *finished; // they go no further from here; the stage before this one is not told yet
    size_t finished_count;
    int capacity, credits; // groups that the stage could hold; CREDITs that are not answered
    int64_t dropped;
    struct upstream *upstreams;
    struct taker *takers;
    int64_t opened_at;
    bool synced;        // this process knows what its readers have
    char *reject;       // why an upstream that sent nonsense is to be disconnected
    int reject_replica; // which
};

status flow_new(struct flow **out, const struct node_config *config, struct wire *wire, bool greedy) {
    struct flow *flow;
    *out = NULL;
    if (config->reader_count > READERS_MAX)
        return fail(USAGE, "more than %d stages read from %s", READERS_MAX, config->stage);
    NEW(&flow, 1);
    flow->config = config;
    flow->wire = wire;
    flow->greedy = greedy;
    flow->outbox.reader_count = config->reader_count;
    flow->opened_at = wire_now_ms(wire);
    flow->synced = config->reader_count == 0;
    *out = flow;
    return OK;
}

static void flow_clear_inbox(struct flow *flow) {
    for (size_t i = 0; i < flow->inbox_count; i++) buf_release(&flow->inbox[i].data);
    flow->inbox_count = 0;
}

void flow_free(struct flow **pointer) {
    struct flow *flow = *pointer;
    if (!flow) return;
    while (flow->upstreams) {
        struct upstream *next = flow->upstreams->next;
        free(flow->upstreams);
        flow->upstreams = next;
    }
    while (flow->takers) {
        struct taker *next = flow->takers->next;
        free(flow->takers);
        flow->takers = next;
    }
    flow_clear_inbox(flow);
    outbox_release(&flow->outbox);
    free(flow->inbox);
    free(flow->held);
    free(flow->finished);
    free(flow->reject);
    free(flow);
    *pointer = NULL;
}

// ---- what this process has ----

static struct group_in_hand *flow_find_held(struct flow *flow, int64_t seq) {
    for (size_t i = 0; i < flow->held_count; i++)
        if (flow->held[i].seq == seq && !flow->held[i].stale) return &flow->held[i];
    return NULL;
}

static struct queued_group *flow_find_queued(struct flow *flow, int64_t seq) {
    for (size_t i = 0; i < flow->inbox_count; i++)
        if (flow->inbox[i].seq == seq) return &flow->inbox[i];
    return NULL;
}

// A group goes no further from here.
static void flow_end_group(struct flow *flow, int64_t seq, const struct origins *origins) {
    RESIZE(&flow->finished, flow->finished_count + 1);
    flow->finished[flow->finished_count++] = (struct group_in_hand){.seq = seq, .origins = *origins};
}

void flow_set_issue(struct flow *flow, int64_t issue, int64_t settled) {
    if (issue < flow->issue || (issue == flow->issue && settled <= flow->settled)) return;
    if (issue > flow->issue) {
        flow_clear_inbox(flow);
        for (size_t i = 0; i < flow->held_count; i++) flow->held[i].stale = true;
        flow->finished_count = 0;
        outbox_release(&flow->outbox);
    }
    flow->issue = issue;
    flow->settled = settled;
    for (size_t i = 0; i < flow->outbox.count && flow->outbox.entries[i]->seq < settled; i++) {
        const struct outbox_entry *entry = flow->outbox.entries[i];
        if (entry->data.size && !outbox_passed(&flow->outbox, entry)) flow_end_group(flow, entry->seq, &entry->origins);
    }
    outbox_settle_below(&flow->outbox, settled);
}

// ---- the worker ----

void flow_set_capacity(struct flow *flow, int capacity) {
    flow->capacity = capacity;
}

int64_t flow_issue(const struct flow *flow) {
    return flow->issue;
}

int64_t flow_settled(const struct flow *flow) {
    return flow->settled;
}

bool flow_has(const struct flow *flow) {
    return flow->inbox_count > 0;
}

bool flow_take(struct flow *flow, int64_t *seq, struct buf *data) {
    size_t first = 0;
    if (!flow->inbox_count) return false;
    RESIZE(&flow->held, flow->held_count + 1);
    for (size_t i = 1; i < flow->inbox_count; i++)
        if (flow->inbox[i].seq < flow->inbox[first].seq) first = i;
    const struct queued_group taken = flow->inbox[first];
    flow->held[flow->held_count++] = (struct group_in_hand){.seq = taken.seq, .origins = taken.origins};
    flow->inbox[first] = flow->inbox[--flow->inbox_count];
    flow->capacity--;
    *seq = taken.seq;
    *data = taken.data;
    return true;
}

// Ends the oldest hold of a seq: the worker had it before it got one of a later issue.
static bool flow_end_hold(struct flow *flow, int64_t seq, struct group_in_hand *ended) {
    size_t at = flow->held_count;
    for (size_t i = 0; i < flow->held_count; i++)
        if (flow->held[i].seq == seq && (at == flow->held_count || flow->held[i].stale)) at = i;
    if (at == flow->held_count) return false;
    *ended = flow->held[at];
    flow->held[at] = flow->held[--flow->held_count];
    return true;
}

void flow_finish(struct flow *flow, int64_t seq, struct buf *data) {
    struct group_in_hand ended;
    if (!flow_end_hold(flow, seq, &ended) || ended.stale) {
        buf_release(data);
        return;
    }
    if (flow->config->reader_count && seq >= flow->settled) {
        flow->announce = true;
        outbox_add(&flow->outbox, seq, &ended.origins, data);
        return;
    }
    buf_release(data);
    flow_end_group(flow, seq, &ended.origins);
}

void flow_forget(struct flow *flow, int64_t seq) {
    struct group_in_hand ended;
    if (!flow_end_hold(flow, seq, &ended)) return;
    flow->dropped++;
    if (!ended.stale) flow_end_group(flow, seq, &ended.origins);
}

void flow_reject(struct flow *flow, int64_t seq, const char *reason) {
    struct group_in_hand ended;
    if (!flow_end_hold(flow, seq, &ended) || flow->reject || !ended.origins.count) return;
    flow->reject = mem_strdup(reason);
    flow->reject_replica = ended.origins.replicas[0];
}

void flow_put(struct flow *flow, int64_t seq, struct buf *data) {
    const struct origins none = {0};
    flow->announce = true;
    if (flow->config->reader_count) {
        outbox_add(&flow->outbox, seq, &none, data);
        return;
    }
    buf_release(data);
}

// ---- to the stage before ----

static struct upstream *flow_upstream(struct wire_peer *peer) {
    return peer->tag;
}

// Tells the replicas from which the group came, or if none of them is there all others, that this process has it, and
// whether it has given it on (HAVE); or that it cannot give it again (RETURNED).
static status flow_tell_origins(struct flow *flow, const struct wire_message *message, const struct origins *origins) {
    bool told = false;
    for (int everyone = 0; everyone < 2 && !told; everyone++)
        for (struct wire_peer *peer = wire_first_peer(flow->wire, "flow", false); peer; peer = wire_next_peer(peer)) {
            if (!everyone && !origins_include(origins, peer->replica)) continue;
            TRY(wire_send(flow->wire, peer, message, NULL));
            told = true;
        }
    return OK;
}

static struct wire_message flow_have(const struct flow *flow, int64_t seq, bool passed) {
    return (struct wire_message){.kind = MESSAGE_HAVE, .seq = seq, .issue = flow->issue, .passed = passed};
}

// Whether the replica should be told of a group with these origins: it may give it again.
static bool flow_concerns(const struct flow *flow, const struct origins *origins, int replica) {
    if (origins_include(origins, replica)) return true;
    for (struct wire_peer *peer = wire_first_peer(flow->wire, "flow", false); peer; peer = wire_next_peer(peer))
        if (origins_include(origins, peer->replica)) return false;
    return true;
}

// Tells a replica of the stage before this one which of its groups this process has.
static status flow_tell_all(struct flow *flow, struct wire_peer *peer) {
    const struct wire_message synced = {.kind = MESSAGE_SYNCED};
    const int replica = peer->replica;
    struct wire_message have;
    for (size_t i = 0; i < flow->held_count; i++) {
        have = flow_have(flow, flow->held[i].seq, false);
        if (!flow->held[i].stale && flow_concerns(flow, &flow->held[i].origins, replica))
            TRY(wire_send(flow->wire, peer, &have, NULL));
    }
    for (size_t i = 0; i < flow->inbox_count; i++) {
        have = flow_have(flow, flow->inbox[i].seq, false);
        if (flow_concerns(flow, &flow->inbox[i].origins, replica)) TRY(wire_send(flow->wire, peer, &have, NULL));
    }
    for (size_t i = 0; i < flow->outbox.count; i++) {
        const struct outbox_entry *entry = flow->outbox.entries[i];
        have = flow_have(flow, entry->seq, outbox_passed(&flow->outbox, entry));
        if (flow_concerns(flow, &entry->origins, replica)) TRY(wire_send(flow->wire, peer, &have, NULL));
    }
    flow_upstream(peer)->told = true;
    return wire_send(flow->wire, peer, &synced, NULL);
}

static status flow_accept_group(struct flow *flow, struct wire_peer *peer, const struct wire_message *message) {
    const int64_t seq = message->seq;
    const int replica = peer->replica;
    flow_set_issue(flow, message->issue, message->settled);
    struct group_in_hand *held = flow_find_held(flow, seq);
    struct queued_group *queued = flow_find_queued(flow, seq);
    struct outbox_entry *entry = outbox_find(&flow->outbox, seq);
    if (entry && !entry->data.size && !outbox_passed(&flow->outbox, entry)) entry = NULL; // a reader lacks it
    const bool outdated = message->issue < flow->issue || seq < flow->settled;
    if (held || queued || entry || outdated) {
        const struct wire_message have = flow_have(flow, seq, true);
        flow->dropped++;
        if (message->issue < flow->issue) return OK;
        // Its giver does not know yet that it is settled.
        if (outdated) return wire_send(flow->wire, peer, &have, NULL);
        origins_add(held ? &held->origins : queued ? &queued->origins : &entry->origins, replica);
        return entry && outbox_passed(&flow->outbox, entry) ? wire_send(flow->wire, peer, &have, NULL) : OK;
    }
    struct queued_group added = {.seq = seq};
    origins_add(&added.origins, replica);
    RESIZE(&flow->inbox, flow->inbox_count + 1);
    buf_append(&added.data, message->bulk, message->bulk_size);
    flow->inbox[flow->inbox_count++] = added;
    return OK;
}

static status flow_on_upstream(struct flow *flow, const struct wire_event *event) {
    struct wire_peer *peer = event->peer;
    const struct wire_message *message = &event->message;
    struct upstream *upstream = flow_upstream(peer);
    if (!upstream) {
        NEW(&upstream, 1);
        upstream->next = flow->upstreams;
        flow->upstreams = upstream;
        peer->tag = upstream;
    }
    if (event->kind == WIRE_GONE) // the others may have to give its groups
        for (struct upstream *other = flow->upstreams; other; other = other->next) other->told = false;
    if (event->kind != WIRE_MESSAGE) { // what it was asked for before will not come
        flow->credits -= upstream->credits;
        assert(flow->credits >= 0);
        *upstream = (struct upstream){.next = upstream->next};
        return OK;
    }
    switch (message->kind) {
    case MESSAGE_AVAILABLE:
        flow_set_issue(flow, message->issue, message->settled);
        upstream->available = message->count;
        return OK;
    case MESSAGE_GROUP:
    case MESSAGE_EMPTY:
        if (!upstream->credits) return wire_reject(flow->wire, peer, "a group that was not asked for");
        upstream->credits--;
        flow->credits--;
        assert(flow->credits >= 0);
        if (message->kind == MESSAGE_GROUP) return flow_accept_group(flow, peer, message);
        upstream->available = 0;
        return OK;
    default:
        return wire_reject(flow->wire, peer, "not a message of a giver of groups");
    }
}

// ---- to the stages that read from this one ----

// The number of a stage that reads from this one, -1 for another stage.
static int flow_reader(const struct flow *flow, const char *stage) {
    for (size_t i = 0; i < flow->config->reader_count; i++)
        if (!strcmp(flow->config->readers[i], stage)) return (int)i;
    return -1;
}

static void flow_find_taker(struct flow *flow, size_t reader, int replica, struct taker **out) {
    struct taker *taker = flow->takers;
    while (taker && (taker->reader != reader || taker->replica != replica)) taker = taker->next;
    if (!taker) {
        NEW(&taker, 1);
        *taker = (struct taker){.next = flow->takers, .reader = reader, .replica = replica};
        flow->takers = taker;
    }
    *out = taker;
}

// Quarantines a group that every process was lost with.
static status flow_quarantine(struct flow *flow, struct outbox_entry *entry, const struct taker *taker) {
    const char *stage = flow->config->readers[taker->reader];
    struct group *group = NULL;
    struct buf data = {0};
    status result = group_from_msgpack(&group, entry->data.data, entry->data.size);
    if (result == OK && !group->quarantine.present)
        group_quarantine(group, stage, "lost %d times; last in the hands of %s-%d", LOSSES_MAX, stage, taker->replica);
    if (result == OK) group_to_msgpack(group, &data);
    if (result == OK) {
        log_info("quarantined group %lld: lost %d times; last in the hands of %s-%d", (long long)entry->seq, LOSSES_MAX,
                 stage, taker->replica);
        buf_release(&entry->data);
        entry->data = data;
        data = (struct buf){0};
        entry->leases[taker->reader].losses = 0;
    }
    buf_release(&data);
    group_free(&group);
    return result;
}

// Tells the user of groups that a replica has lost, with another loss before.
static status flow_notice(struct flow *flow, const struct taker *taker, const struct lost_again *lost) {
    char reason[160], others[32] = "";
    if (lost->count > 1) snprintf(others, sizeof others, " and %zu more", lost->count - 1);
    snprintf(reason, sizeof reason,
             "replica %d was lost with group %lld%s for the second time; given out alone from now on", taker->replica,
             (long long)lost->first, others);
    const struct wire_message notice = {.kind = MESSAGE_NOTICE,
                                        .name = flow->config->readers[taker->reader],
                                        .replica = taker->replica,
                                        .machine = "",
                                        .reason = reason};
    log_info("%s: %s", notice.name, reason);
    for (struct wire_peer *peer = wire_first_peer(flow->wire, "report", false); peer; peer = wire_next_peer(peer))
        TRY(wire_send(flow->wire, peer, &notice, NULL));
    return OK;
}

// Handles what a replica of a reader has lost.
static status flow_lose(struct flow *flow, const struct taker *taker, enum outbox_loss loss) {
    struct outbox_entry *entry;
    size_t reader;
    const struct lost_again again =
        outbox_lose(&flow->outbox, taker->reader, taker->replica, loss, wire_now_ms(flow->wire));
    if (again.count) TRY(flow_notice(flow, taker, &again));
    flow->announce = true;
    while ((entry = outbox_find_lost(&flow->outbox, LOSSES_MAX, &reader))) {
        assert(reader == taker->reader);
        TRY(flow_quarantine(flow, entry, taker));
    }
    return OK;
}

// Returns the ghosts that nobody has to every replica of the stage before this one: all were told when the ghost was
// made, whoever has given a copy of the group since then.
static status flow_return_orphans(struct flow *flow) {
    struct wire_message returned = {.kind = MESSAGE_RETURNED, .issue = flow->issue};
    const struct origins none = {0};
    while (outbox_remove_orphan(&flow->outbox, &returned.seq)) TRY(flow_tell_origins(flow, &returned, &none));
    return OK;
}

// Tells a replica of a reader how many groups wait for it.
static status flow_announce(struct flow *flow, struct wire_peer *peer) {
    const int reader = flow_reader(flow, peer->name);
    if (reader < 0) return OK;
    const struct wire_message available = {.kind = MESSAGE_AVAILABLE,
                                           .count = outbox_available(&flow->outbox, reader),
                                           .issue = flow->issue,
                                           .settled = flow->settled};
    return available.count ? wire_send(flow->wire, peer, &available, NULL) : OK;
}

// Answers a CREDIT with a group or with EMPTY.
static status flow_answer_credit(struct flow *flow, struct wire_peer *peer, struct taker *taker) {
    struct outbox_entry *entry = outbox_next(&flow->outbox, taker->reader, taker->replica);
    struct wire_message answer = {.kind = MESSAGE_EMPTY, .issue = flow->issue, .settled = flow->settled};
    bool gone;
    if (entry) {
        answer.kind = MESSAGE_GROUP;
        answer.seq = entry->seq;
        answer.bulk = entry->data.data;
        answer.bulk_size = entry->data.size;
    }
    TRY(wire_send(flow->wire, peer, &answer, &gone));
    taker->refused = !entry && outbox_available(&flow->outbox, (int)taker->reader) > 0;
    if (!entry || gone) return OK;
    outbox_give(entry, taker->reader, taker->replica);
    const struct wire_message have = flow_have(flow, entry->seq, true);
    return outbox_passed(&flow->outbox, entry) && entry->origins.count ? flow_tell_origins(flow, &have, &entry->origins)
                                                                       : OK;
}

static status flow_on_claim(struct flow *flow, const struct taker *taker, const struct wire_message *message) {
    const bool passed = message->passed == 1;
    const struct origins none = {0};
    bool ghost;
    if (*flow->config->from) flow_set_issue(flow, message->issue, 0); // the source knows better
    if (message->issue < flow->issue || message->seq < flow->settled) return OK;
    outbox_claim(&flow->outbox, message->seq, taker->reader, taker->replica, passed, &ghost);
    if (taker->refused) flow->announce = true;
    const struct wire_message have = flow_have(flow, message->seq, true);
    return ghost && outbox_passed(&flow->outbox, outbox_find(&flow->outbox, message->seq))
               ? flow_tell_origins(flow, &have, &none)
               : OK;
}

static status flow_on_reader(struct flow *flow, const struct wire_event *event) {
    struct wire_peer *peer = event->peer;
    const struct wire_message *message = &event->message;
    const int reader = flow_reader(flow, peer->name);
    // Optim has the groups of a whole step, so its end says nothing about any of them.
    const bool counts = strcmp(peer->name, "optim") != 0;
    struct taker *taker;
    if (reader < 0) return wire_reject(flow->wire, peer, "it does not read from this stage");
    flow_find_taker(flow, (size_t)reader, peer->replica, &taker);
    if (event->kind == WIRE_GONE) {
        // It may have connected again before the old connection was found dead.
        for (struct wire_peer *other = wire_first_peer(flow->wire, "flow", true); other; other = wire_next_peer(other))
            if (other != peer && other->replica == taker->replica && flow_reader(flow, other->name) == reader)
                return OK;
        taker->synced = false;
        if (event->orderly) taker->life = 0;
        return flow_lose(flow, taker, !event->restarted ? LOSS_GONE : counts ? LOSS_CRASHED : LOSS_RESTARTED);
    }
    if (event->kind == WIRE_JOINED) {
        // The connection of a process that was killed is mostly lost long before the next process is there.
        const bool restarted = taker->life && taker->life != peer->life;
        taker->life = peer->life;
        taker->synced = taker->refused = false;
        if (restarted) TRY(flow_lose(flow, taker, counts ? LOSS_CRASHED : LOSS_RESTARTED));
        TRY(flow_lose(flow, taker, LOSS_BROKEN));
        return flow_announce(flow, peer);
    }
    switch (message->kind) {
    case MESSAGE_CREDIT:
        return flow_answer_credit(flow, peer, taker);
    case MESSAGE_HAVE:
        return flow_on_claim(flow, taker, message);
    case MESSAGE_SYNCED:
        taker->synced = true;
        return flow_lose(flow, taker, LOSS_SYNCED);
    case MESSAGE_RETURNED:
        if (message->issue != flow->issue) return OK;
        outbox_return(&flow->outbox, message->seq, taker->reader, taker->replica);
        flow->announce = true;
        return OK;
    default:
        return wire_reject(flow->wire, peer, "not a message of a reader");
    }
}

// ---- the I/O thread ----

status flow_on_event(struct flow *flow, const struct wire_event *event) {
    return event->peer->client ? flow_on_reader(flow, event) : flow_on_upstream(flow, event);
}

// Whether every replica of every reader has said what it has.
static bool flow_readers_synced(const struct flow *flow) {
    size_t expected = 0, synced = 0;
    for (size_t i = 0; i < flow->config->endpoint_count; i++)
        expected += flow_reader(flow, flow->config->endpoints[i].stage) >= 0;
    for (const struct taker *taker = flow->takers; taker; taker = taker->next) synced += taker->synced;
    return synced >= expected;
}

// Sends a CREDIT for each group that there is capacity for, one to each replica in turn.
static status flow_send_credits(struct flow *flow) {
    const struct wire_message credit = {.kind = MESSAGE_CREDIT};
    int wanted = (flow->greedy ? CREDITS_MAX : flow->capacity - (int)flow->inbox_count) - flow->credits;
    for (bool sent = true; sent && wanted > 0;) {
        sent = false;
        for (struct wire_peer *peer = wire_first_peer(flow->wire, "flow", false); peer && wanted > 0;
             peer = wire_next_peer(peer)) {
            struct upstream *upstream = flow_upstream(peer);
            bool gone;
            if (!upstream || !upstream->told || upstream->available <= 0) continue;
            TRY(wire_send(flow->wire, peer, &credit, &gone));
            if (gone) continue;
            upstream->available--;
            upstream->credits++;
            flow->credits++;
            wanted--;
            sent = true;
        }
    }
    return OK;
}

// Tells the stage before this one of the groups that go no further: the last stage has finished them, or they are
// settled. Otherwise a group that was lost twice would block others for ever: who has it gets no other.
static status flow_tell_finished(struct flow *flow) {
    for (size_t i = 0; i < flow->finished_count; i++) {
        const struct wire_message have = flow_have(flow, flow->finished[i].seq, true);
        TRY(flow_tell_origins(flow, &have, &flow->finished[i].origins));
    }
    flow->finished_count = 0;
    return OK;
}

status flow_send_pending(struct flow *flow) {
    const int64_t now = wire_now_ms(flow->wire);
    if (outbox_release_due(&flow->outbox, now)) flow->announce = true;
    TRY(flow_return_orphans(flow));
    TRY(flow_tell_finished(flow));
    flow->synced = flow->synced || now - flow->opened_at >= SYNC_MS || flow_readers_synced(flow);
    for (struct wire_peer *peer = wire_first_peer(flow->wire, "flow", false); peer; peer = wire_next_peer(peer)) {
        struct upstream *upstream = flow_upstream(peer);
        if (flow->synced && upstream && !upstream->told) TRY(flow_tell_all(flow, peer));
        if (!flow->reject || peer->replica != flow->reject_replica) continue;
        TRY(wire_reject(flow->wire, peer, flow->reject));
    }
    free(flow->reject);
    flow->reject = NULL;
    if (flow->announce)
        for (struct wire_peer *peer = wire_first_peer(flow->wire, "flow", true); peer; peer = wire_next_peer(peer))
            TRY(flow_announce(flow, peer));
    flow->announce = false;
    return flow_send_credits(flow);
}

void flow_report(const struct flow *flow, struct message_status *counters) {
    counters->held = (int64_t)(flow->held_count + flow->inbox_count);
    counters->waiting = outbox_available(&flow->outbox, -1);
    counters->dropped = flow->dropped;
    counters->given_seq = -1;
    counters->given_stage = "";
    for (size_t i = 0; i < flow->outbox.count && counters->given_seq < 0; i++) {
        const struct outbox_entry *entry = flow->outbox.entries[i];
        for (size_t k = 0; k < flow->outbox.reader_count && counters->given_seq < 0; k++) {
            const struct lease *lease = &entry->leases[k];
            if (lease->state == LEASE_PASSED) continue;
            counters->given_seq = entry->seq;
            counters->given_stage = flow->config->readers[k];
            counters->given_replica = lease->state == LEASE_GIVEN ? lease->replica : 0;
        }
    }
}
