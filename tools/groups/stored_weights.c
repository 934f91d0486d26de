#include "tools/groups/stored_weights.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/stage/progress.h"

static void stored_weights_add(struct stored_weights *weights, bool reference, int64_t version, const char *path,
                               const char *prefix) {
    if (version <= 0 || stored_weights_find(weights, reference, version)) return;
    GROW(&weights->list, weights->count);
    weights->list[weights->count++] = (struct stored_version){reference, version, path, prefix};
}

// Adds what the entries of a directory are: the policy and the reference of checkpoints and training states or, if
// `published`, versions such as policy-000012.safetensors.
static status stored_weights_read_dir(struct stored_weights *weights, const char *path, bool published) {
    static const char suffix[] = ".safetensors";
    struct arena *arena = &weights->arena;
    DIR *dir = opendir(path);
    status result = OK;
    for (struct dirent *entry; result == OK && dir && (entry = readdir(dir));) {
        const char *name = entry->d_name, *end = strstr(name, suffix), *own = path_join(arena, path, name);
        if (published) {
            if (!end || end[sizeof suffix - 1]) continue;
            const char *stem = arena_strndup(arena, name, (size_t)(end - name));
            stored_weights_add(weights, false, checkpoint_number(stem, "policy"), own, "");
            stored_weights_add(weights, true, checkpoint_number(stem, "reference"), own, "");
            continue;
        }
        const char *file = path_join(arena, own, PROGRESS_NAME), *tensors = path_join(arena, own, PROGRESS_TENSORS);
        struct progress progress;
        if (checkpoint_number(name, "step") < 0 && checkpoint_number(name, "state") < 0) continue;
        if (!path_exists(file)) continue; // incomplete
        if ((result = progress_read(&progress, arena, file)) != OK) {
            if (!path_exists(file)) result = OK; // optim has just removed it
            continue;
        }
        stored_weights_add(weights, false, progress.step, tensors, "master.");
        stored_weights_add(weights, true, progress.ema_step, tensors, "reference.");
        weights->knows_model = true;
        weights->hash = progress.model_hash;
    }
    if (dir) closedir(dir);
    return result;
}

status stored_weights_list(struct stored_weights *weights, const char *run, const char *out) {
    // First the checkpoints: unlike what is published they stay while a run goes on.
    TRY(stored_weights_read_dir(weights, out, false));
    return stored_weights_read_dir(weights, path_join(&weights->arena, run, "weights"), true);
}

void stored_weights_release(struct stored_weights *weights) {
    free(weights->list);
    arena_release(&weights->arena);
    *weights = (struct stored_weights){0};
}

const struct stored_version *stored_weights_find(const struct stored_weights *weights, bool reference,
                                                 int64_t version) {
    for (size_t i = 0; i < weights->count; i++)
        if (weights->list[i].reference == reference && weights->list[i].version == version) return &weights->list[i];
    return NULL;
}

void stored_weights_print(const struct stored_weights *weights, bool reference, struct buf *out) {
    buf_puts(out, "0");
    for (int64_t last = 0, next;; last = next) { // one span after the other
        next = INT64_MAX;
        for (size_t i = 0; i < weights->count; i++) {
            const int64_t version = weights->list[i].version;
            if (weights->list[i].reference == reference && version > last && version < next) next = version;
        }
        if (next == INT64_MAX) return;
        const int64_t first = next;
        while (stored_weights_find(weights, reference, next + 1)) next++;
        buf_printf(out, ", %lld", (long long)first);
        if (next > first) buf_printf(out, "%s%lld", next > first + 1 ? " to " : ", ", (long long)next);
    }
}
