// Sockets are polled together; what a poll found ready is received before the next one. A client is known by the
// routing id that libzmq gave its connection, so one that connects anew is a new client.
//
// The address of a Unix socket holds 107 bytes only; here a path may be as long as a path may be: its directory is
// opened, and the socket is named through /proc/self/fd. A socket whose file was removed, as cleaners of temporary
// files do, is made again.
#include "shared/wire/transport.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"

#define LOCAL_PREFIX "ipc://"
enum { LOCAL_PREFIX_SIZE = sizeof LOCAL_PREFIX - 1 };

enum {
    LINGER_MS = 500,   // for the last messages
    CONNECT_MS = 2000, // without an answer, before a connection is tried again
    RECONNECT_MS = 50, // after a connection was closed or refused; libzmq adds up to as much at random
    LOST_MS = 10000,   // before a TCP connection is closed whose other side does not acknowledge what was sent
    IDLE_S = 10,       // before the other side of a silent TCP connection is asked whether it is there
    LOOK_MS = 1000,    // between two looks at the files of the Unix sockets
    MAX_RECEIVED = 32, // messages between two polls, so that no socket or descriptor waits for long
};

static_assert(MAX_LOCAL_PATH == sizeof((struct sockaddr_un *)0)->sun_path - 1, "the address of a Unix socket");
static_assert(sizeof "/proc/self/fd/2147483647/" - 1 <= MAX_LOCAL_PATH - MAX_LOCAL_NAME, "any directory");

struct transport_link {
    struct transport_link *next;
    void *socket, *owner;
};

// A directory that is open, because the paths of its sockets are too long.
struct local_directory {
    const char *path;
    int fd;
};

// An endpoint for libzmq. `text` is valid as long as this struct, the transport and the endpoint that it was made of.
struct local_endpoint {
    const char *text;
    char shortened[MAX_LOCAL_PATH + 8];
};

struct zmq_transport {
    struct transport base;
    const struct wire_security *security;
    void *context, *server;
    pthread_t zap_thread;
    void *zap_socket;   // of that thread; NULL: there is none
    struct arena arena; // of the paths below
    struct local_directory *directories;
    size_t directory_count;
    const char **bound; // Unix sockets of the server, as libzmq knows them
    size_t bound_count;
    bool lost;         // one was removed and could not be made again, which was logged
    int64_t looked_at; // milliseconds: when they were last looked at
    struct transport_link *links;
    int *fds;
    size_t fd_count;
    zmq_pollitem_t *items;        // descriptors, server socket, links; rebuilt after a change
    struct transport_link **from; // of the items: NULL for the server socket and descriptors
    size_t item_count, first_item;
    int received; // since the last poll
    bool changed;
    zmq_msg_t head, bulk; // of the last message
};

static status zmq_transport_failure(const char *what) {
    return fail(UNAVAILABLE, "%s: %s", what, zmq_strerror(zmq_errno()));
}

static struct zmq_transport *zmq_transport_of(struct transport *base) {
    return (struct zmq_transport *)base;
}

static int64_t zmq_transport_now_ms(struct transport *base) {
    (void)base;
    return clock_monotonic_ms();
}

static uint64_t zmq_transport_random(struct transport *base) {
    uint64_t bits;
    ssize_t size;
    (void)base;
    do {
        size = getrandom(&bits, sizeof bits, 0);
    } while (size != sizeof bits); // a signal came before the kernel had its entropy
    return bits;
}

// ---- local ----

