// Rows of logits: log-sum-exp, softmax and sampling. The loops over elements are in row_kernels.inc; a plain sampler,
// which sorts the tokens, is the reference in tests/ops/logits.c.
//
// Sampling does not sort. It first narrows the row to the few candidates that top-k or top-p can keep; if there are too
// many, it continues with the whole row. Then it iterates over the candidates several times and stores only a
// histogram: tokens are ranked by logit, the lower id first among equal logits, and a cutoff says which ranks are kept.
// Sums are taken in double, in the order of token ids.
#include "kernels/cpu/logits.h"

#include <assert.h>
#include <math.h>

enum {
    chunk_len = 1024, // weights computed at a time
    digit_bits = 11,  // of a rank, per histogram
    bins = 1 << digit_bits,
    max_candidates = 4096,
    top_block = 256, // logits whose maximum is taken in the search for the top k
    max_top = 256,   // the largest k for that search
};

static_assert(3 * digit_bits >= 32, "three histograms cover a rank");

float logits_lse(const struct cpu_backend *cpu, const float *logits, int64_t vocabulary) {
    float max = cpu->simd.row_max(logits, vocabulary);
    return (float)((double)max + log(cpu->simd.row_sum_exp(logits, vocabulary, max)));
}

void logits_softmax(const struct cpu_backend *cpu, float *logits, int64_t vocabulary, float lse, float factor) {
    cpu->simd.row_scaled_exp(logits, logits, vocabulary, lse, 1, factor);
}

// ---- which tokens are kept ----

// Keeps the tokens whose rank is above `rank`, and the first `ties` of those whose rank equals it.
struct cutoff {
    uint32_t rank;
    int64_t ties;
};

struct sampler {
    const struct cpu_backend *cpu;
    const float *logits; // of the whole row, or of the candidates
    int64_t count;
    float max;                 // of the logits
    float inverse_temperature; // weights are exp((logit - max) inverse_temperature)
    struct cutoff cutoff;
    bool narrowed;
    int32_t tokens[max_candidates];   // if narrowed: the candidates' ids
    float candidates[max_candidates]; // and their logits
};

// An iteration over the weights of the tokens, one chunk at a time.
struct token_iter {
    const struct sampler *sampler;
    int64_t first, len;       // the current chunk
    int64_t ties;             // still to be kept
    float weights[chunk_len]; // -1 for a token that is not kept
};

