// What a pipeline file names, as far as this machine can look at it: values, directories, devices, models and data.
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
#include "shared/data/consistency_pair.h"
#include "shared/data/dataset.h"
#include "shared/media/media.h"
#include "shared/model/classifier.h"
#include "shared/model/model.h"
#include "shared/stage/stage_model.h"
#include "shared/store/lmdb_env.h"
#include "shared/text/chat_template.h"

// Weights of a transformer are about 0.02, and AdamW changes each by up to the learning rate in a step.
static const double highest_sensible_lr = 0.01;

// Whether the inspection looks at a stage: it is none of a user's, and it runs on this machine.
static bool inspection_covers(const struct inspection *inspection, const struct pipeline_stage *stage) {
    return stage->kind && inspection->here >= 0 && pipeline_stage_runs_on(stage, inspection->here);
}

enum inspection_level { MISTAKE, WARNING };

// Adds a mistake or a warning with a stage's key, where the key stands, or at the stage if it is not given; stage NULL:
// with the file's key `run`. What a stage inherits is the file's or optim's. What was said of that place already is
// left out.
__attribute__((format(printf, 5, 6))) static void inspection_add(struct inspection *inspection,
                                                                 enum inspection_level level,
                                                                 const struct pipeline_stage *stage, const char *name,
                                                                 const char *format, ...) {
    struct diagnostics *diagnostics = inspection->diagnostics;
    const struct key *top = key_list_find(&inspection->pipeline->keys, name),
                     *key = stage ? key_list_find(&stage->options.given, name) : NULL;
    const struct location at = key ? key->value_at : stage ? stage->at : inspection->pipeline->run_at;
    const bool of_file = !stage || (top && key && top->value_at.line == at.line && top->value_at.column == at.column);
    const struct pipeline_stage *optim = pipeline_optim(inspection->pipeline);
    const struct key *of_optim = optim ? key_list_find(&optim->options.given, name) : NULL;
    const struct option *option = stage && stage->kind ? option_find(&stage->kind->options, name) : NULL;
    const bool as_optim = option && option->from_optim && of_optim && of_optim->value_at.line == at.line &&
                          of_optim->value_at.column == at.column;
    const char *owner = of_file ? "pipeline" : as_optim ? optim->name : stage->name;
    const size_t length = strlen(name);
    char text[800], whole[900];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const bool named = !strncmp(text, name, length) && strchr(": ", text[length]); // the text says of which key it is
    snprintf(whole, sizeof whole, "%s: %s%s%s", owner, named ? "" : name, named ? "" : ": ", text);
    for (size_t i = 0; i < diagnostics->count; i++) {
        const struct diagnostic *other = &diagnostics->list[i];
        if (other->at.line == at.line && other->at.column == at.column && !strcmp(other->text, whole)) return;
    }
    diagnostic_add(diagnostics, at, "%s", whole)->warning = level == WARNING;
}

// ---- files ----

void inspect_files(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    struct arena arena = {0};
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (inspection->here < 0 || !pipeline_stage_runs_on(stage, inspection->here)) continue;
        const char *missing = stage->program ? pipeline_missing_program(stage->program, &arena) : NULL;
        if (missing) inspection_add(inspection, MISTAKE, stage, "program", "%s", missing);
        for (const struct key *key = stage->kind ? stage->options.given.first : NULL; key; key = key->next) {
            const struct option *option = option_find(&stage->kind->options, key->name);
            if (pipeline_does_without(pipeline, stage, key, inspection->here)) continue;
            missing = pipeline_missing_file(option, key->name, pipeline->dir, key->value, &arena);
            if (missing) inspection_add(inspection, MISTAKE, stage, key->name, "%s", missing);
        }
    }
    arena_release(&arena);
}

// ---- values ----

