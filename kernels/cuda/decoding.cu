// Decoding: sampling one token for each row of logits, decode batches, and recorded sequences of operations (CUDA
// graphs, captured from the backend's stream), of which a decoding step is one.
//
// A decode batch's slots are in device memory, where `sample` moves them on, so that the host need not wait between
// steps. Every slot has a row in each step; what idle rows compute is not read.
//
// The sums over tokens are sums of integers: the weight of a token, exp((logit - max) / temperature), is a multiple of
// 2^-40. So a sum is exact and has no order, and a token is kept or not by comparing integers. The tokens are not
// sorted: a cutoff, which is found bit by bit, says which ranks are kept. A histogram of the logits below the maximum
// first says in which of its bins the cutoff lies. The search then reads the few candidates of that bin, in shared
// memory; if there are too many, it reads the whole row. The tests' reference, which sorts the tokens, is
// tests/ops/decoding.c.
//
// Each row is read four times: by several blocks for the maximum, and for the sum of exp and the histogram; then by one
// block for the candidates, and for the sums of segments of the row, in one of which the token is.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/rows.h"

enum {
    MAX_CANDIDATES = 8192,
    FEW_TOKENS = 512, // for which one warp finds the cutoff
    WEIGHT_BITS = 40,
    SAMPLE_PARTS = 4,            // blocks that share a row
    SAMPLE_LOADS = 16,           // of a thread, under way at a time
    SEGMENT_LOADS = 20,          // the same, of a segment: with 150,000 tokens, all of a lane
    SAMPLE_BINS = 2048,          // of the histogram
    SAMPLE_DEPTH = 32,           // of all bins, below the maximum, in temperatures: deeper tokens have weight 0
    SAMPLE_SEGMENTS = 256,       // of a row, for the search of the sampled token
    SAMPLE_VOCABULARY = 1 << 23, // the largest: a sum of weights has 64 bits
    SAMPLE_ROWS = 256,           // whose logits exist at a time
    DECODE_THREADS = 32,
    PART_THREADS = LOGITS_THREADS / SAMPLE_PARTS,
    THREAD_BINS = SAMPLE_BINS / LOGITS_THREADS,
};

static_assert(PART_THREADS % 32 == 0 && SAMPLE_BINS % LOGITS_THREADS == 0 && (int)SAMPLE_SEGMENTS <= LOGITS_THREADS,
              "threads divide a row evenly");

// ---- sample ----

// Keeps the tokens whose rank is above `rank`, and the first `ties` of those whose rank equals it.
struct sample_cutoff {
    uint32_t rank;
    uint64_t ties;
};

// An item (a segment, a token) of a list, before which the kept weights come to the bound but for `bound`, and `ties`
// more tokens at the cutoff are kept.
struct sample_place {
    int index; // -1: none
    uint64_t bound, ties;
};

// The bin with which the sum of bins comes to a bound, or the last one.
struct sample_bin {
    int index;
    uint64_t before, sum; // of the bins before it, and with it
};

struct sample_shared {
    uint64_t sums[SAMPLE_SEGMENTS]; // of the weights above the cutoff, of a segment of the row
    uint64_t ties[SAMPLE_SEGMENTS]; // the tokens at the cutoff
    uint64_t warps[LOGITS_WARPS];   // of sample_scan
    double reduced[LOGITS_WARPS];   // of logits_reduce
    struct sample_cutoff cutoff;    // of sample_keep_highest
    struct sample_place place;      // of sample_locate
    struct sample_bin bin;          // of sample_find_bin
    float candidates[MAX_CANDIDATES];
    uint32_t candidate_count;
};

// What the blocks that share a row find.
struct sample_parts {
    float max[SAMPLE_PARTS];
    double sums[LOGITS_THREADS];              // of logits_lse_of_sums
    uint64_t bins[SAMPLE_PARTS][SAMPLE_BINS]; // weights, or numbers of tokens, the highest logits first
};

// A row, and what is known of it. All threads of the block hold the same.
struct sample_row {
    const float *logits; // of the whole row, or the candidates
    int count;
    float max, inverse_temperature;
    struct sample_cutoff cutoff;
    struct sample_shared *shared;
};

// Calls visit(i, logits[i]) for begin, begin + step ... below `end`, in this order. `loads` of them are under way at a
// time. `visit` calls no collective.
template <int loads, typename F> DEVICE void sample_each(const float *logits, int begin, int end, int step, F visit) {
    for (int i = begin; i < end; i += loads * step) {
        float values[(size_t)loads];
#pragma unroll
        for (int j = 0; j < loads; j++) values[j] = i + j * step < end ? logits[i + j * step] : 0;
#pragma unroll
        for (int j = 0; j < loads; j++)
            if (i + j * step < end) visit(i + j * step, values[j]);
    }
}

