#include "shared/model/loss.h"

#include <math.h>

// Value and slope of one token's loss.
struct term {
    double value, slope;
};

static double clamp(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

// -s of a stale token. Where both branches of the minimum are equal the unclipped one counts.
static struct term surrogate(double ratio, double advantage, const struct loss_options *loss) {
    double plain = ratio * advantage;
    double clipped = clamp(ratio, 1 - loss->clip_low, 1 + loss->clip_high) * advantage;
    if (clipped < plain) return (struct term){-clipped, 0};
    return (struct term){-plain, -plain};
}

// The k3 estimate of the divergence from the reference.
static struct term divergence(double reference, double logprob) {
    double apart = reference - logprob, d = clamp(apart, -10, 10);
    double slope = d == apart ? 1 - exp(d) : 0;
    return (struct term){exp(d) - d - 1, slope};
}

static struct term token_loss(const struct train_completion *completion, size_t t, double logprob,
                              const struct loss_options *loss, double *kl) {
    struct term term = {-completion->advantage, -completion->advantage};
    if (completion->stale && completion->old_logprobs)
        term = surrogate(exp(logprob - completion->old_logprobs[t]), completion->advantage, loss);
    if (completion->ref_logprobs) {
        struct term apart = divergence(completion->ref_logprobs[t], logprob);
        *kl += apart.value;
        term.value += loss->kl_beta * apart.value;
        term.slope += loss->kl_beta * apart.slope;
    }
    return term;
}

void group_loss(const struct train_completion *completions, size_t count, const struct loss_options *loss,
                double weight, const float *logprobs, float *slopes, struct train_result *result) {
    *result = (struct train_result){0};
    int64_t compared = 0, referred = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const struct train_completion *completion = &completions[i];
        size_t tokens = completion->completion.count;
        double share = 1.0 / ((double)count * (double)tokens);
        for (size_t t = 0; t < tokens; t++, at++) {
            struct term term = token_loss(completion, t, logprobs[at], loss, &result->kl);
            result->loss += share * term.value;
            result->nll -= share * logprobs[at];
            slopes[at] = (float)(weight * share * term.slope);
            if (!completion->old_logprobs) continue;
            double apart = fabs((double)logprobs[at] - completion->old_logprobs[t]);
            result->logprob_diff_mean += apart;
            if (apart > result->logprob_diff_max) result->logprob_diff_max = apart;
            compared++;
        }
        referred += completion->ref_logprobs ? (int64_t)tokens : 0;
        result->tokens += (int64_t)tokens;
    }
    if (compared) result->logprob_diff_mean /= (double)compared;
    if (referred) result->kl /= (double)referred;
}
