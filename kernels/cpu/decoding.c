// Decoding: sampling a token from a row of logits, and decode batches: slots, which are on the host, the inputs of the
// next step, and what the last two steps drew. Only the rows at work are computed.
//
// The loops over logits are in row_kernels.inc; a plain sampler, which sorts the tokens, is the reference in
// tests/ops/decoding.c. Sampling does not sort. It first narrows the row to the few candidates that top-k or top-p can
// keep; if there are too many, it continues with the whole row. Then it iterates over the candidates several times and
// stores only a histogram: tokens are ranked by logit, the lower id first among equal logits, and a cutoff says which
// ranks are kept. Sums are taken in double, in the order of token ids.
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/gemm.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"

enum {
    CHUNK_LEN = 1024, // weights computed at a time
    DIGIT_BITS = 11,  // of a rank, per histogram
    BINS = 1 << DIGIT_BITS,
    MAX_CANDIDATES = 4096,
    TOP_BLOCK = 256,   // logits whose maximum is taken in the search for the top k
    MAX_TOP = 256,     // the largest k for that search
    INPUT_COLUMNS = 5, // of a row of a decode batch: token, three position ids, cache slot
};

static_assert(3 * DIGIT_BITS >= 32, "three histograms cover a rank");

// ---- logits ----

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
    int32_t tokens[MAX_CANDIDATES];   // if narrowed: the candidates' ids
    float candidates[MAX_CANDIDATES]; // and their logits
};

