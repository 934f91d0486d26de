// A pipeline written out: as the YAML that was run, as dot, as text.
#include "shared/config/pipeline.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

static int write_append(void *out, unsigned char *data, size_t size) {
    return buf_append(out, data, size) == OK;
}

// Each of these returns the index of a node, 0 when memory is short; a node 0 given to another makes that one 0 too.
static int write_string(yaml_document_t *yaml, const char *text) {
    return yaml_document_add_scalar(yaml, NULL, (const yaml_char_t *)text, (int)strlen(text), YAML_ANY_SCALAR_STYLE);
}

static int write_int(yaml_document_t *yaml, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    return write_string(yaml, text);
}

static int write_pair(yaml_document_t *yaml, int mapping, const char *name, int value) {
    int key = write_string(yaml, name);
    return mapping && key && value && yaml_document_append_mapping_pair(yaml, mapping, key, value) ? mapping : 0;
}

static int write_pipeline(yaml_document_t *yaml, const struct pipeline *pipeline) {
    int root = yaml_document_add_mapping(yaml, NULL, YAML_BLOCK_MAPPING_STYLE);
    root = write_pair(yaml, root, "name", write_string(yaml, pipeline->name));
    root = write_pair(yaml, root, "run", write_string(yaml, pipeline->run));
    int stages = yaml_document_add_sequence(yaml, NULL, YAML_BLOCK_SEQUENCE_STYLE);
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        int keys = yaml_document_add_mapping(yaml, NULL, YAML_BLOCK_MAPPING_STYLE);
        if (stage->program) keys = write_pair(yaml, keys, "program", write_string(yaml, stage->program));
        if (stage->replicas > 1) keys = write_pair(yaml, keys, "replicas", write_int(yaml, stage->replicas));
        if (stage->on >= 0) keys = write_pair(yaml, keys, "on", write_string(yaml, pipeline->machines[stage->on].name));
        for (const struct pipeline_key *key = stage->keys.first; key; key = key->next)
            keys = write_pair(yaml, keys, key->name, write_string(yaml, key->value));
        int named =
            write_pair(yaml, yaml_document_add_mapping(yaml, NULL, YAML_BLOCK_MAPPING_STYLE), stage->name, keys);
        if (!stages || !named || !yaml_document_append_sequence_item(yaml, stages, named)) stages = 0;
    }
    root = write_pair(yaml, root, "stages", stages);
    if (!pipeline->machine_count) return root;
    int machines = yaml_document_add_mapping(yaml, NULL, YAML_BLOCK_MAPPING_STYLE);
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        int keys = yaml_document_add_mapping(yaml, NULL, YAML_FLOW_MAPPING_STYLE);
        keys = write_pair(yaml, keys, "address", write_string(yaml, machine->address));
        if (machine->key) keys = write_pair(yaml, keys, "key", write_string(yaml, machine->key));
        if (machine->port) keys = write_pair(yaml, keys, "port", write_int(yaml, machine->port));
        machines = write_pair(yaml, machines, machine->name, keys);
    }
    return write_pair(yaml, root, "machines", machines);
}

status pipeline_write(const struct pipeline *pipeline, struct buf *out) {
    yaml_emitter_t emitter;
    yaml_document_t yaml;
    bool done = false;
    if (!yaml_emitter_initialize(&emitter)) return fail_oom();
    yaml_emitter_set_output(&emitter, write_append, out);
    yaml_emitter_set_width(&emitter, -1);
    yaml_emitter_set_unicode(&emitter, 1);
    if (yaml_document_initialize(&yaml, NULL, NULL, NULL, 1, 1)) {
        if (write_pipeline(&yaml, pipeline) && yaml_emitter_open(&emitter)) {
            done = yaml_emitter_dump(&emitter, &yaml); // the emitter owns the document from here on
            done = done && yaml_emitter_close(&emitter);
        } else {
            yaml_document_delete(&yaml);
        }
    }
    yaml_emitter_delete(&emitter);
    return done ? OK : fail(UNAVAILABLE, "the pipeline cannot be written as YAML");
}

// Whether a graph shows the key: not those of every stage, and no paths.
static bool graph_shows(const struct pipeline_stage *stage, const struct pipeline_key *key) {
    if (!stage->kind) return true;
    for (const struct option *option = common_options; option->name; option++)
        if (!strcmp(option->name, key->name)) return false;
    const struct option *option = option_find(&stage->kind->options, key->name);
    return option && option->type != OPTION_FILE && option->type != OPTION_PATH;
}

