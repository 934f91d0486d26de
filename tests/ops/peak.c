#include "tests/ops/peak.h"

#include <immintrin.h>

#include "kernels/cpu/amx.h"

enum {
    turns = 2000000,
    chains = 16,
    tile_turns = turns / 8,
    tile_flops = 2 * 16 * 16 * 32,
};

static bool peak_has512(void) {
    return __builtin_cpu_supports("avx512f");
}

static bool peak_has_bf16(void) {
    return __builtin_cpu_supports("avx512bf16");
}

__attribute__((target("avx512f"))) static float peak_multiply512(void) {
    __m512 sums[chains], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < chains; i++) sums[i] = _mm512_set1_ps((float)i);
    for (int turn = 0; turn < turns; turn++) {
#pragma GCC unroll 16
        for (int i = 0; i < chains; i++) sums[i] = _mm512_fmadd_ps(sums[i], x, y);
    }
    float sum = 0;
    for (int i = 0; i < chains; i++) sum += _mm512_reduce_add_ps(sums[i]);
    return sum;
}

__attribute__((target("avx2,fma"))) static float peak_multiply256(void) {
    __m256 sums[chains], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < chains; i++) sums[i] = _mm256_set1_ps((float)i);
    for (int turn = 0; turn < turns; turn++) {
#pragma GCC unroll 16
        for (int i = 0; i < chains; i++) sums[i] = _mm256_fmadd_ps(sums[i], x, y);
    }
    float sum = 0, lanes[8];
    for (int i = 0; i < chains; i++) {
        _mm256_storeu_ps(lanes, sums[i]);
        sum += lanes[0];
    }
    return sum;
}

__attribute__((target("avx512f,avx512bf16"))) static float peak_dot512(void) {
    __m512 sums[chains];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80), y = (__m512bh)_mm512_set1_epi32(0x38003800);
    for (int i = 0; i < chains; i++) sums[i] = _mm512_set1_ps((float)i);
    for (int turn = 0; turn < turns; turn++) {
#pragma GCC unroll 16
        for (int i = 0; i < chains; i++) sums[i] = _mm512_dpbf16_ps(sums[i], x, y);
    }
    float sum = 0;
    for (int i = 0; i < chains; i++) sum += _mm512_reduce_add_ps(sums[i]);
    return sum;
}

__attribute__((target("amx-tile,amx-bf16"))) static float peak_multiply_tiles(void) {
    struct {
        uint8_t palette, unused[15];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    float sums[16][16];
    _tile_loadconfig(&config);
    for (int turn = 0; turn < tile_turns; turn++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, sums, sizeof *sums);
    _tile_release();
    return sums[0][0];
}

float peak_multiply_f32(void) {
    return peak_has512() ? peak_multiply512() : peak_multiply256();
}

double peak_flops_f32(void) {
    return 2.0 * turns * chains * (peak_has512() ? 16 : 8);
}

float peak_multiply_bf16(void) {
    if (amx_usable()) return peak_multiply_tiles();
    return peak_has_bf16() ? peak_dot512() : peak_multiply_f32();
}

double peak_flops_bf16(void) {
    if (amx_usable()) return 4.0 * tile_turns * tile_flops;
    return peak_has_bf16() ? 4.0 * turns * chains * 16 : peak_flops_f32();
}
