#include "shared/config/pipeline_changes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/option_value.h"
#include "shared/config/stage_kinds.h"
#include "shared/config/yaml_tree.h"

// One key with its value; of a stage also one without a name, which stands for the stage itself.
struct pipeline_setting {
    const char *stage, *name; // "": of the file; of the stage itself
    const char *value;
};

// All settings of one pipeline. The strings are the tree's or the arena's.
struct pipeline_settings {
    struct yaml_tree tree;
    struct arena arena;
    struct pipeline_setting *list;
    size_t count;
    const char *run;
};

static void pipeline_settings_release(struct pipeline_settings *settings) {
    yaml_tree_release(&settings->tree);
    arena_release(&settings->arena);
    free(settings->list);
}

// The node as it would be typed: a string, or an array of strings.
static status pipeline_settings_value(struct pipeline_settings *settings, const yaml_node_t *node, const char **value) {
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

static void pipeline_settings_add(struct pipeline_settings *settings, const char *stage, const char *name,
                                  const char *value) {
    RESIZE(&settings->list, settings->count + 1);
    settings->list[settings->count++] = (struct pipeline_setting){stage, name, value};
}

// Adds the keys of a mapping: of a stage, or of the file ("") without its stages and machines.
static status pipeline_settings_add_all(struct pipeline_settings *settings, const char *stage,
                                        const yaml_node_t *keys) {
    if (keys->type != YAML_MAPPING_NODE) return fail(DATAERR, "not a mapping, but %s", yaml_node_kind(keys));
    for (const yaml_node_pair_t *pair = keys->data.mapping.pairs.start; pair < keys->data.mapping.pairs.top; pair++) {
        const char *name = yaml_node_string(yaml_tree_node(&settings->tree, pair->key)), *value;
        if (!name) return fail(DATAERR, "a key is not a string");
        if (!*stage && (!strcmp(name, "stages") || !strcmp(name, "machines"))) continue;
        TRY(pipeline_settings_value(settings, yaml_tree_node(&settings->tree, pair->value), &value));
        if (!*stage && !strcmp(name, "run"))
            settings->run = value;
        else
            pipeline_settings_add(settings, stage, name, value);
    }
    return OK;
}

static status pipeline_settings_read(struct pipeline_settings *settings, const struct buf *text) {
    struct location at;
    TRY(yaml_tree_read(&settings->tree, text->data, text->size, &at));
    struct yaml_tree *tree = &settings->tree;
    if (!tree->root) return fail(DATAERR, "it is empty");
    TRY(pipeline_settings_add_all(settings, "", tree->root));
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
            pipeline_settings_add(settings, name, "", "");
            TRY(pipeline_settings_add_all(settings, name, yaml_tree_node(tree, named->value)));
        }
    }
    return settings->run ? OK : fail(DATAERR, "it names no run");
}

static const struct pipeline_setting *pipeline_settings_find(const struct pipeline_settings *settings,
                                                             const char *stage, const char *name) {
    for (size_t i = 0; i < settings->count; i++)
        if (!strcmp(settings->list[i].stage, stage) && !strcmp(settings->list[i].name, name)) return &settings->list[i];
    return NULL;
}

// Both NaN, or equal.
static bool pipeline_same_number(double a, double b) {
    return isnan(a) ? isnan(b) : a == b;
}

// The place of a path below its run, "" if it is elsewhere.
static const char *pipeline_below_run(const char *path, const char *run) {
    const size_t length = strlen(run);
    return !strncmp(path, run, length) && path[length] == '/' ? path + length : "";
}

static bool pipeline_same_path(const char *a, const char *run_a, const char *b, const char *run_b) {
    const char *below = pipeline_below_run(a, run_a);
    if (*below && !strcmp(below, pipeline_below_run(b, run_b))) return true;
    char *real_a = realpath(a, NULL), *real_b = realpath(b, NULL);
    const bool same = real_a && real_b && !strcmp(real_a, real_b);
    free(real_a);
    free(real_b);
    return same;
}

static bool pipeline_same_value(const struct option *option, const char *a, const char *b) {
    struct option_value x, y;
    if (!strcmp(a, b)) return true;
    if (!option || option->type == OPTION_STRING || option->type == OPTION_FILE || option->type == OPTION_PATH ||
        option->type == OPTION_NAME || option->type == OPTION_DEVICE)
        return false;
    if (option_value_parse(&x, option, a) != OK || option_value_parse(&y, option, b) != OK) return false;
    return pipeline_same_number(x.range.from, y.range.from) && pipeline_same_number(x.range.to, y.range.to) &&
           x.integer == y.integer && x.choice == y.choice && x.boolean == y.boolean && x.keep.steps == y.keep.steps &&
           x.keep.bytes == y.keep.bytes;
}

// Appends a line for a key of which one of the two may be NULL: it is left out there.
static void pipeline_change(const struct pipeline_settings *before, const struct pipeline_setting *old,
                            const struct pipeline_settings *after, const struct pipeline_setting *fresh,
                            struct buf *lines) {
    const struct pipeline_setting *any = old ? old : fresh;
    const struct stage_kind *kind = stage_kind_find(any->stage);
    const struct option *option = kind && *any->name ? option_find(&kind->options, any->name) : NULL;
    const char *unset = option && option->default_value ? option->default_value : NULL;
    const char *a = old ? old->value : unset, *b = fresh ? fresh->value : unset;
    if (!*any->name) {
        buf_printf(lines, "%s: %s\n", any->stage, old ? "left out" : "added");
        return;
    }
    if (a && b && pipeline_same_value(option, a, b)) return;
    if (a && b && *a == '/' && *b == '/' && pipeline_same_path(a, before->run, b, after->run)) return;
    buf_printf(lines, "%s%s%s %s%s -> %s%s\n", any->stage, *any->stage ? "." : "", any->name, a ? a : "not given",
               !old && a ? " (the default)" : "", b ? b : "not given", !fresh && b ? " (the default)" : "");
}

// In the order of the new pipeline, then what it leaves out.
static void pipeline_compare(const struct pipeline_settings *before, const struct pipeline_settings *after,
                             struct buf *lines) {
    for (size_t i = 0; i < after->count; i++) {
        const struct pipeline_setting *fresh = &after->list[i];
        const struct pipeline_setting *old = pipeline_settings_find(before, fresh->stage, fresh->name);
        const bool of_new_stage = *fresh->name && *fresh->stage && !pipeline_settings_find(before, fresh->stage, "");
        if ((!old || *fresh->name) && !of_new_stage) pipeline_change(before, old, after, fresh, lines);
    }
    for (size_t i = 0; i < before->count; i++) {
        const struct pipeline_setting *old = &before->list[i];
        const bool of_old_stage = *old->name && *old->stage && !pipeline_settings_find(after, old->stage, "");
        if (!pipeline_settings_find(after, old->stage, old->name) && !of_old_stage)
            pipeline_change(before, old, after, NULL, lines);
    }
}

status pipeline_changes(const struct buf *before, const struct buf *after, struct buf *lines) {
    struct pipeline_settings old = {0}, fresh = {0};
    status result = pipeline_settings_read(&old, before);
    if (result == OK) result = pipeline_settings_read(&fresh, after);
    if (result == OK) pipeline_compare(&old, &fresh, lines);
    pipeline_settings_release(&old);
    pipeline_settings_release(&fresh);
    return result;
}
