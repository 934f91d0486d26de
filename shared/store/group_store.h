// groups.lmdb: what the stages know of each group, shared by every process that opens the same store folder.
//
// Two things lie in it: sections by the hash of all that they were computed from, so that work is never done twice and
// a stale section is never found; and each group whole, as the last stage that worked on it left it, by its id.
#ifndef SHARED_STORE_GROUP_STORE_H
#define SHARED_STORE_GROUP_STORE_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"

struct group_store;

// What a section was computed from, hashed.
struct section_key {
    unsigned char bytes[16];
};

// Opens FOLDER/groups.lmdb, and makes both unless read_only. UNAVAILABLE when the disk refuses, DATAERR for a file that
// is no store or, read_only, is not there.
status group_store_open(struct group_store **out, const char *folder, bool read_only);

// Closes; NULL is fine; sets *store to NULL.
void group_store_close(struct group_store **store);

// Puts the section kept under `key` into the group; *found says whether there was one.
status group_store_find(struct group_store *store, const struct section_key *key, enum group_section section,
                        struct group *group, bool *found);

// Keeps the group whole, and with it, unless `key` is NULL, its section under `key`: both or neither. UNAVAILABLE when
// the disk is full.
status group_store_save(struct group_store *store, const struct section_key *key, enum group_section section,
                        const struct group *group);

// The group of that id; *out is NULL when there is none. The caller frees it.
status group_store_get(struct group_store *store, const char *id, struct group **out);

// Calls visit with every group in the order of their ids; it does not own them. Ends early when visit is not OK.
status group_store_each(struct group_store *store, status (*visit)(void *context, const struct group *group),
                        void *context);

#endif
