#include "shared/stage/flow.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/config/stage_kinds.h"
#include "shared/group/group.h"

enum {
    MAX_READERS = 64,
    MAX_CREDITS = 1 << 20,
    UNSAID_MS = 1000,
    MAX_LOSSES = 4, // a group that was lost so often is quarantined
};

// A replica of the stage before this one, kept at the peer's tag.
struct upstream {
    struct upstream *next;
    int64_t available; // groups that it announced
    int credits;       // CREDITs that it has not answered
    bool told;         // it knows what this process has; nothing is asked of it before
};

// A replica of a stage that reads from this one, kept at the tags of its peers; remembered when it is gone.
struct downstream {
    struct downstream *next;
    size_t reader; // its stage
    int replica;
    int64_t incarnation; // of its last process; 0: that one ended in order
    bool blames;         // it has few groups at a time, so that one of them may be the cause when it is restarted
    bool refused;        // its CREDIT was answered with EMPTY though groups were there
};

status flow_new(struct flow **out, const struct node_config *config, struct wire *wire, bool greedy) {
    struct flow *flow;
    *out = NULL;
    if (config->reader_count > MAX_READERS)
        return fail(USAGE, "more than %d stages read from %s", MAX_READERS, config->stage);
    NEW(&flow, 1);
    flow->config = config;
    flow->wire = wire;
    flow->greedy = greedy;
    flow->outbox.reader_count = config->reader_count;
    flow->end = &flow->first;
    *out = flow;
    return OK;
}

// Adds a group that this process has.
static struct held_group *flow_add(struct flow *flow, int64_t seq, enum held_state state,
                                   const struct origins *origins) {
    struct held_group *held;
    NEW(&held, 1);
    *held = (struct held_group){.seq = seq, .issue = flow->issue, .state = state, .origins = *origins};
    *flow->end = held;
    flow->end = &held->next;
    return held;
}

static void flow_remove(struct flow *flow, struct held_group *held) {
    struct held_group **link = &flow->first;
    while (*link != held) link = &(*link)->next;
    *link = held->next;
    if (flow->end == &held->next) flow->end = link;
    buf_release(&held->data);
    group_free(&held->group);
    free(held);
}

void flow_free(struct flow **pointer) {
    struct flow *flow = *pointer;
    if (!flow) return;
    while (flow->upstreams) {
        struct upstream *next = flow->upstreams->next;
        free(flow->upstreams);
        flow->upstreams = next;
    }
    while (flow->downstreams) {
        struct downstream *next = flow->downstreams->next;
        free(flow->downstreams);
        flow->downstreams = next;
    }
    while (flow->first) flow_remove(flow, flow->first);
    outbox_release(&flow->outbox);
    free(flow->reject);
    free(flow);
    *pointer = NULL;
}

// ---- what this process has ----

struct held_group *flow_next(const struct flow *flow, const struct held_group *after, enum held_state state) {
    struct held_group *held = after ? after->next : flow->first;
    while (held && held->state != state) held = held->next;
    return held;
}

void flow_set_issue(struct flow *flow, int64_t issue, int64_t settled) {
    if (issue < flow->issue || (issue == flow->issue && settled <= flow->settled)) return;
    if (issue > flow->issue) {
        for (struct held_group *held = flow->first, *next; held; held = next) {
            next = held->next;
            if (held->state == HELD_QUEUED || held->state == HELD_ENDED) flow_remove(flow, held);
        }
        outbox_release(&flow->outbox);
    }
    if (!flow->unsaid_since) flow->unsaid_since = wire_now_ms(flow->wire);
    flow->issue = issue;
    flow->settled = settled;
    for (size_t i = 0; i < flow->outbox.count && flow->outbox.entries[i]->seq < settled; i++) {
        const struct outbox_entry *entry = flow->outbox.entries[i];
        if (entry->data.size && !outbox_passed(&flow->outbox, entry))
            flow_add(flow, entry->seq, HELD_ENDED, &entry->origins);
    }
    outbox_settle_below(&flow->outbox, settled);
    // A replica that got EMPTY because of a group that is given out alone may have others when that one is settled.
    for (const struct downstream *downstream = flow->downstreams; downstream; downstream = downstream->next)
        flow->announce |= downstream->refused;
}

