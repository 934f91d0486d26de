// The directories that outlive the process: a checkpoint, OUT/step-NNNNNN, is a model directory with the training state
// and the file `progress`; a state, OUT/state-NNNNNN, has only the latter two. Each is written under another name and
// renamed when it is complete.
//
// Which of them stay is decided only after a newer one is complete and synced, and after a step was trained from it: so
// at any moment at least one is there whose numbers are finite. A directory gets the name of an incomplete one before
// its files are removed.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/stage/progress.h"
#include "stages/optim/optim.h"

// ---- names ----

// Whether NAME in the directory OUT has everything that checkpoint_write writes.
static bool checkpoint_is_complete(DIR *out, const char *name) {
    char progress[NAME_MAX + 1 + sizeof PROGRESS_NAME];
    snprintf(progress, sizeof progress, "%s/%s", name, PROGRESS_NAME);
    return faccessat(dirfd(out), progress, F_OK, 0) == 0;
}

// ---- writing ----

status checkpoint_write(struct optim *optim, bool whole) {
    const double started = clock_monotonic();
    const int64_t step = model_version(optim->model);
    const char *out = optim->options->out;
    const uint64_t needed = model_saved_bytes(optim->model, whole);
    struct statvfs disk;
    struct arena arena = {0};
    status result = OK;
    char *name = arena_printf(&arena, "%s-%06lld", whole ? "step" : "state", (long long)step);
    char *path = path_join(&arena, out, name);
    char *old = arena_printf(&arena, "%s.old.tmp", path); // an incomplete one of that name
    char *temporary = arena_printf(&arena, "%s.tmp", path);
    struct buf progress = {0};
    const struct progress state = {.step = step,
                                   .cursor = optim->cursor,
                                   .ema_step = optim->ema_step,
                                   .schedule_steps = optim->options->steps,
                                   .lr = optim->lr,
                                   .model_hash = optim->files_hash,
                                   .model = optim->model_path};
    progress_print(&state, &progress);
    char *latest = path_join(&arena, out, "latest"), *new_latest = path_join(&arena, out, "latest.tmp");
    TRY_TO(result, done, dir_remove(temporary));
    // With too little room nothing is written, so that the other files on the disk can still grow. A file system that
    // does not say how much it has is tried.
    const bool known = !statvfs(out, &disk) && disk.f_blocks;
    const uint64_t unused = known ? (uint64_t)(geteuid() ? disk.f_bavail : disk.f_bfree) * disk.f_frsize : needed;
    if (unused < needed)
        TRY_TO(result, done,
               fail(UNAVAILABLE, "%s: %s (it needs %.1f MB, %.1f MB are free)", path, strerror(ENOSPC),
                    (double)needed / 1e6, (double)unused / 1e6));
    // The run's directory is not made again: it may have been moved.
    if ((mkdir(out, 0777) && errno != EEXIST) || mkdir(temporary, 0777))
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: cannot make the directory: %s", temporary, strerror(errno)));
    metrics_flush(optim);
    TRY_TO(result, done, order_save(optim, temporary, whole));
    TRY_TO(result, done, file_write_atomic(path_join(&arena, temporary, PROGRESS_NAME), progress.data, progress.size));
    TRY_TO(result, done, dir_sync(temporary));
    TRY_TO(result, done, dir_remove(old));
    if ((path_exists(path) && rename(path, old)) || rename(temporary, path))
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    TRY_TO(result, done, dir_remove(old));
    if (whole) {
        unlink(new_latest);
        if (symlink(name, new_latest) || rename(new_latest, latest))
            TRY_TO(result, done, fail(UNAVAILABLE, "%s: cannot write: %s", latest, strerror(errno)));
    }
    TRY_TO(result, done, dir_sync(out));
    optim->saved_step = step;
    optim->saved_whole = whole;
    optim->saved_at = clock_monotonic();
    optim->save_seconds = optim->saved_at - started;
    optim->unproven = true;
done:
    optim->failed_saves = result == OK ? 0 : optim->failed_saves + 1;
    stage_report_saves(optim->context, optim->failed_saves);
    buf_release(&progress);
    if (result != OK) {
        char *reason = arena_strndup(&arena, fail_text(), strlen(fail_text()));
        (void)dir_remove(temporary); // what was written so far only fills the disk
        result = fail(result, "%s of step %lld: %s", whole ? "checkpoint" : "training state", (long long)step, reason);
    }
    arena_release(&arena);
    return result;
}

