// What the inspections share, and those of values, directories and devices.
#include "tools/check/inspection.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "shared/base/file.h"
#include "shared/config/name_list.h"
#include "shared/config/stage_options.h"
#include "shared/store/lmdb_env.h"

// Weights of a transformer are about 0.02, and AdamW changes each by up to the learning rate in a step.
static const double highest_sensible_lr = 0.01;

bool inspection_covers(const struct inspection *inspection, const struct pipeline_stage *stage) {
    return stage->kind && inspection->here >= 0 && pipeline_stage_runs_on(stage, inspection->here);
}

static void inspection_add(struct inspection *inspection, const struct pipeline_stage *stage, const char *name,
                           bool warning, const char *text) {
    struct diagnostics *diagnostics = inspection->diagnostics;
    const struct key *top = key_list_find(&inspection->pipeline->keys, name),
                     *key = stage ? key_list_find(&stage->options.given, name) : NULL;
    const struct location at = key ? key->value_at : stage ? stage->at : inspection->pipeline->run_at;
    const bool of_file = !stage || (top && key && top->value_at.line == at.line && top->value_at.column == at.column);
    const char *owner = of_file ? "pipeline" : stage->name;
    const size_t length = strlen(name);
    char whole[900];
    const bool named = !strncmp(text, name, length) && strchr(": ", text[length]); // the text says of which key it is
    snprintf(whole, sizeof whole, "%s: %s%s%s", owner, named ? "" : name, named ? "" : ": ", text);
    for (size_t i = 0; i < diagnostics->count; i++) {
        const struct diagnostic *other = &diagnostics->list[i];
        if (other->at.line == at.line && other->at.column == at.column && !strcmp(other->text, whole)) return;
    }
    if (warning)
        diagnostic_warn(diagnostics, at, "%s", whole);
    else
        diagnostic_add(diagnostics, at, "%s", whole);
}

void inspection_mistake(struct inspection *inspection, const struct pipeline_stage *stage, const char *key,
                        const char *format, ...) {
    char text[800];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    inspection_add(inspection, stage, key, false, text);
}

void inspection_warning(struct inspection *inspection, const struct pipeline_stage *stage, const char *key,
                        const char *format, ...) {
    char text[800];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    inspection_add(inspection, stage, key, true, text);
}

// ---- values ----

void inspect_values(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    const struct pipeline_stage *source = &pipeline->stages[0], *optim = pipeline_optim(pipeline),
                                *reward = pipeline_find_stage(pipeline, stage_kinds[STAGE_REWARD].name);
    if (!optim || source->kind != &stage_kinds[STAGE_SOURCE]) return;
    const struct source_options *source_values = pipeline_options(source);
    const struct optim_options *optim_values = pipeline_options(optim);
    if (reward && reward->kind && source_values->group_size == 1)
        inspection_warning(inspection, source, "group_size",
                           "1: the advantage of a group's only completion is 0, so nothing is learned of the rewards");
    if (optim_values->lr == 0) inspection_warning(inspection, optim, "lr", "0: no weight ever changes");
    if (optim_values->lr > highest_sensible_lr)
        inspection_warning(inspection, optim, "lr",
                           "%g: a step changes each weight by up to that much, and a weight is about 0.02; 1e-6 is "
                           "usual",
                           optim_values->lr);
}

// ---- directories ----

// Reports a directory unless it, or the nearest one above it that is there, can be written. `store`: it is to have LMDB
// files, too.
static void inspection_look_at_output(struct inspection *inspection, const struct pipeline_stage *stage,
                                      const char *key, const char *path, bool store) {
    struct arena arena = {0};
    struct stat info;
    const char *at = path;
    while (stat(at, &info) && errno == ENOENT && strcmp(at, "/") != 0 && strcmp(at, ".") != 0)
        at = path_parent(&arena, at);
    const char *file = path_join(&arena, at, "frames.lmdb");
    if (stat(at, &info))
        inspection_mistake(inspection, stage, key, "cannot write to %s: %s", path, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        inspection_mistake(inspection, stage, key, "cannot write to %s: %s is not a directory", path, at);
    else if (access(at, W_OK | X_OK))
        inspection_mistake(inspection, stage, key, "cannot write to %s: %s: %s", path, at, strerror(errno));
    else if (store && lmdb_check_file_system(file) == USAGE)
        inspection_mistake(inspection, stage, key, "%s", fail_text());
    arena_release(&arena);
}

void inspect_outputs(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    if (inspection->here < 0) return;
    const size_t before = inspection->diagnostics->count;
    inspection_look_at_output(inspection, NULL, "run", pipeline->run, false);
    if (inspection->diagnostics->count > before) return; // most others are below it
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const char *store = pipeline_value(stage, "store"), *out = pipeline_value(stage, "out");
        if (!inspection_covers(inspection, stage)) continue;
        if (store) inspection_look_at_output(inspection, stage, "store", store, true);
        if (stage == optim && out) inspection_look_at_output(inspection, stage, "out", out, false);
    }
}

// ---- devices ----

// Opens the device of a replica and asks it for the precision. Returns whether it has both.
static bool inspection_look_at_device(struct inspection *inspection, const struct pipeline_stage *stage,
                                      const char *device, const char *precision) {
    const struct backend_options options = {.device = device, .threads = 1};
    const enum element type = precision && strcmp(precision, "bfloat16") == 0 ? ELEMENT_BF16 : ELEMENT_F32;
    struct backend *backend = NULL;
    const bool opened = backend_open(&backend, &options) == OK;
    const bool computes = opened && (!precision || backend_supports(backend, type) == OK);
    if (!computes) inspection_mistake(inspection, stage, opened ? "precision" : "device", "%s", fail_text());
    backend_close(&backend);
    return computes;
}

void inspect_devices(struct inspection *inspection) {
    enum { MAX_SEEN = 64 };
    const struct pipeline *pipeline = inspection->pipeline;
    struct {
        const char *device, *precision;
    } seen[MAX_SEEN]; // that were opened
    size_t count = 0;
    struct arena arena = {0};
    for (size_t i = 0; inspection->devices && i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const enum model_use use = inspection_model_use(stage);
        const char *given = pipeline_value(stage, "device"), *precision = pipeline_value(stage, "precision");
        if (!inspection_covers(inspection, stage) || (use != MODEL_USE_ALL && use != MODEL_USE_CLASSIFIER)) continue;
        for (int slot = 0; slot < stage->replicas; slot++) {
            const char *device = NULL;
            size_t k = 0;
            if (given && device_of_slot(given, slot, &arena, &device) != OK) break; // out of memory: the value is valid
            while (k < count && (strcmp(seen[k].device, device ? device : "") != 0 ||
                                 strcmp(seen[k].precision, precision ? precision : "") != 0))
                k++;
            if (k < count || !inspection_look_at_device(inspection, stage, device, precision) || count == MAX_SEEN)
                continue;
            seen[count].device = device ? device : "";
            seen[count++].precision = precision ? precision : "";
        }
    }
    arena_release(&arena);
}
