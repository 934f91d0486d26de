// What outlives the process: OUT/step-NNNNNN (a model folder, with the training state and the cursor beside it) and
// OUT/state-NNNNNN (the latter two alone). Each is made under another name and renamed when it is whole.
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "stages/optim/optim.h"

static const char progress_name[] = "progress";

static status write_progress(const struct optim *optim, struct arena *memory, const char *folder) {
    char *text = arena_printf(memory, "caravan-progress 1\nstep %lld\ncursor %lld\naveraged %lld\n",
                              (long long)optim->step, (long long)optim->cursor, (long long)optim->averaged);
    char *path = path_join(memory, folder, progress_name);
    if (!text || !path) return fail_oom();
    return file_write_atomic(path, text, strlen(text));
}

static status read_progress(struct optim *optim, struct arena *memory, const char *folder) {
    struct buf content = {0};
    char *path = path_join(memory, folder, progress_name);
    long long step, cursor, averaged;
    status result = path ? file_read(path, &content) : fail_oom();
    if (result == OK && sscanf(content.data, "caravan-progress 1\nstep %lld\ncursor %lld\naveraged %lld\n", &step,
                               &cursor, &averaged) != 3)
        result = fail(DATAERR, "%s: not a caravan-progress file of version 1", path);
    if (result == OK) {
        optim->step = step;
        optim->cursor = cursor;
        optim->averaged = averaged;
    }
    buf_release(&content);
    return result;
}

// Puts the finished folder `made` at `path`, where an older one of that name may stand.
static status settle(struct arena *memory, const char *made, const char *path) {
    char *old = arena_printf(memory, "%s.old", path);
    if (!old) return fail_oom();
    TRY(dir_sync(made));
    TRY(dir_remove(old));
    if (path_exists(path) && rename(path, old)) return fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (rename(made, path)) return fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    return dir_remove(old);
}

static status write_folder(struct optim *optim, struct arena *memory, const char *kind, bool whole, char **path) {
    double began = clock_monotonic();
    *path = arena_printf(memory, "%s/%s-%06lld", optim->options->out, kind, (long long)optim->step);
    char *made = *path ? arena_printf(memory, "%s.tmp", *path) : NULL;
    if (!made) return fail_oom();
    status result = dir_remove(made);
    if (result == OK) result = dir_make(made);
    if (result == OK && whole) result = model_save(optim->model, made);
    if (result == OK) result = model_save_state(optim->model, made);
    if (result == OK) result = write_progress(optim, memory, made);
    if (result == OK) result = settle(memory, made, *path);
    if (result != OK) {
        char *why = arena_strndup(memory, fail_text(), strlen(fail_text()));
        dir_remove(made); // what was written so far only fills the disk
        return fail(result, "%s", why ? why : "out of memory");
    }
    optim->saved = optim->step;
    optim->whole = whole;
    optim->saved_at = clock_monotonic();
    optim->save_seconds = optim->saved_at - began;
    return dir_sync(optim->options->out);
}

static status link_latest(const struct optim *optim, struct arena *memory, const char *path) {
    char *link = path_join(memory, optim->options->out, "latest");
    char *fresh = path_join(memory, optim->options->out, "latest.tmp");
    if (!link || !fresh) return fail_oom();
    unlink(fresh);
    if (symlink(strrchr(path, '/') + 1, fresh) || rename(fresh, link))
        return fail(UNAVAILABLE, "%s: cannot write: %s", link, strerror(errno));
    return OK;
}

// The number behind "PREFIX-" if `name` is exactly such a name, else -1.
static int64_t numbered(const char *name, const char *prefix) {
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0 || name[length] != '-') return -1;
    char *end;
    long long number = strtoll(name + length + 1, &end, 10);
    return end == name + length + 1 || *end ? -1 : number;
}

// Removes the states other than the present one, and what a crash left half made.
static status tidy(const struct optim *optim, struct arena *memory) {
    DIR *folder = opendir(optim->options->out);
    if (!folder) return fail(UNAVAILABLE, "%s: %s", optim->options->out, strerror(errno));
    status result = OK;
    for (struct dirent *entry; result == OK && (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        bool partial =
            length > 4 && !strcmp(entry->d_name + length - 4, ".tmp") && strncmp(entry->d_name, "metrics", 7) != 0;
        int64_t state = numbered(entry->d_name, "state");
        if (!partial && (state < 0 || state == optim->saved)) continue;
        char *path = path_join(memory, optim->options->out, entry->d_name);
        result = path ? dir_remove(path) : fail_oom();
    }
    closedir(folder);
    return result;
}

status checkpoint_write(struct optim *optim) {
    struct arena memory = {0};
    char *path;
    status result = write_folder(optim, &memory, "step", true, &path);
    if (result == OK) result = link_latest(optim, &memory, path);
    if (result == OK) result = tidy(optim, &memory);
    arena_release(&memory);
    optim->unwritable = result != OK;
    return result == OK ? OK : fail_prefix(result, "checkpoint of step %lld", (long long)optim->step);
}

status state_write(struct optim *optim) {
    struct arena memory = {0};
    char *path;
    status result = write_folder(optim, &memory, "state", false, &path);
    if (result == OK) result = tidy(optim, &memory);
    arena_release(&memory);
    return result == OK ? OK : fail_prefix(result, "training state of step %lld", (long long)optim->step);
}

// The newest folder with a progress file under OUT; NULL if there is none.
static status find_newest(const struct optim *optim, struct arena *memory, char **newest) {
    *newest = NULL;
    int64_t best = -1;
    DIR *folder = opendir(optim->options->out);
    if (!folder) return OK;
    for (struct dirent *entry; (entry = readdir(folder));) {
        int64_t step = numbered(entry->d_name, "step"), state = numbered(entry->d_name, "state");
        int64_t number = step > state ? step : state;
        if (number <= best) continue;
        char *path = path_join(memory, optim->options->out, entry->d_name);
        char *progress = path ? path_join(memory, path, progress_name) : NULL;
        if (progress && path_exists(progress)) {
            best = number;
            *newest = path;
        }
    }
    closedir(folder);
    return OK;
}

status checkpoint_resume(struct optim *optim) {
    struct arena memory = {0};
    char *newest;
    status result = find_newest(optim, &memory, &newest);
    char *beside = path_join(&memory, optim->options->model.dir, progress_name);
    bool continues = newest != NULL;
    if (!newest && beside && path_exists(beside))
        newest = arena_strndup(&memory, optim->options->model.dir, strlen(optim->options->model.dir));
    if (result == OK && newest) {
        result = model_load_state(optim->model, newest);
        if (result == OK) result = read_progress(optim, &memory, newest);
        if (!continues) optim->cursor = 0; // another run's order of issue
        if (result == OK) log_info("goes on from %s, step %lld", newest, (long long)optim->step);
    }
    optim->untrained = !continues && !metrics_exist(optim->options->out);
    if (result == OK) result = metrics_cut(optim->options->out, optim->step);
    optim->saved = optim->step;
    optim->whole = !continues || numbered(strrchr(newest, '/') + 1, "step") >= 0;
    optim->saved_at = clock_monotonic();
    arena_release(&memory);
    return result;
}
