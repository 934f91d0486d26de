// Optim's answers to the stages that compute with its weights: who gets them, when and from whom.
#ifndef SHARED_STAGE_WEIGHTS_SERVER_H
#define SHARED_STAGE_WEIGHTS_SERVER_H

#include "shared/stage/io_thread.h"
#include "shared/stage/weights_versions.h"

struct weights_server;

// Makes a server of these versions, which must outlive it. Free with weights_server_free.
void weights_server_new(struct weights_server **out, struct weights_versions *versions);

// NULL is fine; sets *server to NULL.
void weights_server_free(struct weights_server **server);

// Optim's hook (io_thread.h) for clients of purpose "weights", and for WIRE_TIMEOUT: tells them what is published, and
// answers FETCH, or names a replica that has the file (distribution.h). A difference is made when somebody asks for it
// first; who asks waits. Wakes the worker after weights_versions_refuse.
status weights_server_event(struct weights_server *server, struct io_thread *io, const struct wire_event *event);

#endif
