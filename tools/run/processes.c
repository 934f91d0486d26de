// fork, exec and wait for the stage processes. It decides whether one that has ended is restarted; the supervisor does
// everything else.
//
// Each process leads a process group of its own and is killed by the kernel when the supervisor ends, however that
// happens: two generations of processes never work in one run directory.
#include "tools/run/processes.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/name_list.h"

enum {
    EARLY_SECONDS = 10,
    BRIEF_SECONDS = 1,
    FORK_SECONDS = 5,
    LINE_SIZE = 600,
    PROCESS_END_SIZE = 2048,
    MAX_FAILURES = 5,
    MAX_BACKOFF = 7,
    KILLS_AT_ONCE = 2,      // kills without a group done after which a process is started again at once
    MAX_KILL_DOUBLINGS = 6, // of the pause after those
    MAX_KILL_PAUSE = 60,    // seconds
    MAX_KILLS = 15,         // they take more than 9 minutes
};
static const double restart_seconds = 0.1;

status processes_init(struct processes *processes, struct deployment *deployment) {
    const char *dir, *run = deployment->pipeline->run;
    struct arena *arena = &processes->arena;
    *processes = (struct processes){0};
    TRY(path_program_dir(arena, &dir));
    NEW(&processes->list, deployment->count);
    processes->logs = arena_printf(arena, "%s/logs", run);
    for (size_t i = 0; i < deployment->count; i++) {
        const struct replica *replica = &deployment->replicas[i];
        if (!replica->stage || replica->machine != deployment->here) continue;
        struct process *process = &processes->list[processes->count++];
        const struct pipeline_stage *stage = replica->stage;
        size_t count = 0, capacity = key_list_count(&stage->options.given) + 6;
        process->replica = replica;
        process->settled = -1;
        process->name = replica->name;
        process->log = arena_printf(arena, "%s/%s.log", processes->logs, process->name);
        const char *config = arena_printf(arena, "%s/nodes/%s", run, process->name);
        TRY(deployment_write_config(deployment, replica, config));
        NEW(&process->argv, capacity);
        process->argv[count++] = arena_printf(arena, stage->program ? "%s/caravan" : "%s/caravan-%s", dir, stage->name);
        if (stage->program) process->argv[count++] = arena_printf(arena, "program");
        process->argv[count++] = arena_printf(arena, "--node=%s", config);
        if (stage->program && stage == &deployment->pipeline->stages[deployment->pipeline->stage_count - 1]) {
            // No later stage keeps what the program answers: it goes to the store of the stages before it.
            const struct pipeline_stage *before = stage;
            while (before > deployment->pipeline->stages && !before->kind) before--;
            const char *store = before->kind ? pipeline_value(before, "store") : NULL;
            if (store) process->argv[count++] = arena_printf(arena, "--store=%s", store);
        }
        if (stage->program) process->argv[count++] = arena_printf(arena, "--timeout=%.17g", stage->timeout);
        for (const struct key *key = stage->options.given.first; key && !stage->program; key = key->next) {
            const char *value = key->value;
            if (pipeline_does_without(deployment->pipeline, stage, key, deployment->here)) continue;
            if (!strcmp(key->name, "device")) TRY(device_of_slot(key->value, replica->slot, arena, &value));
            process->argv[count++] = arena_printf(arena, "--%s=%s", key->name, value);
        }
        assert(count < capacity);
    }
    return OK;
}

void processes_release(struct processes *processes) {
    for (size_t i = 0; i < processes->count; i++) free(processes->list[i].argv);
    free(processes->list);
    arena_release(&processes->arena);
    *processes = (struct processes){0};
}

// Runs in the new process and does not return. A failure is written to the log.
_Noreturn static void process_exec(const struct process *process, pid_t supervisor, int log) {
    sigset_t none;
    int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log < 0 || input < 0) _exit(UNAVAILABLE);
    dup2(input, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); // the terminal sends Ctrl-C to the supervisor alone
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) _exit(UNAVAILABLE); // it ended before prctl
    execv(process->argv[0], process->argv);
    log_timestamps(true);
    log_info("%s: %s", process->argv[0], strerror(errno));
    _exit(UNAVAILABLE);
}