// Each rank of a machine needs a GPU of its own; the CPU, also that of an emulated GPU, is there for all.
static void inspection_look_at_ranks(struct inspection *inspection, const struct pipeline_stage *optim) {
    const int all = pipeline_stage_ranks(optim), ranks = all ? optim->replicas : 0;
    const char *device = pipeline_value(optim, "device"), *first, *second;
    struct arena arena = {0};
    if (all && pipeline_value(optim, "gradients"))
        inspection_add(inspection, MISTAKE, optim, "gradients", "not with %d ranks, each of which has a part of them",
                       all);
    if (ranks > 1 && !device)
        inspection_add(inspection, MISTAKE, optim, "ranks", "%d ranks need `device`: cpu, or so many GPUs: cuda:[0-%d]",
                       ranks, ranks - 1);
    const struct optim_options *values = pipeline_options(optim);
    const int64_t leaves = values->groups_per_step * (values->parts ? values->parts : 1);
    if (all > leaves)
        inspection_add(inspection, WARNING, optim, ranks > 1 ? "ranks" : "on",
                       "%d ranks, but a step trains %lld at a time (groups_per_step * parts): the others only wait",
                       all, (long long)leaves);
    if (values->publish != OPTIM_PUBLISH_FILES && device && !strcmp(device, "cpu"))
        inspection_add(inspection, WARNING, optim, "publish", "%s: weights on the CPU are not lent: they go into files",
                       pipeline_value(optim, "publish"));
    if (all && pipeline_stage_machine_count(optim) > 1 && (!device || strcmp(device, "cpu") != 0))
        inspection_add(inspection, WARNING, optim, device ? "device" : "on",
                       "gradients and weights that go from GPU to GPU between machines are not encrypted; with "
                       "CARAVAN_NCCL=none they go through the hosts, which encrypt them, slower");
    bool told = !device || !strcmp(device, "cpu") || !strcmp(device, "emulated");
    for (int a = 0; a < ranks && !told; a++)
        for (int b = a + 1; b < ranks && !told; b++) {
            // The value is valid.
            if (device_of_slot(device, a, &arena, &first) != OK || device_of_slot(device, b, &arena, &second) != OK)
                break;
            told = !strcmp(first, second);
            if (told)
                inspection_add(inspection, MISTAKE, optim, "device", "%s: ranks %d and %d of %d would share %s", device,
                               a, b, ranks, first);
        }
    arena_release(&arena);
}