// ---- the worker ----

struct held_group *flow_take(struct flow *flow) {
    struct held_group *first = flow_next(flow, NULL, HELD_QUEUED);
    for (struct held_group *held = first; held; held = flow_next(flow, held, HELD_QUEUED))
        if (held->seq < first->seq) first = held;
    if (!first) return NULL;
    first->state = HELD_WAITING;
    flow->capacity--;
    return first;
}

// A group goes no further from here.
static void flow_end(struct flow *flow, struct held_group *held) {
    if (held->issue < flow->issue) {
        flow_remove(flow, held);
        return;
    }
    group_free(&held->group);
    held->state = HELD_ENDED;
}

void flow_finish(struct flow *flow, struct held_group *held, struct buf *data) {
    const bool current = held->issue == flow->issue;
    if (!current || !flow->config->reader_count || held->seq < flow->settled) {
        buf_release(data);
        flow_end(flow, held);
        return;
    }
    const struct outbox_entry *entry = outbox_add(&flow->outbox, held->seq, &held->origins, data);
    flow->announce = true;
    if (outbox_passed(&flow->outbox, entry)) // its readers had it from another process of this stage
        flow_end(flow, held);
    else
        flow_remove(flow, held);
}

void flow_forget(struct flow *flow, struct held_group *held) {
    flow->dropped++;
    flow_end(flow, held);
}

