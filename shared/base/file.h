// Whole files: read, map, write at once so that a reader sees the old one or the new one and never a part.
#ifndef SHARED_BASE_FILE_H
#define SHARED_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Appends a file's content to `out`. DATAERR, with the path, when it cannot be read.
status file_read(const char *path, struct buf *out);

// A read-only mapping of a whole file.
struct file_map {
    const void *data; // NULL for an empty file
    size_t size;
};

// Maps `path`; DATAERR when it cannot be. Release with file_unmap.
status file_map_open(struct file_map *map, const char *path);

// Unmaps and zeroes; a zeroed map is fine.
void file_map_release(struct file_map *map);

// Opens `path` and keeps writers that ask (file_lock_exclusive) away from it until *held is closed. DATAERR when it is
// gone or being written.
status file_lock_shared(const char *path, int *held);

// Opens `path` for writing, content and all if it is there and nobody shares it; else as a new, empty file under that
// name. Sharers are kept away until *fd is closed. UNAVAILABLE when the disk refuses.
status file_lock_exclusive(const char *path, int *fd);

// Writes PATH.tmp, syncs it, renames it to PATH and syncs the folder. UNAVAILABLE when the disk refuses (full, say);
// the old file is then untouched and PATH.tmp removed.
status file_write_atomic(const char *path, const void *data, size_t size);

// Makes a folder and those above it. UNAVAILABLE when it cannot.
status dir_make(const char *path);

// Syncs a folder's own entries to the disk.
status dir_sync(const char *path);

// Removes a folder and all that is in it; a missing one is fine.
status dir_remove(const char *path);

// Whether something stands at that path.
bool path_exists(const char *path);

// "folder/name", or name alone if it is absolute or folder is NULL or empty. NULL when memory is short.
char *path_join(struct arena *arena, const char *folder, const char *name);

#endif
