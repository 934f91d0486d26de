// The pipeline as a type: its keys, its lifetime, and how it is written: as the YAML that was run, as dot, as text.
// pipeline_parse.c reads the file.
#include "shared/config/pipeline.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

// ---- diagnostics ----

struct diagnostic *diagnostic_add(struct diagnostics *diagnostics, struct location at, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    GROW(&diagnostics->list, diagnostics->count);
    struct diagnostic *added = &diagnostics->list[diagnostics->count++];
    *added = (struct diagnostic){.at = at, .text = arena_strndup(&diagnostics->arena, text, strlen(text))};
    return added;
}

size_t diagnostics_warnings(const struct diagnostics *diagnostics) {
    size_t count = 0;
    for (size_t i = 0; i < diagnostics->count; i++) count += diagnostics->list[i].warning;
    return count;
}

status diagnostics_report(struct diagnostics *diagnostics, const char *path, struct buf *out) {
    struct diagnostic *list = diagnostics->list;
    if (diagnostics->count == 0) return OK;
    for (size_t i = 1; i < diagnostics->count; i++) { // an insertion sort: those of one location keep their order
        struct diagnostic moved = list[i];
        size_t j = i;
        for (; j > 0; j--) {
            struct location before = list[j - 1].at;
            if (before.line < moved.at.line) break;
            if (before.line == moved.at.line && before.column <= moved.at.column) break;
            list[j] = list[j - 1];
        }
        list[j] = moved;
    }
    for (size_t i = 0; i < diagnostics->count; i++) {
        struct location at = list[i].at;
        if (at.line)
            buf_printf(out, "%s:%zu:%zu: ", path, at.line, at.column);
        else
            buf_puts(out, "--set: ");
        buf_printf(out, "%s%s\n", list[i].warning ? "warning: " : "", list[i].text);
    }
    const size_t warnings = diagnostics_warnings(diagnostics), mistakes = diagnostics->count - warnings;
    status code = USAGE;
    for (size_t i = 0; i < diagnostics->count; i++)
        if (!list[i].warning && list[i].at.line) code = DATAERR;
    if (!mistakes) return OK;
    if (!warnings) return fail(code, "%s: %zu mistake%s", path, mistakes, mistakes == 1 ? "" : "s");
    return fail(code, "%s: %zu mistake%s, %zu warning%s", path, mistakes, mistakes == 1 ? "" : "s", warnings,
                warnings == 1 ? "" : "s");
}

void diagnostics_release(struct diagnostics *diagnostics) {
    free(diagnostics->list);
    arena_release(&diagnostics->arena);
    *diagnostics = (struct diagnostics){0};
}

// ---- the pipeline ----

void pipeline_free(struct pipeline **pipeline) {
    if (!*pipeline) return;
    struct arena arena = (*pipeline)->arena;
    for (size_t i = 0; i < (*pipeline)->stage_count; i++) options_release(&(*pipeline)->stages[i].options);
    free((*pipeline)->machines);
    free(*pipeline);
    arena_release(&arena);
    *pipeline = NULL;
}

struct pipeline_stage *pipeline_find_stage(const struct pipeline *pipeline, const char *name) {
    for (size_t i = 0; i < pipeline->stage_count; i++)
        if (!strcmp(pipeline->stages[i].name, name)) return &pipeline->stages[i];
    return NULL;
}

struct pipeline_stage *pipeline_optim(const struct pipeline *pipeline) {
    struct pipeline_stage *last = &pipeline->stages[pipeline->stage_count - 1];
    return last->kind == &stage_kinds[STAGE_OPTIM] ? last : NULL;
}

const char *pipeline_value(const struct pipeline_stage *stage, const char *key) {
    const struct key *found = key_list_find(&stage->options.given, key);
    return found ? found->value : NULL;
}

