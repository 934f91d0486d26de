// A child dies with its supervisor, however that ends: two generations never work in one folder. All that a stage does
// is safe against that.
#include "tools/children.h"

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

static char *print(struct arena *arena, status *result, const char *format, const char *a, const char *b) {
    char *text = arena_printf(arena, format, a, b);
    if (!text) *result = fail_oom();
    return text;
}

static status make_arguments(struct children *children, struct child *child, const char *wiring) {
    const struct pipeline_stage *stage = child->replica->stage;
    size_t count = 0;
    status result = OK;
    TRY(NEW(&child->arguments, key_list_count(&stage->keys) + 5));
    char **arguments = child->arguments;
    if (stage->program) {
        arguments[count++] = print(&children->arena, &result, "%s/caravan", children->programs, "");
        arguments[count++] = "program";
    } else {
        arguments[count++] = print(&children->arena, &result, "%s/caravan-%s", children->programs, stage->name);
    }
    arguments[count++] = print(&children->arena, &result, "--wiring=%s", wiring, "");
    for (const struct pipeline_key *key = stage->keys.first; key && !stage->program; key = key->next)
        arguments[count++] = print(&children->arena, &result, "--%s=%s", key->name, key->value);
    return result;
}

static status make_child(struct children *children, struct deployment *deployment, const struct replica *replica) {
    status result = OK;
    struct child *child = &children->list[children->count++];
    *child = (struct child){.replica = replica, .name = deployment_name(deployment, replica)};
    child->log = print(&children->arena, &result, "%s/logs/%s.log", deployment->pipeline->run, child->name);
    const char *wiring = print(&children->arena, &result, "%s/wiring/%s", deployment->pipeline->run, child->name);
    TRY(result);
    TRY(deployment_write_config(deployment, replica, wiring));
    return make_arguments(children, child, wiring);
}

static status find_programs(struct children *children) {
    char path[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
    if (size <= 0) return fail(UNAVAILABLE, "/proc/self/exe: %s", strerror(errno));
    path[size] = 0;
    char *slash = strrchr(path, '/');
    children->programs = arena_strndup(&children->arena, path, slash ? (size_t)(slash - path) : 0);
    return children->programs ? OK : fail_oom();
}

status children_make(struct children *children, struct deployment *deployment) {
    *children = (struct children){0};
    TRY(find_programs(children));
    TRY(NEW(&children->list, deployment->count));
    for (size_t i = 0; i < deployment->count; i++) {
        const struct replica *replica = &deployment->replicas[i];
        if (replica->stage && replica->machine == deployment->here) TRY(make_child(children, deployment, replica));
    }
    return OK;
}

void children_release(struct children *children) {
    for (size_t i = 0; i < children->count; i++) free(children->list[i].arguments);
    free(children->list);
    arena_release(&children->arena);
    *children = (struct children){0};
}

// ---- starting ----

// In the new process. Whatever fails here is written to the log.
static void become(const struct child *child, pid_t parent) {
    sigset_t none;
    int log = open(child->log, O_WRONLY | O_CREAT | O_APPEND, 0644);
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
    execv(child->arguments[0], child->arguments);
    dprintf(STDERR_FILENO, "caravan: %s: %s\n", child->arguments[0], strerror(errno));
    _exit(UNAVAILABLE);
}

static status start(struct child *child, double now) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) return fail(UNAVAILABLE, "%s cannot be started: %s", child->name, strerror(errno));
    if (pid == 0) become(child, parent);
    child->pid = pid;
    child->started = now;
    child->ready = false;
    return OK;
}

status children_start(struct children *children, double now) {
    for (size_t i = 0; i < children->count; i++) {
        struct child *child = &children->list[i];
        if (!child->pid && child->due <= now) TRY(start(child, now));
    }
    return OK;
}

// ---- ending ----

// The last line of the log, "" when there is none.
static void last_line(const char *path, char line[LINE]) {
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
    char *start = strrchr(line, '\n');
    if (start) memmove(line, start + 1, strlen(start));
}

static const char *describe(const struct child *child, int state) {
    static char text[LINE + 64];
    char line[LINE] = "";
    if (WIFSIGNALED(state)) {
        snprintf(text, sizeof text, "was killed by signal %d (%s)", WTERMSIG(state), strsignal(WTERMSIG(state)));
        return text;
    }
    last_line(child->log, line);
    snprintf(text, sizeof text, "ended with exit code %d: %s", WEXITSTATUS(state), *line ? line : "no word why");
    return text;
}

// By somebody, not by its own fault.
static bool killed(int state) {
    if (!WIFSIGNALED(state)) return false;
    int number = WTERMSIG(state);
    return number == SIGKILL || number == SIGTERM || number == SIGINT || number == SIGHUP;
}

// How often in a row a child may end so before the run does; 0: as often as it likes.
static int patience(const struct child *child, int state) {
    enum { ONCE = 1, SOME = 5 };
    if (killed(state)) return 0;
    if (WIFSIGNALED(state)) return SOME;
    int code = WEXITSTATUS(state);
    if ((code == USAGE || code == DATAERR) && !child->ready) return ONCE;
    return SOME;
}

static status judge(struct child *child, int state, double now, const char *how) {
    int most = patience(child, state);
    bool soon = now - child->started < SOON;
    if (!soon && child->ready) child->failures = 0;
    child->due = now + 0.1;
    if (most == 0) return OK;
    child->failures++;
    if (soon) child->due = now + 0.1 * (double)(1 << (child->failures < 7 ? child->failures : 7));
    if (child->failures < most) return OK;
    int code = WIFEXITED(state) ? WEXITSTATUS(state) : BUG;
    status result = code == USAGE || code == DATAERR || code == UNAVAILABLE ? (status)code : BUG;
    return fail(result, "%s %s", child->name, how);
}

status children_reap(struct children *children, double now, struct child **ended, const char **how) {
    int state;
    *ended = NULL;
    pid_t pid = waitpid(-1, &state, WNOHANG);
    if (pid <= 0) return OK;
    for (size_t i = 0; i < children->count; i++) {
        struct child *child = &children->list[i];
        if (child->pid != pid) continue;
        child->pid = 0;
        *ended = child;
        *how = describe(child, state);
        return judge(child, state, now, *how);
    }
    return OK;
}

void children_signal(const struct children *children, int number) {
    for (size_t i = 0; i < children->count; i++)
        if (children->list[i].pid) kill(children->list[i].pid, number);
}

size_t children_running(const struct children *children) {
    size_t count = 0;
    for (size_t i = 0; i < children->count; i++) count += children->list[i].pid ? 1 : 0;
    return count;
}
