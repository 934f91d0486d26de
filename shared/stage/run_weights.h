// The weights of a run: how a version of the policy or of the reference gets from optim to a stage that computes with
// it, on the same machine or on another one.
//
//   optim                                             rollout, refscore
//   stage_publish: the file is written
//     weights_publish ──── WEIGHTS to all clients ───► weights_follower_published: remembers it
//                                                     a group needs it: weights_follower_prepare
//                                                       weights_fetch: optim's own file, if it is seen from here, or
//     weights_publisher_fetch ◄─── FETCH ─────────────── a copy, which one replica a machine makes: of the copy before
//                             ──── CHUNK, ABSENT ──────► and the difference, or else of all bytes
//                                                       the stage's load_weights, which checks the hash
//   weights_recycle: the third file is written over
//
// The newest three versions of a kind are served, each with its difference from the one before, which is made when
// somebody asks for it first (weights_difference.c). A lent version is a small file that is never fetched.
#pragma once

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/stage/io_thread.h"
#include "shared/stage/stage.h"

// ---- publishing: optim ----

struct weights_publisher;

// Makes a publisher without versions. Free with weights_publisher_free.
void weights_publisher_new(struct weights_publisher **out);

// Removes no file. NULL is fine; sets *publisher to NULL.
void weights_publisher_free(struct weights_publisher **publisher);

// Publishes the newest weights of their kind and tells all that follow them, before whatever the worker broadcasts
// next; with `io` NULL nobody is there yet. The file of the oldest of three versions is removed, and its difference
// from the version before; while somebody downloads it, one more stays. In the worker. UNAVAILABLE when the file cannot
// be found.
status weights_publish(struct weights_publisher *publisher, struct io_thread *io, const struct stage_weights *weights);

// Renames the file of the oldest version of that kind to `path`, if the next weights_publish would remove it.
void weights_recycle(struct weights_publisher *publisher, bool reference, const char *path);

// Makes WEIGHTS for the newest version of a kind, its path in `arena`. Returns false when there is none yet, or no
// policy.
bool weights_publisher_describe(struct weights_publisher *publisher, bool reference, struct wire_message *message,
                                struct arena *arena);

// Answers FETCH from the files that were published and the differences that were made: *reply is CHUNK, its bytes in
// `bulk`, or ABSENT when there is no such file any more. DATAERR for bytes that cannot be asked for, UNAVAILABLE when
// the file cannot be read.
status weights_publisher_read(struct weights_publisher *publisher, const struct wire_message *fetch,
                              struct wire_message *reply, struct buf *bulk);

// A stage cannot use the lent weights whose file is `path`; `reason` is one line for the user. Returns whether they are
// among the versions and this is the first such report; then weights_publisher_refused returns the reason.
bool weights_publisher_refuse(struct weights_publisher *publisher, const char *path, const char *reason);

// Returns the reason of the last weights_publisher_refuse once, then NULL. The caller frees it.
char *weights_publisher_refused(struct weights_publisher *publisher);

// The rest are hooks of optim (io_hooks.h), for clients of purpose "weights"; self is the node. One has joined: tells
// it what is published.
status weights_publisher_joined(void *self, struct wire_peer *peer);

// A client is gone.
status weights_publisher_gone(void *self, struct wire_peer *peer);

// Answers FETCH, as weights_publisher_read; who asks for a difference waits until it is made. DATAERR, UNAVAILABLE.
status weights_publisher_fetch(void *self, struct wire_peer *peer, const struct wire_message *fetch);

// Answers those who have waited for a difference.
status weights_publisher_tick(void *self);

// CANNOT_BORROW has come: weights_publisher_refuse; wakes the worker, which publishes files instead.
status weights_publisher_cannot_borrow(void *self, struct wire_peer *peer, const struct wire_message *message);

// ---- following: the stages that compute with them ----

// What optim has published of a kind. A zeroed struct is nothing.
struct remote_weights {
    bool known;
    bool refused;                 // lent weights that cannot be used here: optim was told so
    int64_t policy;               // the step at which optim is
    struct stage_weights weights; // path: NULL before weights_fetch, then `local` or NULL
    int64_t size;
    int64_t base, difference;  // as in WEIGHTS
    char path[PATH_MAX];       // the file on optim's machine, "" for the weights of the model's directory
    char local[PATH_MAX + 64]; // the file on this machine
    bool copied;               // that is a copy, not optim's own file
};

