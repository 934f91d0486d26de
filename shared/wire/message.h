// The messages of a run: one struct, one table of kinds and their fields, encoding and decoding.
// PROTOCOL.md says who sends which when. No sockets here.
#ifndef SHARED_WIRE_MESSAGE_H
#define SHARED_WIRE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

#define WIRE_PROTOCOL 1 // of messages
#define WIRE_SCHEMA   1 // of the group

enum message_kind {
    MESSAGE_HELLO = 1,
    MESSAGE_WELCOME,
    MESSAGE_REFUSED,
    MESSAGE_UNKNOWN_PEER,
    MESSAGE_HEARTBEAT,
    MESSAGE_BYE,
    MESSAGE_AVAILABLE,
    MESSAGE_CREDIT,
    MESSAGE_GROUP,
    MESSAGE_EMPTY,
    MESSAGE_RUN_INFO,
    MESSAGE_POSITION,
    MESSAGE_TRAINED,
    MESSAGE_QUARANTINED,
    MESSAGE_UNUSED,
    MESSAGE_REISSUE,
    MESSAGE_GET_WEIGHTS,
    MESSAGE_WEIGHTS,
    MESSAGE_FETCH,
    MESSAGE_CHUNK,
    MESSAGE_ABSENT,
    MESSAGE_GET,
    MESSAGE_RECORD,
    MESSAGE_STATUS,
    MESSAGE_NOTICE,
    MESSAGE_END,
    MESSAGE_KINDS,
};

// What a replica has to say about itself, once a second.
struct message_status {
    int64_t taken, done;                 // groups since it started
    int64_t quarantined, found;          // put aside here; taken from the store
    int64_t dropped;                     // second copies and groups of trained steps
    int64_t held, waiting;               // at work; done and not yet taken by the next stage
    int64_t tokens;                      // of completions that passed
    double busy, up;                     // seconds at work; since it started
    const char *in_hand;                 // seqs of the groups here (seq_set.h)
    const char *in_flight;               // source: seqs of the groups in flight
    const char *state;                   // what it does or waits for: "working", "waits for frames", "finished"
    int64_t total, settled, step;        // source: groups in all, every order below is settled; optim: steps trained
    int64_t run_quarantined, run_unused; // source: quarantined, did not fill a step
    double reward, accuracy;             // optim: means over the last step, NaN: none
    int64_t pid;
};

// One message. Fields that its kind does not have are zero.
struct wire_message {
    enum message_kind kind;
    int64_t protocol, schema; // HELLO
    const char *run;          // HELLO: a fingerprint of the pipeline
    const char *name;         // HELLO, WELCOME, STATUS, NOTICE
    int64_t replica;
    const char *machine;
    const char *purpose;  // HELLO
    const char *reason;   // REFUSED, ASIDE, REISSUE, NOTICE, END
    const char *id;       // TRAINED, ASIDE, LEFT: the group's; GET, RECORD, ABSENT: the clip's key
    int64_t count;        // OFFER: groups; PLAN: in all
    int64_t per_step;     // PLAN
    int64_t step, seq;    // AT, TRAINED, ASIDE, LEFT; PLAN: all below is settled; REISSUE: which, -1 all
    int64_t reference;    // NEWEST, VERSION: 1 for the reference, 0 for the policy
    int64_t policy;       // VERSION: the step at which optim stands
    int64_t version;      // VERSION: of the weights
    int64_t hash;         // VERSION, FETCH, CHUNK: of the weights, its 64 bits
    const char *path;     // VERSION: the file on the server's machine, "" for the weights that the run began with
    int64_t offset, size; // FETCH, CHUNK: which piece; VERSION: of the whole file
    int64_t code;         // END: the exit code
    struct message_status status;
    const void *bulk; // GROUP, CHUNK, RECORD
    size_t bulk_size;
};

// The kind's name, "unknown" for none of ours.
const char *message_name(enum message_kind kind);

// Whether messages of that kind have a second frame.
bool message_has_bulk(enum message_kind kind);

// Appends the first frame. BUG when a text field is NULL or too long.
status message_encode(const struct wire_message *message, struct buf *out);

// Reads a first frame; texts live in `arena`; `bulk` is left alone. DATAERR names the kind and what is wrong with it.
status message_decode(struct wire_message *message, struct arena *arena, const void *data, size_t size);

#endif
