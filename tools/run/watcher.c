// caravan ls and caravan stop, and what they and caravan top share: they look at a run from outside.
#include "tools/run/watcher.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/signals.h"
#include "shared/wire/transport.h"
#include "tools/tools.h"

// ---- active_runs ----

// caravan ls: the runs that are active on this machine, as their processes show in /proc: each supervisor holds
// RUN/lock open, and one of several machines RUN/lock-MACHINE, too. Step and groups are those that a run has last
// written to metrics.prom, which it does every 5 seconds; nobody is asked.

const struct option_table ls_table = {
    .program = "caravan ls",
    .help = "lists the active runs of this machine",
    .details = "RUN is the run's directory, which `caravan top` and `caravan stop` take. STEP\n"
               "and GROUPS are at most 5 seconds old. Of another user's run only user and\n"
               "process are known. The states:\n"
               "running   it works\n"
               "starting  nothing is known of it yet\n"
               "silent    it has reported nothing for a minute: it may wait for another machine\n"
               "stopped   its process was stopped by a signal\n"
               "removed   its directory is gone\n",
};

enum { SILENT_SECONDS = 60 }; // a run writes metrics.prom twelve times as often

struct active_run {
    long pid;
    char run[4096];                 // its directory; "" where it may not be read
    char machine[64];               // "" for a run on one machine
    bool removed;                   // the directory is gone
    char process;                   // state of the process
    double age;                     // seconds since the process started, -1: unknown
    bool known;                     // this process has written metrics.prom, which says:
    long long step, settled, total; // step -1: there is none
    double written;                 // seconds ago
};

// Finds the lock file RUN/lock or RUN/lock-MACHINE among the files that the process has open, and sets what it names.
// *unknown: they may not be read.
static bool active_run_find_lock(struct active_run *out, bool *unknown) {
    static const char name[] = "lock", removed[] = " (deleted)";
    char path[64], target[4096];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%ld/fd", out->pid);
    DIR *dir = opendir(path);
    *unknown = !dir && errno == EACCES;
    for (struct dirent *entry; dir && !*out->machine && (entry = readdir(dir));) { // a machine's run has both
        const ssize_t size = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        target[size > 0 ? size : 0] = 0;
        const char *slash = strrchr(target, '/');
        if (!slash || *target != '/' || strncmp(slash + 1, name, sizeof name - 1) != 0) continue;
        const char *end = strstr(slash, removed), *machine = slash + sizeof name;
        const bool gone = end && !end[sizeof removed - 1];
        if (!gone) end = machine + strlen(machine);
        if (machine < end && *machine++ != '-') continue;
        out->removed = gone;
        snprintf(out->run, sizeof out->run, "%.*s", (int)(slash - target), target);
        snprintf(out->machine, sizeof out->machine, "%.*s", (int)(end - machine), machine);
        found = true;
    }
    if (dir) closedir(dir);
    return found;
}

// Sets what the process's file in /proc and RUN/metrics.prom say.
static void active_run_read(struct active_run *run) {
    char path[sizeof run->run + sizeof run->machine + 32], line[1024] = "";
    struct buf text = {0};
    struct stat info;
    unsigned long long start = 0; // since the machine's
    struct timespec up;
    run->step = -1;
    run->age = -1;
    snprintf(path, sizeof path, "/proc/%ld/stat", run->pid);
    FILE *file = fopen(path, "re");
    if (file && !fgets(line, sizeof line, file)) *line = 0;
    if (file) fclose(file);
    const char *at = strrchr(line, ')'); // the name before it may have blanks
    if (at &&
        sscanf(at + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &run->process, &start) == 2 &&
        !clock_gettime(CLOCK_BOOTTIME, &up))
        run->age = (double)up.tv_sec + 1e-9 * (double)up.tv_nsec - (double)start / (double)sysconf(_SC_CLK_TCK);
    snprintf(path, sizeof path, "%s/metrics%s%s.prom", run->run, *run->machine ? "-" : "", run->machine);
    if (!*run->run || stat(path, &info) || file_read(path, &text) != OK) return;
    run->written = difftime(time(NULL), info.st_mtime);
    run->known = run->written <= run->age + 1;
    for (const char *sample = text.data; sample && *sample;) {
        const size_t size = strcspn(sample, "\n");
        const char *value = memrchr(sample, ' ', size);
        const long long number = value ? strtoll(value, NULL, 10) : 0;
        if (!strncmp(sample, "caravan_trained_steps{", strlen("caravan_trained_steps{"))) run->step = number;
        if (!strncmp(sample, "caravan_groups{", strlen("caravan_groups{"))) {
            // The states of groups that the run is not done with.
            const bool open = memmem(sample, size, "state=\"in_flight\"", strlen("state=\"in_flight\"")) ||
                              memmem(sample, size, "state=\"unissued\"", strlen("state=\"unissued\""));
            run->total += number;
            run->settled += open ? 0 : number;
        }
        sample += size + (sample[size] == '\n');
    }
    buf_release(&text);
}

