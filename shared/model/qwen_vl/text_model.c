// The language model over a packed sequence, and a group's log-probabilities, loss and gradient.
#include "shared/model/qwen_vl/model_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Hugging Face rounds the cosines and sines of the language model to the type of the activations.
void text_rope_init(struct rope_angles *angles, const struct text_config *text, enum element type) {
    int pairs = text->head_dim / 2;
    *angles = (struct rope_angles){
        .theta = (double)text->rope_theta, .pairs = pairs, .period = pairs, .rounded = type == ELEMENT_BF16};
    for (int axis = 0; axis < 3; axis++) angles->table.sections[axis] = text->mrope_section[axis];
}

// Of each row: x, delta, its gradient and indices; with them the blocks' inputs, and a block or the head.
size_t text_pass_bytes(const struct transformer *transformer, enum element type, int64_t rows, int64_t chunk_rows,
                       bool training) {
    size_t row_bytes = (size_t)rows * (size_t)transformer->hidden_size * element_size(type);
    size_t indices = (size_t)rows * 12 * sizeof(int32_t); // positions, slots, targets, and the head's numbers
    size_t grad = training ? (size_t)(rows * transformer->hidden_size) * sizeof(float) : 0;
    size_t inputs = training ? block_kept_bytes(transformer, type, rows, KEEP_INPUT) : 0;
    size_t head = (training ? 4 : 2) * row_bytes, block = block_work_bytes(transformer, type, rows, chunk_rows);
    return 2 * row_bytes + grad + indices + (size_t)transformer->block_count * inputs + (head > block ? head : block);
}

// Has the working memory of a pass ready in one piece where the device's memory is limited: of several pieces, the
// ends would be lost.
static void text_expect_memory(struct model *model, const struct sequence *sequence, const struct model_prompt *prompt,
                               int64_t chunk_rows, bool training) {
    const struct qwen_weights *weights = model->weights;
    const struct transformer *text = &weights->text;
    enum element type = model->weights->base.type;
    bool train_vision = training && model->options.train_vision;
    size_t kept = 0, tower = 0, x = (size_t)(sequence->rows * text->hidden_size) * element_size(type);
    if (!model->backend_info.memory) return;
    for (size_t i = 0; i < prompt->media_count; i++) {
        int64_t patches = grid_patches(grid_of(&model->config, &prompt->media[i]));
        size_t outlives = vision_kept_bytes(weights, type, patches, train_vision);
        size_t bytes = vision_pass_bytes(weights, type, patches, train_vision) + (train_vision ? 0 : outlives);
        if (train_vision) kept += outlives;
        if (bytes > tower) tower = bytes;
    }
    size_t pass = text_pass_bytes(text, type, sequence->rows, chunk_rows, training);
    workspace_expect(&model->workspace, kept + (pass > x + tower ? pass : x + tower));
}

// *left = the bytes of the workspace that a training pass does not need otherwise. A device with memory of its own
// gives it three quarters of what was free before the first pass; the last quarter is for the backend's own use and for
// other processes. On the CPU it does not grow beyond what the largest pass has needed.
static status text_memory_left(struct model *model, const struct forward_state *fwd, size_t *left) {
    struct backend_info info;
    *left = 0;
    TRY(model->backend->ops->info(model->backend, &info));
    if (info.memory && !model->workspace_limit)
        model->workspace_limit = workspace_size(&model->workspace) + (size_t)(info.memory_free / 4 * 3);
    size_t limit = info.memory ? model->workspace_limit : model->workspace.peak;
    const struct transformer *transformer = fwd->transformer;
    enum element type = fwd->type;
    size_t needed = model->workspace.live + text_pass_bytes(transformer, type, fwd->rows, fwd->chunk_rows, true);
    if (needed < limit) *left = limit - needed;
    return OK;
}

