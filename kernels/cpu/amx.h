// Products on the matrix unit of Intel's processors (AMX), which multiplies tiles of bfloat16 and sums in float32.
//
// Each output is one sum over steps of 32 inner elements, from the first to the last, in one order for every number of
// rows and columns. (oneDNN's code for AMX sums a row in an order that depends on how many rows the product has, which
// breaks the one fixed order of ops.h.)
//
// A float32 number is taken as bfloat16 parts of eight bits each, x = x1 + x2 + x3: x1 is x rounded, x2 the rest of it
// rounded, x3 the rest of that. Three parts are x exactly, two have an error of at most 2^-18 |x|. In a step
//   x y = x1 y3 + x1 y2 + x1 y1 + x2 y1 + x2 y2 + x3 y1, in this order,
// of which two parts leave out those with x3, y3 and x2 y2. What is left out is below 2^-24 |x y| with three parts, and
// with two below 2^-16 |x y|, errors of the parts included (Henry, Tang and Heinecke, Leveraging the bfloat16
// Artificial Intelligence Datatype For Higher-Precision Computations, 2019). An infinite x gives NaN, as does one that
// bfloat16 rounds to infinity (3.39e38 and more), and parts below 2^-126 are taken as 0.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    AMX_INNER = 32,    // inner elements of a step
    AMX_GROUP = 16,    // rows of a tile
    AMX_BLOCK = 64,    // columns that the matrix has together (gemm.h)
    MAX_AMX_PARTS = 3, // of a number: 1 for bfloat16, 2 or 3 for float32
};

// Whether this processor has it and the system permits its use, for which it is asked at the first call. The other
// functions need it.
bool amx_usable(void);

// Elements of packed rows: groups of 16 rows; in them steps of 32 inner elements; in them, for each part, a tile.
int64_t amx_rows_size(int parts, int64_t rows, int64_t inner);

// Packs rows [rows, inner] of bfloat16 (one part) or float32, `stride` elements apart, with zeros up to the end of the
// last step. Of a last group that has fewer than 16 rows nothing else is written.
void amx_pack_rows(uint16_t *out, const void *in, int64_t stride, int parts, int64_t rows, int64_t inner);

// One row of softmax, counted from the first column that is packed.
struct amx_softmax {
    int64_t first, end; // the columns that the row sees
    float max, scale;   // max: of the scores that it sees
    float sum;          // the result: of the exponentials that it sees, in sixteen lanes by column
};

// Packs exp((scores - max) * scale) as one row of `steps` steps, 0 for columns that the row does not see. The scores
// are readable up to the end of the last step.
void amx_pack_softmax(uint16_t *out, const float *scores, struct amx_softmax *softmax, int parts, int64_t steps);

// Elements of a block of 64 packed columns: two halves of 32 columns; in them steps; in them, for each part, two tiles
// of 16 pairs of inner elements; in them 16 columns.
int64_t amx_columns_size(int parts, int64_t inner);

// Where the inner element `inner`, a multiple of 32, begins in such a block.
int64_t amx_columns_at(int parts, int64_t inner);

// Where the pair `pair` of inner elements and sixteen columns from `column` on are in such a block, which has `size`
// elements: the first part of them.
int64_t amx_pair_at(int parts, int64_t size, int64_t pair, int64_t column);

// Where a block of float32 columns is: element (inner i, column c) at i * row_stride + c / 16 * tile_stride + c % 16.
struct amx_columns {
    int64_t row_stride, tile_stride;
    int tiles; // of sixteen columns, at most 4
};

// Packs `inner` inner elements of a block of float32 columns, with zeros for missing tiles and up to the end of the
// last step. The block has `size` elements, and `out` is where the inner elements begin in it.
void amx_pack_columns(uint16_t *out, const float *in, const struct amx_columns *columns, int parts, int64_t inner,
                      int64_t size);

// A product of packed rows and columns, or some of its steps.
struct amx_product {
    int parts;
    float *out; // [row_count, column_count]
    int64_t out_stride;
    const uint16_t *rows, *columns;     // from the first step on
    int64_t rows_stride, column_stride; // elements from a group to the next, from a block to the next
    int64_t row_count, column_count;    // column_count is a multiple of 64
    int64_t steps;
};

// out += the product; or out = the product if `add` is false.
void amx_multiply(const struct amx_product *product, bool add);
