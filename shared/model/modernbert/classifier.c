// A classifier's life: open a directory, score, train, free everything; what scoring needs of its device's memory.
#include "shared/model/classifier.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/rng.h"
#include "shared/model/model_shapes.h"
#include "shared/model/modernbert/classifier_weights.h"
#include "shared/model/training_state.h"
#include "shared/model/workspace.h"

enum {
    PASS_ROWS = 8192, // most of a scoring pass with several texts; they bound the working memory
    // Of a training pass with more than one text. The sums of a gradient depend on which texts a pass has, so it is the
    // same on every device.
    TRAINING_ROWS = 4096,
};

struct classifier {
    struct arena arena; // the strings below
    struct backend *backend;
    struct backend_info backend_info;
    const char *dir;
    bool training;
    struct classifier_config config; // in training with the labels that it trains
    struct safetensors *store;       // training: stays open for its types
    struct classifier_weights weights;
    struct classifier_info info;
    struct workspace workspace;
    struct rope_angles global_rope, local_rope;
    struct kv_scratch kv;
    struct optimizer optimizer; // training
};

// The rotary angles of one kind of layer. Hugging Face rounds the cosines and sines to the type of the activations.
static struct rope_angles classifier_rope(const struct classifier_config *config, float theta, enum element type) {
    int pairs = config->head_dim / 2;
    struct rope_angles angles = {
        .theta = (double)theta, .pairs = pairs, .period = pairs, .rounded = type == ELEMENT_BF16};
    angles.table.sections[0] = pairs;
    return angles;
}

static status classifier_set(struct classifier *classifier, const struct fused_param *param, const float *values) {
    const struct param_array *weights = &classifier->weights.base.values;
    return parameter_upload(classifier->backend, weights, &weights->table->list[param->first], param_whole, values, 0,
                            ELEMENT_F32);
}

