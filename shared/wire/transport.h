// What carries the messages of a wire (wire.h): ZeroMQ's sockets in the programs, a simulated network
// in the tests. The session layer calls nothing else, not even a clock.
//
// A transport has one server socket, which may be bound to several endpoints, and any number of links. A link is a
// connection to another process's server socket; the transport opens it again by itself when it is lost. One
// connection delivers its messages once and in order. Messages are lost only together with their connection: those at
// the end. Messages of different connections come in any order.
//
// Ownership: wire_open takes a transport over, and the wire frees it. A link belongs to its transport until
// `disconnect` or `free`. What an event points to belongs to the transport and is valid until the next `receive`,
// `disconnect` or `free`. What `send` and `connect` are given stays the caller's. All calls come from one thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

struct transport_link; // a connection to a server

enum { MAX_TRANSPORT_CLIENT = 32 };

// A client's connection to the server socket: the routing id that the server socket gave it.
struct transport_client {
    char id[MAX_TRANSPORT_CLIENT];
    size_t size;
};

// The frames of a message.
struct transport_frames {
    int count; // 1: the head; 2: head and bulk; 3: more, which are not kept
    const void *head;
    size_t head_size;
    const void *bulk;
    size_t bulk_size;
    bool bulk_stays; // when sending: the bulk does not change until the other side has it or the transport is freed,
                     // so it need not be copied
};

enum transport_event_kind {
    TRANSPORT_NOTHING,   // nothing happened in time
    TRANSPORT_READABLE,  // `fd` is readable
    TRANSPORT_CONNECTED, // a connection from `client` to the server socket has opened; no message of it comes earlier
    TRANSPORT_MESSAGE,   // `frames` came from the link of `owner`, or if that is NULL from `client`
};

struct transport_event {
    enum transport_event_kind kind;
    int fd;
    void *owner;
    struct transport_client client;
    const char *key; // the client's public key, NULL without security
    struct transport_frames frames;
};

// An implementation's struct begins with this one.
struct transport {
    const struct transport_calls *calls;
};

struct transport_calls {
    // Milliseconds since an arbitrary moment; no one can set this clock.
    int64_t (*now_ms)(struct transport *transport);

    // 64 bits that no one else draws.
    uint64_t (*random)(struct transport *transport);

    // Binds the server socket to one more endpoint. UNAVAILABLE when it is taken.
    status (*bind)(struct transport *transport, const char *endpoint);

    // Opens a link to a server, whether that is there already or comes later. `key` is its public key, NULL without
    // security; events of the link name `owner`. USAGE when the key is missing or wrong.
    status (*connect)(struct transport *transport, const char *endpoint, const char *key, void *owner,
                      struct transport_link **out);

    // Closes and frees a link. Messages that were sent are still delivered if the connection holds.
    void (*disconnect)(struct transport *transport, struct transport_link *link);

    // Whether a link has a connection now, or messages of its last one that were not received yet.
    bool (*connected)(struct transport *transport, struct transport_link *link);

    // Makes `receive` report READABLE when the descriptor is.
    void (*add_fd)(struct transport *transport, int fd);

    // Sends one or two frames over a link or, if that is NULL, to a client. *gone: there is no connection, and nothing
    // was sent.
    status (*send)(struct transport *transport, struct transport_link *link, const struct transport_client *client,
                   const struct transport_frames *frames, bool *gone);

    // Waits up to timeout_ms for the next event. May return NOTHING earlier.
    status (*receive)(struct transport *transport, int timeout_ms, struct transport_event *event);

    // Closes all links and the server socket, and frees the transport. Waits half a second at most until the last
    // messages are on their way.
    void (*free)(struct transport *transport);
};

// ---- ZeroMQ ----

// CURVE between machines: key files, and the keys that are admitted. A key file has two lines, `public KEY` and
// `secret KEY`, each 40 characters of Z85, and only its owner may read it.

enum { WIRE_KEY = 41 }; // characters of a key with its NUL

// A machine's own keys and those that it admits. Zeroed: no security.
struct wire_security {
    char public[WIRE_KEY];
    char secret[WIRE_KEY];
    char (*admitted)[WIRE_KEY];
    size_t count;
};

// Whether `key` looks like a key: 40 characters of Z85.
bool wire_key_valid(const char *key);

// Makes a new pair of keys. UNAVAILABLE when libzmq has no CURVE.
status wire_key_make(struct wire_security *out);

// Writes a new key file, mode 0600; USAGE when the file exists, UNAVAILABLE when the disk refuses.
status wire_key_write(const struct wire_security *keys, const char *path);

// Reads a key file; `admitted` stays as it is. DATAERR when it cannot be read, is malformed, or other users may read
// it.
status wire_key_read(struct wire_security *keys, const char *path);

// Admits one more machine.
void wire_admit(struct wire_security *security, const char *key);

// Frees what it holds, wipes the secret, and leaves no security.
void wire_security_release(struct wire_security *security);

enum {
    MAX_LOCAL_PATH = 107,                 // bytes of a path that fits the address of a Unix socket
    MAX_LOCAL_NAME = MAX_LOCAL_PATH - 25, // bytes of a file name in an endpoint "ipc://DIRECTORY/NAME"
};

// Opens a transport over ZeroMQ, without sockets yet: the server socket is a ROUTER, each link a DEALER, over
// "ipc://..." or "tcp://..." with CURVE if there is security. `security` must outlive it; NULL or zeroed: none.
// UNAVAILABLE when libzmq fails. Give it to wire_open.
status zmq_transport_open(struct transport **out, const struct wire_security *security);

// Lets libzmq use `count` threads, among which it divides the connections; at first it uses one. More are faster only
// where much is encrypted. Before the transport's first socket.
void zmq_transport_use_threads(struct transport *transport, int count);
