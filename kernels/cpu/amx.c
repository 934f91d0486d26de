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
    tile_columns = 16,                 // of float32
    rows_tile = amx_group * amx_inner, // elements
    columns_tile = amx_inner * amx_block,
    half_tiles = columns_tile / 2, // of a half of the columns, which are two tiles
    inner_block = 8,               // steps, divided by the parts, whose sums stay in tiles
    sums_halves = 4,               // halves of blocks, whose sums stay in the first-level cache
    prefetch_steps = 3,            // ahead, of the matrix
    request_permission = 0x1023,   // ARCH_REQ_XCOMP_PERM of arch_prctl
    feature_tile_data = 18,        // XFEATURE_XTILEDATA
};

static bool amx_granted;

static void amx_ask(void) {
    unsigned a, b, c, d;
    bool tile = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 24) && (d & 1u << 22); // and its bfloat16
    bool dot = tile && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);             // AVX512_BF16
    amx_granted = dot && syscall(SYS_arch_prctl, request_permission, feature_tile_data) == 0;
}

bool amx_usable(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, amx_ask);
    return amx_granted;
}

// ---- packing ----

static int64_t amx_steps(int64_t inner) {
    return (inner + amx_inner - 1) / amx_inner;
}

int64_t amx_rows_size(int parts, int64_t rows, int64_t inner) {
    return (rows + amx_group - 1) / amx_group * amx_steps(inner) * parts * rows_tile;
}

int64_t amx_columns_size(int parts, int64_t inner) {
    return amx_steps(inner) * parts * columns_tile;
}

int64_t amx_columns_at(int parts, int64_t inner) {
    return inner / amx_inner * parts * half_tiles;
}

int64_t amx_pair_at(int parts, int64_t size, int64_t pair, int64_t column) {
    int64_t tile = column / tile_columns, row = pair % amx_group;
    return tile / 2 * (size / 2) + pair / amx_group * parts * half_tiles + tile % 2 * (half_tiles / 2) +
           row * 2 * tile_columns;
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
        _mm512_storeu_si512(out + part * rows_tile, (__m512i)_mm512_cvtne2ps_pbh(high_part, low_part));
    }
}