// A matrix of normal numbers; one that is beyond two deviations is drawn again.
static status classifier_draw(struct classifier *classifier, const struct fused_param *param, double deviation,
                              uint64_t seed) {
    uint64_t key = rng_key(seed, classifier->weights.base.table.list[param->first].name);
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

// Opens everything; after a failure the caller frees what there is.
static status classifier_load(struct classifier *classifier, const struct classifier_options *options) {
    struct classifier_config *config = &classifier->config;
    struct classifier_weights *weights = &classifier->weights;
    const struct backend_options backend = {
        .device = options->device, .threads = options->threads, .f32_parts = options->training ? 3 : 2};
    enum element type;
    enum classifier_part fresh = PART_NONE;
    TRY(classifier_config_read(config, classifier->dir));
    TRY(safetensors_open_dir(&classifier->store, classifier->dir));
    const struct safetensors *store = classifier->store;
    const struct weights_source source = {.store = store, .training = options->training};
    if (options->training) {
        if (config->dropout)
            return fail(DATAERR, "%s/config.json: %s is above 0; training has no dropout", classifier->dir,
                        config->dropout);
        if (!config->trains_labels || !safetensors_find(store, "classifier.weight")) fresh = PART_CLASSIFIER;
        if (!safetensors_find(store, "head.dense.weight") && !safetensors_find(store, "head.norm.weight"))
            fresh = PART_HEAD;
        config->labels = 2;
        config->consistent = 1;
    } else {
        TRY(classifier_config_check_labels(config, classifier->dir));
    }
    TRY(weights_open_backend(&backend, options->precision, &classifier->backend, &classifier->backend_info, &type));
    classifier->workspace.backend = classifier->backend;
    TRY(classifier_weights_init(weights, config, fresh));
    weights->base.backend = classifier->backend;
    weights->base.type = type;
    classifier->global_rope = classifier_rope(config, config->global_rope_theta, type);
    classifier->local_rope = classifier_rope(config, config->local_rope_theta, type);
    classifier->info = (struct classifier_info){.vocab_size = config->vocab_size,
                                                .labels = config->labels,
                                                .consistent = config->consistent,
                                                .precision = type == ELEMENT_BF16 ? "bfloat16" : "float32",
                                                .parameter_count = weights->base.table.parameter_count};
    TRY(weights_load(&weights->base, &source));
    if (!options->training) {
        safetensors_close(&classifier->store);
        return OK;
    }

    // What the checkpoint lacks, as transformers draws it: classifier.weight from N(0, C^-1/2), head.dense.weight from
    // N(0, 0.02 / sqrt(2 L)), both cut at two standard deviations; head.norm.weight is 1, biases stay 0. Each number is
    // a function of the seed, the tensor's name and the index.
    if (fresh != PART_NONE)
        TRY(classifier_draw(classifier, &weights->classifier, 1 / sqrt((double)config->hidden_size), options->seed));
    if (fresh == PART_HEAD) {
        TRY(classifier_draw(classifier, &weights->dense, 0.02 / sqrt(2.0 * config->num_hidden_layers), options->seed));
        float *ones = arena_alloc(&classifier->arena, (size_t)config->hidden_size * sizeof *ones);
        for (int64_t i = 0; i < config->hidden_size; i++) ones[i] = 1;
        TRY(classifier_set(classifier, &weights->head_norm, ones));
    }
    return optimizer_init(&classifier->optimizer, classifier->backend, &weights->base.table,
                          weights->base.table.range_count, (struct gradient_types){type, ELEMENT_F32, ELEMENT_F32},
                          ELEMENT_F32, NULL, NULL);
}

status classifier_open(struct classifier **out, const char *dir, const struct classifier_options *options) {
    NEW(out, 1);
    (*out)->training = options->training;
    (*out)->dir = arena_strndup(&(*out)->arena, dir, strlen(dir));
    const status result = classifier_load(*out, options);
    if (result != OK) classifier_free(out);
    return result;
}

status classifier_check_files(const char *dir, int64_t *vocab_size) {
    struct classifier_config config;
    struct classifier_weights weights;
    struct safetensors *store = NULL;
    TRY(classifier_config_read(&config, dir));
    *vocab_size = config.vocab_size;
    TRY(classifier_config_check_labels(&config, dir));
    TRY(classifier_weights_init(&weights, &config, PART_NONE));
    status result = safetensors_open_dir(&store, dir);
    if (result == OK) result = parameter_table_check(&weights.base.table, store);
    safetensors_close(&store);
    weights_release(&weights.base);
    return result;
}

void classifier_free(struct classifier **freed) {
    struct classifier *classifier = *freed;
    if (!classifier) return;
    if (classifier->backend) {
        optimizer_release(&classifier->optimizer);
        weights_release(&classifier->weights.base);
        workspace_release(&classifier->workspace);
        rope_angles_release(&classifier->global_rope, classifier->backend);
        rope_angles_release(&classifier->local_rope, classifier->backend);
        kv_scratch_release(&classifier->kv, classifier->backend);
    }
    safetensors_close(&classifier->store);
    backend_close(&classifier->backend);
    arena_release(&classifier->arena);
    free(classifier);
    *freed = NULL;
}

const struct classifier_info *classifier_get_info(const struct classifier *classifier) {
    return &classifier->info;
}

status classifier_hash(struct classifier *classifier, uint64_t *hash) {
    return weights_hash(&classifier->weights.base, hash);
}

// ---- pass ----

// Several texts in one pass, forward and backward, packed one behind the other: T rows, S texts. Each text attends to
// itself alone, so its logits do not depend on the others.
struct classifier_pass {
    struct forward_state fwd;
    struct attention_plan *global_plan, *local_plan;
    size_t texts;
    struct tensor token_ids;      // I32 [T,1]
    struct tensor begins;         // I32 [S+1,1]: the first row of each text, then T
    struct tensor final_norm;     // statistics, F32 [T,2]; of training, as those of the embedding's norm below
    struct tensor embedding_norm; // F32 [T,2]
    struct tensor pooled;         // [S,C]
    struct tensor dense_out;      // [S,C]: of the head's first layer
    struct tensor gelu_out;       // [S,C]
    struct tensor head_norm;      // statistics, F32 [S,2]
    struct tensor head_out;       // [S,C]
    struct tensor logits;         // F32 [S,K]
};

static status classifier_alloc(const struct classifier_pass *pass, int64_t rows, int64_t columns, struct tensor *out) {
    return workspace_alloc(pass->fwd.workspace, pass->fwd.type, rows, columns, out);
}

// BAD_SAMPLE: a text is empty or has a token outside the vocabulary.
static status classifier_check_texts(const struct classifier *classifier, const struct classifier_text *texts,
                                     size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (texts[i].count == 0) return fail(BAD_SAMPLE, "text %zu is empty", i);
        for (size_t t = 0; t < texts[i].count; t++)
            if (texts[i].tokens[t] < 0 || texts[i].tokens[t] >= classifier->config.vocab_size)
                return fail(BAD_SAMPLE, "text %zu has the token %lld, which is not in the vocabulary", i,
                            (long long)texts[i].tokens[t]);
    }
    return OK;
}

