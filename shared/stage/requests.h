// Transfers of files and records from the replicas of a stage (optim's weights, clips of frames) to threads that wait
// for them: piece by piece, in order, several pieces under way. When a peer is lost, a transfer goes on where it
// stopped, at another replica if need be. The caller locks.
#pragma once

#include "shared/wire/node_config.h"
#include "shared/wire/wire.h"

// A transfer; on the stack of the thread that waits for it. The caller sets the first members and zeroes the rest.
struct transfer {
    const char *stage, *purpose;
    enum message_kind kind; // MESSAGE_FETCH: a file of weights, MESSAGE_GET: a clip
    int64_t hash;           // FETCH: of the weights
    const char *id;         // GET: key of the clip; FETCH: ""
    int64_t received;       // every byte below has come; at first: where to begin
    int64_t total;          // bytes; -1: not known yet
    // Of requests.c:
    struct transfer *next;
    struct wire_peer *peer; // who is asked; NULL: nobody at present
    bool answered;          // the peer has sent a piece
    int64_t asked;          // every byte below has been asked for
    int64_t taken;          // every byte below has been taken by the caller
    uint64_t absent_rank;   // replicas up to this rank do not have it
    bool absent;            // no replica has it
    struct buf data;        // has come, and was not taken yet
};

// The servers that were connected to, of all purposes.
struct request_connection {
    const struct node_endpoint *endpoint;
    const char *purpose;
};

// A zeroed struct is empty. Free with requests_release.
struct requests {
    struct transfer *first;
    struct request_connection *connections;
    size_t connection_count;
};

// Frees what it holds; there is no transfer any more.
void requests_release(struct requests *requests);

// Connects to every replica of a stage (on `machine` if that is not NULL) for a purpose, a literal, unless that was
// done before. *exists (may be NULL): the run has such a stage. USAGE and UNAVAILABLE as wire_connect.
status requests_connect(struct requests *requests, struct wire *wire, const struct node_config *config,
                        const char *stage, const char *machine, const char *purpose, bool *exists);

// Adds a transfer.
void requests_add(struct requests *requests, struct transfer *transfer);

// Removes a transfer, complete or not.
void requests_remove(struct requests *requests, struct transfer *transfer);

// Whether a transfer has come to its end: all bytes have come, or it is absent.
bool transfer_ended(const struct transfer *transfer);

// Asks for pieces: of the first replica in the order of a hash of key and replica that is there and has not said that
// it lacks them. A transfer is absent when there is no such stage, or when all replicas that are there have said so.
// *changed: a transfer has ended. UNAVAILABLE when the sockets fail.
status requests_send(struct requests *requests, struct wire *wire, const struct node_config *config, bool *changed);

// Handles an answer. *changed: a transfer has new bytes or has ended. DATAERR for a piece that was not asked for so:
// that peer is not asked again.
status requests_on_answer(struct requests *requests, const struct wire_peer *peer, const struct wire_message *message,
                          bool *changed);

// A peer has joined or gone: what it was asked for before will not come, and is asked for again.
void requests_forget(struct requests *requests, const struct wire_peer *peer);
