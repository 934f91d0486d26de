// Training a classifier: the gradient of the cross entropy, the optimizer's step, and the files of both.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/rng.h"
#include "shared/model/modernbert/classifier_internal.h"
#include "shared/model/training_state.h"

// Rows of a pass with more than one text. The sums of a gradient depend on which texts a pass has, so it is the same on
// every device.
enum { TRAINING_ROWS = 4096 };

// ---- what training begins with ----

static status classifier_set(struct classifier *classifier, const struct fused_param *param, const float *values) {
    const struct param_array *weights = &classifier->weights->base.values;
    return parameter_upload(classifier->backend, weights, &weights->table->list[param->first], values, ELEMENT_F32);
}

// A matrix of normal numbers; one that is beyond two deviations is drawn again.
static status classifier_draw(struct classifier *classifier, const struct fused_param *param, double deviation,
                              uint64_t seed) {
    uint64_t key = rng_key(seed, classifier->params->table.list[param->first].name);
    size_t count = (size_t)(param->rows * param->columns);
    float *values = NULL;
    TRY(NEW_LARGE(&values, count));
    for (size_t i = 0; i < count; i++) {
        double number = rng_normal(key, i, 0);
        for (uint64_t again = 1; fabs(number) > 2; again++) number = rng_normal(key, i, again);
        values[i] = (float)(deviation * number);
    }
    status result = classifier_set(classifier, param, values);
    free(values);
    return result;
}

status classifier_start_training(struct classifier *classifier, enum classifier_part fresh, uint64_t seed) {
    const struct classifier_config *config = &classifier->config;
    const struct classifier_parameters *params = classifier->params;
    if (fresh != PART_NONE)
        TRY(classifier_draw(classifier, &params->classifier, 1 / sqrt((double)config->hidden_size), seed));
    if (fresh == PART_HEAD) {
        TRY(classifier_draw(classifier, &params->dense, 0.02 / sqrt(2.0 * config->num_hidden_layers), seed));
        float *ones = NULL;
        NEW(&ones, (size_t)config->hidden_size);
        for (int64_t i = 0; i < config->hidden_size; i++) ones[i] = 1;
        status result = classifier_set(classifier, &params->head_norm, ones);
        free(ones);
        TRY(result);
    }
    return optimizer_init(&classifier->optimizer, classifier->backend, &params->table, params->table.range_count,
                          ELEMENT_F32, ELEMENT_F32);
}

// ---- steps ----

static status classifier_check_training(const struct classifier *classifier) {
    return classifier->training ? OK : fail(BUG, "the classifier was not opened for training");
}

// gradients [S,K] = weight * d cross entropy / d logits; *loss += the sum of the cross entropies.
static void classifier_loss(const float *logits, size_t labels, const int *wanted, size_t count, double weight,
                            float *gradients, double *loss) {
    for (size_t i = 0; i < count; i++) {
        const float *row = logits + i * labels;
        double most = row[0], sum = 0;
        for (size_t k = 1; k < labels; k++) most = fmax(most, row[k]);
        for (size_t k = 0; k < labels; k++) sum += exp(row[k] - most);
        *loss += log(sum) + most - row[wanted[i]];
        for (size_t k = 0; k < labels; k++)
            gradients[i * labels + k] = (float)(weight * (exp(row[k] - most) / sum - ((int)k == wanted[i])));
    }
}

static status classifier_accumulate_pass(struct classifier *classifier, const struct classifier_text *texts,
                                         const int *wanted, size_t count, double weight, double *loss) {
    struct arena arena = {0};
    struct classifier_pass pass = {0};
    size_t labels = (size_t)classifier->info.labels;
    float *logits, *gradients = arena_alloc(&arena, count * labels * sizeof *gradients);
    status result = classifier_forward(&pass, classifier, &arena, texts, count, &logits);
    if (result == OK) {
        classifier_loss(logits, labels, wanted, count, weight, gradients, loss);
        result = isfinite(*loss) ? classifier_backward(&pass, classifier, gradients)
                                 : fail(DATAERR, "the loss is not a finite number");
    }
    classifier_pass_release(&pass, classifier);
    arena_release(&arena);
    return result;
}

status classifier_accumulate(struct classifier *classifier, const struct classifier_text *texts, const int *labels,
                             size_t count, double weight, double *loss) {
    TRY(classifier_check_training(classifier));
    TRY(classifier_check_texts(classifier, texts, count));
    for (size_t first = 0, taken; first < count; first += taken) {
        taken = classifier_pass_texts(texts + first, count - first, TRAINING_ROWS);
        TRY(classifier_accumulate_pass(classifier, texts + first, labels + first, taken, weight, loss));
    }
    return OK;
}

