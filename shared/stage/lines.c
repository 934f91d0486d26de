#include "shared/stage/lines.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "shared/stage/signals.h"

enum { CHUNK = 1 << 16 };

static bool is_blank(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (text[i] != ' ' && (text[i] < '\t' || text[i] > '\r')) return false;
    return true;
}

// Takes the next whole line out of the buffer; at the end of the input, what is left.
static bool cut_line(struct lines *lines, const char **line, size_t *size) {
    struct buf *buffer = &lines->buffer;
    while (lines->start < buffer->size) {
        const char *from = buffer->data + lines->start;
        const char *newline = memchr(from + lines->scanned, '\n', buffer->size - lines->start - lines->scanned);
        if (!newline && !lines->ended) {
            lines->scanned = buffer->size - lines->start;
            return false;
        }
        size_t length = newline ? (size_t)(newline - from) : buffer->size - lines->start;
        lines->start += length + (newline != NULL);
        lines->scanned = 0;
        lines->number++;
        if (is_blank(from, length)) continue;
        *line = from;
        *size = length;
        return true;
    }
    return false;
}

// Waits; *ready tells whether the descriptor may be read.
static status wait_for_input(const struct lines *lines, int timeout_ms, bool *ready) {
    struct pollfd fds[2] = {{.fd = lines->fd, .events = POLLIN}, {.fd = signals_fd(), .events = POLLIN}};
    int count = poll(fds, 2, timeout_ms);
    *ready = count > 0 && fds[0].revents && !fds[1].revents;
    if (count < 0 && errno != EINTR) return fail(BUG, "poll: %s", strerror(errno));
    return OK;
}

static status read_some(struct lines *lines) {
    struct buf *buffer = &lines->buffer;
    if (lines->start) {
        memmove(buffer->data, buffer->data + lines->start, buffer->size - lines->start);
        buffer->size -= lines->start;
        lines->start = 0;
    }
    TRY(buf_reserve(buffer, CHUNK));
    ssize_t got = read(lines->fd, buffer->data + buffer->size, CHUNK - 1);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return OK;
    if (got < 0) return fail(DATAERR, "standard input: %s", strerror(errno));
    buffer->size += (size_t)got;
    buffer->data[buffer->size] = 0;
    lines->ended = got == 0;
    return OK;
}

status lines_next(struct lines *lines, int timeout_ms, const char **line, size_t *size) {
    *line = NULL;
    for (;;) {
        if (cut_line(lines, line, size)) return OK;
        if (lines->ended) return END;
        bool ready;
        TRY(wait_for_input(lines, timeout_ms, &ready));
        if (!ready) return OK;
        TRY(read_some(lines));
    }
}

void lines_release(struct lines *lines) {
    buf_release(&lines->buffer);
}