// An integer that orders as the logits do.
DEVICE uint32_t sample_rank(float logit) {
    uint32_t bits = bits_from_f32(logit);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float sample_logit_of(uint32_t rank) {
    return f32_from_bits(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

// 0 for NaN.
DEVICE uint64_t sample_integer(float weight) {
    return weight > 0 ? (uint64_t)mul_rn(weight, (float)(1ull << WEIGHT_BITS)) : 0;
}

DEVICE uint64_t sample_weight(const struct sample_row *row, float logit) {
    return sample_integer(logits_weight(logit, row->max, row->inverse_temperature));
}

DEVICE uint64_t sample_add(uint64_t a, uint64_t b) {
    return a + b;
}

// The number, or the weight, of the kept tokens whose rank is at least `least`. `threads` threads call, one warp or
// all.
template <int threads> DEVICE uint64_t sample_measure(const struct sample_row *row, bool by_count, uint32_t least) {
    uint64_t sum = 0;
    sample_each<4>(row->logits, (int)threadIdx.x, row->count, threads, [&](int, float logit) {
        uint32_t rank = sample_rank(logit);
        if (rank >= least && rank > row->cutoff.rank) sum += by_count ? 1 : sample_weight(row, logit);
    });
    sum = threads == 32 ? logits_reduce_warp(sum, sample_add)
                        : logits_reduce(sum, (uint64_t *)row->shared->reduced, sample_add);
    if (row->cutoff.ties == 0 || row->cutoff.rank < least) return sum;
    return sum + row->cutoff.ties * (by_count ? 1 : sample_weight(row, sample_logit_of(row->cutoff.rank)));
}

// The bits in which the ranks of the tokens differ from that of the first one.
template <int threads> DEVICE uint32_t sample_differing_bits(const struct sample_row *row) {
    uint32_t first = sample_rank(row->logits[0]), bits = 0;
    auto combine = [](uint32_t a, uint32_t b) { return a | b; };
    sample_each<4>(row->logits, (int)threadIdx.x, row->count, threads,
                   [&](int, float logit) { bits |= sample_rank(logit) ^ first; });
    return threads == 32 ? logits_reduce_warp(bits, combine)
                         : logits_reduce(bits, (uint32_t *)row->shared->reduced, combine);
}

// Sets the cutoff so that it keeps the highest tokens up to the one with which their weights (or their number) reach
// `bound` >= 1. Without effect if all tokens together do not reach it.
template <int threads> DEVICE void sample_set_cutoff(struct sample_row *row, bool by_count, uint64_t bound) {
    uint32_t least = 0; // the largest rank from which on the tokens reach the bound
    if (sample_measure<threads>(row, by_count, 0) < bound) return;
    uint32_t differing = sample_differing_bits<threads>(row), first = sample_rank(row->logits[0]);
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1)
        if (bit > differing)
            least |= first & bit; // a bit that all ranks have, or none
        else if (sample_measure<threads>(row, by_count, least | bit) >= bound)
            least |= bit;
    uint64_t above = least == 0xffffffffu ? 0 : sample_measure<threads>(row, by_count, least + 1);
    uint64_t each = by_count ? 1 : sample_weight(row, sample_logit_of(least));
    row->cutoff.rank = least;
    row->cutoff.ties = (bound - above + each - 1) / each;
}

// sample_set_cutoff, by one warp if there are few tokens, so that the others need not meet it at every bit.
DEVICE void sample_keep_highest(struct sample_row *row, bool by_count, uint64_t bound) {
    if (row->count > FEW_TOKENS) {
        sample_set_cutoff<LOGITS_THREADS>(row, by_count, bound);
        return;
    }
    if (threadIdx.x < 32) sample_set_cutoff<32>(row, by_count, bound);
    if (threadIdx.x == 0) row->shared->cutoff = row->cutoff;
    __syncthreads();
    row->cutoff = row->shared->cutoff;
}

// The sum of v over the lanes up to this one.
DEVICE uint64_t sample_prefix(uint64_t v) {
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        uint64_t other = shuffle(v, lane_id() >= lanes ? lane_id() - lanes : lane_id());
        if (lane_id() >= lanes) v += other;
    }
    return v;
}

// The sum of v over the threads up to this one; *all = over all threads.
DEVICE uint64_t sample_scan(uint64_t v, struct sample_shared *shared, uint64_t *all) {
    v = sample_prefix(v);
    __syncthreads(); // everybody has read what was in `warps` before
    if (lane_id() == 31) shared->warps[threadIdx.x / 32] = v;
    __syncthreads();
    *all = 0;
    for (int warp = 0; warp < LOGITS_WARPS; warp++) {
        if (warp == (int)threadIdx.x / 32) v += *all;
        *all += shared->warps[warp];
    }
    return v;
}

// ---- the histogram ----

// Whether top-k drops tokens.
DEVICE bool sample_has_top_k(struct sampling settings, int vocabulary) {
    return settings.top_k > 0 && settings.top_k < vocabulary;
}

// The bin of a logit: the same or a higher one for a lower logit. SAMPLE_BINS if it lies deeper than all, or is NaN.
DEVICE int sample_bin_of(float logit, float max, float inverse_temperature) {
    float depth = mul_rn(add_rn(max, -logit), inverse_temperature);
    return depth < (float)SAMPLE_DEPTH ? (int)mul_rn(depth, (float)(SAMPLE_BINS / SAMPLE_DEPTH)) : (int)SAMPLE_BINS;
}

// Adds to a sum that is in two halves. What several threads add comes to the same in any order.
DEVICE void sample_add_halves(uint32_t *low, uint32_t *high, uint64_t value) {
    uint32_t before = atomicAdd(low, (uint32_t)value);
    uint32_t rest = (uint32_t)(value >> 32) + (before + (uint32_t)value < before);
    if (rest) atomicAdd(high, rest);
}

// A thread's bins, threadIdx.x * THREAD_BINS and following, and sums of them.
struct sample_bins {
    uint64_t own[THREAD_BINS], before, all;
};

DEVICE struct sample_bins sample_load_bins(const struct sample_parts *parts, struct sample_shared *shared) {
    struct sample_bins bins;
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < THREAD_BINS; i++) {
        bins.own[i] = 0;
#pragma unroll
        for (int part = 0; part < SAMPLE_PARTS; part++)
            bins.own[i] += parts->bins[part][(int)threadIdx.x * THREAD_BINS + i];
        sum += bins.own[i];
    }
    bins.before = sample_scan(sum, shared, &bins.all) - sum;
    return bins;
}