// Returns how many of the texts, at least one, make a pass of not many more than `rows` rows.
static size_t classifier_pass_texts(const struct classifier_text *texts, size_t count, int64_t rows) {
    int64_t sum = 0;
    size_t taken = 0;
    while (taken < count && (taken == 0 || sum + (int64_t)texts[taken].count <= rows))
        sum += (int64_t)texts[taken++].count;
    return taken;
}

// Uploads the indices of the texts' rows, and makes the attention plans.
static status classifier_pass_layout(struct classifier_pass *pass, struct classifier *classifier, struct arena *arena,
                                     const struct classifier_text *texts) {
    struct forward_state *fwd = &pass->fwd;
    const struct operations *ops = classifier->backend->ops;
    size_t rows = (size_t)fwd->rows;
    int32_t *ids = arena_alloc(arena, rows * sizeof *ids), *slots = arena_alloc(arena, rows * sizeof *slots);
    int32_t *positions = arena_alloc(arena, 3 * rows * sizeof *positions);
    int32_t *begins = arena_alloc(arena, (pass->texts + 1) * sizeof *begins);
    struct attention_span *spans = arena_alloc(arena, pass->texts * sizeof *spans);
    size_t row = 0, longest = 0;
    for (size_t i = 0; i < pass->texts; i++) {
        int64_t first = (int64_t)row, count = (int64_t)texts[i].count;
        begins[i] = (int32_t)first;
        spans[i] = (struct attention_span){.q_begin = first, .q_len = count, .kv_begin = first, .visible = count};
        if (texts[i].count > longest) longest = texts[i].count;
        for (size_t t = 0; t < texts[i].count; t++, row++) {
            ids[row] = (int32_t)texts[i].tokens[t];
            slots[row] = (int32_t)row;
            for (int axis = 0; axis < 3; axis++) positions[3 * row + (size_t)axis] = (int32_t)t;
        }
    }
    assert(row == rows);
    begins[pass->texts] = (int32_t)row;
    TRY(rope_angles_reserve(&classifier->global_rope, classifier->backend, (int64_t)longest));
    TRY(rope_angles_reserve(&classifier->local_rope, classifier->backend, (int64_t)longest));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, fwd->rows, 1, ids, &pass->token_ids));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, fwd->rows, 3, positions, &fwd->position_ids));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, fwd->rows, 1, slots, &fwd->cache_slots));
    TRY(workspace_upload(fwd->workspace, ELEMENT_I32, (int64_t)pass->texts + 1, 1, begins, &pass->begins));
    struct tensor grad_slots = classifier->training ? fwd->cache_slots : (struct tensor){0};
    TRY(ops->attention_plan_new(classifier->backend, &pass->global_plan, fwd->transformer->heads, spans, pass->texts,
                                grad_slots));
    for (size_t i = 0; i < pass->texts; i++) spans[i].window = classifier->config.window;
    return ops->attention_plan_new(classifier->backend, &pass->local_plan, fwd->transformer->heads, spans, pass->texts,
                                   grad_slots);
}

