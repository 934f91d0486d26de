// A model's life: open a directory, swap the weights, free everything; the optimizer's step over all accumulated
// gradients, and the reference; what a model in training writes: a model directory like the one that it was opened
// from, its training state, its gradients, and published or lent weights.
#include "shared/model/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/model/qwen_vl/adapters.h"
#include "shared/model/qwen_vl/model_internal.h"
#include "shared/model/weights.h"

// *out = weights without values for computing in `type`. DATAERR when the model is too large. The caller frees them,
// also after a failure.
static status model_new_weights(const struct model *model, enum element type, struct qwen_weights **out) {
    NEW(out, 1);
    TRY(qwen_weights_init(*out, &model->config));
    (*out)->base.backend = model->backend;
    (*out)->base.type = type;
    const struct model_options *options = &model->options;
    if (!options->lora) return OK;
    return qwen_add_adapters(*out, options->lora, (float)(options->lora_alpha / (double)options->lora));
}

static void model_free_weights(struct qwen_weights **weights) {
    if (*weights) weights_release(&(*weights)->adapters); // whose fused parameters are in the base's arena
    if (*weights) weights_release(&(*weights)->base);
    free(*weights);
    *weights = NULL;
}

static bool model_has_values(const struct weights *weights) {
    const struct fused_param *first = weights->table.fused[0];
    return first->values.buffer || first->weight;
}

// Loads the base of adapters from the directory, unless there is one: it has no versions.
static status model_load_base(struct model *model) {
    struct weights *base = &model->weights->base;
    struct safetensors *store = NULL;
    uint64_t hash;
    if (!model->options.lora || model_has_values(base)) return OK;
    if (!model->store) TRY(safetensors_open_dir(&store, model->dir));
    const struct weights_source source = {
        .store = model->store ? model->store : store, .training = model->options.training, .frozen = true};
    status result = weights_load(base, &source);
    if (result == OK) result = weights_hash(base, &hash);
    if (result == OK) qwen_set_base_hash(model->weights, hash);
    safetensors_close(&store);
    return result;
}

// Loads version 0 of what has versions: the directory's weights, or adapters.
static status model_load_first(const struct model *model, struct qwen_weights *weights) {
    const struct model_options *options = &model->options;
    struct safetensors *store = NULL;
    struct buf image = {0};
    status result = OK;
    if (options->adapter) {
        result = adapters_open(&store, &weights->adapters.table, options->adapter);
    } else if (options->lora) {
        result = adapters_new(&image, &weights->adapters.table, options->lora_seed);
        if (result == OK) result = safetensors_open_memory(&store, image.data, image.size, "new adapters");
    } else if (!model->store) {
        result = safetensors_open_dir(&store, model->dir);
    }
    const struct weights_source source = {
        .store = store ? store : model->store, .training = options->training, .ranks = options->ranks};
    if (result == OK) result = weights_load(qwen_trained(weights), &source);
    safetensors_close(&store);
    buf_release(&image);
    return result;
}