// ---- retention ----

static bool retention_is_incomplete(const char *name) {
    const size_t length = strlen(name);
    return length > 4 && !strcmp(name + length - 4, ".tmp") && strncmp(name, "metrics", 7) != 0;
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
    // The step of the newest complete checkpoint that is not one of the newest options->keep; -1: there is none.
    int64_t bound = proven && options->keep ? INT64_MAX : -1;
    for (int64_t left = options->keep; left >= 0 && bound >= 0; left--) {
        int64_t newest = -1; // of those below `bound`
        rewinddir(dir);
        for (struct dirent *entry; (entry = readdir(dir));) {
            const int64_t step = checkpoint_number(entry->d_name, "step");
            if (step > newest && step < bound && checkpoint_is_complete(dir, entry->d_name)) newest = step;
        }
        bound = newest;
    }
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
        bool linked = false; // a link in the directory, besides `latest`, refers to the checkpoint
        rewinddir(dir);
        for (struct dirent *entry; !linked && checkpoint_number(removed[i], "step") >= 0 && (entry = readdir(dir));) {
            char target[PATH_MAX];
            ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
            if (length <= 0 || !strcmp(entry->d_name, "latest") || retention_is_incomplete(entry->d_name)) continue;
            while (length > 1 && target[length - 1] == '/') length--;
            target[length] = 0;
            const char *slash = strrchr(target, '/');
            linked = !strcmp(slash ? slash + 1 : target, removed[i]);
        }
        char *path = path_join(&arena, options->out, removed[i]), *going = path, *real = realpath(path, NULL);
        const bool opened = real && !strcmp(real, optim->model_path); // each checkpoint gets its other files
        free(real);
        if (linked || opened) continue;
        if (!retention_is_incomplete(removed[i])) { // after a crash in between, the rest is an incomplete one
            going = arena_printf(&arena, "%s.tmp", path);
            TRY_TO(result, done, dir_remove(going));
            if (rename(path, going))
                TRY_TO(result, done, fail(UNAVAILABLE, "%s: cannot remove: %s", path, strerror(errno)));
        }
        TRY_TO(result, done, dir_remove(going));
    }
done:
    closedir(dir);
    free(removed);
    arena_release(&arena);
    return result;
}

// ---- resuming ----

// Reads the training state in `dir`; the model's step counts, and the file `progress` must have the same. USAGE as
// model_load_state; DATAERR when the directory is damaged.
static status checkpoint_read(struct optim *optim, struct arena *arena, const char *dir, struct progress *progress) {
    char *path = path_join(arena, dir, PROGRESS_NAME);
    TRY(progress_read(progress, arena, path));
    TRY(order_load(optim, dir));
    if (progress->step != model_version(optim->model))
        return fail(DATAERR, "%s: step %lld, but the training state beside it is of step %lld", path, progress->step,
                    (long long)model_version(optim->model));
    return OK;
}

// Returns the path of the newest checkpoint or state of a step below `below`, of one step the checkpoint; NULL when
// there is none. Sets *step and *whole. It was complete when it got its name, so one that lacks a file is damaged.
static char *checkpoint_find(const struct optim *optim, struct arena *arena, int64_t below, int64_t *step,
                             bool *whole) {
    char *path = NULL;
    DIR *entries = opendir(optim->options->out);
    *step = -1;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        int64_t number = checkpoint_number(entry->d_name, "step");
        const bool is_whole = number >= 0;
        if (!is_whole) number = checkpoint_number(entry->d_name, "state");
        if (number < 0 || number < *step || (number == *step && !is_whole) || number >= below) continue;
        path = path_join(arena, optim->options->out, entry->d_name);
        *step = number;
        *whole = is_whole;
    }
    if (entries) closedir(entries);
    return path;
}

