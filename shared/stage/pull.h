// Weights from optim: which are the newest, and their file on this machine.
#ifndef SHARED_STAGE_PULL_H
#define SHARED_STAGE_PULL_H

#include "shared/stage/hub.h"
#include "shared/stage/stage.h"

struct pulled {
    int64_t policy;               // the step at which optim stands
    struct stage_weights weights; // path: not there before pull_file
    char *remote;                 // the file on optim's machine, "" for the weights that the run began with
    int64_t size;
};

// Asks optim for its newest weights; waits for it. END when the program is asked to stop. Release with
// pulled_release.
status pull_newest(struct hub *hub, bool reference, struct pulled *out);

// Makes weights.path a file on this machine: optim's own where it can be seen from here, else a copy in `folder` (whole
// or not there at all). END as above; BAD_SAMPLE when optim has newer ones by now and this file is gone: ask again.
status pull_file(struct hub *hub, const char *folder, struct pulled *pulled);

// Frees what it holds.
void pulled_release(struct pulled *pulled);

#endif
