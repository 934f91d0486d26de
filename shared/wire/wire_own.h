// What the wire's files share. wire.c: opening, saying, time; wire_hear.c: what comes in.
#ifndef SHARED_WIRE_WIRE_OWN_H
#define SHARED_WIRE_WIRE_OWN_H

#include <zmq.h>

#include "shared/wire/zap.h"
#include "shared/wire/wire.h"

enum { IDENTITY = 32 }; // bytes of a routing id at most

struct wire_peer {
    struct wire_peer *next;
    void *socket; // of a visit; NULL: a visitor at the desk
    char *name, *machine, *purpose;
    int replica;
    char identity[IDENTITY];
    size_t identity_size;
    bool open, refused;
    bool lost; // GONE is to be said
    bool dead; // to be freed
    int64_t heard, spoke;
    void *tag;
};

struct wire {
    struct wire_self self;
    void *context, *desk;
    struct zap *zap;
    struct wire_peer *peers;
    zmq_pollitem_t *items;     // desk, visits, descriptors; rebuilt after a change
    struct wire_peer **owners; // of the items: NULL for the desk and descriptors
    size_t count, turn;
    int *fds;
    size_t fd_count;
    bool changed;
    int64_t looked;     // when beats and silence were last looked after
    struct arena arena; // of the last message
    zmq_msg_t bulk;     // of the last message
    struct buf frame;
};

// UNAVAILABLE with what libzmq says of its last failure.
status wire_socket_failure(const char *what);

// A peer in the list, not open yet. UNAVAILABLE when memory is short.
status wire_peer_new(struct wire *wire, const char *name, const char *machine, const char *purpose,
                     struct wire_peer **out);

// Sends to a routing id (size 0: over a visit's socket). *gone: nobody is there.
status wire_send_frames(struct wire *wire, void *socket, const char *identity, size_t size,
                        const struct wire_message *message, bool *gone);

// Opens a visit's conversation.
status wire_say_hello(struct wire *wire, struct wire_peer *peer);

// Keeps a copy of a text in place of what was there. UNAVAILABLE when memory is short.
status wire_set_text(char **place, const char *text);

// Fills in the event; true.
bool wire_keep_event(struct wire_event *event, enum wire_event_kind kind, struct wire_peer *peer);

// Receives one message from the desk (owner NULL) or a visit, and deals with it. *happened: *event says what.
status wire_hear(struct wire *wire, void *socket, struct wire_peer *owner, struct wire_event *event, bool *happened);

#endif