// *out = an endpoint that means the same as `endpoint`. Only "ipc://PATH" with a long path is changed. UNAVAILABLE when
// the directory cannot be opened, USAGE when the file's name is too long.
static status local_endpoint(struct zmq_transport *transport, const char *endpoint, struct local_endpoint *out) {
    const char *path = endpoint + LOCAL_PREFIX_SIZE, *slash = strrchr(endpoint, '/');
    out->text = endpoint;
    if (strncmp(endpoint, LOCAL_PREFIX, LOCAL_PREFIX_SIZE) != 0 || strlen(path) <= MAX_LOCAL_PATH) return OK;
    if (strlen(slash + 1) > MAX_LOCAL_NAME) return fail(USAGE, "%s: the name is too long for a socket", path);
    const size_t size = (size_t)(slash - path), count = transport->directory_count;
    size_t i = 0;
    while (i < count &&
           (strncmp(transport->directories[i].path, path, size) != 0 || transport->directories[i].path[size]))
        i++;
    if (i == count) { // it is opened once, and stays open
        const char *copy = arena_strndup(&transport->arena, path, size);
        const int opened = open(copy, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (opened < 0) return fail(UNAVAILABLE, "%s: %s", copy, strerror(errno));
        RESIZE(&transport->directories, count + 1);
        transport->directories[transport->directory_count++] = (struct local_directory){copy, opened};
    }
    const int fd = transport->directories[i].fd;
    snprintf(out->shortened, sizeof out->shortened, LOCAL_PREFIX "/proc/self/fd/%d/%s", fd, slash + 1);
    out->text = out->shortened;
    return OK;
}

// ---- security ----

static_assert(WIRE_KEY == 41, "Z85 writes 32 bytes as 40 characters");

bool wire_key_valid(const char *key) {
    uint8_t raw[32];
    return key && strlen(key) == WIRE_KEY - 1 && zmq_z85_decode(raw, key) != NULL;
}

status wire_key_make(struct wire_security *out) {
    if (zmq_curve_keypair(out->public, out->secret))
        return fail(UNAVAILABLE, "CURVE keys: %s", zmq_strerror(zmq_errno()));
    return OK;
}

status wire_key_write(const struct wire_security *keys, const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST) return fail(USAGE, "%s: the file exists, and a key is never overwritten", path);
    if (fd < 0) return fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    struct buf text = {0};
    buf_printf(&text, "public %s\nsecret %s\n", keys->public, keys->secret);
    status result =
        fd_write_all(fd, text.data, text.size) && !fsync(fd) ? OK : fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    close(fd);
    if (result != OK) unlink(path);
    explicit_bzero(text.data, text.size);
    buf_release(&text);
    return result;
}

static status security_read_key(const struct buf *text, const char *word, char key[WIRE_KEY], const char *path) {
    size_t length = strlen(word);
    for (const char *at = text->data; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        if (strncmp(at, word, length) != 0 || at[length] != ' ') continue;
        strncpy(key, at + length + 1, WIRE_KEY - 1);
        key[WIRE_KEY - 1] = 0;
        if (wire_key_valid(key)) return OK;
        return fail(DATAERR, "%s: the %s key is malformed", path, word);
    }
    return fail(DATAERR, "%s: not a key file: it has no %s key", path, word);
}

status wire_key_read(struct wire_security *keys, const char *path) {
    struct stat about;
    if (stat(path, &about)) return fail(DATAERR, "%s: %s", path, strerror(errno));
    if (about.st_mode & 077) return fail(DATAERR, "%s: other users may read this key; type: chmod 600 %s", path, path);
    struct buf text = {0};
    status result = file_read(path, &text);
    if (result == OK) result = security_read_key(&text, "public", keys->public, path);
    if (result == OK) result = security_read_key(&text, "secret", keys->secret, path);
    if (text.data) explicit_bzero(text.data, text.size);
    buf_release(&text);
    return result;
}

void wire_admit(struct wire_security *security, const char *key) {
    RESIZE(&security->admitted, security->count + 1);
    strncpy(security->admitted[security->count], key, WIRE_KEY - 1);
    security->admitted[security->count++][WIRE_KEY - 1] = 0;
}

void wire_security_release(struct wire_security *security) {
    free(security->admitted);
    explicit_bzero(security, sizeof *security);
}

// ---- zap ----