status processes_start(struct processes *processes, double now) {
    enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, MODE = 0644 };
    const pid_t supervisor = getpid();
    status result = OK;
    for (size_t i = 0; i < processes->count; i++) {
        struct process *process = &processes->list[i];
        if (process->pid || process->start_after > now) continue;
        struct stat info;
        int log = open(process->log, FLAGS, MODE);
        if (log < 0 && errno == ENOENT && dir_make(processes->logs) == OK) // somebody has removed the directory
            log = open(process->log, FLAGS, MODE);
        if (log < 0) {
            result = fail(UNAVAILABLE, "%s: %s; %s runs without a log", process->log, strerror(errno), process->name);
            log = open("/dev/null", O_WRONLY | O_CLOEXEC);
        }
        // Before the process can write to it.
        process->log_start = fstat(log, &info) ? 0 : info.st_size;
        const pid_t pid = fork();
        if (pid == 0) process_exec(process, supervisor, log);
        if (pid < 0) {
            result = fail(UNAVAILABLE, "%s cannot be started: %s; trying again in %d s", process->name, strerror(errno),
                          FORK_SECONDS);
            process->start_after = now + FORK_SECONDS;
        } else {
            setpgid(pid, pid); // here too: process_kill may come before the child has done it
            process->pid = pid;
            process->started = now;
        }
        if (log >= 0) close(log);
    }
    return result;
}

// Describes in text[0..PROCESS_END_SIZE) how a process has ended, with the last line of its log and the log's path.
static void process_describe_end(const struct process *process, int number, int code, char *text) {
    static const uint64_t little = 1 << 16; // bytes: below this a line may not have been written
    char tail[LINE_SIZE] = "";
    struct stat info;
    struct statvfs disk;
    // The last line of its log tells more than the code.
    if (!number && !stat(process->log, &info) && info.st_size > process->log_start)
        file_read_tail(process->log, tail, sizeof tail);
    for (size_t size = strlen(tail); size > 0 && tail[size - 1] == '\n'; size--) tail[size - 1] = 0;
    const char *newline = strrchr(tail, '\n'), *line = log_skip_time(newline ? newline + 1 : tail);
    const bool full = !statvfs(process->log, &disk) && disk.f_bavail * disk.f_frsize < little;
    const struct pipeline_stage *stage = process->replica->stage;
    // A page of a mapped file that cannot be read, or has been damaged since it was opened.
    const bool opens = stage->kind && !(process->replica->rank && process->replica->number > 1);
    const char *store = opens && (number == SIGBUS || number == SIGSEGV) ? pipeline_value(stage, "store") : NULL;
    if (number)
        snprintf(text, PROCESS_END_SIZE, "was killed by signal %d (%s) (see %s)%s%s%s", number, strsignal(number),
                 process->log, store ? ": if its store is damaged, remove " : "", store ? store : "",
                 store ? ", in a run without optim ledger.lmdb too: what they had is computed again" : "");
    else
        snprintf(text, PROCESS_END_SIZE, "ended with exit code %d: %s%s (see %s)", code,
                 *line ? line : "it has logged nothing", full ? "; the disk of its log is full" : "", process->log);
}

