// Rows of logits: the log of the sum of exponentials, the softmax, and the drawing of a token.
//
// A draw walks over the row a few times and keeps nothing but a histogram: tokens are ranked by their logit, the lower
// token first among equals, and a cut says which of them are kept. All sums are in double, in the order of tokens.
#include <math.h>

#include "kernels/cpu/cpu.h"

enum { share = 1024, bins = 2048 };

float logits_logsum(const cpu_backend *cpu, const float *logits, int64_t vocabulary) {
    float highest = cpu->vectors.greatest(logits, vocabulary);
    return (float)((double)highest + log(cpu->vectors.exponentials(logits, vocabulary, highest)));
}

void logits_softmax(const cpu_backend *cpu, float *logits, int64_t vocabulary, float log_sum, float factor) {
    cpu->vectors.soften(logits, logits, vocabulary, log_sum, 1, factor);
}

// ---- which tokens are kept ----

// Tokens whose rank is above `rank`, and the first `ties` of those whose rank equals it.
typedef struct cut {
    uint32_t rank;
    int64_t ties;
} cut;

typedef struct drawing {
    const cpu_backend *cpu;
    const float *logits;
    int64_t count;
    float highest, rate; // weights are exp((logit - highest) rate)
    cut cut;
} drawing;

// A walk over the kept tokens' weights, a share at a time.
typedef struct walk {
    const drawing *drawing;
    int64_t first, size; // the present share
    int64_t ties;        // still to be kept
    float weights[share];
} walk;

// A whole number in the order of the logits.
static uint32_t rank_of(float logit) {
    uint32_t bits;
    memcpy(&bits, &logit, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static walk walk_begin(const drawing *drawing) {
    return (walk){.drawing = drawing, .ties = drawing->cut.ties};
}

// The next share; the weight of a token that is not kept is -1.
static bool walk_on(walk *walk) {
    const drawing *d = walk->drawing;
    walk->first += walk->size;
    walk->size = d->count - walk->first < share ? d->count - walk->first : share;
    if (walk->size <= 0) return false;
    const float *logits = d->logits + walk->first;
    d->cpu->vectors.soften(walk->weights, logits, walk->size, d->highest, d->rate, 1);
    if (d->cut.rank == 0) return true;
    for (int64_t i = 0; i < walk->size; i++) {
        uint32_t rank = rank_of(logits[i]);
        if (rank < d->cut.rank || (rank == d->cut.rank && walk->ties-- <= 0)) walk->weights[i] = -1;
    }
    return true;
}

// What the kept tokens with rank >> shift >> 11 == prefix weigh (or how many they are), by the next 11 bits of rank.
static void weigh(const drawing *drawing, bool counted, uint32_t prefix, int shift, double mass[bins]) {
    memset(mass, 0, bins * sizeof *mass);
    walk walk = walk_begin(drawing);
    while (walk_on(&walk)) {
        for (int64_t i = 0; i < walk.size; i++) {
            uint32_t rank = rank_of(drawing->logits[walk.first + i]) >> shift;
            if (walk.weights[i] < 0 || rank >> 11 != prefix) continue;
            mass[rank & (bins - 1)] += counted ? 1 : (double)walk.weights[i];
        }
    }
}

// How many tokens of this rank it takes to get from `sum` to `bound`.
static int64_t ties_needed(const drawing *drawing, bool counted, uint32_t rank, double sum, double bound) {
    walk walk = walk_begin(drawing);
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
static void keep_highest(drawing *drawing, bool counted, double bound) {
    double mass[bins], sum = 0;
    uint32_t prefix = 0;
    for (int shift = 22; shift >= 0; shift -= 11) {
        weigh(drawing, counted, prefix, shift, mass);
        int bin = bins - 1;
        for (; bin >= 0 && sum + mass[bin] < bound; bin--) sum += mass[bin];
        if (bin < 0) return; // all of them do not reach it
        prefix = prefix << 11 | (uint32_t)bin;
    }
    drawing->cut = (cut){prefix, ties_needed(drawing, counted, prefix, sum, bound)};
}

// ---- drawing ----

static double kept_weight(const drawing *drawing) {
    double sum = 0;
    walk walk = walk_begin(drawing);
    while (walk_on(&walk)) {
        for (int64_t i = 0; i < walk.size; i++) {
            if (walk.weights[i] > 0) sum += (double)walk.weights[i];
        }
    }
    return sum;
}

// The first kept token at which the sum of weights exceeds `bound`; rounding may leave the last one.
static int64_t token_at(const drawing *drawing, double bound) {
    double sum = 0;
    int64_t token = 0;
    walk walk = walk_begin(drawing);
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

static int64_t highest_token(const drawing *drawing) {
    for (int64_t token = 0; token < drawing->count; token++) {
        if (drawing->logits[token] == drawing->highest) return token;
    }
    return 0; // nothing but NaN
}

static int64_t draw(drawing *drawing, sampling settings, double chance) {
    if (settings.temperature <= 0) return highest_token(drawing);
    drawing->rate = 1 / settings.temperature;
    if (settings.top_k > 0 && settings.top_k < drawing->count) keep_highest(drawing, true, settings.top_k);
    if (settings.top_p < 1) keep_highest(drawing, false, (double)settings.top_p * kept_weight(drawing));
    return token_at(drawing, chance * kept_weight(drawing));
}

void sample_row(const cpu_backend *cpu, int32_t *token, float *logprob, const float *logits, int64_t vocabulary,
                sampling settings, double chance) {
    drawing drawing = {.cpu = cpu, .logits = logits, .count = vocabulary};
    drawing.highest = cpu->vectors.greatest(logits, vocabulary);
    *token = (int32_t)draw(&drawing, settings, chance);
    *logprob = logits[*token] - logits_logsum(cpu, logits, vocabulary);
}