// Computes all media and puts their embeddings, which are in window order, into x.
static status text_embed_media(struct text_state *state, struct model *model, struct arena *arena,
                               const struct model_prompt *prompt, bool training) {
    struct workspace *workspace = &model->workspace;
    const struct model_config *config = &model->config;
    const enum element type = model->weights->base.type;
    const bool train_vision = training && model->options.train_vision;

    // Divide the media into chunks of at most chunk_patches patches; a chunk of one frame pair may be larger.
    const int64_t chunk_patches = model->backend_info.chunk_patches;
    const int frames_per_pair = config->vision.temporal_patch_size;
    size_t frames = 0;
    for (size_t i = 0; i < prompt->media_count; i++) frames += (size_t)prompt->media[i].frames;
    state->chunks = arena_alloc(arena, frames * sizeof *state->chunks);
    for (size_t i = 0; i < prompt->media_count; i++) {
        const struct model_medium *medium = &prompt->media[i];
        const struct grid_thw grid = grid_of(config, medium);
        int64_t pair_patches = (int64_t)grid.height * grid.width, pair_tokens = grid_tokens(grid, config) / grid.time;
        int64_t pairs = chunk_patches / pair_patches > 1 ? chunk_patches / pair_patches : 1;
        int chunk_frames = (int)(pairs < grid.time ? pairs : grid.time) * frames_per_pair;
        for (int frame = 0; frame < medium->frames; frame += chunk_frames) {
            struct vision_chunk *chunk = &state->chunks[state->chunk_count++];
            *chunk = (struct vision_chunk){.medium = *medium};
            chunk->first_row = state->sequence->media_rows[i] + frame / frames_per_pair * pair_tokens;
            chunk->medium.frames = medium->frames - frame < chunk_frames ? medium->frames - frame : chunk_frames;
            chunk->medium.pixels = medium->pixels + (int64_t)frame * medium->height * medium->width * 3;
        }
    }
    assert(state->chunk_count <= frames);

    if (train_vision) { // whether the tower's block inputs stay in memory until the backward pass
        size_t bytes = 0, left;
        for (size_t i = 0; i < state->chunk_count; i++)
            bytes +=
                vision_kept_bytes(model->weights, type, grid_patches(grid_of(config, &state->chunks[i].medium)), true);
        TRY(text_memory_left(model, &state->fwd, &left));
        state->vision_kept = bytes <= left;
    }
    for (size_t i = 0; i < state->chunk_count; i++) {
        struct vision_chunk *chunk = &state->chunks[i];
        const int64_t tokens = grid_tokens(grid_of(config, &chunk->medium), config);
        struct tensor rows;
        if (train_vision && !state->vision_kept)
            TRY(workspace_alloc(workspace, type, tokens, config->text.hidden_size, &chunk->grad_embeds));
        struct workspace_mark mark = workspace_save(workspace);
        TRY(vision_forward(&chunk->vision, model, arena, &chunk->medium, state->vision_kept));
        chunk->rows = arena_alloc(arena, (size_t)tokens * sizeof *chunk->rows);
        for (int64_t k = 0; k < tokens; k++)
            chunk->rows[k] = (int32_t)chunk->first_row + chunk->vision.layout.window_index[k];
        TRY(workspace_upload(workspace, ELEMENT_I32, tokens, 1, chunk->rows, &rows));
        TRY(model->backend->ops->scatter(model->backend, state->fwd.x, chunk->vision.embeds, rows));
        if (state->vision_kept) {
            chunk->grad_embeds = chunk->vision.embeds; // which are not needed any more
            continue;
        }
        vision_release(&chunk->vision, model);
        workspace_restore(workspace, mark);
    }
    return OK;
}

