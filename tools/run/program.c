// caravan program: a user's program as a stage of a run. Started by `caravan run`, not by a user: the program gets one
// group per line on its standard input and answers with the group on its standard output.
//
// A program that fails is started again and gets its group again. A group with which it fails MAX_TRIES times is
// quarantined, unless the program seems to be broken itself.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/signals.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/stage.h"
#include "shared/wire/node_config.h"
#include "tools/tools.h"

// ---- filter ----

// A user's program as a child process: started, given a line, asked for a line, stopped. It leads a process group of
// its own, which ends as a whole with filter_stop, and when this process ends, however that happens: a second child,
// the guard, is in that group and asks the kernel for a signal when this process ends; it then kills the group. So
// nothing that the program has started outlives the run.

// A zeroed struct is one that does not run.
struct filter {
    char **argv;           // ends with NULL
    const char *directory; // the directory in which it starts
    pid_t pid;             // 0: not running
    pid_t guard;           // kills the group when this process ends
    int in, out;           // its standard input and output
    off_t log_start;       // size of the log, which is its standard error, when it was started
    struct buf output;
};

enum { FILTER_REASON = 512 }; // bytes of a text that says how a filter ended
static const char filter_log[] = "/proc/self/fd/2";

static off_t filter_log_size(void) {
    struct stat info;
    return fstat(STDERR_FILENO, &info) || !S_ISREG(info.st_mode) ? 0 : info.st_size;
}

// ---- stopping ----

