// Which checkpoints and states stay in OUT. It is decided only after a newer one is complete and synced, and after a
// step was trained from it: so at any moment at least one is there whose numbers are finite. A directory gets the name
// of an incomplete one before its files are removed.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "stages/optim/optim.h"

static bool retention_is_incomplete(const char *name) {
    const size_t length = strlen(name);
    return length > 4 && !strcmp(name + length - 4, ".tmp") && strncmp(name, "metrics", 7) != 0;
}

// Whether a link in the directory, besides `latest`, refers to the name.
static bool retention_is_linked(DIR *dir, const char *name) {
    char target[PATH_MAX];
    bool linked = false;
    rewinddir(dir);
    for (struct dirent *entry; !linked && (entry = readdir(dir));) {
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        if (length <= 0 || !strcmp(entry->d_name, "latest") || retention_is_incomplete(entry->d_name)) continue;
        while (length > 1 && target[length - 1] == '/') length--;
        target[length] = 0;
        const char *slash = strrchr(target, '/');
        linked = !strcmp(slash ? slash + 1 : target, name);
    }
    return linked;
}

// Removes a checkpoint or a state. After a crash in between, the rest is an incomplete one.
static status retention_remove(struct arena *arena, const char *out, const char *name) {
    char *path = path_join(arena, out, name);
    char *removed = arena_printf(arena, "%s.tmp", path);
    TRY(dir_remove(removed));
    if (rename(path, removed)) return fail(UNAVAILABLE, "%s: cannot remove: %s", path, strerror(errno));
    return dir_remove(removed);
}

// Returns the step of the newest complete checkpoint that is not one of the newest `keep`, -1 if there is none.
static int64_t retention_bound(DIR *dir, int64_t keep) {
    int64_t bound = INT64_MAX, left = keep;
    while (left-- >= 0) { // finds the newest one below the one that was found before
        int64_t newest = -1;
        rewinddir(dir);
        for (struct dirent *entry; (entry = readdir(dir));) {
            const int64_t step = checkpoint_number(entry->d_name, "step");
            if (step > newest && step < bound && checkpoint_is_complete(dir, entry->d_name)) newest = step;
        }
        if (newest < 0) return -1;
        bound = newest;
    }
    return bound;
}

status retention_apply(const struct optim *optim, bool proven) {
    const struct optim_options *options = optim->options;
    struct arena arena = {0};
    char **removed = NULL; // names, found before any is removed
    size_t count = 0;
    status result = OK;
    TRY(dir_sync(options->out)); // the newest one is durable before an older one goes
    DIR *dir = opendir(options->out);
    if (!dir) return fail(UNAVAILABLE, "%s: %s", options->out, strerror(errno));
    const int64_t bound = proven && options->keep ? retention_bound(dir, options->keep) : -1;
    rewinddir(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        const char *name = entry->d_name;
        const int64_t state = checkpoint_number(name, "state"), step = checkpoint_number(name, "step");
        // A whole checkpoint of a step has all that its state has.
        const bool old_state = state >= 0 && (state == optim->saved_step ? optim->saved_whole : proven);
        const bool old_step = step >= 0 && step <= bound && !(options->keep_every && step % options->keep_every == 0) &&
                              checkpoint_is_complete(dir, name);
        if (!retention_is_incomplete(name) && !old_state && !old_step) continue;
        RESIZE(&removed, count + 1);
        removed[count++] = arena_strndup(&arena, name, strlen(name));
    }
    for (size_t i = 0; i < count; i++) {
        if (checkpoint_number(removed[i], "step") >= 0 && retention_is_linked(dir, removed[i])) continue;
        if (retention_is_incomplete(removed[i])) {
            char *path = path_join(&arena, options->out, removed[i]);
            TRY_TO(result, done, dir_remove(path));
        } else {
            TRY_TO(result, done, retention_remove(&arena, options->out, removed[i]));
        }
    }
done:
    closedir(dir);
    free(removed);
    arena_release(&arena);
    return result;
}