// Prepares layer `index`: global or local.
static void classifier_pass_layer(struct classifier_pass *pass, const struct classifier *classifier, int index) {
    const bool full = classifier->config.full_attention[index];
    pass->fwd.plan = full ? pass->global_plan : pass->local_plan;
    pass->fwd.rope = full ? &classifier->global_rope.table : &classifier->local_rope.table;
}

// The bytes of working memory of a scoring pass over the rows of so many texts: the rows' x, delta and indices, the
// head, and a block. What is allocated after the last block is smaller than that.
static size_t classifier_pass_bytes(const struct transformer *encoder, enum element type, int64_t rows, int64_t texts,
                                    int64_t labels, int64_t chunk_rows) {
    size_t row_bytes = (size_t)encoder->hidden_size * element_size(type), indices = 5 * sizeof(int32_t);
    size_t head = 4 * row_bytes + sizeof(int32_t) + (size_t)labels * sizeof(float);
    return (size_t)rows * (2 * row_bytes + indices) + (size_t)texts * head +
           block_work_bytes(encoder, type, rows, chunk_rows);
}

// *logits [S,K] = the logits of the texts, in the arena, as is the rest of the host's part. What the backward pass
// needs is kept in the workspace if the classifier is training. The caller calls classifier_pass_release, also after a
// failure.
static status classifier_forward(struct classifier_pass *pass, struct classifier *classifier, struct arena *arena,
                                 const struct classifier_text *texts, size_t count, float **logits) {
    const struct classifier_weights *weights = &classifier->weights;
    struct backend *backend = classifier->backend;
    const struct operations *ops = backend->ops;
    const struct tensor none = {0};
    enum element type = weights->base.type;
    const int64_t labels = classifier->info.labels, text_count = (int64_t)count;
    int64_t rows = 0;
    for (size_t i = 0; i < count; i++) rows += (int64_t)texts[i].count;
    *pass = (struct classifier_pass){
        .texts = count,
        .fwd = forward_start(&weights->encoder, &classifier->workspace, &classifier->backend_info, type, rows)};
    struct forward_state *fwd = &pass->fwd;
    const int64_t hidden_size = fwd->transformer->hidden_size;
    if (classifier->backend_info.memory && !classifier->training) // one chunk: the end of each of several stays unused
        workspace_expect(fwd->workspace,
                         classifier_pass_bytes(fwd->transformer, type, rows, text_count, labels, fwd->chunk_rows));
    TRY(kv_scratch_reserve(&classifier->kv, backend, type, rows, fwd->transformer->heads));
    fwd->cache = classifier->kv.cache;
    TRY(classifier_pass_layout(pass, classifier, arena, texts));

    // What outlives a layer, and what the backward pass needs.
    TRY(forward_alloc(fwd));
    TRY(classifier_alloc(pass, text_count, hidden_size, &pass->pooled));
    TRY(classifier_alloc(pass, text_count, hidden_size, &pass->dense_out));
    TRY(classifier_alloc(pass, text_count, hidden_size, &pass->gelu_out));
    TRY(classifier_alloc(pass, text_count, hidden_size, &pass->head_out));
    TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, text_count, labels, &pass->logits));
    if (classifier->training) {
        const int layers = fwd->transformer->block_count;
        TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, rows, 2, &pass->embedding_norm));
        TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, rows, 2, &pass->final_norm));
        TRY(workspace_alloc(fwd->workspace, ELEMENT_F32, text_count, 2, &pass->head_norm));
        fwd->kept = arena_alloc(arena, (size_t)layers * sizeof *fwd->kept);
        for (int i = 0; i < layers; i++) TRY(block_keep(fwd, KEEP_INPUT, &fwd->kept[i]));
    }

    TRY(ops->gather(backend, fwd->x, weights->embedding.values, pass->token_ids));
    TRY(ops->layernorm(backend, fwd->x, fwd->x, none, weights->embedding_norm.values,
                       weights->embedding_norm_bias.values, fwd->transformer->eps, pass->embedding_norm));
    for (int i = 0; i < fwd->transformer->block_count; i++) {
        classifier_pass_layer(pass, classifier, i);
        TRY(block_forward(fwd, i));
    }
    struct workspace_mark mark = workspace_save(fwd->workspace);
    struct tensor normed;
    TRY(classifier_alloc(pass, rows, hidden_size, &normed));
    TRY(forward_norm(fwd, normed, &weights->final_norm, &weights->final_norm_bias, pass->final_norm));
    if (classifier->config.pools_mean)
        TRY(ops->segment_mean(backend, pass->pooled, normed, pass->begins));
    else
        TRY(ops->gather(backend, pass->pooled, normed, tensor_rows(pass->begins, 0, text_count)));
    workspace_restore(fwd->workspace, mark);
    TRY(ops->linear(backend, pass->dense_out, pass->pooled, weights->dense.weight, weights->dense_bias.values, false));
    TRY(ops->activation(backend, ACTIVATION_GELU, pass->gelu_out, pass->dense_out));
    TRY(ops->layernorm(backend, pass->head_out, pass->gelu_out, none, weights->head_norm.values,
                       weights->head_norm_bias.values, fwd->transformer->eps, pass->head_norm));
    TRY(ops->linear(backend, pass->logits, pass->head_out, weights->classifier.weight, weights->classifier_bias.values,
                    false));
    *logits = arena_alloc(arena, count * (size_t)labels * sizeof **logits);
    return ops->download(backend, *logits, ELEMENT_F32, pass->logits);
}

