// Keyed chance: every random number is a function of what it is for, not of what was drawn before.
// Counter-based Philox4x32-10 (Salmon et al., SC 2011).
#ifndef SHARED_BASE_RNG_H
#define SHARED_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

// 64 random bits for (key, a, b).
uint64_t rng_bits(uint64_t key, uint64_t a, uint64_t b);

// A uniform double in [0, 1) with 53 random bits.
double rng_uniform(uint64_t key, uint64_t a, uint64_t b);

// A uniform whole number in [0, bound), bound >= 1, without modulo bias.
uint64_t rng_below(uint64_t key, uint64_t a, uint64_t b, uint64_t bound);

// A standard normal number (Box-Muller in double).
double rng_normal(uint64_t key, uint64_t a, uint64_t b);

// A key for a seed and a name (XXH3 of the name, seeded): rng_key(seed, group_id).
uint64_t rng_key(uint64_t seed, const char *name);

// order[0..count) = a shuffle of 0..count-1 (Fisher-Yates over rng_below(key, stream, i)).
void rng_shuffle(uint64_t key, uint64_t stream, size_t count, size_t *order);

#endif
