#include "tools/groups/replay_process.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"

// Runs in the new process and does not return. A failure is written to the log.
_Noreturn static void replay_process_exec(char *const *argv, const char *directory, pid_t parent, int in, int out,
                                          int log) {
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(UNAVAILABLE); // it ended before prctl
    if (directory && chdir(directory)) {
        log_info("%s: %s", directory, strerror(errno));
        _exit(UNAVAILABLE);
    }
    execvp(argv[0], argv);
    log_info("%s: %s", argv[0], strerror(errno));
    _exit(UNAVAILABLE);
}

status replay_process_start(struct replay_process *process, char *const *argv, const char *directory) {
    int in[2], out[2];
    assert(!process->pid);
    if (pipe2(in, O_CLOEXEC)) return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    if (pipe2(out, O_CLOEXEC)) {
        close(in[0]), close(in[1]);
        return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    }
    process->log = memfd_create("log", MFD_CLOEXEC);
    const pid_t parent = getpid();
    process->pid = process->log < 0 ? -1 : fork();
    if (process->pid == 0) replay_process_exec(argv, directory, parent, in[0], out[1], process->log);
    const int error = errno;
    close(in[0]), close(out[1]);
    process->in = in[1];
    process->out = out[0];
    if (process->pid > 0) {
        process->started = true;
        return fcntl(process->in, F_SETFL, O_NONBLOCK) ? fail(UNAVAILABLE, "fcntl: %s", strerror(errno)) : OK;
    }
    close(process->in), close(process->out);
    if (process->log >= 0) close(process->log);
    process->pid = 0;
    return fail(UNAVAILABLE, "%s: %s", argv[0], strerror(error));
}

void replay_process_add(struct replay_process *process, const struct buf *line) {
    struct buf *input = &process->input;
    if (process->written > input->size / 2) {
        input->size -= process->written;
        memmove(input->data, input->data + process->written, input->size);
        process->written = 0;
    }
    buf_append(input, line->data, line->size);
    buf_puts(input, "\n");
}

void replay_process_end_input(struct replay_process *process) {
    process->input_ended = true;
}

// Waits until the output has more, of *got bytes, 0 at its end. Writes the input meanwhile.
static status replay_process_read(struct replay_process *process, double deadline, ssize_t *got) {
    enum { READ_SIZE = 65536, LONG_MS = 1 << 30 };
    struct buf *output = &process->output, *input = &process->input;
    for (;;) {
        const size_t left = input->size - process->written;
        if (process->in >= 0 && process->input_ended && !left) {
            close(process->in);
            process->in = -1;
        }
        const double wait = ceil((deadline - clock_monotonic()) * 1e3);
        struct pollfd fds[] = {{.fd = process->out, .events = POLLIN},
                               {.fd = left ? process->in : -1, .events = POLLOUT},
                               {.fd = signals_fd(), .events = POLLIN}};
        if (signals_stopping()) return fail(STOPPED, "stopped");
        if (wait <= 0) return fail(BAD_SAMPLE, "it has not answered in time");
        if (poll(fds, 3, wait < LONG_MS ? (int)wait : -1) < 0 && errno != EINTR)
            return fail(UNAVAILABLE, "poll: %s", strerror(errno));
        if (fds[1].revents) {
            const ssize_t written = write(process->in, input->data + process->written, left);
            if (written > 0) process->written += (size_t)written;
            if (written < 0 && errno == EPIPE) { // it reads no more: its exit code says why
                process->written = input->size;
                process->input_ended = true;
            }
        }
        if (!fds[0].revents) continue;
        buf_reserve(output, READ_SIZE);
        *got = fd_read(process->out, output->data + output->size, READ_SIZE);
        if (*got < 0) return fail(UNAVAILABLE, "read: %s", strerror(errno));
        output->size += (size_t)*got;
        return OK;
    }
}

status replay_process_next(struct replay_process *process, double seconds, const char **line, size_t *size) {
    struct buf *output = &process->output;
    const double deadline = seconds > 0 ? clock_monotonic() + seconds : INFINITY;
    ssize_t got = 1;
    *line = NULL;
    if (process->start) {
        output->size -= process->start;
        memmove(output->data, output->data + process->start, output->size);
        process->start = 0;
    }
    for (size_t searched = 0; got > 0;) {
        const char *end =
            output->size > searched ? memchr(output->data + searched, '\n', output->size - searched) : NULL;
        if (end) {
            *line = output->data;
            *size = (size_t)(end - output->data);
            process->start = *size + 1;
            return OK;
        }
        searched = output->size;
        TRY(replay_process_read(process, deadline, &got));
    }
    return OK;
}

status replay_process_wait(struct replay_process *process) {
    enum { POLL_MS = 10 };
    char path[64], words[512] = "";
    int state = 0;
    if (process->in >= 0) close(process->in);
    process->in = -1;
    while (!waitpid(process->pid, &state, WNOHANG)) {
        if (signals_stopping()) return fail(STOPPED, "stopped");
        poll(&(struct pollfd){.fd = signals_fd(), .events = POLLIN}, 1, POLL_MS);
    }
    process->pid = 0;
    if (WIFEXITED(state) && !WEXITSTATUS(state)) return OK;
    snprintf(path, sizeof path, "/proc/self/fd/%d", process->log);
    file_read_tail(path, words, sizeof words);
    size_t length = strlen(words);
    while (length > 0 && words[length - 1] == '\n') words[--length] = 0;
    const char *newline = strrchr(words, '\n'), *line = newline ? newline + 1 : words;
    static const char own[] = "caravan-"; // caravan-reward: what is wrong
    const char *colon = strncmp(line, own, sizeof own - 1) ? NULL : strstr(line, ": ");
    if (colon) line = colon + 2;
    if (WIFSIGNALED(state))
        return fail(UNAVAILABLE, "it was killed by signal %d (%s)%s%s", WTERMSIG(state), strsignal(WTERMSIG(state)),
                    *line ? ": " : "", line);
    const int code = WEXITSTATUS(state);
    if (code == USAGE || code == DATAERR || code == BUG) return fail((status)code, "%s", line);
    return fail(UNAVAILABLE, "it ended with exit code %d%s%s", code, *line ? ": " : "", line);
}

void replay_process_stop(struct replay_process *process) {
    if (process->pid) {
        int state;
        kill(process->pid, SIGKILL);
        while (waitpid(process->pid, &state, 0) < 0 && errno == EINTR) continue;
    }
    if (process->started) {
        if (process->in >= 0) close(process->in);
        close(process->out);
        close(process->log);
    }
    buf_release(&process->input);
    buf_release(&process->output);
    *process = (struct replay_process){0};
}
