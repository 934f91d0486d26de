#include "shared/stage/node_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"

void node_weights_init(struct node_weights *weights, struct stage_context *context, const struct node_config *config,
                       struct node_counters *counters) {
    weights->context = context;
    weights->config = config;
    weights->counters = counters;
    pthread_mutex_init(&weights->lock, NULL);
}

void node_weights_release(struct node_weights *weights) {
    remote_weights_release(&weights->latest);
    free(weights->loaded_path);
    free(weights->dir);
    pthread_mutex_destroy(&weights->lock);
}

status node_weights_set_dir(struct node_weights *weights, const char *run_dir) {
    struct arena memory = {0};
    const char *dir = path_join(&memory, run_dir, "weights");
    weights->dir = dir ? mem_strdup(dir) : NULL;
    arena_release(&memory);
    return weights->config->trains ? dir_make(weights->dir) : OK;
}

// ---- what optim has published: the I/O thread ----

// Takes over what *latest holds.
static void node_weights_set_latest(struct node_weights *weights, struct remote_weights *latest) {
    pthread_mutex_lock(&weights->lock);
    remote_weights_release(&weights->latest);
    weights->latest = *latest;
    pthread_mutex_unlock(&weights->lock);
}

status node_weights_published(struct node_weights *weights, struct io_thread *io, const struct wire_peer *peer,
                              const struct wire_message *message) {
    struct remote_weights latest;
    if (strcmp(peer->name, "optim") != 0) return fail(DATAERR, "WEIGHTS from another stage than optim");
    if ((message->reference == 1) != (weights->context->stage->follows == FOLLOWS_REFERENCE)) return OK;
    remote_weights_set(&latest, message);
    node_weights_set_latest(weights, &latest);
    io_thread_nudge(io);
    return OK;
}

void node_weights_lost(struct node_weights *weights, struct io_thread *io) {
    struct remote_weights none = {0};
    if (!remote_weights_lent(&weights->latest)) return;
    node_weights_set_latest(weights, &none);
    io_thread_nudge(io); // the worker gives them back
}

// ---- what the stage computes with: the worker ----

status node_weights_return(struct node_weights *weights, bool *returned) {
    struct stage_context *context = weights->context;
    const struct remote_weights used = {.path = weights->loaded_path};
    *returned = false;
    if (!remote_weights_lent(&used)) return OK;
    pthread_mutex_lock(&weights->lock);
    const char *latest = weights->latest.path;
    *returned = !latest || strcmp(latest, used.path) != 0;
    pthread_mutex_unlock(&weights->lock);
    if (!*returned) return OK;
    log_info("%s: given back, optim lends it no more", used.path);
    free(weights->loaded_path);
    weights->loaded_path = NULL;
    return context->stage->return_weights(context->state);
}

// The lent weights cannot be used: asks optim for files, and waits for what it publishes next.
static status node_weights_refuse(struct node_weights *weights, struct io_thread *io,
                                  const struct remote_weights *remote) {
    char reason[1024]; // what fits a message
    snprintf(reason, sizeof reason, "%s", fail_text());
    const struct wire_message message = {.kind = MESSAGE_CANNOT_BORROW, .path = remote->path, .reason = reason};
    pthread_mutex_lock(&weights->lock);
    const char *latest = weights->latest.path;
    weights->latest.refused |= latest && !strcmp(latest, remote->path);
    pthread_mutex_unlock(&weights->lock);
    log_info("%s; optim is asked for a file", reason);
    return io_thread_broadcast(io, "weights", &message);
}

