// Optim's side of the weights of a run. `lock` guards the versions: the worker publishes, the I/O thread answers, and a
// third thread makes differences. Files are removed and given away to be written over with the lock held.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/rng.h"
#include "shared/stage/node.h"

enum {
    MAX_VERSIONS = 3,
    DOWNLOAD_SECONDS = 60, // in which one who downloads a file asks for more of it
    PAUSE_VERSIONS = 20,   // for which no difference is offered after one that was too large or came too late
};

enum difference_state {
    DIFFERENCE_UNUSED, // nobody has asked for it
    DIFFERENCE_WANTED, // the thread is to make it
    DIFFERENCE_MADE,
    DIFFERENCE_FAILED, // too large, or the version before is gone
};

struct published_weights {
    char *path; // "" for the weights of the model's directory; NULL: there is no such version
    bool reference;
    int64_t version, size;
    uint64_t hash;
    int64_t base, difference; // hashes, as in WEIGHTS
    enum difference_state state;
    double asked_at; // clock_monotonic() when somebody asked for a piece but the last; 0: nobody has
};

// Who waits for a difference, and for which piece.
struct difference_waiter {
    struct wire_peer *peer;
    struct wire_message fetch;
};

struct weights_publisher {
    pthread_mutex_t lock;
    // Policy's and reference's, the newest first. The last place is for one that others have left behind, while
    // somebody downloads it: whoever has a slow link would get no whole file otherwise.
    struct published_weights versions[2][MAX_VERSIONS + 1];
    int pause[2];    // PAUSE_VERSIONS and less: of policy and reference
    char *refused;   // why lent weights cannot be used; NULL: nobody has said so since weights_publisher_refused
    pthread_t maker; // makes differences; since the first one was asked for
    bool making;     // there is such a thread
    pthread_cond_t wanted;
    atomic_bool stopping;
    // The I/O thread's own:
    struct difference_waiter *waiters;
    size_t waiter_count;
};

void weights_publisher_new(struct weights_publisher **out) {
    NEW(out, 1);
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->wanted, NULL);
}

void weights_publisher_free(struct weights_publisher **pointer) {
    struct weights_publisher *publisher = *pointer;
    if (!publisher) return;
    pthread_mutex_lock(&publisher->lock);
    atomic_store(&publisher->stopping, true);
    pthread_cond_signal(&publisher->wanted);
    pthread_mutex_unlock(&publisher->lock);
    if (publisher->making) pthread_join(publisher->maker, NULL);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i <= MAX_VERSIONS; i++) free(publisher->versions[kind][i].path);
    free(publisher->refused);
    free(publisher->waiters);
    pthread_mutex_destroy(&publisher->lock);
    pthread_cond_destroy(&publisher->wanted);
    free(publisher);
    *pointer = NULL;
}

// ---- versions ----

// The lock is held.
static bool weights_publisher_uses(const struct weights_publisher *publisher, const char *path) {
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i <= MAX_VERSIONS; i++) {
            const char *used = publisher->versions[kind][i].path;
            if (used && !strcmp(used, path)) return true;
        }
    return false;
}

// Names the file of a difference, which lies beside the weights' own.
static char *weights_difference_path(struct arena *arena, const struct published_weights *weights) {
    return arena_printf(arena, "%s.difference", weights->path);
}

// A version is served no more: removes its difference, and its file, unless another version has the same one, or gives
// the file the name `to`, if not NULL. The lock is held.
static void weights_publisher_drop(const struct weights_publisher *publisher, struct published_weights *old,
                                   const char *to) {
    struct arena arena = {0};
    if (old->state == DIFFERENCE_MADE) (void)unlink(weights_difference_path(&arena, old));
    arena_release(&arena);
    const bool useless = old->path && *old->path && !weights_publisher_uses(publisher, old->path);
    if (useless && (!to || rename(old->path, to))) (void)unlink(old->path); // it may be gone already
    free(old->path);
}

static bool weights_publisher_downloads(const struct published_weights *entry) {
    return entry->asked_at > 0 && clock_monotonic() - entry->asked_at < DOWNLOAD_SECONDS;
}

