// The wiring file: what the supervisor tells a replica of its place in the run: who it is, whose groups it reads, and
// where everybody's desk is. Lines of `word value`; the value is the rest of the line.
#ifndef SHARED_WIRE_WIRING_H
#define SHARED_WIRE_WIRING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/wire/security.h"

#define WIRING_SUPERVISOR "caravan" // the stage name of a supervisor's desk

// Somebody's desk.
struct wiring_desk {
    const char *stage;
    int replica;
    const char *machine;
    const char *endpoint; // as it is reached from here
    const char *key;      // public key of its machine, NULL without security
};

struct wiring {
    struct arena arena;
    const char *run;    // the pipeline's fingerprint
    const char *folder; // RUN on this machine
    const char *stage;  // who reads this
    int replica;
    const char *machine;  // "" on one machine
    const char *from;     // the stage whose groups it reads, "" for the source
    bool last;            // what becomes of a group is told to the source from here
    const char *secret;   // key file of this machine, NULL without security
    const char **command; // a user's program and its arguments
    size_t command_count;
    const char *home;    // the folder that it starts in
    const char **listen; // where its own desk is bound
    size_t listen_count;
    const char **readers; // the stages that read its groups
    size_t reader_count;
    struct wiring_desk *desks; // everybody's
    size_t desk_count;
    struct wire_security security; // of `secret`, admitting every desk's key
};

// Reads a wiring file and the key file that it names. DATAERR naming the file and line. Release with wiring_release.
status wiring_read(struct wiring *wiring, const char *path);

// Frees what it holds; a zeroed one is fine.
void wiring_release(struct wiring *wiring);

// Appends a wiring as such a file.
status wiring_write(const struct wiring *wiring, struct buf *out);

// The security to open a wire with, NULL for none.
const struct wire_security *wiring_security(const struct wiring *wiring);

#endif
