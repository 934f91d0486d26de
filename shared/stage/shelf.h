// Optim's newest weights, and what it answers to those who follow them.
#ifndef SHARED_STAGE_SHELF_H
#define SHARED_STAGE_SHELF_H

#include "shared/stage/stage.h"
#include "shared/wire/message.h"

struct shelf;

// An empty shelf. Files are put on it from one thread and asked for from another.
status shelf_new(struct shelf **out);

// Removes no file. NULL is fine; sets *shelf to NULL.
void shelf_free(struct shelf **shelf);

// These are the newest of their kind from now on. Files that are two versions old are removed.
status shelf_put(struct shelf *shelf, const struct stage_weights *weights);

// Takes the oldest file of its kind off the shelf and renames it to `path`, if the next one to come would push it off.
void shelf_recycle(struct shelf *shelf, bool reference, const char *path);

// Answers NEWEST and FETCH: *reply is VERSION or CHUNK (with its bulk in `bulk`, its path in `arena`), ABSENT when
// there is nothing of the kind.
status shelf_answer(struct shelf *shelf, const struct wire_message *request, struct wire_message *reply,
                    struct arena *arena, struct buf *bulk);

#endif
