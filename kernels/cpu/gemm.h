// Matrix products in tiles. The matrix unit (amx.h), oneDNN or, where neither can, the vector loops (simd.h) compute
// each tile in one thread; the tiles are distributed over the pool.
//
// A row or column of any of them does not depend on its neighbours: how a product is divided into tiles does not change
// its bits. A tile is computed in float32; the caller's write_tile adds, converts and stores it.
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"

// The most rows and columns of a tile.
enum { GEMM_TILE_ROWS = 128, GEMM_TILE_COLUMNS = MAX_PACKED_COLUMNS };

// A matrix of inner x outputs, packed: blocks of 64 outputs, one after the other. A block holds, inner by inner (for
// bfloat16 in pairs of inner), the 64 outputs, with zeros past the end of the matrix: the format of oneDNN's products.
// What gemm_run_amx multiplies is packed as in amx.h.
struct packed_matrix {
    enum element type;
    int64_t outputs, inner;
    void *data;
};

struct gemm {
    struct packed_matrix matrix;
    int64_t rows;
    bool whole_rows; // one task computes all columns of its rows: for rows that are expensive to prepare
    // Returns the rows [first, first + rows) of the left-hand matrix, dense, of the packed matrix's type. They may be
    // written to `scratch`, which has space for them. At most GEMM_TILE_ROWS rows.
    void *(*read_rows)(const void *context, int64_t first, int64_t rows, void *scratch);
    // Takes a tile: `rows` rows from `first` and `columns` columns from `column`; its rows are `stride` elements apart.
    // May change the tile. At most GEMM_TILE_COLUMNS columns.
    void (*write_tile)(const void *context, float *tile, int64_t stride, int64_t first, int64_t rows, int64_t column,
                       int64_t columns);
    const void *context;
};

static inline int64_t gemm_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t gemm_round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

// Computes every tile. UNAVAILABLE when memory is short or oneDNN fails.
status gemm_run(struct cpu_backend *cpu, const struct gemm *gemm);

// ---- packing (gemm_pack.c) ----

// Whether the matrix unit multiplies the type in parts.
static inline bool gemm_has_parts(const struct cpu_backend *cpu, enum element type) {
    return type == ELEMENT_F32 && cpu->f32_parts > 0;
}

// Bytes of the packed form.
size_t packed_bytes(const struct cpu_backend *cpu, enum element type, int64_t outputs, int64_t inner);

// Where the block of outputs that starts at `column`, a multiple of 64, begins.
void *packed_at(const struct cpu_backend *cpu, const struct packed_matrix *matrix, int64_t column);

// Packs a matrix of outputs x inner, of out->type, into out->data.
void pack_rows(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix);

// Packs a matrix of inner x outputs, of out->type. out->inner may exceed its rows: the rest is zeros.
void pack_columns(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix);

// ---- weights (linear.c) ----

struct weight {
    struct tensor plain;         // none when prepacked
    struct packed_matrix packed; // [N,L]: its outputs, inner length and type; its data is NULL unless prepacked
    struct pages pages;          // the memory of `packed`
};

// *out = the outputs [first, first + count) packed for in W^T; `first` is a multiple of 64. It is part of the weight,
// or packed now into scratch memory that stays valid until the next call.
status weight_packed(struct cpu_backend *cpu, const struct weight *weight, int64_t first, int64_t count,
                     struct packed_matrix *out);

// *out = those outputs packed for grad_out W, in scratch memory of its own. BUG for a prepacked weight.
status weight_packed_transpose(struct cpu_backend *cpu, const struct weight *weight, int64_t first, int64_t count,
                               struct packed_matrix *out);

// out = in x matrix + bias (or none); += when `add`.
status linear_packed(struct cpu_backend *cpu, struct tensor out, struct tensor in, struct packed_matrix matrix,
                     struct tensor bias, bool add);
