// RUN/pipeline.yaml: written when a run starts or goes on, with a line in the log for each setting that has changed.
#include "tools/run/run_settings.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/pipeline_parse.h"

#ifndef CARAVAN_COMMIT
#define CARAVAN_COMMIT "unknown"
#endif

// ---- what differs between two pipelines as pipeline_write wrote them ----

// One key with its value; of a stage also one without a name, which stands for the stage itself.
struct run_setting {
    const char *stage, *name; // "": of the file; of the stage itself
    const char *value;
};

// All settings of one pipeline. The strings are the tree's or the arena's.
struct run_settings {
    struct yaml_tree tree;
    struct arena arena;
    struct run_setting *list;
    size_t count;
    const char *run;
};

static void run_settings_release(struct run_settings *settings) {
    yaml_tree_release(&settings->tree);
    arena_release(&settings->arena);
    free(settings->list);
}

// The node as it would be typed: a string, or an array of strings.
static status run_settings_value(struct run_settings *settings, const yaml_node_t *node, const char **value) {
    struct buf text = {0};
    *value = node->type == YAML_SCALAR_NODE ? yaml_node_string(node) : NULL;
    if (node->type == YAML_SEQUENCE_NODE) {
        buf_puts(&text, "[");
        for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
             item++) {
            const char *string = yaml_node_string(yaml_tree_node(&settings->tree, *item));
            buf_printf(&text, "%s%s", item == node->data.sequence.items.start ? "" : ", ", string ? string : "");
        }
        buf_puts(&text, "]");
        *value = arena_strndup(&settings->arena, text.data, text.size);
    }
    buf_release(&text);
    return *value ? OK : fail(DATAERR, "a value is %s", yaml_node_kind(node));
}

static void run_settings_add(struct run_settings *settings, const char *stage, const char *name, const char *value) {
    RESIZE(&settings->list, settings->count + 1);
    settings->list[settings->count++] = (struct run_setting){stage, name, value};
}

// Adds the keys of a mapping: of a stage, or of the file ("") without its stages and machines.
static status run_settings_add_all(struct run_settings *settings, const char *stage, const yaml_node_t *keys) {
    if (keys->type != YAML_MAPPING_NODE) return fail(DATAERR, "not a mapping, but %s", yaml_node_kind(keys));
    for (const yaml_node_pair_t *pair = keys->data.mapping.pairs.start; pair < keys->data.mapping.pairs.top; pair++) {
        const char *name = yaml_node_string(yaml_tree_node(&settings->tree, pair->key)), *value;
        if (!name) return fail(DATAERR, "a key is not a string");
        if (!*stage && (!strcmp(name, "stages") || !strcmp(name, "machines"))) continue;
        TRY(run_settings_value(settings, yaml_tree_node(&settings->tree, pair->value), &value));
        if (!*stage && !strcmp(name, "run"))
            settings->run = value;
        else
            run_settings_add(settings, stage, name, value);
    }
    return OK;
}

static status run_settings_read(struct run_settings *settings, const struct buf *text) {
    struct location at;
    TRY(yaml_tree_read(&settings->tree, text->data, text->size, &at));
    struct yaml_tree *tree = &settings->tree;
    if (!tree->root) return fail(DATAERR, "it is empty");
    TRY(run_settings_add_all(settings, "", tree->root));
    for (const yaml_node_pair_t *pair = tree->root->data.mapping.pairs.start; pair < tree->root->data.mapping.pairs.top;
         pair++) {
        const yaml_node_t *stages = yaml_tree_node(tree, pair->value);
        if (strcmp(yaml_node_string(yaml_tree_node(tree, pair->key)), "stages") != 0) continue;
        if (stages->type != YAML_SEQUENCE_NODE) return fail(DATAERR, "stages is %s", yaml_node_kind(stages));
        for (const yaml_node_item_t *item = stages->data.sequence.items.start; item < stages->data.sequence.items.top;
             item++) {
            const yaml_node_t *stage = yaml_tree_node(tree, *item);
            const bool one =
                stage->type == YAML_MAPPING_NODE && stage->data.mapping.pairs.top > stage->data.mapping.pairs.start;
            const yaml_node_pair_t *named = one ? stage->data.mapping.pairs.start : NULL;
            const char *name = named ? yaml_node_string(yaml_tree_node(tree, named->key)) : NULL;
            if (!name) return fail(DATAERR, "a stage has no name");
            run_settings_add(settings, name, "", "");
            TRY(run_settings_add_all(settings, name, yaml_tree_node(tree, named->value)));
        }
    }
    return settings->run ? OK : fail(DATAERR, "it names no run");
}

static const struct run_setting *run_settings_find(const struct run_settings *settings, const char *stage,
                                                   const char *name) {
    for (size_t i = 0; i < settings->count; i++)
        if (!strcmp(settings->list[i].stage, stage) && !strcmp(settings->list[i].name, name)) return &settings->list[i];
    return NULL;
}

// The place of a path below its run, "" if it is elsewhere.
static const char *run_setting_below_run(const char *path, const char *run) {
    const size_t length = strlen(run);
    return !strncmp(path, run, length) && path[length] == '/' ? path + length : "";
}

