// A model's life: open a folder, swap its weights, free it.
#include "shared/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/model/model_internal.h"
#include "shared/model/trainer.h"

status kv_scratch_reserve(struct kv_scratch *kv_scratch, struct backend *backend, int64_t rows, struct heads heads) {
    if (kv_scratch->rows >= rows) return OK;
    backend->ops->kv_cache_free(backend, &kv_scratch->cache);
    kv_scratch->rows = 0;
    TRY(backend->ops->kv_cache_new(backend, &kv_scratch->cache, 1, rows, heads));
    kv_scratch->rows = rows;
    return OK;
}

static status choose_precision(struct model *model) {
    const char *precision = model->options.precision;
    if (!precision) precision = strcmp(model->backend->ops->name, "cpu") == 0 ? "float32" : "bfloat16";
    enum element type = ELEMENT_F32;
    if (strcmp(precision, "bfloat16") == 0)
        type = ELEMENT_BF16;
    else if (strcmp(precision, "float32") != 0)
        return fail(USAGE, "precision %s is none of float32, bfloat16", precision);
    TRY(backend_supports(model->backend, type));
    model->facts.precision = type == ELEMENT_BF16 ? "bfloat16" : "float32";
    return OK;
}

static void fill_facts(struct model *model) {
    const struct model_config *config = &model->config;
    const char *precision = model->facts.precision;
    model->facts = (struct model_info){
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
        .precision = precision,
        .parameter_count = model->table->parameter_count,
    };
}

static status open_all(struct model *model, const char *dir) {
    const struct model_options *options = &model->options;
    model->dir = arena_strndup(&model->arena, dir, strlen(dir));
    if (!model->dir) return fail_oom();
    if (options->scratch)
        model->options.scratch = arena_strndup(&model->arena, options->scratch, strlen(options->scratch));
    struct backend_options wanted = {options->device, options->threads, options->guarded};
    TRY(model_config_read(&model->config, dir));
    TRY(backend_open(&model->backend, &wanted));
    model->workspace.backend = model->backend;
    TRY(choose_precision(model));
    TRY(parameter_table_new(&model->table, &model->config));
    fill_facts(model);
    TRY(safetensors_open_dir(&model->store, dir));
    enum element type = strcmp(model->facts.precision, "bfloat16") == 0 ? ELEMENT_BF16 : ELEMENT_F32;
    TRY(weights_load(&model->weights, model->backend, &model->config, model->table, model->store, type,
                     options->training, NULL));
    if (!options->training) {
        safetensors_close(&model->store);
        return OK;
    }
    TRY(trainer_new(&model->trainer, model));
    return options->ema ? ema_open(model) : OK;
}

status model_open(struct model **out, const char *dir, const struct model_options *options) {
    *out = NULL;
    struct model *model = NULL;
    TRY(NEW(&model, 1));
    model->options = *options;
    status result = open_all(model, dir);
    if (result != OK) model_free(&model);
    *out = model;
    return result;
}

void model_free(struct model **model) {
    struct model *it = *model;
    if (!it) return;
    if (it->backend) {
        trainer_free(&it->trainer, it->backend);
        weights_free(&it->weights);
        workspace_release(&it->workspace);
        it->backend->ops->kv_cache_free(it->backend, &it->text_kv.cache);
        it->backend->ops->kv_cache_free(it->backend, &it->vision_kv.cache);
    }
    safetensors_close(&it->store);
    parameter_table_free(&it->table);
    backend_close(&it->backend);
    arena_release(&it->arena);
    free(it);
    *model = NULL;
}

const struct model_info *model_get_info(const struct model *model) {
    return &model->facts;
}

status model_hash(struct model *model, uint64_t *hash) {
    return weights_hash(model->weights, &model->config, hash);
}

int64_t model_version(const struct model *model) {
    return model->version;
}

static status other_hash(const char *path, uint64_t found, uint64_t hash) {
    return fail(DATAERR, "%s: its weights have hash %016llx, not %016llx", path, (unsigned long long)found,
                (unsigned long long)hash);
}

// The weights of a store that was found whole and of the right hash. The old ones go first, so that their memory
// serves.
static status replace(struct model *model, const struct safetensors *store, int64_t version, uint64_t hash) {
    enum element type = model->weights->type;
    weights_free(&model->weights);
    TRY(weights_load(&model->weights, model->backend, &model->config, model->table, store, type, false, &hash));
    model->version = version;
    return OK;
}

status model_swap(struct model *model, const char *path, int64_t version, uint64_t hash) {
    if (model->trainer) return fail(BUG, "a model that trains makes its own weights");
    struct safetensors *store = NULL;
    uint64_t found = 0;
    int held;
    TRY(file_lock_shared(path, &held));
    status result = safetensors_open(&store, path);
    if (result == OK) {
        result = weights_hash_stored(&model->config, model->table, store, model->weights->type, &found);
        if (result != OK) result = fail_prefix(result, "%s", path);
    }
    if (result == OK && found != hash) result = other_hash(path, found, hash);
    if (result == OK) result = replace(model, store, version, hash);
    safetensors_close(&store);
    close(held);
    return result;
}

// The folder's weights beside the ones in use, and then in their place if they have that hash.
static status reload(struct model *model, const struct safetensors *store, uint64_t hash) {
    struct weights *fresh = NULL;
    TRY(weights_load(&fresh, model->backend, &model->config, model->table, store, model->weights->type, false, NULL));
    if (fresh->hash != hash) {
        status result = other_hash(model->dir, fresh->hash, hash);
        weights_free(&fresh);
        return result;
    }
    weights_free(&model->weights);
    model->weights = fresh;
    model->version = 0;
    return OK;
}

status model_reset(struct model *model, uint64_t hash) {
    if (model->trainer) return fail(BUG, "a model that trains makes its own weights");
    uint64_t found;
    if (model->version == 0) {
        TRY(model_hash(model, &found));
        return found == hash ? OK : other_hash(model->dir, found, hash);
    }
    struct safetensors *store = NULL;
    status result = safetensors_open_dir(&store, model->dir);
    if (result == OK) result = reload(model, store, hash);
    safetensors_close(&store);
    return result;
}
