// A state is written under another name and renamed when it is complete.
#include "tools/consistency/consistency_state.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "tools/tools.h"

static const char progress_name[] = "progress", result_name[] = ".training";

// The settings' hash, for printf; and for scanf. A result's line follows.
#define STATE_SETTINGS      "caravan-training 1\nsettings %016" PRIx64 "\n"
#define STATE_SETTINGS_READ "caravan-training 1 settings %" SCNx64 "%n"

// Checks that `text` begins with these settings; *rest = where the next line begins.
static status consistency_state_check(const struct buf *text, const char *path, const char *out, uint64_t settings,
                                      const char **rest) {
    uint64_t saved;
    int end = 0;
    if (!text->data || sscanf(text->data, STATE_SETTINGS_READ, &saved, &end) != 1 || text->data[end] != '\n')
        return fail(DATAERR, "%s: not a caravan-training file of version 1", path);
    *rest = text->data + end + 1;
    if (saved == settings) return OK;
    return fail(USAGE,
                "%s: the directory is of a training with other data or options; remove it, or give another --out", out);
}

// Returns the step of a state by its name in the directory; -1 for any other name.
static int64_t consistency_state_step(const char *name) {
    int64_t step;
    int end = 0;
    return sscanf(name, "state-%" SCNd64 "%n", &step, &end) == 1 && !name[end] ? step : -1;
}

status consistency_state_load(struct classifier *classifier, const char *out, uint64_t settings, int64_t *step) {
    struct arena arena = {0};
    struct buf progress = {0};
    const char *rest;
    status result = OK;
    DIR *entries = opendir(out);
    *step = 0;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const int64_t found = consistency_state_step(entry->d_name);
        if (found > *step) *step = found;
    }
    if (entries) closedir(entries);
    if (!*step) return OK;
    const char *dir = arena_printf(&arena, "%s/state-%06" PRId64, out, *step);
    const char *path = dir ? path_join(&arena, dir, progress_name) : NULL;
    TRY_TO(result, done, file_read(path, &progress));
    TRY_TO(result, done, consistency_state_check(&progress, path, out, settings, &rest));
    result = classifier_load_state(classifier, dir);
done:
    buf_release(&progress);
    arena_release(&arena);
    return result;
}

status consistency_state_save(struct classifier *classifier, const char *out, uint64_t settings, int64_t step) {
    struct arena arena = {0};
    struct buf progress = {0};
    status result = OK;
    const char *path = arena_printf(&arena, "%s/state-%06" PRId64, out, step);
    const char *temporary = arena_printf(&arena, "%s.tmp", path);
    TRY_TO(result, done, dir_remove(temporary));
    TRY_TO(result, done, dir_make(temporary));
    TRY_TO(result, done, classifier_save_state(classifier, temporary));
    buf_printf(&progress, STATE_SETTINGS, settings);
    TRY_TO(result, done, subcommand_write_file(temporary, progress_name, &progress));
    TRY_TO(result, done, dir_sync(temporary));
    if (rename(temporary, path)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    TRY_TO(result, done, dir_sync(out));
    result = consistency_state_remove(out, step);
done:
    buf_release(&progress);
    arena_release(&arena);
    return result;
}

status consistency_state_remove(const char *out, int64_t keep) {
    struct arena arena = {0};
    status result = OK;
    DIR *entries = opendir(out);
    for (struct dirent *entry; entries && result == OK && (entry = readdir(entries));) {
        const bool state = strncmp(entry->d_name, "state-", strlen("state-")) == 0;
        if (!state || (keep >= 0 && consistency_state_step(entry->d_name) == keep)) continue;
        const char *path = path_join(&arena, out, entry->d_name);
        result = dir_remove(path);
    }
    if (entries) closedir(entries);
    arena_release(&arena);
    return result;
}

status consistency_result_read(const char *out, uint64_t settings, struct buf *line, bool *found) {
    struct arena arena = {0};
    struct buf content = {0};
    const char *rest;
    status result = OK;
    const char *path = path_join(&arena, out, result_name);
    *found = path_exists(path);
    if (!*found) goto done;
    TRY_TO(result, done, file_read(path, &content));
    TRY_TO(result, done, consistency_state_check(&content, path, out, settings, &rest));
    buf_puts(line, rest);
done:
    buf_release(&content);
    arena_release(&arena);
    return result;
}

status consistency_result_write(const char *out, uint64_t settings, const struct buf *line) {
    struct buf content = {0};
    buf_printf(&content, STATE_SETTINGS "%s", settings, line->data);
    status result = subcommand_write_file(out, result_name, &content);
    buf_release(&content);
    return result;
}