// `bound` >= 1.
DEVICE struct sample_bin sample_find_bin(const struct sample_bins *bins, uint64_t bound, struct sample_shared *shared) {
    uint64_t sum = bins->before;
    struct sample_bin found = {SAMPLE_BINS - 1, 0, bins->all};
    if (threadIdx.x == 0) shared->bin = found;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREAD_BINS; i++) {
        found.index = (int)threadIdx.x * THREAD_BINS + i;
        found.before = sum;
        found.sum = sum + bins->own[i];
        if (found.before < bound && found.sum >= bound) shared->bin = found;
        sum = found.sum;
    }
    __syncthreads();
    return shared->bin;
}

// Narrows the row to the tokens of the bins `first` to `last`, unless these are more than MAX_CANDIDATES. Returns
// whether it does.
DEVICE bool sample_narrow(struct sample_row *row, int first, int last) {
    struct sample_shared *shared = row->shared;
    if (threadIdx.x == 0) shared->candidate_count = 0;
    __syncthreads();
    sample_each<SAMPLE_LOADS>(row->logits, (int)threadIdx.x, row->count, LOGITS_THREADS, [&](int, float logit) {
        int bin = sample_bin_of(logit, row->max, row->inverse_temperature);
        if (bin < first || bin > last) return;
        uint32_t at = atomicAdd(&shared->candidate_count, 1u);
        if (at < MAX_CANDIDATES) shared->candidates[at] = logit; // their order does not matter
    });
    __syncthreads();
    if (shared->candidate_count > MAX_CANDIDATES) return false;
    row->logits = shared->candidates;
    row->count = (int)shared->candidate_count;
    return true;
}

// Sets the cutoff by top-k, then top-p. The row may then be narrowed.
DEVICE void sample_truncate(struct sample_row *row, struct sampling settings, const struct sample_parts *parts) {
    bool by_count = sample_has_top_k(settings, row->count), by_sum = settings.top_p < 1;
    if (!by_count && !by_sum) return;
    struct sample_bins bins = sample_load_bins(parts, row->shared);
    uint64_t sum = bins.all;
    if (by_count) {
        // If not enough tokens are in the bins, top-k drops none that has a weight.
        struct sample_bin bin = sample_find_bin(&bins, (uint64_t)settings.top_k, row->shared);
        if (bin.sum <= MAX_CANDIDATES) sample_narrow(row, 0, bin.index);
        sample_keep_highest(row, true, (uint64_t)settings.top_k);
        if (by_sum) sum = sample_measure<LOGITS_THREADS>(row, false, 0);
    }
    if (!by_sum || sum == 0) return;
    double part = (double)settings.top_p * (double)sum;
    uint64_t bound = part > 1 ? (uint64_t)ceil(part) : 1;
    if (!by_count) {
        struct sample_bin bin = sample_find_bin(&bins, bound, row->shared);
        if (sample_narrow(row, bin.index, bin.index)) bound -= bin.before;
    }
    sample_keep_highest(row, false, bound);
}

// ---- the token ----