// Appends "frames x2 on gpu0".
static status graph_title(const struct pipeline *pipeline, const struct pipeline_stage *stage, struct buf *out) {
    TRY(buf_puts(out, stage->name));
    if (stage->replicas > 1) TRY(buf_printf(out, " x%d", stage->replicas));
    if (stage->on >= 0) TRY(buf_printf(out, " on %s", pipeline->machines[stage->on].name));
    return OK;
}

// Appends the inside of a quoted string of dot.
static status dot_escape(const char *text, struct buf *out) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') TRY(buf_puts(out, "\\"));
        TRY(buf_append(out, text, 1));
    }
    return OK;
}

static status dot_edge(const char *from, const char *to, const char *attributes, struct buf *out) {
    TRY(buf_puts(out, "    \""));
    TRY(dot_escape(from, out));
    TRY(buf_puts(out, "\" -> \""));
    TRY(dot_escape(to, out));
    return buf_printf(out, "\"%s;\n", attributes);
}

status pipeline_dot(const struct pipeline *pipeline, struct buf *out) {
    const struct pipeline_stage *first = pipeline->stages, *end = first + pipeline->stage_count, *last = end - 1;
    struct buf title = {0};
    status result;
    assert(pipeline->stage_count > 0);
    TRY(buf_puts(out, "digraph \""));
    TRY(dot_escape(pipeline->name, out));
    TRY(buf_puts(out, "\" {\n    rankdir=LR;\n    node [shape=box, fontname=\"sans-serif\"];\n"));
    for (const struct pipeline_stage *stage = first; stage < end; stage++) {
        buf_clear(&title);
        TRY_TO(result, done, graph_title(pipeline, stage, &title));
        TRY_TO(result, done, buf_puts(out, "    \""));
        TRY_TO(result, done, dot_escape(stage->name, out));
        TRY_TO(result, done, buf_puts(out, "\" [label=\""));
        TRY_TO(result, done, dot_escape(title.data, out));
        if (stage->program) TRY_TO(result, done, buf_puts(out, "\\n"));
        if (stage->program) TRY_TO(result, done, dot_escape(stage->program, out));
        for (const struct pipeline_key *key = stage->keys.first; key; key = key->next) {
            if (!graph_shows(stage, key)) continue;
            TRY_TO(result, done, buf_printf(out, "\\n%s: ", key->name));
            TRY_TO(result, done, dot_escape(key->value, out));
        }
        TRY_TO(result, done, buf_puts(out, stage->program ? "\", style=dashed];\n" : "\"];\n"));
    }
    for (const struct pipeline_stage *stage = first; stage < end; stage++) {
        if (stage->from >= 0) TRY_TO(result, done, dot_edge(first[stage->from].name, stage->name, "", out));
        if (stage->kind && stage->kind->follows_weights)
            TRY_TO(result, done, dot_edge(last->name, stage->name, " [style=dashed, label=\"weights\"]", out));
    }
    TRY_TO(result, done, dot_edge(last->name, first->name, " [style=dotted, label=\"trained\"]", out));
    result = buf_puts(out, "}\n");
done:
    buf_release(&title);
    return result;
}

status pipeline_text(const struct pipeline *pipeline, struct buf *out) {
    size_t width = 0;
    struct buf title = {0};
    status result;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        buf_clear(&title);
        TRY_TO(result, done, graph_title(pipeline, &pipeline->stages[i], &title));
        if (title.size > width) width = title.size;
    }
    TRY_TO(result, done, buf_printf(out, "%s, in %s\n\n", pipeline->name, pipeline->run));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        buf_clear(&title);
        TRY_TO(result, done, graph_title(pipeline, stage, &title));
        TRY_TO(result, done, buf_printf(out, "  %-*s ", (int)width, title.data));
        if (stage->program) TRY_TO(result, done, buf_printf(out, " program: %s", stage->program));
        for (const struct pipeline_key *key = stage->keys.first; key; key = key->next)
            if (graph_shows(stage, key)) TRY_TO(result, done, buf_printf(out, " %s: %s", key->name, key->value));
        if (stage->kind && stage->kind->follows_weights) TRY_TO(result, done, buf_puts(out, "  <- weights of optim"));
        TRY_TO(result, done, buf_puts(out, i + 1 < pipeline->stage_count ? "\n    |\n    v\n" : "\n"));
    }
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        TRY_TO(result, done, buf_printf(out, "%s%s is %s\n", i ? "" : "\n", machine->name, machine->address));
    }
done:
    buf_release(&title);
    return result;
}