// libzmq asks a thread (ZAP, RFC 27) about each client that connects with CURVE.
//
// A request has the frames version, request id, domain, address, identity, mechanism, credentials; the reply version,
// request id, status code, status text, user id, metadata.
#define ZAP_ENDPOINT "inproc://zeromq.zap.01"

enum { ZAP_VERSION, ZAP_REQUEST_ID, ZAP_DOMAIN, ZAP_ADDRESS, ZAP_IDENTITY, ZAP_MECHANISM, ZAP_CREDENTIALS, ZAP_FRAMES };
enum { MAX_ZAP_FRAME = 256, ZAP_KEY_BYTES = 32 };
static_assert(ZAP_KEY_BYTES / 4 * 5 + 1 == WIRE_KEY, "Z85 writes 4 bytes as 5 characters");

static void *zap_run(void *argument) {
    const struct zmq_transport *transport = argument;
    const struct wire_security *security = transport->security;
    void *socket = transport->zap_socket;
    struct log_limit limit = {0};
    for (;;) {
        // The frames of a request, each terminated with NUL; a longer one is cut to fit. One more than ZAP_FRAMES
        // stands for all that are too many.
        char data[ZAP_FRAMES + 1][MAX_ZAP_FRAME];
        int sizes[ZAP_FRAMES + 1], count = 0, more = 1;
        for (size_t length = sizeof more; more; count++) {
            const int at = count < ZAP_FRAMES ? count : ZAP_FRAMES;
            int size = zmq_recv(socket, data[at], MAX_ZAP_FRAME - 1, 0);
            while (size < 0 && zmq_errno() == EINTR) // a signal does not end the thread: nobody could connect any more
                size = zmq_recv(socket, data[at], MAX_ZAP_FRAME - 1, 0);
            if (size < 0 || zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length)) return NULL; // the context ends
            sizes[at] = size < MAX_ZAP_FRAME ? size : MAX_ZAP_FRAME - 1;
            data[at][sizes[at]] = 0;
        }
        if (sizes[0] == 4 && !memcmp(data[0], "stop", 4)) return NULL;
        char key[WIRE_KEY] = "";
        bool valid = count == ZAP_FRAMES && !strcmp(data[ZAP_MECHANISM], "CURVE") &&
                     sizes[ZAP_CREDENTIALS] == ZAP_KEY_BYTES &&
                     zmq_z85_encode(key, (const uint8_t *)data[ZAP_CREDENTIALS], ZAP_KEY_BYTES);
        bool admitted = false;
        for (size_t i = 0; valid && !admitted && i < security->count; i++)
            admitted = !strcmp(security->admitted[i], key);
        if (valid && !admitted)
            log_limited(&limit, clock_monotonic_ms(),
                        "refused a peer at %s: its key %s belongs to no machine of this run", data[ZAP_ADDRESS], key);
        const char *text = admitted ? "welcome" : "not of this run";
        size_t id_size = count > ZAP_REQUEST_ID ? (size_t)sizes[ZAP_REQUEST_ID] : 0;
        // A reply that cannot be sent leaves the client unconnected; it tries again.
        zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
        zmq_send(socket, data[ZAP_REQUEST_ID], id_size, ZMQ_SNDMORE);
        zmq_send(socket, admitted ? "200" : "400", 3, ZMQ_SNDMORE);
        zmq_send(socket, text, strlen(text), ZMQ_SNDMORE);
        zmq_send(socket, key, admitted ? WIRE_KEY - 1 : 0, ZMQ_SNDMORE);
        zmq_send(socket, "", 0, 0);
    }
}

// ---- sockets ----

static status zmq_transport_set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) ? zmq_transport_failure("socket option") : OK;
}

