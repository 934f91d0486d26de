// Matrices packed for products: turned, rounded and laid out in blocks of 64 outputs.
#include "kernels/cpu/products.h"

enum { part = 128 }; // inner elements at a time, which stay in the first-level cache

struct packing {
    const struct cpu_backend *cpu;
    const struct packed *out;
    const struct packed_layout *layout;
    struct tensor matrix;
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t padded_inner(const struct packed_layout *layout, int64_t inner) {
    return (inner + layout->unit - 1) / layout->unit * layout->unit;
}

static size_t block_bytes(const struct packed_layout *layout, enum element type, int64_t inner) {
    return (size_t)(packed_block * padded_inner(layout, inner)) * element_size(type);
}

size_t packed_bytes(const struct cpu_backend *cpu, enum element type, int64_t outputs, int64_t inner) {
    int64_t blocks = (outputs + packed_block - 1) / packed_block;
    return (size_t)blocks * block_bytes(primitives_layout(cpu->primitives, type), type, inner);
}

void *packed_at(const struct cpu_backend *cpu, const struct packed *matrix, int64_t column) {
    const struct packed_layout *layout = primitives_layout(cpu->primitives, matrix->type);
    return (char *)matrix->data + (size_t)(column / packed_block) * block_bytes(layout, matrix->type, matrix->inner);
}

// ---- rows are outputs ----

// Rows [row, row + rows), inner [first, first + count), to `room` in the packed type, `part` elements a row, zeros
// after an odd count.
static void read_rows(const struct packing *p, void *room, int64_t row, int64_t rows, int64_t first, int64_t count) {
    size_t size = element_size(p->out->type), from = element_size(p->matrix.type);
    for (int64_t i = 0; i < rows; i++) {
        char *out = (char *)room + (size_t)(i * part) * size;
        const char *in = (const char *)tensor_row(p->matrix, row + i) + (size_t)first * from;
        cpu_convert(p->cpu, out, p->out->type, in, p->matrix.type, (size_t)count);
        if (count & 1) memset(out + (size_t)count * size, 0, size);
    }
}

// Bfloat16 with pairs turns as float32 does, by words of four bytes; without pairs, element by element.
static void turn_part(const struct packing *p, char *block, const void *room, int64_t rows, int64_t first,
                      int64_t count) {
    if (p->out->type == ELEMENT_F32) {
        p->cpu->simd.transpose((uint32_t *)block + first * packed_block, packed_block, room, part, rows, count);
    } else if (p->layout->pair == 2) {
        p->cpu->simd.transpose((uint32_t *)block + first / 2 * packed_block, packed_block, room, part / 2, rows,
                               (count + 1) / 2);
    } else {
        uint16_t *out = (uint16_t *)block + first * packed_block;
        const uint16_t *in = room;
        for (int64_t i = 0; i < rows * count; i++)
            out[i % count * packed_block + i / count] = in[i / count * part + i % count];
    }
}

// Inner [first, first + count) of the block of outputs that starts at `row`.
static void pack_part(const struct packing *p, char *block, uint32_t *room, int64_t row, int64_t rows, int64_t first,
                      int64_t count) {
    if (p->matrix.type == ELEMENT_F32 && p->out->type == ELEMENT_F32) {
        const uint32_t *in = (const uint32_t *)tensor_f32(p->matrix, row) + first;
        p->cpu->simd.transpose((uint32_t *)block + first * packed_block, packed_block, in, p->matrix.stride, rows,
                               count);
    } else {
        read_rows(p, room, row, rows, first, count);
        turn_part(p, block, room, rows, first, count);
    }
}

static void pack_rows_blocks(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct packing *p = context;
    uint32_t room[packed_block * part] = {0};
    int64_t inner = p->out->inner;
    for (int64_t row = first * packed_block; row < end * packed_block; row += packed_block) {
        int64_t rows = least(p->out->outputs - row, packed_block);
        char *block = packed_at(p->cpu, p->out, row);
        if (rows < packed_block || inner % p->layout->unit)
            memset(block, 0, block_bytes(p->layout, p->out->type, inner));
        for (int64_t at = 0; at < inner; at += part) pack_part(p, block, room, row, rows, at, least(inner - at, part));
    }
}

// ---- columns are outputs ----

// Columns [column, column + columns) of one row in the packed type, or zeros behind the last row.
static void read_columns(const struct packing *p, void *out, int64_t row, int64_t column, int64_t columns) {
    size_t size = element_size(p->out->type), from = element_size(p->matrix.type);
    if (row < p->matrix.rows) {
        const char *in = (const char *)tensor_row(p->matrix, row) + (size_t)column * from;
        cpu_convert(p->cpu, out, p->out->type, in, p->matrix.type, (size_t)columns);
        memset((char *)out + (size_t)columns * size, 0, (size_t)(packed_block - columns) * size);
    } else {
        memset(out, 0, packed_block * size);
    }
}

static void pack_column_block(const struct packing *p, int64_t column) {
    char *block = packed_at(p->cpu, p->out, column);
    int64_t columns = least(p->out->outputs - column, packed_block), at = 0;
    size_t row_bytes = packed_block * element_size(p->out->type);
    for (; at < p->matrix.rows; at += p->layout->pair) {
        char *out = block + (size_t)at * row_bytes;
        if (p->layout->pair == 1) {
            read_columns(p, out, at, column, columns);
        } else {
            uint16_t even[packed_block], odd[packed_block];
            read_columns(p, even, at, column, columns);
            read_columns(p, odd, at + 1, column, columns);
            p->cpu->simd.interleave((uint16_t *)out, even, odd, packed_block);
        }
    }
    size_t done = (size_t)at * row_bytes;
    memset(block + done, 0, block_bytes(p->layout, p->out->type, p->out->inner) - done);
}

static void pack_columns_blocks(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    for (int64_t block = first; block < end; block++) pack_column_block(context, block * packed_block);
}

static void pack(struct cpu_backend *cpu, const struct packed *out, struct tensor matrix,
                 void (*work)(void *context, int64_t first, int64_t end, int thread)) {
    struct packing packing = {cpu, out, primitives_layout(cpu->primitives, out->type), matrix};
    int64_t blocks = (out->outputs + packed_block - 1) / packed_block;
    parallel_for(cpu, blocks, 4096 / (out->inner + 1) + 1, work, &packing);
}

void pack_rows(struct cpu_backend *cpu, const struct packed *out, struct tensor matrix) {
    pack(cpu, out, matrix, pack_rows_blocks);
}

void pack_columns(struct cpu_backend *cpu, const struct packed *out, struct tensor matrix) {
    pack(cpu, out, matrix, pack_columns_blocks);
}
