// Weights from optim: which are the newest, and their file on this machine.
#ifndef SHARED_STAGE_WEIGHTS_CLIENT_H
#define SHARED_STAGE_WEIGHTS_CLIENT_H

#include "shared/stage/io_thread.h"
#include "shared/stage/stage.h"

struct remote_weights {
    int64_t policy;               // the step at which optim stands
    struct stage_weights weights; // path: not there before weights_client_file
    char *remote;                 // the file on optim's machine, "" for the weights that the run began with
    int64_t size;
};

// Asks optim for its newest weights; waits for it. END when the program is asked to stop. Release with
// remote_weights_release.
status weights_client_latest(struct io_thread *io, bool reference, struct remote_weights *out);

// Makes weights.path a file on this machine: optim's own where it can be seen from here, else a copy in `folder` (whole
// or not there at all). END as above; BAD_SAMPLE when optim has newer ones by now and this file is gone: ask again.
status weights_client_file(struct io_thread *io, const char *folder, struct remote_weights *pulled);

// Frees what it holds.
void remote_weights_release(struct remote_weights *pulled);

#endif