// The smallest token id among the largest logits.
DEVICE int32_t sample_greedy(const float *logits, int vocabulary, float max, struct sample_shared *shared) {
    uint32_t first = (uint32_t)vocabulary;
    sample_each<SAMPLE_LOADS>(logits, (int)threadIdx.x, vocabulary, LOGITS_THREADS, [&](int i, float logit) {
        if (logit == max && (uint32_t)i < first) first = (uint32_t)i;
    });
    first = logits_reduce(first, (uint32_t *)shared->reduced, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
    return first < (uint32_t)vocabulary ? (int32_t)first : 0; // all logits are NaN
}

// Fills in the sums and ties of the segments, each by one warp. Returns the sum of all kept weights.
DEVICE uint64_t sample_sum_segments(const struct sample_row *row, int segment_len) {
    uint64_t all = row->cutoff.ties * (threadIdx.x == 0 ? sample_weight(row, sample_logit_of(row->cutoff.rank)) : 0);
    for (int segment = (int)threadIdx.x / 32; segment < SAMPLE_SEGMENTS; segment += LOGITS_WARPS) {
        int begin = segment * segment_len, end = begin + segment_len < row->count ? begin + segment_len : row->count;
        uint64_t sum = 0;
        uint32_t ties = 0;
        sample_each<SEGMENT_LOADS>(row->logits, begin + lane_id(), end, 32, [&](int, float logit) {
            uint32_t rank = sample_rank(logit);
            if (rank > row->cutoff.rank) sum += sample_weight(row, logit);
            if (rank == row->cutoff.rank) ties++;
        });
        all += sum;
        if (ballot(sum > 0)) sum = logits_reduce_warp(sum, sample_add);
        if (ballot(ties > 0)) ties = logits_reduce_warp(ties, [](uint32_t a, uint32_t b) { return a + b; });
        if (lane_id() == 0) row->shared->sums[segment] = sum;
        if (lane_id() == 0) row->shared->ties[segment] = ties;
    }
    return logits_reduce(all, (uint64_t *)row->shared->reduced, sample_add);
}

// Every thread has an item of a list, with a sum of weights above the cutoff and a number of tokens at the cutoff. Sets
// *place to the item at which the sum of the kept weights exceeds place->bound; or returns false, and takes the items
// from place->bound and place->ties.
DEVICE bool sample_locate(uint64_t sum, uint64_t ties, uint64_t tie_weight, struct sample_shared *shared,
                          struct sample_place *place) {
    uint64_t all, all_ties, sums = sample_scan(sum, shared, &all);
    if (threadIdx.x == 0) shared->place.index = -1;
    uint64_t tied = sample_scan(ties, shared, &all_ties), tied_before = tied - ties, left = place->ties;
    if (tied > left) tied = left;
    if (tied_before > left) tied_before = left;
    if (all_ties > left) all_ties = left;
    uint64_t before = sums - sum + tied_before * tie_weight;
    struct sample_place found = {(int)threadIdx.x, place->bound - before, left - tied_before};
    if (place->bound >= before && place->bound < sums + tied * tie_weight) shared->place = found;
    __syncthreads();
    if (shared->place.index >= 0) {
        *place = shared->place;
        return true;
    }
    place->bound -= all + all_ties * tie_weight;
    place->ties -= all_ties;
    return false;
}

// The first token at which the sum of kept weights exceeds `bound`, which is below the sum of all.
DEVICE int32_t sample_find(const struct sample_row *row, int segment_len, uint64_t bound) {
    struct sample_shared *shared = row->shared;
    uint64_t tie_weight = sample_weight(row, sample_logit_of(row->cutoff.rank));
    struct sample_place place = {-1, bound, row->cutoff.ties};
    int segment = (int)threadIdx.x;
    bool exists = segment < SAMPLE_SEGMENTS;
    if (!sample_locate(exists ? shared->sums[segment] : 0, exists ? shared->ties[segment] : 0, tie_weight, shared,
                       &place))
        return 0; // not reached
    for (int first = place.index * segment_len; first < row->count; first += LOGITS_THREADS) {
        int token = first + (int)threadIdx.x;
        float logit = token < row->count ? row->logits[token] : 0;
        bool kept = token < row->count && sample_rank(logit) > row->cutoff.rank;
        bool tie = token < row->count && sample_rank(logit) == row->cutoff.rank;
        if (sample_locate(kept ? sample_weight(row, logit) : 0, tie, tie_weight, shared, &place))
            return first + place.index;
    }
    return 0; // not reached
}

// The high half of a product of 64 bits each.
DEVICE uint64_t sample_product_high(uint64_t a, uint64_t b) {
    uint64_t low = (a & 0xffffffffu) * (b & 0xffffffffu);
    uint64_t first = (a >> 32) * (b & 0xffffffffu) + (low >> 32), second = (a & 0xffffffffu) * (b >> 32);
    uint64_t middle = (first & 0xffffffffu) + second;
    return (a >> 32) * (b >> 32) + (first >> 32) + (middle >> 32);
}

// Philox4x32-10, the same as rng_bits of shared/base/rng.h.
DEVICE uint64_t sample_random_bits(uint64_t key, uint64_t a, uint64_t b) {
    uint32_t counter[4] = {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)};
    uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t first = (uint64_t)0xD2511F53u * counter[0], second = (uint64_t)0xCD9E8D57u * counter[2];
        counter[0] = (uint32_t)(second >> 32) ^ counter[1] ^ words[0];
        counter[1] = (uint32_t)second;
        counter[2] = (uint32_t)(first >> 32) ^ counter[3] ^ words[1];
        counter[3] = (uint32_t)first;
        words[0] += 0x9E3779B9u;
        words[1] += 0xBB67AE85u;
    }
    return (uint64_t)counter[1] << 32 | counter[0];
}

