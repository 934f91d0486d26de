// The shapes of products for which cuBLASLt has been tried, and the algorithm that each got; in memory, and on disk in
// $XDG_CACHE_HOME/caravan or ~/.cache/caravan, one file for each kind of GPU.
//
// The first line of the file says what the rest is true for. Each other line is one entry with a check sum and is
// appended as a whole, so that several processes may share the file. A damaged line is passed over, and a file of
// another version is begun anew: then shapes are tried again. A file that cannot be written is done without.
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/lt.h"
#include "shared/base/log.h"

enum {
    ALGO_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
    ENTRY_WORDS = 5 + ALGO_WORDS, // without the check sum
    ADMITTED_LINE = 512,          // bytes of a line at most
};

struct admitted {
    struct lt_entry *entries;
    size_t count;
    char path[1200]; // "" if there is no place for a file
    char version[ADMITTED_LINE];
    bool current; // the file's first line is `version`
};

// ---- lines ----

static uint64_t admitted_check_sum(const uint64_t words[ENTRY_WORDS]) {
    uint64_t sum = 0;
    for (int i = 0; i < ENTRY_WORDS; i++) sum = ops_mix64(sum ^ words[i]);
    return sum;
}

static void admitted_format(const struct lt_entry *entry, char line[ADMITTED_LINE]) {
    uint64_t words[ENTRY_WORDS + 1] = {(uint64_t)entry->shape.a_outer, (uint64_t)entry->shape.b_outer,
                                       (uint64_t)entry->shape.inner, (uint64_t)entry->shape.flags, entry->admitted};
    memcpy(words + 5, entry->algo.data, sizeof entry->algo);
    words[ENTRY_WORDS] = admitted_check_sum(words);
    for (int i = 0; i <= ENTRY_WORDS; i++)
        line += sprintf(line, "%llx%c", (unsigned long long)words[i], i < ENTRY_WORDS ? ' ' : '\n');
}

// False if the line is damaged.
static bool admitted_parse(const char *line, struct lt_entry *out) {
    uint64_t words[ENTRY_WORDS + 1];
    for (int i = 0; i <= ENTRY_WORDS; i++) {
        char *end;
        words[i] = strtoull(line, &end, 16);
        if (end == line) return false;
        line = end;
    }
    if (*line != '\n' || words[ENTRY_WORDS] != admitted_check_sum(words)) return false;
    out->shape = (struct lt_shape){(int64_t)words[0], (int64_t)words[1], (int64_t)words[2], (int64_t)words[3]};
    out->admitted = words[4] == 1;
    memcpy(out->algo.data, words + 5, sizeof out->algo);
    return true;
}

static void admitted_write(struct admitted *t, const struct lt_entry *entry) {
    char line[ADMITTED_LINE];
    if (!*t->path) return;
    int fd = open(t->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd >= 0 && !t->current && flock(fd, LOCK_EX) == 0) { // until it is closed
        // Another process may have begun the file anew since it was read.
        ssize_t size = pread(fd, line, sizeof line, 0), length = (ssize_t)strlen(t->version);
        t->current = size >= length && memcmp(line, t->version, (size_t)length) == 0;
        if (!t->current && ftruncate(fd, 0) != 0) log_debug("cannot begin %s anew", t->path);
    }
    admitted_format(entry, line);
    bool written = fd >= 0 && (t->current || dprintf(fd, "%s", t->version) > 0) && dprintf(fd, "%s", line) > 0;
    if (!written) log_debug("cannot write %s: the shapes will be tried again", t->path);
    t->current = written;
    if (fd >= 0) close(fd);
}

// ---- the file ----

// Makes the directory too. The path stays "" if the environment names no place.
static void admitted_choose_path(struct admitted *t, const char *gpu) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && *cache == '/';
    char dir[1000];
    if (!given && (!home || *home != '/')) return;
    snprintf(dir, sizeof dir, "%s%s", given ? cache : home, given ? "" : "/.cache");
    (void)mkdir(dir, 0777);
    snprintf(t->path, sizeof t->path, "%s/caravan", dir);
    (void)mkdir(t->path, 0777);
    size_t size = strlen(t->path);
    snprintf(t->path + size, sizeof t->path - size, "/cublaslt-%.100s", gpu);
    for (char *at = t->path + size + 1; *at; at++) {
        if (!isalnum((unsigned char)*at)) *at = '-';
    }
}

// Sets what the entries are true for. A build of the plug-in is known by its file's time and size.
static status admitted_identify(struct admitted *t, const struct cuda_backend *cuda, size_t lt_version) {
    static const char format[] = "caravan cublaslt 1: %.256s, compute capability %d, %d processors, driver %d, "
                                 "cublaslt %zu, plug-in %lld.%09ld %lld\n";
    struct cudaDeviceProp gpu;
    int driver;
    Dl_info plugin;
    struct stat file = {0};
    CUDA_TRY(cudaGetDeviceProperties(&gpu, cuda->device));
    CUDA_TRY(cudaDriverGetVersion(&driver));
    if (dladdr(format, &plugin) != 0 && stat(plugin.dli_fname, &file) == 0) admitted_choose_path(t, gpu.name);
    snprintf(t->version, sizeof t->version, format, gpu.name, cuda->compute_capability, cuda->processors, driver,
             lt_version, (long long)file.st_mtim.tv_sec, file.st_mtim.tv_nsec, (long long)file.st_size);
    return OK;
}

static status admitted_read(struct admitted *t) {
    char line[ADMITTED_LINE];
    struct lt_entry entry;
    status result = OK;
    FILE *file = *t->path ? fopen(t->path, "re") : NULL;
    if (!file) return OK;
    t->current = fgets(line, sizeof line, file) && strcmp(line, t->version) == 0;
    while (t->current && result == OK && fgets(line, sizeof line, file)) {
        if (admitted_parse(line, &entry) && !admitted_find(t, &entry.shape)) result = admitted_add(t, &entry, false);
    }
    fclose(file);
    return result;
}

// ---- entries ----

status admitted_open(struct admitted **out, const struct cuda_backend *cuda, size_t lt_version) {
    NEW(out, 1);
    TRY(admitted_identify(*out, cuda, lt_version));
    return admitted_read(*out);
}

void admitted_free(struct admitted **admitted) {
    if (!*admitted) return;
    free((*admitted)->entries);
    free(*admitted);
    *admitted = NULL;
}

const struct lt_entry *admitted_find(const struct admitted *t, const struct lt_shape *shape) {
    for (size_t i = 0; i < t->count; i++) {
        if (memcmp(&t->entries[i].shape, shape, sizeof *shape) == 0) return &t->entries[i];
    }
    return NULL;
}

status admitted_add(struct admitted *t, const struct lt_entry *entry, bool keep) {
    RESIZE(&t->entries, t->count + 1);
    t->entries[t->count++] = *entry;
    if (keep) admitted_write(t, entry);
    return OK;
}

int admitted_count(const struct admitted *t, int *shapes) {
    int count = 0;
    for (size_t i = 0; i < t->count; i++) count += t->entries[i].admitted;
    *shapes = (int)t->count;
    return count;
}