void inspect_values(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    const struct pipeline_stage *source = &pipeline->stages[0], *optim = pipeline_optim(pipeline),
                                *last = &pipeline->stages[pipeline->stage_count - 1],
                                *reward = pipeline_find_stage(pipeline, stage_kinds[STAGE_REWARD].name);
    if (optim) inspection_look_at_ranks(inspection, optim);
    const struct common_options *kept = !optim && last->kind ? pipeline_options(last) : NULL; // its first member
    if (kept && kept->store_keep.steps)
        inspection_add(inspection, MISTAKE, last, "store_keep", "only optim counts steps; give a size such as 20GiB");
    const char *vision = optim ? pipeline_value(optim, "train_vision") : NULL;
    const struct stage_model_options *model = optim ? pipeline_options(optim) : NULL; // its first member
    if (vision && !strcmp(vision, "true") && (model->lora || model->adapter))
        inspection_add(inspection, MISTAKE, optim, "train_vision",
                       "true: with %s, adapters of the language model alone are trained",
                       model->lora ? "lora" : "adapter");
    if (!optim || source->kind != &stage_kinds[STAGE_SOURCE]) return;
    const struct source_options *source_values = pipeline_options(source);
    const struct optim_options *optim_values = pipeline_options(optim);
    if (reward && reward->kind && source_values->group_size == 1)
        inspection_add(inspection, WARNING, source, "group_size",
                       "1: the advantage of a group's only completion is 0, so nothing is learned of the rewards");
    if (optim_values->lr == 0) inspection_add(inspection, WARNING, optim, "lr", "0: no weight ever changes");
    if (optim_values->lr > highest_sensible_lr)
        inspection_add(inspection, WARNING, optim, "lr",
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
        inspection_add(inspection, MISTAKE, stage, key, "cannot write to %s: %s", path, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        inspection_add(inspection, MISTAKE, stage, key, "cannot write to %s: %s is not a directory", path, at);
    else if (access(at, W_OK | X_OK))
        inspection_add(inspection, MISTAKE, stage, key, "cannot write to %s: %s: %s", path, at, strerror(errno));
    else if (store && lmdb_check_file_system(file) == USAGE)
        inspection_add(inspection, MISTAKE, stage, key, "%s", fail_text());
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
        // Ranks on other machines than the first one's write nothing.
        const bool writes = stage == optim && pipeline_stage_machine(stage, 0) == inspection->here;
        if (writes && out) inspection_look_at_output(inspection, stage, "out", out, false);
    }
}

// ---- models ----

// What a stage needs of its `model`.
enum model_use { MODEL_USE_NONE, MODEL_USE_TOKENIZER, MODEL_USE_ALL, MODEL_USE_CLASSIFIER };

static enum model_use inspection_model_use(const struct pipeline_stage *stage) {
    if (!stage->kind || !pipeline_value(stage, "model")) return MODEL_USE_NONE;
    const void *options = pipeline_options(stage);
    if (stage->kind == &stage_kinds[STAGE_SOURCE])
        return strcmp(((const struct source_options *)options)->format, "sft") ? MODEL_USE_NONE : MODEL_USE_TOKENIZER;
    if (stage->kind == &stage_kinds[STAGE_JUDGE])
        return ((const struct judge_options *)options)->judge == JUDGE_LIKELIHOOD ? MODEL_USE_ALL : MODEL_USE_NONE;
    return stage->kind == &stage_kinds[STAGE_CONSISTENCY] ? MODEL_USE_CLASSIFIER : MODEL_USE_ALL;
}

void inspect_chat_templates(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const enum model_use use = inspection_model_use(stage);
        struct buf difference = {0};
        if (!inspection_covers(inspection, stage) || use == MODEL_USE_NONE || use == MODEL_USE_CLASSIFIER) continue;
        if (chat_template_compare(pipeline_value(stage, "model"), &difference) != OK)
            inspection_add(inspection, WARNING, stage, "model", "%s", fail_text());
        else if (difference.size)
            inspection_add(inspection, WARNING, stage, "model",
                           "%s; prompts are always written with the template of Qwen2.5-VL", difference.data);
        buf_release(&difference);
    }
}

void inspect_models(struct inspection *inspection) {
    const struct model_options options = {.device = "cpu", .threads = 1, .no_weights = true};
    const struct pipeline *pipeline = inspection->pipeline;
    const struct diagnostics *diagnostics = inspection->diagnostics;
    const size_t mistakes = diagnostics->count - diagnostics_warnings(diagnostics);
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const enum model_use use = inspection_model_use(stage);
        const struct key *given = key_list_find(&stage->options.given, "model");
        bool seen = false; // a stage before it uses the same model in the same way at the same place of the file
        if (!inspection_covers(inspection, stage) || use == MODEL_USE_NONE) continue;
        for (const struct pipeline_stage *other = pipeline->stages; other < stage && !seen; other++) {
            const struct key *key = key_list_find(&other->options.given, "model");
            seen = inspection_covers(inspection, other) && inspection_model_use(other) == use &&
                   !strcmp(key->value, given->value) && key->value_at.line == given->value_at.line &&
                   key->value_at.column == given->value_at.column;
        }
        if (!seen) {
            // Looks at the files as a stage that computes with them does.
            const char *dir = given->value;
            struct tokenizer *tokenizer = NULL;
            struct model *model = NULL;
            int64_t vocab_size = 0;
            status result = model_check_dir(dir);
            if (result == OK) result = tokenizer_open(&tokenizer, dir);
            if (result == OK && use != MODEL_USE_CLASSIFIER) result = chat_template_check(tokenizer, dir);
            if (result != OK) inspection_add(inspection, MISTAKE, stage, "model", "%s", fail_text());
            if (use == MODEL_USE_ALL) result = model_open(&model, dir, &options);
            const long long tokens = tokenizer ? (long long)tokenizer_vocab_size(tokenizer) : 0,
                            rows = model ? (long long)model_get_info(model)->vocab_size : tokens;
            if (tokens > rows)
                inspection_add(inspection, WARNING, stage, "model",
                               "%s: the tokenizer has %lld tokens, but vocab_size is %lld; a text with one of the "
                               "others ends the run",
                               dir, tokens, rows);
            model_free(&model);
            if (use == MODEL_USE_CLASSIFIER) result = classifier_check_files(dir, &vocab_size);
            if (use == MODEL_USE_CLASSIFIER && result == OK && tokenizer)
                result = consistency_tokenizer_check(tokenizer, dir, vocab_size);
            if (result != OK) inspection_add(inspection, MISTAKE, stage, "model", "%s", fail_text());
            tokenizer_free(&tokenizer);
        }
        if (use == MODEL_USE_ALL && diagnostics->count - diagnostics_warnings(diagnostics) == mistakes) {
            const struct stage_model_options *own = pipeline_options(stage); // the first member
            const struct model_options adapters = {
                .lora = own->lora, .lora_alpha = own->lora_alpha, .adapter = own->adapter};
            int64_t rank;
            if (model_check_adapter(own->dir, &adapters, &rank) != OK)
                inspection_add(inspection, MISTAKE, stage, "adapter", "%s", fail_text());
        }
        if (use != MODEL_USE_CLASSIFIER) continue;
        struct arena arena = {0};
        struct string hypothesis;
        if (consistency_template_read(&arena, pipeline_value(stage, "hypothesis"), &hypothesis) != OK)
            inspection_add(inspection, MISTAKE, stage, "hypothesis", "%s", fail_text());
        arena_release(&arena);
    }
}

