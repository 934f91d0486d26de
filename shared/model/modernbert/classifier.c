// A classifier's life: open a directory, score, free everything.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/model/classifier.h"
#include "shared/model/model_shapes.h"
#include "shared/model/modernbert/classifier_internal.h"
// The rotary angles of one kind of layer. Hugging Face rounds the cosines and sines to the type of the activations.
static struct rope_angles classifier_rope(const struct classifier_config *config, float theta, enum element type) {
    int pairs = config->head_dim / 2;
    struct rope_angles angles = {
        .theta = (double)theta, .pairs = pairs, .period = pairs, .rounded = type == ELEMENT_BF16};
    angles.table.sections[0] = pairs;
    return angles;
}

// Decides what training begins fresh, and checks the configuration.
static status classifier_plan(struct classifier *classifier, enum classifier_part *fresh) {
    struct classifier_config *config = &classifier->config;
    const struct safetensors *store = classifier->store;
    *fresh = PART_NONE;
    if (!classifier->training) return classifier_config_check_labels(config, classifier->dir);
    if (config->dropout)
        return fail(DATAERR, "%s/config.json: %s is above 0; training has no dropout", classifier->dir,
                    config->dropout);
    if (!config->trains_labels || !safetensors_find(store, "classifier.weight")) *fresh = PART_CLASSIFIER;
    if (!safetensors_find(store, "head.dense.weight") && !safetensors_find(store, "head.norm.weight"))
        *fresh = PART_HEAD;
    config->labels = 2;
    config->consistent = 1;
    return OK;
}

// Opens everything; after a failure the caller frees what there is.
static status classifier_load(struct classifier *classifier, const struct classifier_options *options) {
    const struct classifier_config *config = &classifier->config;
    const struct backend_options backend = {
        .device = options->device, .threads = options->threads, .f32_parts = options->training ? 3 : 2};
    const struct weights_source source = {.store = classifier->store, .training = options->training};
    enum element type;
    enum classifier_part fresh;
    TRY(classifier_plan(classifier, &fresh));
    TRY(weights_open_backend(&backend, options->precision, &classifier->backend, &classifier->backend_info, &type));
    classifier->workspace.backend = classifier->backend;
    TRY(classifier_parameters_new(&classifier->params, config, fresh));
    classifier->global_rope = classifier_rope(config, config->global_rope_theta, type);
    classifier->local_rope = classifier_rope(config, config->local_rope_theta, type);
    classifier->info = (struct classifier_info){.vocab_size = config->vocab_size,
                                                .labels = config->labels,
                                                .consistent = config->consistent,
                                                .precision = type == ELEMENT_BF16 ? "bfloat16" : "float32",
                                                .parameter_count = classifier->params->table.parameter_count};
    TRY(classifier_weights_load(&classifier->weights, classifier->backend, classifier->params, type, &source));
    if (options->training) return classifier_start_training(classifier, fresh, options->seed);
    safetensors_close(&classifier->store);
    return OK;
}

status classifier_open(struct classifier **out, const char *dir, const struct classifier_options *options) {
    NEW(out, 1);
    (*out)->training = options->training;
    (*out)->dir = arena_strndup(&(*out)->arena, dir, strlen(dir));
    status result = classifier_config_read(&(*out)->config, dir);
    if (result == OK) result = safetensors_open_dir(&(*out)->store, dir);
    if (result == OK) result = classifier_load(*out, options);
    if (result != OK) classifier_free(out);
    return result;
}

status classifier_check_files(const char *dir, int64_t *vocab_size) {
    struct classifier_config config;
    struct classifier_parameters *params = NULL;
    struct safetensors *store = NULL;
    TRY(classifier_config_read(&config, dir));
    *vocab_size = config.vocab_size;
    TRY(classifier_config_check_labels(&config, dir));
    TRY(classifier_parameters_new(&params, &config, PART_NONE));
    status result = safetensors_open_dir(&store, dir);
    if (result == OK) result = parameter_table_check(&params->table, store);
    safetensors_close(&store);
    classifier_parameters_free(&params);
    return result;
}

