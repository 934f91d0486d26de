// Who runs where: a pipeline's replicas, their endpoints, and the wiring file of each.
#ifndef TOOLS_PLAN_H
#define TOOLS_PLAN_H

#include <stdbool.h>

#include "shared/config/pipeline.h"
#include "shared/wire/node_config.h"

struct replica {
    const struct pipeline_stage *stage; // NULL: a machine's supervisor
    int number;                         // from 1
    int machine;                        // 0 on one machine
    const char *local;                  // its desk as reached on its own machine
    const char *remote;                 // as reached from others, NULL on one machine
    const char *bound;                  // where it listens for others
};

struct plan {
    struct arena arena;
    struct pipeline *pipeline;
    int here;                 // this machine
    const char *secret;       // key file, NULL on one machine
    char run[17];             // fingerprint
    const char *sockets;      // folder of the local endpoints
    struct replica *replicas; // supervisors first, then the stages in the order of the flow
    size_t count, machines;
};

// Plans the pipeline for a machine (NULL: the only one). `secret`: key file, NULL for the user's own. USAGE when the
// machine is not there, is not named where there are several, or has no key. The pipeline must outlive the plan.
status plan_make(struct plan *plan, struct pipeline *pipeline, const char *machine, const char *secret);

// Frees what it holds.
void plan_release(struct plan *plan);

// Writes the wiring of a replica to `path`.
status plan_wire(const struct plan *plan, const struct replica *replica, const char *path);

// The supervisor of a machine.
const struct replica *plan_supervisor(const struct plan *plan, int machine);

// The replica with that stage name and number, NULL if there is none.
const struct replica *plan_find(const struct plan *plan, const char *stage, int number);

// A machine's name, "" if there is one only.
const char *plan_machine(const struct plan *plan, int machine);

// A replica as people call it: "rollout", "rollout-2". Valid as long as the plan.
const char *plan_name(struct plan *plan, const struct replica *replica);

// The stage name of a replica in messages.
const char *replica_stage(const struct replica *replica);

// How `replica` is reached from `plan->here`.
const char *plan_endpoint(const struct plan *plan, const struct replica *replica);

// The key file of this user: ~/.config/caravan/machine.key. NULL when memory is short.
const char *plan_key_file(struct arena *arena);

#endif