// ---- devices ----

// Opens the device of each replica and asks it for the precision.
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
        const enum element type = precision && strcmp(precision, "bfloat16") == 0 ? ELEMENT_BF16 : ELEMENT_F32;
        if (!inspection_covers(inspection, stage) || (use != MODEL_USE_ALL && use != MODEL_USE_CLASSIFIER)) continue;
        for (int slot = 0; slot < stage->replicas; slot++) {
            const char *device = NULL;
            size_t k = 0;
            if (given && device_of_slot(given, slot, &arena, &device) != OK) break; // out of memory: the value is valid
            while (k < count && (strcmp(seen[k].device, device ? device : "") != 0 ||
                                 strcmp(seen[k].precision, precision ? precision : "") != 0))
                k++;
            if (k < count) continue;
            const struct backend_options options = {.device = device, .threads = 1};
            struct backend *backend = NULL;
            const bool opened = backend_open(&backend, &options) == OK;
            const bool computes = opened && (!precision || backend->ops->supports(backend, type) == OK);
            if (!computes)
                inspection_add(inspection, MISTAKE, stage, opened ? "precision" : "device", "%s", fail_text());
            backend_close(&backend);
            if (!computes || count == MAX_SEEN) continue;
            seen[count].device = device ? device : "";
            seen[count++].precision = precision ? precision : "";
        }
    }
    arena_release(&arena);
}

// ---- data: the first samples are read, their media are looked for, and one of them is opened ----

enum { INSPECTED_SAMPLES = 8 };

// What is looked at while the samples are visited.
struct inspected_data {
    struct inspection *inspection;
    const struct pipeline_stage *source;
    const struct pipeline_stage *needs_frames; // the first stage that needs them and has no stage before it; or NULL
    const char *media_root;                    // of frames; NULL: the current directory
    bool inside;                               // only files below media_root are opened
    bool look;                                 // at media: they are decoded on this machine
    struct sampling_config sampling;
    int samples, media, missing;
    bool opened;
    char first_missing[512]; // which medium and why
};