// Computes a leaf, the gradients of all parameters, given that of the logits, F32 [S,K] on the host.
static status classifier_backward(struct classifier_pass *pass, struct classifier *classifier,
                                  const float *grad_logits) {
    const struct classifier_weights *weights = &classifier->weights;
    struct forward_state *fwd = &pass->fwd;
    struct workspace *workspace = fwd->workspace;
    struct backend *backend = classifier->backend;
    const struct operations *ops = backend->ops;
    const int64_t texts = (int64_t)pass->texts, rows = fwd->rows, hidden_size = fwd->x.columns;
    struct tensor grad_pooled, grad_normed = fwd->delta; // delta is free after the final norm
    fwd->grads = &classifier->optimizer.grads;
    TRY(step_sums_begin(fwd->grads, 1));
    TRY(workspace_alloc(workspace, ELEMENT_F32, rows, hidden_size, &fwd->grad_x));
    TRY(classifier_alloc(pass, texts, hidden_size, &grad_pooled));

    // The head: from the gradient of the logits to that of what was pooled, in the type of the products.
    struct workspace_mark mark = workspace_save(workspace);
    struct tensor exact, grad_out, grad_gelu_out, grad_hidden;
    TRY(workspace_upload(workspace, ELEMENT_F32, texts, classifier->info.labels, grad_logits, &exact));
    TRY(classifier_alloc(pass, texts, classifier->info.labels, &grad_out));
    TRY(workspace_alloc(workspace, ELEMENT_F32, texts, hidden_size, &grad_gelu_out));
    TRY(classifier_alloc(pass, texts, hidden_size, &grad_hidden));
    TRY(ops->copy(backend, grad_out, exact));
    TRY(backward_linear(fwd, grad_hidden, grad_out, pass->head_out, &weights->classifier, &weights->classifier_bias));
    TRY(ops->zero(backend, grad_gelu_out));
    TRY(ops->layernorm_grad(backend, grad_gelu_out, backward_param(fwd, &weights->head_norm),
                            backward_param(fwd, &weights->head_norm_bias), grad_hidden, pass->gelu_out,
                            weights->head_norm.values, pass->head_norm));
    TRY(ops->copy(backend, grad_pooled, grad_gelu_out));
    TRY(ops->activation_grad(backend, ACTIVATION_GELU, grad_hidden, grad_pooled, pass->dense_out));
    TRY(backward_linear(fwd, grad_pooled, grad_hidden, pass->pooled, &weights->dense, &weights->dense_bias));
    TRY(step_sums_done(fwd->grads, &weights->dense)); // and the classifier's, which is in the same bucket
    workspace_restore(workspace, mark);

    if (classifier->config.pools_mean) {
        TRY(ops->segment_mean_grad(backend, grad_normed, grad_pooled, pass->begins));
    } else {
        TRY(ops->zero(backend, grad_normed));
        TRY(ops->scatter(backend, grad_normed, grad_pooled, tensor_rows(pass->begins, 0, texts)));
    }
    TRY(ops->zero(backend, fwd->grad_x));
    TRY(backward_norm(fwd, &weights->final_norm, &weights->final_norm_bias, grad_normed, fwd->x, pass->final_norm));
    for (int i = fwd->transformer->block_count - 1; i >= 0; i--) {
        classifier_pass_layer(pass, classifier, i);
        TRY(block_backward(fwd, i));
        TRY(step_sums_done(fwd->grads, &fwd->transformer->blocks[i].qkv));
    }

    // The embedding and its norm. The padding token's embedding has no gradient.
    struct tensor embedded = fwd->x, grad_embedded; // x is not needed any more
    struct tensor grad_embedding = step_sums_grad(fwd->grads, &weights->embedding);
    TRY(classifier_alloc(pass, rows, hidden_size, &grad_normed));
    TRY(workspace_alloc(workspace, ELEMENT_F32, rows, hidden_size, &grad_embedded));
    TRY(ops->gather(backend, embedded, weights->embedding.values, pass->token_ids));
    TRY(ops->copy(backend, grad_normed, fwd->grad_x));
    TRY(ops->zero(backend, grad_embedded));
    TRY(ops->layernorm_grad(backend, grad_embedded, backward_param(fwd, &weights->embedding_norm),
                            backward_param(fwd, &weights->embedding_norm_bias), grad_normed, embedded,
                            weights->embedding_norm.values, pass->embedding_norm));
    TRY(ops->scatter_add(backend, grad_embedding, grad_embedded, pass->token_ids));
    if (classifier->config.pad_token_id >= 0)
        TRY(ops->zero(backend, tensor_rows(grad_embedding, classifier->config.pad_token_id, 1)));
    return step_sums_end(fwd->grads);
}