status text_forward(struct text_state *state, struct model *model, struct arena *arena,
                    const struct model_prompt *prompt, const struct sequence *sequence, struct kv_cache *cache,
                    bool training) {
    struct workspace *workspace = &model->workspace;
    struct forward_state *fwd = &state->fwd;
    const struct operations *ops = model->backend->ops;
    enum element type = model->weights->base.type;
    int64_t hidden_size = model->config.text.hidden_size;
    const struct heads heads = model->weights->text.heads;
    *state = (struct text_state){.sequence = sequence};
    *fwd = forward_start(&model->weights->text, workspace, &model->backend_info, type, sequence->rows);
    fwd->layered = cache != NULL;
    fwd->cache = cache;
    if (!cache) {
        TRY(kv_scratch_reserve(&model->text_kv, model->backend, type, sequence->cache_rows, heads));
        fwd->cache = model->text_kv.cache;
    }
    text_expect_memory(model, sequence, prompt, fwd->chunk_rows, training);
    TRY(workspace_alloc(workspace, type, fwd->rows, hidden_size, &fwd->x));
    struct workspace_mark mark = workspace_save(workspace);
    struct tensor tokens;
    TRY(workspace_upload(workspace, ELEMENT_I32, sequence->rows, 1, sequence->tokens, &tokens));
    TRY(ops->gather(model->backend, fwd->x, model->weights->embedding.values, tokens));
    workspace_restore(workspace, mark);
    TRY(text_embed_media(state, model, arena, prompt, training));
    state->mark = workspace_save(workspace);
    TRY(workspace_upload(workspace, ELEMENT_I32, fwd->rows, 1, sequence->cache_slots, &fwd->cache_slots));
    struct tensor grad_slots = training ? fwd->cache_slots : (struct tensor){0};
    TRY(ops->attention_plan_new(model->backend, &state->plan, heads, sequence->spans, sequence->span_count,
                                grad_slots));
    fwd->plan = state->plan;
    int32_t largest = 0;
    for (int64_t i = 0; i < 3 * fwd->rows; i++)
        if (sequence->position_ids[i / 3].axis[i % 3] > largest) largest = sequence->position_ids[i / 3].axis[i % 3];
    TRY(rope_angles_reserve(&model->text_rope, model->backend, (int64_t)largest + 1));
    fwd->rope = &model->text_rope.table;
    TRY(workspace_upload(workspace, ELEMENT_I32, fwd->rows, 3, sequence->position_ids, &fwd->position_ids));
    TRY(workspace_alloc(workspace, type, fwd->rows, hidden_size, &fwd->delta));
    const int layers = fwd->transformer->block_count, wanted = model->options.kept_activations;
    if (training) { // what each layer keeps
        size_t left = 0, bytes[KEPT_LEVELS];
        fwd->kept = arena_alloc(arena, (size_t)layers * sizeof *fwd->kept);
        for (enum kept_level level = 0; level < KEPT_LEVELS; level++)
            bytes[level] = block_kept_bytes(fwd->transformer, type, fwd->rows, level);
        if (wanted < 0 && model->backend_info.memory) TRY(text_memory_left(model, fwd, &left));
        for (int i = 0; i < layers; i++) {
            enum kept_level level = wanted < 0 ? KEEP_MLP : (enum kept_level)wanted;
            if (wanted < 0) {
                while (level > KEEP_INPUT && bytes[level] - bytes[KEEP_INPUT] > left) level--;
                left -= bytes[level] - bytes[KEEP_INPUT];
            }
            TRY(block_keep(fwd, level, &fwd->kept[i]));
        }
    }
    for (int i = 0; i < layers; i++) TRY(block_forward(fwd, i));
    return OK;
}

