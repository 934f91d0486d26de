// The log-probabilities of a group's completions, their loss and its gradient, over one packed sequence. Scoring and
// training compute the log-probabilities with the same code, and so to the same bits.
//
// With G completions of n_i tokens and advantages A_i:
//   L = 1/G sum_i 1/n_i sum_t [ -s_it + beta (exp(d_it) - d_it - 1) ],  d = clamp(ref_logprob - logprob, -10, 10)
//   s = r A. On-policy, r is 1 and its derivative is that of logprob. Stale, r = exp(logprob - old_logprob) and
//   s = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).
// The loss of a step over all tokens has token_weight for 1/G 1/n_i. The KL term counts 0 for an excluded completion;
// kl_separate has 1/n of the thinking tokens, and 1/n of the answer tokens, for its 1/n_i.
#include "shared/model/qwen_vl/group_logprobs.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "shared/model/qwen_vl/text_model.h"
#include "shared/model/qwen_vl/trainer.h"

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
    TRY(forward_norm(&text->fwd, head->normed, model->weights->norm, (struct tensor){0}, head->rstd));
    TRY(ops->gather(model->backend, head->hidden_states, head->normed, head->logit_rows));
    return ops->logprob(model->backend, head->logprobs, head->lse, head->hidden_states, model->weights->lm_head,
                        head->target_ids);
}

// fwd.grad_x = the gradient of the last block's output, given dlogprobs [N] = d loss / d logprob on the host.
static status group_head_backward(const struct head_state *head, struct model *model, struct text_state *text,
                                  const float *dlogprobs) {
    const struct operations *ops = model->backend->ops;
    const struct sequence *sequence = text->sequence;
    const struct qwen_parameters *params = model->params;
    const struct param_array *grads = &model->trainer->optimizer.grads;
    int64_t hidden_size = model->config.text.hidden_size;
    struct workspace *workspace = &model->workspace;
    struct workspace_mark mark = workspace_save(workspace);
    struct tensor dlogprob, grad_hidden_states, grad_normed;
    struct tensor grad_lm_head = param_tensor(grads, params->lm_head.count ? &params->lm_head : &params->embedding);
    TRY(workspace_upload(workspace, ELEMENT_F32, sequence->target_count, 1, dlogprobs, &dlogprob));
    TRY(workspace_alloc(workspace, ELEMENT_F32, sequence->target_count, hidden_size, &grad_hidden_states));
    TRY(workspace_alloc(workspace, ELEMENT_F32, sequence->rows, hidden_size, &grad_normed));
    TRY(ops->logprob_grad(model->backend, grad_hidden_states, grad_lm_head, head->hidden_states,
                          model->weights->lm_head, head->target_ids, head->lse, dlogprob));
    TRY(ops->zero(model->backend, grad_normed));
    TRY(ops->scatter_add(model->backend, grad_normed, grad_hidden_states, head->logit_rows));
    TRY(ops->zero(model->backend, text->fwd.grad_x));
    TRY(ops->rmsnorm_grad(model->backend, text->fwd.grad_x, param_tensor(grads, &params->norm), grad_normed,
                          text->fwd.x, model->weights->norm, head->rstd));
    workspace_restore(workspace, mark);
    return OK;
}