static status zmq_transport_set_common(void *socket) {
    const int64_t message_max = (int64_t)1 << 31;
    TRY(zmq_transport_set_int(socket, ZMQ_SNDHWM, 0));
    TRY(zmq_transport_set_int(socket, ZMQ_RCVHWM, 0));
    TRY(zmq_transport_set_int(socket, ZMQ_LINGER, LINGER_MS));
    TRY(zmq_transport_set_int(socket, ZMQ_IPV6, 1));
    // libzmq's own heartbeats would do the same, but with them a process whose peer ends while it closes a socket is
    // ended by an assertion of libzmq.
    TRY(zmq_transport_set_int(socket, ZMQ_TCP_MAXRT, LOST_MS));
    TRY(zmq_transport_set_int(socket, ZMQ_TCP_KEEPALIVE, 1));
    TRY(zmq_transport_set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, IDLE_S));
    TRY(zmq_transport_set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, 1));
    TRY(zmq_transport_set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, LOST_MS / 1000));
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_max, sizeof message_max)
               ? zmq_transport_failure("socket option")
               : OK;
}

static status zmq_transport_bind(struct transport *base, const char *endpoint) {
    struct zmq_transport *transport = zmq_transport_of(base);
    const struct wire_security *security = transport->security;
    if (!transport->server) {
        if (security) { // a thread admits its keys; a client's user id is its key
            const int linger = 0;
            void *socket = transport->zap_socket = zmq_socket(transport->context, ZMQ_REP);
            if (!socket || zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) ||
                zmq_bind(socket, ZAP_ENDPOINT) || pthread_create(&transport->zap_thread, NULL, zap_run, transport)) {
                status result = fail(UNAVAILABLE, "cannot authenticate clients: %s", zmq_strerror(zmq_errno()));
                if (socket) zmq_close(socket);
                transport->zap_socket = NULL;
                return result;
            }
        }
        void *server = transport->server = zmq_socket(transport->context, ZMQ_ROUTER);
        if (!server) return zmq_transport_failure("server socket");
        transport->changed = true;
        TRY(zmq_transport_set_common(server));
        TRY(zmq_transport_set_int(server, ZMQ_ROUTER_MANDATORY, 1));
        if (security) TRY(zmq_transport_set_int(server, ZMQ_CURVE_SERVER, 1));
        if (security && zmq_setsockopt(server, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY))
            return zmq_transport_failure("CURVE");
        if (security && zmq_setsockopt(server, ZMQ_ZAP_DOMAIN, "caravan", strlen("caravan")))
            return zmq_transport_failure("ZAP");
    }
    struct local_endpoint address;
    TRY(local_endpoint(transport, endpoint, &address));
    if (zmq_bind(transport->server, address.text)) return zmq_transport_failure(endpoint);
    if (strncmp(address.text, LOCAL_PREFIX, LOCAL_PREFIX_SIZE) != 0) return OK;
    RESIZE(&transport->bound, transport->bound_count + 1);
    transport->bound[transport->bound_count++] = arena_strndup(&transport->arena, address.text, strlen(address.text));
    return OK;
}

static status zmq_transport_connect(struct transport *base, const char *endpoint, const char *key, void *owner,
                                    struct transport_link **out) {
    struct zmq_transport *transport = zmq_transport_of(base);
    const struct wire_security *security = transport->security;
    struct transport_link *link;
    struct local_endpoint address;
    status result;
    *out = NULL;
    NEW(&link, 1);
    link->owner = owner;
    TRY_TO(result, failed, local_endpoint(transport, endpoint, &address));
    link->socket = zmq_socket(transport->context, ZMQ_DEALER);
    TRY_TO(result, failed, link->socket ? OK : zmq_transport_failure(endpoint));
    TRY_TO(result, failed, zmq_transport_set_common(link->socket));
    TRY_TO(result, failed, zmq_transport_set_int(link->socket, ZMQ_IMMEDIATE, 1));
    TRY_TO(result, failed, zmq_transport_set_int(link->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS));
    TRY_TO(result, failed, zmq_transport_set_int(link->socket, ZMQ_CONNECT_TIMEOUT, CONNECT_MS));
    TRY_TO(result, failed, zmq_transport_set_int(link->socket, ZMQ_PROBE_ROUTER, 1));
    if (security && (!key || zmq_setsockopt(link->socket, ZMQ_CURVE_SERVERKEY, key, WIRE_KEY) ||
                     zmq_setsockopt(link->socket, ZMQ_CURVE_PUBLICKEY, security->public, WIRE_KEY) ||
                     zmq_setsockopt(link->socket, ZMQ_CURVE_SECRETKEY, security->secret, WIRE_KEY)))
        TRY_TO(result, failed, fail(USAGE, "%s: its key is missing or wrong", endpoint));
    TRY_TO(result, failed, zmq_connect(link->socket, address.text) ? zmq_transport_failure(endpoint) : OK);
    struct transport_link **last = &transport->links;
    while (*last) last = &(*last)->next;
    *last = link;
    transport->changed = true;
    *out = link;
    return OK;
failed:
    if (link->socket) zmq_close(link->socket);
    free(link);
    return result;
}