static bool run_setting_same_path(const char *a, const char *run_a, const char *b, const char *run_b) {
    const char *below = run_setting_below_run(a, run_a);
    if (*below && !strcmp(below, run_setting_below_run(b, run_b))) return true;
    char *real_a = realpath(a, NULL), *real_b = realpath(b, NULL);
    const bool same = real_a && real_b && !strcmp(real_a, real_b);
    free(real_a);
    free(real_b);
    return same;
}

// Appends a line for a key of which one of the two may be NULL: it is left out there.
static void run_setting_change(const struct run_settings *before, const struct run_setting *old,
                               const struct run_settings *after, const struct run_setting *fresh, struct buf *lines) {
    const struct run_setting *any = old ? old : fresh;
    const struct stage_kind *kind = stage_kind_find(any->stage);
    const struct option *option = kind && *any->name ? option_find(&kind->options, any->name) : NULL;
    const char *unset = option && option->default_value ? option->default_value : NULL;
    const char *a = old ? old->value : unset, *b = fresh ? fresh->value : unset;
    if (!*any->name) {
        buf_printf(lines, "%s: %s\n", any->stage, old ? "left out" : "added");
        return;
    }
    if (a && b && (option ? option_same_value(option, a, b) : !strcmp(a, b))) return;
    if (a && b && *a == '/' && *b == '/' && run_setting_same_path(a, before->run, b, after->run)) return;
    buf_printf(lines, "%s%s%s %s%s -> %s%s\n", any->stage, *any->stage ? "." : "", any->name, a ? a : "not given",
               !old && a ? " (the default)" : "", b ? b : "not given", !fresh && b ? " (the default)" : "");
}

// Appends a line for each key of a stage or of the file whose value differs ("optim.lr 1e-4 -> 1e-3", with the default
// of a key that one of them leaves out), and for each stage that only one of them has, in the order of the new
// pipeline, then what it leaves out. Two spellings of one number or one path are the same value, and so are two paths
// at the same place below the two runs. The machines, which may be others at each start, are not compared.
static void run_settings_compare(const struct run_settings *before, const struct run_settings *after,
                                 struct buf *lines) {
    for (size_t i = 0; i < after->count; i++) {
        const struct run_setting *fresh = &after->list[i];
        const struct run_setting *old = run_settings_find(before, fresh->stage, fresh->name);
        const bool of_new_stage = *fresh->name && *fresh->stage && !run_settings_find(before, fresh->stage, "");
        if ((!old || *fresh->name) && !of_new_stage) run_setting_change(before, old, after, fresh, lines);
    }
    for (size_t i = 0; i < before->count; i++) {
        const struct run_setting *old = &before->list[i];
        const bool of_old_stage = *old->name && *old->stage && !run_settings_find(after, old->stage, "");
        if (!run_settings_find(after, old->stage, old->name) && !of_old_stage)
            run_setting_change(before, old, after, NULL, lines);
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

// Logs what differs from the settings of the last start, since the step of optim's newest checkpoint or state.
static void run_settings_say(const struct pipeline *pipeline, const struct buf *before, const struct buf *after) {
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    const char *out = optim ? pipeline_value(optim, "out") : NULL;
    const long long checkpoint = out ? run_settings_highest(out, "step-", "") : 0,
                    state = out ? run_settings_highest(out, "state-", "") : 0;
    char since[64] = "since the last start";
    struct buf lines = {0};
    struct run_settings old = {0}, fresh = {0};
    if (checkpoint || state) snprintf(since, sizeof since, "since step %lld", checkpoint > state ? checkpoint : state);
    if (run_settings_read(&old, before) == OK && run_settings_read(&fresh, after) == OK)
        run_settings_compare(&old, &fresh, &lines);
    else
        log_info("%s/pipeline.yaml: %s: it is not known what has changed since the last start", pipeline->run,
                 fail_text());
    run_settings_release(&old);
    run_settings_release(&fresh);
    for (char *line = lines.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        log_info("%s: %s", since, line);
    }
    buf_release(&lines);
}

// Returns the text behind the comment that it begins with.
static const char *run_settings_body(const struct buf *text) {
    const char *at = text->data ? text->data : "";
    while (*at == '#') at += strcspn(at, "\n") + (strchr(at, '\n') != NULL);
    return at;
}

status run_settings_write(const struct pipeline *pipeline) {
    struct arena arena = {0};
    struct buf before = {0}, text = {0};
    const time_t now = time(NULL);
    struct tm utc;
    char when[32] = "";
    status result = OK;
    char *link = path_join(&arena, pipeline->run, "pipeline.yaml");
    char *new_link = path_join(&arena, pipeline->run, "pipeline.yaml.tmp");
    if (path_exists(link)) TRY_TO(result, done, file_read(link, &before));
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    buf_printf(&text, "# caravan " CARAVAN_VERSION ", commit " CARAVAN_COMMIT ", started %s\n", when);
    TRY_TO(result, done, pipeline_write(pipeline, &text));
    const bool same = before.size && !strcmp(run_settings_body(&before), run_settings_body(&text));
    if (same) goto done;
    char *name =
        arena_printf(&arena, "pipeline-%lld.yaml", run_settings_highest(pipeline->run, "pipeline-", ".yaml") + 1);
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
