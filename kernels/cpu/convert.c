// Conversions between float32, bfloat16 and IEEE half, rounding to nearest even.
#include "kernels/cpu/cpu.h"

static float convert_f32_from_f16(uint16_t half) {
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

static uint16_t convert_f16_from_f32(float value) {
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

static void convert_to_f32(const struct cpu_backend *cpu, float *out, const void *in, enum element from, size_t count) {
    if (from == ELEMENT_F32) memcpy(out, in, count * sizeof *out);
    if (from == ELEMENT_BF16) cpu->simd.f32_from_bf16(out, in, count);
    if (from == ELEMENT_F16) {
        const uint16_t *halves = in;
        for (size_t i = 0; i < count; i++) out[i] = convert_f32_from_f16(halves[i]);
    }
}

static void convert_from_f32(const struct cpu_backend *cpu, void *out, enum element to, const float *in, size_t count) {
    if (to == ELEMENT_F32) memcpy(out, in, count * sizeof *in);
    if (to == ELEMENT_BF16) cpu->simd.bf16_from_f32(out, in, count);
    if (to == ELEMENT_F16) {
        uint16_t *halves = out;
        for (size_t i = 0; i < count; i++) halves[i] = convert_f16_from_f32(in[i]);
    }
}

void cpu_convert(const struct cpu_backend *cpu, void *out, enum element to, const void *in, enum element from,
                 size_t count) {
    if (to == from) {
        memcpy(out, in, count * element_size(to));
    } else if (to == ELEMENT_F32) {
        convert_to_f32(cpu, out, in, from, count);
    } else if (from == ELEMENT_F32) {
        convert_from_f32(cpu, out, to, in, count);
    } else {
        enum { part_elements = 256 };
        float part[part_elements];
        for (size_t done = 0; done < count; done += part_elements) {
            size_t now = count - done < part_elements ? count - done : part_elements;
            convert_to_f32(cpu, part, (const char *)in + done * element_size(from), from, now);
            convert_from_f32(cpu, (char *)out + done * element_size(to), to, part, now);
        }
    }
}

const float *cpu_row_read(const struct cpu_backend *cpu, struct tensor t, int64_t row, float *scratch) {
    if (t.type == ELEMENT_F32) return tensor_f32(t, row);
    convert_to_f32(cpu, scratch, tensor_row(t, row), t.type, (size_t)t.columns);
    return scratch;
}

void cpu_row_write(const struct cpu_backend *cpu, struct tensor t, int64_t row, const float *values) {
    convert_from_f32(cpu, tensor_row(t, row), t.type, values, (size_t)t.columns);
}
