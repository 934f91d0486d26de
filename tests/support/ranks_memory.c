// A receiver copies as soon as both have begun; everything happens within ranks_end. A rank waits for another one as
// long as that is there.
#include "tests/support/ranks_memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/base/memory.h"

struct memory_rank {
    struct ranks base;
    struct memory_hub *hub;
    struct rank_exchange *exchanges;
    uint64_t begun; // under the lock
    bool left;
};

struct memory_hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count, left;
    status failure;
    char text[500];
    struct memory_rank *ranks[];
};

static void memory_begin(struct ranks *ranks, struct rank_exchange *exchange) {
    struct memory_rank *own = (struct memory_rank *)ranks;
    pthread_mutex_lock(&own->hub->lock);
    rank_exchange_add(&own->exchanges, exchange);
    own->begun++;
    pthread_cond_broadcast(&own->hub->changed);
    pthread_mutex_unlock(&own->hub->lock);
}

// Receives from another rank what is there. Fails the hub when it is not what is expected, or never comes.
static void memory_meet(struct memory_rank *own, struct rank_exchange *exchange, int rank) {
    struct memory_hub *hub = own->hub;
    const struct memory_rank *peer = hub->ranks[rank];
    struct rank_stream *receive = &exchange->receives[rank];
    if (peer->begun <= exchange->number) {
        if (!peer->left || !rank_exchange_awaits(exchange, rank)) return;
        hub->failure = UNAVAILABLE;
        snprintf(hub->text, sizeof hub->text, "rank %d has left, but rank %d awaits it in exchange %llu", rank,
                 own->base.own, (unsigned long long)exchange->number);
        return;
    }
    struct rank_exchange *theirs = rank_exchange_find(peer->exchanges, exchange->number);
    struct rank_stream *send = theirs ? &theirs->sends[own->base.own] : NULL;
    const uint64_t sent = send ? send->total : exchange->receives[rank].done,
                   awaited = theirs ? theirs->receives[own->base.own].total : exchange->sends[rank].confirmed;
    if (sent != receive->total || awaited != exchange->sends[rank].total) {
        hub->failure = BUG;
        snprintf(hub->text, sizeof hub->text, "exchange %llu: rank %d sends %llu bytes to rank %d, which expects %llu",
                 (unsigned long long)exchange->number, sent != receive->total ? rank : own->base.own,
                 (unsigned long long)(sent != receive->total ? sent : exchange->sends[rank].total),
                 sent != receive->total ? own->base.own : rank,
                 (unsigned long long)(sent != receive->total ? receive->total : awaited));
        return;
    }
    if (receive->done == receive->total) return;
    for (size_t bytes; receive->done < receive->total; send->done = send->confirmed = receive->done) {
        const void *data = rank_stream_at(send, receive->done, &bytes);
        rank_stream_write(receive, data, bytes);
    }
    pthread_cond_broadcast(&hub->changed);
}

static status memory_end(struct ranks *ranks, struct rank_exchange *exchange, bool patient) {
    struct memory_rank *own = (struct memory_rank *)ranks;
    struct memory_hub *hub = own->hub;
    (void)patient; // there is no timeout
    pthread_mutex_lock(&hub->lock);
    bool awaits = true;
    for (;;) {
        for (struct rank_exchange *each = own->exchanges; each; each = each->next) // another rank may wait for any
            for (int rank = 0; rank < hub->count && hub->failure == OK; rank++)
                if (rank != ranks->own) memory_meet(own, each, rank);
        awaits = false;
        for (int rank = 0; rank < hub->count; rank++) awaits = awaits || rank_exchange_awaits(exchange, rank);
        if (!awaits || hub->failure != OK) break;
        pthread_cond_wait(&hub->changed, &hub->lock);
    }
    if (hub->failure != OK) pthread_cond_broadcast(&hub->changed);
    rank_exchange_remove(&own->exchanges, exchange);
    status result = awaits ? fail(hub->failure, "%s", hub->text) : OK;
    pthread_mutex_unlock(&hub->lock);
    return result;
}

double ranks_memory_timeout = 60;

static status memory_check(struct ranks *ranks, double waited) {
    struct memory_hub *hub = ((struct memory_rank *)ranks)->hub;
    pthread_mutex_lock(&hub->lock);
    if (hub->failure == OK && waited > ranks_memory_timeout) {
        hub->failure = UNAVAILABLE;
        snprintf(hub->text, sizeof hub->text, "rank %d has waited too long for another one", ranks->own);
        pthread_cond_broadcast(&hub->changed);
    }
    const status result = hub->failure == OK ? OK : fail(hub->failure, "%s", hub->text);
    pthread_mutex_unlock(&hub->lock);
    return result;
}

static void memory_give_up(struct ranks *ranks, status code, const char *text) {
    struct memory_hub *hub = ((struct memory_rank *)ranks)->hub;
    pthread_mutex_lock(&hub->lock);
    if (hub->failure == OK) snprintf(hub->text, sizeof hub->text, "rank %d has failed: %s", ranks->own, text);
    if (hub->failure == OK) hub->failure = rank_failure(code);
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
}

static void memory_free(struct ranks *ranks) {
    struct memory_rank *own = (struct memory_rank *)ranks;
    struct memory_hub *hub = own->hub;
    pthread_mutex_lock(&hub->lock);
    own->left = true;
    const bool last = ++hub->left == hub->count;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    if (!last) return;
    for (int rank = 0; rank < hub->count; rank++) free(hub->ranks[rank]);
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

void ranks_memory_open(int count, struct ranks **out) {
    static const struct ranks_calls calls = {.begin = memory_begin,
                                             .end = memory_end,
                                             .check = memory_check,
                                             .give_up = memory_give_up,
                                             .free = memory_free};
    struct memory_hub *hub;
    mem_new(&hub, 1, sizeof *hub + (size_t)count * sizeof(void *));
    pthread_mutex_init(&hub->lock, NULL);
    pthread_cond_init(&hub->changed, NULL);
    hub->count = count;
    for (int rank = 0; rank < count; rank++) {
        NEW(&hub->ranks[rank], 1);
        *hub->ranks[rank] = (struct memory_rank){.base = {.calls = &calls, .own = rank, .count = count}, .hub = hub};
        out[rank] = &hub->ranks[rank]->base;
    }
}
