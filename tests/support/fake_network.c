// A connection has two ends, and a queue of messages towards each of them. An end that closes puts a last message, the
// close, behind what it sent; the other end closes when that arrives.
#include "tests/support/fake_network.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/rng.h"

enum {
    DELAY_MS = 20,
    RECONNECT_MS = 50,    // at least, after a connection was closed or refused; up to twice as long
    CONNECT_MS = 1000,    // between attempts while the processes are cut off from each other
    CLOCK_START = 100000, // the network's first moment
    CLOCK_OFFSET = 1 << 30,
    FDS_MAX = 4,
};

enum { TO_SERVER, TO_CLIENT, SIDES };

struct fake_message {
    struct fake_message *next;
    int64_t due;
    bool close; // the last message of a connection
    int count;  // of frames; 0: the first message of a connection, which says that it is open
    size_t head_size, bulk_size;
    char data[]; // head, then bulk
};

// The receiving end of one direction of a connection.
struct fake_end {
    struct fake_process *process;
    struct fake_message *first, **last;
    int64_t last_due;
    bool open;
};

struct fake_connection {
    struct fake_connection *next;
    struct transport_link *link; // NULL: the client's end is closed
    uint32_t number;             // the client's id at the server
    int64_t stuck_until;         // after a cut
    struct fake_end ends[SIDES]; // by the direction of the messages that arrive there
};

struct transport_link {
    struct transport_link *next;
    struct fake_process *process;
    void *owner;
    struct fake_connection *connection; // NULL: not connected
    int64_t attempt_at;                 // the next attempt to connect
    char endpoint[];
};

struct fake_binding {
    struct fake_binding *next;
    char endpoint[];
};

struct fake_cut {
    struct fake_cut *next;
    const struct fake_process *a, *b;
    int64_t since;
};

struct fake_process {
    struct transport base;
    struct fake_process *next;
    struct fake_network *network;
    struct transport_link *links;
    struct fake_binding *bindings;
    int64_t clock_offset;
    bool dead, paused;
    struct pollfd fds[FDS_MAX];
    nfds_t fd_count;
    struct fake_message *received; // the last event points into it
};

struct fake_network {
    uint64_t seed, draws;
    int64_t now, delay_ms, sent, received;
    uint32_t connection_count;
    struct fake_process *processes;
    struct fake_connection *connections;
    struct fake_cut *cuts;
};

static void *fake_alloc(size_t size) {
    void *block = calloc(1, size);
    if (!block) abort();
    return block;
}

static struct fake_process *fake_process_of(struct transport *base) {
    return (struct fake_process *)base;
}

uint64_t fake_network_random(struct fake_network *network, uint64_t bound) {
    return rng_below(network->seed, 0, network->draws++, bound);
}

static int64_t fake_delay(struct fake_network *network, int64_t max_ms) {
    return network->now + (int64_t)fake_network_random(network, (uint64_t)max_ms + 1);
}

// ---- connections ----

static struct fake_cut **fake_find_cut(struct fake_network *network, const struct fake_process *a,
                                       const struct fake_process *b) {
    struct fake_cut **at = &network->cuts;
    while (*at && !((*at)->a == a && (*at)->b == b) && !((*at)->a == b && (*at)->b == a)) at = &(*at)->next;
    return at;
}

static void fake_end_clear(struct fake_end *end) {
    while (end->first) {
        struct fake_message *next = end->first->next;
        free(end->first);
        end->first = next;
    }
    end->last = &end->first;
}

static void fake_end_push(struct fake_network *network, struct fake_end *end, struct fake_message *message) {
    message->due = fake_delay(network, network->delay_ms);
    if (message->due < end->last_due) message->due = end->last_due;
    end->last_due = message->due;
    *end->last = message;
    end->last = &message->next;
}