// Returns a token by temperature, then top-k, then top-p. The uniform random number is random / 2^64, of which the
// highest 53 bits count, like those of rng_uniform.
DEVICE int32_t sample_token(const float *logits, int vocabulary, float max, struct sampling settings, uint64_t random,
                            const struct sample_parts *parts, struct sample_shared *shared) {
    if (settings.temperature <= 0) return sample_greedy(logits, vocabulary, max, shared);
    struct sample_row whole = {logits, vocabulary, max, div_rn(1, settings.temperature), {0, 0}, shared}, row = whole;
    sample_truncate(&row, settings, parts);
    whole.cutoff = row.cutoff;
    int segment_len = (vocabulary + 32 * SAMPLE_SEGMENTS - 1) / (32 * SAMPLE_SEGMENTS) * 32;
    uint64_t total = sample_sum_segments(&whole, segment_len);
    if (total == 0) return sample_greedy(logits, vocabulary, max, shared); // a maximum that is not finite
    return sample_find(&whole, segment_len, sample_product_high(random & ~(uint64_t)0x7ff, total));
}

// ---- decode_batch ----

struct cuda_decode_slot {
    struct decode_row row;
    int32_t at_work;
};

struct decode_draw {
    int32_t token; // -1: idle
    float logprob;
};

// What kernels see of a batch: pointers into one buffer.
struct decode_state {
    int capacity, eos_count;
    struct cuda_decode_slot *slots;               // [capacity]
    struct decode_draw *drawn;                    // [capacity], by the step that is computed
    struct decode_draw *history;                  // [2][capacity], of step i: history[i % 2]
    int64_t *steps;                               // sampled so far
    const int32_t *eos_ids;                       // [eos_count]
    int32_t *tokens, *position_ids, *cache_slots; // inputs of the next step
    struct attention_tile *tiles;                 // of the plan
};

struct cuda_decode_batch {
    struct decode_batch base;
    struct decode_state state;
    struct buffer *memory;       // of `state`
    struct decode_draw *history; // pinned: a copy for the host
    int64_t steps;               // asked for so far
    cudaEvent_t done[2];         // after the copy of step i: done[i % 2]
};

static struct cuda_decode_batch *decode_batch_of(struct decode_batch *base) {
    return (struct cuda_decode_batch *)base;
}

static_assert(offsetof(struct cuda_decode_batch, base) == 0, "a decode batch is found by its public part");

static struct tensor decode_batch_tensor(struct buffer *memory, size_t offset, int rows, int columns) {
    struct tensor out = {memory, offset, ELEMENT_I32, rows, columns, columns};
    return out;
}

// The inputs of a slot's next step. An idle row, and one that only samples its first token, attends to nothing and
// writes nothing into the KV cache.
DEVICE void decode_batch_write_inputs(const struct decode_state *state, int slot) {
    const struct decode_row *row = &state->slots[slot].row;
    bool at_work = state->slots[slot].at_work != 0, computes = at_work && row->len > 0;
    struct attention_tile *tile = &state->tiles[slot];
    state->tokens[slot] = computes ? row->token : 0;
    for (int axis = 0; axis < 3; axis++) state->position_ids[3 * slot + axis] = at_work ? row->position : 0;
    state->cache_slots[slot] = computes ? row->kv_begin + row->len - 1 : -1;
    tile->prefix_begin = computes ? row->prefix_begin : 0;
    tile->prefix_len = computes ? row->prefix_len : 0;
    tile->kv_begin = computes ? row->kv_begin : 0;
    tile->visible = computes ? row->len : 0;
}

// From slot `first` on.
__global__ void __launch_bounds__(DECODE_THREADS)
    decode_inputs_kernel(struct decode_state state, int first, int count) {
    for (int i = (int)threadIdx.x; i < count; i += DECODE_THREADS) decode_batch_write_inputs(&state, first + i);
}

__global__ void __launch_bounds__(DECODE_THREADS) decode_advance_kernel(struct decode_state state) {
    int64_t step = *state.steps;
    for (int slot = (int)threadIdx.x; slot < state.capacity; slot += DECODE_THREADS) {
        struct decode_draw drawn = {-1, 0};
        struct cuda_decode_slot *own = &state.slots[slot];
        if (own->at_work) {
            drawn = state.drawn[slot];
            own->row.token = drawn.token;
            own->row.position++;
            own->row.len++;
            if (own->row.len == own->row.max_len) own->at_work = false;
            for (int i = 0; i < state.eos_count; i++)
                if (state.eos_ids[i] == drawn.token) own->at_work = false;
        }
        state.history[step % 2 * state.capacity + slot] = drawn;
        decode_batch_write_inputs(&state, slot);
    }
    __syncthreads(); // everybody has read the number of the step
    if (threadIdx.x == 0) *state.steps = step + 1;
}

