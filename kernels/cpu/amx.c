// See amx.h. Sums of 32 rows and 32 columns, or of 16 rows and 64 columns, stay in the unit's tiles over an inner
// block.
#include "kernels/cpu/amx.h"

#include <assert.h>
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/v16.h"

enum {
    TILE_COLUMNS = 16,                 // of float32
    ROWS_TILE = AMX_GROUP * AMX_INNER, // elements
    COLUMNS_TILE = AMX_INNER * AMX_BLOCK,
    HALF_TILES = COLUMNS_TILE / 2, // of a half of the columns, which are two tiles
    INNER_BLOCK = 8,               // steps, divided by the parts, whose sums stay in tiles
    SUMS_HALVES = 4,               // halves of blocks, whose sums stay in the first-level cache
    PREFETCH_STEPS = 3,            // ahead, of the matrix
    REQUEST_PERMISSION = 0x1023,   // ARCH_REQ_XCOMP_PERM of arch_prctl
    FEATURE_TILE_DATA = 18,        // XFEATURE_XTILEDATA
};

static bool amx_granted;

static void amx_ask(void) {
    unsigned a, b, c, d;
    bool tile = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 24) && (d & 1u << 22); // and its bfloat16
    bool dot = tile && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);             // AVX512_BF16
    amx_granted = dot && syscall(SYS_arch_prctl, REQUEST_PERMISSION, FEATURE_TILE_DATA) == 0;
}

bool amx_usable(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, amx_ask);
    return amx_granted;
}

// ---- packing ----

static int64_t amx_steps(int64_t inner) {
    return (inner + AMX_INNER - 1) / AMX_INNER;
}

int64_t amx_rows_size(int parts, int64_t rows, int64_t inner) {
    return (rows + AMX_GROUP - 1) / AMX_GROUP * amx_steps(inner) * parts * ROWS_TILE;
}

int64_t amx_columns_size(int parts, int64_t inner) {
    return amx_steps(inner) * parts * COLUMNS_TILE;
}

int64_t amx_columns_at(int parts, int64_t inner) {
    return inner / AMX_INNER * parts * HALF_TILES;
}

int64_t amx_pair_at(int parts, int64_t size, int64_t pair, int64_t column) {
    int64_t tile = column / TILE_COLUMNS, row = pair % AMX_GROUP;
    return tile / 2 * (size / 2) + pair / AMX_GROUP * parts * HALF_TILES + tile % 2 * (HALF_TILES / 2) +
           row * 2 * TILE_COLUMNS;
}

// The next part of each element: what is left of it in *x, rounded to bfloat16. Leaves the rest in *x.
static inline __m512 amx_part(__m512 *x) {
    __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(*x)), 16);
    *x = _mm512_sub_ps(*x, _mm512_castsi512_ps(upper));
    return _mm512_castsi512_ps(upper);
}

// Packs the parts of 32 elements of a row.
static inline void amx_pack_parts(uint16_t *out, __m512 low, __m512 high, int parts) {
    for (int part = 0; part < parts; part++) {
        __m512 low_part = amx_part(&low), high_part = amx_part(&high);
        _mm512_storeu_si512(out + part * ROWS_TILE, (__m512i)_mm512_cvtne2ps_pbh(high_part, low_part));
    }
}

void amx_pack_rows(uint16_t *out, const void *in, int64_t stride, int parts, int64_t rows, int64_t inner) {
    const int64_t size = parts == 1 ? 2 : 4, steps = amx_steps(inner);
    for (int64_t first = 0; first < rows; first += AMX_GROUP) {
        int64_t count = rows - first < AMX_GROUP ? rows - first : AMX_GROUP;
        for (int64_t step = 0; step < steps; step++, out += parts * ROWS_TILE) {
            int64_t left = inner - step * AMX_INNER;
            __mmask32 mask = (__mmask32)((1ull << (left < AMX_INNER ? left : AMX_INNER)) - 1);
            const char *from = (const char *)in + (first * stride + step * AMX_INNER) * size;
            for (int64_t row = 0; row < count; row++, from += stride * size) {
                uint16_t *to = out + row * AMX_INNER;
                const float *values = (const void *)from;
                if (parts == 1)
                    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, from));
                else
                    amx_pack_parts(to, _mm512_maskz_loadu_ps((__mmask16)mask, values),
                                   _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), values + 16), parts);
            }
        }
    }
}