// Loads the training state in `dir`, which is of `step`. The training must have begun with the weights of
// options->model.dir. A filter may also be given a checkpoint of that training; in a pipeline the other stages would
// take its weights for the first ones. USAGE when it does not fit the options; DATAERR.
static status checkpoint_load(struct optim *optim, struct arena *arena, const char *dir, int64_t step) {
    const struct stage_model_options *model = &optim->options->model;
    struct progress progress, given = {0};
    status result = progress_read(&progress, arena, path_join(arena, dir, PROGRESS_NAME));
    if (result == OK && progress.model_hash != optim->files_hash) { // first: it says which model is wrong
        char *path = path_join(arena, optim->model_path, PROGRESS_NAME);
        if (!stage_in_pipeline(optim->context) && path_exists(path)) TRY(progress_read(&given, arena, path));
        const bool other = !given.model || given.model_hash != progress.model_hash;
        if (other && strcmp(progress.model, optim->model_path) == 0)
            return fail(DATAERR,
                        "the training in %s began with the model %s, too, but with other adapters or weights (hash "
                        "%016llx, now %016llx): give lora, lora_alpha, lora_seed and adapter of optim as they were, or "
                        "the first weights if the files have changed, or begin a new run",
                        optim->options->out, progress.model, progress.model_hash,
                        (unsigned long long)optim->files_hash);
        if (other)
            return fail(DATAERR,
                        "the training in %s began with the model %s (hash %016llx), but %s has other weights%s (hash "
                        "%016llx): give it the first model, or begin a new run",
                        optim->options->out, progress.model, progress.model_hash, optim->model_path,
                        model->lora || model->adapter ? " or adapters" : "", (unsigned long long)optim->files_hash);
    }
    if (result == OK) result = checkpoint_read(optim, arena, dir, &progress);
    if (result == USAGE)
        return fail(USAGE,
                    "%s: it was saved with other options of optim: give ema_every, train_vision and moment_precision "
                    "(its default is the device's) as they were",
                    fail_text());
    if (result == DATAERR) { // without it, the training goes on from the newest older one that can be read
        const char *reason = arena_strndup(arena, fail_text(), strlen(fail_text())), *older;
        bool whole;
        while ((older = checkpoint_find(optim, arena, step, &step, &whole)) &&
               checkpoint_read(optim, arena, older, &progress) != OK)
            continue;
        return fail(DATAERR, "%s: the checkpoint is damaged: remove %s, and the training %s%s", reason, dir,
                    older ? "goes on from " : "begins anew", older ? older : "");
    }
    TRY(result);
    optim->cursor = progress.cursor;
    optim->ema_step = optim->options->ema_every ? progress.ema_step : 0;
    optim->lr = progress.lr;
    stage_notify(optim->context, "resumes at step %lld from %s", progress.step, dir);
    if (optim->ema_step != progress.ema_step)
        stage_notify(optim->context, "ema_every is 0 now: the reference is the first model again");
    // The learning rate rises where its schedule has another end than before.
    const long long steps = optim->options->steps;
    const double next = step_lr(optim, progress.step);
    if (progress.schedule_steps != steps && progress.step >= optim->warmup && next > progress.lr)
        stage_notify(optim->context,
                     "the learning rate rises from %.3g in step %lld to %.3g in the next one: its schedule of %lld "
                     "steps %s, and now it has %lld",
                     progress.lr, progress.step, next, progress.schedule_steps,
                     progress.schedule_steps <= progress.step ? "had ended" : "had not ended", steps);
    return OK;
}

status checkpoint_resume(struct optim *optim) {
    struct arena arena = {0};
    int64_t step;
    status result = OK;
    const char *latest = path_join(&arena, optim->options->out, "latest");
    struct stat info;
    if (!lstat(latest, &info) && !S_ISLNK(info.st_mode)) // no checkpoint could take its place
        TRY_TO(result, done,
               fail(DATAERR, "%s: not the link to the newest checkpoint, perhaps a copy: remove it", latest));
    const char *newest = checkpoint_find(optim, &arena, INT64_MAX, &step, &optim->saved_whole);
    if (newest) TRY_TO(result, done, checkpoint_load(optim, &arena, newest, step));
    if (!newest) optim->saved_whole = true; // the model's directory is as good as a checkpoint of this step
    if (!newest && stage_in_pipeline(optim->context))
        stage_notify(optim->context, "new training from the weights of %s", optim->model_path);
    bool exists;
    result = metrics_open(optim, &exists);
    optim->never_trained = !newest && !exists;
done:
    optim->saved_step = model_version(optim->model); // after a failure, too: what was loaded is not written again
    optim->saved_at = clock_monotonic();
    optim->unproven = true;
    if (result == OK) result = retention_apply(optim, false); // what is incomplete may fill the disk
    optim->opened = result == OK;
    arena_release(&arena);
    return result;
}