// Allocates the arrays, sets the pointers to them, and makes every slot idle.
static status decode_batch_fill(struct backend *backend, struct cuda_decode_batch *batch, int capacity,
                                struct heads heads, const int32_t *eos_ids, size_t eos_count) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct decode_state *state = &batch->state;
    size_t end = 0, rows = (size_t)capacity;
    size_t slots = cuda_place(&end, rows * sizeof *state->slots);
    size_t drawn = cuda_place(&end, rows * sizeof *state->drawn);
    size_t history = cuda_place(&end, 2 * rows * sizeof *state->history);
    size_t steps = cuda_place(&end, sizeof *state->steps);
    size_t ids = cuda_place(&end, eos_count * sizeof *state->eos_ids);
    size_t tokens = cuda_place(&end, rows * sizeof *state->tokens);
    size_t position_ids = cuda_place(&end, 3 * rows * sizeof *state->position_ids);
    size_t cache_slots = cuda_place(&end, rows * sizeof *state->cache_slots);
    TRY(cuda_buffer_new(backend, end, &batch->memory));
    unsigned char *data = batch->memory->data;
    state->capacity = capacity;
    state->eos_count = (int)eos_count;
    state->slots = (struct cuda_decode_slot *)(data + slots);
    state->drawn = (struct decode_draw *)(data + drawn);
    state->history = (struct decode_draw *)(data + history);
    state->steps = (int64_t *)(data + steps);
    state->eos_ids = (const int32_t *)(data + ids);
    state->tokens = (int32_t *)(data + tokens);
    state->position_ids = (int32_t *)(data + position_ids);
    state->cache_slots = (int32_t *)(data + cache_slots);
    batch->base.rows = capacity;
    batch->base.tokens = decode_batch_tensor(batch->memory, tokens, capacity, 1);
    batch->base.position_ids = decode_batch_tensor(batch->memory, position_ids, capacity, 3);
    batch->base.cache_slots = decode_batch_tensor(batch->memory, cache_slots, capacity, 1);
    if (eos_count > 0)
        TRY(cuda_upload(backend, decode_batch_tensor(batch->memory, ids, 1, (int)eos_count), eos_ids, ELEMENT_I32));
    TRY(attention_plan_for_decoding(cuda, &batch->base.plan, heads, capacity));
    state->tiles = batch->base.plan->tiles;
    LAUNCH(decode_inputs_kernel, 1, DECODE_THREADS, 0, cuda->stream, *state, 0, capacity);
    TRY(cuda_launched("decode_batch"));
    TRY(attention_plan_divide(cuda, batch->base.plan));
    CUDA_TRY(cudaMallocHost((void **)&batch->history, 2 * rows * sizeof *batch->history));
    for (int i = 0; i < 2; i++) CUDA_TRY(cudaEventCreateWithFlags(&batch->done[i], cudaEventDisableTiming));
    return OK;
}

status cuda_decode_batch_new(struct backend *backend, struct decode_batch **out, int capacity, struct heads heads,
                             const int32_t *eos_ids, size_t eos_count) {
    struct cuda_decode_batch *batch;
    *out = NULL;
    CHECK(capacity > 0);
    NEW(&batch, 1);
    *out = &batch->base;
    status result = decode_batch_fill(backend, batch, capacity, heads, eos_ids, eos_count);
    if (result != OK) cuda_decode_batch_free(backend, out);
    return result;
}

void cuda_decode_batch_free(struct backend *backend, struct decode_batch **out) {
    if (!*out) return;
    struct cuda_decode_batch *batch = decode_batch_of(*out);
    cuda_buffer_free(backend, &batch->memory);
    cuda_attention_plan_free(backend, &batch->base.plan);
    for (int i = 0; i < 2; i++)
        if (batch->done[i]) (void)cudaEventDestroy(batch->done[i]);
    (void)cudaFreeHost(batch->history);
    free(batch);
    *out = NULL;
}

status cuda_decode_batch_set(struct backend *backend, struct decode_batch *base, int slot,
                             const struct decode_row *row) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_decode_batch *batch = decode_batch_of(base);
    CHECK(slot >= 0 && slot < batch->state.capacity && !cuda->recording);
    CHECK(!row || (row->len >= 0 && row->len < row->max_len && row->prefix_len >= 0));
    struct cuda_decode_slot value;
    memset(&value, 0, sizeof value);
    // With all its tokens but the last it attends to the most.
    if (row && row->max_len > 1) TRY(attention_plan_reserve(cuda, batch->base.plan, row->prefix_len, row->max_len - 1));
    if (row) value.row = *row;
    value.at_work = row != NULL;
    struct tensor bytes = {batch->memory, (size_t)slot * sizeof value, ELEMENT_U8, 1, sizeof value, sizeof value};
    TRY(cuda_upload(backend, bytes, &value, ELEMENT_U8));
    LAUNCH(decode_inputs_kernel, 1, DECODE_THREADS, 0, cuda->stream, batch->state, slot, 1);
    TRY(cuda_launched("decode_batch_set"));
    return attention_plan_divide(cuda, batch->base.plan);
}

// Notes that the stream has got one more step, which decode_batch_read can then wait for. Not while a graph is
// recorded: a recorded step is noted when the graph is launched.
static status decode_batch_asked(struct cuda_backend *cuda, struct cuda_decode_batch *batch) {
    CUDA_TRY(cudaEventRecord(batch->done[batch->steps % 2], cuda->stream));
    batch->steps++;
    return OK;
}

