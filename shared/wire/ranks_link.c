// The caller's thread adds exchanges to a list and waits; the link's thread does everything else. Each works on them
// with the lock held, which the link's thread gives back only to wait for its sockets.
//
// A rank tells all others what it expects of them in each exchange that it begins (READY), and gets CHUNKs then. It
// confirms each (RECEIVED), which lets the next ones go, and so an exchange has ended for a sender only when the other
// side has everything: nothing is lost when a socket closes afterwards.
//
// Rank 0 gives each start of the ranks a number. The others learn it from its greeting, before they greet each other,
// and every message has it.
#include "shared/wire/ranks_link.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/signals.h"

enum {
    LINK_VERSION = 2,
    MAX_LINK_TEXT = 400,
    CHUNK = 1 << 20,
    WINDOW = 8 << 20,   // bytes on their way to a rank
    TICK_MS = 100,      // between heartbeats
    JOIN_TICK_MS = 20,  // between two tries to greet
    MAX_STEP_MS = 1000, // a longer time between two looks at the clock: this process was stopped
    SILENT_MS = 1000,   // without a message: the other process does not run
    LEAVE_MS = 2000,    // that a rank which leaves waits for the others
    MAX_EARLY = 4096,   // exchanges that another rank is ahead
    MAX_THREADS = 8,    // that encrypt
};

enum link_message { LINK_GREETING = 1, LINK_READY, LINK_CHUNK, LINK_RECEIVED, LINK_HEARTBEAT, LINK_BYE };

// The first frame of every message, as the processors have it: ranks compute the same bits only on one type of them.
// A rank of the other byte order speaks an unknown version.
struct link_head {
    uint64_t kind;
    uint64_t number; // of the exchange; GREETING: the version; BYE: a status
    uint64_t at;     // READY: bytes expected; CHUNK: where it begins; RECEIVED: bytes so far; GREETING: the own rank;
                     // HEARTBEAT: 1 if the caller waits for an exchange
    uint64_t count;  // GREETING: of ranks
    uint64_t start;  // which start of the ranks; 0: the sender does not know it
};

struct link_peer {
    int rank;
    const char *name;               // for messages: "rank 2", "rank 2 on gpu1"
    struct transport_link *link;    // to a rank before this one; NULL: it connects to this one
    struct transport_client client; // of a rank behind this one that has joined
    bool joined;
    bool gone;          // its connection has closed, but messages of it may still be there
    bool left;          // it said so
    uint64_t announced; // exchanges that it has begun
    uint64_t *early;    // what it expects in those of them that this rank has not announced
    size_t early_count;
    uint64_t in_flight; // bytes sent to it, not confirmed
    int64_t heard_at;   // the last message, on the own clock
    bool waits;         // its caller waited for an exchange at its last heartbeat
    int64_t waited_ms;  // since the caller waits for it and it does nothing
};

struct ranks_link {
    struct ranks base;
    struct transport *transport; // of the thread
    const struct wire_security *security;
    const char *run;
    uint64_t start; // 0: not known yet
    const char **keys;
    struct arena arena;
    int64_t timeout_ms;
    int wakeup; // an eventfd
    bool started;
    pthread_t thread;
    struct log_limit log_limit; // of the thread
    pthread_mutex_t lock;       // of what follows
    pthread_cond_t changed;
    struct link_peer *peers;                   // one a rank
    int joined;                                // the own rank included
    struct rank_exchange *exchanges, *awaited; // under way; the one that the caller waits for
    bool patient;                              // while its rank's process runs
    uint64_t announced;                        // exchanges that the others know of
    int64_t ticked_at, now;                    // milliseconds
    int64_t joining_ms, parting_ms;            // that ranks were waited for, until they came or left
    bool leaving, bye;                         // the caller leaves; the others were told
    bool closed;                               // the transport is freed
    status failure;
    char text[MAX_LINK_TEXT + 1];
    status given_up; // by the caller, which the thread has yet to tell the others; and why
    char reason[MAX_LINK_TEXT + 1];
    char refused[MAX_LINK_TEXT + 1]; // why the last one was that did not join
};

