// A model's life: open a directory, swap the weights, free everything.
#include "shared/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/model/qwen_vl/text_model.h"
#include "shared/model/weights.h"

status model_open(struct model **out, const char *dir, const struct model_options *options) {
    *out = NULL;
    struct model *model = NULL;
    status result = OK;
    NEW(&model, 1);
    model->options = *options;
    model->dir = arena_strndup(&model->arena, dir, strlen(dir));
    const struct model_config *config = &model->config;
    const struct backend_options backend = {.device = options->device, .threads = options->threads};
    TRY_TO(result, failed, model_config_read(&model->config, dir));
    TRY_TO(result, failed, backend_open(&model->backend, &backend));
    TRY_TO(result, failed, backend_get_info(model->backend, &model->backend_info));
    model->workspace.backend = model->backend;
    if (options->kept_activations < -1 || options->kept_activations >= KEPT_LEVELS)
        TRY_TO(result, failed, fail(USAGE, "there is no level %d of kept activations", options->kept_activations));
    enum element type, grads, moments;
    TRY_TO(result, failed, weights_parse_type(model->backend, "precision", options->precision, &type));
    TRY_TO(result, failed,
           weights_parse_type(model->backend, "gradient_precision", options->gradient_precision, &grads));
    TRY_TO(result, failed, weights_parse_type(model->backend, "moment_precision", options->moment_precision, &moments));
    TRY_TO(result, failed, backend_supports(model->backend, type));
    TRY_TO(result, failed, qwen_parameters_new(&model->params, config));
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
    TRY_TO(result, failed, safetensors_open_dir(&model->store, dir));
    if (options->no_weights) {
        TRY_TO(result, failed, parameter_table_check(model->table, model->store));
        qwen_weights_new(&model->weights, model->backend, config, model->params, type);
    } else {
        TRY_TO(result, failed,
               qwen_weights_load(&model->weights, model->backend, config, model->params, model->store, type,
                                 options->training, NULL));
    }
    if (options->training) {
        TRY_TO(result, failed, trainer_new(&model->trainer, model, grads, moments));
        if (options->ema) TRY_TO(result, failed, ema_new(model));
    } else {
        safetensors_close(&model->store);
    }
    *out = model;
    return OK;
failed:
    model_free(&model);
    return result;
}

// Gives back what the weights were borrowed from; they are not used any more.
static void model_return_borrowed(struct model *model) {
    shared_weights_release(&model->borrowed, model->backend);
    model->backend->ops->buffer_free(model->backend, &model->copied);
}

void model_free(struct model **model) {
    struct model *it = *model;
    if (!it) return;
    if (it->backend) {
        trainer_free(&it->trainer, it->backend);
        qwen_weights_free(&it->weights);
        model_return_borrowed(it);
        workspace_release(&it->workspace);
        rope_angles_release(&it->text_rope, it->backend);
        rope_angles_release(&it->vision_rope, it->backend);
        kv_scratch_release(&it->text_kv, it->backend);
        kv_scratch_release(&it->vision_kv, it->backend);
    }
    safetensors_close(&it->store);
    qwen_parameters_free(&it->params);
    backend_close(&it->backend);
    arena_release(&it->arena);
    free(it);
    *model = NULL;
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
    enum element type = model->weights->base.type;
    struct safetensors *store = NULL;
    uint64_t found = 0;
    int lock;
    TRY(file_lock_shared(path, &lock));
    status result = OK;
    TRY_TO(result, done, safetensors_open(&store, path));
    result = weights_hash_stored(model->backend, model->table, store, type, &found);
    if (result != OK) TRY_TO(result, done, fail_prefix(result, "%s", path));
    if (found != hash) TRY_TO(result, done, model_wrong_hash(path, found, hash));
    qwen_weights_free(&model->weights); // first, so that the new ones can use the memory
    model_return_borrowed(model);
    model->weights_replaced++;
    TRY_TO(
        result, done,
        qwen_weights_load(&model->weights, model->backend, &model->config, model->params, store, type, false, &hash));
    model->version = version;
done:
    safetensors_close(&store);
    close(lock);
    return result;
}

