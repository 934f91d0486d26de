// Random numbers as functions of a key: each number depends on what it is for, not on what was drawn before it.
// Counter-based Philox4x32-10 (Salmon et al., SC 2011).
#pragma once

#include <stddef.h>
#include <stdint.h>

// Returns 64 random bits for (key, a, b).
uint64_t rng_bits(uint64_t key, uint64_t a, uint64_t b);

// Returns a uniform double in [0, 1) with 53 random bits.
double rng_uniform(uint64_t key, uint64_t a, uint64_t b);

// Returns a uniform integer in [0, bound), bound >= 1, without modulo bias.
uint64_t rng_below(uint64_t key, uint64_t a, uint64_t b, uint64_t bound);

// Returns a standard normal number (Box-Muller, in double precision).
double rng_normal(uint64_t key, uint64_t a, uint64_t b);

// Returns a key for a seed and a name (XXH3 of the name, seeded): rng_key(seed, group_id).
uint64_t rng_key(uint64_t seed, const char *name);

// Fills order[0..count) with a permutation of 0..count-1 (Fisher-Yates over rng_below(key, stream, i)).
void rng_shuffle(uint64_t key, uint64_t stream, size_t count, size_t *order);