status cuda_decode_batch_read(struct backend *backend, struct decode_batch *base, int64_t step, int32_t *tokens,
                              float *logprobs) {
    struct cuda_decode_batch *batch = decode_batch_of(base);
    CHECK(!cuda_of(backend)->recording);
    CHECK(step >= 0 && step < batch->steps && step >= batch->steps - 2);
    CUDA_TRY(cudaEventSynchronize(batch->done[step % 2]));
    const struct decode_draw *drawn = batch->history + step % 2 * batch->state.capacity;
    for (int slot = 0; slot < batch->state.capacity; slot++) {
        tokens[slot] = drawn[slot].token;
        logprobs[slot] = drawn[slot].logprob;
    }
    return OK;
}

// ---- graph ----
//
// A graph keeps the addresses of the scratch memory that was there when it was recorded. So while there is a graph,
// scratch memory that is outgrown is not freed (cuda_scratch).

struct graph {
    cudaGraphExec_t exec;
    struct decode_batch **steps; // of these batches, in order, that a launch computes
    size_t step_count;
};

static void graph_release(struct graph *graph) {
    if (graph->exec) (void)cudaGraphExecDestroy(graph->exec);
    free(graph->steps);
    free(graph);
}

status cuda_graph_begin(struct backend *backend) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(!cuda->recording);
    if (cuda->lt) gemm_bf16_load();
    CUDA_TRY(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    NEW(&cuda->recording, 1);
    return OK;
}

status cuda_graph_end(struct backend *backend, struct graph **out) {
    struct cuda_backend *cuda = cuda_of(backend);
    *out = NULL;
    CHECK(cuda->recording);
    struct graph *graph = cuda->recording;
    cuda->recording = NULL;
    cudaGraph_t captured = NULL;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &captured);
    if (error == cudaSuccess) error = cudaGraphInstantiateWithFlags(&graph->exec, captured, 0);
    if (captured) (void)cudaGraphDestroy(captured);
    if (error != cudaSuccess) {
        graph_release(graph);
        return cuda_failed(error, "graph_end");
    }
    cuda->graphs++;
    *out = graph;
    return OK;
}

status cuda_graph_launch(struct backend *backend, const struct graph *graph) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(!cuda->recording);
    CUDA_TRY(cudaGraphLaunch(graph->exec, cuda->stream));
    for (size_t i = 0; i < graph->step_count; i++) TRY(decode_batch_asked(cuda, decode_batch_of(graph->steps[i])));
    return OK;
}

void cuda_graph_free(struct backend *backend, struct graph **pointer) {
    if (!*pointer) return;
    struct cuda_backend *cuda = cuda_of(backend);
    (void)cudaStreamSynchronize(cuda->stream); // a launch may be under way
    graph_release(*pointer);
    *pointer = NULL;
    if (--cuda->graphs == 0) cuda_scratch_free_outgrown(cuda);
}

// ---- the operation sample ----

//
// Row blockIdx.y, or blockIdx.x of sample_kernel, of the logits is that of slot `first` and following. Idle slots are
// left out.

// The maximum of a part of a row.
__global__ void __launch_bounds__(LOGITS_THREADS)
    sample_max_kernel(const float *all_logits, int vocabulary, struct decode_state state, int first,
                      struct sample_parts *parts) {
    if (!state.slots[first + (int)blockIdx.y].at_work) return;
    const float *logits = all_logits + (int64_t)blockIdx.y * vocabulary;
    float max = -INFINITY;
    sample_each<SAMPLE_LOADS>(logits, (int)(blockIdx.x * LOGITS_THREADS + threadIdx.x), vocabulary,
                              SAMPLE_PARTS * LOGITS_THREADS,
                              [&](int, float logit) { max = logits_larger(max, logit); });
    max = logits_reduce(max, (float *)dynamic_shared(), logits_larger);
    if (threadIdx.x == 0) parts[blockIdx.y].max[blockIdx.x] = max;
}

DEVICE float sample_max_of_parts(const struct sample_parts *parts) {
    float max = parts->max[0];
    for (int part = 1; part < SAMPLE_PARTS; part++) max = logits_larger(max, parts->max[part]);
    return max;
}