void classifier_free(struct classifier **freed) {
    struct classifier *classifier = *freed;
    if (!classifier) return;
    if (classifier->backend) {
        optimizer_release(&classifier->optimizer);
        classifier_weights_free(&classifier->weights);
        workspace_release(&classifier->workspace);
        rope_angles_release(&classifier->global_rope, classifier->backend);
        rope_angles_release(&classifier->local_rope, classifier->backend);
        kv_scratch_release(&classifier->kv, classifier->backend);
    }
    safetensors_close(&classifier->store);
    classifier_parameters_free(&classifier->params);
    backend_close(&classifier->backend);
    arena_release(&classifier->arena);
    free(classifier);
    *freed = NULL;
}

const struct classifier_info *classifier_get_info(const struct classifier *classifier) {
    return &classifier->info;
}

status classifier_hash(struct classifier *classifier, uint64_t *hash) {
    return weights_hash(&classifier->weights->base, hash);
}

// The probabilities of the texts of one pass.
static status classifier_score_pass(struct classifier *classifier, const struct classifier_text *texts, size_t count,
                                    double *probabilities) {
    struct arena arena = {0};
    struct classifier_pass pass = {0};
    size_t labels = (size_t)classifier->info.labels;
    float *logits;
    status result = classifier_forward(&pass, classifier, &arena, texts, count, &logits);
    for (size_t i = 0; result == OK && i < count; i++) {
        double sum = 0, own = logits[i * labels + (size_t)classifier->info.consistent];
        for (size_t k = 0; k < labels; k++) sum += exp(logits[i * labels + k] - own);
        probabilities[i] = 1 / sum;
        if (isnan(sum)) result = fail(DATAERR, "%s: the logits are not finite", classifier->dir);
    }
    classifier_pass_release(&pass, classifier);
    arena_release(&arena);
    return result;
}

status classifier_score(struct classifier *classifier, const struct classifier_text *texts, size_t count,
                        double *probabilities) {
    TRY(classifier_check_texts(classifier, texts, count));
    for (size_t first = 0, taken; first < count; first += taken) {
        taken = classifier_pass_texts(texts + first, count - first, CLASSIFIER_PASS_ROWS);
        TRY(classifier_score_pass(classifier, texts + first, taken, probabilities + first));
    }
    return OK;
}

// ---- memory ----

// What a classifier that scores needs of its device's memory. The sizes come from the functions that stand beside what
// allocates them.

status classifier_memory_needs(const char *model, const char *precision, bool on_cpu, int64_t text_tokens,
                               int64_t tokens, struct memory_item *out, size_t *count) {
    struct classifier_config config;
    struct classifier_parameters *params;
    struct memory_list list = {out, count};
    enum { CPU_ROWS = 2048 }; // of an MLP that the CPU computes at a time
    const enum element type = memory_list_type(precision);
    *count = 0;
    assert(text_tokens > 0 && tokens >= text_tokens);
    TRY(classifier_config_read_shape(&config, model));
    if (!named_shape_exists(model)) TRY(classifier_config_check_labels(&config, model)); // a shape names no labels
    TRY(classifier_parameters_new(&params, &config, PART_NONE));
    const struct transformer encoder = classifier_encoder(params);
    int64_t rows = tokens < CLASSIFIER_PASS_ROWS ? tokens : CLASSIFIER_PASS_ROWS;
    if (rows < text_tokens) rows = text_tokens;
    const int64_t chunk = !on_cpu || rows < CPU_ROWS ? rows : CPU_ROWS;
    const int64_t texts = (rows + text_tokens - 1) / text_tokens;
    memory_list_add(&list, "weights", param_array_bytes(&params->table, params->table.range_count, type, type));
    memory_list_add(&list, "working memory", classifier_pass_bytes(&encoder, type, rows, texts, config.labels, chunk));
    memory_list_add(&list, "scratch for keys and values",
                    memory_list_cache_bytes(encoder.heads, on_cpu ? ELEMENT_F32 : type, rows));
    memory_list_add(&list, "rotary angles", 2 * rope_angles_bytes(config.head_dim / 2, text_tokens));
    classifier_parameters_free(&params);
    return OK;
}
