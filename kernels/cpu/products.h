// Matrix products in tiles, each computed in one thread by oneDNN, shared out to the pool.
//
// Rows and columns of oneDNN's packed products do not see each other: how a product is cut into tiles does not show in
// its bits. A tile comes out in float32, and the caller's function adds, converts and places it.
#ifndef KERNELS_CPU_PRODUCTS_H
#define KERNELS_CPU_PRODUCTS_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitives.h"

// A matrix of inner x outputs, packed: blocks of 64 outputs one after the other; in a block, inner by inner (for
// bfloat16 in pairs of inner) the 64 outputs; zeros where the matrix ends.
struct packed {
    enum element type;
    int64_t outputs, inner;
    void *data;
};

struct product {
    struct packed matrix;
    int64_t rows;
    bool whole_rows; // a task takes all columns of its rows: for rows that are dear to prepare
    // The rows [first, first + rows) of the left side, dense, of the matrix' type; `room` can be used for them.
    const void *(*operand)(const void *context, int64_t first, int64_t rows, void *room);
    // Takes a tile: `rows` rows from `first`, `columns` columns from `column`, `stride` elements apart. May change it.
    void (*store)(const void *context, float *tile, int64_t stride, int64_t first, int64_t rows, int64_t column,
                  int64_t columns);
    const void *context;
};

// Bytes of the packed form.
size_t packed_bytes(const struct cpu_backend *cpu, enum element type, int64_t outputs, int64_t inner);

// Where the block of outputs that starts at `column`, a multiple of 64, lies.
void *packed_at(const struct cpu_backend *cpu, const struct packed *matrix, int64_t column);

// Packs a matrix of outputs x inner, of any float type, into out->data, rounding to out->type.
void pack_rows(struct cpu_backend *cpu, const struct packed *out, struct tensor matrix);

// Packs the transpose of a matrix of inner x outputs; out->inner may exceed its rows: zeros.
void pack_columns(struct cpu_backend *cpu, const struct packed *out, struct tensor matrix);

// Computes every tile. UNAVAILABLE when oneDNN cannot.
status product_run(struct cpu_backend *cpu, const struct product *product);

#endif
