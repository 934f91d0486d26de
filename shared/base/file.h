// Descriptors, whole files, locks, directories and paths.
//
// A file that cannot be read is DATAERR, because the user named it, unless file_read_status says otherwise; one that
// cannot be written is UNAVAILABLE. The fd_* loops report errno instead, because only their caller knows what a failure
// means.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// ---- descriptors ----

// Writes all `size` bytes; waits where a non-blocking descriptor is full. Returns false with errno set on failure;
// some bytes may then have been written.
bool fd_write_all(int fd, const void *data, size_t size);

// The same at `offset` of a file.
bool fd_pwrite_all(int fd, const void *data, size_t size, off_t offset);

// Reads exactly `size` bytes at `offset`. Returns false with errno set on failure, ENODATA if the file ends earlier.
bool fd_pread_all(int fd, void *data, size_t size, off_t offset);

// read() that starts again after a signal: the number of bytes read, 0 at the end, -1 with errno set.
ssize_t fd_read(int fd, void *data, size_t size);

// pread() that starts again after a signal; see fd_read.
ssize_t fd_pread(int fd, void *data, size_t size, off_t offset);

// Opens /dev/null for each standard stream that is closed, so that no file opened later takes its number. Reading and
// writing that stream still fails. UNAVAILABLE.
status fd_reserve_standard(void);

// Raises the number of descriptors that this process and its children may open (RLIMIT_NOFILE) as far as it is allowed
// to, and returns that number.
uint64_t fd_raise_limit(void);

// Sets the size of the terminal at `fd`; 80 x 24 where it is no terminal or does not say. `rows` may be NULL.
void terminal_size(int fd, int *columns, int *rows);

// ---- whole files ----

// Returns what it means that a file cannot be read with this errno: UNAVAILABLE where the disk, the network or the
// machine fails, perhaps for a moment; otherwise DATAERR.
status file_read_status(int error);

// Appends a file's content to `out`. DATAERR and UNAVAILABLE name the path.
status file_read(const char *path, struct buf *out);

// Whether the content of a file is a pointer of Git LFS: what a clone has instead of a file that was not fetched.
bool file_is_lfs_pointer(const void *data, size_t size);

// Sets tail[0..size) to the last bytes of a file, as a string. It is "" if the file cannot be read.
void file_read_tail(const char *path, char *tail, size_t size);

// A read-only mapping of a whole file. A zeroed struct is an empty one.
struct file_map {
    const void *data; // NULL for an empty file
    size_t size;
    void *address; // what munmap gets
};

// Maps `path`, which must be a regular file. Release it with file_map_release. DATAERR and
// UNAVAILABLE name the path.
status file_map_open(struct file_map *map, const char *path);

// Unmaps the file and zeroes the struct.
void file_map_release(struct file_map *map);

// Replaces the file at `path` atomically: writes PATH.HOST.PID.tmp, syncs it, renames it and syncs the directory. A
// reader sees the old content or the new, also when several processes or machines write it. UNAVAILABLE; the old file
// is then untouched and the temporary one removed, unless only the sync of the directory failed. A symbolic link stays
// a link, to the new file; a device or a pipe, such as /dev/null, is written into and stays what it is.
status file_write_atomic(const char *path, const void *data, size_t size);

// Appends to the file at `path`, of which this process is the only writer, with one write, so that no reader sees half
// of it; makes the file if it is missing. UNAVAILABLE; the file then has its old content, if it can be truncated.
status file_append(const char *path, const void *data, size_t size);

// Records that a file gets at its end. While it cannot be written they wait, so that none is missing later.
struct append_queue {
    char *path; // on the heap, the queue's
    struct buf waiting;
    bool failing; // the last attempt failed
};

// Appends the record to the queue's file, after those that wait. UNAVAILABLE; the record then waits as well.
status append_queue_add(struct append_queue *queue, const void *data, size_t size);

// Tries once more to write what waits, frees what the queue holds and zeroes it. UNAVAILABLE: that is lost.
status append_queue_release(struct append_queue *queue);

// Opens `path` for reading. Until *fd is closed, file_lock_exclusive does not open the same file. DATAERR if the file
// is missing or being written.
status file_lock_shared(const char *path, int *fd);

// Opens `path` for writing: the existing file, with its content, if no process has a lock on it, else a new empty file
// of that name. Until *fd is closed, file_lock_shared fails, except on a file system without locks. UNAVAILABLE.
status file_lock_exclusive(const char *path, int *fd);

// ---- directories and paths ----

// Makes a directory and its parents. An existing one is fine. UNAVAILABLE.
status dir_make(const char *path);

// Syncs a directory's entries to the disk. UNAVAILABLE.
status dir_sync(const char *path);

// Removes a directory and everything in it. A missing one is fine. UNAVAILABLE.
status dir_remove(const char *path);

// Removes the files of a directory whose names begin with `prefix`, except those whose names begin with `keep` and
// those that were modified in the last `seconds` (0: none). A file that cannot be removed stays; a missing directory is
// fine.
void dir_remove_old(const char *path, const char *prefix, const char *keep, int64_t seconds);

// Whether `path` exists, as a dangling symbolic link too.
bool path_exists(const char *path);

// Compares two elements of an array of paths, for qsort.
int path_compare(const void *left, const void *right);

// Writes the name of the user to whom a file belongs, or the number of one without a name; "?" for a missing file.
void path_owner(const char *path, char *name, size_t size);

// Returns "dir/name", or `name` alone if it is absolute or `dir` is NULL or empty.
char *path_join(struct arena *arena, const char *dir, const char *name) __attribute__((returns_nonnull));

// Returns what stands behind the last slash, in the path itself.
const char *path_base_name(const char *path);

// *dir, in the arena = the directory of the program that this process runs. UNAVAILABLE.
status path_program_dir(struct arena *arena, const char **dir);

// Returns the directory of a path: "." for a bare name, "/" for one in the root.
char *path_parent(struct arena *arena, const char *path) __attribute__((returns_nonnull));