// Frees what is not in the arena, and empties the workspace. A zeroed pass is fine.
static void classifier_pass_release(struct classifier_pass *pass, struct classifier *classifier) {
    classifier->backend->ops->attention_plan_free(classifier->backend, &pass->global_plan);
    classifier->backend->ops->attention_plan_free(classifier->backend, &pass->local_plan);
    workspace_restore(&classifier->workspace, (struct workspace_mark){0});
}

// ---- scoring ----

status classifier_score(struct classifier *classifier, const struct classifier_text *texts, size_t count,
                        double *probabilities) {
    const size_t labels = (size_t)classifier->info.labels, consistent = (size_t)classifier->info.consistent;
    status result = OK;
    TRY(classifier_check_texts(classifier, texts, count));
    for (size_t first = 0, taken; result == OK && first < count; first += taken) {
        struct arena arena = {0};
        struct classifier_pass pass = {0};
        float *logits;
        taken = classifier_pass_texts(texts + first, count - first, PASS_ROWS);
        result = classifier_forward(&pass, classifier, &arena, texts + first, taken, &logits);
        for (size_t i = 0; result == OK && i < taken; i++) {
            double sum = 0, own = logits[i * labels + consistent];
            for (size_t k = 0; k < labels; k++) sum += exp(logits[i * labels + k] - own);
            probabilities[first + i] = 1 / sum;
            if (isnan(sum)) result = fail(DATAERR, "%s: the logits are not finite", classifier->dir);
        }
        classifier_pass_release(&pass, classifier);
        arena_release(&arena);
    }
    return result;
}

