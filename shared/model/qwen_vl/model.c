// A model's life: open a directory, swap the weights, free everything.
#include "shared/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/model/qwen_vl/model_internal.h"
#include "shared/model/weights.h"

// Opens everything; after a failure the caller frees what there is.
static status model_load(struct model *model) {
    const struct model_options *options = &model->options;
    const struct model_config *config = &model->config;
    const struct backend_options backend = {.device = options->device, .threads = options->threads};
    enum element type, grads, moments;
    TRY(model_config_read(&model->config, model->dir));
    TRY(weights_open_backend(&backend, options->precision, &model->backend, &model->backend_info, &type));
    model->workspace.backend = model->backend;
    TRY(weights_parse_type(model->backend, "gradient_precision", options->gradient_precision, &grads));
    TRY(weights_parse_type(model->backend, "moment_precision", options->moment_precision, &moments));
    if (options->kept_activations < -1 || options->kept_activations >= KEPT_LEVELS)
        return fail(USAGE, "there is no level %d of kept activations", options->kept_activations);
    TRY(qwen_parameters_new(&model->params, config));
    model->table = &model->params->table;
    text_rope_init(&model->text_rope, &config->text, type);
    vision_rope_init(&model->vision_rope, &config->vision);
    model->info = (struct model_info){
        .vocab_size = config->text.vocab_size,
        .image_token_id = config->image_token_id,
        .video_token_id = config->video_token_id,
        .vision_start_token_id = config->vision_start_token_id,
        .vision_end_token_id = config->vision_end_token_id,
        .eos_ids = config->eos_ids,
        .eos_count = config->eos_count,
        .patch_size = config->vision.patch_size,
        .spatial_merge_size = config->vision.spatial_merge_size,
        .temporal_patch_size = config->vision.temporal_patch_size,
        .precision = type == ELEMENT_BF16 ? "bfloat16" : "float32",
        .device_kind = model->backend_info.kind,
        .parameter_count = model->table->parameter_count,
    };
    TRY(safetensors_open_dir(&model->store, model->dir));
    model->weights = qwen_weights_new(model->backend, model->params, type);
    const struct weights_source source = {.store = model->store, .training = options->training};
    if (options->no_weights)
        TRY(parameter_table_check(model->table, model->store));
    else
        TRY(qwen_weights_load(model->weights, &source));
    if (options->training) return trainer_new(model, grads, moments);
    safetensors_close(&model->store);
    return OK;
}

status model_open(struct model **out, const char *dir, const struct model_options *options) {
    NEW(out, 1);
    (*out)->options = *options;
    (*out)->dir = arena_strndup(&(*out)->arena, dir, strlen(dir));
    const status result = model_load(*out);
    if (result != OK) model_free(out);
    return result;
}

// The bytes of an array of all weights.
static size_t model_weights_bytes(const struct model *model) {
    const enum element type = model->weights->base.type;
    return param_array_bytes(model->table, model->table->range_count, type, type);
}

// Gives the model new weights without values. The old ones go first, and what they were borrowed from, so that the new
// ones can use the memory.
static void model_renew_weights(struct model *model) {
    const enum element type = model->weights->base.type;
    qwen_weights_free(&model->weights);
    shared_weights_release(&model->borrowed, model->backend);
    model->backend->ops->buffer_free(model->backend, &model->copied);
    model->weights = qwen_weights_new(model->backend, model->params, type);
    model->weights_replaced++;
}

void model_free(struct model **freed) {
    struct model *model = *freed;
    if (!model) return;
    if (model->backend) {
        trainer_free(&model->trainer, model->backend);
        qwen_weights_free(&model->weights);
        shared_weights_release(&model->borrowed, model->backend);
        model->backend->ops->buffer_free(model->backend, &model->copied);
        workspace_release(&model->workspace);
        rope_angles_release(&model->text_rope, model->backend);
        rope_angles_release(&model->vision_rope, model->backend);
        kv_scratch_release(&model->text_kv, model->backend);
        kv_scratch_release(&model->vision_kv, model->backend);
    }
    safetensors_close(&model->store);
    qwen_parameters_free(&model->params);
    backend_close(&model->backend);
    arena_release(&model->arena);
    free(model);
    *freed = NULL;
}

const struct model_info *model_get_info(const struct model *model) {
    return &model->info;
}

status model_hash(struct model *model, uint64_t *hash) {
    return weights_hash(&model->weights->base, hash);
}

status model_hash_files(const struct model *model, uint64_t *hash) {
    if (!model->trainer) return fail(BUG, "the model was not opened for training");
    return weights_hash_files(model->table, model->store, hash);
}

