// Conversions between float32, bfloat16 and IEEE half, rounding to nearest even.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_families.h"

static void convert_f32_from_bf16(float *out, const uint16_t *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = f32_from_bf16(in[i]);
}

static void convert_bf16_from_f32(uint16_t *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = bf16_from_f32(in[i]);
}

void simd_convert(struct simd *simd) {
    simd->f32_from_bf16 = convert_f32_from_bf16;
    simd->bf16_from_f32 = convert_bf16_from_f32;
}

static float f32_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    float magnitude;
    if (rest >= 0x7c00) { // infinity, NaN
        uint32_t bits = 0x7f800000 | (rest & 0x3ff) << 13;
        memcpy(&magnitude, &bits, 4);
    } else if (rest >= 0x400) {
        uint32_t bits = (rest << 13) + (112u << 23);
        memcpy(&magnitude, &bits, 4);
    } else {
        magnitude = (float)rest * 0x1p-24f;
    }
    uint32_t bits;
    memcpy(&bits, &magnitude, 4);
    bits |= sign;
    memcpy(&magnitude, &bits, 4);
    return magnitude;
}

static uint16_t f16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00; // 65520 and more
    if (bits < 0x38800000) {                      // below the smallest normal half: a multiple of 2^-24
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f; // aligns the last place to 2^-24 and rounds to even
        memcpy(&bits, &magnitude, 4);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits >> 13) - (112u << 10));
}

static void from_f16(float *out, const uint16_t *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = f32_from_f16(in[i]);
}

static void to_f16(uint16_t *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = f16_from_f32(in[i]);
}

static void to_f32(const struct cpu_backend *cpu, float *out, const void *in, enum element from, size_t count) {
    if (from == ELEMENT_F32) memcpy(out, in, count * 4);
    if (from == ELEMENT_BF16) cpu->simd.f32_from_bf16(out, in, count);
    if (from == ELEMENT_F16) from_f16(out, in, count);
}

static void from_f32(const struct cpu_backend *cpu, void *out, enum element to, const float *in, size_t count) {
    if (to == ELEMENT_F32) memcpy(out, in, count * 4);
    if (to == ELEMENT_BF16) cpu->simd.bf16_from_f32(out, in, count);
    if (to == ELEMENT_F16) to_f16(out, in, count);
}

void cpu_convert(const struct cpu_backend *cpu, void *out, enum element to, const void *in, enum element from,
                 size_t count) {
    if (to == from) {
        memcpy(out, in, count * element_size(to));
    } else if (to == ELEMENT_F32) {
        to_f32(cpu, out, in, from, count);
    } else if (from == ELEMENT_F32) {
        from_f32(cpu, out, to, in, count);
    } else {
        float part[256];
        for (size_t done = 0; done < count; done += 256) {
            size_t now = count - done < 256 ? count - done : 256;
            to_f32(cpu, part, (const char *)in + done * element_size(from), from, now);
            from_f32(cpu, (char *)out + done * element_size(to), to, part, now);
        }
    }
}

const float *cpu_row_read(const struct cpu_backend *cpu, struct tensor t, int64_t row, float *room) {
    if (t.type == ELEMENT_F32) return tensor_f32(t, row);
    to_f32(cpu, room, tensor_row(t, row), t.type, (size_t)t.columns);
    return room;
}

void cpu_row_write(const struct cpu_backend *cpu, struct tensor t, int64_t row, const float *values) {
    from_f32(cpu, tensor_row(t, row), t.type, values, (size_t)t.columns);
}