status text_backward(struct text_state *state, struct model *model, struct arena *arena, struct step_sums *grads) {
    const struct operations *ops = model->backend->ops;
    struct workspace *workspace = &model->workspace;
    for (int i = state->fwd.transformer->block_count - 1; i >= 0; i--) {
        TRY(block_backward(&state->fwd, i));
        const struct block *block = &state->fwd.transformer->blocks[i];
        TRY(step_sums_done(grads, model->options.lora ? &block->qkv_adapter.a : &block->qkv));
    }
    if (model->options.lora) return OK; // the embedding and the tower are not trained

    // The gradient of the embedding matrix. Placeholders have none.
    const struct sequence *sequence = state->sequence;
    if (sequence->text_count) {
        int64_t count = sequence->text_count;
        struct workspace_mark mark = workspace_save(workspace);
        struct tensor rows, ids, grad_rows;
        TRY(workspace_upload(workspace, ELEMENT_I32, count, 1, sequence->text_rows, &rows));
        TRY(workspace_upload(workspace, ELEMENT_I32, count, 1, sequence->text_ids, &ids));
        TRY(workspace_alloc(workspace, ELEMENT_F32, count, model->config.text.hidden_size, &grad_rows));
        TRY(ops->gather(model->backend, grad_rows, state->fwd.grad_x, rows));
        TRY(ops->scatter_add(model->backend, step_sums_grad(grads, &model->weights->embedding), grad_rows, ids));
        workspace_restore(workspace, mark);
    }
    TRY(step_sums_done(grads, &model->weights->embedding));
    if (!model->options.train_vision) return OK;

    // The gradients of the media's rows are copied to below state->mark, where they outlive the language model's part.
    for (size_t i = 0; i < state->chunk_count; i++) {
        const struct vision_chunk *chunk = &state->chunks[i];
        struct workspace_mark mark = workspace_save(workspace);
        struct tensor rows;
        TRY(workspace_upload(workspace, ELEMENT_I32, chunk->grad_embeds.rows, 1, chunk->rows, &rows));
        TRY(ops->gather(model->backend, chunk->grad_embeds, state->fwd.grad_x, rows));
        workspace_restore(workspace, mark);
    }
    workspace_restore(workspace, state->mark);
    for (size_t i = state->chunk_count; i-- > 0;) {
        struct vision_chunk *chunk = &state->chunks[i];
        struct workspace_mark mark = workspace_save(workspace);
        if (!state->vision_kept) TRY(vision_forward(&chunk->vision, model, arena, &chunk->medium, true));
        TRY(vision_backward(&chunk->vision, model, chunk->grad_embeds, grads));
        vision_release(&chunk->vision, model);
        workspace_restore(workspace, mark);
    }
    return OK;
}

void text_release(struct text_state *state, struct model *model) {
    for (size_t i = 0; i < state->chunk_count; i++) vision_release(&state->chunks[i].vision, model);
    model->backend->ops->attention_plan_free(model->backend, &state->plan);
    workspace_restore(&model->workspace, (struct workspace_mark){0});
}

// ---- group ----

// The log-probabilities of a group's completions, their loss and its gradient, over one packed sequence. Scoring and
// training compute the log-probabilities with the same code, and so to the same bits.
//
// With G completions of n_i tokens and advantages A_i:
//   L = 1/G sum_i 1/n_i sum_t [ -s_it + beta (exp(d_it) - d_it - 1) ],  d = clamp(ref_logprob - logprob, -10, 10)
//   s = r A. On-policy, r is 1 and its derivative is that of logprob. Stale, r = exp(logprob - old_logprob) and
//   s = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).
// The loss of a step over all tokens has token_weight for 1/G 1/n_i. The KL term counts 0 for an excluded completion;
// kl_separate has 1/n of the thinking tokens, and 1/n of the answer tokens, for its 1/n_i.

status model_check(const struct model *model, const struct model_prompt *prompt,
                   const struct model_completion *completions, size_t count) {
    struct arena arena = {0};
    struct sequence sequence;
    status result = sequence_make(&sequence, &arena, &model->config, prompt, completions, count);
    arena_release(&arena);
    return result;
}

// The head over the N rows that predict a token. The backward pass alone needs rstd and lse; otherwise they are none.
struct head_state {
    struct tensor normed, rstd;           // [T,C], F32 [T,1]
    struct tensor logit_rows, target_ids; // I32 [N,1]
    struct tensor hidden_states;          // [N,C]: the normed rows at logit_rows
    struct tensor logprobs, lse;          // F32 [N,1]
};

