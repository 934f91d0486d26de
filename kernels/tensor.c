// Views of tensors.
#include <assert.h>

#include "kernels/ops.h"

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
