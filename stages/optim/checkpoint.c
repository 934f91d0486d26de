// The directories that outlive the process: a checkpoint, OUT/step-NNNNNN, is a model directory with the training state
// and the file `progress`; a state, OUT/state-NNNNNN, has only the latter two. Each is written under another name and
// renamed when it is complete.
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
#include "shared/base/log.h"
#include "stages/optim/optim.h"

static const char progress_name[] = "progress";

int64_t checkpoint_number(const char *name, const char *prefix) {
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0 || name[length] != '-') return -1;
    char *end;
    long long number = strtoll(name + length + 1, &end, 10);
    return end == name + length + 1 || *end ? -1 : number;
}

bool checkpoint_is_complete(DIR *out, const char *name) {
    char progress[NAME_MAX + 1 + sizeof progress_name];
    snprintf(progress, sizeof progress, "%s/%s", name, progress_name);
    return faccessat(dirfd(out), progress, F_OK, 0) == 0;
}

// Fails without writing anything if the disk has too little room, so that the other files on it can still grow: with
// UNAVAILABLE. A file system that does not say how much it has is tried.
static status checkpoint_check_room(const struct optim *optim, const char *path, bool whole) {
    const double mega = 1e6;
    const uint64_t needed = model_saved_bytes(optim->model, whole);
    struct statvfs disk;
    if (statvfs(optim->options->out, &disk) || !disk.f_blocks) return OK;
    const uint64_t free = (uint64_t)(geteuid() ? disk.f_bavail : disk.f_bfree) * disk.f_frsize;
    if (free >= needed) return OK;
    return fail(UNAVAILABLE, "%s: %s (it needs %.1f MB, %.1f MB are free)", path, strerror(ENOSPC),
                (double)needed / mega, (double)free / mega);
}

status checkpoint_write(struct optim *optim, bool whole) {
    const double started = clock_monotonic();
    const int64_t step = model_version(optim->model);
    const char *out = optim->options->out;
    struct arena arena = {0};
    status result = OK;
    char *name = arena_printf(&arena, "%s-%06lld", whole ? "step" : "state", (long long)step);
    char *path = path_join(&arena, out, name);
    char *old = arena_printf(&arena, "%s.old.tmp", path); // an incomplete one of that name
    char *temporary = arena_printf(&arena, "%s.tmp", path);
    char *progress_path = path_join(&arena, temporary, progress_name);
    const struct progress progress = {.step = step,
                                      .cursor = optim->cursor,
                                      .ema_step = optim->ema_step,
                                      .schedule_steps = optim->options->steps,
                                      .lr = optim->lr,
                                      .model_hash = optim->files_hash,
                                      .model = optim->model_path};
    char *latest = path_join(&arena, out, "latest"), *new_latest = path_join(&arena, out, "latest.tmp");
    TRY_TO(result, done, dir_remove(temporary));
    TRY_TO(result, done, checkpoint_check_room(optim, path, whole));
    // The run's directory is not made again: it may have been moved.
    if ((mkdir(out, 0777) && errno != EEXIST) || mkdir(temporary, 0777))
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: cannot make the directory: %s", temporary, strerror(errno)));
    if (whole) TRY_TO(result, done, model_save(optim->model, temporary));
    TRY_TO(result, done, model_save_state(optim->model, temporary));
    TRY_TO(result, done, progress_write(&progress, progress_path));
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
    if (result != OK) {
        char *reason = arena_strndup(&arena, fail_text(), strlen(fail_text()));
        (void)dir_remove(temporary); // what was written so far only fills the disk
        result = fail(result, "%s of step %lld: %s", whole ? "checkpoint" : "training state", (long long)step, reason);
    }
    arena_release(&arena);
    return result;
}

// Whether the weights with which a training began are those of options->model.dir. A filter may also be given a
// checkpoint of that training; in a pipeline the other stages would take its weights for the first ones. DATAERR.
static status checkpoint_check_model(const struct optim *optim, struct arena *arena, const struct progress *progress) {
    struct progress own = {0};
    if (!progress->model || progress->model_hash == optim->files_hash) return OK;
    char *path = path_join(arena, optim->model_path, progress_name);
    if (!stage_in_pipeline(optim->context) && path_exists(path)) TRY(progress_read(&own, arena, path));
    if (own.model && own.model_hash == progress->model_hash) return OK;
    return fail(DATAERR,
                "the training in %s began with the model %s (hash %016llx), but %s has other weights (hash %016llx): "
                "give it the first model, or begin a new run",
                optim->options->out, progress->model, (unsigned long long)progress->model_hash, optim->model_path,
                (unsigned long long)optim->files_hash);
}

