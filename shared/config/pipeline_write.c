// A pipeline written out: as the YAML that was run, as dot, as text.
#include "shared/config/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

static int append(void *out, unsigned char *data, size_t size) {
    return buf_append(out, data, size) == OK;
}

// Each answers the index of a new node, 0 when memory is short; a node 0 given to another makes that one 0 too.
static int add_text(yaml_document_t *yaml, const char *text) {
    return yaml_document_add_scalar(yaml, NULL, (const yaml_char_t *)text, (int)strlen(text), YAML_ANY_SCALAR_STYLE);
}

static int add_pair(yaml_document_t *yaml, int map, const char *name, int value) {
    int key = add_text(yaml, name);
    return map && key && value && yaml_document_append_mapping_pair(yaml, map, key, value) ? map : 0;
}

static int add_map(yaml_document_t *yaml, yaml_mapping_style_t style) {
    return yaml_document_add_mapping(yaml, NULL, style);
}

static int add_stage(yaml_document_t *yaml, const struct pipeline *pipeline, const struct pipeline_stage *stage) {
    char replicas[16];
    int keys = add_map(yaml, YAML_BLOCK_MAPPING_STYLE);
    snprintf(replicas, sizeof replicas, "%d", stage->replicas);
    if (stage->program) keys = add_pair(yaml, keys, "program", add_text(yaml, stage->program));
    if (stage->replicas > 1) keys = add_pair(yaml, keys, "replicas", add_text(yaml, replicas));
    if (stage->on >= 0) keys = add_pair(yaml, keys, "on", add_text(yaml, pipeline->machines[stage->on].name));
    for (const struct pipeline_key *key = stage->keys.first; key; key = key->next)
        keys = add_pair(yaml, keys, key->name, add_text(yaml, key->value));
    return add_pair(yaml, add_map(yaml, YAML_BLOCK_MAPPING_STYLE), stage->name, keys);
}

static int add_machine(yaml_document_t *yaml, const struct pipeline_machine *machine) {
    char port[16];
    int keys = add_map(yaml, YAML_FLOW_MAPPING_STYLE);
    snprintf(port, sizeof port, "%d", machine->port);
    keys = add_pair(yaml, keys, "address", add_text(yaml, machine->address));
    if (machine->key) keys = add_pair(yaml, keys, "key", add_text(yaml, machine->key));
    if (machine->port) keys = add_pair(yaml, keys, "port", add_text(yaml, port));
    return keys;
}

static int add_pipeline(yaml_document_t *yaml, const struct pipeline *pipeline) {
    int root = add_map(yaml, YAML_BLOCK_MAPPING_STYLE);
    root = add_pair(yaml, root, "name", add_text(yaml, pipeline->name));
    root = add_pair(yaml, root, "run", add_text(yaml, pipeline->run));
    int stages = yaml_document_add_sequence(yaml, NULL, YAML_BLOCK_SEQUENCE_STYLE);
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        int stage = add_stage(yaml, pipeline, &pipeline->stages[i]);
        if (!stages || !stage || !yaml_document_append_sequence_item(yaml, stages, stage)) stages = 0;
    }
    root = add_pair(yaml, root, "stages", stages);
    if (!pipeline->machine_count) return root;
    int machines = add_map(yaml, YAML_BLOCK_MAPPING_STYLE);
    for (size_t i = 0; i < pipeline->machine_count; i++)
        machines = add_pair(yaml, machines, pipeline->machines[i].name, add_machine(yaml, &pipeline->machines[i]));
    return add_pair(yaml, root, "machines", machines);
}

status pipeline_write(const struct pipeline *pipeline, struct buf *out) {
    yaml_emitter_t emitter;
    yaml_document_t yaml;
    bool done = false;
    if (!yaml_emitter_initialize(&emitter)) return fail_oom();
    yaml_emitter_set_output(&emitter, append, out);
    yaml_emitter_set_width(&emitter, -1);
    yaml_emitter_set_unicode(&emitter, 1);
    if (yaml_document_initialize(&yaml, NULL, NULL, NULL, 1, 1)) {
        if (add_pipeline(&yaml, pipeline) && yaml_emitter_open(&emitter)) {
            done = yaml_emitter_dump(&emitter, &yaml); // the emitter owns the document from here on
            done = done && yaml_emitter_close(&emitter);
        } else {
            yaml_document_delete(&yaml);
        }
    }
    yaml_emitter_delete(&emitter);
    return done ? OK : fail(UNAVAILABLE, "the pipeline cannot be written as YAML");
}

