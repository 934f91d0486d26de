// See amx.h. Sums of 32 rows and 32 columns, or of 16 rows and 64 columns, stay in the unit's tiles over an inner
// block.
#include "kernels/cpu/amx.h"

#if defined(__x86_64__) && defined(__AMX_BF16__)
#include <assert.h>
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    tile_rows = 16,
    tile_columns = 16, // of float32
    block_columns = 64,
    inner_block = 512,           // inner elements, of which 32 rows fit the first-level cache
    prefetch_steps = 3,          // ahead, of the matrix
    request_permission = 0x1023, // ARCH_REQ_XCOMP_PERM of arch_prctl
    feature_tile_data = 18,      // XFEATURE_XTILEDATA
};

static bool amx_granted;

static void amx_ask(void) {
    unsigned a, b, c, d;
    bool tile = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 24), bf16 = d & 1u << 22;
    amx_granted = tile && bf16 && syscall(SYS_arch_prctl, request_permission, feature_tile_data) == 0;
}

bool amx_usable(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, amx_ask);
    return amx_granted;
}

// What the instruction LDTILECFG reads.
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static_assert(sizeof(struct tile_config) == 64, "the size that the instruction reads");

// Tiles 0 to 3 hold sums. With more than tile_rows rows 0, 1 and 2, 3 are those of the first and second rows, 4 and 5
// hold these rows of `in`, 6 and 7 columns of the matrix. Otherwise 4 holds rows of `in`, and 5 to 7 columns.
static void amx_configure(int64_t rows) {
    int first = rows < tile_rows ? (int)rows : tile_rows, second = (int)rows - tile_rows;
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = (uint8_t)first;
    }
    if (second > 0) config.rows[2] = config.rows[3] = config.rows[5] = (uint8_t)second;
    config.rows[6] = config.rows[7] = tile_rows;
    if (second <= 0) config.rows[5] = tile_rows;
    _tile_loadconfig(&config);
}

// Rows of `in` for the steps of one inner block. Those of the last step, if it is short, are a copy with zeros.
struct amx_rows {
    const uint16_t *in, *last;
    int64_t stride; // elements
    int64_t steps;  // whole ones
};

static const uint16_t *amx_step(const struct amx_rows *rows, int64_t step, int64_t *stride) {
    *stride = 2 * (step < rows->steps ? rows->stride : amx_inner);
    return step < rows->steps ? rows->in + step * amx_inner : rows->last;
}

// Adds the steps [begin, end) to out [up to 32, 32 columns].
static void amx_two_rows(float *out, int64_t out_stride, const struct amx_rows *rows, const uint16_t *matrix,
                         int64_t begin, int64_t end) {
    float *second = out + tile_rows * out_stride;
    int64_t bytes = out_stride * (int64_t)sizeof *out, stride;
    if (begin == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, out, bytes);
        _tile_loadd(1, out + tile_columns, bytes);
        _tile_loadd(2, second, bytes);
        _tile_loadd(3, second + tile_columns, bytes);
    }
    for (int64_t step = begin; step < end; step++) {
        const uint16_t *in = amx_step(rows, step, &stride), *pairs = matrix + step * amx_inner * block_columns;
        _tile_loadd(4, in, stride);
        _tile_loadd(6, pairs, 4 * block_columns);
        _tile_loadd(7, pairs + 2 * tile_columns, 4 * block_columns);
        _tile_loadd(5, in + tile_rows * stride / 2, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + tile_columns, bytes);
    _tile_stored(2, second, bytes);
    _tile_stored(3, second + tile_columns, bytes);
}

// Adds the steps [begin, end) to out [up to 16, 64 columns].
static void amx_one_row(float *out, int64_t out_stride, const struct amx_rows *rows, const uint16_t *matrix,
                        int64_t begin, int64_t end) {
    int64_t bytes = out_stride * (int64_t)sizeof *out, stride;
    if (begin == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, out, bytes);
        _tile_loadd(1, out + tile_columns, bytes);
        _tile_loadd(2, out + 2 * tile_columns, bytes);
        _tile_loadd(3, out + 3 * tile_columns, bytes);
    }
    for (int64_t step = begin; step < end; step++) {
        const uint16_t *in = amx_step(rows, step, &stride), *pairs = matrix + step * amx_inner * block_columns;
        // Few rows wait for the matrix. What is fetched beyond its end is not read.
        for (int i = 0; i < 64; i++)
            _mm_prefetch((const char *)(pairs + prefetch_steps * amx_inner * block_columns) + 64 * i, _MM_HINT_T0);
        _tile_loadd(4, in, stride);
        _tile_loadd(5, pairs, 4 * block_columns);
        _tile_loadd(6, pairs + 2 * tile_columns, 4 * block_columns);
        _tile_loadd(7, pairs + 4 * tile_columns, 4 * block_columns);
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, pairs + 6 * tile_columns, 4 * block_columns);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + tile_columns, bytes);
    _tile_stored(2, out + 2 * tile_columns, bytes);
    _tile_stored(3, out + 3 * tile_columns, bytes);
}

void amx_matmul(float *out, const uint16_t *in, const uint16_t *matrix, int64_t rows, int64_t columns, int64_t inner) {
    int64_t steps = (inner + amx_inner - 1) / amx_inner, short_count = inner % amx_inner;
    int64_t block_elements = steps * amx_inner * block_columns;
    assert(columns % block_columns == 0);
    for (int64_t first = 0; first < rows; first += 2 * tile_rows) {
        int64_t now = rows - first < 2 * tile_rows ? rows - first : 2 * tile_rows;
        uint16_t last[2 * tile_rows][amx_inner] = {0};
        struct amx_rows some = {in + first * inner, last[0], inner, inner / amx_inner};
        for (int64_t i = 0; short_count && i < now; i++)
            memcpy(last[i], some.in + i * inner + inner - short_count, (size_t)short_count * sizeof *last[i]);
        if (first == 0 || now < 2 * tile_rows) amx_configure(now);
        for (int64_t begin = 0; begin < steps; begin += inner_block / amx_inner) {
            int64_t end = begin + inner_block / amx_inner < steps ? begin + inner_block / amx_inner : steps;
            for (int64_t column = 0; column < columns; column += block_columns) {
                const uint16_t *block = matrix + column / block_columns * block_elements;
                float *sums = out + first * columns + column;
                if (now <= tile_rows) {
                    amx_one_row(sums, columns, &some, block, begin, end);
                    continue;
                }
                amx_two_rows(sums, columns, &some, block, begin, end);
                amx_two_rows(sums + 2 * tile_columns, columns, &some, block + 4 * tile_columns, begin, end);
            }
        }
    }
    _tile_release();
}

#else

bool amx_usable(void) {
    return false;
}

void amx_matmul(float *out, const uint16_t *in, const uint16_t *matrix, int64_t rows, int64_t columns, int64_t inner) {
    (void)out, (void)in, (void)matrix, (void)rows, (void)columns, (void)inner;
}

#endif
