// What is wrong with an LMDB file, and whether it is sound at all. LMDB follows the numbers that a page has without
// looking: in a damaged file they end the process by a signal, or let it write over other pages. So the first process
// that opens a file reads all pages that have such numbers, which are few beside those of the values. What the values
// themselves say is not checked.
#pragma once

#include <lmdb.h>

#include "shared/base/status.h"

// Fails with DATAERR and the way out: what is damaged, as the format says, and what to remove.
status lmdb_fail_damaged(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Fails with the message for LMDB's `code` about the file at `path`; `what` could not be done. Returns UNAVAILABLE,
// DATAERR when the file is damaged or of another kind, or BUG.
status lmdb_fail(const char *path, int code, const char *what);

// Checks the two pages with which the file begins. Before LMDB opens it. A file that is missing or too short is fine:
// LMDB says so. DATAERR when one is damaged.
status lmdb_check_head(const char *path);

// Checks the trees of the open file, as the last transaction left them. DATAERR names the page that is damaged. OK also
// if another process has changed the file meanwhile.
status lmdb_check_trees(MDB_env *mdb, const char *path);