// Opens everything; after a failure the caller frees what there is.
static status model_load(struct model *model) {
    const struct model_options *options = &model->options;
    const struct model_config *config = &model->config;
    const struct backend_options wanted = {.device = options->device, .threads = options->threads};
    const char *sum_precision = options->sum_precision ? options->sum_precision : options->gradient_precision;
    enum element type, grads, sums, moments;
    TRY(model_config_read(&model->config, model->dir));
    TRY(weights_open_backend(&wanted, options->precision, &model->backend, &model->backend_info, &type));
    model->workspace.backend = model->backend;
    TRY(weights_parse_type(model->backend, "gradient_precision", options->gradient_precision, &grads));
    TRY(weights_parse_type(model->backend, "sum_precision", sum_precision, &sums));
    TRY(weights_parse_type(model->backend, "moment_precision", options->moment_precision, &moments));
    if (options->ranks && (!options->training || options->ranks->count == 1)) model->options.ranks = NULL;
    if (options->kept_activations < -1 || options->kept_activations >= KEPT_LEVELS)
        return fail(USAGE, "there is no level %d of kept activations", options->kept_activations);
    TRY(adapters_settle(&model->options));
    if (options->lora && options->train_vision) return fail(USAGE, "lora trains the language model alone");
    TRY(model_new_weights(model, type, &model->weights));
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
        .product_library = model->backend_info.product_library,
    };
    TRY(safetensors_open_dir(&model->store, model->dir));
    if (options->no_weights) {
        TRY(parameter_table_check(&model->weights->base.table, model->store));
    } else {
        TRY(model_load_base(model));
        TRY(model_load_first(model, model->weights));
    }
    model->info.parameter_count =
        model->weights->base.table.parameter_count + model->weights->adapters.table.parameter_count;
    if (!options->training) {
        safetensors_close(&model->store);
        return OK;
    }

    // The optimizer, and the reference, equal to the present weights.
    const struct parameter_table *table = &qwen_trained(model->weights)->table;
    const struct param_array *values = &qwen_trained(model->weights)->values;
    struct backend *backend = model->backend;
    struct param_array *reference = &model->trainer.reference;
    const int ranges = table->range_count, trained = options->lora || options->train_vision ? ranges : TEXT_RANGES;
    rank_share_init(&model->trainer.share, &model->arena, table, options->ranks);
    TRY(rank_devices_open(&model->trainer.devices, backend, options->ranks));
    TRY(optimizer_init(&model->trainer.optimizer, backend, table, trained, (struct gradient_types){type, grads, sums},
                       moments, options->ranks, model->trainer.devices));
    if (!options->ema) return OK;
    TRY(param_array_init(reference, backend, table, ranges, values->types[0], values->types[0], NULL));
    for (int i = 0; i < ranges; i++)
        TRY(backend->ops->copy(backend, param_range(reference, i), param_range(values, i)));
    if (!values->remainders) return OK;
    TRY(param_array_add_remainders(reference, backend, options->ranks));
    for (size_t i = 0; i < table->bucket_count; i++) {
        const struct param_piece own = shard_own(&table->buckets[i], options->ranks);
        if (own.first == own.end) continue;
        TRY(backend->ops->copy(backend, param_remainders(reference, param_slice(reference, own)),
                               param_remainders(values, param_slice(values, own))));
    }
    return OK;
}

status model_open(struct model **out, const char *dir, const struct model_options *options) {
    NEW(out, 1);
    (*out)->options = *options;
    (*out)->dir = arena_strndup(&(*out)->arena, dir, strlen(dir));
    if (options->adapter)
        (*out)->options.adapter = arena_strndup(&(*out)->arena, options->adapter, strlen(options->adapter));
    const status result = model_load(*out);
    if (result != OK) model_free(out);
    return result;
}

// The bytes of an array of all that is trained.
static size_t model_weights_bytes(const struct model *model) {
    const struct weights *weights = qwen_trained(model->weights);
    return param_array_bytes(&weights->table, weights->table.range_count, weights->type, weights->type);
}

// What is lent of a model in training, or what one without training borrows.
static struct shared_arrays model_shared_arrays(const struct model *model) {
    const struct weights *base = &model->weights->base;
    struct shared_arrays arrays = {.bytes = model_weights_bytes(model), .layout = qwen_layout(model->weights)};
    if (!model->options.lora) return arrays;
    arrays.base = base->values.buffer;
    arrays.base_bytes = param_array_bytes(&base->table, base->table.range_count, base->type, base->type);
    return arrays;
}

// Frees the values of what has versions, and what they were borrowed from, so that new ones can use the memory.
static void model_unload_weights(struct model *model) {
    weights_unload(qwen_trained(model->weights));
    shared_weights_release(&model->borrowed, model->backend);
    model->backend->ops->buffer_free(model->backend, &model->copied);
    model->weights_replaced++;
}

// Frees the base of adapters, or gives it back.
static void model_unload_base(struct model *model) {
    if (model->options.lora) weights_unload(&model->weights->base);
    model->backend->ops->buffer_free(model->backend, &model->borrowed_base);
}

