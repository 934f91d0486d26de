// Optim's newest weights, and its answers to the stages that compute with them.
#ifndef SHARED_STAGE_WEIGHTS_SERVER_H
#define SHARED_STAGE_WEIGHTS_SERVER_H

#include "shared/stage/io_thread.h"
#include "shared/stage/stage.h"
#include "shared/wire/message.h"

struct weights_server;

// Makes a server without weights. The worker publishes weights, the I/O thread answers requests. UNAVAILABLE when
// memory is short. Free with weights_server_free.
status weights_server_new(struct weights_server **out);

// Removes no file. NULL is fine; sets *server to NULL.
void weights_server_free(struct weights_server **server);

// Publishes the newest weights of their kind; copies the path. The file of the oldest of three versions is removed, and
// its difference from the version before.
// UNAVAILABLE when memory is short.
status weights_server_put(struct weights_server *server, const struct stage_weights *weights);

// Renames the file of the oldest version of that kind to `path`, if the next weights_server_put would remove it.
void weights_server_recycle(struct weights_server *server, bool reference, const char *path);

// Returns how often weights were published.
int64_t weights_server_publications(struct weights_server *server);

// Makes WEIGHTS for the newest version of a kind, its path in `arena`; *known is false when there are none yet.
// UNAVAILABLE when the file cannot be found.
status weights_server_latest(struct weights_server *server, bool reference, struct wire_message *message, bool *known,
                             struct arena *arena);

// Answers FETCH from a file: *reply is CHUNK, its bytes in `bulk`, or ABSENT when there is no such file. DATAERR for
// bytes that cannot be asked for, UNAVAILABLE when the file cannot be read.
status weights_server_read(const char *path, const struct wire_message *request, struct wire_message *reply,
                           struct buf *bulk);

// Answers FETCH from the files that were published and the differences that were made; ABSENT when the file was
// replaced. Failures as weights_server_read.
status weights_server_chunk(struct weights_server *server, const struct wire_message *request,
                            struct wire_message *reply, struct buf *bulk);

// Optim's hook (io_thread.h) for clients of purpose "weights", and for WIRE_TIMEOUT: tells them what is published, and
// answers FETCH, or names a replica that has the file (distribution.h). A difference is made when somebody asks for it
// first, in a thread of its own; who asks waits.
status weights_server_event(struct weights_server *server, struct io_thread *io, const struct wire_event *event);

#endif
