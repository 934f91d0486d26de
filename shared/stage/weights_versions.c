// `lock` guards everything: the worker publishes, the I/O thread reads, and a third thread makes differences. Files are
// removed and given away to be written over with the lock held.
#include "shared/stage/weights_versions.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/rng.h"
#include "shared/stage/weights_difference.h"

enum {
    VERSIONS_MAX = 3,
    PAUSE_VERSIONS = 20, // for which no difference is offered after one that was too large or came too late
};

enum difference_state {
    DIFFERENCE_UNUSED, // nobody has asked for it
    DIFFERENCE_WANTED, // the thread is to make it
    DIFFERENCE_MADE,
    DIFFERENCE_FAILED, // too large, or the version before is gone
};

struct served_weights {
    bool present, reference;
    int64_t version;
    uint64_t hash;
    char *path;               // "" for the weights of the model's directory
    int64_t base, difference; // hashes, as in WEIGHTS
    enum difference_state state;
};

struct weights_versions {
    pthread_mutex_t lock;
    struct served_weights entries[2][VERSIONS_MAX]; // policy's and reference's, the newest first
    int pause[2];                                   // PAUSE_VERSIONS and less: of policy and reference
    int64_t publications;
    char *refused;   // why lent weights cannot be used; NULL: nobody has said so since weights_versions_refused
    pthread_t maker; // makes differences; since the first one was asked for
    bool making;     // there is such a thread
    pthread_cond_t wanted;
    atomic_bool stopping;
};

void weights_versions_new(struct weights_versions **out) {
    NEW(out, 1);
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->wanted, NULL);
}

static void weights_versions_stop(struct weights_versions *versions) {
    pthread_mutex_lock(&versions->lock);
    atomic_store(&versions->stopping, true);
    pthread_cond_signal(&versions->wanted);
    pthread_mutex_unlock(&versions->lock);
    if (versions->making) pthread_join(versions->maker, NULL);
}

void weights_versions_free(struct weights_versions **versions) {
    if (!*versions) return;
    weights_versions_stop(*versions);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < VERSIONS_MAX; i++) free((*versions)->entries[kind][i].path);
    free((*versions)->refused);
    pthread_mutex_destroy(&(*versions)->lock);
    pthread_cond_destroy(&(*versions)->wanted);
    free(*versions);
    *versions = NULL;
}

// The lock is held.
static bool weights_versions_uses(const struct weights_versions *versions, const char *path) {
    assert(*path);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < VERSIONS_MAX; i++)
            if (versions->entries[kind][i].present && !strcmp(versions->entries[kind][i].path, path)) return true;
    return false;
}

// Names the file of a difference, which lies beside the weights' own.
static char *weights_versions_difference_path(struct arena *arena, const char *path) {
    return arena_printf(arena, "%s.difference", path);
}

// The version is served no more: removes its difference. The lock is held.
static void weights_versions_drop_difference(const struct served_weights *old) {
    struct arena arena = {0};
    char *path = old->state == DIFFERENCE_MADE ? weights_versions_difference_path(&arena, old->path) : NULL;
    if (path) (void)unlink(path);
    arena_release(&arena);
}

void weights_versions_put(struct weights_versions *versions, const struct stage_weights *weights) {
    char *path = mem_strdup(weights->path ? weights->path : "");
    pthread_mutex_lock(&versions->lock);
    struct served_weights *entries = versions->entries[weights->reference], old = entries[VERSIONS_MAX - 1];
    memmove(&entries[1], &entries[0], (VERSIONS_MAX - 1) * sizeof *entries);
    entries[0] = (struct served_weights){.present = true,
                                         .reference = weights->reference,
                                         .version = weights->version,
                                         .hash = weights->hash,
                                         .path = path};
    const struct served_weights *before = &entries[1];
    if (versions->pause[weights->reference] > 0) {
        versions->pause[weights->reference]--;
    } else if (*path && before->present && *before->path && before->hash != weights->hash) {
        entries[0].base = (int64_t)before->hash;
        entries[0].difference = (int64_t)(rng_bits(before->hash, weights->hash, 0) | 1);
    }
    versions->publications++;
    weights_versions_drop_difference(&old);
    // The file may be gone already.
    if (old.present && *old.path && !weights_versions_uses(versions, old.path)) (void)unlink(old.path);
    pthread_mutex_unlock(&versions->lock);
    free(old.path);
}

int64_t weights_versions_publications(struct weights_versions *versions) {
    pthread_mutex_lock(&versions->lock);
    const int64_t publications = versions->publications;
    pthread_mutex_unlock(&versions->lock);
    return publications;
}