// Sets *out to the next active run that /proc lists, with `run` "" where this user may not see it. Returns false after
// the last one.
static bool active_runs_next(DIR *proc, struct active_run *out) {
    for (struct dirent *entry; (entry = readdir(proc));) {
        char path[64], line[512] = "";
        bool unknown;
        *out = (struct active_run){.pid = strtol(entry->d_name, NULL, 10)};
        if (out->pid <= 0) continue;
        snprintf(path, sizeof path, "/proc/%ld/cmdline", out->pid);
        FILE *file = fopen(path, "re");
        const size_t size = file ? fread(line, 1, sizeof line - 1, file) : 0, first = strlen(line);
        if (file) fclose(file);
        if (size <= first || strcmp(path_base_name(line), "caravan") != 0 || strcmp(line + first + 1, "run") != 0)
            continue;
        if (active_run_find_lock(out, &unknown) || unknown) return true; // otherwise it has not begun, or has ended
    }
    return false;
}

// Appends a table with a row for each active run, or nothing if there is none: its directory, step, groups, state, time
// since its start, process. Of another user's run only user and process are known, unless this user is root.
// UNAVAILABLE.
static status active_runs_table(struct buf *out) {
    DIR *dir = opendir("/proc");
    if (!dir) return fail(UNAVAILABLE, "/proc: %s", strerror(errno));
    for (struct active_run run; active_runs_next(dir, &run);) {
        char path[64], step[24] = "-", groups[48] = "-", since[32] = "-", name[64];
        if (!out->size) buf_printf(out, "%8s %15s  %-8s %9s %7s  %s\n", "STEP", "GROUPS", "STATE", "AGE", "PID", "RUN");
        active_run_read(&run);
        const long long age = (long long)run.age;
        if (age >= 0) snprintf(since, sizeof since, "%lld:%02lld:%02lld", age / 3600, age / 60 % 60, age % 60);
        if (!*run.run) {
            snprintf(path, sizeof path, "/proc/%ld", run.pid);
            path_owner(path, name, sizeof name);
            buf_printf(out, "%8s %15s  %-8s %9s %7ld  a run of user %s\n", step, groups, "running", since, run.pid,
                       name);
            continue;
        }
        const char *state = run.removed                    ? "removed"
                            : run.process == 'T'           ? "stopped"
                            : !run.known || !run.total     ? "starting"
                            : run.written > SILENT_SECONDS ? "silent"
                                                           : "running";
        if (run.known && run.step >= 0) snprintf(step, sizeof step, "%lld", run.step);
        if (run.known && run.total) snprintf(groups, sizeof groups, "%lld of %lld", run.settled, run.total);
        buf_printf(out, "%8s %15s  %-8s %9s %7ld  %s%s%s%s\n", step, groups, state, since, run.pid, run.run,
                   *run.machine ? " (machine " : "", run.machine, *run.machine ? ")" : "");
    }
    closedir(dir);
    return OK;
}

status ls_main(struct subcommand_call *call) {
    TRY(active_runs_table(&call->out));
    if (!call->out.size) log_info("no run is active on this machine");
    return OK;
}

// ---- watcher ----

// UNAVAILABLE when this user may not use what a run has at `path`. A missing file is OK.
static status watcher_check_access(const char *run, const char *path, int mode) {
    char owner[64];
    if (!access(path, mode) || errno != EACCES) return OK;
    path_owner(run, owner, sizeof owner);
    return fail(UNAVAILABLE, "%s belongs to user %s, who alone can watch and stop its run", run, owner);
}