bool pipeline_does_without(const struct pipeline *pipeline, const struct pipeline_stage *stage, const struct key *key,
                           int machine) {
    const struct pipeline_stage *source = pipeline->stages;
    const struct option *option = stage->kind ? option_find(&stage->kind->options, key->name) : NULL;
    const char *given = pipeline_value(source, key->name);
    return option && option->type == OPTION_FILE && option->from_source && given && !strcmp(given, key->value) &&
           stage->kind != &stage_kinds[STAGE_FRAMES] && !pipeline_stage_runs_on(source, machine) &&
           !option_file_exists(option, key->value);
}

int pipeline_stage_machine(const struct pipeline_stage *stage, size_t i) {
    assert(i < pipeline_stage_machine_count(stage));
    return stage->machine_count ? stage->machines[i] : 0;
}

size_t pipeline_stage_machine_count(const struct pipeline_stage *stage) {
    return stage->machine_count ? stage->machine_count : 1;
}

bool pipeline_stage_runs_on(const struct pipeline_stage *stage, int machine) {
    for (size_t i = 0; i < pipeline_stage_machine_count(stage); i++)
        if (pipeline_stage_machine(stage, i) == machine) return true;
    return false;
}

int pipeline_stage_ranks(const struct pipeline_stage *stage) {
    const int ranks = stage->replicas * (int)pipeline_stage_machine_count(stage);
    return stage->kind && stage->kind->trains && ranks > 1 ? ranks : 0;
}

void pipeline_set(struct pipeline_stage *stage, const char *key, const char *value) {
    const struct location nowhere = {0, 0};
    const bool taken = pipeline_set_at(stage, key, value, nowhere, nowhere);
    assert(taken);
    (void)taken;
}

bool pipeline_set_at(struct pipeline_stage *stage, const char *name, const char *value, struct location name_at,
                     struct location value_at) {
    struct options *options = &stage->options;
    key_list_set(&options->given, &options->arena, name, value, name_at, value_at);
    return !stage->kind || options_set(options, name, value) == OK;
}

const void *pipeline_options(const struct pipeline_stage *stage) {
    assert(stage->kind);
    return stage->options.values;
}

// ---- YAML ----

static int pipeline_yaml_append(void *out, unsigned char *data, size_t size) {
    buf_append(out, data, size);
    return 1;
}

// Returns the number of a new node; libyaml's is 0 when memory is short.
static int pipeline_yaml_made(yaml_document_t *yaml, int node) {
    mem_checked(node ? yaml : NULL);
    return node;
}

static int pipeline_yaml_string(yaml_document_t *yaml, const char *text) {
    const yaml_char_t *value = (const yaml_char_t *)text;
    return pipeline_yaml_made(yaml,
                              yaml_document_add_scalar(yaml, NULL, value, (int)strlen(text), YAML_ANY_SCALAR_STYLE));
}

static int pipeline_yaml_mapping(yaml_document_t *yaml, yaml_mapping_style_t style) {
    return pipeline_yaml_made(yaml, yaml_document_add_mapping(yaml, NULL, style));
}

static void pipeline_yaml_pair(yaml_document_t *yaml, int mapping, const char *name, int value) {
    const int key = pipeline_yaml_string(yaml, name);
    pipeline_yaml_made(yaml, yaml_document_append_mapping_pair(yaml, mapping, key, value));
}

// Adds a pair of strings; nothing for a value that is NULL.
static void pipeline_yaml_text(yaml_document_t *yaml, int mapping, const char *name, const char *value) {
    if (value) pipeline_yaml_pair(yaml, mapping, name, pipeline_yaml_string(yaml, value));
}

// Adds a pair with a number; nothing for 0.
static void pipeline_yaml_number(yaml_document_t *yaml, int mapping, const char *name, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    if (value > 0) pipeline_yaml_text(yaml, mapping, name, text);
}