// Tells the user where the learning rate rises because its schedule has another end than before.
static void checkpoint_tell_schedule(const struct optim *optim, const struct progress *before) {
    const int64_t step = before->step, steps = optim->options->steps;
    const double next = step_lr(optim, step);
    if (!before->model || before->schedule_steps == steps || step < optim->warmup || next <= before->lr) return;
    stage_notify(optim->context,
                 "the learning rate rises from %.3g in step %lld to %.3g in the next one: its schedule of %lld "
                 "steps %s, and now it has %lld",
                 before->lr, (long long)step, next, (long long)before->schedule_steps,
                 before->schedule_steps <= step ? "had ended" : "had not ended", (long long)steps);
}

// Reads the training state in `dir`; the model's step counts, and the file `progress` must have the same. DATAERR when
// the directory is damaged.
static status checkpoint_read(struct optim *optim, struct arena *arena, const char *dir, struct progress *progress) {
    char *path = path_join(arena, dir, progress_name);
    TRY(progress_read(progress, arena, path));
    TRY(model_load_state(optim->model, dir));
    if (progress->step != model_version(optim->model))
        return fail(DATAERR, "%s: step %lld, but the training state beside it is of step %lld", path,
                    (long long)progress->step, (long long)model_version(optim->model));
    return OK;
}

// Returns the path of the newest checkpoint or state of a step below `below`, of one step the checkpoint; NULL when
// there is none. Sets *step and *whole.
static char *checkpoint_find(const struct optim *optim, struct arena *arena, int64_t below, int64_t *step,
                             bool *whole) {
    char *path = NULL;
    DIR *entries = opendir(optim->options->out);
    *step = -1;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        int64_t number = checkpoint_number(entry->d_name, "step");
        const bool is_whole = number >= 0;
        if (!is_whole) number = checkpoint_number(entry->d_name, "state");
        if (number < *step || (number == *step && !is_whole) || number >= below) continue;
        if (number < 0 || !checkpoint_is_complete(entries, entry->d_name)) continue;
        path = path_join(arena, optim->options->out, entry->d_name);
        *step = number;
        *whole = is_whole;
    }
    if (entries) closedir(entries);
    return path;
}

// Says why the checkpoint `dir` of `step` cannot be read, for the reason fail_text(), and from which one the training
// goes on without it: the newest one that can be read.
static status checkpoint_fail_damaged(struct optim *optim, struct arena *arena, const char *dir, int64_t step) {
    char reason[500];
    struct progress progress;
    const char *older = NULL;
    bool whole;
    snprintf(reason, sizeof reason, "%s", fail_text());
    while ((older = checkpoint_find(optim, arena, step, &step, &whole)) &&
           checkpoint_read(optim, arena, older, &progress) != OK)
        continue;
    return fail(DATAERR, "%s: the checkpoint is damaged: remove %s, and the training %s%s", reason, dir,
                older ? "goes on from " : "begins anew", older ? older : "");
}

// Loads the training state in `dir`, which is of `step`.
static status checkpoint_load(struct optim *optim, struct arena *arena, const char *dir, int64_t step) {
    struct progress progress;
    char *path = path_join(arena, dir, progress_name);
    status result = progress_read(&progress, arena, path);
    if (result == OK) TRY(checkpoint_check_model(optim, arena, &progress)); // first: it says which model is wrong
    if (result == OK) result = checkpoint_read(optim, arena, dir, &progress);
    if (result == DATAERR) return checkpoint_fail_damaged(optim, arena, dir, step);
    TRY(result);
    optim->cursor = progress.cursor;
    optim->ema_step = progress.ema_step;
    optim->lr = progress.lr;
    stage_notify(optim->context, "resumes at step %lld from %s", (long long)progress.step, dir);
    checkpoint_tell_schedule(optim, &progress);
    return OK;
}

status checkpoint_resume(struct optim *optim) {
    struct arena arena = {0};
    int64_t step;
    status result = OK;
    const char *newest = checkpoint_find(optim, &arena, INT64_MAX, &step, &optim->saved_whole);
    if (newest) {
        TRY_TO(result, done, checkpoint_load(optim, &arena, newest, step));
    } else {
        optim->saved_whole = true; // the model's directory is as good as a checkpoint of this step
        optim->never_trained = !metrics_exist(optim->options->out);
        if (stage_in_pipeline(optim->context))
            stage_notify(optim->context, "new training from the weights of %s", optim->model_path);
    }
    result = metrics_truncate(optim->options->out, model_version(optim->model));
done:
    optim->saved_step = model_version(optim->model); // after a failure, too: what was loaded is not written again
    optim->saved_at = clock_monotonic();
    optim->unproven = true;
    if (result == OK) result = retention_apply(optim, false); // what is incomplete may fill the disk
    optim->opened = result == OK;
    arena_release(&arena);
    return result;
}
