// Which process of a pipeline runs where: the replicas, their endpoints, and the configuration file of each.
#pragma once

#include <stdbool.h>

#include "shared/config/pipeline.h"
#include "shared/wire/node_config.h"

struct replica {
    const struct pipeline_stage *stage; // NULL: a machine's supervisor
    int number;                         // from 1, over all machines of the stage
    int machine;                        // 0 on one machine
    int slot;                           // from 0: which of the stage's replicas on its machine
    const char *name;                   // for messages: "rollout", "rollout-2"; NULL for a supervisor
    const char *local;                  // its endpoint as reached on its own machine
    const char *remote;                 // as other machines reach it, NULL on one machine and of ranks above 0
    const char *bound;                  // where it listens for other machines
    // Where the other ranks of its stage on its machine reach it, NULL if it has none; its own rank is number - 1.
    // Where those on other machines reach it, and where it listens for them; NULL if there are none.
    const char *rank, *rank_remote, *rank_bound;
};

struct deployment {
    struct arena arena;
    struct pipeline *pipeline;
    int here;                 // this machine
    const char *secret;       // key file, NULL on one machine
    const char *run;          // fingerprint of what all machines must agree on, for HELLO
    const char *settings;     // a hash of what the stages compute with, paths included
    const char *sockets;      // directory of the local endpoints
    struct replica *replicas; // that of a machine's supervisor at its index, then the stages in the order of the flow
    size_t count, machines;
    bool steps_given; // optim's `steps`: not counted by caravan run
};

// *here = the machine of that name; without a name, the only machine or the one that is named like this host, with or
// without its domain. USAGE if the pipeline has no such machine.
status deployment_find_here(const struct pipeline *pipeline, const char *name, int *here);

// Deploys the pipeline as seen from a machine (NULL: the only one, or the one that is named like this host, with or
// without its domain). `secret`: key file, NULL for RUN/machine.key if that is there, else the user's own. USAGE if the
// pipeline has no such machine, or if a machine has no valid key. The pipeline must outlive the deployment.
status deployment_init(struct deployment *deployment, struct pipeline *pipeline, const char *machine,
                       const char *secret);

// Frees what it holds.
void deployment_release(struct deployment *deployment);

// Writes the configuration of a replica to `path`. UNAVAILABLE when the file cannot be written.
status deployment_write_config(const struct deployment *deployment, const struct replica *replica, const char *path);

// Returns the replica with that stage name and number, NULL if there is none.
const struct replica *deployment_find(const struct deployment *deployment, const char *stage, int number);

// Returns a machine's name, "" if there is only one.
const char *deployment_machine(const struct deployment *deployment, int machine);

// Whether the replica is of rank 1 or above: it trains with its stage's first process and is in no other conversation
// than that and its supervisor's.
bool replica_follows(const struct replica *replica);

// Returns the stage name of a replica as wire messages have it.
const char *replica_stage(const struct replica *replica);

// Returns the endpoint at which `deployment->here` reaches the replica.
const char *deployment_endpoint(const struct deployment *deployment, const struct replica *replica);

// Returns the path of the key file that the nodes of a Slurm job share: RUN/machine.key.
const char *deployment_shared_key_file(struct arena *arena, const struct pipeline *pipeline);

// Returns the path of this user's key file: ~/.config/caravan/machine.key; "" where HOME is not set.
const char *deployment_key_file(struct arena *arena);
