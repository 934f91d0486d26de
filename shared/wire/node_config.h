// What the supervisor tells a replica about its part in the run: its name, the stage whose groups it reads, and the
// endpoints of all processes. A file of lines `word value`; the value is the rest of the line.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/wire/transport.h"

#define SUPERVISOR_NAME "caravan" // the name of a supervisor among the stages

// The server socket of a process.
struct node_endpoint {
    const char *stage;
    int replica;
    const char *machine;
    const char *address; // as it is reached from here
    const char *key;     // public key of its machine, NULL without security
};

struct node_config {
    struct arena arena;
    const char *run;     // the pipeline's fingerprint
    const char *run_dir; // the run's directory on this machine
    const char *stage;   // of the replica itself
    int replica;
    const char *machine;    // "" on one machine
    const char *from;       // the stage whose groups it reads, "" for the source
    const char *last_stage; // the one that settles groups
    bool last;              // it tells the source the outcome of each group
    bool trains;            // the run has optim, whose weights the other stages compute with
    const char *settings;   // the source, without optim: a hash of what all stages compute with; else NULL
    const char *secret;     // key file of this machine, NULL without security
    const char **command;   // a user's program and its arguments
    size_t command_count;
    const char *program_dir; // the directory in which it starts
    const char **listen;     // endpoints of its own server socket
    size_t listen_count;
    const char **readers; // the stages that read its groups
    size_t reader_count;
    struct node_endpoint *ranks; // those with which it trains, itself included; the replica is rank + 1
    size_t rank_count;           // 0: it trains alone, or not at all
    const char **rank_listen;    // endpoints of its own socket for the other ranks
    size_t rank_listen_count;
    struct node_endpoint *endpoints; // of all processes; of a stage's ranks only the supervisor has all
    size_t endpoint_count;
    struct wire_security security; // of `secret`, admits the keys of all endpoints
};

// Reads a config file and the key file that it names. DATAERR naming the file and line. Release with
// node_config_release.
status node_config_read(struct node_config *config, const char *path);

// Frees what it holds; a zeroed one is fine.
void node_config_release(struct node_config *config);

// Appends a config as such a file. USAGE when a value contains a line break.
status node_config_write(const struct node_config *config, struct buf *out);
