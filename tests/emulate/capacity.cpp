// A bound on the memory of the devices, over all processes: CARAVAN_EMULATED_MEMORY is BYTES:DIRECTORY.
//
// The directory has a file for each process, and one for each allocation that processes share, as long as the memory
// that is taken (the files have no contents). Whoever has the memory holds a lock on the file. The system drops the
// locks of a process that ends, however it ends; the next one that counts removes the files that nobody holds. The file
// `peak` is as long as all of these have ever been together.
#include "emulate_internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

struct bound {
    pid_t process;
    size_t limit; // 0: none
    int directory, own, peak;
    size_t own_bytes;
};

[[noreturn]] void capacity_misuse(const char *what) {
    fprintf(stderr, "emulate: CARAVAN_EMULATED_MEMORY: %s\n", what);
    abort();
}

// Opens a file and locks it. The directory is locked.
int open_held(int directory, const char *name) {
    int file = openat(directory, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_SH)) capacity_misuse(name);
    return file;
}

void set_size(int file, size_t bytes) {
    if (ftruncate(file, static_cast<off_t>(bytes))) capacity_misuse("ftruncate");
}

size_t size_of(int file) {
    struct stat info;
    return fstat(file, &info) ? 0 : static_cast<size_t>(info.st_size);
}

struct bound open_bound() {
    struct bound it = {getpid(), 0, -1, -1, -1, 0};
    const char *set = getenv("CARAVAN_EMULATED_MEMORY"), *colon = set ? strchr(set, ':') : nullptr;
    char name[32];
    if (!set) return it;
    it.limit = strtoull(set, nullptr, 10);
    if (!colon || !it.limit) capacity_misuse("BYTES:DIRECTORY is expected");
    it.directory = open(colon + 1, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (it.directory < 0) capacity_misuse("there is no such directory");
    snprintf(name, sizeof name, "process-%d", getpid());
    flock(it.directory, LOCK_EX);
    it.own = open_held(it.directory, name);
    flock(it.directory, LOCK_UN);
    set_size(it.own, 0); // an earlier process may have had the number
    it.peak = openat(it.directory, "peak", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return it;
}

struct bound &the_bound() {
    static struct bound it = open_bound();
    if (it.process == getpid()) return it;
    for (int file : {it.directory, it.own, it.peak}) // of the process that has started this one
        if (file >= 0) close(file);
    return it = open_bound();
}

// What all processes have. The directory is locked.
size_t count(const struct bound &it) {
    size_t sum = 0;
    DIR *entries = fdopendir(openat(it.directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!entries) capacity_misuse("the directory is gone");
    while (struct dirent *entry = readdir(entries)) {
        if (strncmp(entry->d_name, "process-", 8) != 0 && strncmp(entry->d_name, "shared-", 7) != 0) continue;
        int file = openat(it.directory, entry->d_name, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        if (flock(file, LOCK_EX | LOCK_NB))
            sum += size_of(file);
        else
            unlinkat(it.directory, entry->d_name, 0);
        close(file);
    }
    closedir(entries);
    return sum;
}

} // namespace

bool emulate::capacity_take(size_t bytes) {
    struct bound &it = the_bound();
    if (!it.limit) return true;
    flock(it.directory, LOCK_EX);
    size_t sum = count(it) + bytes;
    if (sum <= it.limit) set_size(it.own, it.own_bytes += bytes);
    if (sum <= it.limit && sum > size_of(it.peak)) set_size(it.peak, sum);
    flock(it.directory, LOCK_UN);
    return sum <= it.limit;
}

void emulate::capacity_return(size_t bytes) {
    struct bound &it = the_bound();
    if (it.limit) set_size(it.own, it.own_bytes -= bytes);
}

int emulate::capacity_share(const struct shared_name *memory) {
    struct bound &it = the_bound();
    char name[64];
    if (!it.limit) return -1;
    snprintf(name, sizeof name, "shared-%llu", static_cast<unsigned long long>(memory->inode));
    flock(it.directory, LOCK_EX);
    int file = open_held(it.directory, name);
    set_size(file, memory->bytes);
    if (memory->process == getpid()) set_size(it.own, it.own_bytes -= memory->bytes);
    flock(it.directory, LOCK_UN);
    return file;
}

void emulate::capacity_unshare(int held) {
    if (held >= 0) close(held);
}

void emulate::capacity_info(size_t *free_bytes, size_t *total_bytes) {
    struct bound &it = the_bound();
    if (!it.limit) return;
    flock(it.directory, LOCK_EX);
    size_t sum = count(it);
    flock(it.directory, LOCK_UN);
    *total_bytes = it.limit;
    *free_bytes = sum < it.limit ? it.limit - sum : 0;
}
