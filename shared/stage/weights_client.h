// Weights from optim, which says what it has published, and their file on this machine.
#ifndef SHARED_STAGE_WEIGHTS_CLIENT_H
#define SHARED_STAGE_WEIGHTS_CLIENT_H

#include "shared/stage/io_thread.h"
#include "shared/stage/stage.h"

// Optim's newest weights of a kind. A zeroed struct is none: `path` is NULL.
struct remote_weights {
    int64_t policy;               // the step at which optim is
    struct stage_weights weights; // path: NULL before weights_client_download, then that of `local`
    char *path;                   // the file on optim's machine, "" for the weights of the model's directory
    char *local;                  // the file on this machine
    bool copied;                  // it is a copy, not optim's own file
    bool refused;                 // lent weights that cannot be used here: optim was told so
    int64_t size;
    int64_t base, difference; // as in WEIGHTS
};

// Fills in what optim's message WEIGHTS says. Release with remote_weights_release.
void remote_weights_set(struct remote_weights *out, const struct wire_message *message);

// Copies what is known, without `local`. Release with remote_weights_release.
void remote_weights_copy(struct remote_weights *out, const struct remote_weights *from);

// Whether the weights are in the memory of optim's process, not in the file.
bool remote_weights_lent(const struct remote_weights *remote);

// Sets weights.path to a file on this machine: optim's own file where it can be seen from here (unless `whole`), else a
// copy in `dir`, which the replicas of a machine share: one of them downloads it, the others wait; if that one hangs
// for 30 s, another one downloads it, too. If the machine has the copy before (and not `whole`), only the difference is
// downloaded. A download that was interrupted goes on where it stopped. The copy before this one stays; earlier ones
// are removed. Only the size of the file is checked here; loading it checks its hash. NULL for the weights of the model
// directory. A file of lent weights is not copied, even if it cannot be seen. END when the program is asked to stop;
// BAD_SAMPLE when optim has newer ones by now and this file is gone; UNAVAILABLE when the disk fails.
status weights_client_download(struct io_thread *io, const char *dir, bool whole, struct remote_weights *remote);

// Answers FETCH, as weights_read_piece, from the copies and the differences in `dir`. In the I/O thread.
status weights_client_serve(const char *dir, const struct wire_message *fetch, struct wire_message *reply,
                            struct buf *bulk);

// Removes a copy that could not be loaded, so that the next weights_client_download, with `whole`, fetches it again;
// logs fail_text(). Leaves optim's own file alone.
void weights_client_discard(const struct remote_weights *remote);

// Frees what it holds, but no file.
void remote_weights_release(struct remote_weights *remote);

#endif
