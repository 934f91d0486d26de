// caravan ls, and the search for the active runs of this machine in /proc. Step and groups are those that a run has
// last written to metrics.prom, which it does every 5 seconds; nobody is asked.
#include "tools/run/active_runs.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/tools.h"

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
    char run[4096];   // its directory; "" where it may not be read
    char machine[64]; // "" for a run on one machine
    bool removed;     // the directory is gone
    char process;     // state of the process in /proc/PID/stat
    double age;       // seconds since the process started, -1: unknown
};

// Sets run and machine to those of the lock file RUN/lock or RUN/lock-MACHINE at `path`; returns false for another
// file.
static bool active_run_of_lock(const char *path, struct active_run *out) {
    static const char name[] = "lock", removed[] = " (deleted)";
    const char *slash = strrchr(path, '/');
    if (*path != '/' || !slash || strncmp(slash + 1, name, sizeof name - 1) != 0) return false;
    const char *end = strstr(slash, removed), *machine = slash + sizeof name;
    out->removed = end && !end[sizeof removed - 1];
    if (!out->removed) end = machine + strlen(machine);
    if (machine < end && *machine++ != '-') return false;
    snprintf(out->run, sizeof out->run, "%.*s", (int)(slash - path), path);
    snprintf(out->machine, sizeof out->machine, "%.*s", (int)(end - machine), machine);
    return true;
}

// Finds the lock file among the files that the process has open. *unknown: they may not be read.
static bool active_run_find_lock(struct active_run *out, bool *unknown) {
    char path[64], target[4096];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%ld/fd", out->pid);
    DIR *dir = opendir(path);
    *unknown = !dir && errno == EACCES;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        const ssize_t size = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        if (size <= 0) continue;
        target[size] = 0;
        found = active_run_of_lock(target, out);
    }
    if (dir) closedir(dir);
    return found;
}

// Returns whether the process is `caravan run`.
static bool active_run_is_supervisor(long pid) {
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
    FILE *file = fopen(path, "re");
    const size_t size = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    const char *second = line + strlen(line) + 1;
    return size > strlen(line) && !strcmp(path_base_name(line), "caravan") && !strcmp(second, "run");
}

// Reads the state of the process and the time since its start.
static void active_run_read_process(struct active_run *out) {
    char path[64], text[1024] = "";
    unsigned long long start = 0;
    double up = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", out->pid);
    FILE *file = fopen(path, "re");
    if (file && !fgets(text, sizeof text, file)) *text = 0;
    if (file) fclose(file);
    const char *at = strrchr(text, ')'); // the name before it may have blanks
    const int found =
        at ? sscanf(at + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                    &out->process, &start)
           : 0;
    file = fopen("/proc/uptime", "re");
    const bool known = file && fscanf(file, "%lf", &up) == 1 && found == 2;
    if (file) fclose(file);
    out->age = known ? up - (double)start / (double)sysconf(_SC_CLK_TCK) : -1;
}

// What RUN/metrics.prom says.
struct run_progress {
    long long step, settled, total; // step -1: there is none
    double written;                 // seconds ago
};

// Returns false when this process has not written it yet.
static bool active_run_read_progress(const struct active_run *run, struct run_progress *out) {
    char path[sizeof run->run + sizeof run->machine + 32];
    struct buf text = {0};
    struct stat info;
    *out = (struct run_progress){.step = -1};
    snprintf(path, sizeof path, "%s/metrics%s%s.prom", run->run, *run->machine ? "-" : "", run->machine);
    if (stat(path, &info) || file_read(path, &text) != OK) return false;
    out->written = difftime(time(NULL), info.st_mtime);
    for (const char *line = text.data; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const size_t size = strcspn(line, "\n");
        const char *value = memrchr(line, ' ', size);
        const long long number = value ? strtoll(value, NULL, 10) : 0;
        if (!strncmp(line, "caravan_trained_steps{", strlen("caravan_trained_steps{"))) out->step = number;
        if (strncmp(line, "caravan_groups{", strlen("caravan_groups{")) != 0) continue;
        out->total += number;
        // The states of groups that the run is not done with.
        const bool open = memmem(line, size, "state=\"in_flight\"", strlen("state=\"in_flight\"")) ||
                          memmem(line, size, "state=\"unissued\"", strlen("state=\"unissued\""));
        out->settled += open ? 0 : number;
    }
    buf_release(&text);
    return out->written <= run->age + 1;
}

static void active_run_row(const struct active_run *run, struct buf *out) {
    const long long age = (long long)run->age;
    struct run_progress progress;
    char step[24] = "-", groups[48] = "-", since[32] = "-", path[64], name[64];
    snprintf(path, sizeof path, "/proc/%ld", run->pid);
    path_owner(path, name, sizeof name);
    if (age >= 0) snprintf(since, sizeof since, "%lld:%02lld:%02lld", age / 3600, age / 60 % 60, age % 60);
    if (!*run->run) {
        buf_printf(out, "%8s %15s  %-8s %9s %7ld  a run of user %s\n", step, groups, "running", since, run->pid, name);
        return;
    }
    const bool known = active_run_read_progress(run, &progress);
    const char *state = run->removed                        ? "removed"
                        : run->process == 'T'               ? "stopped"
                        : !known || !progress.total         ? "starting"
                        : progress.written > SILENT_SECONDS ? "silent"
                                                            : "running";
    if (known && progress.step >= 0) snprintf(step, sizeof step, "%lld", progress.step);
    if (known && progress.total) snprintf(groups, sizeof groups, "%lld of %lld", progress.settled, progress.total);
    buf_printf(out, "%8s %15s  %-8s %9s %7ld  %s%s%s%s\n", step, groups, state, since, run->pid, run->run,
               *run->machine ? " (machine " : "", run->machine, *run->machine ? ")" : "");
}

status active_runs_table(struct buf *out, size_t *count) {
    size_t rows = 0;
    DIR *dir = opendir("/proc");
    if (!dir) return fail(UNAVAILABLE, "/proc: %s", strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct active_run run = {.pid = strtol(entry->d_name, NULL, 10)};
        bool unknown;
        if (run.pid <= 0 || !active_run_is_supervisor(run.pid)) continue;
        if (!active_run_find_lock(&run, &unknown)) {
            if (!unknown) continue; // it has not begun, or has ended
            *run.run = *run.machine = 0;
        }
        active_run_read_process(&run);
        if (!rows++) buf_printf(out, "%8s %15s  %-8s %9s %7s  %s\n", "STEP", "GROUPS", "STATE", "AGE", "PID", "RUN");
        active_run_row(&run, out);
    }
    closedir(dir);
    if (count) *count = rows;
    return OK;
}

int ls_main(int argc, char **argv) {
    struct options options = {0};
    struct operands operands = {0};
    struct buf table = {0};
    size_t count = 0;
    status result = subcommand_parse(&options, &ls_table, NULL, argc, argv, &operands);
    if (result == OK) result = active_runs_table(&table, &count);
    if (table.size) fwrite(table.data, 1, table.size, stdout);
    if (result == OK && !count) log_info("no run is active on this machine");
    buf_release(&table);
    options_release(&options);
    return subcommand_exit(result);
}
