// The weights with which a replica computes: which ones optim has published, and whether the stage has those that a
// group needs.
#ifndef SHARED_STAGE_NODE_WEIGHTS_H
#define SHARED_STAGE_NODE_WEIGHTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/stage/node_counters.h"
#include "shared/stage/runner.h"
#include "shared/stage/weights_client.h"

struct node_weights {
    struct stage_context *context;
    const struct node_config *config;
    struct node_counters *counters;
    char *dir;                    // where this machine has the files
    struct stage_weights loaded;  // path is not kept
    char *loaded_path;            // on optim's machine, "" for those of the model's directory; NULL: none are loaded
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

// Sets a zeroed struct up, once; what it points to must outlive it. Release it with node_weights_release.
void node_weights_init(struct node_weights *weights, struct stage_context *context, const struct node_config *config,
                       struct node_counters *counters);

// Frees what it holds.
void node_weights_release(struct node_weights *weights);

// Sets the directory of the files, and makes it in a run with optim. UNAVAILABLE when the disk fails.
status node_weights_set_dir(struct node_weights *weights, const char *run_dir);

// Optim's message WEIGHTS has come, in the I/O thread. DATAERR when the peer is not optim.
status node_weights_published(struct node_weights *weights, struct io_thread *io, const struct wire_peer *peer,
                              const struct wire_message *message);

// Optim's process is lost, in the I/O thread: what it had lent is gone with it. Its files stay.
void node_weights_lost(struct node_weights *weights, struct io_thread *io);

// Lets the stage give back lent weights that optim does not publish any more, before other ones are there. *returned:
// it has, and has forgotten its groups.
status node_weights_return(struct node_weights *weights, bool *returned);

// Says whether a group can be worked on. idle: the stage has no group; then optim's newest weights are loaded for it
// when they are not in use yet. END when the program is asked to stop; DATAERR when the stage refuses the weights.
status node_weights_prepare(struct node_weights *weights, struct io_thread *io, const struct group *group, bool idle,
                            enum weights_verdict *verdict);

#endif