bool weights_publisher_describe(struct weights_publisher *publisher, bool reference, struct wire_message *message,
                                struct arena *arena) {
    const struct published_weights *policy = &publisher->versions[0][0], *latest = &publisher->versions[reference][0];
    pthread_mutex_lock(&publisher->lock);
    const bool known = policy->path && latest->path;
    if (known)
        *message = (struct wire_message){.kind = MESSAGE_WEIGHTS,
                                         .reference = reference,
                                         .policy = policy->version,
                                         .version = latest->version,
                                         .hash = (int64_t)latest->hash,
                                         .size = latest->size,
                                         .base = latest->base,
                                         .difference = latest->difference,
                                         .path = arena_strndup(arena, latest->path, strlen(latest->path))};
    pthread_mutex_unlock(&publisher->lock);
    return known;
}

// Tells a client, or all if it is NULL, what is published.
static status weights_publisher_tell(struct weights_publisher *publisher, struct io_thread *io,
                                     struct wire_peer *peer) {
    status result = OK;
    for (int reference = 0; reference < 2 && result == OK; reference++) {
        struct wire_message message;
        struct arena arena = {0};
        if (weights_publisher_describe(publisher, reference, &message, &arena))
            result = peer ? io_thread_reply(io, peer, &message) : io_thread_broadcast(io, "weights", &message);
        arena_release(&arena);
    }
    return result;
}

status weights_publish(struct weights_publisher *publisher, struct io_thread *io, const struct stage_weights *weights) {
    struct published_weights *versions = publisher->versions[weights->reference], *before = &versions[1];
    struct stat info = {0};
    if (weights->path && stat(weights->path, &info)) return fail(UNAVAILABLE, "%s: %s", weights->path, strerror(errno));
    pthread_mutex_lock(&publisher->lock);
    struct published_weights *kept = &versions[MAX_VERSIONS], old = versions[MAX_VERSIONS - 1];
    if (weights_publisher_downloads(&old) && !weights_publisher_downloads(kept)) {
        const struct published_weights swapped = *kept;
        *kept = old;
        old = swapped;
    }
    memmove(&versions[1], &versions[0], (MAX_VERSIONS - 1) * sizeof *versions);
    versions[0] = (struct published_weights){.path = mem_strdup(weights->path ? weights->path : ""),
                                             .reference = weights->reference,
                                             .version = weights->version,
                                             .size = info.st_size,
                                             .hash = weights->hash};
    if (publisher->pause[weights->reference] > 0) {
        publisher->pause[weights->reference]--;
    } else if (weights->path && before->path && *before->path && before->hash != weights->hash) {
        versions[0].base = (int64_t)before->hash;
        versions[0].difference = (int64_t)(rng_bits(before->hash, weights->hash, 0) | 1);
    }
    weights_publisher_drop(publisher, &old, NULL);
    pthread_mutex_unlock(&publisher->lock);
    return io ? weights_publisher_tell(publisher, io, NULL) : OK;
}

void weights_recycle(struct weights_publisher *publisher, bool reference, const char *path) {
    pthread_mutex_lock(&publisher->lock);
    struct published_weights *oldest = &publisher->versions[reference][MAX_VERSIONS], old;
    if (!oldest->path) oldest--;
    if (!weights_publisher_downloads(oldest)) {
        old = *oldest;
        *oldest = (struct published_weights){0};
        weights_publisher_drop(publisher, &old, path);
    }
    pthread_mutex_unlock(&publisher->lock);
}

// The version whose file has that hash, or whose difference if `difference`; NULL: none. The lock is held.
static struct published_weights *weights_publisher_find(struct weights_publisher *publisher, int64_t hash,
                                                        bool difference) {
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i <= MAX_VERSIONS; i++) {
            struct published_weights *entry = &publisher->versions[kind][i];
            if (!entry->path || !*entry->path) continue;
            if (difference ? entry->difference && entry->difference == hash : (int64_t)entry->hash == hash)
                return entry;
        }
    return NULL;
}

// ---- the thread that makes differences ----

