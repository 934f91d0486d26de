// Finished groups that wait for the next stages: sorted by order of issue, each until every reader has had it.
#ifndef SHARED_STAGE_LETTERS_H
#define SHARED_STAGE_LETTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct letter {
    struct letter *next;
    int64_t seq;
    char *id;
    struct buf data;
    uint64_t readers; // a bit for each that has not had it
};

// A zeroed struct has none.
struct letters {
    struct letter *first;
};

// Puts one in its place; takes over `data`, whatever the result. UNAVAILABLE when memory is short.
status letters_add(struct letters *letters, int64_t seq, const char *id, uint64_t readers, struct buf *data);

// The first that this reader has not had, NULL if there is none.
struct letter *letters_for(const struct letters *letters, int reader);

// The reader has had it; frees it when it was the last one.
void letters_give(struct letters *letters, struct letter *letter, int reader);

// How many wait for this reader; -1 counts all.
int64_t letters_count(const struct letters *letters, int reader);

// Whether a group with that id waits here.
bool letters_have(const struct letters *letters, const char *id);

// Frees all.
void letters_release(struct letters *letters);

#endif
