// Whether LMDB may work in a directory. Its processes share memory through the lock file, so on a network file system
// two machines would write the same pages.
#ifndef SHARED_STORE_LMDB_FILE_SYSTEM_H
#define SHARED_STORE_LMDB_FILE_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/status.h"

// Returns the name of the network file system that the directory is on; NULL when it is local, unknown or cannot be
// read.
const char *lmdb_network_file_system(const char *directory);

// USAGE when the file at `path`, which need not exist yet, would be on a network file system.
status lmdb_check_file_system(const char *path);

// Whether a line of /proc/self/mountinfo is the overlay file system with this device number; `upper` then gets the
// directory that has what is written to it. Declared for tests.
bool lmdb_overlay_upper(const char *line, unsigned device_major, unsigned device_minor, char *upper, size_t size);

#endif