static void zmq_transport_disconnect(struct transport *base, struct transport_link *link) {
    struct zmq_transport *transport = zmq_transport_of(base);
    struct transport_link **at = &transport->links;
    while (*at != link) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = link->next;
    transport->changed = true;
    zmq_close(link->socket);
    free(link);
}

// A link can send exactly while it has a connection: there is no high-water mark.
static bool zmq_transport_connected(struct transport *base, struct transport_link *link) {
    int events = 0;
    size_t size = sizeof events;
    (void)base;
    return !zmq_getsockopt(link->socket, ZMQ_EVENTS, &events, &size) && (events & (ZMQ_POLLIN | ZMQ_POLLOUT));
}

static void zmq_transport_add_fd(struct transport *base, int fd) {
    struct zmq_transport *transport = zmq_transport_of(base);
    RESIZE(&transport->fds, transport->fd_count + 1);
    transport->fds[transport->fd_count++] = fd;
    transport->changed = true;
}

static void zmq_transport_free(struct transport *base) {
    struct zmq_transport *transport = zmq_transport_of(base);
    while (transport->links) zmq_transport_disconnect(base, transport->links);
    if (transport->server) zmq_close(transport->server);
    if (transport->zap_socket) { // ends its thread
        const int linger = 0;
        void *stop = zmq_socket(transport->context, ZMQ_REQ);
        if (stop && !zmq_setsockopt(stop, ZMQ_LINGER, &linger, sizeof linger) && !zmq_connect(stop, ZAP_ENDPOINT))
            zmq_send(stop, "stop", 4, 0);
        pthread_join(transport->zap_thread, NULL);
        if (stop) zmq_close(stop);
        zmq_close(transport->zap_socket);
    }
    zmq_msg_close(&transport->head);
    zmq_msg_close(&transport->bulk);
    while (zmq_ctx_term(transport->context) && errno == EINTR) continue; // a signal came
    for (size_t i = 0; i < transport->directory_count; i++) close(transport->directories[i].fd);
    arena_release(&transport->arena);
    free(transport->directories);
    free(transport->bound);
    free(transport->items);
    free(transport->from);
    free(transport->fds);
    free(transport);
}

// ---- messages ----