void amx_pack_rows(uint16_t *out, const void *in, int64_t stride, int parts, int64_t rows, int64_t inner) {
    const int64_t size = parts == 1 ? 2 : 4, steps = amx_steps(inner);
    for (int64_t first = 0; first < rows; first += amx_group) {
        int64_t count = rows - first < amx_group ? rows - first : amx_group;
        for (int64_t step = 0; step < steps; step++, out += parts * rows_tile) {
            int64_t left = inner - step * amx_inner;
            __mmask32 mask = (__mmask32)((1ull << (left < amx_inner ? left : amx_inner)) - 1);
            const char *from = (const char *)in + (first * stride + step * amx_inner) * size;
            for (int64_t row = 0; row < count; row++, from += stride * size) {
                uint16_t *to = out + row * amx_inner;
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
    int64_t pairs = amx_steps(inner) * amx_inner / 2;
    for (int64_t pair = 0; pair < pairs; pair++, in += 2 * columns->row_stride) {
        for (int tile = 0; tile < amx_block / tile_columns; tile++) {
            const float *from = in + tile * columns->tile_stride;
            bool first = tile < columns->tiles && 2 * pair < inner, second = first && 2 * pair + 1 < inner;
            __m512 even = first ? _mm512_loadu_ps(from) : _mm512_setzero_ps();
            __m512 odd = second ? _mm512_loadu_ps(from + columns->row_stride) : _mm512_setzero_ps();
            uint16_t *to = out + amx_pair_at(parts, size, pair, tile * tile_columns);
            for (int part = 0; part < parts; part++) {
                __m512i low = _mm512_castps_si512(amx_part(&even)), high = _mm512_castps_si512(amx_part(&odd));
                _mm512_storeu_si512(to + part * half_tiles, _mm512_or_si512(_mm512_srli_epi32(low, 16), high));
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
    for (int64_t step = 0; step < steps; step++, out += parts * rows_tile, scores += amx_inner) {
        int64_t first = softmax->first - step * amx_inner, end = softmax->end - step * amx_inner;
        __m512 low = amx_exp(scores, softmax), high = amx_exp(scores + tile_columns, softmax);
        if (first > 0 || end < amx_inner) { // 0 for what the row does not see
            low = v16_mask_first(first, v16_set1(0), v16_mask_first(end, low, v16_set1(0)));
            high = v16_mask_first(first - tile_columns, v16_set1(0),
                                  v16_mask_first(end - tile_columns, high, v16_set1(0)));
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
    const int64_t bytes = out_stride * (int64_t)sizeof *out, second = amx_group * out_stride;
    const int64_t tile_bytes = 4 * tile_columns;
// The first product of a step. In the first step the tile passes from the sums before to the new ones.
#define BEGIN(tile, offset, rows, columns)                                                                             \
    if (step == 0 && before) _tile_stored(tile, before + (offset), bytes);                                             \
    if (step == 0 && add) _tile_loadd(tile, out + (offset), bytes);                                                    \
    if (step == 0 && !add) _tile_zero(tile);                                                                           \
    _tile_dpbf16ps(tile, rows, columns)
#define LOAD_ROWS(part)                                                                                                \
    _tile_loadd(4, rows + (part)*rows_tile, tile_bytes);                                                               \
    _tile_loadd(5, rows + rows_stride + (part)*rows_tile, tile_bytes)
// Columns are read once for 32 rows, and must not push rows and sums out of the first-level cache.
#define LOAD_COLUMNS(part)                                                                                             \
    _tile_stream_loadd(6, columns + (part)*half_tiles, tile_bytes);                                                    \
    _tile_stream_loadd(7, columns + (part)*half_tiles + half_tiles / 2, tile_bytes)
#define MULTIPLY()                                                                                                     \
    _tile_dpbf16ps(0, 4, 6);                                                                                           \
    _tile_dpbf16ps(1, 4, 7);                                                                                           \
    _tile_dpbf16ps(2, 5, 6);                                                                                           \
    _tile_dpbf16ps(3, 5, 7)
    for (int64_t step = 0; step < steps; step++, rows += parts * rows_tile, columns += parts * half_tiles) {
        for (int64_t i = 0; i < lines; i++, next += amx_inner) {
            _mm_prefetch((const char *)next, _MM_HINT_T1);
            _mm_prefetch((const char *)(next + rows_stride), _MM_HINT_T1);
        }
        LOAD_ROWS(0);
        LOAD_COLUMNS(parts - 1);
        BEGIN(0, 0, 4, 6);
        BEGIN(1, tile_columns, 4, 7);
        BEGIN(2, second, 5, 6);
        BEGIN(3, second + tile_columns, 5, 7);
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
    float *second = out + amx_group * out_stride;
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + tile_columns, bytes);
    _tile_stored(2, second, bytes);
    _tile_stored(3, second + tile_columns, bytes);
}

// out [up to 16, 64 columns] += all steps of a product, or = them if `add` is false.
INLINE_PRODUCT void amx_one_group(float *out, int64_t out_stride, const uint16_t *rows, const uint16_t *columns,
                                  int64_t half_stride, int64_t steps, bool add, int parts) {
    int64_t bytes = out_stride * (int64_t)sizeof *out;
    if (add) {
        _tile_loadd(0, out, bytes);
        _tile_loadd(1, out + tile_columns, bytes);
        _tile_loadd(2, out + 2 * tile_columns, bytes);
        _tile_loadd(3, out + 3 * tile_columns, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
#define LOAD_ROWS(part) _tile_loadd(4, rows + (part)*rows_tile, 2 * amx_inner)
#define LOAD_COLUMN(tile, number, part)                                                                                \
    _tile_loadd(tile, columns + (number) / 2 * half_stride + (part)*half_tiles + (number) % 2 * (half_tiles / 2),      \
                4 * tile_columns)
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
    for (int64_t step = 0; step < steps; step++, rows += parts * rows_tile, columns += parts * half_tiles) {
        // Few rows wait for the matrix. What is fetched beyond its end is not read.
        for (int i = 0; parts == 1 && i < half_tiles; i += 32) {
            const uint16_t *ahead = columns + prefetch_steps * half_tiles + i;
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
    _tile_stored(1, out + tile_columns, bytes);
    _tile_stored(2, out + 2 * tile_columns, bytes);
    _tile_stored(3, out + 3 * tile_columns, bytes);
}

// The product of the rows [row, row + 32): a few halves of blocks of columns at a time, and of these some inner
// elements at a time, whose rows stay in the first-level cache as well.
INLINE_PRODUCT void amx_multiply_rows(const struct amx_product *product, int64_t row, bool add, int parts) {
    int64_t stride = product->out_stride, halves = product->column_count / amx_block * 2, block = inner_block / parts;
    int64_t lines = (parts * amx_group + halves - 1) / halves; // that are fetched for each step of each half
    const uint16_t *rows = product->rows + row / amx_group * product->rows_stride;
    const uint16_t *next = rows + 2 * product->rows_stride;
    float *before = NULL;
    for (int64_t first = 0; first < halves; first += sums_halves) {
        int64_t end = first + sums_halves < halves ? first + sums_halves : halves;
        for (int64_t begin = 0; begin < product->steps; begin += block) {
            int64_t steps = product->steps - begin < block ? product->steps - begin : block;
            for (int64_t half = first; half < end; half++, next += steps * lines * amx_inner) {
                const uint16_t *columns = product->columns + half / 2 * product->column_stride +
                                          half % 2 * (product->column_stride / 2) + begin * parts * half_tiles;
                float *out = product->out + row * stride + half * 2 * tile_columns;
                amx_two_groups(before, out, stride, rows + begin * parts * rows_tile, product->rows_stride, columns,
                               steps, add || begin > 0, parts, next, lines);
                before = out;
            }
        }
    }
    amx_store(before, stride);
}

// Tiles 0 to 3 hold sums. With more than amx_group rows 0, 1 and 2, 3 are those of the first and second group, 4 and 5
// hold rows of these groups, 6 and 7 columns. Otherwise 4 holds rows, and 5 to 7 columns.
INLINE_PRODUCT void amx_multiply_parts(const struct amx_product *product, bool add, int parts) {
    for (int64_t row = 0; row < product->row_count; row += 2 * amx_group) {
        int64_t left = product->row_count - row;
        if (row == 0 || left < 2 * amx_group) {
            int first_rows = left < amx_group ? (int)left : amx_group;
            int second_rows = left < 2 * amx_group ? (int)left - amx_group : amx_group;
            struct tile_config config = {.palette = 1};
            for (int i = 0; i < 8; i++) {
                config.row_bytes[i] = 64;
                config.rows[i] = (uint8_t)first_rows;
            }
            if (second_rows > 0) config.rows[2] = config.rows[3] = config.rows[5] = (uint8_t)second_rows;
            config.rows[6] = config.rows[7] = amx_inner / 2;
            if (second_rows <= 0) config.rows[5] = amx_inner / 2;
            __asm__ volatile("" : : "m"(config)); // gcc's intrinsic does not say that it reads all of it
            _tile_loadconfig(&config);
        }
        if (left > amx_group) {
            amx_multiply_rows(product, row, add, parts);
            continue;
        }
        const uint16_t *rows = product->rows + row / amx_group * product->rows_stride;
        for (int64_t block = 0; block < product->column_count / amx_block; block++)
            amx_one_group(product->out + row * product->out_stride + block * amx_block, product->out_stride, rows,
                          product->columns + block * product->column_stride, product->column_stride / 2, product->steps,
                          add, parts);
    }
    _tile_release();
}

void amx_multiply(const struct amx_product *product, bool add) {
    assert(product->column_count % amx_block == 0);
    assert(product->parts >= 1 && product->parts <= amx_parts_most);
    if (product->parts == 1)
        amx_multiply_parts(product, add, 1);
    else if (product->parts == 2)
        amx_multiply_parts(product, add, 2);
    else
        amx_multiply_parts(product, add, 3);
}
