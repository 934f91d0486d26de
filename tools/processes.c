// A process dies with its supervisor, however that ends: two generations never work in one folder. All that a stage
// does is safe against that.
#include "tools/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/file.h"

enum { SOON = 10, LINE = 600 };

// ---- making ----

static char *processes_print(struct arena *arena, status *result, const char *format, const char *a, const char *b) {
    char *text = arena_printf(arena, format, a, b);
    if (!text) *result = fail_oom();
    return text;
}

static status process_make_arguments(struct processes *processes, struct process *process, const char *wiring) {
    const struct pipeline_stage *stage = process->replica->stage;
    size_t count = 0;
    status result = OK;
    TRY(NEW(&process->arguments, key_list_count(&stage->keys) + 5));
    char **arguments = process->arguments;
    if (stage->program) {
        arguments[count++] = processes_print(&processes->arena, &result, "%s/caravan", processes->programs, "");
        arguments[count++] = "program";
    } else {
        arguments[count++] =
            processes_print(&processes->arena, &result, "%s/caravan-%s", processes->programs, stage->name);
    }
    arguments[count++] = processes_print(&processes->arena, &result, "--wiring=%s", wiring, "");
    for (const struct pipeline_key *key = stage->keys.first; key && !stage->program; key = key->next)
        arguments[count++] = processes_print(&processes->arena, &result, "--%s=%s", key->name, key->value);
    return result;
}

static status process_init(struct processes *processes, struct deployment *deployment, const struct replica *replica) {
    status result = OK;
    struct process *process = &processes->list[processes->count++];
    *process = (struct process){.replica = replica, .name = deployment_name(deployment, replica)};
    process->log =
        processes_print(&processes->arena, &result, "%s/logs/%s.log", deployment->pipeline->run, process->name);
    const char *wiring =
        processes_print(&processes->arena, &result, "%s/wiring/%s", deployment->pipeline->run, process->name);
    TRY(result);
    TRY(deployment_write_config(deployment, replica, wiring));
    return process_make_arguments(processes, process, wiring);
}

static status processes_find_programs(struct processes *processes) {
    char path[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
    if (size <= 0) return fail(UNAVAILABLE, "/proc/self/exe: %s", strerror(errno));
    path[size] = 0;
    char *slash = strrchr(path, '/');
    processes->programs = arena_strndup(&processes->arena, path, slash ? (size_t)(slash - path) : 0);
    return processes->programs ? OK : fail_oom();
}

status processes_init(struct processes *processes, struct deployment *deployment) {
    *processes = (struct processes){0};
    TRY(processes_find_programs(processes));
    TRY(NEW(&processes->list, deployment->count));
    for (size_t i = 0; i < deployment->count; i++) {
        const struct replica *replica = &deployment->replicas[i];
        if (replica->stage && replica->machine == deployment->here) TRY(process_init(processes, deployment, replica));
    }
    return OK;
}

void processes_release(struct processes *processes) {
    for (size_t i = 0; i < processes->count; i++) free(processes->list[i].arguments);
    free(processes->list);
    arena_release(&processes->arena);
    *processes = (struct processes){0};
}

// ---- starting ----

// In the new process. Whatever fails here is written to the log.
static void process_exec(const struct process *process, pid_t parent) {
    sigset_t none;
    int log = open(process->log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int input = open("/dev/null", O_RDONLY);
    if (log < 0 || input < 0) _exit(UNAVAILABLE);
    dup2(input, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(log);
    close(input);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); // Ctrl-C is the supervisor's alone
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(UNAVAILABLE);
    execv(process->arguments[0], process->arguments);
    dprintf(STDERR_FILENO, "caravan: %s: %s\n", process->arguments[0], strerror(errno));
    _exit(UNAVAILABLE);
}

static status process_start(struct process *process, double now) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) return fail(UNAVAILABLE, "%s cannot be started: %s", process->name, strerror(errno));
    if (pid == 0) process_exec(process, parent);
    process->pid = pid;
    process->started = now;
    process->ready = false;
    return OK;
}

status processes_start(struct processes *processes, double now) {
    for (size_t i = 0; i < processes->count; i++) {
        struct process *process = &processes->list[i];
        if (!process->pid && process->due <= now) TRY(process_start(process, now));
    }
    return OK;
}

// ---- ending ----

// The last line of the log, "" when there is none.
static void process_last_line(const char *path, char line[LINE]) {
    *line = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t begin = end > LINE - 1 ? end - (LINE - 1) : 0;
    ssize_t size = pread(fd, line, LINE - 1, begin);
    close(fd);
    if (size < 0) size = 0;
    line[size] = 0;
    while (size && line[size - 1] == '\n') line[--size] = 0;
    char *process_start = strrchr(line, '\n');
    if (process_start) memmove(line, process_start + 1, strlen(process_start));
}

static const char *process_describe(const struct process *process, int state) {
    static char text[LINE + 64];
    char line[LINE] = "";
    if (WIFSIGNALED(state)) {
        snprintf(text, sizeof text, "was killed by signal %d (%s)", WTERMSIG(state), strsignal(WTERMSIG(state)));
        return text;
    }
    process_last_line(process->log, line);
    snprintf(text, sizeof text, "ended with exit code %d: %s", WEXITSTATUS(state), *line ? line : "no word why");
    return text;
}

// By somebody, not by its own fault.
static bool process_was_killed(int state) {
    if (!WIFSIGNALED(state)) return false;
    int number = WTERMSIG(state);
    return number == SIGKILL || number == SIGTERM || number == SIGINT || number == SIGHUP;
}

// How often in a row a process may end so before the run does; 0: as often as it likes.
static int process_max_failures(const struct process *process, int state) {
    enum { ONCE = 1, SOME = 5 };
    if (process_was_killed(state)) return 0;
    if (WIFSIGNALED(state)) return SOME;
    int code = WEXITSTATUS(state);
    if ((code == USAGE || code == DATAERR) && !process->ready) return ONCE;
    return SOME;
}

static status process_schedule(struct process *process, int state, double now, const char *how) {
    int most = process_max_failures(process, state);
    bool soon = now - process->started < SOON;
    if (!soon && process->ready) process->failures = 0;
    process->due = now + 0.1;
    if (most == 0) return OK;
    process->failures++;
    if (soon) process->due = now + 0.1 * (double)(1 << (process->failures < 7 ? process->failures : 7));
    if (process->failures < most) return OK;
    int code = WIFEXITED(state) ? WEXITSTATUS(state) : BUG;
    status result = code == USAGE || code == DATAERR || code == UNAVAILABLE ? (status)code : BUG;
    return fail(result, "%s %s", process->name, how);
}

status processes_reap(struct processes *processes, double now, struct process **ended, const char **how) {
    int state;
    *ended = NULL;
    pid_t pid = waitpid(-1, &state, WNOHANG);
    if (pid <= 0) return OK;
    for (size_t i = 0; i < processes->count; i++) {
        struct process *process = &processes->list[i];
        if (process->pid != pid) continue;
        process->pid = 0;
        *ended = process;
        *how = process_describe(process, state);
        return process_schedule(process, state, now, *how);
    }
    return OK;
}

void processes_signal(const struct processes *processes, int number) {
    for (size_t i = 0; i < processes->count; i++)
        if (processes->list[i].pid) kill(processes->list[i].pid, number);
}

size_t processes_running(const struct processes *processes) {
    size_t count = 0;
    for (size_t i = 0; i < processes->count; i++) count += processes->list[i].pid ? 1 : 0;
    return count;
}