// An integer that orders as the logits do.
static uint32_t logits_rank(float logit) {
    uint32_t bits;
    static_assert(sizeof bits == sizeof logit, "a rank has the bits of a logit");
    memcpy(&bits, &logit, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static struct token_iter logits_iter(const struct sampler *sampler) {
    return (struct token_iter){.sampler = sampler, .ties = sampler->cutoff.ties};
}

// Moves on to the next chunk; false at the end.
static bool logits_iter_next(struct token_iter *iter) {
    const struct sampler *sampler = iter->sampler;
    iter->first += iter->len;
    iter->len = sampler->count - iter->first < chunk_len ? sampler->count - iter->first : chunk_len;
    if (iter->len <= 0) return false;
    const float *logits = sampler->logits + iter->first;
    sampler->cpu->simd.row_scaled_exp(iter->weights, logits, iter->len, sampler->max, sampler->inverse_temperature, 1);
    const struct cutoff *cutoff = &sampler->cutoff;
    if (cutoff->rank == 0) return true;
    for (int64_t i = 0; i < iter->len; i++) {
        uint32_t rank = logits_rank(logits[i]);
        if (rank < cutoff->rank || (rank == cutoff->rank && iter->ties-- <= 0)) iter->weights[i] = -1;
    }
    return true;
}

static double logits_kept_weight(const struct sampler *sampler) {
    double sum = 0;
    struct token_iter iter = logits_iter(sampler);
    while (logits_iter_next(&iter)) {
        for (int64_t i = 0; i < iter.len; i++) {
            if (iter.weights[i] > 0) sum += (double)iter.weights[i];
        }
    }
    return sum;
}

// Sets the cutoff so that it keeps the highest tokens up to the one with which the sum of their weights (or, if
// `by_count`, their number) reaches `bound`. A radix search: each of three histograms finds eleven more bits of the
// rank at the cutoff. The 32 bits of a rank are preceded by a zero.
static void logits_keep_highest(struct sampler *sampler, bool by_count, double bound) {
    double histogram[bins], sum = 0;
    uint32_t prefix = 0;
    for (int shift = 2 * digit_bits; shift >= 0; shift -= digit_bits) {
        memset(histogram, 0, sizeof histogram);
        struct token_iter iter = logits_iter(sampler);
        while (logits_iter_next(&iter)) {
            for (int64_t i = 0; i < iter.len; i++) {
                uint32_t rank = logits_rank(sampler->logits[iter.first + i]) >> shift;
                if (iter.weights[i] < 0 || rank >> digit_bits != prefix) continue;
                histogram[rank & (bins - 1)] += by_count ? 1 : (double)iter.weights[i];
            }
        }
        int bin = bins - 1;
        for (; bin >= 0 && sum + histogram[bin] < bound; bin--) sum += histogram[bin];
        if (bin < 0) return; // all tokens together do not reach the bound
        prefix = prefix << digit_bits | (uint32_t)bin;
    }
    int64_t ties = 0; // of the tokens at the cutoff, so many that the sum reaches the bound
    struct token_iter iter = logits_iter(sampler);
    while (logits_iter_next(&iter)) {
        for (int64_t i = 0; i < iter.len && sum < bound; i++) {
            if (iter.weights[i] < 0 || logits_rank(sampler->logits[iter.first + i]) != prefix) continue;
            sum += by_count ? 1 : (double)iter.weights[i];
            ties++;
        }
    }
    sampler->cutoff = (struct cutoff){prefix, ties};
}

// ---- candidates ----

// Narrows the sampler to the tokens with logits >= limit, if there are at most max_candidates.
static void logits_narrow(struct sampler *sampler, float limit) {
    int64_t found =
        sampler->cpu->simd.row_compact_ge(sampler->logits, sampler->count, limit, sampler->tokens, max_candidates);
    if (found > max_candidates || found == 0) return; // found is 0 if the limit is NaN
    for (int64_t i = 0; i < found; i++) sampler->candidates[i] = sampler->logits[sampler->tokens[i]];
    sampler->logits = sampler->candidates;
    sampler->count = found;
    sampler->narrowed = true;
}

// Narrows to a superset of the k highest tokens: each of these has at least the k-th highest of the maxima of blocks.
static void logits_narrow_to_top_k(struct sampler *sampler, int64_t k) {
    float top[max_top]; // maxima of blocks, in descending order
    int64_t found = 0;
    if (k > max_top || sampler->count < k * top_block) return;
    for (int64_t first = 0; first + top_block <= sampler->count; first += top_block) {
        float max = sampler->cpu->simd.row_max(sampler->logits + first, top_block);
        if (found == k && !(max > top[k - 1])) continue;
        int64_t i = found < k ? found++ : k - 1;
        for (; i > 0 && top[i - 1] < max; i--) top[i] = top[i - 1];
        top[i] = max;
    }
    logits_narrow(sampler, top[k - 1]);
}

// Narrows to a superset of the tokens that top_p keeps. Returns the weight of all tokens.
static double logits_narrow_to_top_p(struct sampler *sampler, double top_p) {
    static const float depths[mass_limits] = {INFINITY, 0.5f, 1, 2,
                                              4,        6,    9, 13}; // below the maximum, in units of temperature
    float limits[mass_limits];
    double masses[mass_limits];
    for (int i = 0; i < mass_limits; i++) limits[i] = sampler->max - depths[i] / sampler->inverse_temperature;
    sampler->cpu->simd.row_mass_above(sampler->logits, sampler->count, sampler->max, sampler->inverse_temperature,
                                      limits, masses);
    int i = 1;
    // The margin covers rounding, which differs between these sums and the sums over single weights.
    while (i < mass_limits && !(masses[i] >= masses[0] * top_p * (1 + 1e-5))) i++;
    if (i < mass_limits) logits_narrow(sampler, limits[i]);
    return masses[0];
}

// ---- sampling ----

void logits_sample(const struct cpu_backend *cpu, int32_t *token, float *logprob, const float *logits,
                   int64_t vocabulary, struct sampling settings, double uniform) {
    struct sampler sampler; // its arrays are large and stay uninitialized
    sampler.cpu = cpu;
    sampler.logits = logits;
    sampler.count = vocabulary;
    sampler.max = cpu->simd.row_max(logits, vocabulary);
    sampler.cutoff = (struct cutoff){0, 0};
    sampler.narrowed = false;
    int64_t sampled = 0;
    if (settings.temperature <= 0) {
        while (sampled < vocabulary && !(logits[sampled] == sampler.max)) sampled++; // the first maximum
        if (sampled == vocabulary) sampled = 0;                                      // all logits are NaN
    } else {
        sampler.inverse_temperature = 1 / settings.temperature;
        bool top_k = settings.top_k > 0 && settings.top_k < vocabulary;
        if (top_k) {
            logits_narrow_to_top_k(&sampler, settings.top_k);
            logits_keep_highest(&sampler, true, settings.top_k);
        }
        if (settings.top_p < 1) {
            double top_p = (double)settings.top_p;
            double total = top_k ? logits_kept_weight(&sampler) : logits_narrow_to_top_p(&sampler, top_p);
            logits_keep_highest(&sampler, false, top_p * total);
        }
        // The first kept token at which the sum of weights exceeds the bound. By rounding, the sum of all weights may
        // not exceed it; then this is the last kept token.
        double bound = uniform * logits_kept_weight(&sampler), sum = 0;
        struct token_iter iter = logits_iter(&sampler);
        while (!(sum > bound) && logits_iter_next(&iter)) {
            for (int64_t i = 0; i < iter.len && !(sum > bound); i++) {
                if (!(iter.weights[i] > 0)) continue;
                sampled = iter.first + i;
                sum += (double)iter.weights[i];
            }
        }
    }
    *token = sampler.narrowed ? sampler.tokens[sampled] : (int32_t)sampled;
    assert(*token >= 0 && *token < vocabulary);
    *logprob = logits[*token] - logits_lse(cpu, logits, vocabulary);
}