int64_t model_version(const struct model *model) {
    return model->version;
}

static status model_wrong_hash(const char *path, uint64_t found, uint64_t hash) {
    return fail(DATAERR, "%s: the hash of its weights is %016llx, not %016llx", path, (unsigned long long)found,
                (unsigned long long)hash);
}

static status model_swap_file(struct model *model, const char *path, int64_t version, uint64_t hash) {
    struct safetensors *store = NULL;
    uint64_t found = 0;
    int lock;
    TRY(file_lock_shared(path, &lock));
    status result = safetensors_open(&store, path);
    if (result == OK) {
        result = weights_hash_stored(model->backend, model->table, store, model->weights->base.type, &found);
        if (result != OK) fail_prefix(result, "%s", path);
    }
    if (result == OK && found != hash) result = model_wrong_hash(path, found, hash);
    if (result == OK) {
        model_renew_weights(model);
        const struct weights_source source = {.store = store, .hash = &hash};
        result = qwen_weights_load(model->weights, &source);
    }
    if (result == OK) model->version = version;
    safetensors_close(&store);
    close(lock);
    return result;
}

static status model_swap_lent(struct model *model, const char *path, int64_t version, uint64_t hash) {
    struct backend *backend = model->backend;
    const enum element type = model->weights->base.type;
    if (model->borrowed.page && strcmp(model->borrowed.path, path) == 0) {
        TRY(shared_weights_take(&model->borrowed, hash));
    } else {
        struct shared_weights lent = {0};
        const uint64_t layout = weights_hash_finish(model->table, type, 0);
        TRY(shared_weights_borrow(&lent, backend, layout, model_weights_bytes(model), path));
        status result = shared_weights_take(&lent, hash);
        if (result != OK) shared_weights_release(&lent, backend);
        TRY(result);
        model_renew_weights(model);
        model->borrowed = lent;
        const bool copied = shared_weights_copied(&lent);
        if (copied) TRY(backend->ops->buffer_new(backend, model_weights_bytes(model), &model->copied));
        log_info("%s: weights in the memory of another process, %s", path,
                 copied ? "which are copied on the device" : "which are used in place");
        const struct weights_source source = {.values = copied ? model->copied : lent.imported, .hash = &hash};
        TRY(qwen_weights_load(model->weights, &source));
    }
    if (model->copied) { // copy again, or for the first time
        struct param_array from;
        param_array_view(&from, model->borrowed.imported, model->table, model->table->range_count, type, type);
        for (int i = 0; i < model->table->range_count; i++)
            TRY(backend->ops->copy(backend, param_range(&model->weights->base.values, i), param_range(&from, i)));
        TRY(backend->ops->wait(backend));
        if (!shared_weights_intact(&model->borrowed))
            return fail(BAD_SAMPLE, "%s: the weights changed while they were copied", model->borrowed.path);
    }
    model->weights->base.hash = hash;
    model->version = version;
    return OK;
}

status model_swap(struct model *model, const char *path, int64_t version, uint64_t hash) {
    bool lent;
    if (model->trainer) return fail(BUG, "the weights of a model in training cannot be replaced");
    TRY(shared_weights_is_page(path, &lent));
    return lent ? model_swap_lent(model, path, version, hash) : model_swap_file(model, path, version, hash);
}

bool model_weights_intact(const struct model *model) {
    return !model->borrowed.page || model->copied || shared_weights_intact(&model->borrowed);
}

void model_return_weights(struct model *model) {
    if (model->borrowed.page) model_renew_weights(model);
}

status model_reset(struct model *model, uint64_t hash) {
    if (model->trainer) return fail(BUG, "the weights of a model in training cannot be replaced");
    uint64_t found = 0;
    if (model->version == 0 && model->weights->embedding.buffer) {
        TRY(model_hash(model, &found));
        return found == hash ? OK : model_wrong_hash(model->dir, found, hash);
    }
    struct safetensors *store = NULL;
    struct qwen_weights *weights = qwen_weights_new(model->backend, model->params, model->weights->base.type);
    status result = safetensors_open_dir(&store, model->dir);
    const struct weights_source source = {.store = store};
    if (result == OK) result = qwen_weights_load(weights, &source);
    if (result == OK) result = weights_hash(&weights->base, &found);
    if (result == OK && found != hash) result = model_wrong_hash(model->dir, found, hash);
    if (result == OK) {
        model_renew_weights(model);
        struct qwen_weights *none = model->weights;
        model->weights = weights;
        weights = none;
        model->version = 0;
    }
    qwen_weights_free(&weights);
    safetensors_close(&store);
    return result;
}
