#include "kernels/cpu/products.h"

#include <stdatomic.h>

enum { tile_rows = 128, tasks_a_thread = 6 };

struct running {
    struct cpu_backend *cpu;
    const struct product *product;
    const struct packed_layout *layout;
    int64_t columns;                   // of the packed matrix, with its padding
    int64_t tile;                      // columns of a tile
    int64_t width;                     // columns of a task, whole tiles
    int64_t row_tasks;                 // tasks over the same columns
    struct kept *kept[2][2];           // [the last rows?][the last columns?]
    char *room;                        // a share for each thread: a tile, rows, oneDNN's scratch
    size_t share, rows_at, scratch_at; // bytes
    atomic_bool failed;
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

// With few rows, bf16_from_f32 tiles, so that every thread has some.
static int64_t choose_tile(const struct running *r) {
    int64_t wanted = (int64_t)pool_threads(r->cpu->pool) * tasks_a_thread;
    int64_t groups = (wanted + r->row_tasks - 1) / r->row_tasks;
    int64_t tile = r->columns / groups / packed_block * packed_block;
    return tile < packed_block ? packed_block : least(tile, r->layout->columns);
}

static int64_t tile_height(const struct running *r, int64_t first) {
    return least(r->product->rows - first, tile_rows);
}

static int64_t tile_width(const struct running *r, int64_t column) {
    return least(r->columns - column, r->tile);
}

static status find_kept(struct running *r) {
    const struct packed *matrix = &r->product->matrix;
    int64_t last_row = (r->row_tasks - 1) * tile_rows, last_column = (r->columns - 1) / r->tile * r->tile;
    for (int i = 0; i < 4; i++) {
        struct primitive_shape shape = {.type = matrix->type,
                                        .rows = up(tile_height(r, i / 2 ? last_row : 0), r->layout->rows),
                                        .columns = tile_width(r, i % 2 ? last_column : 0),
                                        .inner = matrix->inner};
        TRY(primitives_find(r->cpu->primitives, &shape, &r->kept[i / 2][i % 2]));
    }
    return OK;
}

static status take_room(struct running *r) {
    const struct packed *matrix = &r->product->matrix;
    size_t scratch = 0;
    for (int i = 0; i < 4; i++) {
        size_t bytes = kept_scratch(r->kept[i / 2][i % 2]);
        if (bytes > scratch) scratch = bytes;
    }
    size_t rows = (size_t)tile_rows * (size_t)matrix->inner * element_size(matrix->type);
    r->rows_at = (size_t)tile_rows * (size_t)r->tile * sizeof(float);
    r->scratch_at = r->rows_at + (size_t)up((int64_t)rows, 64);
    r->share = (size_t)up((int64_t)(r->scratch_at + scratch), 4096);
    return cpu_scratch(r->cpu, SCRATCH_GEMM, r->share * (size_t)pool_threads(r->cpu->pool), &r->room);
}

// Rows with zeros behind them, for processors where the number of rows must be rounded up.
static const void *pad_rows(const struct running *r, const void *in, int64_t rows, int64_t padded, void *room) {
    const struct packed *matrix = &r->product->matrix;
    size_t row = (size_t)matrix->inner * element_size(matrix->type);
    if (in != room) memcpy(room, in, (size_t)rows * row);
    memset((char *)room + (size_t)rows * row, 0, (size_t)(padded - rows) * row);
    return room;
}

static void run_task(void *context, int task, int thread) {
    struct running *r = context;
    const struct product *product = r->product;
    const struct packed *matrix = &product->matrix;
    char *share = r->room + (size_t)thread * r->share;
    int64_t first = task % r->row_tasks * tile_rows, start = task / r->row_tasks * r->width;
    int64_t rows = tile_height(r, first), padded = up(rows, r->layout->rows);
    const void *in = product->operand(product->context, first, rows, share + r->rows_at);
    if (padded != rows) in = pad_rows(r, in, rows, padded, share + r->rows_at);
    for (int64_t column = start; column < least(start + r->width, r->columns); column += r->tile) {
        int64_t width = tile_width(r, column);
        float *tile = (float *)share;
        const struct kept *kept = r->kept[rows != tile_height(r, 0)][width != tile_width(r, 0)];
        if (!kept_run(r->cpu->primitives, kept, thread, in, packed_at(r->cpu, matrix, column), tile,
                      share + r->scratch_at))
            atomic_store(&r->failed, true);
        product->store(product->context, tile, width, first, rows, column, least(matrix->outputs - column, width));
    }
}

status product_run(struct cpu_backend *cpu, const struct product *product) {
    if (product->rows == 0) return OK;
    struct running r = {.cpu = cpu,
                        .product = product,
                        .layout = primitives_layout(cpu->primitives, product->matrix.type),
                        .columns = up(product->matrix.outputs, packed_block),
                        .row_tasks = (product->rows + tile_rows - 1) / tile_rows};
    r.tile = choose_tile(&r);
    r.width = product->whole_rows ? up(r.columns, r.tile) : r.tile;
    TRY(find_kept(&r));
    TRY(take_room(&r));
    pool_run(cpu->pool, (int)(r.row_tasks * ((r.columns + r.width - 1) / r.width)), run_task, &r);
    if (atomic_load(&r.failed)) return fail(UNAVAILABLE, "oneDNN failed in a product");
    return OK;
}