status pipeline_write(const struct pipeline *pipeline, struct buf *out) {
    yaml_emitter_t emitter;
    yaml_document_t document, *yaml = &document;
    mem_checked(yaml_emitter_initialize(&emitter) ? &emitter : NULL);
    yaml_emitter_set_output(&emitter, pipeline_yaml_append, out);
    yaml_emitter_set_width(&emitter, -1);
    yaml_emitter_set_unicode(&emitter, 1);
    pipeline_yaml_made(yaml, yaml_document_initialize(yaml, NULL, NULL, NULL, 1, 1));
    const int root = pipeline_yaml_mapping(yaml, YAML_BLOCK_MAPPING_STYLE);
    pipeline_yaml_text(yaml, root, "name", pipeline->name);
    pipeline_yaml_text(yaml, root, "run", pipeline->run);
    pipeline_yaml_number(yaml, root, "give_up_after", pipeline->give_up_after);
    const int stages = pipeline_yaml_made(yaml, yaml_document_add_sequence(yaml, NULL, YAML_BLOCK_SEQUENCE_STYLE));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const int item = pipeline_yaml_mapping(yaml, YAML_BLOCK_MAPPING_STYLE),
                  keys = pipeline_yaml_mapping(yaml, YAML_BLOCK_MAPPING_STYLE);
        pipeline_yaml_text(yaml, keys, "program", stage->program);
        pipeline_yaml_number(yaml, keys, "timeout", stage->timeout);
        if (stage->replicas > 1 && !pipeline_stage_ranks(stage)) // those have a key of their own
            pipeline_yaml_number(yaml, keys, "replicas", stage->replicas);
        if (stage->machine_count == 1) {
            pipeline_yaml_text(yaml, keys, "on", pipeline->machines[stage->machines[0]].name);
        } else if (stage->machine_count) {
            const int array =
                pipeline_yaml_made(yaml, yaml_document_add_sequence(yaml, NULL, YAML_FLOW_SEQUENCE_STYLE));
            for (size_t k = 0; k < stage->machine_count; k++) {
                const int name = pipeline_yaml_string(yaml, pipeline->machines[stage->machines[k]].name);
                pipeline_yaml_made(yaml, yaml_document_append_sequence_item(yaml, array, name));
            }
            pipeline_yaml_pair(yaml, keys, "on", array);
        }
        for (const struct key *key = stage->options.given.first; key; key = key->next)
            pipeline_yaml_text(yaml, keys, key->name, key->value);
        pipeline_yaml_pair(yaml, item, stage->name, keys);
        pipeline_yaml_made(yaml, yaml_document_append_sequence_item(yaml, stages, item));
    }
    pipeline_yaml_pair(yaml, root, "stages", stages);
    const int machines = pipeline_yaml_mapping(yaml, YAML_BLOCK_MAPPING_STYLE);
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        const int keys = pipeline_yaml_mapping(yaml, YAML_FLOW_MAPPING_STYLE);
        pipeline_yaml_text(yaml, keys, "address", machine->address);
        pipeline_yaml_text(yaml, keys, "key", machine->key);
        pipeline_yaml_number(yaml, keys, "port", machine->port);
        pipeline_yaml_text(yaml, keys, "bind", machine->bind);
        pipeline_yaml_pair(yaml, machines, machine->name, keys);
    }
    if (pipeline->machine_count) pipeline_yaml_pair(yaml, root, "machines", machines);
    // yaml_emitter_dump owns the document, also after a failure.
    const bool opened = yaml_emitter_open(&emitter);
    const bool written = opened && yaml_emitter_dump(&emitter, yaml) && yaml_emitter_close(&emitter);
    if (!opened) yaml_document_delete(yaml);
    yaml_emitter_delete(&emitter);
    return written ? OK : fail(UNAVAILABLE, "the pipeline cannot be written as YAML");
}

// ---- dot and text ----

// Whether a graph shows the key: not those of every stage, and no paths.
static bool pipeline_shows_key(const struct pipeline_stage *stage, const struct key *key) {
    if (!stage->kind) return true;
    for (const struct option *option = common_options; option->name; option++)
        if (!strcmp(option->name, key->name)) return false;
    const struct option *option = option_find(&stage->kind->options, key->name);
    return option && option->type != OPTION_FILE && option->type != OPTION_PATH;
}

