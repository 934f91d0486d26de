// What a run needs of this machine, against what the machine has now.
#include "shared/resources/resource_plan.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/base/file.h"

// ---- memory ----

// Returns the number behind a name at the start of a line of a file, or the file's first number if the name is empty;
// -1 if there is none.
static int64_t machine_read_number(const char *path, const char *name) {
    char line[256];
    int64_t number = -1;
    FILE *file = fopen(path, "re");
    while (file && number < 0 && fgets(line, sizeof line, file)) {
        const size_t length = strlen(name);
        const char *at = line + length + strspn(line + length, ": \t");
        if (strncmp(line, name, length) != 0 || (length && at == line + length)) continue;
        if (*at >= '0' && *at <= '9') number = strtoll(at, NULL, 10);
    }
    if (file) fclose(file);
    return number;
}

uint64_t machine_memory_available(void) {
    static const char root[] = "/sys/fs/cgroup";
    int64_t available = machine_read_number("/proc/meminfo", "MemAvailable");
    char line[4096], dir[4224], path[4352];
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (available > 0) available *= 1024;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        const bool second = strncmp(line, "0::", 3) == 0; // version of the interface
        const char *memory = strstr(line, ":memory:");
        if (!second && !memory) continue;
        snprintf(dir, sizeof dir, "%s%s%s", root, second ? "" : "/memory", second ? line + 3 : memory + 8);
        const size_t least = strlen(root) + (second ? 0 : strlen("/memory"));
        // A cgroup, and each one that it is in, leaves its limit minus its memory without the files that the kernel can
        // drop.
        for (char *slash = dir; slash;) {
            snprintf(path, sizeof path, "%s/%s", dir, second ? "memory.max" : "memory.limit_in_bytes");
            const int64_t limit = machine_read_number(path, "");
            snprintf(path, sizeof path, "%s/%s", dir, second ? "memory.current" : "memory.usage_in_bytes");
            const int64_t used = machine_read_number(path, "");
            snprintf(path, sizeof path, "%s/memory.stat", dir);
            const int64_t files = machine_read_number(path, "inactive_file");
            if (limit >= 0 && used >= 0) {
                const int64_t left = limit - used + (files > 0 ? files : 0);
                if (available < 0 || left < available) available = left > 0 ? left : 0;
            }
            slash = strlen(dir) > least ? strrchr(dir, '/') : NULL;
            if (slash) *slash = 0;
        }
    }
    if (file) fclose(file);
    return available > 0 ? (uint64_t)available : 0;
}

static double machine_gb(uint64_t bytes) {
    return (double)bytes * 1e-9;
}

// ---- the disk ----

static uint64_t machine_used; // bytes that the walk of a directory has found

static int machine_add_file(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)path;
    (void)walk;
    if (type == FTW_F) machine_used += (uint64_t)info->st_blocks * 512;
    return 0;
}

// A directory and what the run writes there.
struct machine_place {
    const char *path;
    uint64_t bytes;
    dev_t device;        // of the nearest directory above that exists
    uint64_t free, used; // there, and below the path
};

status machine_resources_check(const struct pipeline *pipeline, int machine, struct buf *lines) {
    const struct resource_options options = {.gpu = path_exists("/dev/nvidiactl"), .expected = true};
    const uint64_t available = machine_memory_available();
    const char *largest = "none"; // the stage that needs most memory
    uint64_t needed = 0, most = 0;
    struct resource_plan plan;
    struct arena arena = {0};
    status result;
    TRY_TO(result, done, resource_plan_make(&plan, pipeline, &options));
    for (size_t i = 0; i < plan.count; i++) {
        const struct planned_stage *stage = &plan.stages[i];
        const int replicas = planned_stage_replicas_on(stage, "cpu", machine, stage->stage->replicas);
        uint64_t bytes = 0;
        if (replicas) TRY_TO(result, done, planned_stage_bytes(stage, &bytes));
        needed += bytes * (uint64_t)replicas;
        if (bytes * (uint64_t)replicas <= most) continue;
        most = bytes * (uint64_t)replicas;
        largest = stage->stage->name;
    }
    if (available && needed > available)
        buf_printf(lines, "memory: the run needs %.2f GB, %s %.2f of them, and %.2f GB are available here now\n",
                   machine_gb(needed), largest, machine_gb(most), machine_gb(available));
    // A line for each file system with too little room.
    const struct pipeline_stage *optim = pipeline_optim(pipeline), *frames = pipeline_find_stage(pipeline, "frames");
    const char *out = optim ? pipeline_value(optim, "out") : NULL;
    const char *store = frames ? pipeline_value(frames, "store") : NULL;
    struct disk_needs needs;
    TRY_TO(result, done, resource_plan_disk(&plan, machine, &needs));
    const int64_t checkpoints = needs.checkpoints ? needs.checkpoints : 1;
    struct machine_place places[] = {
        {.path = out, .bytes = (uint64_t)checkpoints * needs.checkpoint + needs.state},
        {.path = path_join(&arena, pipeline->run, "weights"), .bytes = (uint64_t)needs.copies * needs.published},
        {.path = store, .bytes = needs.frames + needs.groups}};
    const size_t count = sizeof places / sizeof *places;
    for (struct machine_place *place = places; place < places + count; place++) {
        const char *path = place->path;
        struct statvfs disk;
        struct stat info;
        if (!path || !place->bytes) continue;
        while (stat(path, &info)) path = path_parent(&arena, path); // "/" or "." at last
        if (statvfs(path, &disk) || !disk.f_blocks)
            TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", place->path, strerror(errno)));
        place->device = info.st_dev;
        place->free = (uint64_t)(geteuid() ? disk.f_bavail : disk.f_bfree) * disk.f_frsize;
        machine_used = 0;
        if (path_exists(place->path)) (void)nftw(place->path, machine_add_file, 16, FTW_PHYS | FTW_MOUNT);
        place->used = machine_used;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = 0, free = places[i].free;
        bool first = places[i].bytes; // of its file system
        for (size_t k = 0; k < count; k++) {
            if (!places[k].bytes || places[k].device != places[i].device) continue;
            bytes += places[k].bytes;
            free += places[k].used;
            first &= k >= i;
        }
        if (!first || bytes <= free) continue;
        buf_printf(lines, "disk: the run needs %.2f GB in %s, and %.2f GB are free there now", machine_gb(bytes),
                   pipeline->run, machine_gb(free));
        if (needs.checkpoint && needs.checkpoints)
            buf_printf(lines, "; %lld checkpoints of %.2f GB each", (long long)needs.checkpoints,
                       machine_gb(needs.checkpoint));
        if (needs.checkpoint && !needs.checkpoints)
            buf_printf(lines, "; each checkpoint adds %.2f GB unless optim's keep is set",
                       machine_gb(needs.checkpoint));
        buf_puts(lines, "\n");
    }
done:
    arena_release(&arena);
    resource_plan_release(&plan);
    return result;
}