// Keeps the targets whose tokens are wanted.
static void group_keep_targets(struct sequence *sequence, const struct model_completion *completions, size_t count,
                               const struct token_range *wanted) {
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

status group_score(struct model *model, struct arena *arena, const struct model_prompt *prompt,
                   struct sequence *sequence, const struct model_completion *completions, size_t count,
                   const struct token_range *wanted, struct kv_cache *cache, float *const *logprobs) {
    struct text_state text = {0};
    struct head_state head;
    status result = OK;
    if (wanted) group_keep_targets(sequence, completions, count, wanted);
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
    workspace_restore(&model->workspace, (struct workspace_mark){0});
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

// How often the KL term counts at token t, in units of the weight of the token's loss.
static double group_kl_share(const struct train_completion *completion, const struct loss_options *options, size_t t) {
    const struct token_range *answer = &completion->answer;
    if (completion->kl_excluded) return 0;
    if (!options->kl_separate || !completion->has_answer) return 1;
    if (t >= answer->end) return 0; // the closing tag and the end token
    const size_t part = t < answer->first ? answer->first : answer->end - answer->first;
    return (double)completion->completion.count / (double)part;
}

// dlogprobs[t] = weight * dL / d logprobs[t] for all tokens of the group. Fills in *out but its prompt_tokens.
static void group_loss(const struct train_completion *completions, size_t count, const struct loss_options *options,
                       double weight, const float *logprobs, float *dlogprobs, struct train_result *out) {
    assert(count > 0);
    assert(!options->kl_separate || options->token_weight == 0);
    *out = (struct train_result){0};
    int64_t compared = 0, referred = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const struct train_completion *completion = &completions[i];
        size_t tokens = completion->completion.count;
        assert(tokens > 0); // sequence_make refuses an empty completion
        assert(!completion->has_answer || completion->answer.end <= tokens);
        double share = options->token_weight > 0 ? options->token_weight : 1.0 / ((double)count * (double)tokens);
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
                double kl = exp(d) - d - 1, beta = options->kl_beta * group_kl_share(completion, options, t);
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
            compared++;
        }
        referred += completion->ref_logprobs ? (int64_t)tokens : 0;
        out->tokens += (int64_t)tokens;
    }
    out->entropy /= (double)out->tokens;
    if (compared) out->logprob_diff_mean /= (double)compared;
    if (referred) out->kl /= (double)referred;
}

status model_accumulate(struct model *model, const struct model_prompt *prompt,
                        const struct train_completion *completions, size_t count, const struct loss_options *loss,
                        double weight, struct train_result *out) {
    struct trainer *trainer = model->trainer;
    if (!trainer) return fail(BUG, "the model was not opened for training");
    if (count == 0) return fail(BAD_SAMPLE, "the group has no completions");
    const struct operations *ops = model->backend->ops;
    struct workspace *workspace = &model->workspace;
    struct arena arena = {0};
    struct sequence sequence;
    struct text_state text = {0};
    struct head_state head;
    status result = OK;
    struct model_completion *plain = arena_alloc(&arena, count * sizeof *plain);
    for (size_t i = 0; i < count; i++) plain[i] = completions[i].completion;
    TRY_TO(result, done, sequence_make(&sequence, &arena, &model->config, prompt, plain, count));
    size_t targets = (size_t)sequence.target_count;
    float *logprobs = arena_alloc(&arena, targets * sizeof *logprobs);
    float *dlogprobs = arena_alloc(&arena, targets * sizeof *dlogprobs);
    TRY_TO(result, done, text_forward(&text, model, &arena, prompt, &sequence, NULL, true));
    TRY_TO(result, done,
           workspace_alloc(workspace, ELEMENT_F32, sequence.rows, model->config.text.hidden_size, &text.fwd.grad_x));
    struct workspace_mark mark = workspace_save(workspace);
    TRY_TO(result, done, group_head_forward(&head, model, &text, true));
    TRY_TO(result, done, ops->download(model->backend, logprobs, ELEMENT_F32, head.logprobs));
    group_loss(completions, count, loss, weight, logprobs, dlogprobs, out);
    out->prompt_tokens = sequence.prompt_rows;
    if (!isfinite(out->nll)) TRY_TO(result, done, fail(DATAERR, "the log-probabilities are not finite"));
    if (!isfinite(out->loss)) TRY_TO(result, done, fail(DATAERR, "the loss is not finite"));

    // The gradient is exactly 0 if all rewards of the group are equal and there is no KL term.
    size_t nonzero = targets;
    while (nonzero && dlogprobs[nonzero - 1] == 0) nonzero--;
    if (nonzero) TRY_TO(result, done, group_head_backward(&head, model, &text, dlogprobs));
    workspace_restore(workspace, mark);
    if (prompt->media_count) trainer->vision_has_grad = true;
    if (nonzero) TRY_TO(result, done, text_backward(&text, model, &arena, &trainer->optimizer.grads));
done:
    text_release(&text, model);
    workspace_restore(workspace, (struct workspace_mark){0});
    arena_release(&arena);
    return result;
}