// Appends "frames x2 on gpu0", "rollout x4 on each of 16 machines".
static void pipeline_stage_title(const struct pipeline *pipeline, const struct pipeline_stage *stage, struct buf *out) {
    buf_puts(out, stage->name);
    if (stage->replicas > 1) buf_printf(out, " x%d", stage->replicas);
    if (stage->machine_count > 1) {
        buf_printf(out, " on each of %zu machines", stage->machine_count);
        return;
    }
    if (stage->machine_count) buf_printf(out, " on %s", pipeline->machines[stage->machines[0]].name);
}

static const char pipeline_dot_special[] = "\"\\"; // in a quoted string of dot

static void pipeline_dot_edge(const char *from, const char *to, const char *attributes, struct buf *out) {
    buf_puts(out, "    \"");
    buf_escape(out, from, pipeline_dot_special);
    buf_puts(out, "\" -> \"");
    buf_escape(out, to, pipeline_dot_special);
    buf_printf(out, "\"%s;\n", attributes);
}

void pipeline_dot(const struct pipeline *pipeline, struct buf *out) {
    const struct pipeline_stage *first = pipeline->stages, *end = first + pipeline->stage_count, *last = end - 1,
                                *optim = pipeline_optim(pipeline);
    struct buf title = {0};
    assert(pipeline->stage_count > 0);
    buf_puts(out, "digraph \"");
    buf_escape(out, pipeline->name, pipeline_dot_special);
    buf_puts(out, "\" {\n    rankdir=LR;\n    node [shape=box, fontname=\"sans-serif\"];\n");
    for (const struct pipeline_stage *stage = first; stage < end; stage++) {
        buf_clear(&title);
        pipeline_stage_title(pipeline, stage, &title);
        buf_puts(out, "    \"");
        buf_escape(out, stage->name, pipeline_dot_special);
        buf_puts(out, "\" [label=\"");
        buf_escape(out, title.data, pipeline_dot_special);
        if (stage->program) buf_puts(out, "\\n");
        if (stage->program) buf_escape(out, stage->program, pipeline_dot_special);
        for (const struct key *key = stage->options.given.first; key; key = key->next) {
            if (!pipeline_shows_key(stage, key)) continue;
            buf_printf(out, "\\n%s: ", key->name);
            buf_escape(out, key->value, pipeline_dot_special);
        }
        buf_puts(out, stage->program ? "\", style=dashed];\n" : "\"];\n");
    }
    for (const struct pipeline_stage *stage = first; stage < end; stage++) {
        if (stage > first) pipeline_dot_edge(stage[-1].name, stage->name, "", out);
        if (optim && stage->kind && stage->kind->follows_weights)
            pipeline_dot_edge(optim->name, stage->name, " [style=dashed, label=\"weights\"]", out);
    }
    const char *settled = optim ? " [style=dotted, label=\"trained\"]" : " [style=dotted, label=\"done\"]";
    pipeline_dot_edge(last->name, first->name, settled, out);
    buf_puts(out, "}\n");
    buf_release(&title);
}

void pipeline_text(const struct pipeline *pipeline, struct buf *out) {
    const bool optim = pipeline_optim(pipeline) != NULL;
    size_t width = 0;
    struct buf title = {0};
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        buf_clear(&title);
        pipeline_stage_title(pipeline, &pipeline->stages[i], &title);
        if (title.size > width) width = title.size;
    }
    buf_printf(out, "%s, in %s\n\n", pipeline->name, pipeline->run);
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        buf_clear(&title);
        pipeline_stage_title(pipeline, stage, &title);
        buf_printf(out, "  %-*s ", (int)width, title.data);
        if (stage->program) buf_printf(out, " program: %s", stage->program);
        for (const struct key *key = stage->options.given.first; key; key = key->next)
            if (pipeline_shows_key(stage, key)) buf_printf(out, " %s: %s", key->name, key->value);
        if (optim && stage->kind && stage->kind->follows_weights) buf_puts(out, "  <- weights of optim");
        buf_puts(out, i + 1 < pipeline->stage_count ? "\n    |\n    v\n" : "\n");
    }
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        buf_printf(out, "%s%s is %s\n", i ? "" : "\n", machine->name, machine->address);
    }
    buf_release(&title);
}
