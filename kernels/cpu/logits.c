// Rows of logits: the log of the sum of exponentials, the softmax, and the drawing of a token.
//
// A draw first narrows the row to the few candidates that top-k or top-p can keep (or goes on with the whole row when
// they are many), then walks over them a few times and keeps nothing but a histogram: tokens are ranked by their logit,
// the lower token first among equals, and a cut says which are kept. Sums are in double, in the order of tokens.
#include <math.h>

#include "kernels/cpu/cpu.h"

enum { share = 1024, bins = 2048, most_candidates = 4096, top_block = 256, most_top = 256 };

float logits_lse(const struct cpu_backend *cpu, const float *logits, int64_t vocabulary) {
    float highest = cpu->simd.row_max(logits, vocabulary);
    return (float)((double)highest + log(cpu->simd.row_sum_exp(logits, vocabulary, highest)));
}

void logits_softmax(const struct cpu_backend *cpu, float *logits, int64_t vocabulary, float lse, float factor) {
    cpu->simd.row_scaled_exp(logits, logits, vocabulary, lse, 1, factor);
}

// ---- which tokens are kept ----

// Tokens whose rank is above `rank`, and the first `ties` of those whose rank equals it.
struct cut {
    uint32_t rank;
    int64_t ties;
};

struct drawing {
    const struct cpu_backend *cpu;
    const float *logits; // of the whole row, or of the candidates
    int64_t count;
    float highest, rate; // weights are exp((logit - highest) rate)
    struct cut cut;
    bool narrowed;
    int32_t tokens[most_candidates]; // when narrowed
    float room[most_candidates];
};

// A walk over the kept tokens' weights, a share at a time.
struct walk {
    const struct drawing *drawing;
    int64_t first, size; // the present share
    int64_t ties;        // still to be kept
    float weights[share];
};

