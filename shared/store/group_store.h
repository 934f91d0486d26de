// groups.lmdb: what the stages know of each group, shared by all processes that open the same store directory.
//
// It holds two things: sections, under the hash of everything that they were computed from, so that nothing is computed
// twice and a stale section is never found; and complete groups by id, as the last stage that worked on each left it.
// Each of these has a number, which grows in the order in which they were saved, and under it a summary and a row.
//
// Both can be bounded. A section of a training run is needed only while its group may be issued again, that is, until a
// checkpoint has its step: those of groups that were issued long before the newest one are removed. If optim then goes
// back further than expected, they are computed again, with the same result. Whole groups are removed in the order in
// which they were saved. LMDB's file does not become smaller: the freed space is used for what comes next.
#pragma once

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"
#include "shared/store/group_summary.h"

struct group_store;

// The hash of everything that a section was computed from.
struct section_key {
    unsigned char bytes[16];
};

// Opens `directory`/groups.lmdb; creates both unless read_only. UNAVAILABLE when the disk fails; DATAERR when the file
// is of another kind or, with read_only, missing. The caller closes it with group_store_close.
status group_store_open(struct group_store **out, const char *directory, bool read_only);

// Closes and frees; sets *store to NULL. NULL is fine.
void group_store_close(struct group_store **store);

// Which whole groups stay; both 0: all.
struct group_keep {
    int64_t steps; // those that optim trained in the newest so many steps, and what was saved among them
    int64_t bytes; // the newest ones, at most so many bytes together
};

// Sets what stays in the store from now on: with each save, the oldest whole groups beyond `keep` are removed, some at
// a time. sections: of how many groups before the one that is saved the sections stay; 0: all. Sections of groups that
// have no place in an order of issue always stay.
void group_store_set_keep(struct group_store *store, const struct group_keep *keep, int64_t sections);

// Removes all whole groups beyond `keep` in small transactions, and all sections if asked to. `removed`: how many
// groups and `freed`: their bytes. UNAVAILABLE when the disk fails.
status group_store_prune(struct group_store *store, const struct group_keep *keep, bool sections, int64_t *removed,
                         int64_t *freed);

// Copies the section stored under `key` into the group; *found says whether there is one. DATAERR when it is damaged.
status group_store_find(struct group_store *store, const struct section_key *key, enum group_section section,
                        struct group *group, bool *found);

// A group to be stored, with one of its sections under `key`; section -1: without.
struct group_record {
    struct group *group;
    struct section_key key;
    int section;       // group_section
    bool section_only; // the whole group is not stored: a later stage does it
};

// Stores several groups in one transaction: all or none. If the section is under a record's key already, another
// process was quicker: nothing is stored of that record, because later stages may have added theirs to the group since.
// Another section under the key was of no use any more (frames of a file that has changed), and is replaced. A group
// replaces the one of its id; if that was of another sample, the log says so, once while the store is open. UNAVAILABLE
// when the disk is full.
status group_store_save_all(struct group_store *store, const struct group_record *records, size_t count);

// *out = the group with this id, owned by the caller, who frees it with group_free; NULL when there is none. DATAERR
// when it is damaged.
status group_store_get(struct group_store *store, const char *id, struct group **out);

// Calls visit with every group in the order of their ids; the group is valid during the call. Stops when visit does not
// return OK, and returns what it returned.
status group_store_each(struct group_store *store, status (*visit)(void *context, const struct group *group),
                        void *context);

// ---- summaries ----

// A store that was last written before summaries were has none of them: its groups are found by id alone.

struct numbered_summary {
    int64_t number;
    struct group_summary summary;
};

// Whether the store has summaries.
bool group_store_has_summaries(const struct group_store *store);

// Copies the summaries with the lowest numbers from `first` on into out[0..*count), at most `most` of them. DATAERR
// when one is damaged.
status group_store_summaries(struct group_store *store, int64_t first, struct numbered_summary *out, size_t most,
                             size_t *count);

// *out = the row under `number`, with its strings in `bytes`; *found says whether there is one. DATAERR when it is
// damaged.
status group_store_row(struct group_store *store, int64_t number, struct group_row *out, struct buf *bytes,
                       bool *found);

// Copies the numbers of the groups of a sample, by group_summary.sample, into numbers[0..*count): the lowest ones, at
// most `most`.
status group_store_of_sample(struct group_store *store, uint64_t sample, int64_t *numbers, size_t most, size_t *count);

// *out = the group with this number, owned by the caller; NULL when there is none. DATAERR when it is damaged.
status group_store_get_number(struct group_store *store, int64_t number, struct group **out);

// *number = that of the group with this id; -1 when there is none.
status group_store_number_of(struct group_store *store, const char *id, int64_t *number);