// Downloads the weights if need be and gives them to the stage. BUSY when that must be tried again: optim has newer
// ones by now, or the file is damaged.
static status node_weights_load(struct node_weights *weights, struct io_thread *io, struct remote_weights *remote,
                                enum weights_verdict *verdict) {
    enum { FAILED_LOADS_MAX = 20, FAILED_COPIES_MAX = 2 };
    struct stage_context *context = weights->context;
    *verdict = WEIGHTS_BUSY;
    // Optim's own file could not be loaded, or what was made of a difference: perhaps a copy of the whole file can.
    const bool whole = weights->failed_loads > 0 && weights->failed_hash == remote->weights.hash;
    status result = weights_client_download(io, weights->dir, whole, remote);
    if (result == BAD_SAMPLE) return OK;
    TRY(result);
    log_debug("weights of version %lld", (long long)remote->weights.version);
    result = context->stage->load_weights(context->state, &remote->weights);
    if (result == BAD_SAMPLE) return OK;
    if (result == DATAERR && remote_weights_lent(remote)) {
        *verdict = WEIGHTS_LATER;
        return node_weights_refuse(weights, io, remote);
    }
    // What was trained with one model must not be sampled from another; fail_text() has both hashes.
    if (result == DATAERR && !remote->weights.path) {
        const char *machine = weights->config->machine;
        return fail_prefix(DATAERR, "%s%s's model directory differs from optim's, or its precision does",
                           *machine ? "machine " : "", *machine ? machine : weights->config->stage);
    }
    // Optim's file was removed before it was opened, or the copy is damaged.
    if (result == DATAERR && weights->failed_loads < FAILED_LOADS_MAX && weights->failed_copies < FAILED_COPIES_MAX) {
        log_debug("%s; asking again", fail_text());
        weights->failed_hash = remote->weights.hash;
        weights->failed_loads++;
        weights->failed_copies += remote->copied;
        weights_client_discard(remote);
        return OK;
    }
    TRY(result);
    weights->failed_loads = weights->failed_copies = 0;
    weights->loaded = remote->weights;
    weights->loaded.path = NULL;
    free(weights->loaded_path);
    weights->loaded_path = remote->path;
    remote->path = NULL;
    const struct wire_message copied = {.kind = MESSAGE_HAS_WEIGHTS, .hash = (int64_t)remote->weights.hash};
    if (remote->copied) TRY(io_thread_broadcast(io, "weights", &copied)); // optim may send others here for it
    context->weights_version = remote->weights.version;
    *verdict = WEIGHTS_READY;
    return OK;
}

status node_weights_prepare(struct node_weights *weights, struct io_thread *io, const struct group *group, bool idle,
                            enum weights_verdict *verdict) {
    const struct stage *stage = weights->context->stage;
    const int64_t needed = group->requires.policy;
    const bool exact = group->requires.exact == 1;
    struct remote_weights remote;
    *verdict = WEIGHTS_READY;
    if (!stage_follows_optim(weights->context) || group->quarantine.present) return OK;
    pthread_mutex_lock(&weights->lock);
    remote_weights_copy(&remote, &weights->latest);
    status result = OK;
    pthread_mutex_unlock(&weights->lock);
    TRY(result);
    const struct stage_weights *latest = &remote.weights, *loaded = &weights->loaded;
    // Another path is that of another process of optim, or of a file instead of lent weights.
    bool in_use = remote.path && latest->version == loaded->version && latest->hash == loaded->hash &&
                  weights->loaded_path && strcmp(remote.path, weights->loaded_path) == 0;
    if (in_use && stage->weights_intact) in_use = stage->weights_intact(weights->context->state);
    const bool other = remote.policy < needed || (exact && remote.policy > needed);
    if (!remote.path || remote.refused || (group->requires.present && other)) {
        // Optim is about to say that it has them; or it went back and will have them again, or this process has not
        // heard yet that it went back. If the group has been trained, it is dropped as soon as that is known.
        *verdict = WEIGHTS_LATER;
    } else if (!in_use && !idle) {
        *verdict = WEIGHTS_BUSY;
    } else if (!in_use) {
        node_counters_begin_wait(weights->counters, "waits for weights");
        result = node_weights_load(weights, io, &remote, verdict);
        node_counters_end_wait(weights->counters);
    }
    remote_weights_release(&remote);
    return result;
}
