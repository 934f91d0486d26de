// Views of tensors, and questions about them.
#include "kernels/tensor.h"

#include <assert.h>

static_assert(sizeof(float) == 4 && sizeof(int32_t) == 4 && sizeof(uint16_t) == 2, "sizes of elements");

size_t element_size(enum element type) {
    static const size_t sizes[] = {[ELEMENT_F32] = 4, [ELEMENT_BF16] = 2, [ELEMENT_F16] = 2,
                                   [ELEMENT_I32] = 4, [ELEMENT_U8] = 1,   [ELEMENT_U16] = 2};
    static_assert(sizeof sizes / sizeof *sizes == ELEMENT_U16 + 1, "a size for every type");
    return sizes[type];
}

struct tensor tensor_rows(struct tensor whole, int64_t first, int64_t rows) {
    whole.offset += (size_t)(first * whole.stride) * element_size(whole.type);
    whole.rows = rows;
    return whole;
}

struct tensor tensor_columns(struct tensor whole, int64_t first, int64_t columns) {
    whole.offset += (size_t)first * element_size(whole.type);
    whole.columns = columns;
    return whole;
}

struct tensor tensor_reshape(struct tensor whole, int64_t rows, int64_t columns) {
    whole.rows = rows;
    whole.columns = columns;
    whole.stride = columns;
    return whole;
}

bool tensor_within(struct tensor t, size_t bytes) {
    if (t.rows < 0 || t.columns < 0 || (t.rows > 1 && t.stride < t.columns)) return false;
    if (t.rows == 0 || t.columns == 0) return true;
    size_t elements = (size_t)((t.rows - 1) * t.stride + t.columns);
    return t.offset + elements * element_size(t.type) <= bytes;
}

bool tensor_shaped(struct tensor t, int type, int64_t rows, int64_t columns) {
    bool same_type = type < 0 ? t.type == ELEMENT_F32 || t.type == ELEMENT_BF16 : t.type == (enum element)type;
    return same_type && t.rows == rows && t.columns == columns;
}

bool patch_shape_counts(const struct patch_shape *s, int64_t *patches, int64_t *columns) {
    int64_t unit = (int64_t)s->patch_size * s->merge_size;
    if (s->frames <= 0 || s->height % unit != 0 || s->width % unit != 0) return false;
    int64_t times = (s->frames + s->temporal_patch_size - 1) / s->temporal_patch_size;
    *patches = times * (s->height / s->patch_size) * (s->width / s->patch_size);
    *columns = (int64_t)3 * s->temporal_patch_size * s->patch_size * s->patch_size;
    return true;
}
