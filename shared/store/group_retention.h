// Which whole groups and sections stay in groups.lmdb: their order, and the removal of the oldest. For group_store.c
// only.
//
// All calls are part of a write transaction. They fail with DATAERR when the store is damaged and with UNAVAILABLE when
// the disk is full.
#ifndef SHARED_STORE_GROUP_RETENTION_H
#define SHARED_STORE_GROUP_RETENTION_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/store/group_store.h"
#include "shared/store/lmdb_env.h"

// The databases of groups.lmdb.
enum { DBI_SECTIONS, DBI_GROUPS, DBI_ORDER, DBI_NUMBERS, DBI_SEQS, DBI_TOTALS };

enum { group_max_key = 500 }; // bytes of a key in DBI_GROUPS
static_assert(group_max_key <= 511, "LMDB's keys have at most 511 bytes");

// Gives a whole group that is about to be stored under `id` the newest place, and removes some of those beyond `keep`.
// step: in which it was trained, NULL: in none.
status group_retention_add_group(struct lmdb_txn *txn, const struct group_keep *keep, struct lmdb_val id, int64_t bytes,
                                 const int64_t *step);

// Removes some whole groups beyond `keep`; adds their number to *removed and their bytes to *freed.
status group_retention_remove_groups(struct lmdb_txn *txn, const struct group_keep *keep, int64_t *removed,
                                     int64_t *freed);

// Remembers at which seq the section was stored, and removes some of those of groups more than `keep` before it.
status group_retention_add_section(struct lmdb_txn *txn, int64_t keep, int64_t seq, const struct section_key *key);

// Removes some sections; *left says whether there are more.
status group_retention_remove_sections(struct lmdb_txn *txn, bool *left);

#endif
