// Done work, kept in STORE/groups.lmdb: a section is keyed by all that it was computed from (the group's earlier
// sections, the stage's keys, the version of its weights), so a stale one is never found.
#ifndef SHARED_STAGE_KEEP_H
#define SHARED_STAGE_KEEP_H

#include "shared/stage/runner.h"

// What a section was computed from, hashed.
typedef struct keep_key {
    unsigned char bytes[16];
} keep_key;

// Opens STORE/groups.lmdb, makes it if need be. SERVICE when the disk refuses, INPUT when it is no store.
status keep_open(keep **out, const char *store);

// NULL is fine; sets *keep to NULL.
void keep_close(keep **keep);

// *key = the key of the section that the stage is about to add to `group`; *found = whether it was there, and then the
// group has it.
status keep_find(keep *keep, const stage_context *context, keep_key *key, group *group, bool *found);

// Keeps the section that the stage has added. A quarantined group is not kept: it is tried again.
status keep_save(keep *keep, const stage_context *context, const keep_key *key, const group *group);

#endif