// An iteration over the weights of the tokens, one chunk at a time.
struct token_iter {
    const struct sampler *sampler;
    int64_t first, len;       // the current chunk
    int64_t ties;             // still to be kept
    float weights[CHUNK_LEN]; // -1 for a token that is not kept
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
    iter->len = sampler->count - iter->first < CHUNK_LEN ? sampler->count - iter->first : CHUNK_LEN;
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
    double histogram[BINS], sum = 0;
    uint32_t prefix = 0;
    for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        memset(histogram, 0, sizeof histogram);
        struct token_iter iter = logits_iter(sampler);
        while (logits_iter_next(&iter)) {
            for (int64_t i = 0; i < iter.len; i++) {
                uint32_t rank = logits_rank(sampler->logits[iter.first + i]) >> shift;
                if (iter.weights[i] < 0 || rank >> DIGIT_BITS != prefix) continue;
                histogram[rank & (BINS - 1)] += by_count ? 1 : (double)iter.weights[i];
            }
        }
        int bin = BINS - 1;
        for (; bin >= 0 && sum + histogram[bin] < bound; bin--) sum += histogram[bin];
        if (bin < 0) return; // all tokens together do not reach the bound
        prefix = prefix << DIGIT_BITS | (uint32_t)bin;
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

// Narrows the sampler to the tokens with logits >= limit, if there are at most MAX_CANDIDATES.
static void logits_narrow(struct sampler *sampler, float limit) {
    int64_t found =
        sampler->cpu->simd.row_compact_ge(sampler->logits, sampler->count, limit, sampler->tokens, MAX_CANDIDATES);
    if (found > MAX_CANDIDATES || found == 0) return; // found is 0 if the limit is NaN
    for (int64_t i = 0; i < found; i++) sampler->candidates[i] = sampler->logits[sampler->tokens[i]];
    sampler->logits = sampler->candidates;
    sampler->count = found;
    sampler->narrowed = true;
}

// Narrows to a superset of the tokens that top_p keeps. Returns the weight of all tokens.
static double logits_narrow_to_top_p(struct sampler *sampler, double top_p) {
    static const float depths[MASS_LIMITS] = {INFINITY, 0.5f, 1, 2,
                                              4,        6,    9, 13}; // below the maximum, in units of temperature
    float limits[MASS_LIMITS];
    double masses[MASS_LIMITS];
    for (int i = 0; i < MASS_LIMITS; i++) limits[i] = sampler->max - depths[i] / sampler->inverse_temperature;
    sampler->cpu->simd.row_mass_above(sampler->logits, sampler->count, sampler->max, sampler->inverse_temperature,
                                      limits, masses);
    int i = 1;
    // The margin covers rounding, which differs between these sums and the sums over single weights.
    while (i < MASS_LIMITS && !(masses[i] >= masses[0] * top_p * (1 + 1e-5))) i++;
    if (i < MASS_LIMITS) logits_narrow(sampler, limits[i]);
    return masses[0];
}

// ---- sampling ----

// Samples one token by `settings` and `uniform`, a random number in [0,1). *logprob = the token's log-probability at
// temperature 1 over the whole vocabulary. *token is within the vocabulary even if logits are NaN or infinite.
static void logits_sample(const struct cpu_backend *cpu, int32_t *token, float *logprob, const float *logits,
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
            // A superset of the k highest: each has at least the k-th highest of the maxima of blocks.
            const int64_t k = settings.top_k;
            float top[MAX_TOP]; // maxima of blocks, in descending order
            int64_t found = 0;
            const bool narrows = k <= MAX_TOP && sampler.count >= k * TOP_BLOCK;
            for (int64_t first = 0; narrows && first + TOP_BLOCK <= sampler.count; first += TOP_BLOCK) {
                float max = cpu->simd.row_max(logits + first, TOP_BLOCK);
                if (found == k && !(max > top[k - 1])) continue;
                int64_t i = found < k ? found++ : k - 1;
                for (; i > 0 && top[i - 1] < max; i--) top[i] = top[i - 1];
                top[i] = max;
            }
            if (narrows) logits_narrow(&sampler, top[k - 1]);
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

// ---- decode_batch ----

// What a step drew, for each slot.
struct decode_draws {
    int32_t *tokens; // -1: idle
    float *logprobs;
};

struct decode_slot {
    bool at_work;
    struct decode_row row;
};

struct cpu_decode_batch {
    struct decode_batch base;
    struct arena arena; // of the arrays
    int capacity;
    struct heads heads;
    const int32_t *eos_ids;
    size_t eos_count;
    struct decode_slot *slots;    // [capacity]
    int *slot_of_row;             // [base.rows]
    struct attention_span *spans; // [base.rows]
    int64_t steps;                // sampled so far
    struct decode_draws draws[2]; // of step i: draws[i % 2]
    struct buffer *inputs;        // the memory of the tensors
};

static struct cpu_decode_batch *decode_batch_of(struct decode_batch *base) {
    return (struct cpu_decode_batch *)base;
}

static_assert(offsetof(struct cpu_decode_batch, base) == 0, "a decode batch is found by its public part");

status cpu_decode_batch_new(struct backend *backend, struct decode_batch **out, int capacity, struct heads heads,
                            const int32_t *eos_ids, size_t eos_count) {
    *out = NULL;
    CHECK(capacity > 0 && heads.size > 0 && heads.size % 2 == 0 && heads.key > 0 && heads.query % heads.key == 0);
    struct cpu_decode_batch *batch;
    NEW(&batch, 1);
    *out = &batch->base;
    batch->capacity = capacity;
    batch->heads = heads;
    batch->eos_count = eos_count;
    size_t slots = (size_t)capacity;
    int32_t *ids = arena_alloc(&batch->arena, eos_count * sizeof *ids);
    batch->slots = arena_alloc(&batch->arena, slots * sizeof *batch->slots);
    batch->slot_of_row = arena_alloc(&batch->arena, slots * sizeof *batch->slot_of_row);
    batch->spans = arena_alloc(&batch->arena, slots * sizeof *batch->spans);
    for (int i = 0; i < 2; i++) {
        batch->draws[i].tokens = arena_alloc(&batch->arena, slots * sizeof *batch->draws[i].tokens);
        batch->draws[i].logprobs = arena_alloc(&batch->arena, slots * sizeof *batch->draws[i].logprobs);
    }
    if (eos_count) memcpy(ids, eos_ids, eos_count * sizeof *ids);
    batch->eos_ids = ids;
    status result = cpu_buffer_new(backend, slots * INPUT_COLUMNS * sizeof(int32_t), &batch->inputs);
    if (result != OK) {
        cpu_decode_batch_free(backend, out);
        return result;
    }
    struct tensor column = {.buffer = batch->inputs, .type = ELEMENT_I32, .columns = 1, .stride = 1};
    batch->base.tokens = batch->base.cache_slots = column;
    batch->base.cache_slots.offset = slots * sizeof(int32_t);
    batch->base.position_ids = tensor_reshape(column, 0, 3);
    batch->base.position_ids.offset = 2 * slots * sizeof(int32_t);
    return OK;
}

void cpu_decode_batch_free(struct backend *backend, struct decode_batch **out) {
    if (!*out) return;
    struct cpu_decode_batch *batch = decode_batch_of(*out);
    cpu_attention_plan_free(backend, &batch->base.plan);
    cpu_buffer_free(backend, &batch->inputs);
    arena_release(&batch->arena);
    free(batch);
    *out = NULL;
}

// Writes the inputs of the next step. A row without a token gets some, so that the plan covers it.
static status decode_batch_refresh(struct backend *backend, struct cpu_decode_batch *batch) {
    struct decode_batch *base = &batch->base;
    base->rows = 0;
    for (int slot = 0; slot < batch->capacity; slot++) {
        const struct decode_row *row = &batch->slots[slot].row;
        if (!batch->slots[slot].at_work) continue;
        int at = base->rows++, len = row->len > 0 ? row->len : 1;
        batch->slot_of_row[at] = slot;
        batch->spans[at] = (struct attention_span){.q_begin = at,
                                                   .q_len = 1,
                                                   .prefix_begin = row->prefix_begin,
                                                   .prefix_len = row->prefix_len,
                                                   .kv_begin = row->kv_begin,
                                                   .visible = len};
        *tensor_i32(base->tokens, at) = row->token;
        *tensor_i32(base->cache_slots, at) = row->kv_begin + len - 1;
        for (int axis = 0; axis < 3; axis++) tensor_i32(base->position_ids, at)[axis] = row->position;
    }
    base->tokens.rows = base->position_ids.rows = base->cache_slots.rows = base->rows;
    cpu_attention_plan_free(backend, &base->plan);
    return cpu_attention_plan_new(backend, &base->plan, batch->heads, batch->spans, (size_t)base->rows,
                                  (struct tensor){0});
}

status cpu_decode_batch_set(struct backend *backend, struct decode_batch *base, int slot,
                            const struct decode_row *row) {
    struct cpu_decode_batch *batch = decode_batch_of(base);
    CHECK(slot >= 0 && slot < batch->capacity);
    CHECK(!row || (row->len >= 0 && row->len < row->max_len));
    CHECK(!row || (row->prefix_begin >= 0 && row->prefix_len >= 0 && row->kv_begin >= 0));
    batch->slots[slot] = row ? (struct decode_slot){true, *row} : (struct decode_slot){0};
    return decode_batch_refresh(backend, batch);
}

status cpu_decode_batch_read(struct backend *backend, struct decode_batch *base, int64_t step, int32_t *tokens,
                             float *logprobs) {
    const struct cpu_decode_batch *batch = decode_batch_of(base);
    (void)backend;
    CHECK(step >= 0 && step < batch->steps && step >= batch->steps - 2);
    memcpy(tokens, batch->draws[step % 2].tokens, (size_t)batch->capacity * sizeof *tokens);
    memcpy(logprobs, batch->draws[step % 2].logprobs, (size_t)batch->capacity * sizeof *logprobs);
    return OK;
}

// ---- sample ----

struct sample_job {
    const struct cpu_backend *cpu;
    struct tensor logits; // of the rows from `first` on
    struct cpu_decode_batch *batch;
    int64_t first;
};

static void decode_batch_sample_task(void *context, struct task_range range) {
    const struct sample_job *job = context;
    const struct decode_draws *draws = &job->batch->draws[job->batch->steps % 2];
    for (int64_t row = range.first; row < range.end; row++) {
        int slot = job->batch->slot_of_row[job->first + row];
        const struct decode_row *at = &job->batch->slots[slot].row;
        logits_sample(job->cpu, &draws->tokens[slot], &draws->logprobs[slot], tensor_f32(job->logits, row),
                      job->logits.columns, at->sampling, rng_uniform(at->key, at->completion, (uint64_t)at->len));
    }
}

status cpu_sample(struct backend *backend, struct decode_batch *base, struct tensor in, struct weight *lm_head) {
    struct cpu_backend *cpu = cpu_of(backend);
    struct cpu_decode_batch *batch = decode_batch_of(base);
    int64_t vocabulary = lm_head->packed.outputs, block = logits_block(in.rows, vocabulary);
    CHECK(tensor_is(in, (int)lm_head->packed.type, base->rows, lm_head->packed.inner));
    struct packed_matrix matrix;
    TRY(weight_packed(cpu, lm_head, 0, vocabulary, &matrix));
    struct buffer buffer;
    struct tensor logits;
    TRY(cpu_scratch_tensor(cpu, SCRATCH_LOGITS, &buffer, &logits, ELEMENT_F32, block, vocabulary));
    const struct decode_draws *draws = &batch->draws[batch->steps % 2];
    for (int slot = 0; slot < batch->capacity; slot++) { // no slot has drawn a token yet
        draws->tokens[slot] = -1;
        draws->logprobs[slot] = 0;
    }
    for (int64_t first = 0; first < in.rows; first += block) {
        int64_t rows = gemm_min(in.rows - first, block);
        struct sample_job job = {cpu, tensor_rows(logits, 0, rows), batch, first};
        TRY(linear_packed(cpu, job.logits, tensor_rows(in, first, rows), matrix, (struct tensor){0}, false));
        parallel_for(cpu, rows, 1, decode_batch_sample_task, &job);
    }

    // Every row has drawn a token: the rows move on.
    batch->steps++;
    for (int at = 0; at < base->rows; at++) {
        struct decode_slot *slot = &batch->slots[batch->slot_of_row[at]];
        slot->row.token = draws->tokens[batch->slot_of_row[at]];
        slot->row.position++;
        slot->row.len++;
        if (slot->row.len == slot->row.max_len) slot->at_work = false;
        for (size_t i = 0; i < batch->eos_count; i++)
            if (batch->eos_ids[i] == slot->row.token) slot->at_work = false;
    }
    return decode_batch_refresh(backend, batch);
}
