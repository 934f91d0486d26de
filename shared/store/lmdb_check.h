// Whether an LMDB file is sound. LMDB follows the numbers that a page has without looking: in a damaged file they end
// the process by a signal, or let it write over other pages. So the first process that opens a file reads all pages
// that have such numbers, which are few beside those of the values. What the values themselves say is not checked.
#ifndef SHARED_STORE_LMDB_CHECK_H
#define SHARED_STORE_LMDB_CHECK_H

#include <lmdb.h>

#include "shared/base/status.h"

// Checks the two pages with which the file begins. Before LMDB opens it. A file that is missing or too short is fine:
// LMDB says so. DATAERR when one is damaged.
status lmdb_check_head(const char *path);

// Checks the trees of the open file, as the last transaction left them. DATAERR names the page that is damaged. OK also
// if another process has changed the file meanwhile.
status lmdb_check_trees(MDB_env *mdb, const char *path);

#endif
