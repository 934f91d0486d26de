#include "shared/base/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

uint64_t rng_bits(uint64_t key, uint64_t a, uint64_t b) {
    uint32_t c0 = (uint32_t)a, c1 = (uint32_t)(a >> 32), c2 = (uint32_t)b, c3 = (uint32_t)(b >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t first = (uint64_t)0xD2511F53u * c0, second = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)second;
        c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)first;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (uint64_t)c1 << 32 | c0;
}

double rng_uniform(uint64_t key, uint64_t a, uint64_t b) {
    return (double)(rng_bits(key, a, b) >> 11) * 0x1p-53;
}

uint64_t rng_below(uint64_t key, uint64_t a, uint64_t b, uint64_t bound) {
    assert(bound >= 1);
    uint64_t threshold = (0 - bound) % bound; // bits below it would be more probable: draw again under another key
    for (;; key += 0x9E3779B97F4A7C15u) {
        uint64_t bits = rng_bits(key, a, b);
        if (bits >= threshold) return bits % bound;
    }
}

double rng_normal(uint64_t key, uint64_t a, uint64_t b) {
    uint64_t bits = rng_bits(key, a, b);
    double radius = ((double)(bits >> 32) + 0.5) * 0x1p-32;
    double angle = (double)(uint32_t)bits * 0x1p-32;
    return sqrt(-2.0 * log(radius)) * cos(6.283185307179586 * angle);
}

uint64_t rng_key(uint64_t seed, const char *name) {
    return XXH3_64bits_withSeed(name, strlen(name), seed);
}

void rng_shuffle(uint64_t key, uint64_t stream, size_t count, size_t *order) {
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t i = count; i > 1; i--) {
        size_t other = rng_below(key, stream, i, i);
        size_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}