void model_free(struct model **freed) {
    struct model *model = *freed;
    if (!model) return;
    if (model->backend) {
        rank_devices_free(&model->trainer.devices); // CUDA waits for what is under way before it frees anything
        for (int i = 0; i < 2; i++) shared_weights_release(&model->trainer.lent[i], model->backend);
        optimizer_release(&model->trainer.optimizer);
        param_array_release(&model->trainer.reference, model->backend);
        model_free_weights(&model->weights);
        shared_weights_release(&model->borrowed, model->backend);
        model->backend->ops->buffer_free(model->backend, &model->borrowed_base);
        model->backend->ops->buffer_free(model->backend, &model->copied);
        workspace_release(&model->workspace);
        rope_angles_release(&model->text_rope, model->backend);
        rope_angles_release(&model->vision_rope, model->backend);
        kv_scratch_release(&model->text_kv, model->backend);
        kv_scratch_release(&model->vision_kv, model->backend);
    }
    safetensors_close(&model->store);
    backend_close(&model->backend);
    arena_release(&model->arena);
    free(model);
    *freed = NULL;
}

const struct model_info *model_get_info(const struct model *model) {
    return &model->info;
}

status model_hash(struct model *model, uint64_t *hash) {
    return weights_hash(qwen_trained(model->weights), hash);
}

status model_hash_files(const struct model *model, uint64_t *hash) {
    const struct parameter_table *table = &model->weights->base.table;
    struct safetensors *store = NULL;
    if (!model->store) TRY(safetensors_open_dir(&store, model->dir));
    status result = weights_hash_files(table, model->store ? model->store : store, hash);
    safetensors_close(&store);
    if (result != OK || !model->options.lora) return result;
    uint64_t scale_bits;
    memcpy(&scale_bits, &model->options.lora_alpha, sizeof scale_bits);
    *hash = ops_mix64(*hash ^ ops_mix64(scale_bits));
    if (!model->options.adapter) { // new ones follow from these
        *hash = ops_mix64(*hash ^ ops_mix64((uint64_t)model->options.lora));
        *hash = ops_mix64(*hash ^ ops_mix64(model->options.lora_seed));
        return OK;
    }
    struct arena arena = {0};
    const struct parameter_table *adapters = &model->weights->adapters.table;
    const struct stored_tensor **found = arena_alloc(&arena, adapters->count * sizeof *found);
    result = adapters_open(&store, adapters, model->options.adapter);
    if (result == OK) result = parameter_table_match(adapters, store, found);
    for (size_t i = 0; result == OK && i < adapters->count; i++)
        *hash = ops_mix64(*hash ^ ops_mix64(XXH3_64bits(found[i]->data, found[i]->size) ^ found[i]->type));
    safetensors_close(&store);
    arena_release(&arena);
    return result;
}

uint64_t model_files_layout(const struct model *model) {
    uint64_t hash = 0;
    for (size_t i = 0; model->store && i < safetensors_count(model->store); i++) {
        const struct stored_tensor *tensor = safetensors_at(model->store, i);
        const char *file = path_base_name(tensor->file);
        hash = ops_mix64(hash ^ XXH3_64bits(file, strlen(file)));
        hash = ops_mix64(hash ^ XXH3_64bits(tensor->name, strlen(tensor->name)) ^ tensor->type);
    }
    return hash;
}

int64_t model_version(const struct model *model) {
    return model->version;
}

static status model_wrong_hash(const char *path, uint64_t found, uint64_t hash) {
    return fail(DATAERR, "%s: the hash of its weights is %016llx, not %016llx", path, (unsigned long long)found,
                (unsigned long long)hash);
}

