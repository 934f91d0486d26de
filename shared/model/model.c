// A model's life: open a directory, swap the weights, free everything.
#include "shared/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/model/model_internal.h"
#include "shared/model/trainer.h"
#include "shared/model/weights_hash.h"

// *type = what an option names; the backend's default if it is NULL.
static status model_precision(const struct backend *backend, const char *option, const char *name, enum element *type) {
    if (!name) name = strcmp(backend->ops->name, "cpu") == 0 ? "float32" : "bfloat16";
    *type = strcmp(name, "bfloat16") == 0 ? ELEMENT_BF16 : ELEMENT_F32;
    if (*type == ELEMENT_BF16 || strcmp(name, "float32") == 0) return OK;
    return fail(USAGE, "%s %s is not float32 or bfloat16", option, name);
}

status model_open(struct model **out, const char *dir, const struct model_options *options) {
    *out = NULL;
    struct model *model = NULL;
    status result = OK;
    TRY(NEW(&model, 1));
    model->options = *options;
    model->dir = arena_strndup(&model->arena, dir, strlen(dir));
    if (!model->dir) TRY_TO(result, failed, fail_oom());
    const struct model_config *config = &model->config;
    const struct backend_options backend = {options->device, options->threads, options->guarded};
    TRY_TO(result, failed, model_config_read(&model->config, dir));
    TRY_TO(result, failed, backend_open(&model->backend, &backend));
    TRY_TO(result, failed, backend_get_info(model->backend, &model->backend_info));
    model->workspace.backend = model->backend;
    if (options->kept_activations < -1 || options->kept_activations >= KEPT_LEVELS)
        TRY_TO(result, failed, fail(USAGE, "there is no level %d of kept activations", options->kept_activations));
    enum element type, grads, moments;
    TRY_TO(result, failed, model_precision(model->backend, "precision", options->precision, &type));
    TRY_TO(result, failed, model_precision(model->backend, "gradient_precision", options->gradient_precision, &grads));
    TRY_TO(result, failed, model_precision(model->backend, "moment_precision", options->moment_precision, &moments));
    TRY_TO(result, failed, backend_supports(model->backend, type));
    TRY_TO(result, failed, parameter_table_new(&model->table, config));
    rope_angles_init_text(&model->text_rope, &config->text, type);
    rope_angles_init_vision(&model->vision_rope, &config->vision);
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
        .parameter_count = model->table->parameter_count,
    };
    TRY_TO(result, failed, safetensors_open_dir(&model->store, dir));
    TRY_TO(result, failed,
           weights_load(&model->weights, model->backend, config, model->table, model->store, type, options->training,
                        NULL));
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

void model_free(struct model **model) {
    struct model *it = *model;
    if (!it) return;
    if (it->backend) {
        trainer_free(&it->trainer, it->backend);
        weights_free(&it->weights);
        workspace_release(&it->workspace);
        rope_angles_release(&it->text_rope, it->backend);
        rope_angles_release(&it->vision_rope, it->backend);
        kv_scratch_release(&it->text_kv, it->backend);
        kv_scratch_release(&it->vision_kv, it->backend);
    }
    safetensors_close(&it->store);
    parameter_table_free(&it->table);
    backend_close(&it->backend);
    arena_release(&it->arena);
    free(it);
    *model = NULL;
}

const struct model_info *model_get_info(const struct model *model) {
    return &model->info;
}

status model_hash(struct model *model, uint64_t *hash) {
    return weights_hash(model->weights, &model->config, hash);
}

int64_t model_version(const struct model *model) {
    return model->version;
}

static status model_wrong_hash(const char *path, uint64_t found, uint64_t hash) {
    return fail(DATAERR, "%s: the hash of its weights is %016llx, not %016llx", path, (unsigned long long)found,
                (unsigned long long)hash);
}

status model_swap(struct model *model, const char *path, int64_t version, uint64_t hash) {
    if (model->trainer) return fail(BUG, "the weights of a model in training cannot be replaced");
    enum element type = model->weights->type;
    struct safetensors *store = NULL;
    uint64_t found = 0;
    int lock;
    TRY(file_lock_shared(path, &lock));
    status result = OK;
    TRY_TO(result, done, safetensors_open(&store, path));
    result = weights_hash_stored(model->backend, &model->config, model->table, store, type, &found);
    if (result != OK) TRY_TO(result, done, fail_prefix(result, "%s", path));
    if (found != hash) TRY_TO(result, done, model_wrong_hash(path, found, hash));
    weights_free(&model->weights); // first, so that the new ones can use the memory
    model->weights_replaced++;
    TRY_TO(result, done,
           weights_load(&model->weights, model->backend, &model->config, model->table, store, type, false, &hash));
    model->version = version;
done:
    safetensors_close(&store);
    close(lock);
    return result;
}

status model_reset(struct model *model, uint64_t hash) {
    if (model->trainer) return fail(BUG, "the weights of a model in training cannot be replaced");
    uint64_t found;
    if (model->version == 0) {
        TRY(model_hash(model, &found));
        return found == hash ? OK : model_wrong_hash(model->dir, found, hash);
    }
    struct safetensors *store = NULL;
    struct weights *weights = NULL;
    status result = OK;
    TRY_TO(result, done, safetensors_open_dir(&store, model->dir));
    TRY_TO(
        result, done,
        weights_load(&weights, model->backend, &model->config, model->table, store, model->weights->type, false, NULL));
    TRY_TO(result, done, weights_hash(weights, &model->config, &found));
    if (found != hash) TRY_TO(result, done, model_wrong_hash(model->dir, found, hash));
    weights_free(&model->weights);
    model->weights_replaced++;
    model->weights = weights;
    model->version = 0;
    weights = NULL;
done:
    weights_free(&weights);
    safetensors_close(&store);
    return result;
}
