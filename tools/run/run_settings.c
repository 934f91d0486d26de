// RUN/pipeline.yaml: written when a run starts or goes on, with a line in the log for each setting that has changed.
#include "tools/run/run.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"

#ifndef CARAVAN_COMMIT
#define CARAVAN_COMMIT "unknown"
#endif

// ---- what differs between two pipelines as pipeline_write wrote them ----

// The value as it would be typed: a string, or an array of strings.
static const char *run_setting_text(struct arena *arena, const struct key *key) {
    const char *text = key->value;
    for (const struct key *item = key->items; item; item = item->next)
        text =
            arena_printf(arena, "%s%s%s", item == key->items ? "[" : text, item == key->items ? "" : ", ", item->value);
    return key->items ? arena_printf(arena, "%s]", text) : text;
}

// The place of a path below the pipeline's run, "" if it is elsewhere.
static const char *run_setting_below_run(const char *path, const struct pipeline *pipeline) {
    const struct key *run = key_list_find(&pipeline->keys, "run");
    const size_t length = run ? strlen(run->value) : 0;
    return run && !strncmp(path, run->value, length) && path[length] == '/' ? path + length : "";
}

// Appends a line for a key of a stage, or of the file (""), if its value differs. One of the two keys may be NULL: it
// is left out there.
static void run_setting_compare(const char *stage, const struct pipeline *before, const struct key *old,
                                const struct pipeline *after, const struct key *fresh, struct buf *lines) {
    const char *name = old ? old->name : fresh->name;
    const struct stage_kind *kind = stage_kind_find(stage);
    const struct option *option = kind ? option_find(&kind->options, name) : NULL;
    const char *unset = option ? option->default_value : NULL;
    struct arena arena = {0};
    const char *a = old ? run_setting_text(&arena, old) : unset, *b = fresh ? run_setting_text(&arena, fresh) : unset;
    bool same = a && b && (option ? option_same_value(option, a, b) : !strcmp(a, b));
    if (a && b && *a == '/' && *b == '/') { // also one file, or at the same place below the two runs
        const char *below = run_setting_below_run(a, before);
        char *real_a = realpath(a, NULL), *real_b = realpath(b, NULL);
        same |= *below && !strcmp(below, run_setting_below_run(b, after));
        same |= real_a && real_b && !strcmp(real_a, real_b);
        free(real_a);
        free(real_b);
    }
    if (!same && (*stage || strcmp(name, "run") != 0))
        buf_printf(lines, "%s%s%s %s%s -> %s%s\n", stage, *stage ? "." : "", name, a ? a : "not given",
                   !old && a ? " (the default)" : "", b ? b : "not given", !fresh && b ? " (the default)" : "");
    arena_release(&arena);
}

// Appends a line for each key of a stage or of the file whose value differs ("optim.lr 1e-4 -> 1e-3", with the default
// of a key that one of them leaves out), and for each stage that only one of them has; with `left_out` for what the new
// pipeline leaves out, otherwise for what it has. Two spellings of one number or one path are the same value, and so
// are two paths at the same place below the two runs. The machines, which may be others at each start, are not
// compared.
static void run_settings_compare(const struct pipeline *before, const struct pipeline *after, bool left_out,
                                 struct buf *lines) {
    const struct pipeline *mine = left_out ? before : after, *other = left_out ? after : before;
    for (size_t i = 0; i <= mine->stage_count; i++) { // the file itself comes first
        const struct pipeline_stage *stage = i ? &mine->stages[i - 1] : NULL,
                                    *there = i ? pipeline_find_stage(other, stage->name) : NULL;
        if (stage && !there) {
            buf_printf(lines, "%s: %s\n", stage->name, left_out ? "left out" : "added");
            continue;
        }
        const char *name = stage ? stage->name : "";
        const struct key_list *keys = there ? &there->options.given : &other->keys;
        for (const struct key *key = stage ? stage->options.given.first : mine->keys.first; key; key = key->next) {
            const struct key *match = key_list_find(keys, key->name);
            if (!left_out)
                run_setting_compare(name, before, match, after, key, lines);
            else if (!match)
                run_setting_compare(name, before, key, after, NULL, lines);
        }
    }
}

// ---- the file ----

// Returns the highest N of the entries BEFORE-N-BEHIND of a directory, 0 if there is none.
static long long run_settings_highest(const char *path, const char *before, const char *behind) {
    long long highest = 0;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *digits = entry->d_name + strlen(before);
        char *end;
        if (strncmp(entry->d_name, before, strlen(before)) != 0) continue;
        const long long number = strtoll(digits, &end, 10);
        if (end > digits && !strcmp(end, behind) && number > highest) highest = number;
    }
    if (dir) closedir(dir);
    return highest;
}

// Returns the text behind the comment that it begins with.
static const char *run_settings_body(const struct buf *text) {
    const char *at = text->data ? text->data : "";
    while (*at == '#') at += strcspn(at, "\n") + (strchr(at, '\n') != NULL);
    return at;
}

status run_settings_write(const struct pipeline *pipeline) {
    struct arena arena = {0};
    struct buf before = {0}, text = {0}, lines = {0};
    struct pipeline *old = NULL, *fresh = NULL;
    const time_t now = time(NULL);
    struct tm utc;
    char when[32] = "", since[64] = "since the last start";
    status result = OK;
    char *link = path_join(&arena, pipeline->run, "pipeline.yaml");
    char *new_link = path_join(&arena, pipeline->run, "pipeline.yaml.tmp");
    if (!access(link, F_OK)) TRY_TO(result, done, file_read(link, &before));
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    buf_printf(&text, "# caravan " CARAVAN_VERSION ", commit " CARAVAN_COMMIT ", started %s\n", when);
    TRY_TO(result, done, pipeline_write(pipeline, &text));
    if (before.size && !strcmp(run_settings_body(&before), run_settings_body(&text))) goto done;
    char *name =
        arena_printf(&arena, "pipeline-%lld.yaml", run_settings_highest(pipeline->run, "pipeline-", ".yaml") + 1);
    char *path = path_join(&arena, pipeline->run, name);
    TRY_TO(result, done, file_write_atomic(path, text.data, text.size));
    unlink(new_link);
    if (symlink(name, new_link) || rename(new_link, link))
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: cannot write: %s", link, strerror(errno)));
    if (!before.size) goto done;
    // What differs from the settings of the last start is logged, since the step of optim's newest checkpoint or state.
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    const char *out = optim ? pipeline_value(optim, "out") : NULL;
    const long long checkpoint = out ? run_settings_highest(out, "step-", "") : 0,
                    state = out ? run_settings_highest(out, "state-", "") : 0;
    if (checkpoint || state) snprintf(since, sizeof since, "since step %lld", checkpoint > state ? checkpoint : state);
    if (pipeline_parse_unchecked(&old, before.data, before.size) == OK &&
        pipeline_parse_unchecked(&fresh, text.data, text.size) == OK) {
        run_settings_compare(old, fresh, false, &lines);
        run_settings_compare(old, fresh, true, &lines);
    } else {
        log_info("%s: %s: it is not known what has changed since the last start", link, fail_text());
    }
    for (char *line = lines.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        log_info("%s: %s", since, line);
    }
done:
    pipeline_free(&old);
    pipeline_free(&fresh);
    buf_release(&lines);
    buf_release(&before);
    buf_release(&text);
    arena_release(&arena);
    return result;
}