static status model_swap_lent(struct model *model, const char *path, int64_t version, uint64_t hash) {
    struct backend *backend = model->backend;
    struct weights *weights = qwen_trained(model->weights);
    const struct parameter_table *table = &weights->table;
    if (model->borrowed.page && strcmp(model->borrowed.path, path) == 0) {
        TRY(shared_weights_take(&model->borrowed, hash));
    } else {
        struct shared_weights lent = {0};
        const struct shared_arrays expected = model_shared_arrays(model);
        TRY(shared_weights_borrow(&lent, backend, &expected, path));
        status result = shared_weights_take(&lent, hash);
        if (result != OK) shared_weights_release(&lent, backend);
        TRY(result);
        model_unload_weights(model);
        model_unload_base(model);
        model->borrowed_base = lent.imported_base;
        lent.imported_base = NULL;
        model->borrowed = lent;
        const bool copied = lent.copied;
        if (copied) TRY(backend->ops->buffer_new(backend, model_weights_bytes(model), &model->copied));
        log_info("%s: weights in the memory of another process, %s", path,
                 copied ? "which are copied on the device" : "which are used in place");
        if (model->borrowed_base) {
            const struct weights_source base = {.values = model->borrowed_base, .hash = &lent.base_hash};
            TRY(weights_load(&model->weights->base, &base));
            qwen_set_base_hash(model->weights, lent.base_hash);
        }
        const struct weights_source source = {.values = copied ? model->copied : lent.imported, .hash = &hash};
        TRY(weights_load(weights, &source));
    }
    if (model->copied) { // copy again, or for the first time
        struct param_array from;
        param_array_view(&from, model->borrowed.imported, table, table->range_count, weights->type, weights->type);
        for (int i = 0; i < table->range_count; i++)
            TRY(backend->ops->copy(backend, param_range(&weights->values, i), param_range(&from, i)));
        TRY(backend->ops->wait(backend));
        if (!shared_weights_intact(&model->borrowed)) {
            model_return_weights(model);
            return fail(BAD_SAMPLE, "%s: the weights changed while they were copied", path);
        }
    }
    weights->hash = hash;
    model->version = version;
    return OK;
}

status model_swap(struct model *model, const char *path, int64_t version, uint64_t hash) {
    struct safetensors *store = NULL;
    uint64_t found = 0;
    bool lent;
    int lock;
    if (model->options.training) return fail(BUG, "the weights of a model in training cannot be replaced");
    TRY(shared_weights_is_page(path, &lent));
    if (lent) return model_swap_lent(model, path, version, hash);
    TRY(model_load_base(model));
    TRY(file_lock_shared(path, &lock));
    struct weights *weights = qwen_trained(model->weights);
    status result = safetensors_open(&store, path);
    if (result == OK) {
        result = weights_hash_stored(model->backend, &weights->table, store, weights->type, &found);
        if (result != OK) fail_prefix(result, "%s", path);
    }
    if (result == OK && found != hash) result = model_wrong_hash(path, found, hash);
    if (result == OK) {
        model_unload_weights(model);
        const struct weights_source source = {.store = store, .hash = &hash};
        result = weights_load(weights, &source);
    }
    if (result == OK) model->version = version;
    safetensors_close(&store);
    close(lock);
    return result;
}

bool model_weights_intact(const struct model *model) {
    return !model->borrowed.page || model->copied || shared_weights_intact(&model->borrowed);
}

void model_return_weights(struct model *model) {
    if (!model->borrowed.page && !model->borrowed_base) return;
    model_unload_weights(model);
    model_unload_base(model);
}

status model_reset(struct model *model, uint64_t hash) {
    if (model->options.training) return fail(BUG, "the weights of a model in training cannot be replaced");
    uint64_t found = 0;
    if (model->version == 0 && model_has_values(qwen_trained(model->weights))) {
        TRY(model_hash(model, &found));
        return found == hash ? OK : model_wrong_hash(model->dir, found, hash);
    }
    struct qwen_weights *weights;
    uint64_t base_hash;
    status result = model_new_weights(model, model->weights->base.type, &weights);
    if (result == OK) result = model_load_base(model);
    if (result == OK && model->options.lora) {
        result = weights_hash(&model->weights->base, &base_hash);
        if (result == OK) qwen_set_base_hash(weights, base_hash);
    }
    if (result == OK) result = model_load_first(model, weights);
    if (result == OK) result = weights_hash(qwen_trained(weights), &found);
    if (result == OK && found != hash) result = model_wrong_hash(model->dir, found, hash);
    if (result == OK) {
        model_unload_weights(model);
        model->version = 0;
        if (model->options.lora) { // the base stays where it is
            result = model_load_first(model, model->weights);
        } else {
            struct qwen_weights *none = model->weights;
            model->weights = weights;
            weights = none;
        }
    }
    model_free_weights(&weights);
    return result;
}