// What a classifier that scores needs of its device's memory. The sizes come from the functions that stand beside what
// allocates them.

status classifier_memory_needs(const char *model, const char *precision, bool on_cpu, int64_t text_tokens,
                               int64_t tokens, struct memory_item *out, size_t *count) {
    struct classifier_config config;
    struct classifier_weights weights;
    struct memory_list list = {out, count};
    enum { CPU_ROWS = 2048 }; // of an MLP that the CPU computes at a time
    const enum element type = memory_list_type(precision);
    *count = 0;
    assert(text_tokens > 0 && tokens >= text_tokens);
    TRY(classifier_config_read_shape(&config, model));
    if (!named_shape_exists(model)) TRY(classifier_config_check_labels(&config, model)); // a shape names no labels
    TRY(classifier_weights_init(&weights, &config, PART_NONE));
    const struct transformer encoder = weights.encoder;
    int64_t rows = tokens < PASS_ROWS ? tokens : PASS_ROWS;
    if (rows < text_tokens) rows = text_tokens;
    const int64_t chunk = !on_cpu || rows < CPU_ROWS ? rows : CPU_ROWS;
    const int64_t texts = (rows + text_tokens - 1) / text_tokens;
    memory_list_add(&list, "weights",
                    param_array_bytes(&weights.base.table, weights.base.table.range_count, type, type));
    memory_list_add(&list, "working memory", classifier_pass_bytes(&encoder, type, rows, texts, config.labels, chunk));
    memory_list_add(&list, "scratch for keys and values",
                    memory_list_cache_bytes(encoder.heads, on_cpu ? ELEMENT_F32 : type, rows));
    memory_list_add(&list, "rotary angles", 2 * rope_angles_bytes(config.head_dim / 2, text_tokens));
    weights_release(&weights.base);
    return OK;
}

// ---- training ----

static status classifier_check_training(const struct classifier *classifier) {
    return classifier->training ? OK : fail(BUG, "the classifier was not opened for training");
}

status classifier_accumulate(struct classifier *classifier, const struct classifier_text *texts, const int *labels,
                             size_t count, double weight, double *loss) {
    const size_t label_count = (size_t)classifier->info.labels;
    status result = OK;
    TRY(classifier_check_training(classifier));
    TRY(classifier_check_texts(classifier, texts, count));
    for (size_t first = 0, taken; result == OK && first < count; first += taken) {
        struct arena arena = {0};
        struct classifier_pass pass = {0};
        float *logits;
        taken = classifier_pass_texts(texts + first, count - first, TRAINING_ROWS);
        float *gradients = arena_alloc(&arena, taken * label_count * sizeof *gradients); // of the logits, by weight
        result = classifier_forward(&pass, classifier, &arena, texts + first, taken, &logits);
        for (size_t i = 0; result == OK && i < taken; i++) {
            const float *row = logits + i * label_count;
            const int label = labels[first + i];
            double most = row[0], sum = 0;
            for (size_t k = 1; k < label_count; k++) most = fmax(most, row[k]);
            for (size_t k = 0; k < label_count; k++) sum += exp(row[k] - most);
            *loss += log(sum) + most - row[label];
            for (size_t k = 0; k < label_count; k++)
                gradients[i * label_count + k] = (float)(weight * (exp(row[k] - most) / sum - ((int)k == label)));
        }
        if (result == OK && !isfinite(*loss)) result = fail(DATAERR, "the loss is not a finite number");
        if (result == OK) result = classifier_backward(&pass, classifier, gradients);
        classifier_pass_release(&pass, classifier);
        arena_release(&arena);
    }
    return result;
}

