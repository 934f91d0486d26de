// fork, exec, pipes and deadlines of a user's program.
//
// The program leads a process group. A second child, the guard, is in that group and asks the kernel for a signal when
// this process ends; it then kills the group. So nothing that the program has started outlives the run.
#include "tools/run/filter.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"

enum { FILTER_REASON = 512 }; // bytes of a text that says how a filter ended
static const char filter_log[] = "/proc/self/fd/2";

static off_t filter_log_size(void) {
    struct stat info;
    return fstat(STDERR_FILENO, &info) || !S_ISREG(info.st_mode) ? 0 : info.st_size;
}

// ---- starting ----

_Noreturn static void filter_exec(const struct filter *filter, pid_t parent, int in, int out) {
    setpgid(0, 0);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(UNAVAILABLE); // it ended before prctl
    if (chdir(filter->directory)) {
        log_info("%s: %s", filter->directory, strerror(errno));
        _exit(UNAVAILABLE);
    }
    execvp(filter->argv[0], filter->argv);
    log_info("%s: %s", filter->argv[0], strerror(errno));
    _exit(127); // as a shell
}

// Waits in the filter's process group for the end of the parent, then kills the group.
_Noreturn static void filter_guard(pid_t parent, pid_t group) {
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    // It holds no pipe of the filter, which otherwise would not see their ends.
    if (setpgid(0, group) || close_range(STDERR_FILENO + 1, UINT_MAX, 0)) _exit(UNAVAILABLE);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent) sigwait(&set, &number);
    kill(0, SIGKILL);
    _exit(0);
}

status filter_start(struct filter *filter) {
    int in[2], out[2];
    assert(!filter->pid);
    if (pipe2(in, O_CLOEXEC)) return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    if (pipe2(out, O_CLOEXEC)) {
        close(in[0]), close(in[1]);
        return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    }
    const pid_t parent = getpid();
    filter->log_start = filter_log_size();
    filter->pid = fork();
    if (filter->pid == 0) filter_exec(filter, parent, in[0], out[1]);
    if (filter->pid > 0) {
        setpgid(filter->pid, filter->pid); // here too: the guard may come before the child has done it
        filter->guard = fork();
        if (filter->guard == 0) filter_guard(parent, filter->pid);
    }
    const int error = errno;
    close(in[0]), close(out[1]);
    filter->in = in[1];
    filter->out = out[0];
    buf_clear(&filter->output);
    if (filter->pid > 0 && filter->guard > 0) return OK;
    if (filter->pid > 0) {
        filter->guard = 0;
        filter_stop(filter);
    } else {
        filter->pid = 0;
        close(filter->in), close(filter->out);
    }
    return fail(UNAVAILABLE, "fork: %s", strerror(error));
}

// ---- stopping ----

// Waits until the filter has ended, a second at most.
static void filter_wait(const struct filter *filter) {
    enum { WAIT_MS = 1000 };
    const int handle = (int)syscall(SYS_pidfd_open, filter->pid, 0);
    const double until = clock_monotonic() + WAIT_MS * 1e-3;
    struct pollfd end = {.fd = handle, .events = POLLIN};
    int left = handle < 0 ? 0 : WAIT_MS;
    while (left > 0 && poll(&end, 1, left) < 0 && errno == EINTR) left = (int)((until - clock_monotonic()) * 1e3);
    if (handle >= 0) close(handle);
}

// Describes a wait status with the last line that the filter has written to the log.
static void filter_describe(const struct filter *filter, int state, char how[FILTER_REASON]) {
    char words[FILTER_REASON / 2] = "";
    const off_t written = filter_log_size() - filter->log_start;
    if (written > 0)
        file_read_tail(filter_log, words, written < (off_t)sizeof words ? (size_t)written + 1 : sizeof words);
    size_t size = strlen(words);
    while (size > 0 && words[size - 1] == '\n') words[--size] = 0;
    const char *newline = strrchr(words, '\n'), *line = newline ? newline + 1 : words;
    const char *colon = *line ? ": " : "";
    if (WIFSIGNALED(state))
        snprintf(how, FILTER_REASON, "was killed by signal %d (%s)%s%s", WTERMSIG(state), strsignal(WTERMSIG(state)),
                 colon, line);
    else
        snprintf(how, FILTER_REASON, "ended with exit code %d%s%s", WEXITSTATUS(state), colon, line);
}

