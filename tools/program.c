// caravan program: a user's program as a stage of a run. Started by `caravan run`, not by hand: the program gets a
// group a line on its standard input and answers with the group on its standard output.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/log.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/stage.h"
#include "shared/wire/node_config.h"
#include "tools/tools.h"

struct program {
    struct stage_context *context;
    struct node_config wiring;
    char **command;
    pid_t pid;
    int in, out;
    struct buf line, buffer;
    int deaths; // in a row, over one group
};

// argv[1] is --wiring=FILE, which says what program; stage_main reads it again.
static const char *program_wiring_path(int argc, char **argv) {
    static const char option[] = "--wiring=";
    return argc == 2 && !strncmp(argv[1], option, strlen(option)) ? argv[1] + strlen(option) : NULL;
}

static struct node_config given; // of this process: stage_main hands nothing to open

static status program_open(void **state, struct stage_context *context) {
    struct program *program;
    TRY(NEW(&program, 1));
    *state = program;
    program->context = context;
    program->in = program->out = -1;
    TRY(NEW(&program->command, given.command_count + 1));
    for (size_t i = 0; i < given.command_count; i++) program->command[i] = (char *)given.command[i];
    return OK;
}

static void program_exec(const struct program *program, const int in[2], const int out[2]) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    close(in[0]), close(in[1]), close(out[0]), close(out[1]);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(given.home)) _exit(UNAVAILABLE);
    execvp(program->command[0], program->command);
    dprintf(STDERR_FILENO, "%s: %s: %s\n", log_name(), program->command[0], strerror(errno));
    _exit(127);
}

static status program_start(struct program *program) {
    int in[2], out[2];
    if (pipe(in)) return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    if (pipe(out)) {
        close(in[0]), close(in[1]);
        return fail(UNAVAILABLE, "pipe: %s", strerror(errno));
    }
    program->pid = fork();
    if (program->pid == 0) program_exec(program, in, out);
    close(in[0]), close(out[1]);
    program->in = in[1];
    program->out = out[0];
    buf_clear(&program->buffer);
    return program->pid > 0 ? OK : fail(UNAVAILABLE, "fork: %s", strerror(errno));
}

static int program_stop(struct program *program) {
    int state = 0;
    if (program->in >= 0) close(program->in);
    if (program->out >= 0) close(program->out);
    program->in = program->out = -1;
    if (program->pid > 0) {
        enum { NAPS = 20, NAP_US = 50000 };
        pid_t gone = 0;
        for (int i = 0; i < NAPS && (gone = waitpid(program->pid, &state, WNOHANG)) == 0; i++) usleep(NAP_US);
        if (gone == 0) kill(program->pid, SIGKILL);
        if (gone == 0) waitpid(program->pid, &state, 0);
    }
    program->pid = 0;
    return state;
}

// Waits until the program can be written to or read from; END when we are asked to program_stop.
static status program_wait_for(const struct program *program, int fd, short events) {
    enum { SLICE_MS = 100 };
    struct pollfd ready = {.fd = fd, .events = events};
    while (!stage_stopping(program->context)) {
        int got = poll(&ready, 1, SLICE_MS);
        if (got < 0 && errno != EINTR) return fail(UNAVAILABLE, "poll: %s", strerror(errno));
        if (got > 0) return OK;
    }
    return END;
}

// BAD_SAMPLE: the program has ended.
static status program_write_line(struct program *program) {
    size_t done = 0;
    while (done < program->line.size) {
        TRY(program_wait_for(program, program->in, POLLOUT));
        enum { PIECE = 4096 }; // a pipe that poll says is ready takes so many without blocking
        size_t size = program->line.size - done < PIECE ? program->line.size - done : PIECE;
        ssize_t put = write(program->in, program->line.data + done, size);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return BAD_SAMPLE;
        done += (size_t)put;
    }
    return OK;
}

static status program_read_line(struct program *program, char **end) {
    enum { PIECE = 65536 };
    while (!(*end = program->buffer.size ? memchr(program->buffer.data, '\n', program->buffer.size) : NULL)) {
        TRY(program_wait_for(program, program->out, POLLIN));
        TRY(buf_reserve(&program->buffer, PIECE));
        ssize_t got = read(program->out, program->buffer.data + program->buffer.size, PIECE);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return BAD_SAMPLE;
        program->buffer.size += (size_t)got;
    }
    return OK;
}

static status program_take_answer(struct program *program, struct group *group, const char *end) {
    struct group *answer, swapped = *group;
    size_t size = (size_t)(end - program->buffer.data);
    TRY(group_from_json(&answer, program->buffer.data, size));
    memmove(program->buffer.data, end + 1, program->buffer.size -= size + 1);
    if (strcmp(answer->id.data, group->id.data) != 0) {
        status result = fail(DATAERR, "was given group %s and answered with %s", group->id.data, answer->id.data);
        group_free(&answer);
        return result;
    }
    *group = *answer;
    *answer = swapped;
    group_free(&answer);
    return OK;
}

static status program_ask(struct program *program, struct group *group) {
    char *end;
    if (!program->pid) TRY(program_start(program));
    TRY(program_write_line(program));
    TRY(program_read_line(program, &end));
    return program_take_answer(program, group, end);
}

static status program_work(void *state, struct group *group) {
    struct program *program = state;
    enum { DEATHS = 5 };
    buf_clear(&program->line);
    TRY(group_to_json(group, &program->line));
    TRY(buf_puts(&program->line, "\n"));
    for (int deaths = 0;;) {
        status result = program_ask(program, group);
        if (result == DATAERR) return fail_prefix(UNAVAILABLE, "%s", program->command[0]);
        if (result != BAD_SAMPLE) return result;
        int how = program_stop(program);
        log_info("%s %s %d over group %s; starting it again", program->command[0],
                 WIFSIGNALED(how) ? "was killed by signal" : "ended with exit code",
                 WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), group->id.data);
        if (++deaths == DEATHS)
            return fail(UNAVAILABLE, "%s: ended %d times in a row over group %s", program->command[0], deaths,
                        group->id.data);
        usleep(100000U << deaths);
    }
}

static status program_close(void *state) {
    struct program *program = state;
    if (!program) return OK;
    program_stop(program);
    buf_release(&program->line);
    buf_release(&program->buffer);
    free(program->command);
    free(program);
    return OK;
}

int program_main(int argc, char **argv) {
    const char *path = program_wiring_path(argc, argv);
    status result = path ? node_config_read(&given, path) : fail(USAGE, "caravan run starts this, not a person");
    if (result == OK && (!given.command_count || !given.home)) result = fail(DATAERR, "%s: names no program", path);
    if (result != OK) {
        log_info("%s", fail_text());
        node_config_release(&given);
        return result;
    }
    const struct option_table table = {.program = given.stage,
                                       .help = "a user's program",
                                       .common = common_options,
                                       .size = sizeof(struct common_options)};
    const struct stage stage = {.name = given.stage,
                                .table = &table,
                                .section = -1,
                                .open = program_open,
                                .work = program_work,
                                .close = program_close};
    int code = stage_main(&stage, argc, argv);
    node_config_release(&given);
    return code;
}
