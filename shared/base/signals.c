#include "shared/base/signals.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

// Any thread may run the handler, so this is atomic, not only volatile.
static atomic_int signals_stop;
static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler may set it");
static int signals_pipe[2] = {-1, -1};

static void signals_on_stop(int number) {
    (void)number;
    int saved_errno = errno;
    atomic_store(&signals_stop, 1);
    ssize_t size = write(signals_pipe[1], "", 1); // a full pipe is readable, too
    (void)size;
    errno = saved_errno;
}

status signals_open(void) {
    if (pipe2(signals_pipe, O_CLOEXEC | O_NONBLOCK)) return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    struct sigaction stop = {.sa_handler = signals_on_stop};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (sigaction(SIGTERM, &stop, NULL) || sigaction(SIGINT, &stop, NULL) || sigaction(SIGPIPE, &ignore, NULL) ||
        sigaction(SIGXFSZ, &ignore, NULL))
        return fail(BUG, "sigaction: %s", strerror(errno));
    return OK;
}

bool signals_stopping(void) {
    return atomic_load(&signals_stop) != 0;
}

int signals_fd(void) {
    return signals_pipe[0];
}

// ---- input ----

status line_reader_next(struct line_reader *reader, int timeout_ms, const char **line, size_t *size) {
    enum { READ_BYTES = 1 << 16 };
    struct buf *buffer = &reader->buffer;
    *line = NULL;
    for (;;) {
        while (reader->start < buffer->size) {
            const char *begin = buffer->data + reader->start;
            const size_t rest = buffer->size - reader->start;
            assert(reader->scanned <= rest);
            const char *newline = memchr(begin + reader->scanned, '\n', rest - reader->scanned);
            if (!newline && !reader->ended) {
                reader->scanned = rest;
                break;
            }
            // At the end of the input a line may lack its newline.
            const size_t length = newline ? (size_t)(newline - begin) : rest;
            reader->start += length + (newline != NULL);
            reader->scanned = 0;
            reader->number++;
            size_t blank = 0;
            while (blank < length && (begin[blank] == ' ' || (begin[blank] >= '\t' && begin[blank] <= '\r'))) blank++;
            if (blank == length) continue;
            *line = begin;
            *size = length;
            return OK;
        }
        if (reader->ended) return END;
        struct pollfd fds[2] = {{.fd = reader->fd, .events = POLLIN}, {.fd = signals_fd(), .events = POLLIN}};
        int ready = poll(fds, 2, timeout_ms);
        if (ready < 0 && errno != EINTR) return fail(BUG, "poll: %s", strerror(errno));
        if (ready <= 0 || !fds[0].revents || fds[1].revents) return OK;
        if (reader->start) {
            buffer->size -= reader->start;
            memmove(buffer->data, buffer->data + reader->start, buffer->size);
            reader->start = 0;
        }
        TRY(buf_reserve_large(buffer, READ_BYTES));
        ssize_t got = read(reader->fd, buffer->data + buffer->size, READ_BYTES - 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0) return fail(DATAERR, "standard input: %s", strerror(errno));
        buffer->size += (size_t)got;
        buffer->data[buffer->size] = 0;
        reader->ended = got == 0;
    }
}

void line_reader_release(struct line_reader *reader) {
    buf_release(&reader->buffer);
}