void weights_versions_recycle(struct weights_versions *versions, bool reference, const char *path) {
    pthread_mutex_lock(&versions->lock);
    struct served_weights old = versions->entries[reference][VERSIONS_MAX - 1];
    versions->entries[reference][VERSIONS_MAX - 1] = (struct served_weights){0};
    weights_versions_drop_difference(&old);
    bool useful = old.present && *old.path && !weights_versions_uses(versions, old.path);
    if (useful && rename(old.path, path)) (void)unlink(old.path);
    pthread_mutex_unlock(&versions->lock);
    free(old.path);
}

status weights_versions_latest(struct weights_versions *versions, bool reference, struct wire_message *message,
                               bool *known, struct arena *arena) {
    const struct served_weights *policy = &versions->entries[0][0], *latest = &versions->entries[reference][0];
    struct stat info = {0};
    status result = OK;
    pthread_mutex_lock(&versions->lock);
    *known = policy->present && latest->present;
    if (*known && *latest->path && stat(latest->path, &info)) {
        result = fail(UNAVAILABLE, "%s: %s", latest->path, strerror(errno));
    } else if (*known) {
        *message = (struct wire_message){.kind = MESSAGE_WEIGHTS,
                                         .reference = reference,
                                         .policy = policy->version,
                                         .version = latest->version,
                                         .hash = (int64_t)latest->hash,
                                         .size = info.st_size,
                                         .base = latest->base,
                                         .difference = latest->difference,
                                         .path = arena_strndup(arena, latest->path, strlen(latest->path))};
    }
    pthread_mutex_unlock(&versions->lock);
    return result;
}

status weights_read_piece(const char *path, const struct wire_message *request, struct wire_message *reply,
                          struct buf *bulk) {
    struct stat info;
    status result = OK;
    assert(request->kind == MESSAGE_FETCH);
    TRY(message_check_range(request));
    *reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = "", .hash = request->hash};
    buf_clear(bulk);
    buf_reserve(bulk, (size_t)request->size);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return OK;
    if (fd < 0 || fstat(fd, &info)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    if (request->offset >= info.st_size)
        TRY_TO(result, done,
               fail(DATAERR, "FETCH: offset %lld of %lld bytes", (long long)request->offset, (long long)info.st_size));
    const ssize_t size = fd_pread(fd, bulk->data, (size_t)request->size, request->offset);
    if (size < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    bulk->size = (size_t)size;
    *reply = (struct wire_message){.kind = MESSAGE_CHUNK,
                                   .hash = request->hash,
                                   .offset = request->offset,
                                   .total = info.st_size,
                                   .bulk = bulk->data,
                                   .bulk_size = bulk->size};
done:
    if (fd >= 0) close(fd);
    return result;
}

// The version whose file has that hash, or whose difference if `difference`; NULL: none. The lock is held.
static struct served_weights *weights_versions_find(struct weights_versions *versions, int64_t hash, bool difference) {
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < VERSIONS_MAX; i++) {
            struct served_weights *entry = &versions->entries[kind][i];
            if (!entry->present || !*entry->path) continue;
            if (difference ? entry->difference && entry->difference == hash : (int64_t)entry->hash == hash)
                return entry;
        }
    return NULL;
}

// The path of the file with that hash, weights or a difference that has been made; NULL: none. The
// lock is held.
static const char *weights_versions_path(struct weights_versions *versions, int64_t hash, struct arena *arena) {
    const struct served_weights *weights = weights_versions_find(versions, hash, false);
    if (weights) return weights->path;
    const struct served_weights *entry = weights_versions_find(versions, hash, true);
    return entry && entry->state == DIFFERENCE_MADE ? weights_versions_difference_path(arena, entry->path) : NULL;
}

int64_t weights_versions_size(struct weights_versions *versions, int64_t hash) {
    struct arena arena = {0};
    struct stat info;
    pthread_mutex_lock(&versions->lock);
    const char *path = weights_versions_path(versions, hash, &arena);
    const int64_t size = path && !stat(path, &info) ? info.st_size : 0;
    pthread_mutex_unlock(&versions->lock);
    arena_release(&arena);
    return size;
}

status weights_versions_chunk(struct weights_versions *versions, const struct wire_message *request,
                              struct wire_message *reply, struct buf *bulk) {
    struct arena arena = {0};
    pthread_mutex_lock(&versions->lock); // or the file might be written over meanwhile
    const char *path = weights_versions_path(versions, request->hash, &arena);
    status result = OK;
    *reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = "", .hash = request->hash};
    if (path) result = weights_read_piece(path, request, reply, bulk); // which checks the request
    pthread_mutex_unlock(&versions->lock);
    arena_release(&arena);
    return result;
}

