// Rows of tensors as views that the row kernels (row_kernels.inc) take.
#ifndef KERNELS_CPU_ROW_VIEW_H
#define KERNELS_CPU_ROW_VIEW_H

#include "kernels/cpu/cpu.h"

// Row `row` of an F32 or BF16 tensor; a view without data if the tensor is none.
static inline struct row_view row_view_of(struct tensor t, int64_t row) {
    if (tensor_none(t)) return (struct row_view){0};
    return (struct row_view){tensor_row(t, row), t.type == ELEMENT_BF16};
}

// Row `row` from column `first` on.
static inline struct row_view row_view_from(struct tensor t, int64_t row, int64_t first) {
    return row_view_of(tensor_columns(t, first, t.columns - first), row);
}

#endif