// Makes what is wanted, the newest first, until the publisher is freed. The lock is held, but not while a difference is
// made: both files are open, and nothing is written over before a version is dropped.
static void *weights_publisher_run(void *argument) {
    struct weights_publisher *publisher = argument;
    pthread_mutex_lock(&publisher->lock);
    while (!atomic_load(&publisher->stopping)) {
        const struct published_weights *wanted = NULL;
        for (int i = MAX_VERSIONS; i >= 0; i--)
            for (int kind = 0; kind < 2; kind++)
                if (publisher->versions[kind][i].state == DIFFERENCE_WANTED) wanted = &publisher->versions[kind][i];
        if (!wanted) {
            pthread_cond_wait(&publisher->wanted, &publisher->lock);
            continue;
        }
        const int64_t hash = wanted->difference, base_hash = wanted->base, limit = wanted->size / 2;
        const struct published_weights *before = weights_publisher_find(publisher, base_hash, false);
        struct arena arena = {0};
        char *path = weights_difference_path(&arena, wanted), *part = arena_printf(&arena, "%s.part", path);
        const int base = before ? open(before->path, O_RDONLY | O_CLOEXEC) : -1;
        const int file = open(wanted->path, O_RDONLY | O_CLOEXEC);
        int out = -1;
        status result = base >= 0 && file >= 0 ? OK : fail(BAD_SAMPLE, "the version before is gone");
        if (result == OK) {
            pthread_mutex_unlock(&publisher->lock);
            out = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
            result = out >= 0 ? weights_difference_make(base, file, limit, &publisher->stopping, out)
                              : fail(UNAVAILABLE, "%s: %s", part, strerror(errno));
            pthread_mutex_lock(&publisher->lock);
        }
        // One of the files may have been written over meanwhile.
        struct published_weights *entry = weights_publisher_find(publisher, hash, true);
        if (result == OK && !(entry && weights_publisher_find(publisher, base_hash, false)))
            result = fail(BAD_SAMPLE, "the version before is gone");
        if (result == OK && rename(part, path)) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
        if (result != OK && out >= 0) (void)unlink(part);
        if (result != OK) log_debug("no difference of weights: %s", fail_text());
        if (entry) entry->state = result == OK ? DIFFERENCE_MADE : DIFFERENCE_FAILED; // otherwise its version is gone
        if (entry && result == BAD_SAMPLE) publisher->pause[entry->reference] = PAUSE_VERSIONS;
        if (base >= 0) close(base);
        if (file >= 0) close(file);
        if (out >= 0) close(out);
        arena_release(&arena);
    }
    pthread_mutex_unlock(&publisher->lock);
    return NULL;
}

// ---- answers: the I/O thread ----

