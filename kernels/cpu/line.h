// Rows of tensors as the lines that the inner loops take.
#ifndef KERNELS_CPU_LINE_H
#define KERNELS_CPU_LINE_H

#include "kernels/cpu/cpu.h"

// Row `row` of an F32 or BF16 tensor; no data where there is none.
static inline struct line line_of(struct tensor t, int64_t row) {
    if (tensor_none(t)) return (struct line){0};
    return (struct line){tensor_row(t, row), t.type == ELEMENT_BF16};
}

// The columns [first, first + columns) of row `row`.
static inline struct line line_part(struct tensor t, int64_t row, int64_t first) {
    return line_of(tensor_columns(t, first, t.columns - first), row);
}

#endif