status model_load_stored(struct model *model, const char *path, const char *prefix, int64_t version) {
    struct weights *weights = qwen_trained(model->weights);
    struct safetensors *store = NULL;
    int lock;
    if (model->options.training) return fail(BUG, "the weights of a model in training cannot be replaced");
    TRY(model_load_base(model));
    TRY(file_lock_shared(path, &lock));
    status result = safetensors_open_part(&store, path, prefix);
    if (result == OK) {
        result = parameter_table_check(&weights->table, store);
        if (result != OK) fail_prefix(result, "%s", path);
    }
    if (result == OK) {
        model_unload_weights(model);
        const struct weights_source source = {.store = store};
        result = weights_load(weights, &source);
    }
    if (result == OK) model->version = version;
    safetensors_close(&store);
    close(lock);
    return result;
}

// ---- training ----

static status model_leaf_missing(const struct model *model) {
    return model->trainer.leaf_awaited ? fail(BUG, "the leaf of this turn is missing") : OK;
}

status model_turn(struct model *model, int sources) {
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    const struct ranks *ranks = model->options.ranks;
    struct trainer *trainer = &model->trainer;
    if (!ranks) return OK;
    if (sources < 1 || sources > ranks->count)
        return fail(BUG, "a turn of %d leaves, but there are %d ranks", sources, ranks->count);
    TRY(model_leaf_missing(model));
    trainer->leaf_awaited = ranks->own < sources;
    if (trainer->leaf_awaited) return OK;
    TRY(step_sums_begin(&trainer->optimizer.grads, 0));
    return step_sums_end(&trainer->optimizer.grads);
}

// A step without any medium leaves the vision tower and its moments as they are.
status model_step(struct model *model, const struct optimizer_options *options, double *norm) {
    struct trainer *trainer = &model->trainer;
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    struct optimizer *optimizer = &trainer->optimizer;
    struct ranks *ranks = model->options.ranks;
    TRY(model_leaf_missing(model));
    if (ranks) { // of any rank
        bool *has_grad;
        NEW(&has_grad, (size_t)ranks->count);
        has_grad[ranks->own] = trainer->vision_has_grad;
        const status result = ranks_gather(ranks, has_grad, sizeof *has_grad);
        for (int rank = 0; rank < ranks->count; rank++) trainer->vision_has_grad |= has_grad[rank];
        free(has_grad);
        TRY(result);
    }
    TRY(step_sums_norm(&optimizer->grads, norm));
    bool vision = trainer->vision_has_grad && optimizer->grads.sums.ranges > TEXT_RANGES;
    shared_weights_begin_change(&trainer->lent[0]);
    struct weights *trained = qwen_trained(model->weights);
    TRY(optimizer_step(optimizer, &trained->values, vision ? GROUP_VISION + 1 : GROUP_TEXT + 1, options, *norm));
    trainer->vision_has_grad = false;
    model->version++;
    trained->hash_known = false;
    return OK;
}

status model_update_ema(struct model *model, double decay) {
    struct trainer *trainer = &model->trainer;
    const struct param_array *weights = &qwen_trained(model->weights)->values;
    if (!trainer->reference.buffer) return fail(BUG, "the model was opened without a reference");
    shared_weights_begin_change(&trainer->lent[1]);
    const size_t buckets = parameter_table_buckets(weights->table, trainer->optimizer.grads.sums.ranges);
    for (size_t i = 0; i < buckets; i++) {
        const struct param_piece own = shard_own(&weights->table->buckets[i], model->options.ranks);
        if (own.first == own.end) continue;
        struct tensor to = param_slice(&trainer->reference, own), from = param_slice(weights, own);
        TRY(model->backend->ops->ema(model->backend, to, param_remainders(&trainer->reference, to), from,
                                     param_remainders(weights, from), decay));
    }
    return shard_gather(model->backend, &trainer->reference, buckets, model->options.ranks, trainer->devices);
}

// ---- files ----