status processes_reap(struct processes *processes, double now, int64_t settled, struct process **ended,
                      const char **how) {
    static char text[PROCESS_END_SIZE + 64];
    int state = 0;
    *ended = NULL;
    *how = text;
    while (!*ended) {
        siginfo_t info = {0};
        // Until it is reaped no other process or group can have its number.
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid) return OK;
        for (size_t i = 0; i < processes->count && !*ended; i++)
            if (processes->list[i].pid == info.si_pid) *ended = &processes->list[i];
        if (*ended) process_kill(*ended);
        if (waitpid(info.si_pid, &state, 0) != info.si_pid) return fail(BUG, "waitpid: %s", strerror(errno));
    }
    struct process *process = *ended, *counts = process; // where its failures are counted: of ranks they are one count
    while (process->replica->rank && counts > processes->list && counts[-1].replica->stage == counts->replica->stage)
        counts--;
    process->pid = 0;
    const int number = WIFSIGNALED(state) ? WTERMSIG(state) : 0, code = WIFEXITED(state) ? WEXITSTATUS(state) : BUG;
    char end[PROCESS_END_SIZE];
    process->failed = number || code;
    process->code = number ? 0 : code;
    // A wrong command line and bad input stay so, and end the run at once, whoever ended first.
    const bool final = !number && (code == USAGE || code == DATAERR), with_other = process->ended_by_other;
    process->ended_by_other = false;
    if (with_other && !final) { // it is started when that one is
        *how = NULL;
        return OK;
    }
    if (processes->ending && code && !number) {
        process_describe_end(process, number, code, text);
        return OK;
    }
    if (!process->failed && process->replica->rank) { // rank 0 has let the others go, and says why as it ends
        *how = process == counts ? "ended as it was asked to; starting it again" : NULL;
        process->start_after = now + restart_seconds;
        return OK;
    }
    if (settled > counts->settled) {
        if (counts->settled >= 0) counts->failures = counts->kills = 0;
        counts->settled = settled;
    }
    // A process that was killed is started again, at once if it had run for a while.
    process->start_after = now + (now - process->started < BRIEF_SECONDS || !number ? restart_seconds : 0);
    if (number == SIGKILL) {
        // Mostly the kernel's answer when memory is short: it is started again, at once for the first two times, then
        // after a pause.
        const int again = ++counts->kills - KILLS_AT_ONCE;
        const int pause = again <= MAX_KILL_DOUBLINGS ? 1 << (again > 0 ? again - 1 : 0) : MAX_KILL_PAUSE;
        if (counts->kills == MAX_KILLS)
            return fail(UNAVAILABLE,
                        "%s was killed by signal 9 (Killed) %d times without a group done: if dmesg says that the "
                        "memory was short, this machine needs more of it, or its stages less",
                        process->name, MAX_KILLS);
        snprintf(text, sizeof text, "was killed by signal 9 (Killed); starting it again");
        if (again <= 0) return OK;
        snprintf(text, sizeof text,
                 "was killed by signal 9 (Killed) %d times without a group done: is it the memory (see dmesg)? "
                 "Starting it again in %d s",
                 counts->kills, pause);
        process->start_after = now + pause;
        return OK;
    }
    process_describe_end(process, number, code, end);
    snprintf(text, sizeof text, "%s; starting it again", end);
    if (number == SIGTERM || number == SIGINT || number == SIGHUP) return OK;
    // Any other failure than a final one may be the moment's: the process is started again after a pause, which doubles
    // while it fails early, and ends the run when it has failed MAX_FAILURES times while the run was not done with one
    // group more.
    counts->failures++;
    const int doublings = counts->failures < MAX_BACKOFF ? counts->failures : MAX_BACKOFF;
    if (now - process->started < EARLY_SECONDS) process->start_after = now + restart_seconds * (1 << doublings);
    if (final || counts->failures == MAX_FAILURES) {
        const status result = code == USAGE || code == DATAERR || code == UNAVAILABLE ? (status)code : BUG;
        return final ? fail(result, "%s %s", process->name, end)
                     : fail(result, "%s failed %d times without a group done; it %s", process->name, MAX_FAILURES, end);
    }
    const uint64_t hash = XXH3_64bits(end, strlen(end));
    if (counts->failures > 1 && hash == counts->failure_hash)
        snprintf(text, sizeof text, "failed in the same way (%d of %d times); starting it again", counts->failures,
                 MAX_FAILURES);
    counts->failure_hash = hash;
    return OK;
}

size_t processes_end_ranks(struct processes *processes, const struct pipeline_stage *stage, double before,
                           double start_after) {
    size_t count = 0;
    for (size_t i = 0; i < processes->count; i++) {
        struct process *rank = &processes->list[i];
        if (!rank->replica->rank || rank->replica->stage != stage) continue;
        if (rank->start_after < start_after) rank->start_after = start_after;
        if (!rank->pid || rank->started > before) continue;
        rank->ended_by_other = true;
        process_kill(rank);
        count++;
    }
    return count;
}

status processes_rotate_logs(const struct processes *processes) {
    static const off_t log_max = 64 << 20; // bytes
    char block[1 << 16];
    status result = OK;
    for (size_t i = 0; i < processes->count; i++) {
        const char *log = processes->list[i].log;
        char old[PATH_MAX];
        struct stat info;
        snprintf(old, sizeof old, "%s.1", log);
        if (stat(log, &info) || info.st_size <= log_max) continue;
        // The log keeps its name and its file, since a user's program cannot be told to open another one. All write at
        // its end (O_APPEND), so it can be emptied under them.
        const int from = open(log, O_RDONLY | O_CLOEXEC),
                  to = open(old, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        ssize_t size = from < 0 || to < 0 ? -1 : 1;
        while (size > 0 && (size = fd_read(from, block, sizeof block)) > 0)
            if (!fd_write_all(to, block, (size_t)size)) size = -1;
        status moved = size < 0 ? fail(UNAVAILABLE, "%s: %s", old, strerror(errno)) : OK;
        if (moved == OK && truncate(log, 0)) moved = fail(UNAVAILABLE, "%s: %s", log, strerror(errno));
        if (moved != OK) unlink(old); // part of it would only fill the disk
        if (from >= 0) close(from);
        if (to >= 0) close(to);
        if (moved != OK) result = moved;
    }
    return result;
}

void process_kill(const struct process *process) {
    assert(process->pid > 0);
    kill(-process->pid, SIGKILL);
}

size_t processes_running(const struct processes *processes) {
    size_t count = 0;
    for (size_t i = 0; i < processes->count; i++) count += processes->list[i].pid ? 1 : 0;
    return count;
}