static status inspection_visit_sample(void *context, const struct dataset_sample *sample) {
    struct inspected_data *data = context;
    if (data->samples == INSPECTED_SAMPLES) return END;
    data->samples++;
    if (!sample->group) return DATAERR; // fail_text() is dataset_each's
    const struct group *group = sample->group;
    if (data->needs_frames && media_part_count(group) && !group->media_count) {
        diagnostic_add(data->inspection->diagnostics, data->needs_frames->at,
                       "%s: the samples have images or videos, and no stage frames comes before it",
                       data->needs_frames->name);
        data->needs_frames = NULL;
    }
    const struct part *part;
    for (size_t i = 0; data->look && (part = media_part(group, i)); i++) {
        struct arena arena = {0};
        char *path = NULL;
        status result = media_path(&path, &arena, data->media_root, media_uri(part));
        if (result == OK && access(path, R_OK)) result = fail(BAD_SAMPLE, "%s", strerror(errno));
        if (result == OK && data->inside) result = media_check_inside(data->media_root, path);
        data->media++;
        if (result == BAD_SAMPLE) {
            if (!data->missing++)
                snprintf(data->first_missing, sizeof data->first_missing, "%s: %s", path ? path : media_uri(part).data,
                         fail_text());
            result = OK;
        } else if (result == OK && !data->opened) {
            struct sampling_config sampling = media_sampling(&data->sampling, part);
            struct frames_view view = {0};
            data->opened = true;
            sampling.min_frames = sampling.max_frames = 2; // the first and the last one
            result = media_decode(&view, path, part->kind == PART_VIDEO, &sampling, NULL);
            frames_view_release(&view);
            if (result == BAD_SAMPLE) {
                inspection_add(data->inspection, WARNING, data->source, "data",
                               "%s: %s; the samples of such media are quarantined", path, fail_text());
                result = OK;
            }
        }
        arena_release(&arena);
        TRY(result);
    }
    return OK;
}

void inspect_data(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    struct inspected_data data = {.inspection = inspection, .source = &pipeline->stages[0]};
    size_t groups = 0;
    if (data.source->kind != &stage_kinds[STAGE_SOURCE] || !inspection_covers(inspection, data.source)) return;
    // The first stage that opens media or would wait in vain for frames. A user's program may write what it likes.
    const struct pipeline_stage *end = &pipeline->stages[pipeline->stage_count], *stage = pipeline->stages;
    while (stage < end && stage->kind && stage->kind != &stage_kinds[STAGE_FRAMES] && !stage->kind->needs_frames)
        stage++;
    if (stage < end && stage->kind == &stage_kinds[STAGE_FRAMES]) {
        const struct frames_options *frames = pipeline_options(stage);
        const status result = stage_media_sampling(&data.sampling, frames);
        data.media_root = frames->media_root;
        data.inside = frames->media_outside == MEDIA_OUTSIDE_REFUSE;
        data.look = result == OK && inspection_covers(inspection, stage);
        if (result != OK) inspection_add(inspection, MISTAKE, stage, "min_frames", "%s", fail_text());
    } else if (stage < end && stage->kind) {
        data.needs_frames = stage;
    }
    const struct source_options *source = pipeline_options(data.source);
    status result = dataset_count_groups(source, &groups);
    if (result == OK) result = dataset_each(source, inspection_visit_sample, &data);
    if (result != OK && result != END) {
        const char *template = source->template;
        const bool of_template = template && (!strncmp(fail_text(), "template:", strlen("template:")) ||
                                              !strncmp(fail_text(), template, strlen(template)));
        inspection_add(inspection, MISTAKE, data.source, of_template ? "template" : "data", "%s", fail_text());
    } else if (pipeline_optim(pipeline) && groups < (size_t)source->groups_per_step) {
        inspection_add(inspection, MISTAKE, data.source, source->limit ? "limit" : "data",
                       "%zu groups do not fill a step of %lld: nothing would be trained", groups,
                       (long long)source->groups_per_step);
    }
    const char *key = source->media_root ? "media_root" : "data";
    if (data.missing && data.missing == data.media)
        inspection_add(inspection, MISTAKE, data.source, key,
                       "none of the %d images and videos of the first samples can be opened: %s", data.media,
                       data.first_missing);
    else if (data.missing)
        inspection_add(inspection, WARNING, data.source, key,
                       "%d of the %d images and videos of the first samples cannot be opened, and such samples "
                       "are quarantined: %s",
                       data.missing, data.media, data.first_missing);
}