void flow_reject(struct flow *flow, struct held_group *held, const char *reason) {
    if (!flow->reject) flow->reject = mem_strdup(reason);
    for (int i = 0; i < held->origins.count && i < MAX_ORIGINS; i++)
        origins_add(&flow->rejected, held->origins.replicas[i]);
    flow_remove(flow, held);
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

// Tells the replicas from which the group came, or if none of them is there all others, that this process has it, and
// whether it has given it on.
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

status flow_on_available(struct flow *flow, struct wire_peer *peer, const struct wire_message *message) {
    struct upstream *upstream = peer->tag;
    flow_set_issue(flow, message->issue, message->settled);
    upstream->available = message->count;
    return OK;
}

status flow_on_answer(struct flow *flow, struct wire_peer *peer, const struct wire_message *message) {
    struct upstream *upstream = peer->tag;
    const int64_t seq = message->seq;
    if (!upstream->credits) return fail(DATAERR, "%s was not asked for", message_name(message->kind));
    upstream->credits--;
    flow->credits--;
    assert(flow->credits >= 0);
    if (message->kind == MESSAGE_EMPTY) {
        upstream->available = 0;
        return OK;
    }
    flow_set_issue(flow, message->issue, message->settled);
    struct held_group *held = flow->first;
    while (held && (held->seq != seq || held->issue < flow->issue || held->state == HELD_ENDED)) held = held->next;
    struct outbox_entry *entry = outbox_find(&flow->outbox, seq);
    if (entry && !entry->data.size) entry = NULL; // only its readers have it
    const bool outdated = message->issue < flow->issue || seq < flow->settled;
    if (held || entry || outdated) {
        const struct wire_message have = flow_have(flow, seq, true);
        flow->dropped++;
        if (message->issue < flow->issue) return OK;
        // Its giver does not know yet that it is settled.
        if (outdated) return wire_send(flow->wire, peer, &have, NULL);
        origins_add(held ? &held->origins : &entry->origins, peer->replica);
        return entry && outbox_passed(&flow->outbox, entry) ? wire_send(flow->wire, peer, &have, NULL) : OK;
    }
    struct origins origins = {0};
    origins_add(&origins, peer->replica);
    held = flow_add(flow, seq, HELD_QUEUED, &origins);
    buf_append(&held->data, message->bulk, message->bulk_size);
    return OK;
}

// ---- to the stages that read from this one ----

// Applies what has happened to a replica of a reader to the groups that it has.
static status flow_apply(struct flow *flow, const struct downstream *downstream, enum lease_event event) {
    struct outbox_entry *entry;
    const size_t reader = downstream->reader;
    const int replica = downstream->replica;
    const char *stage = flow->config->readers[reader];
    const struct lost_again again =
        outbox_apply(&flow->outbox, reader, replica, event, downstream->blames, wire_now_ms(flow->wire));
    if (again.count) { // groups that were lost before: tells the user
        char reason[160], others[32] = "";
        if (again.count > 1) snprintf(others, sizeof others, " and %zu more", again.count - 1);
        snprintf(reason, sizeof reason,
                 "replica %d was lost with group %lld%s for the second time; given out alone from now on", replica,
                 (long long)again.first, others);
        const struct wire_message notice = {
            .kind = MESSAGE_NOTICE, .name = stage, .replica = replica, .machine = "", .reason = reason};
        log_info("%s: %s", stage, reason);
        for (struct wire_peer *peer = wire_first_peer(flow->wire, "report", false); peer; peer = wire_next_peer(peer))
            TRY(wire_send(flow->wire, peer, &notice, NULL));
    }
    flow->announce = true;
    while ((entry = outbox_find_lost(&flow->outbox, reader, MAX_LOSSES))) { // quarantines it
        struct group *group;
        if (group_from_msgpack(&group, entry->data.data, entry->data.size) != OK)
            return fail_prefix(BUG, "what this stage had sent cannot be read");
        if (!group->quarantine.present)
            group_quarantine(group, stage, "lost %d times; last held by %s-%d", MAX_LOSSES, stage, replica);
        log_info("quarantined group %lld: lost %d times; last held by %s-%d", (long long)entry->seq, MAX_LOSSES, stage,
                 replica);
        buf_clear(&entry->data);
        group_to_msgpack(group, &entry->data);
        group_free(&group);
        entry->leases[reader].losses = 0;
    }
    return OK;
}

// Answers with a group or with EMPTY.
status flow_on_credit(struct flow *flow, struct wire_peer *peer, const struct wire_message *message) {
    struct downstream *downstream = peer->tag;
    struct outbox_entry *entry = outbox_next(&flow->outbox, downstream->reader, downstream->replica);
    struct wire_message answer = {.kind = MESSAGE_EMPTY, .issue = flow->issue, .settled = flow->settled};
    bool gone;
    (void)message;
    if (entry) {
        answer.kind = MESSAGE_GROUP;
        answer.seq = entry->seq;
        answer.bulk = entry->data.data;
        answer.bulk_size = entry->data.size;
    }
    TRY(wire_send(flow->wire, peer, &answer, &gone));
    downstream->refused = !entry && outbox_available(&flow->outbox, (int)downstream->reader) > 0;
    if (!entry || gone) return OK;
    outbox_give(entry, downstream->reader, downstream->replica);
    const struct wire_message have = flow_have(flow, entry->seq, true);
    return outbox_passed(&flow->outbox, entry) && entry->origins.count ? flow_tell_origins(flow, &have, &entry->origins)
                                                                       : OK;
}

status flow_on_have(struct flow *flow, struct wire_peer *peer, const struct wire_message *message) {
    const struct downstream *downstream = peer->tag;
    if (*flow->config->from) flow_set_issue(flow, message->issue, 0); // the source knows better
    if (message->issue < flow->issue || message->seq < flow->settled) return OK;
    const struct outbox_entry *entry = outbox_find(&flow->outbox, message->seq);
    const bool before = entry && outbox_passed(&flow->outbox, entry);
    entry = outbox_claim(&flow->outbox, message->seq, downstream->reader, downstream->replica, message->passed == 1);
    if (downstream->refused) flow->announce = true;
    const struct wire_message have = flow_have(flow, message->seq, true);
    const bool told = before || !entry->data.size || !entry->origins.count || !outbox_passed(&flow->outbox, entry);
    return told ? OK : flow_tell_origins(flow, &have, &entry->origins);
}

status flow_on_synced(struct flow *flow, struct wire_peer *peer, const struct wire_message *message) {
    struct downstream *downstream = peer->tag;
    (void)message;
    return flow_apply(flow, downstream, LEASE_SYNCED);
}

// ---- the I/O thread ----

status flow_on_peer(struct flow *flow, const struct wire_event *event) {
    struct wire_peer *peer = event->peer;
    struct downstream *downstream = flow->downstreams;
    size_t reader = 0;
    if (!peer->client) { // of the stage before: what it was asked for before will not come
        struct upstream *upstream = peer->tag;
        if (!upstream) {
            NEW(&upstream, 1);
            upstream->next = flow->upstreams;
            flow->upstreams = upstream;
            peer->tag = upstream;
        }
        if (event->kind == WIRE_GONE) // the others may have to give its groups
            for (struct upstream *other = flow->upstreams; other; other = other->next) other->told = false;
        flow->credits -= upstream->credits;
        assert(flow->credits >= 0);
        *upstream = (struct upstream){.next = upstream->next};
        return OK;
    }
    while (reader < flow->config->reader_count && strcmp(flow->config->readers[reader], peer->name) != 0) reader++;
    if (reader == flow->config->reader_count) return wire_reject(flow->wire, peer, "it does not read from this stage");
    while (downstream && (downstream->reader != reader || downstream->replica != peer->replica))
        downstream = downstream->next;
    if (!downstream) {
        NEW(&downstream, 1);
        const struct stage_kind *kind = stage_kind_find(peer->name);
        *downstream = (struct downstream){
            .next = flow->downstreams, .reader = reader, .replica = peer->replica, .blames = !kind || !kind->trains};
        flow->downstreams = downstream;
    }
    peer->tag = downstream;
    if (event->kind == WIRE_GONE) {
        // It may have connected again before the old connection was found dead.
        for (struct wire_peer *other = wire_first_peer(flow->wire, "flow", true); other; other = wire_next_peer(other))
            if (other != peer && other->tag == downstream) return OK;
        if (event->orderly) downstream->incarnation = 0;
        return flow_apply(flow, downstream, LEASE_GONE);
    }
    // The connection of a process that was killed is mostly lost long before the next process is there.
    const bool restarted = downstream->incarnation && downstream->incarnation != peer->incarnation;
    downstream->incarnation = peer->incarnation;
    downstream->refused = false;
    return flow_apply(flow, downstream, restarted ? LEASE_RESTARTED : LEASE_RECONNECTED);
}

status flow_send_pending(struct flow *flow) {
    const struct wire_message synced = {.kind = MESSAGE_SYNCED}, credit = {.kind = MESSAGE_CREDIT};
    struct wire_message have;
    // A reader may still have a group that is settled, and wait for weights that will not come: it hears of that, too,
    // where no other group is available for it.
    const int64_t now = wire_now_ms(flow->wire);
    const bool unsaid = flow->unsaid_since && now - flow->unsaid_since >= UNSAID_MS;
    if (unsaid) flow->unsaid_since = 0;
    if (outbox_expire(&flow->outbox, now) || unsaid) flow->announce = true;
    // The stage before gives a replica nothing else while it has a group that was lost twice: it must learn of its end.
    for (struct held_group *held; (held = flow_next(flow, NULL, HELD_ENDED)); flow_remove(flow, held)) {
        have = flow_have(flow, held->seq, true);
        TRY(flow_tell_origins(flow, &have, &held->origins));
    }
    struct wire_peer *peer = wire_first_peer(flow->wire, "flow", false);
    for (; peer; peer = wire_next_peer(peer)) { // which of its groups this process has
        struct upstream *upstream = peer->tag;
        const int replica = peer->replica;
        const bool tell = upstream && !upstream->told;
        // Whoever is told that this process has a group must hear when it is passed on, too.
        for (struct held_group *held = tell ? flow->first : NULL; held; held = held->next) {
            if (held->issue != flow->issue || held->state == HELD_ENDED) continue;
            if (!flow_concerns(flow, &held->origins, replica)) continue;
            origins_add(&held->origins, replica);
            have = flow_have(flow, held->seq, false);
            TRY(wire_send(flow->wire, peer, &have, NULL));
        }
        for (size_t i = 0; tell && i < flow->outbox.count; i++) {
            struct outbox_entry *entry = flow->outbox.entries[i];
            if (!entry->data.size || !flow_concerns(flow, &entry->origins, replica)) continue;
            origins_add(&entry->origins, replica);
            have = flow_have(flow, entry->seq, outbox_passed(&flow->outbox, entry));
            TRY(wire_send(flow->wire, peer, &have, NULL));
        }
        if (tell) upstream->told = true;
        if (tell) TRY(wire_send(flow->wire, peer, &synced, NULL));
        if (flow->reject && origins_include(&flow->rejected, replica)) TRY(wire_reject(flow->wire, peer, flow->reject));
    }
    free(flow->reject);
    flow->reject = NULL;
    flow->rejected = (struct origins){0};
    peer = flow->announce ? wire_first_peer(flow->wire, "flow", true) : NULL;
    for (; peer; peer = wire_next_peer(peer)) { // how many groups wait for it
        const struct downstream *downstream = peer->tag;
        const struct wire_message available = {
            .kind = MESSAGE_AVAILABLE,
            .count = downstream ? outbox_available(&flow->outbox, (int)downstream->reader) : 0,
            .issue = flow->issue,
            .settled = flow->settled};
        if (available.count || unsaid) TRY(wire_send(flow->wire, peer, &available, NULL));
    }
    flow->announce = false;
    // A CREDIT for each group that there is capacity for, one to each replica in turn.
    int wanted = (flow->greedy ? MAX_CREDITS : flow->capacity) - flow->credits;
    for (const struct held_group *held = flow->first; held && !flow->greedy; held = held->next)
        wanted -= held->state == HELD_QUEUED;
    for (bool sent = true; sent && wanted > 0;) {
        sent = false;
        for (peer = wire_first_peer(flow->wire, "flow", false); peer && wanted > 0; peer = wire_next_peer(peer)) {
            struct upstream *upstream = peer->tag;
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

void flow_report(const struct flow *flow, double now, struct message_status *counters) {
    counters->held = 0;
    counters->oldest_seq = -1;
    counters->oldest_age = -1;
    for (const struct held_group *held = flow->first; held; held = held->next) {
        counters->held += held->state != HELD_ENDED;
        const bool begun = held->state == HELD_WAITING || held->state == HELD_WORKING;
        if (!begun || now - held->since <= counters->oldest_age) continue;
        counters->oldest_seq = held->seq;
        counters->oldest_age = now - held->since;
    }
    counters->waiting = outbox_available(&flow->outbox, -1);
    counters->dropped = flow->dropped;
    counters->given_seq = -1;
    counters->given_stage = "";
    for (size_t i = 0; i < flow->outbox.count && counters->given_seq < 0; i++) {
        const struct outbox_entry *entry = flow->outbox.entries[i];
        for (size_t k = 0; k < flow->outbox.reader_count && counters->given_seq < 0; k++) {
            const struct lease *lease = &entry->leases[k];
            if (lease->state >= LEASE_PASSED) continue;
            counters->given_seq = entry->seq;
            counters->given_stage = flow->config->readers[k];
            counters->given_replica = lease->state != LEASE_FREE ? lease->replica : 0;
        }
    }
}