// Drops a random number of the last messages that have not arrived.
static void fake_end_lose_tail(struct fake_network *network, struct fake_end *end) {
    size_t count = 0;
    for (const struct fake_message *at = end->first; at; at = at->next) count++;
    size_t kept = fake_network_random(network, count + 1);
    struct fake_message **at = &end->first;
    while (*at && kept--) at = &(*at)->next;
    struct fake_end lost = {.first = *at};
    fake_end_clear(&lost);
    *at = NULL;
    end->last = at;
}

static void fake_connection_free_closed(struct fake_network *network) {
    for (struct fake_connection **at = &network->connections; *at;) {
        struct fake_connection *connection = *at;
        if (connection->ends[TO_SERVER].open || connection->ends[TO_CLIENT].open) {
            at = &connection->next;
            continue;
        }
        *at = connection->next;
        for (int side = 0; side < SIDES; side++) fake_end_clear(&connection->ends[side]);
        free(connection);
    }
}

// The end `side` closes: it receives nothing any more, and the other one learns it, if `told`.
static void fake_connection_close(struct fake_network *network, struct fake_connection *connection, int side,
                                  bool told) {
    struct fake_end *end = &connection->ends[side], *other = &connection->ends[!side];
    if (!end->open) return;
    end->open = false;
    fake_end_clear(end);
    if (side == TO_CLIENT) {
        struct transport_link *link = connection->link;
        link->connection = NULL;
        link->attempt_at = network->now + RECONNECT_MS + (int64_t)fake_network_random(network, RECONNECT_MS);
        connection->link = NULL;
    }
    if (!other->open || !told) return;
    struct fake_message *close = fake_alloc(sizeof *close);
    close->close = true;
    fake_end_push(network, other, close);
}

// Connects a link if the server is there; otherwise says when to try again.
static void fake_link_attempt(struct transport_link *link) {
    struct fake_process *server, *client = link->process;
    struct fake_network *network = client->network;
    const struct fake_binding *binding = NULL;
    for (server = network->processes; server; server = server->next) {
        binding = server->bindings;
        while (binding && strcmp(binding->endpoint, link->endpoint) != 0) binding = binding->next;
        if (binding) break;
    }
    const bool cut = server && *fake_find_cut(network, client, server);
    if (!binding || cut || server->paused) {
        link->attempt_at = cut ? network->now + CONNECT_MS
                               : network->now + RECONNECT_MS + (int64_t)fake_network_random(network, RECONNECT_MS);
        return;
    }
    struct fake_connection *connection = fake_alloc(sizeof *connection);
    connection->link = link;
    connection->number = ++network->connection_count;
    connection->ends[TO_SERVER].process = server;
    connection->ends[TO_CLIENT].process = client;
    for (int side = 0; side < SIDES; side++) {
        connection->ends[side].open = true;
        connection->ends[side].last = &connection->ends[side].first;
    }
    link->connection = connection;
    fake_end_push(network, &connection->ends[TO_SERVER], fake_alloc(sizeof(struct fake_message)));
    struct fake_connection **last = &network->connections;
    while (*last) last = &(*last)->next;
    *last = connection;
}

static void fake_network_connect_links(struct fake_network *network) {
    for (struct fake_process *process = network->processes; process; process = process->next)
        for (struct transport_link *link = process->links; link && !process->paused && !process->dead;
             link = link->next)
            if (!link->connection && link->attempt_at <= network->now) fake_link_attempt(link);
}

// When the first message of an end can be received, INT64_MAX if there is none.
static int64_t fake_end_due(struct fake_network *network, const struct fake_connection *connection, int side) {
    const struct fake_end *end = &connection->ends[side];
    if (!end->open || !end->first || end->process->paused) return INT64_MAX;
    if (*fake_find_cut(network, connection->ends[TO_SERVER].process, connection->ends[TO_CLIENT].process))
        return INT64_MAX;
    return end->first->due > connection->stuck_until ? end->first->due : connection->stuck_until;
}

// ---- the calls of a transport ----

