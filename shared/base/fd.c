#include "shared/base/fd.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

bool fd_write_all(int fd, const void *data, size_t size) {
    for (const char *at = data; size;) {
        ssize_t written = write(fd, at, size);
        if (written < 0 && errno == EAGAIN) poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
        if (written < 0) continue;
        at += written;
        size -= (size_t)written;
    }
    return true;
}

bool fd_pwrite_all(int fd, const void *data, size_t size, off_t offset) {
    for (const char *at = data; size;) {
        ssize_t written = pwrite(fd, at, size, offset);
        if (written < 0 && errno != EINTR) return false;
        if (written < 0) continue;
        at += written;
        offset += written;
        size -= (size_t)written;
    }
    return true;
}

bool fd_pread_all(int fd, void *data, size_t size, off_t offset) {
    for (char *at = data; size;) {
        ssize_t got = fd_pread(fd, at, size, offset);
        if (got == 0) errno = ENODATA;
        if (got <= 0) return false;
        at += got;
        offset += got;
        size -= (size_t)got;
    }
    return true;
}

ssize_t fd_read(int fd, void *data, size_t size) {
    ssize_t got;
    do got = read(fd, data, size);
    while (got < 0 && errno == EINTR);
    return got;
}

ssize_t fd_pread(int fd, void *data, size_t size, off_t offset) {
    ssize_t got;
    do got = pread(fd, data, size, offset);
    while (got < 0 && errno == EINTR);
    return got;
}

status fd_reserve_standard(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        int got =
            open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY); // the wrong way round, so that use fails
        if (got < 0) return fail(UNAVAILABLE, "/dev/null: %s", strerror(errno));
        assert(got == fd); // open returns the lowest free number
    }
    return OK;
}