status classifier_step(struct classifier *classifier, const struct optimizer_options *options, double *norm) {
    TRY(classifier_check_training(classifier));
    struct weights *weights = &classifier->weights->base;
    TRY(optimizer_norm(&classifier->optimizer, norm));
    weights->hash_known = false;
    return optimizer_step(&classifier->optimizer, &weights->values, 1, options, *norm);
}

// ---- files ----

// Writes every parameter's numbers under its name: in the type of the opened store, or in float32 if that is `exact`.
static status classifier_write(struct classifier *classifier, const struct param_array *array, bool exact,
                               const char *path) {
    const struct parameter_table *table = &classifier->params->table;
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    struct tensor_list list = tensor_list_make(&arena, table->count);
    status result = parameter_table_match(table, classifier->store, found);
    for (size_t i = 0; result == OK && i < table->count; i++) {
        const size_t like = found[i] ? i : classifier->params->embedding.first; // of what the store lacks
        tensor_list_add(&list, array, &table->list[i], table->list[i].name, exact ? ELEMENT_F32 : found[like]->type);
    }
    if (result == OK) result = tensor_list_write(&list, classifier->backend, path, true);
    arena_release(&arena);
    return result;
}

status classifier_save_grads(struct classifier *classifier, const char *path) {
    TRY(classifier_check_training(classifier));
    return classifier_write(classifier, &classifier->optimizer.grads, true, path);
}

// Writes the opened config.json with the labels that were trained.
static status classifier_save_config(const struct classifier *classifier, const char *dir) {
    static const char labelled[] = "{\"architectures\": [\"ModernBertForSequenceClassification\"],"
                                   " \"model_type\": \"modernbert\","
                                   " \"id2label\": {\"0\": \"inconsistent\", \"1\": \"consistent\"},"
                                   " \"label2id\": {\"inconsistent\": 0, \"consistent\": 1}}";
    struct arena arena = {0};
    struct buf text = {0};
    struct json *root, *labels;
    status result = OK;
    char *from = path_join(&arena, classifier->dir, "config.json"), *to = path_join(&arena, dir, "config.json");
    TRY_TO(result, done, json_parse_file(&root, &arena, from));
    TRY_TO(result, done, json_parse(&labels, &arena, labelled, strlen(labelled)));
    json_remove(root, "num_labels");
    json_remove(root, "problem_type");
    for (size_t i = 0; i < labels->count; i++) json_remove(root, labels->items[i].key.data);
    json_merge(root, &arena, labels);
    json_print(&text, root);
    buf_puts(&text, "\n");
    result = file_write_atomic(to, text.data, text.size);
done:
    buf_release(&text);
    arena_release(&arena);
    return result;
}

status classifier_save(struct classifier *classifier, const char *dir) {
    static const char *const others[] = {"config.json", "model.safetensors.index.json", NULL};
    struct arena arena = {0};
    TRY(classifier_check_training(classifier));
    status result = dir_make(dir);
    if (result == OK)
        result = classifier_write(classifier, &classifier->weights->base.values, false,
                                  path_join(&arena, dir, "model.safetensors"));
    if (result == OK) result = checkpoint_copy_files(classifier->dir, dir, classifier->store, others);
    if (result == OK) result = classifier_save_config(classifier, dir);
    if (result == OK) result = dir_sync(dir);
    arena_release(&arena);
    return result;
}

static struct training_state classifier_state(struct classifier *classifier) {
    struct optimizer *optimizer = &classifier->optimizer;
    return (struct training_state){.backend = classifier->backend,
                                   .table = &classifier->params->table,
                                   .arrays = {{"master", &classifier->weights->base.values},
                                              {"first", &optimizer->exp_avg},
                                              {"second", &optimizer->exp_avg_sq}},
                                   .counters = {{"step", &optimizer->steps[0]}}};
}

status classifier_save_state(struct classifier *classifier, const char *dir) {
    TRY(classifier_check_training(classifier));
    const struct training_state state = classifier_state(classifier);
    return training_state_save(&state, dir);
}

status classifier_load_state(struct classifier *classifier, const char *dir) {
    TRY(classifier_check_training(classifier));
    const struct training_state state = classifier_state(classifier);
    classifier->weights->base.hash_known = false;
    return training_state_load(&state, dir);
}