static status zmq_transport_send(struct transport *base, struct transport_link *link,
                                 const struct transport_client *client, const struct transport_frames *frames,
                                 bool *gone) {
    void *socket = link ? link->socket : zmq_transport_of(base)->server;
    const bool bulk = frames->count > 1;
    int sent = 0;
    assert(frames->count == 1 || frames->count == 2);
    *gone = false;
    if (!link) sent = zmq_send(socket, client->id, client->size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (sent >= 0) sent = zmq_send(socket, frames->head, frames->head_size, (bulk ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
    if (sent >= 0 && bulk && frames->bulk_stays) {
        zmq_msg_t message; // of constant data, which libzmq does not free
        zmq_msg_init_data(&message, (void *)(uintptr_t)frames->bulk, frames->bulk_size, NULL, NULL);
        sent = zmq_msg_send(&message, socket, ZMQ_DONTWAIT);
    } else if (sent >= 0 && bulk) {
        sent = zmq_send(socket, frames->bulk, frames->bulk_size, ZMQ_DONTWAIT);
    }
    if (sent >= 0) return OK;
    if (zmq_errno() != EHOSTUNREACH && zmq_errno() != EAGAIN) return zmq_transport_failure("sending");
    *gone = true;
    return OK;
}

// Receives one frame. *more: another follows. *none: nothing was there.
static status zmq_transport_receive_frame(void *socket, zmq_msg_t *frame, bool *more, bool *none) {
    *none = false;
    if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
        *more = false;
        *none = zmq_errno() == EAGAIN || zmq_errno() == EINTR;
        return *none ? OK : zmq_transport_failure("receiving");
    }
    *more = zmq_msg_more(frame);
    return OK;
}

// Receives a message over a link or, if that is NULL, from a client. An empty one says that the client has connected:
// its socket sends it by ZMQ_PROBE_ROUTER. A client with a longer routing id than libzmq gives is no peer and is
// ignored.
static status zmq_transport_receive_message(struct zmq_transport *transport, struct transport_link *link,
                                            struct transport_event *event) {
    void *socket = link ? link->socket : transport->server;
    struct transport_client *client = &event->client;
    struct transport_frames *frames = &event->frames;
    bool more = true, none = false;
    if (!link) {
        TRY(zmq_transport_receive_frame(socket, &transport->head, &more, &none));
        if (none) return OK;
        client->size = zmq_msg_size(&transport->head);
        if (client->size <= sizeof client->id) memcpy(client->id, zmq_msg_data(&transport->head), client->size);
    }
    if (more) TRY(zmq_transport_receive_frame(socket, &transport->head, &more, &none));
    if (none) return OK;
    *frames = (struct transport_frames){
        .count = 1, .head = zmq_msg_data(&transport->head), .head_size = zmq_msg_size(&transport->head)};
    while (more) { // a third frame takes the place of the second: the message is malformed anyway
        TRY(zmq_transport_receive_frame(socket, &transport->bulk, &more, &none));
        if (frames->count < 3) frames->count++;
    }
    if (frames->count > 1) {
        frames->bulk = zmq_msg_data(&transport->bulk);
        frames->bulk_size = zmq_msg_size(&transport->bulk);
    }
    if (client->size > sizeof client->id) return OK;
    event->kind = !link && frames->count == 1 && !frames->head_size ? TRANSPORT_CONNECTED : TRANSPORT_MESSAGE;
    event->owner = link ? link->owner : NULL;
    // The user that the ZAP handler has admitted: its key.
    if (!link && transport->security) event->key = zmq_msg_gets(&transport->head, "User-Id");
    return OK;
}

// ---- polling ----

static void zmq_transport_add_item(struct zmq_transport *transport, int fd, void *socket, struct transport_link *from) {
    const size_t at = transport->item_count++;
    RESIZE(&transport->items, at + 1);
    RESIZE(&transport->from, at + 1);
    transport->items[at] = (zmq_pollitem_t){.fd = fd, .socket = socket, .events = ZMQ_POLLIN};
    transport->from[at] = from;
}

// Receives from the next socket that the last poll found ready. Begins behind the item of the last event, so that none
// is starved.
static status zmq_transport_receive_ready(struct zmq_transport *transport, struct transport_event *event) {
    for (size_t i = 0; i < transport->item_count; i++) {
        const size_t at = (transport->first_item + i) % transport->item_count;
        zmq_pollitem_t *item = &transport->items[at];
        if (!(item->revents & (ZMQ_POLLIN | ZMQ_POLLERR))) continue;
        if (item->socket) {
            TRY(zmq_transport_receive_message(transport, transport->from[at], event));
        } else {
            event->kind = TRANSPORT_READABLE;
            event->fd = item->fd;
        }
        if (event->kind == TRANSPORT_NOTHING || !item->socket) item->revents = 0;
        if (event->kind == TRANSPORT_NOTHING) continue;
        transport->first_item = (at + 1) % transport->item_count;
        transport->received++;
        return OK;
    }
    return OK;
}

static status zmq_transport_receive(struct transport *base, int timeout_ms, struct transport_event *event) {
    struct zmq_transport *transport = zmq_transport_of(base);
    *event = (struct transport_event){0};
    if (!transport->changed && transport->received < MAX_RECEIVED) {
        TRY(zmq_transport_receive_ready(transport, event));
        if (event->kind != TRANSPORT_NOTHING) return OK;
    }
    if (transport->changed) { // lists what is to be polled
        transport->item_count = 0;
        for (size_t i = 0; i < transport->fd_count; i++)
            zmq_transport_add_item(transport, transport->fds[i], NULL, NULL);
        if (transport->server) zmq_transport_add_item(transport, 0, transport->server, NULL);
        for (struct transport_link *link = transport->links; link; link = link->next)
            zmq_transport_add_item(transport, 0, link->socket, link);
        transport->changed = false;
    }
    transport->received = 0;
    const int64_t now = clock_monotonic_ms();
    const bool look = now - transport->looked_at > LOOK_MS;
    if (look) transport->looked_at = now;
    for (size_t i = 0; look && i < transport->bound_count; i++) { // binds Unix sockets again whose files are gone
        const char *path = transport->bound[i] + LOCAL_PREFIX_SIZE;
        if (!access(path, F_OK)) continue;
        const bool made = zmq_bind(transport->server, transport->bound[i]) == 0;
        if (made)
            log_info("%s was removed and is made again", path);
        else if (!transport->lost)
            log_info("%s was removed and cannot be made again: %s", path, strerror(errno));
        transport->lost = !made;
    }
    if (zmq_poll(transport->items, (int)transport->item_count, timeout_ms) < 0) {
        if (zmq_errno() != EINTR) return zmq_transport_failure("waiting");
        for (size_t i = 0; i < transport->item_count; i++) transport->items[i].revents = 0;
    }
    return zmq_transport_receive_ready(transport, event);
}

// ---- opening ----

status zmq_transport_open(struct transport **out, const struct wire_security *security) {
    static const struct transport_calls calls = {
        .now_ms = zmq_transport_now_ms,
        .random = zmq_transport_random,
        .bind = zmq_transport_bind,
        .connect = zmq_transport_connect,
        .disconnect = zmq_transport_disconnect,
        .connected = zmq_transport_connected,
        .add_fd = zmq_transport_add_fd,
        .send = zmq_transport_send,
        .receive = zmq_transport_receive,
        .free = zmq_transport_free,
    };
    void *context = zmq_ctx_new();
    struct zmq_transport *transport;
    *out = NULL;
    if (!context) return zmq_transport_failure("sockets");
    // At first 1023, of which each link takes one: a stage before which many replicas run has more.
    const int failed = zmq_ctx_set(context, ZMQ_MAX_SOCKETS, zmq_ctx_get(context, ZMQ_SOCKET_LIMIT));
    assert(!failed);
    (void)failed;
    NEW(&transport, 1);
    transport->base.calls = &calls;
    transport->security = security && *security->secret ? security : NULL;
    transport->context = context;
    transport->changed = true;
    zmq_msg_init(&transport->head);
    zmq_msg_init(&transport->bulk);
    *out = &transport->base;
    return OK;
}

void zmq_transport_use_threads(struct transport *transport, int count) {
    const int failed = zmq_ctx_set(zmq_transport_of(transport)->context, ZMQ_IO_THREADS, count);
    assert(!failed && count >= 1);
    (void)failed;
}