static status group_head_forward(struct head_state *head, struct model *model, struct text_state *text, bool training) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = text->sequence;
    enum element type = model->weights->base.type;
    int64_t hidden_size = model->config.text.hidden_size, targets = sequence->target_count;
    struct workspace *workspace = &model->workspace;
    *head = (struct head_state){0};
    TRY(workspace_alloc(workspace, type, sequence->rows, hidden_size, &head->normed));
    TRY(workspace_alloc(workspace, type, targets, hidden_size, &head->hidden_states));
    TRY(workspace_upload(workspace, ELEMENT_I32, targets, 1, sequence->logit_rows, &head->logit_rows));
    TRY(workspace_upload(workspace, ELEMENT_I32, targets, 1, sequence->target_ids, &head->target_ids));
    TRY(workspace_alloc(workspace, ELEMENT_F32, targets, 1, &head->logprobs));
    if (training) TRY(workspace_alloc(workspace, ELEMENT_F32, sequence->rows, 1, &head->rstd));
    if (training) TRY(workspace_alloc(workspace, ELEMENT_F32, targets, 1, &head->lse));
    TRY(forward_norm(&text->fwd, head->normed, &model->weights->norm, NULL, head->rstd));
    TRY(ops->gather(model->backend, head->hidden_states, head->normed, head->logit_rows));
    return ops->logprob(model->backend, head->logprobs, head->lse, head->hidden_states, model->weights->lm_head.weight,
                        head->target_ids);
}

status group_score(struct model *model, struct arena *arena, const struct model_prompt *prompt,
                   struct sequence *sequence, const struct model_completion *completions, size_t count,
                   const struct token_range *wanted, struct kv_cache *cache, float *const *logprobs) {
    struct text_state text = {0};
    struct head_state head;
    status result = OK;
    if (wanted) { // keep these targets
        int64_t from = 0, kept = 0;
        for (size_t i = 0; i < count; i++) {
            assert(wanted[i].first <= wanted[i].end && wanted[i].end <= completions[i].count);
            for (size_t t = 0; t < completions[i].count; t++, from++) {
                if (t < wanted[i].first || t >= wanted[i].end) continue;
                sequence->logit_rows[kept] = sequence->logit_rows[from];
                sequence->target_ids[kept++] = sequence->target_ids[from];
            }
        }
        assert(from == sequence->target_count);
        sequence->target_count = kept;
    }
    if (sequence->target_count == 0 && !cache) return OK;
    float *all = arena_alloc(arena, (size_t)sequence->target_count * sizeof *all);
    TRY_TO(result, done, text_forward(&text, model, arena, prompt, sequence, cache, false));
    if (sequence->target_count == 0) goto done;
    TRY_TO(result, done, group_head_forward(&head, model, &text, false));
    TRY_TO(result, done, model->backend->ops->download(model->backend, all, ELEMENT_F32, head.logprobs));
    for (size_t i = 0; i < count; i++) {
        const struct token_range range = wanted ? wanted[i] : (struct token_range){0, completions[i].count};
        memcpy(logprobs[i] + range.first, all, (range.end - range.first) * sizeof *all);
        all += range.end - range.first;
    }
done:
    text_release(&text, model);
    return result;
}

status model_score(struct model *model, const struct model_prompt *prompt, const struct model_completion *completions,
                   size_t count, const struct token_range *wanted, float *const *logprobs) {
    if (count == 0) return OK;
    struct arena arena = {0};
    struct sequence sequence;
    status result = sequence_make(&sequence, &arena, &model->config, prompt, completions, count);
    if (result == OK)
        result = group_score(model, &arena, prompt, &sequence, completions, count, wanted, NULL, logprobs);
    arena_release(&arena);
    return result;
}

