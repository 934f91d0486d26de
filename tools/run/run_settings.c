#include "tools/run/run_settings.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/pipeline_changes.h"

#ifndef CARAVAN_COMMIT
#define CARAVAN_COMMIT "unknown"
#endif

// Returns the highest N of the files RUN/pipeline-N.yaml, 0 if there is none.
static int run_settings_last(const char *run) {
    int last = 0, number, end;
    DIR *dir = opendir(run);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        end = 0;
        if (sscanf(entry->d_name, "pipeline-%d.yaml%n", &number, &end) == 1 && end && !entry->d_name[end] &&
            number > last)
            last = number;
    }
    if (dir) closedir(dir);
    return last;
}

// Returns the step of the newest checkpoint or state in optim's directory, 0 if there is none.
static long long run_settings_step(const char *out) {
    long long step = 0, number;
    DIR *dir = opendir(out);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int end = 0;
        if (sscanf(entry->d_name, "step-%lld%n", &number, &end) != 1 &&
            sscanf(entry->d_name, "state-%lld%n", &number, &end) != 1)
            continue;
        if (!entry->d_name[end] && number > step) step = number;
    }
    if (dir) closedir(dir);
    return step;
}

// Logs what differs from the settings of the last start.
static void run_settings_say(const struct pipeline *pipeline, const struct buf *before, const struct buf *after) {
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    const char *out = optim ? pipeline_value(optim, "out") : NULL;
    const long long step = out ? run_settings_step(out) : 0;
    char since[64] = "since the last start";
    struct buf lines = {0};
    if (step) snprintf(since, sizeof since, "since step %lld", step);
    if (pipeline_changes(before, after, &lines) != OK)
        log_info("%s/pipeline.yaml: %s: it is not known what has changed since the last start", pipeline->run,
                 fail_text());
    for (char *line = lines.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        log_info("%s: %s", since, line);
    }
    buf_release(&lines);
}

// Appends the comment that a file begins with.
static void run_settings_head(struct buf *out) {
    const time_t now = time(NULL);
    struct tm utc;
    char when[32] = "";
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    buf_printf(out, "# caravan " CARAVAN_VERSION ", commit " CARAVAN_COMMIT ", started %s\n", when);
}

// Returns the text behind the comment.
static const char *run_settings_body(const struct buf *text) {
    const char *at = text->data ? text->data : "";
    while (*at == '#') at += strcspn(at, "\n") + (strchr(at, '\n') != NULL);
    return at;
}

status run_settings_write(const struct pipeline *pipeline) {
    struct arena arena = {0};
    struct buf before = {0}, text = {0};
    status result = OK;
    char *link = path_join(&arena, pipeline->run, "pipeline.yaml");
    char *new_link = path_join(&arena, pipeline->run, "pipeline.yaml.tmp");
    if (path_exists(link)) TRY_TO(result, done, file_read(link, &before));
    run_settings_head(&text);
    TRY_TO(result, done, pipeline_write(pipeline, &text));
    const bool same = before.size && !strcmp(run_settings_body(&before), run_settings_body(&text));
    if (same) goto done;
    char *name = arena_printf(&arena, "pipeline-%d.yaml", run_settings_last(pipeline->run) + 1);
    char *path = path_join(&arena, pipeline->run, name);
    TRY_TO(result, done, file_write_atomic(path, text.data, text.size));
    unlink(new_link);
    if (symlink(name, new_link) || rename(new_link, link))
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: cannot write: %s", link, strerror(errno)));
    if (before.size) run_settings_say(pipeline, &before, &text);
done:
    buf_release(&before);
    buf_release(&text);
    arena_release(&arena);
    return result;
}