// The keys worth showing in a picture: those that the stage does not share with others.
static bool is_shown(const struct pipeline_stage *stage, const struct pipeline_key *key) {
    if (!stage->kind) return true;
    for (const struct option *common = common_options; common->name; common++)
        if (!strcmp(common->name, key->name)) return false;
    const struct option *rule = option_find(&stage->kind->options, key->name);
    return rule && rule->type != OPTION_FILE && rule->type != OPTION_PATH;
}

// "frames x2 on gpu0"
static status title(const struct pipeline *pipeline, const struct pipeline_stage *stage, struct buf *out) {
    TRY(buf_puts(out, stage->name));
    if (stage->replicas > 1) TRY(buf_printf(out, " x%d", stage->replicas));
    if (stage->on >= 0) TRY(buf_printf(out, " on %s", pipeline->machines[stage->on].name));
    return OK;
}

// Quoted for dot.
static status quoted(const char *text, struct buf *out) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') TRY(buf_puts(out, "\\"));
        TRY(buf_append(out, text, 1));
    }
    return OK;
}

static status dot_stage(const struct pipeline *pipeline, const struct pipeline_stage *stage, struct buf *out) {
    TRY(buf_puts(out, "    \""));
    TRY(quoted(stage->name, out));
    TRY(buf_puts(out, "\" [label=\""));
    struct buf label = {0};
    status result = title(pipeline, stage, &label);
    if (result == OK) result = quoted(label.data, out);
    buf_release(&label);
    TRY(result);
    if (stage->program) {
        TRY(buf_puts(out, "\\n"));
        TRY(quoted(stage->program, out));
    }
    for (const struct pipeline_key *key = stage->keys.first; key; key = key->next) {
        if (!is_shown(stage, key)) continue;
        TRY(buf_printf(out, "\\n%s: ", key->name));
        TRY(quoted(key->value, out));
    }
    return buf_puts(out, stage->program ? "\", style=dashed];\n" : "\"];\n");
}

static status dot_edge(const char *from, const char *to, const char *facts, struct buf *out) {
    TRY(buf_puts(out, "    \""));
    TRY(quoted(from, out));
    TRY(buf_puts(out, "\" -> \""));
    TRY(quoted(to, out));
    return buf_printf(out, "\"%s;\n", facts);
}

status pipeline_dot(const struct pipeline *pipeline, struct buf *out) {
    TRY(buf_puts(out, "digraph \""));
    TRY(quoted(pipeline->name, out));
    TRY(buf_puts(out, "\" {\n    rankdir=LR;\n    node [shape=box, fontname=\"sans-serif\"];\n"));
    const struct pipeline_stage *last = &pipeline->stages[pipeline->stage_count - 1];
    for (size_t i = 0; i < pipeline->stage_count; i++) TRY(dot_stage(pipeline, &pipeline->stages[i], out));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (stage->from >= 0) TRY(dot_edge(pipeline->stages[stage->from].name, stage->name, "", out));
        if (stage->kind && stage->kind->follows_weights)
            TRY(dot_edge(last->name, stage->name, " [style=dashed, label=\"weights\"]", out));
    }
    TRY(dot_edge(last->name, pipeline->stages[0].name, " [style=dotted, label=\"trained\"]", out));
    return buf_puts(out, "}\n");
}

static status text_stage(const struct pipeline *pipeline, const struct pipeline_stage *stage, int width,
                         struct buf *out) {
    struct buf left = {0};
    status result = title(pipeline, stage, &left);
    if (result == OK) result = buf_printf(out, "  %-*s ", width, left.data);
    buf_release(&left);
    TRY(result);
    if (stage->program) TRY(buf_printf(out, " program: %s", stage->program));
    for (const struct pipeline_key *key = stage->keys.first; key; key = key->next)
        if (is_shown(stage, key)) TRY(buf_printf(out, " %s: %s", key->name, key->value));
    if (stage->kind && stage->kind->follows_weights) TRY(buf_puts(out, "  <- weights of optim"));
    return buf_puts(out, "\n");
}

status pipeline_text(const struct pipeline *pipeline, struct buf *out) {
    int width = 0;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct buf left = {0};
        status result = title(pipeline, &pipeline->stages[i], &left);
        if (result == OK && (int)left.size > width) width = (int)left.size;
        buf_release(&left);
        TRY(result);
    }
    TRY(buf_printf(out, "%s, in %s\n\n", pipeline->name, pipeline->run));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        TRY(text_stage(pipeline, &pipeline->stages[i], width, out));
        TRY(buf_puts(out, i + 1 < pipeline->stage_count ? "    |\n    v\n" : ""));
    }
    for (size_t i = 0; i < pipeline->machine_count; i++)
        TRY(buf_printf(out, "%s%s is %s\n", i ? "" : "\n", pipeline->machines[i].name, pipeline->machines[i].address));
    return OK;
}