void amx_pack_columns(uint16_t *out, const float *in, const struct amx_columns *columns, int parts, int64_t inner,
                      int64_t size) {
    int64_t pairs = amx_steps(inner) * AMX_INNER / 2;
    for (int64_t pair = 0; pair < pairs; pair++, in += 2 * columns->row_stride) {
        for (int tile = 0; tile < AMX_BLOCK / TILE_COLUMNS; tile++) {
            const float *from = in + tile * columns->tile_stride;
            bool first = tile < columns->tiles && 2 * pair < inner, second = first && 2 * pair + 1 < inner;
            __m512 even = first ? _mm512_loadu_ps(from) : _mm512_setzero_ps();
            __m512 odd = second ? _mm512_loadu_ps(from + columns->row_stride) : _mm512_setzero_ps();
            uint16_t *to = out + amx_pair_at(parts, size, pair, tile * TILE_COLUMNS);
            for (int part = 0; part < parts; part++) {
                __m512i low = _mm512_castps_si512(amx_part(&even)), high = _mm512_castps_si512(amx_part(&odd));
                _mm512_storeu_si512(to + part * HALF_TILES, _mm512_or_si512(_mm512_srli_epi32(low, 16), high));
            }
        }
    }
}

// exp((scores - max) * scale) of sixteen columns.
V16 __m512 amx_exp(const float *scores, const struct amx_softmax *softmax) {
    return v16_exp(v16_mul(v16_sub(v16_load(scores), v16_set1(softmax->max)), v16_set1(softmax->scale)));
}

void amx_pack_softmax(uint16_t *out, const float *scores, struct amx_softmax *softmax, int parts, int64_t steps) {
    __m512 sums = v16_set1(0);
    for (int64_t step = 0; step < steps; step++, out += parts * ROWS_TILE, scores += AMX_INNER) {
        int64_t first = softmax->first - step * AMX_INNER, end = softmax->end - step * AMX_INNER;
        __m512 low = amx_exp(scores, softmax), high = amx_exp(scores + TILE_COLUMNS, softmax);
        if (first > 0 || end < AMX_INNER) { // 0 for what the row does not see
            low = v16_mask_first(first, v16_set1(0), v16_mask_first(end, low, v16_set1(0)));
            high = v16_mask_first(first - TILE_COLUMNS, v16_set1(0),
                                  v16_mask_first(end - TILE_COLUMNS, high, v16_set1(0)));
        }
        sums = v16_add(v16_add(sums, low), high);
        amx_pack_parts(out, low, high, parts);
    }
    softmax->sum = v16_reduce_add(sums);
}

// ---- products ----

// What the instruction LDTILECFG reads.
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static_assert(sizeof(struct tile_config) == 64, "the size that the instruction reads");

#define INLINE_PRODUCT static inline __attribute__((always_inline))

// Adds some steps to out [up to 32, 32 columns] and leaves the sums in the tiles. The sums that stood there before are
// stored in `before`, if it is not NULL, during the first products, so that the unit does not wait for them. At each
// step it fetches `lines` cache lines of the rows that come next, in both groups.
INLINE_PRODUCT void amx_two_groups(float *before, float *out, int64_t out_stride, const uint16_t *rows,
                                   int64_t rows_stride, const uint16_t *columns, int64_t steps, bool add, int parts,
                                   const uint16_t *next, int64_t lines) {
    const int64_t bytes = out_stride * (int64_t)sizeof *out, second = AMX_GROUP * out_stride;
    const int64_t tile_bytes = 4 * TILE_COLUMNS;
// The first product of a step. In the first step the tile passes from the sums before to the new ones.
#define BEGIN(tile, offset, rows, columns)                                                                             \
    if (step == 0 && before) _tile_stored(tile, before + (offset), bytes);                                             \
    if (step == 0 && add) _tile_loadd(tile, out + (offset), bytes);                                                    \
    if (step == 0 && !add) _tile_zero(tile);                                                                           \
    _tile_dpbf16ps(tile, rows, columns)
#define LOAD_ROWS(part)                                                                                                \
    _tile_loadd(4, rows + (part)*ROWS_TILE, tile_bytes);                                                               \
    _tile_loadd(5, rows + rows_stride + (part)*ROWS_TILE, tile_bytes)
// Columns are read once for 32 rows, and must not push rows and sums out of the first-level cache.
#define LOAD_COLUMNS(part)                                                                                             \
    _tile_stream_loadd(6, columns + (part)*HALF_TILES, tile_bytes);                                                    \
    _tile_stream_loadd(7, columns + (part)*HALF_TILES + HALF_TILES / 2, tile_bytes)
#define MULTIPLY()                                                                                                     \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    _tile_dpbf16ps(2, 5, 6);                                                                                           \
    _tile_dpbf16ps(3, 5, 7)
    for (int64_t step = 0; step < steps; step++, rows += parts * ROWS_TILE, columns += parts * HALF_TILES) {
        for (int64_t i = 0; i < lines; i++, next += AMX_INNER) {
            _mm_prefetch((const char *)next, _MM_HINT_T1);
            _mm_prefetch((const char *)(next + rows_stride), _MM_HINT_T1);
        }
        LOAD_ROWS(0);
        LOAD_COLUMNS(parts - 1);
        BEGIN(0, 0, 4, 6);
        BEGIN(1, TILE_COLUMNS, 4, 7);
        BEGIN(2, second, 5, 6);
        BEGIN(3, second + TILE_COLUMNS, 5, 7);
        if (parts > 2) {
            LOAD_COLUMNS(1);
            MULTIPLY();
        }
        if (parts > 1) {
            LOAD_COLUMNS(0);
            MULTIPLY();
            LOAD_ROWS(1);
            MULTIPLY();
        }
        if (parts > 2) {
            LOAD_COLUMNS(1);
            MULTIPLY();
            LOAD_ROWS(2);
            LOAD_COLUMNS(0);
            MULTIPLY();
        }
    }
#undef BEGIN
#undef LOAD_ROWS
#undef LOAD_COLUMNS
#undef MULTIPLY
}