// Fills in what optim's message WEIGHTS says.
void remote_weights_set(struct remote_weights *remote, const struct wire_message *message);

// Sets weights.path to a file on this machine: optim's own file where it can be seen from here (unless `whole`), else a
// copy in `dir`, which the replicas of a machine share. One of them makes it; that one has a lock, which the kernel
// gives back if it dies. If the machine has the copy before (and not `whole`), only the difference is downloaded. A
// download that was interrupted goes on where it stopped. The copy before this one stays; earlier ones are removed.
// Only the size of the file is checked here; loading it checks its hash. NULL for the weights of the model's directory.
// A file of lent weights is not copied, even if it cannot be seen. END when the program is asked to stop; BAD_SAMPLE
// when it must be tried again: another replica makes the copy, or optim has newer weights by now and this file is
// gone; UNAVAILABLE when the disk fails.
status weights_fetch(struct io_thread *io, const char *dir, bool whole, struct remote_weights *remote);

// The weights with which a replica computes.
struct weights_follower {
    struct stage_context *context;
    char *dir;                    // where this machine has the files
    struct stage_weights loaded;  // path is not kept
    bool any_loaded;              // there are loaded ones, and they were not given back
    char loaded_path[PATH_MAX];   // on optim's machine, "" for those of the model's directory
    int failed_loads;             // in a row, because the file was gone or damaged
    int failed_copies;            // of these, copies
    uint64_t failed_hash;         // of the last failed load
    pthread_mutex_t lock;         // of `latest`
    struct remote_weights latest; // what optim has published, of the kind that the stage follows
};

enum weights_verdict {
    WEIGHTS_READY,
    WEIGHTS_LATER, // they are not there yet
    WEIGHTS_BUSY,  // they can be loaded when the stage has finished what it has, or must be tried again
};

// Sets a zeroed struct up; the context, which has its node, must outlive it. Makes the directory of the files in a run
// with optim. UNAVAILABLE when the disk fails. Close in any case.
status weights_follower_open(struct weights_follower *follower, struct stage_context *context);

// Frees what it holds; a zeroed struct is fine.
void weights_follower_close(struct weights_follower *follower);

// A hook (io_hooks.h), self is the node: optim's message WEIGHTS has come.
status weights_follower_published(void *self, struct wire_peer *peer, const struct wire_message *message);

// A hook: optim's process is lost, and what it had lent is gone with it. Its files stay.
status weights_follower_lost(void *self, struct wire_peer *peer);

// Lets the stage give back lent weights that optim does not publish any more, before other ones are there. *returned:
// it has, and has forgotten its groups.
status weights_follower_return(struct weights_follower *follower, bool *returned);

// Says whether a group can be worked on. idle: the stage has no group; then optim's newest weights are loaded for it
// when they are not in use yet. END when the program is asked to stop; DATAERR when the stage refuses the weights.
status weights_follower_prepare(struct weights_follower *follower, struct io_thread *io, const struct group *group,
                                bool idle, enum weights_verdict *verdict);

// ---- the difference between two versions ----

// Their XOR, compressed with zstd. A training step changes few bytes of a number, so the difference is much smaller
// than the file. It is one zstd frame with a checksum, whose content has the file's size: for each block of 1 MiB (the
// last one may be shorter) the XOR's bytes 0, 4, 8, ..., then 1, 5, 9, ..., then 2, 6, ..., then 3, 7, ...: what
// changes in a number is mostly its last byte.

// Writes the difference of two files to the empty file `out`, all three given by their descriptors. BAD_SAMPLE when the
// files differ in size, or the difference would have more than `limit` bytes; END when *stop becomes true; UNAVAILABLE
// when a file cannot be read or written.
status weights_difference_make(int base, int file, int64_t limit, const atomic_bool *stop, int out);

// Makes the file again: writes `size` bytes, which the base has too, to `out` from its beginning. DATAERR when
// `difference` is no difference of files of that size, or damaged; UNAVAILABLE when a file cannot be read or written.
// No more than `size` bytes are written in any case, and less than 8 MiB of memory are used.
status weights_difference_apply(int difference, int base, int64_t size, int out);