bool weights_versions_refuse(struct weights_versions *versions, const char *path, const char *reason) {
    pthread_mutex_lock(&versions->lock);
    const bool first = !versions->refused && *path && weights_versions_uses(versions, path);
    if (first) versions->refused = mem_strdup(reason);
    pthread_mutex_unlock(&versions->lock);
    return first;
}

char *weights_versions_refused(struct weights_versions *versions) {
    pthread_mutex_lock(&versions->lock);
    char *refused = versions->refused;
    versions->refused = NULL;
    pthread_mutex_unlock(&versions->lock);
    return refused;
}

// ---- the thread that makes differences ----

// Opens the files of a version and of the one before. The lock is held; nothing is written over before both are
// dropped. BAD_SAMPLE when one of them is gone.
static status weights_versions_open_pair(struct weights_versions *versions, const struct served_weights *entry,
                                         int *base, int *file) {
    const struct served_weights *before = weights_versions_find(versions, entry->base, false);
    if (before) *base = open(before->path, O_RDONLY | O_CLOEXEC);
    *file = open(entry->path, O_RDONLY | O_CLOEXEC);
    return *base >= 0 && *file >= 0 ? OK : fail(BAD_SAMPLE, "the version before is gone");
}

// Makes the difference of the version whose difference has that hash. The lock is held, but not while it is made.
static status weights_versions_make(struct weights_versions *versions, int64_t hash) {
    struct served_weights *entry = weights_versions_find(versions, hash, true);
    const int64_t base_hash = entry->base;
    struct arena arena = {0};
    struct stat info;
    int base = -1, file = -1, out = -1;
    status result = weights_versions_open_pair(versions, entry, &base, &file);
    char *path = weights_versions_difference_path(&arena, entry->path);
    char *part = arena_printf(&arena, "%s.part", path);
    TRY_TO(result, done, result);
    pthread_mutex_unlock(&versions->lock);
    out = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (out < 0 || fstat(file, &info)) result = fail(UNAVAILABLE, "%s: %s", part, strerror(errno));
    if (result == OK) result = weights_difference_make(base, file, info.st_size / 2, &versions->stopping, out);
    pthread_mutex_lock(&versions->lock);
    // One of the files may have been written over meanwhile.
    if (result == OK &&
        !(weights_versions_find(versions, hash, true) && weights_versions_find(versions, base_hash, false)))
        result = fail(BAD_SAMPLE, "the version before is gone");
    if (result == OK && rename(part, path)) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (result != OK && out >= 0) (void)unlink(part);
done:
    if (base >= 0) close(base);
    if (file >= 0) close(file);
    if (out >= 0) close(out);
    arena_release(&arena);
    return result;
}

// Makes what is wanted, the newest first, until the versions are freed.
static void *weights_versions_maker(void *argument) {
    struct weights_versions *versions = argument;
    pthread_mutex_lock(&versions->lock);
    while (!atomic_load(&versions->stopping)) {
        const struct served_weights *wanted = NULL;
        for (int i = VERSIONS_MAX; i-- > 0;)
            for (int kind = 0; kind < 2; kind++)
                if (versions->entries[kind][i].state == DIFFERENCE_WANTED) wanted = &versions->entries[kind][i];
        if (!wanted) {
            pthread_cond_wait(&versions->wanted, &versions->lock);
            continue;
        }
        const int64_t hash = wanted->difference;
        const status result = weights_versions_make(versions, hash);
        struct served_weights *entry = weights_versions_find(versions, hash, true);
        if (result != OK) log_debug("no difference of weights: %s", fail_text());
        if (!entry) continue; // its version is gone
        entry->state = result == OK ? DIFFERENCE_MADE : DIFFERENCE_FAILED;
        if (result == BAD_SAMPLE) versions->pause[entry->reference] = PAUSE_VERSIONS;
    }
    pthread_mutex_unlock(&versions->lock);
    return NULL;
}

status weights_versions_await(struct weights_versions *versions, int64_t hash, bool *waits) {
    status result = OK;
    pthread_mutex_lock(&versions->lock);
    struct served_weights *entry = weights_versions_find(versions, hash, true);
    if (entry && entry->state == DIFFERENCE_UNUSED) {
        if (!versions->making && pthread_create(&versions->maker, NULL, weights_versions_maker, versions))
            result = fail(UNAVAILABLE, "no thread for the differences of weights");
        versions->making |= result == OK;
        entry->state = result == OK ? DIFFERENCE_WANTED : DIFFERENCE_FAILED;
        pthread_cond_signal(&versions->wanted);
    }
    *waits = entry && entry->state == DIFFERENCE_WANTED;
    pthread_mutex_unlock(&versions->lock);
    return result;
}