// Writes the adapters under the names that they have beside the names in the opened directory.
static status model_save_adapters(struct model *model, const char *dir) {
    const struct weights *adapters = &model->weights->adapters;
    const struct parameter_table *table = &adapters->table;
    const struct adapters_config config = {model->options.lora, model->options.lora_alpha};
    const struct parameter_table *base = &model->weights->base.table;
    const bool leader = !model->options.ranks || model->options.ranks->own == 0;
    const bool nested = !safetensors_find(model->store, base->list[model->weights->embedding.first].name);
    struct arena arena = {0};
    struct tensor_list list = tensor_list_make(&arena, table->count);
    list.share = model->trainer.share.share;
    for (size_t i = 0; i < table->count; i++)
        tensor_list_add(&list, &adapters->values, &table->list[i], nested ? table->list[i].alias : table->list[i].name,
                        ELEMENT_F32);
    status result = rank_share_agree(&model->trainer.share, leader ? dir_make(dir) : OK);
    if (result == OK) result = tensor_list_write(&list, model->backend, path_join(&arena, dir, adapters_file), true);
    if (result == OK && leader) result = adapters_config_write(&config, model->dir, dir);
    if (result == OK && leader) result = dir_sync(dir);
    arena_release(&arena);
    return rank_share_agree(&model->trainer.share, result);
}

status model_save(struct model *model, const char *dir) {
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    if (model->options.lora) return model_save_adapters(model, dir);
    const struct parameter_table *table = &model->weights->base.table;
    const struct safetensors *store = model->store;
    const size_t count = safetensors_count(store);
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    const bool leader = !model->options.ranks || model->options.ranks->own == 0;
    status result = leader ? dir_make(dir) : OK;
    if (result == OK) result = parameter_table_match(table, store, found);
    result = rank_share_agree(&model->trainer.share, result);
    for (size_t i = 0; result == OK && i < count;) { // one file after another
        const char *file = safetensors_at(store, i)->file;
        struct tensor_list list = tensor_list_make(&arena, count - i);
        list.share = model->trainer.share.share;
        for (; i < count && strcmp(safetensors_at(store, i)->file, file) == 0; i++) {
            const struct stored_tensor *stored = safetensors_at(store, i);
            const struct parameter *parameter = parameter_of_stored(table, found, stored);
            if (!parameter)
                parameter = &table->list[model->weights->embedding.first]; // the stored head of a tied model
            tensor_list_add(&list, &model->weights->base.values, parameter, stored->name, stored->type);
        }
        result = tensor_list_write(&list, model->backend, path_join(&arena, dir, path_base_name(file)), true);
        result = rank_share_agree(&model->trainer.share, result); // rank 0 alone renames it
    }
    if (result == OK && leader) result = checkpoint_copy_files(model->dir, dir, store, NULL);
    if (result == OK && leader) result = dir_sync(dir);
    arena_release(&arena);
    return rank_share_agree(&model->trainer.share, result);
}

static struct training_state model_state(struct model *model) {
    struct trainer *trainer = &model->trainer;
    return (struct training_state){.backend = model->backend,
                                   .share = &trainer->share.share,
                                   .arrays = {{"master", &qwen_trained(model->weights)->values},
                                              {"first", &trainer->optimizer.exp_avg},
                                              {"second", &trainer->optimizer.exp_avg_sq},
                                              {"reference", &trainer->reference}},
                                   .counters = {{"step", &trainer->optimizer.steps[GROUP_TEXT]},
                                                {"tower_step", &trainer->optimizer.steps[GROUP_VISION]},
                                                {"version", &model->version}}};
}

status model_save_state(struct model *model, const char *dir) {
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    const struct training_state state = model_state(model);
    return rank_share_agree(&model->trainer.share, training_state_save(&state, dir));
}

status model_load_state(struct model *model, const char *dir) {
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    const struct training_state state = model_state(model);
    for (int i = 0; i < 2; i++) shared_weights_begin_change(&model->trainer.lent[i]);
    TRY(rank_share_agree(&model->trainer.share, training_state_load(&state, dir)));
    struct weights *trained = qwen_trained(model->weights);
    trained->hash_known = false;
    const size_t buckets = trained->table.bucket_count;
    struct rank_devices *devices = model->trainer.devices;
    TRY(shard_gather(model->backend, &trained->values, buckets, model->options.ranks, devices));
    if (!model->options.ema) return OK;
    return shard_gather(model->backend, &model->trainer.reference, buckets, model->options.ranks, devices);
}

