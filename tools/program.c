// caravan program: a user's program as a stage of a run. Started by `caravan run`, not by a user: the program gets one
// group per line on its standard input and answers with the group on its standard output.
//
// The program and what it starts stay in the process group of this adapter, which the supervisor kills as a whole.
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/signals.h"
#include "shared/stage/stage.h"
#include "shared/wire/node_config.h"
#include "tools/tools.h"

struct program {
    struct node_config config; // of this adapter, with the program's command
    struct arena arena;
    char **argv;
    pid_t pid;   // 0: not running
    int in, out; // its standard input and output, -1 while it does not run
    struct buf line, buffer;
};

static struct program user_program; // the only one of this process

static status program_start(struct program *program) {
    int in[2], out[2];
    if (pipe(in)) return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    if (pipe(out)) {
        close(in[0]), close(in[1]);
        return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    }
    pid_t adapter = getpid();
    program->pid = fork();
    if (program->pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[0]), close(in[1]), close(out[0]), close(out[1]);
        signal(SIGPIPE, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != adapter) _exit(UNAVAILABLE); // it ended before prctl
        if (chdir(program->config.home)) _exit(UNAVAILABLE);
        execvp(program->argv[0], program->argv);
        log_info("%s: %s", program->argv[0], strerror(errno));
        _exit(127); // as a shell
    }
    close(in[0]), close(out[1]);
    program->in = in[1];
    program->out = out[0];
    buf_clear(&program->buffer);
    return program->pid > 0 ? OK : fail(UNAVAILABLE, "fork: %s", strerror(errno));
}

// Closes the program's input and waits a second for its end before killing it. Returns its wait status.
static int program_stop(struct program *program) {
    enum { NAPS = 20, NAP_US = 50000 };
    int state = 0;
    if (program->in >= 0) close(program->in);
    if (program->out >= 0) close(program->out);
    program->in = program->out = -1;
    if (program->pid > 0) {
        pid_t ended = 0;
        for (int i = 0; i < NAPS && (ended = waitpid(program->pid, &state, WNOHANG)) == 0; i++) usleep(NAP_US);
        if (ended == 0) kill(program->pid, SIGKILL);
        if (ended == 0) waitpid(program->pid, &state, 0);
    }
    program->pid = 0;
    return state;
}

// Waits until a descriptor is ready; END when this process is asked to stop.
static status program_wait(struct pollfd *fds, nfds_t count) {
    enum { SLICE_MS = 100 };
    while (!signals_stopping()) {
        int got = poll(fds, count, SLICE_MS);
        if (got < 0 && errno != EINTR) return fail(UNAVAILABLE, "poll: %s", strerror(errno));
        if (got > 0) return OK;
    }
    return END;
}

// Writes program->line, reads the program's answer and replaces the group by it. Reads while it writes, too: a program
// such as cat answers before it has the whole line, and the pipes hold less than a long line. BAD_SAMPLE: the program
// has ended. DATAERR: the answer is not that group. END when this process is asked to stop.
static status program_exchange(struct program *program, struct group *group) {
    enum { PIPE_SIZE = 4096, READ_SIZE = 65536 }; // a pipe that is ready takes PIPE_SIZE bytes without blocking
    const struct buf *line = &program->line;
    struct buf *buffer = &program->buffer;
    const char *newline = buffer->size ? memchr(buffer->data, '\n', buffer->size) : NULL;
    for (size_t done = 0; done < line->size || !newline;) {
        struct pollfd fds[] = {{.fd = program->out, .events = POLLIN},
                               {.fd = done < line->size ? program->in : -1, .events = POLLOUT}};
        TRY(program_wait(fds, 2));
        if (fds[1].revents) {
            size_t size = line->size - done < PIPE_SIZE ? line->size - done : PIPE_SIZE;
            ssize_t written = write(program->in, line->data + done, size);
            if (written < 0 && errno != EINTR) return BAD_SAMPLE;
            if (written > 0) done += (size_t)written;
        }
        if (!fds[0].revents) continue;
        TRY(buf_reserve(buffer, READ_SIZE));
        ssize_t got = fd_read(program->out, buffer->data + buffer->size, READ_SIZE);
        if (got <= 0) return BAD_SAMPLE;
        buffer->size += (size_t)got;
        newline = memchr(buffer->data, '\n', buffer->size);
    }
    struct group *answer, before = *group;
    size_t size = (size_t)(newline - buffer->data);
    assert(size < buffer->size);
    TRY(group_from_json(&answer, buffer->data, size));
    memmove(buffer->data, newline + 1, buffer->size -= size + 1);
    if (strcmp(answer->id.data, group->id.data) != 0) {
        status result = fail(DATAERR, "received group %s, but answered with group %s", group->id.data, answer->id.data);
        group_free(&answer);
        return result;
    }
    // When the group was issued is not the program's to say.
    answer->requires = group->requires;
    answer->requires.unknown = (struct unknown_fields){0};
    *group = *answer;
    *answer = before;
    group_free(&answer);
    return OK;
}

static status program_work(void *state, struct group *group) {
    enum { MAX_FAILURES = 5 };
    struct program *program = &user_program;
    (void)state;
    const char *name = program->argv[0];
    buf_clear(&program->line);
    TRY(group_to_json(group, &program->line));
    TRY(buf_puts(&program->line, "\n"));
    for (int failures = 0;;) {
        status result = program->pid ? OK : program_start(program);
        if (result == OK) result = program_exchange(program, group);
        if (result == DATAERR) return fail_prefix(UNAVAILABLE, "%s", name);
        if (result != BAD_SAMPLE) return result;
        int how = program_stop(program);
        log_info("%s %s %d while it had group %s; starting it again", name,
                 WIFSIGNALED(how) ? "was killed by signal" : "ended with exit code",
                 WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), group->id.data);
        if (++failures == MAX_FAILURES)
            return fail(UNAVAILABLE, "%s ended %d times in a row while it had group %s", name, failures,
                        group->id.data);
        usleep(100000U << failures);
    }
}

int program_main(int argc, char **argv) {
    static const char option[] = "--wiring=";
    bool given = argc >= 2 && !strncmp(argv[1], option, sizeof option - 1);
    const char *path = given ? argv[1] + sizeof option - 1 : "";
    struct program *program = &user_program;
    const struct node_config *config = &program->config;
    int code = 0;
    status result;
    program->in = program->out = -1;
    log_timestamps(given);
    TRY_TO(result, done,
           given ? node_config_read(&program->config, path)
                 : fail(USAGE, "caravan run starts this program; it cannot be started by hand"));
    if (!config->command_count || !config->home)
        TRY_TO(result, done, fail(DATAERR, "%s: the file does not name a program", path));
    TRY_TO(result, done, NEW(&program->argv, config->command_count + 1));
    for (size_t i = 0; i < config->command_count; i++) {
        program->argv[i] = arena_strndup(&program->arena, config->command[i], strlen(config->command[i]));
        if (!program->argv[i]) TRY_TO(result, done, fail_oom());
    }
    // stage_main reads the option and the file again.
    const struct option_table table = {.program = config->stage,
                                       .help = "a user's program",
                                       .common = common_options,
                                       .size = sizeof(struct common_options)};
    const struct stage stage = {.name = config->stage, .table = &table, .section = -1, .work = program_work};
    code = stage_main(&stage, argc, argv);
    program_stop(program);
done:
    if (result != OK) code = subcommand_exit(result);
    buf_release(&program->line);
    buf_release(&program->buffer);
    arena_release(&program->arena);
    free(program->argv);
    node_config_release(&program->config);
    return code;
}
