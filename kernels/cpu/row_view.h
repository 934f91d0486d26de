// Rows of tensors as the lines that the inner loops take.
#ifndef KERNELS_CPU_ROW_VIEW_H
#define KERNELS_CPU_ROW_VIEW_H

#include "kernels/cpu/cpu.h"

// Row `row` of an F32 or BF16 tensor; no data where there is none.
static inline struct row_view row_view_of(struct tensor t, int64_t row) {
    if (tensor_none(t)) return (struct row_view){0};
    return (struct row_view){tensor_row(t, row), t.type == ELEMENT_BF16};
}

// The columns [first, first + columns) of row `row`.
static inline struct row_view row_view_from(struct tensor t, int64_t row, int64_t first) {
    return row_view_of(tensor_columns(t, first, t.columns - first), row);
}

#endif