// Stores the sums that amx_two_groups left in the tiles.
INLINE_PRODUCT void amx_store(float *out, int64_t out_stride) {
    int64_t bytes = out_stride * (int64_t)sizeof *out;
    float *second = out + AMX_GROUP * out_stride;
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + TILE_COLUMNS, bytes);
    _tile_stored(2, second, bytes);
    _tile_stored(3, second + TILE_COLUMNS, bytes);
}

// out [up to 16, 64 columns] += all steps of a product, or = them if `add` is false.
INLINE_PRODUCT void amx_one_group(float *out, int64_t out_stride, const uint16_t *rows, const uint16_t *columns,
                                  int64_t half_stride, int64_t steps, bool add, int parts) {
    int64_t bytes = out_stride * (int64_t)sizeof *out;
    if (add) {
        _tile_loadd(0, out, bytes);
        _tile_loadd(1, out + TILE_COLUMNS, bytes);
        _tile_loadd(2, out + 2 * TILE_COLUMNS, bytes);
        _tile_loadd(3, out + 3 * TILE_COLUMNS, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
#define LOAD_ROWS(part) _tile_loadd(4, rows + (part)*ROWS_TILE, 2 * AMX_INNER)
#define LOAD_COLUMN(tile, number, part)                                                                                \
    _tile_loadd(tile, columns + (number) / 2 * half_stride + (part)*HALF_TILES + (number) % 2 * (HALF_TILES / 2),      \
                4 * TILE_COLUMNS)
#define COLUMN(number)                                                                                                 \
    if (parts > 1) LOAD_ROWS(0);                                                                                       \
    if (parts > 2) {                                                                                                   \
        LOAD_COLUMN(5, number, 2);                                                                                     \
        _tile_dpbf16ps(number, 4, 5);                                                                                  \
    }                                                                                                                  \
    if (parts > 1) {                                                                                                   \
        LOAD_COLUMN(6, number, 1);                                                                                     \
        _tile_dpbf16ps(number, 4, 6);                                                                                  \
    }                                                                                                                  \
    LOAD_COLUMN(7, number, 0);                                                                                         \
    _tile_dpbf16ps(number, 4, 7);                                                                                      \
    if (parts > 1) {                                                                                                   \
        LOAD_ROWS(1);                                                                                                  \
        _tile_dpbf16ps(number, 4, 7);                                                                                  \
    }                                                                                                                  \
    if (parts > 2) {                                                                                                   \
        _tile_dpbf16ps(number, 4, 6);                                                                                  \
        LOAD_ROWS(2);                                                                                                  \
        _tile_dpbf16ps(number, 4, 7);                                                                                  \
    }
    for (int64_t step = 0; step < steps; step++, rows += parts * ROWS_TILE, columns += parts * HALF_TILES) {
        // Few rows wait for the matrix. What is fetched beyond its end is not read.
        for (int i = 0; parts == 1 && i < HALF_TILES; i += 32) {
            const uint16_t *ahead = columns + PREFETCH_STEPS * HALF_TILES + i;
            _mm_prefetch((const char *)ahead, _MM_HINT_T0);
            _mm_prefetch((const char *)(ahead + half_stride), _MM_HINT_T0);
        }
        if (parts == 1) LOAD_ROWS(0);
        COLUMN(0);
        COLUMN(1);
        COLUMN(2);
        COLUMN(3);
    }
#undef LOAD_ROWS
#undef LOAD_COLUMN
#undef COLUMN
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + TILE_COLUMNS, bytes);
    _tile_stored(2, out + 2 * TILE_COLUMNS, bytes);
    _tile_stored(3, out + 3 * TILE_COLUMNS, bytes);
}

// The product of the rows [row, row + 32): a few halves of blocks of columns at a time, and of these some inner
// elements at a time, whose rows stay in the first-level cache as well.
INLINE_PRODUCT void amx_multiply_rows(const struct amx_product *product, int64_t row, bool add, int parts) {
    int64_t stride = product->out_stride, halves = product->column_count / AMX_BLOCK * 2, block = INNER_BLOCK / parts;
    int64_t lines = (parts * AMX_GROUP + halves - 1) / halves; // that are fetched for each step of each half
    const uint16_t *rows = product->rows + row / AMX_GROUP * product->rows_stride;
    const uint16_t *next = rows + 2 * product->rows_stride;
    float *before = NULL;
    for (int64_t first = 0; first < halves; first += SUMS_HALVES) {
        int64_t end = first + SUMS_HALVES < halves ? first + SUMS_HALVES : halves;
        for (int64_t begin = 0; begin < product->steps; begin += block) {
            int64_t steps = product->steps - begin < block ? product->steps - begin : block;
            for (int64_t half = first; half < end; half++, next += steps * lines * AMX_INNER) {
                const uint16_t *columns = product->columns + half / 2 * product->column_stride +
                                          half % 2 * (product->column_stride / 2) + begin * parts * HALF_TILES;
                float *out = product->out + row * stride + half * 2 * TILE_COLUMNS;
                amx_two_groups(before, out, stride, rows + begin * parts * ROWS_TILE, product->rows_stride, columns,
                               steps, add || begin > 0, parts, next, lines);
                before = out;
            }
        }
    }
    amx_store(before, stride);
}

// Tiles 0 to 3 hold sums. With more than AMX_GROUP rows 0, 1 and 2, 3 are those of the first and second group, 4 and 5
// hold rows of these groups, 6 and 7 columns. Otherwise 4 holds rows, and 5 to 7 columns.
INLINE_PRODUCT void amx_multiply_parts(const struct amx_product *product, bool add, int parts) {
    for (int64_t row = 0; row < product->row_count; row += 2 * AMX_GROUP) {
        int64_t left = product->row_count - row;
        if (row == 0 || left < 2 * AMX_GROUP) {
            int first_rows = left < AMX_GROUP ? (int)left : AMX_GROUP;
            int second_rows = left < 2 * AMX_GROUP ? (int)left - AMX_GROUP : AMX_GROUP;
            struct tile_config config = {.palette = 1};
            for (int i = 0; i < 8; i++) {
                config.row_bytes[i] = 64;
                config.rows[i] = (uint8_t)first_rows;
            }
            if (second_rows > 0) config.rows[2] = config.rows[3] = config.rows[5] = (uint8_t)second_rows;
            config.rows[6] = config.rows[7] = AMX_INNER / 2;
            if (second_rows <= 0) config.rows[5] = AMX_INNER / 2;
            __asm__ volatile("" : : "m"(config)); // gcc's intrinsic does not say that it reads all of it
            _tile_loadconfig(&config);
        }
        if (left > AMX_GROUP) {
            amx_multiply_rows(product, row, add, parts);
            continue;
        }
        const uint16_t *rows = product->rows + row / AMX_GROUP * product->rows_stride;
        for (int64_t block = 0; block < product->column_count / AMX_BLOCK; block++)
            amx_one_group(product->out + row * product->out_stride + block * AMX_BLOCK, product->out_stride, rows,
                          product->columns + block * product->column_stride, product->column_stride / 2, product->steps,
                          add, parts);
    }
    _tile_release();
}

void amx_multiply(const struct amx_product *product, bool add) {
    assert(product->column_count % AMX_BLOCK == 0);
    assert(product->parts >= 1 && product->parts <= MAX_AMX_PARTS);
    if (product->parts == 1)
        amx_multiply_parts(product, add, 1);
    else if (product->parts == 2)
        amx_multiply_parts(product, add, 2);
    else
        amx_multiply_parts(product, add, 3);
}