static int64_t fake_now_ms(struct transport *base) {
    const struct fake_process *process = fake_process_of(base);
    return process->network->now + process->clock_offset;
}

static uint64_t fake_random(struct transport *base) {
    return fake_network_random(fake_process_of(base)->network, UINT64_MAX);
}

static status fake_bind(struct transport *base, const char *endpoint) {
    struct fake_process *process = fake_process_of(base);
    for (const struct fake_process *other = process->network->processes; other; other = other->next)
        for (const struct fake_binding *at = other->bindings; at; at = at->next)
            if (!strcmp(at->endpoint, endpoint)) return fail(UNAVAILABLE, "%s: taken", endpoint);
    struct fake_binding *binding = fake_alloc(sizeof *binding + strlen(endpoint) + 1);
    strcpy(binding->endpoint, endpoint);
    binding->next = process->bindings;
    process->bindings = binding;
    return OK;
}

static status fake_connect(struct transport *base, const char *endpoint, const char *key, void *owner,
                           struct transport_link **out) {
    struct fake_process *process = fake_process_of(base);
    struct transport_link *link = fake_alloc(sizeof *link + strlen(endpoint) + 1), **last = &process->links;
    (void)key;
    strcpy(link->endpoint, endpoint);
    link->process = process;
    link->owner = owner;
    link->attempt_at = fake_delay(process->network, process->network->delay_ms);
    while (*last) last = &(*last)->next;
    *last = link;
    *out = link;
    return OK;
}

static void fake_disconnect(struct transport *base, struct transport_link *link) {
    struct fake_process *process = fake_process_of(base);
    struct transport_link **at = &process->links;
    while (*at != link) at = &(*at)->next;
    *at = link->next;
    if (link->connection) fake_connection_close(process->network, link->connection, TO_CLIENT, true);
    fake_connection_free_closed(process->network);
    free(link);
}

static bool fake_connected(struct transport *base, struct transport_link *link) {
    (void)base;
    return link->connection;
}