status classifier_step(struct classifier *classifier, const struct optimizer_options *options, double *norm) {
    TRY(classifier_check_training(classifier));
    struct weights *weights = &classifier->weights.base;
    TRY(step_sums_norm(&classifier->optimizer.grads, norm));
    weights->hash_known = false;
    return optimizer_step(&classifier->optimizer, &weights->values, 1, options, *norm);
}

// Writes every parameter's numbers under its name: in the type of the opened store, or in float32 if that is `exact`.
static status classifier_write(struct classifier *classifier, const struct param_array *array, bool exact,
                               const char *path) {
    const struct parameter_table *table = &classifier->weights.base.table;
    struct arena arena = {0};
    const struct stored_tensor **found = arena_alloc(&arena, table->count * sizeof *found);
    struct tensor_list list = tensor_list_make(&arena, table->count);
    status result = parameter_table_match(table, classifier->store, found);
    for (size_t i = 0; result == OK && i < table->count; i++) {
        const size_t like = found[i] ? i : classifier->weights.embedding.first; // of what the store lacks
        tensor_list_add(&list, array, &table->list[i], table->list[i].name, exact ? ELEMENT_F32 : found[like]->type);
    }
    if (result == OK) result = tensor_list_write(&list, classifier->backend, path, true);
    arena_release(&arena);
    return result;
}

status classifier_save_grads(struct classifier *classifier, const char *path) {
    TRY(classifier_check_training(classifier));
    return classifier_write(classifier, &classifier->optimizer.grads.sums, true, path);
}

status classifier_save(struct classifier *classifier, const char *dir) {
    static const char *const others[] = {"config.json", "model.safetensors.index.json", NULL};
    static const char labelled[] = "{\"architectures\": [\"ModernBertForSequenceClassification\"],"
                                   " \"model_type\": \"modernbert\","
                                   " \"id2label\": {\"0\": \"inconsistent\", \"1\": \"consistent\"},"
                                   " \"label2id\": {\"inconsistent\": 0, \"consistent\": 1}}";
    struct arena arena = {0};
    struct buf text = {0};
    struct json *root, *labels;
    status result;
    TRY(classifier_check_training(classifier));
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done,
           classifier_write(classifier, &classifier->weights.base.values, false,
                            path_join(&arena, dir, "model.safetensors")));
    TRY_TO(result, done, checkpoint_copy_files(classifier->dir, dir, classifier->store, others));

    // The opened config.json with the labels that were trained.
    TRY_TO(result, done, json_parse_file(&root, &arena, path_join(&arena, classifier->dir, "config.json")));
    TRY_TO(result, done, json_parse(&labels, &arena, labelled, strlen(labelled)));
    json_remove(root, "num_labels");
    json_remove(root, "problem_type");
    for (size_t i = 0; i < labels->count; i++) json_remove(root, labels->items[i].key.data);
    json_merge(root, &arena, labels);
    json_print(&text, root);
    buf_puts(&text, "\n");
    TRY_TO(result, done, file_write_atomic(path_join(&arena, dir, "config.json"), text.data, text.size));
    result = dir_sync(dir);
done:
    buf_release(&text);
    arena_release(&arena);
    return result;
}

static struct training_state classifier_state(struct classifier *classifier) {
    struct optimizer *optimizer = &classifier->optimizer;
    return (struct training_state){.backend = classifier->backend,
                                   .arrays = {{"master", &classifier->weights.base.values},
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
    classifier->weights.base.hash_known = false;
    return training_state_load(&state, dir);
}
