// Which process of a pipeline runs where: the replicas, their endpoints, and the configuration file of each.
#ifndef TOOLS_DEPLOYMENT_H
#define TOOLS_DEPLOYMENT_H

#include <stdbool.h>

#include "shared/config/pipeline.h"
#include "shared/wire/node_config.h"

struct replica {
    const struct pipeline_stage *stage; // NULL: a machine's supervisor
    int number;                         // from 1
    int machine;                        // 0 on one machine
    const char *local;                  // its endpoint as reached on its own machine
    const char *remote;                 // as other machines reach it, NULL on one machine
    const char *bound;                  // where it listens for other machines
};

struct deployment {
    struct arena arena;
    struct pipeline *pipeline;
    int here;                 // this machine
    const char *secret;       // key file, NULL on one machine
    const char *run;          // fingerprint of what all machines must agree on, for HELLO
    const char *sockets;      // directory of the local endpoints
    struct replica *replicas; // supervisors first, then the stages in the order of the flow
    size_t count, machines;
};

// Deploys the pipeline as seen from a machine (NULL: the only one). `secret`: key file, NULL for the user's own. USAGE
// when the machine is not there, is not named where there are several, or has no key. The pipeline must outlive the
// deployment.
status deployment_init(struct deployment *deployment, struct pipeline *pipeline, const char *machine,
                       const char *secret);

// Frees what it holds.
void deployment_release(struct deployment *deployment);

// Writes the configuration of a replica to `path`. UNAVAILABLE when the disk refuses.
status deployment_write_config(const struct deployment *deployment, const struct replica *replica, const char *path);

// The supervisor of a machine.
const struct replica *deployment_supervisor(const struct deployment *deployment, int machine);

// The replica with that stage name and number, NULL if there is none.
const struct replica *deployment_find(const struct deployment *deployment, const char *stage, int number);

// A machine's name, "" if there is one only.
const char *deployment_machine(const struct deployment *deployment, int machine);

// A replica as people call it: "rollout", "rollout-2". Valid as long as the deployment.
const char *deployment_name(struct deployment *deployment, const struct replica *replica);

// The stage name of a replica in messages.
const char *replica_stage(const struct replica *replica);

// How `replica` is reached from `deployment->here`.
const char *deployment_endpoint(const struct deployment *deployment, const struct replica *replica);

// Returns the greatest number of descriptors that a process of the deployment may need.
size_t deployment_max_fds(const struct deployment *deployment);

// The key file of this user: ~/.config/caravan/machine.key. NULL when memory is short.
const char *deployment_key_file(struct arena *arena);

#endif
