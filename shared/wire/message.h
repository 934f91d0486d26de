// The messages of a run: one struct, one table of kinds and their fields, encoding and decoding.
// PROTOCOL.md says who sends which when. No sockets here.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

#define WIRE_PROTOCOL 5 // of messages
#define WIRE_SCHEMA   1 // of the group

enum { WIRE_PIECE_BYTES = 256 << 10 }; // the most bytes that one FETCH or GET asks for

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
    MESSAGE_HAVE,
    MESSAGE_SYNCED,
    MESSAGE_RUN_INFO,
    MESSAGE_POSITION,
    MESSAGE_TRAINED,
    MESSAGE_QUARANTINED,
    MESSAGE_UNUSED,
    MESSAGE_WEIGHTS,
    MESSAGE_FETCH,
    MESSAGE_CHUNK,
    MESSAGE_ABSENT,
    MESSAGE_GET,
    MESSAGE_RECORD,
    MESSAGE_STATUS,
    MESSAGE_NOTICE,
    MESSAGE_END,
    MESSAGE_CANNOT_BORROW,
    MESSAGE_RANK_ENDED,
    MESSAGE_KINDS,
};

// What a replica reports about itself, twice a second: a line for each group of members, in the order in which they are
// encoded. Counts are of groups since the process started, times are seconds.
// clang-format off
#define MESSAGE_STATUS_FIELDS(INT, REAL, STRING) \
    INT(taken) INT(done) \
    INT(quarantined) INT(found) /* quarantined by this stage; found in the store */ \
    INT(dropped)                /* second copies, and groups of trained steps */ \
    INT(held) INT(waiting)      /* in the stage; done and not yet taken by the next one */ \
    INT(tokens)                 /* of completions that passed */ \
    REAL(busy) REAL(up)         /* time at work; time since the start */ \
    INT(worked)                 /* of done: neither found in the store nor quarantined */ \
    REAL(work_seconds)          /* sum over these of the time that the stage had each */ \
    INT(oldest_seq)             /* of the groups that the stage has, the one that came first; -1: none */ \
    REAL(oldest_age)            /* how long it has had it; -1: none */ \
    REAL(done_age)              /* how long ago it finished a group; -1: none since the start */ \
    INT(given_seq)              /* the lowest group that a stage after it has not given on; -1: none */ \
    STRING(given_stage)         /* that stage; "": none */ \
    INT(given_replica)          /* the one that has the group; 0: none has taken it */ \
    STRING(state)               /* "working", "finished", or what it waits for: "waits for weights" */ \
    INT(total) INT(settled)     /* source: groups in all; every seq below is settled */ \
    INT(step)                   /* optim: steps trained */ \
    INT(run_quarantined) INT(run_unused) /* source: groups of the whole run */ \
    INT(reissued)               /* source: groups in flight that were issued again */ \
    INT(restarts)               /* of the process; only the supervisor of its machine knows and sets it */ \
    REAL(reward) REAL(accuracy) /* optim: means over the last step, NaN: none */ \
    INT(failed_saves)           /* optim: attempts to write a checkpoint since one was last written */ \
    INT(pid)
// clang-format on

#define MESSAGE_MEMBER_INT(name)    int64_t name;
#define MESSAGE_MEMBER_REAL(name)   double name;
#define MESSAGE_MEMBER_STRING(name) const char *name;

struct message_status {
    MESSAGE_STATUS_FIELDS(MESSAGE_MEMBER_INT, MESSAGE_MEMBER_REAL, MESSAGE_MEMBER_STRING)
};

// One message. Fields that its kind does not have are zero.
struct wire_message {
    enum message_kind kind;
    int64_t protocol, schema; // HELLO
    const char *run;          // HELLO: a fingerprint of the pipeline (struct wire_self)
    const char *name;         // HELLO, WELCOME, STATUS, NOTICE, RANK_ENDED; QUARANTINED: the stage that did it
    int64_t replica;
    const char *machine;
    const char *purpose; // HELLO
    int64_t incarnation; // HELLO, WELCOME: a random number of the process
    const char *reason;  // REFUSED, QUARANTINED, NOTICE, END, CANNOT_BORROW
    const char *id;    // TRAINED, QUARANTINED, UNUSED: the group's, "" when it is sent again; GET, RECORD, ABSENT: the
                       // key of a clip
    int64_t count;     // AVAILABLE: groups; RUN_INFO: groups in all; POSITION: groups of the run if none from seq on is
                       // quarantined
    int64_t per_step;  // RUN_INFO
    int64_t max_steps; // RUN_INFO: 0: no bound
    int64_t epoch;     // RUN_INFO: groups of an epoch
    int64_t step, seq; // POSITION, TRAINED, QUARANTINED, UNUSED; RUN_INFO: all below is settled; POSITION: -1 when no
                       // step was ever trained in optim's directory; GROUP, HAVE: of the group
    int64_t issue;     // AVAILABLE, GROUP, HAVE: number of the present issue
    int64_t settled;   // AVAILABLE, GROUP: every seq below is settled
    int64_t passed;    // HAVE: 1 when the sender has given the group on
    int64_t reference; // WEIGHTS: 1 for the reference, 0 for the policy
    int64_t policy;    // WEIGHTS: the step at which optim is
    int64_t version;   // WEIGHTS
    int64_t hash;      // WEIGHTS, FETCH, CHUNK, ABSENT: of the weights, or but for WEIGHTS
                       // of a difference, its 64 bits
    int64_t base, difference; // WEIGHTS: hash of the version before, and of the difference from it; 0: none
    const char *path;         // WEIGHTS: the file on the server's machine, "" for the weights of the model's directory;
                              // CANNOT_BORROW: as in WEIGHTS
    int64_t offset, size;     // FETCH, CHUNK, GET, RECORD: which bytes; WEIGHTS: of the whole file
    int64_t total;            // CHUNK, RECORD: bytes of the whole file or clip
    int64_t code;             // END: the exit code
    struct message_status counters; // STATUS
    const void *bulk;               // GROUP, CHUNK, RECORD
    size_t bulk_size;
};

// The kind's name, "unknown" for a number that is no kind.
const char *message_name(enum message_kind kind);

// Whether messages of that kind have a second frame.
bool message_has_bulk(enum message_kind kind);

enum message_field_type { FIELD_END, FIELD_INT, FIELD_REAL, FIELD_STRING };

// A field of a message.
struct message_field {
    enum message_field_type type;
    const char *name;
    size_t offset; // in struct wire_message
};

// Whether messages of that kind may come from a client, or if not `client` from a server.
bool message_comes_from(enum message_kind kind, bool client);

// The fields of a kind in the order in which they are encoded, behind them one of type FIELD_END. NULL for a number
// that is no kind.
const struct message_field *message_fields(enum message_kind kind);

// Appends the first frame. BUG when a string is NULL or too long.
status message_encode(const struct wire_message *message, struct buf *out);

// Reads a first frame; strings are put into `arena`; the bulk is left empty. DATAERR names the kind and what is wrong
// with it.
status message_decode(struct wire_message *message, struct arena *arena, const void *data, size_t size);

// Checks which bytes a FETCH or GET asks for. DATAERR when they are none, too many, or lie before the first one.
status message_check_range(const struct wire_message *message);

// Copies a message without its bulk; its strings are put into `arena`. BUG and UNAVAILABLE as message_encode.
status message_copy(const struct wire_message *message, struct wire_message *copy, struct arena *arena);