static double group_loss_clamp(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

// dlogprobs[t] = weight * dL / d logprobs[t] for all tokens of the group. Fills in *out but its prompt_tokens.
static void group_loss(const struct train_completion *completions, size_t count, const struct loss_options *options,
                       double weight, const float *logprobs, float *dlogprobs, struct train_result *out) {
    assert(count > 0);
    assert(!options->kl_separate || options->token_weight == 0);
    *out = (struct train_result){0};
    const double group_size = (double)(options->group_size ? options->group_size : count);
    int64_t referred = 0;
    size_t at = 0;
    assert(options->group_size == 0 || options->group_size >= count);
    for (size_t i = 0; i < count; i++) {
        const struct train_completion *completion = &completions[i];
        size_t tokens = completion->completion.count;
        assert(tokens > 0); // sequence_make refuses an empty completion
        assert(!completion->has_answer || completion->answer.end <= tokens);
        double share = options->token_weight > 0 ? options->token_weight : 1.0 / (group_size * (double)tokens);
        for (size_t t = 0; t < tokens; t++, at++) {
            double logprob = logprobs[at], advantage = completion->advantage;
            double loss = -advantage, dlogprob = -advantage;
            if (completion->stale && completion->old_logprobs) {
                double ratio = exp(logprob - completion->old_logprobs[t]);
                double plain = ratio * advantage;
                double clipped = group_loss_clamp(ratio, 1 - options->clip_low, 1 + options->clip_high) * advantage;
                bool is_clipped = clipped < plain; // where both are equal, the gradient is that of the unclipped one
                loss = is_clipped ? -clipped : -plain;
                dlogprob = is_clipped ? 0 : -plain;
            }
            if (completion->ref_logprobs) { // the k3 estimate of the KL divergence
                double difference = completion->ref_logprobs[t] - logprob, d = group_loss_clamp(difference, -10, 10);
                double kl = exp(d) - d - 1, beta = completion->kl_excluded ? 0 : options->kl_beta;
                if (options->kl_separate && completion->has_answer) { // the mean of its part; 0 behind the answer
                    const struct token_range *answer = &completion->answer;
                    const size_t part = t < answer->first ? answer->first : answer->end - answer->first;
                    beta *= t < answer->end ? (double)tokens / (double)part : 0;
                }
                out->kl += kl;
                loss += beta * kl;
                dlogprob += beta * (d == difference ? 1 - exp(d) : 0);
            }
            out->loss += share * loss;
            out->nll -= share * logprobs[at];
            out->entropy -= completion->old_logprobs ? completion->old_logprobs[t] : logprobs[at];
            dlogprobs[at] = (float)(weight * share * dlogprob);
            if (!completion->old_logprobs) continue;
            double difference = fabs(logprob - completion->old_logprobs[t]);
            out->logprob_diff_mean += difference;
            if (difference > out->logprob_diff_max) out->logprob_diff_max = difference;
            out->compared++;
        }
        referred += completion->ref_logprobs ? (int64_t)tokens : 0;
        out->tokens += (int64_t)tokens;
    }
    out->entropy /= (double)out->tokens;
    if (out->compared) out->logprob_diff_mean /= (double)out->compared;
    if (referred) out->kl /= (double)referred;
}

status model_accumulate(struct model *model, const struct model_prompt *prompt,
                        const struct train_completion *completions, size_t count, const struct loss_options *loss,
                        double weight, struct train_result *out) {
    struct trainer *trainer = &model->trainer;
    if (!model->options.training) return fail(BUG, "the model was not opened for training");
    if (count == 0) return fail(BAD_SAMPLE, "the group has no completions");
    if (model->options.ranks && !trainer->leaf_awaited) return fail(BUG, "this rank has no leaf in this turn");
    struct backend *backend = model->backend;
    const struct operations *ops = backend->ops;
    const struct qwen_weights *weights = model->weights;
    struct step_sums *grads = &trainer->optimizer.grads;
    const int64_t hidden_size = model->config.text.hidden_size;
    struct workspace *workspace = &model->workspace;
    struct arena arena = {0};
    struct sequence sequence;
    struct text_state text = {0};
    struct head_state head;
    status result = OK;
    struct model_completion *plain = arena_alloc(&arena, count * sizeof *plain);
    for (size_t i = 0; i < count; i++) plain[i] = completions[i].completion;
    TRY_TO(result, done, sequence_make(&sequence, &arena, &model->config, prompt, plain, count));
    const int64_t rows = sequence.rows, targets = sequence.target_count;
    float *logprobs = arena_alloc(&arena, (size_t)targets * sizeof *logprobs);
    float *dlogprobs = arena_alloc(&arena, (size_t)targets * sizeof *dlogprobs);
    TRY_TO(result, done, text_forward(&text, model, &arena, prompt, &sequence, NULL, true));
    struct forward_state *fwd = &text.fwd;
    TRY_TO(result, done, workspace_alloc(workspace, ELEMENT_F32, rows, hidden_size, &fwd->grad_x));
    struct workspace_mark mark = workspace_save(workspace);
    TRY_TO(result, done, group_head_forward(&head, model, &text, true));
    TRY_TO(result, done, ops->download(backend, logprobs, ELEMENT_F32, head.logprobs));
    group_loss(completions, count, loss, weight, logprobs, dlogprobs, out);
    out->prompt_tokens = sequence.prompt_rows;
    if (!isfinite(out->nll)) TRY_TO(result, done, fail(DATAERR, "the log-probabilities are not finite"));
    if (!isfinite(out->loss)) TRY_TO(result, done, fail(DATAERR, "the loss is not finite"));
    if (prompt->media_count) trainer->vision_has_grad = true;

    // The gradient is exactly 0 if all rewards of the group are equal and there is no KL term.
    int64_t nonzero = targets;
    while (nonzero && dlogprobs[nonzero - 1] == 0) nonzero--;
    const int vision = prompt->media_count && model->options.train_vision ? GROUP_VISION : GROUP_TEXT;
    trainer->leaf_awaited = false;
    TRY_TO(result, done, step_sums_begin(grads, nonzero ? vision + 1 : 0));
    if (nonzero == 0) TRY_TO(result, done, step_sums_end(grads));
    if (nonzero == 0) goto done;

    // The head: fwd.grad_x = the gradient of the last block's output.
    struct tensor dlogprob, grad_hidden_states, grad_normed;
    const bool tied = !weights->lm_head.count; // the embedding is not complete before the end
    fwd->grads = grads;
    struct tensor grad_lm_head = backward_param(fwd, tied ? &weights->embedding : &weights->lm_head);
    TRY_TO(result, done, workspace_upload(workspace, ELEMENT_F32, targets, 1, dlogprobs, &dlogprob));
    TRY_TO(result, done, workspace_alloc(workspace, ELEMENT_F32, targets, hidden_size, &grad_hidden_states));
    TRY_TO(result, done, workspace_alloc(workspace, ELEMENT_F32, rows, hidden_size, &grad_normed));
    TRY_TO(result, done,
           ops->logprob_grad(backend, grad_hidden_states, grad_lm_head, head.hidden_states, weights->lm_head.weight,
                             head.target_ids, head.lse, dlogprob));
    if (!tied && !model->options.lora) TRY_TO(result, done, step_sums_done(grads, &weights->lm_head));
    TRY_TO(result, done, ops->zero(backend, grad_normed));
    TRY_TO(result, done, ops->scatter_add(backend, grad_normed, grad_hidden_states, head.logit_rows));
    TRY_TO(result, done, ops->zero(backend, fwd->grad_x));
    TRY_TO(result, done,
           ops->rmsnorm_grad(backend, fwd->grad_x, backward_param(fwd, &weights->norm), grad_normed, fwd->x,
                             weights->norm.values, head.rstd));
    workspace_restore(workspace, mark);
    TRY_TO(result, done, text_backward(&text, model, &arena, grads));
    result = step_sums_end(grads);
done:
    text_release(&text, model);
    arena_release(&arena);
    return result;
}