// The sums of PART_THREADS of the threads of logits_lse_of_sums, and the histogram of their tokens: of numbers if there
// is a top-k, of weights otherwise.
__global__ void __launch_bounds__(PART_THREADS)
    sample_sums_kernel(const float *all_logits, int vocabulary, struct decode_state state, int first,
                       struct sample_parts *all_parts) {
    uint32_t *low = (uint32_t *)dynamic_shared(), *high = low + SAMPLE_BINS;
    if (!state.slots[first + (int)blockIdx.y].at_work) return;
    const float *logits = all_logits + (int64_t)blockIdx.y * vocabulary;
    struct sampling settings = state.slots[first + (int)blockIdx.y].row.sampling;
    struct sample_parts *parts = &all_parts[blockIdx.y];
    float max = sample_max_of_parts(parts), inverse_temperature = div_rn(1, settings.temperature);
    bool by_count = sample_has_top_k(settings, vocabulary);
    bool binned = settings.temperature > 0 && (by_count || settings.top_p < 1);
    for (int bin = (int)threadIdx.x; bin < 2 * SAMPLE_BINS; bin += PART_THREADS) low[bin] = 0;
    __syncthreads();
    int column = (int)(blockIdx.x * PART_THREADS + threadIdx.x);
    double sum = 0;
    sample_each<SAMPLE_LOADS>(logits, column, vocabulary, LOGITS_THREADS, [&](int, float logit) {
        float weight = logits_weight(logit, max, 1);
        sum += (double)weight;
        int bin = binned ? sample_bin_of(logit, max, inverse_temperature) : (int)SAMPLE_BINS;
        if (bin == SAMPLE_BINS) return;
        if (inverse_temperature != 1) weight = logits_weight(logit, max, inverse_temperature);
        uint64_t value = by_count ? 1 : sample_integer(weight);
        if (value > 0) sample_add_halves(&low[bin], &high[bin], value);
    });
    parts->sums[column] = sum;
    __syncthreads();
    if (!binned) return;
    for (int bin = (int)threadIdx.x; bin < SAMPLE_BINS; bin += PART_THREADS)
        parts->bins[blockIdx.x][bin] = (uint64_t)high[bin] << 32 | low[bin];
}

// What the rows at work draw, for decode_advance_kernel.
__global__ void __launch_bounds__(LOGITS_THREADS, 1)
    sample_kernel(const float *all_logits, int vocabulary, struct decode_state state, int first,
                  const struct sample_parts *all_parts) {
    struct sample_shared *shared = (struct sample_shared *)dynamic_shared();
    int slot = first + (int)blockIdx.x;
    const struct decode_row *row = &state.slots[slot].row;
    if (!state.slots[slot].at_work) return;
    const float *logits = all_logits + (int64_t)blockIdx.x * vocabulary;
    const struct sample_parts *parts = &all_parts[blockIdx.x];
    float max = sample_max_of_parts(parts);
    float lse = logits_lse_of_sums(parts->sums[threadIdx.x], max, (char *)shared->reduced);
    uint64_t random = sample_random_bits(row->key, row->completion, (uint64_t)row->len);
    int32_t token = sample_token(logits, vocabulary, max, row->sampling, random, parts, shared);
    if (threadIdx.x > 0) return;
    state.drawn[slot].token = token;
    state.drawn[slot].logprob = add_rn(logits[token], -lse);
}

// Draws a token for each of `rows` rows of logits, of the slots from `first` on.
static status sample_rows(struct cuda_backend *cuda, const struct decode_state *state, const float *logits,
                          int vocabulary, int first, int rows) {
    struct sample_parts *parts;
    dim3 grid(SAMPLE_PARTS, (unsigned)rows);
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_SUMS, (size_t)rows * sizeof *parts, &parts));
    LAUNCH(sample_max_kernel, grid, LOGITS_THREADS, LOGITS_WARPS * sizeof(float), cuda->stream, logits, vocabulary,
           *state, first, parts);
    LAUNCH(sample_sums_kernel, grid, PART_THREADS, 2 * SAMPLE_BINS * sizeof(uint32_t), cuda->stream, logits, vocabulary,
           *state, first, parts);
    LAUNCH(sample_kernel, (unsigned)rows, LOGITS_THREADS, sizeof(struct sample_shared), cuda->stream, logits,
           vocabulary, *state, first, parts);
    return OK;
}

status cuda_sample(struct backend *backend, struct decode_batch *base, struct tensor in, struct weight *lm_head) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_decode_batch *batch = decode_batch_of(base);
    struct tensor plain = lm_head->plain;
    int64_t vocabulary = plain.rows, block = in.rows < SAMPLE_ROWS ? in.rows : (int64_t)SAMPLE_ROWS;
    CHECK(tensor_is(in, (int)plain.type, base->rows, plain.columns) && vocabulary <= SAMPLE_VOCABULARY);
    struct tensor logits;
    TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_LOGITS, ELEMENT_F32, block, vocabulary, &logits));
    for (int64_t first = 0; first < in.rows; first += block) {
        int64_t rows = in.rows - first < block ? in.rows - first : block;
        TRY(product_logits(cuda, tensor_rows(logits, 0, rows), tensor_rows(in, first, rows), plain));
        TRY(sample_rows(cuda, &batch->state, (const float *)tensor_row(logits, 0), (int)vocabulary, (int)first,
                        (int)rows));
    }
    // The step ends: what was drawn is noted, the slots move on, and the inputs of the next step are prepared.
    LAUNCH(decode_advance_kernel, 1, DECODE_THREADS, 0, cuda->stream, batch->state);
    TRY(cuda_launched("sample"));
    TRY(attention_plan_divide(cuda, batch->base.plan));
    size_t bytes = 2 * (size_t)batch->state.capacity * sizeof *batch->history;
    CUDA_TRY(cudaMemcpyAsync(batch->history, batch->state.history, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    struct graph *graph = cuda->recording;
    if (!graph) return decode_batch_asked(cuda, batch);
    RESIZE(&graph->steps, graph->step_count + 1);
    graph->steps[graph->step_count++] = base;
    return OK;
}