// A whole number in the order of the logits.
static uint32_t rank_of(float logit) {
    uint32_t bits;
    memcpy(&bits, &logit, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static struct walk walk_begin(const struct drawing *drawing) {
    return (struct walk){.drawing = drawing, .ties = drawing->cut.ties};
}

// The next share; the weight of a token that is not kept is -1.
static bool walk_on(struct walk *walk) {
    const struct drawing *d = walk->drawing;
    walk->first += walk->size;
    walk->size = d->count - walk->first < share ? d->count - walk->first : share;
    if (walk->size <= 0) return false;
    const float *logits = d->logits + walk->first;
    d->cpu->simd.row_scaled_exp(walk->weights, logits, walk->size, d->highest, d->rate, 1);
    if (d->cut.rank == 0) return true;
    for (int64_t i = 0; i < walk->size; i++) {
        uint32_t rank = rank_of(logits[i]);
        if (rank < d->cut.rank || (rank == d->cut.rank && walk->ties-- <= 0)) walk->weights[i] = -1;
    }
    return true;
}

// What the kept tokens with rank >> shift >> 11 == prefix weigh (or how many they are), by the next 11 bits of rank.
static void weigh(const struct drawing *drawing, bool counted, uint32_t prefix, int shift, double mass[bins]) {
    memset(mass, 0, bins * sizeof *mass);
    struct walk walk = walk_begin(drawing);
    while (walk_on(&walk)) {
        for (int64_t i = 0; i < walk.size; i++) {
            uint32_t rank = rank_of(drawing->logits[walk.first + i]) >> shift;
            if (walk.weights[i] < 0 || rank >> 11 != prefix) continue;
            mass[rank & (bins - 1)] += counted ? 1 : (double)walk.weights[i];
        }
    }
}

// How many tokens of this rank it takes to get from `sum` to `bound`.
static int64_t ties_needed(const struct drawing *drawing, bool counted, uint32_t rank, double sum, double bound) {
    struct walk walk = walk_begin(drawing);
    int64_t ties = 0;
    while (walk_on(&walk)) {
        for (int64_t i = 0; i < walk.size && sum < bound; i++) {
            if (walk.weights[i] < 0 || rank_of(drawing->logits[walk.first + i]) != rank) continue;
            sum += counted ? 1 : (double)walk.weights[i];
            ties++;
        }
    }
    return ties;
}

// Keeps the highest tokens whose weights (or number) first reach `bound`: the 33 bits of a rank with a zero before it,
// eleven at a time.
static void keep_highest(struct drawing *drawing, bool counted, double bound) {
    double mass[bins], sum = 0;
    uint32_t prefix = 0;
    for (int shift = 22; shift >= 0; shift -= 11) {
        weigh(drawing, counted, prefix, shift, mass);
        int bin = bins - 1;
        for (; bin >= 0 && sum + mass[bin] < bound; bin--) sum += mass[bin];
        if (bin < 0) return; // all of them do not reach it
        prefix = prefix << 11 | (uint32_t)bin;
    }
    drawing->cut = (struct cut){prefix, ties_needed(drawing, counted, prefix, sum, bound)};
}

// ---- candidates ----

// Goes on with the tokens whose logits reach `limit`, if they are few.
static void narrow(struct drawing *drawing, float limit) {
    int64_t found =
        drawing->cpu->simd.compact_ge(drawing->logits, drawing->count, limit, drawing->tokens, most_candidates);
    if (found > most_candidates || found == 0) return; // none: the limit is not a number
    for (int64_t i = 0; i < found; i++) drawing->room[i] = drawing->logits[drawing->tokens[i]];
    drawing->logits = drawing->room;
    drawing->count = found;
    drawing->narrowed = true;
}

// The k highest tokens reach the k-th of the greatest logits of blocks of tokens.
static void narrow_to_top(struct drawing *drawing, int64_t k) {
    float top[most_top];
    int64_t found = 0;
    if (k > most_top || drawing->count < k * top_block) return;
    for (int64_t first = 0; first + top_block <= drawing->count; first += top_block) {
        float high = drawing->cpu->simd.row_max(drawing->logits + first, top_block);
        if (found == k && !(high > top[k - 1])) continue;
        int64_t place = found < k ? found++ : k - 1;
        for (; place > 0 && top[place - 1] < high; place--) top[place] = top[place - 1];
        top[place] = high;
    }
    narrow(drawing, top[k - 1]);
}

// Goes on with tokens that weigh top_p of all together; returns what all of them weigh.
static double narrow_to_mass(struct drawing *drawing, double top_p) {
    static const float depths[8] = {INFINITY, 0.5f, 1, 2, 4, 6, 9, 13}; // below the highest, in units of temperature
    float limits[8];
    double masses[8];
    for (int i = 0; i < 8; i++) limits[i] = drawing->highest - depths[i] / drawing->rate;
    drawing->cpu->simd.mass_above(drawing->logits, drawing->count, drawing->highest, drawing->rate, limits, masses);
    int i = 1;
    while (i < 8 && !(masses[i] >= masses[0] * top_p * (1 + 1e-5))) i++; // single weights may round otherwise
    if (i < 8) narrow(drawing, limits[i]);
    return masses[0];
}

// ---- drawing ----

static double kept_weight(const struct drawing *drawing) {
    double sum = 0;
    struct walk walk = walk_begin(drawing);
    while (walk_on(&walk)) {
        for (int64_t i = 0; i < walk.size; i++) {
            if (walk.weights[i] > 0) sum += (double)walk.weights[i];
        }
    }
    return sum;
}

// The first kept token at which the sum of weights exceeds `bound`; rounding may leave the last one.
static int64_t token_at(const struct drawing *drawing, double bound) {
    double sum = 0;
    int64_t token = 0;
    struct walk walk = walk_begin(drawing);
    while (walk_on(&walk)) {
        for (int64_t i = 0; i < walk.size; i++) {
            if (!(walk.weights[i] > 0)) continue;
            token = walk.first + i;
            sum += (double)walk.weights[i];
            if (sum > bound) return token;
        }
    }
    return token;
}

static int64_t highest_token(const struct drawing *drawing) {
    for (int64_t token = 0; token < drawing->count; token++) {
        if (drawing->logits[token] == drawing->highest) return token;
    }
    return 0; // nothing but NaN
}

static int64_t draw(struct drawing *drawing, struct sampling settings, double uniform) {
    if (settings.temperature <= 0) return highest_token(drawing);
    drawing->rate = 1 / settings.temperature;
    bool top_k = settings.top_k > 0 && settings.top_k < drawing->count;
    if (top_k) {
        narrow_to_top(drawing, settings.top_k);
        keep_highest(drawing, true, settings.top_k);
    }
    if (settings.top_p < 1) {
        double top_p = (double)settings.top_p;
        double all = top_k ? kept_weight(drawing) : narrow_to_mass(drawing, top_p);
        keep_highest(drawing, false, top_p * all);
    }
    int64_t place = token_at(drawing, uniform * kept_weight(drawing));
    return drawing->narrowed ? drawing->tokens[place] : place;
}

void logits_sample(const struct cpu_backend *cpu, int32_t *token, float *logprob, const float *logits,
                   int64_t vocabulary, struct sampling settings, double uniform) {
    struct drawing drawing; // large: not all of it is set
    drawing.cpu = cpu;
    drawing.logits = logits;
    drawing.count = vocabulary;
    drawing.cut = (struct cut){0, 0};
    drawing.narrowed = false;
    drawing.highest = cpu->simd.row_max(logits, vocabulary);
    *token = (int32_t)draw(&drawing, settings, uniform);
    *logprob = logits[*token] - logits_lse(cpu, logits, vocabulary);
}