static struct ranks_link *ranks_link_of(struct ranks *ranks) {
    return (struct ranks_link *)ranks;
}

static bool ranks_link_complete(const struct ranks_link *link, const struct rank_exchange *exchange) {
    bool complete = exchange->number < link->announced;
    for (int rank = 0; rank < link->base.count; rank++) complete = complete && !rank_exchange_awaits(exchange, rank);
    return complete;
}

static void ranks_link_wake(struct ranks_link *link) {
    (void)eventfd_write(link->wakeup, 1); // a full counter wakes, too
}

// ---- sending ----

static void ranks_link_fail(struct ranks_link *link, status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void link_peer_send(struct ranks_link *link, struct link_peer *peer, struct link_head head, const void *bulk,
                           size_t bulk_size) {
    const struct transport_frames frames = {.count = bulk ? 2 : 1,
                                            .head = &head,
                                            .head_size = sizeof head,
                                            .bulk = bulk,
                                            .bulk_size = bulk_size,
                                            .bulk_stays = head.kind == LINK_CHUNK};
    bool gone;
    head.start = link->start;
    if (peer->gone || (peer->left && head.kind != LINK_BYE)) return;
    if (link->transport->calls->send(link->transport, peer->link, &peer->client, &frames, &gone) != OK)
        ranks_link_fail(link, UNAVAILABLE, "%s", fail_text());
    else if (gone && peer->joined)
        peer->gone = true;
}

// The first failure stays; the others are told and the caller wakes up.
static void ranks_link_fail(struct ranks_link *link, status code, const char *format, ...) {
    if (link->failure != OK) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(link->text, sizeof link->text, format, arguments);
    va_end(arguments);
    link->failure = code;
    for (int rank = 0; rank < link->base.count; rank++)
        if (link->peers[rank].joined)
            link_peer_send(link, &link->peers[rank], (struct link_head){.kind = LINK_BYE, .number = (uint64_t)code},
                           link->text, strlen(link->text));
    pthread_cond_signal(&link->changed);
}

static void link_peer_greet(struct ranks_link *link, struct link_peer *peer) {
    const struct link_head head = {LINK_GREETING, LINK_VERSION, (uint64_t)link->base.own, (uint64_t)link->base.count,
                                   0};
    link_peer_send(link, peer, head, link->run, strlen(link->run));
}

// Another rank expects so many bytes in an exchange that this rank has announced; NULL: it has ended, so it
// had nothing for that rank.
static void ranks_link_agree(struct ranks_link *link, int rank, uint64_t number, struct rank_exchange *exchange,
                             uint64_t expected) {
    const uint64_t total = exchange ? exchange->sends[rank].total : 0;
    if (exchange) exchange->sends[rank].agreed = expected == total;
    if (expected != total)
        ranks_link_fail(link, BUG, "exchange %llu: %s sends %llu bytes to %s, which expects %llu",
                        (unsigned long long)number, link->peers[link->base.own].name, (unsigned long long)total,
                        link->peers[rank].name, (unsigned long long)expected);
}

// Announces what was begun, and sends what the others are ready for.
static void ranks_link_send_ready(struct ranks_link *link) {
    for (struct rank_exchange *exchange = link->exchanges; exchange; exchange = exchange->next) {
        const bool announced = exchange->number < link->announced;
        link->announced += !announced;
        for (int rank = 0; rank < link->base.count; rank++) {
            struct link_peer *peer = &link->peers[rank];
            struct rank_stream *stream = &exchange->sends[rank];
            if (rank == link->base.own) continue;
            if (!announced)
                link_peer_send(link, peer,
                               (struct link_head){LINK_READY, exchange->number, exchange->receives[rank].total, 0, 0},
                               NULL, 0);
            if (!announced && peer->early_count) {
                const uint64_t expected = *peer->early;
                memmove(peer->early, peer->early + 1, --peer->early_count * sizeof *peer->early);
                ranks_link_agree(link, rank, exchange->number, exchange, expected);
            }
            while (stream->agreed && stream->done < stream->total && peer->in_flight < WINDOW && link->failure == OK) {
                size_t bytes;
                const void *data = rank_stream_at(stream, stream->done, &bytes);
                if (bytes > CHUNK) bytes = CHUNK;
                link_peer_send(link, peer, (struct link_head){LINK_CHUNK, exchange->number, stream->done, 0, 0}, data,
                               bytes);
                stream->done += bytes;
                peer->in_flight += bytes;
            }
        }
    }
}

// ---- receiving ----

// Joins the rank that greets, or says why not.
static void ranks_link_on_greeting(struct ranks_link *link, struct link_peer *peer, const struct transport_event *event,
                                   const struct link_head *head) {
    const char *run = event->frames.bulk;
    const size_t run_size = event->frames.bulk_size;
    const uint64_t own = (uint64_t)link->base.own, count = (uint64_t)link->base.count;
    struct link_peer client = {.client = event->client};
    const char *mistake = NULL;
    // Rank 0 is asked for the number of the start, and tells it; the others wait until they know it.
    const bool asked = !own && !head->start, told = peer && !peer->rank && !link->start;
    if (!link->start && !told) return;
    if (head->number != LINK_VERSION)
        mistake = "another version of caravan";
    else if (run_size != strlen(link->run) || memcmp(run, link->run, run_size) != 0)
        mistake = "it belongs to another run";
    else if (told ? !head->start : !asked && head->start != link->start)
        mistake = "it belongs to another start of the run";
    else if (head->count != count)
        mistake = "it has another number of ranks";
    else if (peer ? head->at != (uint64_t)peer->rank : head->at <= own || head->at >= count)
        mistake = "its number is that of another rank";
    else if (!peer && link->security && (!event->key || strcmp(event->key, link->keys[head->at]) != 0))
        mistake = "its key is another machine's";
    else if (!peer && link->peers[head->at].joined &&
             (link->peers[head->at].client.size != event->client.size ||
              memcmp(link->peers[head->at].client.id, event->client.id, event->client.size) != 0))
        mistake = "that rank is here already";
    if (mistake) {
        snprintf(link->refused, sizeof link->refused, "a process that calls itself rank %llu was refused: %s",
                 (unsigned long long)head->at, mistake);
        log_limited(&link->log_limit, link->now, "%s", link->refused);
        if (!peer) link_peer_send(link, &client, (struct link_head){.kind = LINK_BYE}, mistake, strlen(mistake));
        return;
    }
    if (told) link->start = head->start;
    if (!peer) link_peer_greet(link, &client);
    if (!peer) peer = &link->peers[head->at];
    if (!peer->joined) link->joined++;
    peer->joined = true;
    peer->client = event->client;
    peer->heard_at = link->now;
    pthread_cond_signal(&link->changed);
}

// Returns NULL, or how the message breaks the protocol.
static const char *ranks_link_on_message(struct ranks_link *link, struct link_peer *peer,
                                         const struct transport_frames *frames, const struct link_head *head) {
    struct rank_exchange *exchange = rank_exchange_find(link->exchanges, head->number);
    const bool bulk = frames->count == 2;
    if (bulk != (head->kind == LINK_CHUNK || head->kind == LINK_BYE)) return "a message with the wrong frames";
    if (head->kind != LINK_HEARTBEAT) peer->waited_ms = 0;
    switch (head->kind) {
    case LINK_READY:
        if (head->number != peer->announced) return "exchanges in the wrong order";
        peer->announced++;
        if (head->number < link->announced) {
            ranks_link_agree(link, peer->rank, head->number, exchange, head->at);
            return NULL;
        }
        if (peer->early_count == MAX_EARLY) return "too many exchanges ahead";
        GROW(&peer->early, peer->early_count);
        peer->early[peer->early_count++] = head->at;
        return NULL;
    case LINK_CHUNK: {
        struct rank_stream *stream = exchange ? &exchange->receives[peer->rank] : NULL;
        if (!stream) return "bytes of an exchange that is not under way";
        if (head->at != stream->done) return "bytes that are not the next ones";
        if (frames->bulk_size > stream->total - stream->done) return "more bytes than are expected";
        if (!frames->bulk_size || frames->bulk_size > CHUNK) return "a chunk of a wrong size";
        rank_stream_write(stream, frames->bulk, frames->bulk_size);
        link_peer_send(link, peer, (struct link_head){LINK_RECEIVED, head->number, stream->done, 0, 0}, NULL, 0);
        return NULL;
    }
    case LINK_RECEIVED: {
        struct rank_stream *stream = exchange ? &exchange->sends[peer->rank] : NULL;
        if (!stream || head->at <= stream->confirmed || head->at > stream->done)
            return "the receipt of bytes that were not sent";
        peer->in_flight -= head->at - stream->confirmed;
        stream->confirmed = head->at;
        return NULL;
    }
    case LINK_HEARTBEAT:
        peer->waits = head->at;
        return NULL;
    case LINK_BYE:
        if (frames->bulk_size) // the answer is this rank's own BYE, for which the other one waits before it closes
            ranks_link_fail(link, rank_failure(head->number), "%s has failed: %.*s", peer->name,
                            (int)(frames->bulk_size < MAX_LINK_TEXT ? frames->bulk_size : MAX_LINK_TEXT),
                            (const char *)frames->bulk);
        peer->left = true;
        return NULL;
    default:
        return "an unknown message";
    }
}

static void ranks_link_on_event(struct ranks_link *link, const struct transport_event *event) {
    struct link_peer *peer = event->owner;
    struct link_head head = {0};
    for (int rank = link->base.own + 1; rank < link->base.count && !peer; rank++) {
        struct link_peer *client = &link->peers[rank];
        if (client->joined && client->client.size == event->client.size &&
            !memcmp(client->client.id, event->client.id, event->client.size))
            peer = client;
    }
    const struct transport_frames *frames = &event->frames;
    const bool formed = frames->count <= 2 && frames->head_size == sizeof head;
    if (formed) memcpy(&head, frames->head, sizeof head);
    if (peer) peer->heard_at = link->now;
    if (link->failure != OK && head.kind != LINK_BYE) return;
    if (formed && event->owner && peer->joined && head.start != link->start) {
        ranks_link_fail(link, UNAVAILABLE, "%s is gone: another process is in its place", peer->name);
    } else if (formed && head.kind == LINK_GREETING && frames->count == 2) {
        ranks_link_on_greeting(link, event->owner, event, &head);
    } else if (peer && !peer->joined) { // BYE
        snprintf(link->refused, sizeof link->refused, "%s refuses this rank: %.*s", peer->name,
                 frames->count == 2 ? (int)frames->bulk_size : 0, (const char *)frames->bulk);
        log_limited(&link->log_limit, link->now, "%s", link->refused);
    } else if (!peer) { // a stranger, or a rank whose connection was lost and opened again
        static const char reason[] = "it has lost the connection to this rank";
        struct link_peer client = {.client = event->client};
        log_limited(&link->log_limit, link->now, "a message from no rank is ignored");
        if (formed) link_peer_send(link, &client, (struct link_head){.kind = LINK_BYE}, reason, sizeof reason - 1);
    } else {
        const char *mistake = formed ? ranks_link_on_message(link, peer, frames, &head) : "a malformed message";
        if (mistake)
            ranks_link_fail(link, BUG, "%s breaks the protocol: %s (message %llu, exchange %llu)", peer->name, mistake,
                            (unsigned long long)head.kind, (unsigned long long)head.number);
    }
}

// ---- time ----

// Heartbeats; ranks that are gone; ranks that were waited for long enough.
static void ranks_link_tick(struct ranks_link *link) {
    const bool joining = link->joined < link->base.count;
    const int64_t passed = link->now - link->ticked_at, step = passed < MAX_STEP_MS ? passed : MAX_STEP_MS;
    struct rank_exchange *awaited = link->awaited;
    link->ticked_at = link->now;
    link->joining_ms += joining ? step : 0;
    if (joining) pthread_cond_signal(&link->changed); // the caller looks whether it is asked to stop
    link->parting_ms += link->leaving || link->failure != OK ? step : 0;
    for (int rank = 0; rank < link->base.count; rank++) {
        struct link_peer *peer = &link->peers[rank];
        if (rank == link->base.own) continue;
        if (peer->joined)
            link_peer_send(link, peer, (struct link_head){.kind = LINK_HEARTBEAT, .at = awaited != NULL}, NULL, 0);
        else if (peer->link && link->failure == OK && (link->start || !rank))
            link_peer_greet(link, peer);
        if (peer->joined && peer->link && !link->transport->calls->connected(link->transport, peer->link))
            peer->gone = true;
        if (!peer->joined && link->joining_ms > link->timeout_ms)
            ranks_link_fail(link, UNAVAILABLE, "%s has not joined within %.0f s%s%s", peer->name,
                            (double)link->timeout_ms * 1e-3, *link->refused ? "; " : "", link->refused);
        // A rank that waits for others itself is blamed after twice the time: by then it has named the culprit.
        const bool silent = link->now - peer->heard_at > SILENT_MS;
        const int64_t counted = peer->waits && !silent ? step / 2 : step;
        const bool counts = awaited && rank_exchange_awaits(awaited, rank) && (silent || !link->patient);
        peer->waited_ms = counts ? peer->waited_ms + counted : 0;
        if (!awaited || peer->waited_ms <= link->timeout_ms) continue;
        const struct rank_stream *receive = &awaited->receives[rank], *send = &awaited->sends[rank];
        ranks_link_fail(link, UNAVAILABLE,
                        "%s has done nothing for %.0f s, and exchange %llu awaits it: %llu of %llu bytes have come "
                        "from it, it has %llu of %llu; its process %s",
                        peer->name, (double)link->timeout_ms * 1e-3, (unsigned long long)awaited->number,
                        (unsigned long long)receive->done, (unsigned long long)receive->total,
                        (unsigned long long)send->confirmed, (unsigned long long)send->total,
                        silent ? "is silent" : "answers");
    }
}

static void *ranks_link_run(void *argument) {
    struct ranks_link *link = argument;
    bool runs = true;
    while (runs) {
        struct transport_event event;
        eventfd_t count;
        const int64_t now = clock_monotonic_ms(),
                      due = link->ticked_at + (link->joined < link->base.count ? JOIN_TICK_MS : TICK_MS);
        status result = link->transport->calls->receive(link->transport, due > now ? (int)(due - now) : 0, &event);
        pthread_mutex_lock(&link->lock);
        link->now = clock_monotonic_ms();
        if (result != OK) ranks_link_fail(link, result, "%s", fail_text());
        if (event.kind == TRANSPORT_READABLE) (void)eventfd_read(link->wakeup, &count);
        if (event.kind == TRANSPORT_MESSAGE) ranks_link_on_event(link, &event);
        if (link->given_up != OK) ranks_link_fail(link, link->given_up, "%s", link->reason);
        bool alone = true;
        for (int rank = 0; rank < link->base.count; rank++) {
            struct link_peer *peer = &link->peers[rank];
            // What it sent before its connection closed was received when there is nothing to receive after that was
            // noticed. Sending notices it, which therefore comes below.
            if (peer->gone && !peer->left && !link->leaving && event.kind == TRANSPORT_NOTHING)
                ranks_link_fail(link, UNAVAILABLE, "%s is gone: its connection has closed", peer->name);
            for (struct rank_exchange *exchange = link->exchanges; exchange && peer->left; exchange = exchange->next)
                if (rank_exchange_awaits(exchange, rank))
                    ranks_link_fail(link, UNAVAILABLE, "%s has left, but exchange %llu awaits it", peer->name,
                                    (unsigned long long)exchange->number);
            if (link->leaving && !link->bye && link->failure == OK && peer->joined)
                link_peer_send(link, peer, (struct link_head){.kind = LINK_BYE}, "", 0);
            alone = alone && (!peer->joined || peer->left || peer->gone);
        }
        link->bye = link->leaving;
        if (link->failure == OK) ranks_link_send_ready(link);
        if (link->now >= due) ranks_link_tick(link);
        if (link->awaited && ranks_link_complete(link, link->awaited)) pthread_cond_signal(&link->changed);
        const bool parting = link->leaving || link->failure != OK;
        runs = !parting || (!alone && link->parting_ms < LEAVE_MS && result == OK);
        pthread_mutex_unlock(&link->lock);
    }
    link->transport->calls->free(link->transport); // what was not sent is not read any more
    pthread_mutex_lock(&link->lock);
    link->closed = true;
    pthread_cond_signal(&link->changed);
    pthread_mutex_unlock(&link->lock);
    return NULL;
}

// ---- calls ----

static void ranks_link_begin(struct ranks *ranks, struct rank_exchange *exchange) {
    struct ranks_link *link = ranks_link_of(ranks);
    pthread_mutex_lock(&link->lock);
    rank_exchange_add(&link->exchanges, exchange);
    pthread_mutex_unlock(&link->lock);
    ranks_link_wake(link);
}

static status ranks_link_end(struct ranks *ranks, struct rank_exchange *exchange, bool patient) {
    struct ranks_link *link = ranks_link_of(ranks);
    pthread_mutex_lock(&link->lock);
    link->awaited = exchange;
    link->patient = patient;
    while (!ranks_link_complete(link, exchange) && !link->closed) pthread_cond_wait(&link->changed, &link->lock);
    link->awaited = NULL;
    status result = ranks_link_complete(link, exchange) ? OK : fail(link->failure, "%s", link->text);
    rank_exchange_remove(&link->exchanges, exchange);
    pthread_mutex_unlock(&link->lock);
    return result;
}

static void ranks_link_give_up(struct ranks *ranks, status code, const char *text) {
    struct ranks_link *link = ranks_link_of(ranks);
    pthread_mutex_lock(&link->lock);
    snprintf(link->reason, sizeof link->reason, "%s", text);
    link->given_up = code;
    pthread_mutex_unlock(&link->lock);
    ranks_link_wake(link);
}

// What is found here is the others' failure, too.
static status ranks_link_check(struct ranks *ranks, double waited) {
    struct ranks_link *link = ranks_link_of(ranks);
    const struct link_peer *silent = NULL, *left = NULL;
    status result = OK;
    pthread_mutex_lock(&link->lock);
    for (int rank = 0; rank < ranks->count; rank++) {
        const struct link_peer *peer = &link->peers[rank];
        if (rank != ranks->own && peer->left) left = peer;
        if (rank != ranks->own && !silent && link->now - peer->heard_at > SILENT_MS) silent = peer;
    }
    if (link->failure != OK)
        result = fail(link->failure, "%s", link->text);
    else if (left)
        result = fail(UNAVAILABLE, "%s has left, but this rank waits for it", left->name);
    else if (waited * 1000 > (double)link->timeout_ms)
        result = fail(UNAVAILABLE, "for %.0f s nothing has come from %s%s; %s", waited,
                      silent ? silent->name : link->peers[!ranks->own].name,
                      !silent && ranks->count > 2 ? " or another rank" : "",
                      silent ? "its process is silent" : "all processes answer");
    const bool told = result == OK || link->failure != OK;
    pthread_mutex_unlock(&link->lock);
    if (!told) ranks_link_give_up(ranks, result, fail_text());
    return result;
}

static void ranks_link_free(struct ranks *ranks) {
    struct ranks_link *link = ranks_link_of(ranks);
    assert(!link->exchanges);
    if (link->started) {
        pthread_mutex_lock(&link->lock);
        link->leaving = true;
        pthread_mutex_unlock(&link->lock);
        ranks_link_wake(link);
        pthread_join(link->thread, NULL);
    } else {
        link->transport->calls->free(link->transport);
    }
    if (link->wakeup >= 0) close(link->wakeup);
    for (int rank = 0; rank < ranks->count; rank++) free(link->peers[rank].early);
    pthread_cond_destroy(&link->changed);
    pthread_mutex_destroy(&link->lock);
    arena_release(&link->arena);
    free(link);
}

status ranks_link_open(struct ranks **out, const struct ranks_link_options *options) {
    static const struct ranks_calls calls = {.begin = ranks_link_begin,
                                             .end = ranks_link_end,
                                             .check = ranks_link_check,
                                             .give_up = ranks_link_give_up,
                                             .free = ranks_link_free};
    struct transport *transport;
    struct ranks_link *link;
    status result;
    *out = NULL;
    TRY(zmq_transport_open(&transport, options->security));
    NEW(&link, 1);
    link->base = (struct ranks){.calls = &calls, .own = options->own, .count = options->count};
    link->transport = transport;
    link->security = options->security && *options->security->secret ? options->security : NULL;
    link->timeout_ms = (int64_t)(options->timeout * 1000);
    link->run = arena_strndup(&link->arena, options->run, strlen(options->run));
    while (!link->start && !options->own) link->start = transport->calls->random(transport);
    link->peers = arena_alloc(&link->arena, (size_t)options->count * sizeof *link->peers);
    link->keys = arena_alloc(&link->arena, (size_t)options->count * sizeof *link->keys);
    link->joined = 1;
    link->ticked_at = link->now = clock_monotonic_ms();
    pthread_mutex_init(&link->lock, NULL);
    pthread_cond_init(&link->changed, NULL);
    const int threads = options->count - 1 < MAX_THREADS ? options->count - 1 : MAX_THREADS;
    if (link->security && threads > 1) zmq_transport_use_threads(transport, threads);
    link->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    TRY_TO(result, failed, link->wakeup >= 0 ? OK : fail(UNAVAILABLE, "eventfd: %s", strerror(errno)));
    transport->calls->add_fd(transport, link->wakeup);
    for (size_t i = 0; i < options->listen_count && options->own < options->count - 1; i++)
        TRY_TO(result, failed, transport->calls->bind(transport, options->listen[i]));
    int near = 1, *partner = arena_alloc(&link->arena, (size_t)options->count * sizeof *partner);
    while (near < options->count && !strcmp(options->ranks[near].machine, options->ranks->machine)) near++;
    if (near < options->count) link->base.partner = partner;
    for (int rank = 0; rank < options->count; rank++) {
        const char *key = link->security ? options->ranks[rank].key : NULL, *machine = options->ranks[rank].machine;
        partner[rank] = rank % near;
        link->peers[rank].rank = rank;
        link->peers[rank].name = arena_printf(&link->arena, *machine ? "rank %d on %s" : "rank %d", rank, machine);
        if (key) link->keys[rank] = arena_strndup(&link->arena, key, strlen(key));
        if (rank < options->own)
            TRY_TO(result, failed,
                   transport->calls->connect(transport, options->ranks[rank].address, key, &link->peers[rank],
                                             &link->peers[rank].link));
    }
    if (pthread_create(&link->thread, NULL, ranks_link_run, link))
        TRY_TO(result, failed, fail(UNAVAILABLE, "cannot start the thread of the ranks"));
    link->started = true;
    pthread_mutex_lock(&link->lock);
    while (link->joined < options->count && link->failure == OK && !signals_stopping())
        pthread_cond_wait(&link->changed, &link->lock);
    result = link->failure != OK             ? fail(link->failure, "%s", link->text)
             : link->joined < options->count ? fail(END, "asked to stop before all ranks were there")
                                             : OK;
    pthread_mutex_unlock(&link->lock);
    TRY_TO(result, failed, result);
    *out = &link->base;
    return OK;
failed:
    ranks_link_free(&link->base);
    return result;
}