static void fake_add_fd(struct transport *base, int fd) {
    struct fake_process *process = fake_process_of(base);
    assert(process->fd_count < FDS_MAX);
    process->fds[process->fd_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static struct fake_connection *fake_find_client(const struct fake_process *process,
                                                const struct transport_client *client) {
    uint32_t number;
    assert(client->size == sizeof number);
    memcpy(&number, client->id, sizeof number);
    struct fake_connection *at = process->network->connections;
    while (at && at->number != number) at = at->next;
    return at && at->ends[TO_SERVER].open ? at : NULL;
}

static status fake_send(struct transport *base, struct transport_link *link, const struct transport_client *client,
                        const struct transport_frames *frames, bool *gone) {
    struct fake_process *process = fake_process_of(base);
    struct fake_connection *connection = link ? link->connection : fake_find_client(process, client);
    *gone = !connection || process->dead;
    if (*gone) return OK;
    process->network->sent++;
    struct fake_end *other = &connection->ends[link ? TO_SERVER : TO_CLIENT];
    if (!other->open) return OK; // the other end has closed, but that has not arrived here
    const size_t bulk_size = frames->count > 1 ? frames->bulk_size : 0;
    struct fake_message *message = fake_alloc(sizeof *message + frames->head_size + bulk_size);
    message->count = frames->count;
    message->head_size = frames->head_size;
    message->bulk_size = bulk_size;
    memcpy(message->data, frames->head, frames->head_size);
    if (bulk_size) memcpy(message->data + frames->head_size, frames->bulk, bulk_size);
    fake_end_push(process->network, other, message);
    return OK;
}

// Takes the next message for a process off its connection; NULL: none is due. *side says at which end it arrived.
static struct fake_message *fake_take(struct fake_process *process, struct fake_connection **from, int *side) {
    struct fake_network *network = process->network;
    int64_t earliest = INT64_MAX;
    for (struct fake_connection *at = network->connections; at; at = at->next)
        for (int k = 0; k < SIDES; k++) {
            if (at->ends[k].process != process) continue;
            const int64_t due = fake_end_due(network, at, k);
            if (due > network->now || due >= earliest) continue;
            earliest = due;
            *from = at;
            *side = k;
        }
    if (earliest == INT64_MAX) return NULL;
    struct fake_end *end = &(*from)->ends[*side];
    struct fake_message *message = end->first;
    end->first = message->next;
    if (!end->first) end->last = &end->first;
    return message;
}

static status fake_receive(struct transport *base, int timeout_ms, struct transport_event *event) {
    struct fake_process *process = fake_process_of(base);
    struct fake_connection *connection = NULL;
    struct fake_message *message;
    int side = 0;
    (void)timeout_ms;
    *event = (struct transport_event){0};
    free(process->received);
    process->received = NULL;
    if (process->dead || process->paused) return OK;
    fake_network_connect_links(process->network);
    if (process->fd_count && poll(process->fds, process->fd_count, 0) > 0) {
        for (nfds_t i = 0; i < process->fd_count; i++)
            if (process->fds[i].revents) event->fd = process->fds[i].fd;
        event->kind = TRANSPORT_READABLE;
        process->network->received++;
        return OK;
    }
    while ((message = fake_take(process, &connection, &side)) && message->close) {
        free(message);
        fake_connection_close(process->network, connection, side, true);
        fake_connection_free_closed(process->network);
    }
    if (!message) return OK;
    process->received = message;
    process->network->received++;
    event->kind = message->count ? TRANSPORT_MESSAGE : TRANSPORT_CONNECTED;
    event->owner = side == TO_CLIENT ? connection->link->owner : NULL;
    event->client.size = sizeof connection->number;
    memcpy(event->client.id, &connection->number, sizeof connection->number);
    event->frames = (struct transport_frames){.count = message->count,
                                              .head = message->data,
                                              .head_size = message->head_size,
                                              .bulk = message->count > 1 ? message->data + message->head_size : NULL,
                                              .bulk_size = message->bulk_size};
    return OK;
}

// Ends a process: what it sent last is lost if `abruptly`, and its peers learn that it is gone if `told`.
static void fake_process_end(struct fake_process *process, bool abruptly, bool told) {
    struct fake_network *network = process->network;
    process->dead = true;
    for (struct fake_connection *at = network->connections; at; at = at->next)
        for (int side = 0; side < SIDES; side++) {
            if (at->ends[side].process != process || !at->ends[side].open) continue;
            if (abruptly) fake_end_lose_tail(network, &at->ends[!side]);
            fake_connection_close(network, at, side, told);
        }
    fake_connection_free_closed(network);
    while (process->bindings) {
        struct fake_binding *next = process->bindings->next;
        free(process->bindings);
        process->bindings = next;
    }
}

static void fake_free(struct transport *base) {
    struct fake_process *process = fake_process_of(base), **at = &process->network->processes;
    fake_process_end(process, false, true);
    for (struct fake_connection *connection = process->network->connections; connection; connection = connection->next)
        for (int side = 0; side < SIDES; side++)
            if (connection->ends[side].process == process) connection->ends[side].process = NULL;
    for (struct fake_cut **cut = &process->network->cuts; *cut;) {
        struct fake_cut *next = (*cut)->next;
        if ((*cut)->a == process || (*cut)->b == process) {
            free(*cut);
            *cut = next;
        } else {
            cut = &(*cut)->next;
        }
    }
    while (process->links) fake_disconnect(base, process->links);
    while (*at != process) at = &(*at)->next;
    *at = process->next;
    free(process->received);
    free(process);
}

// ---- the network ----

struct fake_network *fake_network_new(uint64_t seed) {
    struct fake_network *network = fake_alloc(sizeof *network);
    network->seed = seed;
    network->now = CLOCK_START;
    network->delay_ms = DELAY_MS;
    return network;
}

void fake_network_free(struct fake_network **network) {
    assert(!(*network)->processes && !(*network)->connections && !(*network)->cuts);
    free(*network);
    *network = NULL;
}

struct transport *fake_network_add_process(struct fake_network *network) {
    static const struct transport_calls calls = {
        .now_ms = fake_now_ms,
        .random = fake_random,
        .bind = fake_bind,
        .connect = fake_connect,
        .disconnect = fake_disconnect,
        .connected = fake_connected,
        .add_fd = fake_add_fd,
        .send = fake_send,
        .receive = fake_receive,
        .free = fake_free,
    };
    struct fake_process *process = fake_alloc(sizeof *process), **last = &network->processes;
    process->base.calls = &calls;
    process->network = network;
    process->clock_offset = (int64_t)fake_network_random(network, CLOCK_OFFSET);
    while (*last) last = &(*last)->next;
    *last = process;
    return &process->base;
}

int64_t fake_network_now(const struct fake_network *network) {
    return network->now;
}

void fake_network_advance(struct fake_network *network, int64_t max_ms) {
    int64_t next = network->now + max_ms;
    for (const struct fake_connection *at = network->connections; at; at = at->next)
        for (int side = 0; side < SIDES; side++) {
            const int64_t due = fake_end_due(network, at, side);
            if (due < next) next = due;
        }
    for (const struct fake_process *process = network->processes; process; process = process->next)
        for (const struct transport_link *link = process->links; link && !process->paused && !process->dead;
             link = link->next)
            if (!link->connection && link->attempt_at < next) next = link->attempt_at;
    network->now = next > network->now ? next : network->now + 1;
}

void fake_network_set_delay(struct fake_network *network, int64_t max_ms) {
    network->delay_ms = max_ms;
}

int64_t fake_network_sent(const struct fake_network *network) {
    return network->sent;
}

int64_t fake_network_received(const struct fake_network *network) {
    return network->received;
}

void fake_network_kill(struct transport *process) {
    fake_process_end(fake_process_of(process), true, true);
}

void fake_network_vanish(struct transport *process) {
    fake_process_end(fake_process_of(process), true, false);
}

void fake_network_pause(struct transport *process, bool paused) {
    fake_process_of(process)->paused = paused;
}

void fake_network_break(struct transport *a, struct transport *b) {
    const struct fake_process *first = fake_process_of(a), *second = fake_process_of(b);
    struct fake_network *network = first->network;
    for (struct fake_connection *at = network->connections; at; at = at->next) {
        const struct fake_process *server = at->ends[TO_SERVER].process, *client = at->ends[TO_CLIENT].process;
        if (!(server == first && client == second) && !(server == second && client == first)) continue;
        for (int side = 0; side < SIDES; side++) {
            if (!at->ends[side].open) continue;
            fake_end_lose_tail(network, &at->ends[side]);
            struct fake_message *close = fake_alloc(sizeof *close);
            close->close = true;
            fake_end_push(network, &at->ends[side], close);
        }
    }
}

void fake_network_cut(struct transport *a, struct transport *b, bool cut) {
    const struct fake_process *first = fake_process_of(a), *second = fake_process_of(b);
    struct fake_network *network = first->network;
    struct fake_cut **found = fake_find_cut(network, first, second);
    if (cut == (*found != NULL)) return;
    if (cut) {
        *found = fake_alloc(sizeof **found);
        **found = (struct fake_cut){.a = first, .b = second, .since = network->now};
        return;
    }
    struct fake_cut *ended = *found;
    *found = ended->next;
    for (struct fake_connection *at = network->connections; at; at = at->next) {
        const struct fake_process *server = at->ends[TO_SERVER].process, *client = at->ends[TO_CLIENT].process;
        if ((server == first && client == second) || (server == second && client == first))
            at->stuck_until = fake_delay(network, network->now - ended->since);
    }
    free(ended);
}
