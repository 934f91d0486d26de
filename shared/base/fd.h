// Loops over file descriptors: interruptions by signals and short transfers stay inside. They report errno, because
// what a failure means is the caller's to say.
#ifndef SHARED_BASE_FD_H
#define SHARED_BASE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "shared/base/status.h"

// Writes all `size` bytes; waits where a non-blocking descriptor is full. Returns false with errno set on failure;
// some bytes may then have been written.
bool fd_write_all(int fd, const void *data, size_t size);

// The same at `offset`, for files.
bool fd_pwrite_all(int fd, const void *data, size_t size, off_t offset);

// Reads exactly `size` bytes at `offset`. Returns false with errno set on failure, ENODATA if the file ends earlier.
bool fd_pread_all(int fd, void *data, size_t size, off_t offset);

// read() and pread() that start again after a signal: the number of bytes read, 0 at the end, -1 with errno set.
ssize_t fd_read(int fd, void *data, size_t size);

// See fd_read.
ssize_t fd_pread(int fd, void *data, size_t size, off_t offset);

// Opens /dev/null for each standard stream that is closed, so that no file opened later takes its number. Reading and
// writing that stream fails, as if it were closed. UNAVAILABLE.
status fd_reserve_standard(void);

#endif