// Says that there is no run in a directory, and which runs are active.
static status watcher_say_active(const char *what, const char *run) {
    struct buf table = {0};
    log_info("%s %s", what, run);
    const status result = active_runs_table(&table);
    if (table.size) log_info("active runs of this machine:");
    if (table.size) fwrite(table.data, 1, table.size, stderr);
    buf_release(&table);
    return result == OK ? fail(UNAVAILABLE, "%s", "") : result; // it was said
}

status watcher_not_active(const struct watcher *watcher) {
    return watcher_say_active("no run of this file is active in", watcher->deployment.pipeline->run);
}

// Whether the process is that of an active run: it has the run's lock open.
static bool watcher_is_active(long process) {
    struct active_run run = {.pid = process};
    bool unknown;
    return process && active_run_find_lock(&run, &unknown);
}

// Finds the process of this machine's supervisor, 0 if this user sees none.
static void watcher_find_process(struct watcher *watcher) {
    const struct deployment *deployment = &watcher->deployment;
    char here[PATH_MAX];
    if (watcher_is_active(watcher->process)) return;
    watcher->process = 0;
    DIR *dir = realpath(deployment->pipeline->run, here) ? opendir("/proc") : NULL;
    for (struct active_run run; dir && !watcher->process && active_runs_next(dir, &run);)
        if (!run.removed && !strcmp(run.run, here) &&
            !strcmp(run.machine, deployment_machine(deployment, deployment->here)))
            watcher->process = run.pid;
    if (dir) closedir(dir);
}

bool watcher_waits(struct watcher *watcher, double since) {
    const double silent = clock_monotonic() - since;
    if (silent <= WATCHER_ANSWER_SECONDS) return true;
    if (silent > WATCHER_BUSY_SECONDS) return false;
    watcher_find_process(watcher);
    if (!watcher->process) return false;
    if (!watcher->told) log_info("the run's process %ld does not answer yet; waiting for it", watcher->process);
    watcher->told = true;
    return true;
}

status watcher_open(struct watcher *watcher, struct pipeline *pipeline, const char *machine, const char *key,
                    const char *name) {
    struct deployment *deployment = &watcher->deployment;
    struct transport *transport;
    *watcher = (struct watcher){0};
    TRY(deployment_init(deployment, pipeline, machine, key));
    const struct replica *supervisor = &deployment->replicas[deployment->here];
    const char *path =
        arena_printf(&deployment->arena, "%s/nodes/" SUPERVISOR_NAME "-%d", pipeline->run, supervisor->number);
    TRY(watcher_check_access(pipeline->run, pipeline->run, X_OK));
    TRY(watcher_check_access(pipeline->run, path, R_OK));
    TRY(watcher_check_access(pipeline->run, deployment->sockets, X_OK));
    if (!path_exists(path)) return watcher_say_active("no run of this file was started in", pipeline->run);
    TRY(node_config_read(&watcher->config, path));
    const struct wire_self self = {.run = deployment->run,
                                   .name = name,
                                   .replica = (int)getpid(), // several may watch a run
                                   .machine = deployment_machine(deployment, deployment->here)};
    TRY(zmq_transport_open(&transport, &watcher->config.security));
    wire_open(&watcher->wire, &self, transport);
    return OK;
}

status watcher_connect(struct watcher *watcher, int machine, struct wire_peer **peer) {
    const struct deployment *deployment = &watcher->deployment;
    const char *key = deployment->machines > 1 ? deployment->pipeline->machines[machine].key : NULL;
    return wire_connect(watcher->wire, deployment_endpoint(deployment, &deployment->replicas[machine]), key, "watch",
                        peer);
}

void watcher_close(struct watcher *watcher) {
    wire_close(&watcher->wire);
    node_config_release(&watcher->config);
    deployment_release(&watcher->deployment);
}

// ---- stop ----

// caravan stop FILE|RUN: stops a run on all its machines, as Ctrl-C does on one. It asks every supervisor that it
// reaches, each of which tells the others, and waits until they have ended, and the one here has exited.

static const struct option stop_options[] = {RUN_MEMBER, {0}};
const struct option_table stop_table = {.program = "caravan stop",
                                        .operands = "FILE|RUN",
                                        .help = "stops a run on all its machines; caravan run resumes it",
                                        .options = stop_options,
                                        .size = sizeof(struct run_member_options)};