// As weights_publisher_read, from a file.
static status weights_read_piece(const char *path, const struct wire_message *fetch, struct wire_message *reply,
                                 struct buf *bulk) {
    struct stat info;
    status result = OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return OK;
    if (fd < 0 || fstat(fd, &info)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    if (fetch->offset >= info.st_size)
        TRY_TO(result, done,
               fail(DATAERR, "FETCH: offset %lld of %lld bytes", (long long)fetch->offset, (long long)info.st_size));
    buf_clear(bulk);
    buf_reserve(bulk, (size_t)fetch->size);
    const ssize_t size = fd_pread(fd, bulk->data, (size_t)fetch->size, fetch->offset);
    if (size < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    bulk->size = (size_t)size;
    *reply = (struct wire_message){.kind = MESSAGE_CHUNK,
                                   .hash = fetch->hash,
                                   .offset = fetch->offset,
                                   .total = info.st_size,
                                   .bulk = bulk->data,
                                   .bulk_size = bulk->size};
done:
    if (fd >= 0) close(fd);
    return result;
}

status weights_publisher_read(struct weights_publisher *publisher, const struct wire_message *fetch,
                              struct wire_message *reply, struct buf *bulk) {
    struct arena arena = {0};
    status result = OK;
    TRY(message_check_range(fetch));
    *reply = (struct wire_message){.kind = MESSAGE_ABSENT, .id = "", .hash = fetch->hash};
    pthread_mutex_lock(&publisher->lock); // or the file might be written over meanwhile
    struct published_weights *weights = weights_publisher_find(publisher, fetch->hash, false);
    const struct published_weights *changed = weights_publisher_find(publisher, fetch->hash, true);
    if (weights) {
        weights->asked_at = fetch->size < weights->size - fetch->offset ? clock_monotonic() : 0;
        result = weights_read_piece(weights->path, fetch, reply, bulk);
    } else if (changed && changed->state == DIFFERENCE_MADE) {
        result = weights_read_piece(weights_difference_path(&arena, changed), fetch, reply, bulk);
    }
    pthread_mutex_unlock(&publisher->lock);
    arena_release(&arena);
    return result;
}

// Forgets what a client waits for.
static void weights_publisher_forget(struct weights_publisher *publisher, const struct wire_peer *peer) {
    size_t kept = 0;
    for (size_t i = 0; i < publisher->waiter_count; i++)
        if (publisher->waiters[i].peer != peer) publisher->waiters[kept++] = publisher->waiters[i];
    publisher->waiter_count = kept;
}

status weights_publisher_joined(void *self, struct wire_peer *peer) {
    const struct node *node = self;
    weights_publisher_forget(node->publisher, peer); // it begins anew
    return weights_publisher_tell(node->publisher, node->io, peer);
}

status weights_publisher_gone(void *self, struct wire_peer *peer) {
    weights_publisher_forget(((const struct node *)self)->publisher, peer);
    return OK;
}

status weights_publisher_fetch(void *self, struct wire_peer *peer, const struct wire_message *fetch) {
    struct node *node = self;
    struct weights_publisher *publisher = node->publisher;
    struct wire_message reply;
    TRY(message_check_range(fetch));
    pthread_mutex_lock(&publisher->lock);
    struct published_weights *entry = weights_publisher_find(publisher, fetch->hash, true);
    if (entry && entry->state == DIFFERENCE_UNUSED) {
        if (!publisher->making)
            publisher->making = !pthread_create(&publisher->maker, NULL, weights_publisher_run, publisher);
        entry->state = publisher->making ? DIFFERENCE_WANTED : DIFFERENCE_FAILED;
        pthread_cond_signal(&publisher->wanted);
    }
    const bool waits = entry && entry->state == DIFFERENCE_WANTED;
    pthread_mutex_unlock(&publisher->lock);
    if (waits) {
        RESIZE(&publisher->waiters, ++publisher->waiter_count);
        publisher->waiters[publisher->waiter_count - 1] = (struct difference_waiter){peer, *fetch};
        return OK;
    }
    TRY(weights_publisher_read(publisher, fetch, &reply, &node->bulk));
    return io_thread_reply(node->io, peer, &reply);
}

status weights_publisher_tick(void *self) {
    const struct node *node = self;
    struct weights_publisher *publisher = node->publisher;
    for (size_t left = publisher->waiter_count; left > 0; left--) { // those who wait on are added behind
        const struct difference_waiter waiter = publisher->waiters[0];
        memmove(publisher->waiters, publisher->waiters + 1, --publisher->waiter_count * sizeof *publisher->waiters);
        const status result = weights_publisher_fetch(self, waiter.peer, &waiter.fetch);
        const struct wire_message absent = {.kind = MESSAGE_ABSENT, .id = "", .hash = waiter.fetch.hash};
        TRY(result == DATAERR ? io_thread_reply(node->io, waiter.peer, &absent)
                              : result); // it asked for what lies behind
    }
    return OK;
}

// ---- lent weights that a stage cannot use ----

bool weights_publisher_refuse(struct weights_publisher *publisher, const char *path, const char *reason) {
    pthread_mutex_lock(&publisher->lock);
    const bool first = !publisher->refused && *path && weights_publisher_uses(publisher, path);
    if (first) publisher->refused = mem_strdup(reason);
    pthread_mutex_unlock(&publisher->lock);
    return first;
}

status weights_publisher_cannot_borrow(void *self, struct wire_peer *peer, const struct wire_message *message) {
    const struct node *node = self;
    struct buf reason = {0};
    buf_printf(&reason, "%s-%d cannot use the weights in optim's memory: %s", peer->name, peer->replica,
               message->reason);
    if (weights_publisher_refuse(node->publisher, message->path, reason.data)) io_thread_nudge(node->io);
    buf_release(&reason);
    return OK;
}

char *weights_publisher_refused(struct weights_publisher *publisher) {
    pthread_mutex_lock(&publisher->lock);
    char *refused = publisher->refused;
    publisher->refused = NULL;
    pthread_mutex_unlock(&publisher->lock);
    return refused;
}