// Waits a second for the filter's end, kills its process group, and says how it has ended.
static void filter_end(struct filter *filter, char how[FILTER_REASON]) {
    int state = 0, guard_state = 0;
    assert(filter->pid);
    close(filter->in);
    close(filter->out);
    filter_wait(filter);
    // Until the filter is reaped no other group can have its number.
    kill(-filter->pid, SIGKILL);
    while (waitpid(filter->pid, &state, 0) < 0 && errno == EINTR) continue;
    while (filter->guard && waitpid(filter->guard, &guard_state, 0) < 0 && errno == EINTR) continue;
    filter_describe(filter, state, how);
    filter->pid = filter->guard = 0;
}

void filter_stop(struct filter *filter) {
    char how[FILTER_REASON];
    if (filter->pid) filter_end(filter, how);
}

// ---- a line for a line ----

// Writes the line from *done on and reads until the output has a whole line, whose size is *size. BAD_SAMPLE when the
// filter has closed a pipe or the deadline (0: none) is over; the latter also sets *late. END when this process is
// asked to stop.
static status filter_converse(struct filter *filter, const struct buf *line, double deadline, size_t *done,
                              size_t *size, bool *late) {
    enum { PIPE_SIZE = 4096, READ_SIZE = 65536 }; // a pipe that is ready takes PIPE_SIZE bytes without blocking
    struct buf *output = &filter->output;
    size_t searched = 0; // the output has no newline before this
    bool answered = false;
    for (;;) {
        const char *newline = searched < output->size && !answered
                                  ? memchr(output->data + searched, '\n', output->size - searched)
                                  : NULL;
        if (newline) *size = (size_t)(newline - output->data);
        searched = output->size;
        answered = answered || newline;
        if (answered && *done == line->size) return OK;
        const double left = deadline > 0 ? ceil((deadline - clock_monotonic()) * 1e3) : -1;
        struct pollfd fds[] = {{.fd = filter->out, .events = POLLIN},
                               {.fd = *done < line->size ? filter->in : -1, .events = POLLOUT},
                               {.fd = signals_fd(), .events = POLLIN}};
        if (signals_stopping()) return END;
        *late = deadline > 0 && left <= 0;
        if (*late) return BAD_SAMPLE;
        if (poll(fds, 3, left < INT_MAX ? (int)left : INT_MAX) < 0 && errno != EINTR)
            return fail(UNAVAILABLE, "poll: %s", strerror(errno));
        // Reads while it writes, too: a program such as cat answers before it has the whole line, and the pipes hold
        // less than a long line.
        if (fds[1].revents) {
            const size_t part = line->size - *done < PIPE_SIZE ? line->size - *done : PIPE_SIZE;
            const ssize_t written = write(filter->in, line->data + *done, part);
            if (written < 0 && errno != EINTR) return BAD_SAMPLE;
            if (written > 0) *done += (size_t)written;
        }
        if (!fds[0].revents) continue;
        buf_reserve(output, READ_SIZE);
        const ssize_t got = fd_read(filter->out, output->data + output->size, READ_SIZE);
        if (got <= 0) return BAD_SAMPLE;
        output->size += (size_t)got;
    }
}

status filter_exchange(struct filter *filter, const struct buf *line, double timeout, size_t *size, bool *read) {
    char how[FILTER_REASON];
    size_t done = 0;
    int unread = 0;
    bool late = false;
    assert(filter->pid && line->size);
    status result = filter_converse(filter, line, timeout > 0 ? clock_monotonic() + timeout : 0, &done, size, &late);
    *read = ioctl(filter->in, FIONREAD, &unread) || done > (size_t)unread;
    if (result != BAD_SAMPLE) return result;
    if (late) kill(-filter->pid, SIGKILL);
    filter_end(filter, how);
    return late ? fail(BAD_SAMPLE, "did not answer within %g s", timeout) : fail(BAD_SAMPLE, "%s", how);
}

void filter_drop_answer(struct filter *filter, size_t size) {
    struct buf *output = &filter->output;
    assert(size < output->size);
    memmove(output->data, output->data + size + 1, output->size -= size + 1);
}
