// The newest versions of policy and reference that optim has published, their files and their differences, until later
// ones replace them.
#ifndef SHARED_STAGE_WEIGHTS_VERSIONS_H
#define SHARED_STAGE_WEIGHTS_VERSIONS_H

#include "shared/stage/stage.h"
#include "shared/wire/message.h"

struct weights_versions;

// Makes an empty list of versions. The worker publishes weights, the I/O thread asks. Free with weights_versions_free.
void weights_versions_new(struct weights_versions **out);

// Removes no file. NULL is fine; sets *versions to NULL.
void weights_versions_free(struct weights_versions **versions);

// Publishes the newest weights of their kind; copies the path. The file of the oldest of three versions is removed, and
// its difference from the version before.
void weights_versions_put(struct weights_versions *versions, const struct stage_weights *weights);

// Renames the file of the oldest version of that kind to `path`, if the next weights_versions_put would remove it.
void weights_versions_recycle(struct weights_versions *versions, bool reference, const char *path);

// Returns how often weights were published.
int64_t weights_versions_publications(struct weights_versions *versions);

// Makes WEIGHTS for the newest version of a kind, its path in `arena`; *known is false when there are none yet.
// UNAVAILABLE when the file cannot be found.
status weights_versions_latest(struct weights_versions *versions, bool reference, struct wire_message *message,
                               bool *known, struct arena *arena);

// Whether a FETCH of this hash is for a difference that is still to be made; the first one lets it be made, in a thread
// of its own. UNAVAILABLE when there can be no such thread.
status weights_versions_await(struct weights_versions *versions, int64_t hash, bool *waits);

// Returns the bytes of the file with that hash, of weights or of a difference; 0: there is none.
int64_t weights_versions_size(struct weights_versions *versions, int64_t hash);

// Answers FETCH from the files that were published and the differences that were made; ABSENT when the file was
// replaced. Failures as weights_read_piece.
status weights_versions_chunk(struct weights_versions *versions, const struct wire_message *request,
                              struct wire_message *reply, struct buf *bulk);

// A stage cannot use the lent weights whose file is `path`; `reason` is one line for the user. Returns whether they are
// among the versions and this is the first such report; then weights_versions_refused returns the reason.
bool weights_versions_refuse(struct weights_versions *versions, const char *path, const char *reason);

// Returns the reason of the last weights_versions_refuse once, then NULL. The caller frees it.
char *weights_versions_refused(struct weights_versions *versions);

// Answers FETCH from a file: *reply is CHUNK, its bytes in `bulk`, or ABSENT when there is no such file. DATAERR for
// bytes that cannot be asked for, UNAVAILABLE when the file cannot be read.
status weights_read_piece(const char *path, const struct wire_message *request, struct wire_message *reply,
                          struct buf *bulk);

#endif