uint64_t model_saved_bytes(struct model *model, bool whole) {
    const struct training_state state = model_state(model);
    uint64_t bytes = training_state_bytes(&state);
    if (model->options.lora)
        return bytes + (whole ? model->weights->adapters.table.parameter_count * sizeof(float) : 0);
    for (size_t i = 0; whole && i < safetensors_count(model->store); i++) {
        const struct stored_tensor *tensor = safetensors_at(model->store, i);
        bytes += (uint64_t)stored_tensor_count(tensor) * element_size(tensor->type);
    }
    return bytes;
}

status model_save_grads(struct model *model, const char *path) {
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    if (model->options.ranks) return fail(USAGE, "%s: the gradients are divided between ranks", path);
    const struct parameter_table *table = &qwen_trained(model->weights)->table;
    const struct param_array *grads = &model->trainer.optimizer.grads.sums;
    const bool lora = model->options.lora;
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    struct tensor_list list = tensor_list_make(&arena, table->count);
    status result = lora ? OK : parameter_table_match(table, model->store, found);
    for (size_t i = 0; result == OK && i < table->count; i++)
        if (param_array_has(grads, &table->list[i]))
            tensor_list_add(&list, grads, &table->list[i], lora ? table->list[i].name : found[i]->name, ELEMENT_F32);
    if (result == OK) result = tensor_list_write(&list, model->backend, path, true);
    arena_release(&arena);
    return result;
}

// *values = what is published, *hash = its hash.
static status model_published(struct model *model, bool reference, const struct param_array **values, uint64_t *hash) {
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    *values = reference ? &model->trainer.reference : &qwen_trained(model->weights)->values;
    if (!(*values)->buffer) return fail(BUG, "the model was opened without a reference");
    return reference ? weights_hash_array(model->backend, *values, hash) : model_hash(model, hash);
}

status model_publish(struct model *model, bool reference, const char *path, uint64_t *hash) {
    const struct parameter_table *table = &qwen_trained(model->weights)->table;
    const struct param_array *values;
    struct arena arena = {0};
    TRY(model_published(model, reference, &values, hash));
    struct tensor_list list = tensor_list_make(&arena, table->count);
    for (size_t i = 0; i < table->count; i++)
        tensor_list_add(&list, values, &table->list[i], table->list[i].name, model->weights->base.type);
    status result = tensor_list_write(&list, model->backend, path, false);
    arena_release(&arena);
    return result;
}

status model_can_lend(const struct model *model, bool *has_means) {
    const struct operations *ops = model->backend->ops;
    unsigned char handle[IPC_HANDLE_BYTES];
    *has_means = ops->buffer_export != NULL;
    if (!*has_means) return fail(UNAVAILABLE, "device %s cannot share memory", model->backend_info.device);
    if (model->options.lora) TRY(ops->buffer_export(model->backend, model->weights->base.values.buffer, handle));
    return ops->buffer_export(model->backend, qwen_trained(model->weights)->values.buffer, handle);
}

status model_lend(struct model *model, bool reference, bool copied, const char *path, uint64_t *hash) {
    const struct param_array *values;
    TRY(model_published(model, reference, &values, hash));
    struct shared_weights *lent = &model->trainer.lent[reference];
    if (!lent->page) {
        const struct ranks *ranks = model->options.ranks;
        struct shared_offer offer = {.arrays = model_shared_arrays(model), .copied = copied, .lenders = 1};
        if (ranks) offer.lender = ranks->own, offer.lenders = ranks->count;
        offer.arrays.values = values->buffer;
        if (offer.arrays.base) TRY(weights_hash(&model->weights->base, &offer.base_hash));
        TRY(shared_weights_lend(lent, model->backend, &offer, path));
    }
    assert(strcmp(lent->path, path) == 0);
    shared_weights_end_change(lent, *hash);
    return OK;
}