enum stop_state { STOP_NOT_REACHED, STOP_ASKED, STOP_LOST, STOP_ENDED };

struct stop_machine {
    struct wire_peer *peer;
    enum stop_state state;
    double lost_at; // clock_monotonic() when its supervisor has gone without a goodbye
};

struct stop {
    struct watcher watcher;
    struct stop_machine *machines;
};

static status stop_on_event(struct stop *stop, const struct wire_event *event) {
    const struct wire_message end = {.kind = MESSAGE_END, .code = END, .reason = "caravan stop"};
    const struct deployment *deployment = &stop->watcher.deployment;
    size_t i = 0;
    while (i < deployment->machines && stop->machines[i].peer != event->peer) i++;
    if (i == deployment->machines) return OK;
    struct stop_machine *there = &stop->machines[i];
    const char *machine = deployment_machine(deployment, (int)i);
    switch (event->kind) {
    case WIRE_JOINED:
        if (there->state == STOP_NOT_REACHED)
            log_info("stopping%s%s; waiting for the end", *machine ? " " : "", machine);
        there->state = STOP_ASKED;
        if ((int)i == deployment->here) watcher_find_process(&stop->watcher);
        return wire_send(stop->watcher.wire, event->peer, &end, NULL);
    case WIRE_GONE:
        there->state = event->orderly ? STOP_ENDED : STOP_LOST;
        there->lost_at = clock_monotonic();
        return OK;
    case WIRE_REFUSED:
        return fail(UNAVAILABLE, "%s", event->message.reason);
    default:
        return OK;
    }
}

status stop_main(struct subcommand_call *call) {
    enum { WAIT_MS = 100 };
    const struct run_member_options *given = call->given;
    struct stop stop = {0};
    const struct deployment *deployment = &stop.watcher.deployment;
    const double began = clock_monotonic();
    bool late = false;    // who has not answered is not waited for
    bool stopped = false; // the run
    status result;
    TRY_TO(result, done, signals_open());
    TRY_TO(result, done, watcher_open(&stop.watcher, call->pipeline, given->machine, given->key, "stop"));
    NEW(&stop.machines, deployment->machines);
    for (size_t i = 0; i < deployment->machines; i++)
        TRY_TO(result, done, watcher_connect(&stop.watcher, (int)i, &stop.machines[i].peer));
    while (!stopped && !signals_stopping()) {
        struct wire_event event;
        size_t reached = 0, left = 0;
        TRY_TO(result, done, wire_poll(stop.watcher.wire, WAIT_MS, &event));
        TRY_TO(result, done, stop_on_event(&stop, &event));
        const double now = clock_monotonic();
        for (size_t i = 0; i < deployment->machines; i++) {
            struct stop_machine *machine = &stop.machines[i];
            const bool lost = machine->state == STOP_LOST, gone = lost || machine->state == STOP_ENDED;
            // The process here may be too busy, and has still to exit when it has said goodbye: then the next run can
            // begin. Who else does not come back in time was killed.
            const bool active = gone && (int)i == deployment->here && watcher_is_active(stop.watcher.process);
            if (lost && now - machine->lost_at > WATCHER_ANSWER_SECONDS && !active) machine->state = STOP_ENDED;
            reached += machine->state != STOP_NOT_REACHED;
            left += machine->state == STOP_ASKED || machine->state == STOP_LOST || active;
        }
        const bool missed = late; // it was said who that is
        const bool awaited = stop.machines[deployment->here].state == STOP_NOT_REACHED;
        if (!late) late = awaited ? !watcher_waits(&stop.watcher, began) : now - began > WATCHER_ANSWER_SECONDS;
        if (!reached && late) TRY_TO(result, done, watcher_not_active(&stop.watcher));
        for (size_t i = 0; late && !missed && i < deployment->machines; i++)
            if (stop.machines[i].state == STOP_NOT_REACHED)
                log_info("%s is not reached from here", deployment_machine(deployment, (int)i));
        stopped = reached && !left && (late || reached == deployment->machines);
        if (stopped) log_info("the run has stopped");
    }
    if (!stopped) result = fail(STOPPED, "interrupted before the end of the run, which stops if it was reached");
done:
    watcher_close(&stop.watcher);
    free(stop.machines);
    return result;
}
