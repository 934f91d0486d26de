// Optim's newest weights, and what it answers to those who follow them.
#ifndef SHARED_STAGE_WEIGHTS_SERVER_H
#define SHARED_STAGE_WEIGHTS_SERVER_H

#include "shared/stage/stage.h"
#include "shared/wire/message.h"

struct weights_server;

// An empty server. Files are put on it from one thread and asked for from another.
status weights_server_new(struct weights_server **out);

// Removes no file. NULL is fine; sets *server to NULL.
void weights_server_free(struct weights_server **server);

// These are the newest of their kind from now on. Files that are two versions old are removed.
status weights_server_put(struct weights_server *server, const struct stage_weights *weights);

// Takes the oldest file of its kind off the server and renames it to `path`, if the next one to come would push it off.
void weights_server_recycle(struct weights_server *server, bool reference, const char *path);

// Answers NEWEST and FETCH: *reply is VERSION or CHUNK (with its bulk in `bulk`, its path in `arena`), ABSENT when
// there is nothing of the kind.
status weights_server_answer(struct weights_server *server, const struct wire_message *request,
                             struct wire_message *reply, struct arena *arena, struct buf *bulk);

#endif