// Waits a second for the filter's end, kills its process group, and says how it has ended, with the last line that it
// has written to the log.
static void filter_end(struct filter *filter, char how[FILTER_REASON]) {
    enum { WAIT_MS = 1000 };
    int state = 0, guard_state = 0;
    assert(filter->pid);
    close(filter->in);
    close(filter->out);
    const int handle = (int)syscall(SYS_pidfd_open, filter->pid, 0);
    const double until = clock_monotonic() + WAIT_MS * 1e-3;
    struct pollfd ended = {.fd = handle, .events = POLLIN};
    int left = handle < 0 ? 0 : WAIT_MS;
    while (left > 0 && poll(&ended, 1, left) < 0 && errno == EINTR) left = (int)((until - clock_monotonic()) * 1e3);
    if (handle >= 0) close(handle);
    // Until the filter is reaped no other group can have its number.
    kill(-filter->pid, SIGKILL);
    while (waitpid(filter->pid, &state, 0) < 0 && errno == EINTR) continue;
    while (filter->guard && waitpid(filter->guard, &guard_state, 0) < 0 && errno == EINTR) continue;
    filter->pid = filter->guard = 0;
    char words[FILTER_REASON / 2] = ""; // the last ones that it has written to the log
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

// Closes its input, waits a second for its end, and kills what is left of its process group. Does nothing if it does
// not run.
static void filter_stop(struct filter *filter) {
    char how[FILTER_REASON];
    if (filter->pid) filter_end(filter, how);
}

// ---- starting ----

_Noreturn static void filter_exec(const struct filter *filter, pid_t parent, int in, int out) {
    setpgid(0, 0);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
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

// Starts it. UNAVAILABLE; it does not run then.
static status filter_start(struct filter *filter) {
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

// ---- program ----

enum { MAX_QUOTED = 60, MAX_TRIES = 4, MAX_FAILED_GROUPS = 3, PAUSE_MS = 100 };

struct program_options {
    struct common_options common;
    double timeout;
};

static const struct option program_options[] = {
    TOOL_OPTION(program_options, timeout, OPTION_NUMBER, "seconds that the program has for a group; 0: any time",
                .default_value = "0", .low = 0, .high = 1e6),
    {0},
};

struct program {
    struct node_config config; // of this adapter, with the program's command
    double timeout;            // seconds
    struct arena arena;
    struct filter filter;
    struct buf line;
    int failed_groups; // in a row
};

static struct program user_program; // the only one of this process

// Gives the group to the program and replaces it by the answer. BAD_SAMPLE: the program has failed and does not run;
// fail_text() says how ("ended with exit code 1: the last line of its log"), and *read whether it had read any of the
// group. END when this process is asked to stop.
static status program_try(struct program *program, struct group *group, bool *read) {
    struct filter *filter = &program->filter;
    struct group *answer = NULL;
    size_t size = 0, done = 0;
    int unread = 0;
    bool late = false;
    *read = false;
    if (!filter->pid) TRY(filter_start(filter));
    const double deadline = program->timeout > 0 ? clock_monotonic() + program->timeout : 0;
    status result = filter_converse(filter, &program->line, deadline, &done, &size, &late);
    *read = ioctl(filter->in, FIONREAD, &unread) || done > (size_t)unread;
    if (result == BAD_SAMPLE) {
        char how[FILTER_REASON];
        if (late) kill(-filter->pid, SIGKILL);
        filter_end(filter, how);
        return late ? fail(BAD_SAMPLE, "did not answer within %g s", program->timeout) : fail(BAD_SAMPLE, "%s", how);
    }
    TRY(result);
    // The answer is the first `size` bytes of the output, without the newline behind it.
    result = group_from_json(&answer, filter->output.data, size);
    if (result == OK) result = group_restore(answer, group);
    if (result == OK) {
        const struct group before = *group;
        *group = *answer;
        *answer = before;
        struct buf *output = &filter->output; // without the answer and its newline
        assert(size < output->size);
        memmove(output->data, output->data + size + 1, output->size -= size + 1);
    } else if (result == DATAERR) {
        char line[MAX_QUOTED + 1];
        size_t length = size < MAX_QUOTED ? size : MAX_QUOTED;
        snprintf(line, sizeof line, "%.*s", (int)length, filter->output.data);
        for (char *at = line; *at; at++)
            if (*at < ' ' || *at > '~') *at = '?';
        if (*line == '{')
            result = fail_prefix(BAD_SAMPLE, "gave a wrong answer");
        else
            result = fail(BAD_SAMPLE,
                          "gave a wrong answer: '%s' is not a group: standard output is for groups alone; print to "
                          "standard error",
                          line);
        filter_stop(filter); // what it writes next may belong to any group
    }
    group_free(&answer);
    return result;
}

static status program_open(void **state, struct stage_context *context) {
    const struct program_options *options = stage_options(context);
    *state = &user_program;
    user_program.timeout = options->timeout;
    return OK;
}

static status program_work(void *state, struct group *group) {
    struct program *program = state;
    const char *name = program->filter.argv[0];
    bool blamed = false; // the program had begun to read the group when it failed
    char reason[800];
    buf_clear(&program->line);
    group_to_json(group, &program->line);
    buf_puts(&program->line, "\n");
    for (int failures = 0; failures < MAX_TRIES;) {
        bool read;
        status result = program_try(program, group, &read);
        if (result == OK) program->failed_groups = 0;
        if (result != BAD_SAMPLE) return result;
        snprintf(reason, sizeof reason, "%s", fail_text());
        blamed = blamed || read;
        failures++;
        log_info("%s failed with group %s: it %s%s", name, group->id.data, reason,
                 failures < MAX_TRIES ? "; starting it again" : "");
        // A pause before the next try, at most until this process is asked to stop.
        struct pollfd stop = {.fd = signals_fd(), .events = POLLIN};
        if (failures < MAX_TRIES && !signals_stopping()) (void)poll(&stop, 1, PAUSE_MS << failures);
    }
    // A program that ends before it reads anything, or fails with whatever it gets, would fail with every group. The
    // exit code tells the supervisor not to try again.
    if (!blamed) return fail(DATAERR, "%s cannot be used: it %s", name, reason);
    if (++program->failed_groups == MAX_FAILED_GROUPS)
        return fail(DATAERR, "%s failed with %d groups in a row, each %d times: it %s", name, MAX_FAILED_GROUPS,
                    MAX_TRIES, reason);
    return fail(BAD_SAMPLE, "%s failed %d times with group %s: it %s", name, MAX_TRIES, group->id.data, reason);
}

int program_main(int argc, char **argv) {
    static const char option[] = "--node=";
    bool given = argc >= 2 && !strncmp(argv[1], option, sizeof option - 1);
    const char *path = given ? argv[1] + sizeof option - 1 : "";
    struct program *program = &user_program;
    const struct node_config *config = &program->config;
    int code = 0;
    status result;
    log_timestamps(given);
    TRY_TO(result, done,
           given ? node_config_read(&program->config, path)
                 : fail(USAGE, "caravan run starts this program; it cannot be started by hand"));
    if (!config->command_count || !config->program_dir)
        TRY_TO(result, done, fail(DATAERR, "%s: the file does not name a program", path));
    NEW(&program->filter.argv, config->command_count + 1);
    for (size_t i = 0; i < config->command_count; i++) {
        program->filter.argv[i] = arena_strndup(&program->arena, config->command[i], strlen(config->command[i]));
    }
    program->filter.directory = config->program_dir;
    // stage_main reads the option and the file again.
    const struct option_table table = {.program = config->stage,
                                       .help = "a user's program",
                                       .options = program_options,
                                       .common = common_options,
                                       .internal = internal_options,
                                       .size = sizeof(struct program_options)};
    const struct stage stage = {
        .name = config->stage, .table = &table, .section = -1, .open = program_open, .work = program_work};
    code = stage_main(&stage, argc, argv);
    filter_stop(&program->filter);
done:
    if (result != OK) code = subcommand_exit(result);
    buf_release(&program->line);
    buf_release(&program->filter.output);
    arena_release(&program->arena);
    free(program->filter.argv);
    node_config_release(&program->config);
    return code;
}