// Lets the weights be those of another process, or room for a copy of them.
static status model_borrow(struct model *model, struct shared_weights *lent, enum element type, uint64_t hash) {
    struct backend *backend = model->backend;
    const bool copied = shared_weights_copied(lent);
    struct buffer *copy = NULL;
    qwen_weights_free(&model->weights); // first, so that a copy can use the memory
    model->weights_replaced++;
    model_return_borrowed(model);
    model->borrowed = *lent;
    *lent = (struct shared_weights){0};
    if (copied)
        TRY(backend->ops->buffer_new(backend, param_array_bytes(model->table, model->table->range_count, type, type),
                                     &copy));
    model->copied = copy;
    log_info("%s: weights in the memory of another process, %s", model->borrowed.path,
             copied ? "which are copied on the device" : "which are used in place");
    return qwen_weights_borrow(&model->weights, backend, &model->config, model->params, type,
                               copied ? copy : model->borrowed.imported, hash);
}

// Copies the borrowed weights to the model's own memory. BAD_SAMPLE when they changed meanwhile.
static status model_copy_borrowed(struct model *model) {
    struct backend *backend = model->backend;
    enum element type = model->weights->base.type;
    struct param_array from;
    param_array_view(&from, model->borrowed.imported, model->table, model->table->range_count, type, type);
    for (int i = 0; i < model->table->range_count; i++)
        TRY(backend->ops->copy(backend, param_range(&model->weights->base.values, i), param_range(&from, i)));
    TRY(backend->ops->wait(backend));
    if (shared_weights_intact(&model->borrowed)) return OK;
    return fail(BAD_SAMPLE, "%s: the weights changed while they were copied", model->borrowed.path);
}

static status model_swap_lent(struct model *model, const char *path, int64_t version, uint64_t hash) {
    enum element type = model->weights->base.type;
    uint64_t layout;
    if (model->borrowed.page && strcmp(model->borrowed.path, path) == 0) {
        TRY(shared_weights_take(&model->borrowed, hash));
    } else {
        struct shared_weights lent = {0};
        weights_hash_finish(model->table, type, 0, &layout);
        TRY(shared_weights_borrow(&lent, model->backend, layout,
                                  param_array_bytes(model->table, model->table->range_count, type, type), path));
        status result = shared_weights_take(&lent, hash);
        if (result == OK) result = model_borrow(model, &lent, type, hash);
        shared_weights_release(&lent, model->backend);
        TRY(result);
    }
    if (model->copied) TRY(model_copy_borrowed(model));
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
    struct qwen_weights *none;
    if (!model->borrowed.page) return;
    qwen_weights_new(&none, model->backend, &model->config, model->params, model->weights->base.type);
    qwen_weights_free(&model->weights);
    model_return_borrowed(model);
    model->weights_replaced++;
    model->weights = none;
}

status model_reset(struct model *model, uint64_t hash) {
    if (model->trainer) return fail(BUG, "the weights of a model in training cannot be replaced");
    uint64_t found;
    if (model->version == 0 && model->weights->embedding.buffer) {
        TRY(model_hash(model, &found));
        return found == hash ? OK : model_wrong_hash(model->dir, found, hash);
    }
    struct safetensors *store = NULL;
    struct qwen_weights *weights = NULL;
    status result = OK;
    TRY_TO(result, done, safetensors_open_dir(&store, model->dir));
    TRY_TO(result, done,
           qwen_weights_load(&weights, model->backend, &model->config, model->params, store, model->weights->base.type,
                             false, NULL));
    TRY_TO(result, done, weights_hash(&weights->base, &found));
    if (found != hash) TRY_TO(result, done, model_wrong_hash(model->dir, found, hash));
    qwen_weights_free(&model->weights);
    model_return_borrowed(model);
    model->weights_replaced++;
    model->weights = weights;
    model->version = 0;
    weights = NULL;
done:
    qwen_weights_free(&weights);
    safetensors_close(&store);
    return result;
}
