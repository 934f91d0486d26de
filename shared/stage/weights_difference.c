#include "shared/stage/run_weights.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"

enum {
    BLOCK = 1 << 20, // bytes of the files that are taken together
    PIECE = 1 << 17, // bytes of the difference that are read or written together
    LEVEL = 1,       // higher ones are several times slower and save a tenth
    WINDOW_LOG = 20, // 1 MiB of history
    PLANES = 4,      // bytes of a number
    RUN = 8,         // numbers that are looked at together
};

// What making and applying need; `own` is a block of the file or of the XOR, `other` one of the base, `planes` the XOR
// as it is compressed.
struct difference_buffers {
    uint8_t own[BLOCK], other[BLOCK], planes[BLOCK], piece[PIECE];
};

static status weights_difference_read(int fd, void *data, size_t size, int64_t offset) {
    return fd_pread_all(fd, data, size, offset) ? OK : fail(UNAVAILABLE, "a file of weights: %s", strerror(errno));
}

// planes = the bytes of own ^ other, the first ones of all numbers first. Most numbers are equal: eight are looked at
// together.
static void weights_difference_split(uint8_t *restrict planes, const uint8_t *restrict own,
                                     const uint8_t *restrict other, size_t size) {
    const size_t rows = size / PLANES;
    for (size_t i = 0; i < rows;) {
        if (i + RUN <= rows && !memcmp(own + i * PLANES, other + i * PLANES, RUN * PLANES)) {
            for (size_t plane = 0; plane < PLANES; plane++) memset(planes + plane * rows + i, 0, RUN);
            i += RUN;
            continue;
        }
        for (const size_t end = i + RUN < rows ? i + RUN : rows; i < end; i++) {
            uint32_t a, b;
            memcpy(&a, own + i * PLANES, sizeof a);
            memcpy(&b, other + i * PLANES, sizeof b);
            for (size_t plane = 0; plane < PLANES; plane++) planes[plane * rows + i] = (uint8_t)((a ^ b) >> 8 * plane);
        }
    }
    for (size_t i = rows * PLANES; i < size; i++) planes[i] = own[i] ^ other[i];
}

// own = other ^ what weights_difference_split has made.
static void weights_difference_join(uint8_t *restrict own, const uint8_t *restrict planes,
                                    const uint8_t *restrict other, size_t size) {
    static const uint8_t zeros[RUN];
    const size_t rows = size / PLANES;
    memcpy(own, other, size);
    for (size_t i = 0; i < rows;) {
        bool equal = i + RUN <= rows;
        for (size_t plane = 0; plane < PLANES && equal; plane++) equal = !memcmp(planes + plane * rows + i, zeros, RUN);
        const size_t end = i + RUN < rows ? i + RUN : rows;
        for (; i < end && !equal; i++)
            for (size_t plane = 0; plane < PLANES; plane++) own[i * PLANES + plane] ^= planes[plane * rows + i];
        i = end;
    }
    for (size_t i = rows * PLANES; i < size; i++) own[i] ^= planes[i];
}

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a number's first byte is its lowest");

// ---- making ----

status weights_difference_make(int base, int file, int64_t limit, const atomic_bool *stop, int out) {
    struct difference_buffers *buffers = NULL;
    int64_t written = 0;
    struct stat info = {0}, before = {0};
    status result = OK;
    ZSTD_CCtx *context = mem_checked(ZSTD_createCCtx());
    NEW(&buffers, 1);
    if (fstat(base, &before) || fstat(file, &info))
        TRY_TO(result, done, fail(UNAVAILABLE, "a file of weights: %s", strerror(errno)));
    const int64_t size = info.st_size;
    if (size != before.st_size || !size) TRY_TO(result, done, fail(BAD_SAMPLE, "the files differ in size"));
    // They cannot fail: the values are within zstd's bounds.
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, WINDOW_LOG);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setPledgedSrcSize(context, (unsigned long long)size);
    for (int64_t at = 0; at < size; at += BLOCK) {
        const size_t count = size - at < BLOCK ? (size_t)(size - at) : BLOCK;
        if (atomic_load(stop)) TRY_TO(result, done, fail(END, "stopped"));
        TRY_TO(result, done, weights_difference_read(file, buffers->own, count, at));
        TRY_TO(result, done, weights_difference_read(base, buffers->other, count, at));
        weights_difference_split(buffers->planes, buffers->own, buffers->other, count);
        const bool last = at + BLOCK >= size;
        ZSTD_inBuffer in = {.src = buffers->planes, .size = count};
        for (size_t left = 1; last ? left > 0 : in.pos < in.size;) {
            ZSTD_outBuffer piece = {.dst = buffers->piece, .size = sizeof buffers->piece};
            left = ZSTD_compressStream2(context, &piece, &in, last ? ZSTD_e_end : ZSTD_e_continue);
            if (ZSTD_isError(left)) TRY_TO(result, done, fail(UNAVAILABLE, "zstd: %s", ZSTD_getErrorName(left)));
            if (written + (int64_t)piece.pos > limit)
                TRY_TO(result, done, fail(BAD_SAMPLE, "the difference is too large"));
            if (!fd_pwrite_all(out, piece.dst, piece.pos, written))
                TRY_TO(result, done, fail(UNAVAILABLE, "a difference of weights: %s", strerror(errno)));
            written += (int64_t)piece.pos;
        }
    }
done:
    ZSTD_freeCCtx(context);
    free(buffers);
    return result;
}

// ---- applying ----

// A difference that is being read. `left` is 0 behind the frame's end.
struct difference_reader {
    ZSTD_DCtx *context;
    int fd;
    uint8_t *piece;
    ZSTD_inBuffer in;
    size_t left;
};

// Decompresses into `block` until it is full, or if it has no room until the frame ends. DATAERR as
// weights_difference_apply.
static status weights_difference_decompress(struct difference_reader *reader, ZSTD_outBuffer *block) {
    while (block->size ? block->pos < block->size : reader->left > 0) {
        if (reader->left == 0) return fail(DATAERR, "the difference of weights is too short");
        if (reader->in.pos == reader->in.size) {
            const ssize_t count = fd_read(reader->fd, reader->piece, PIECE);
            if (count < 0) return fail(UNAVAILABLE, "a difference of weights: %s", strerror(errno));
            if (count == 0) return fail(DATAERR, "the difference of weights is truncated");
            reader->in = (ZSTD_inBuffer){.src = reader->piece, .size = (size_t)count};
        }
        const size_t at = reader->in.pos, had = block->pos;
        reader->left = ZSTD_decompressStream(reader->context, block, &reader->in);
        if (ZSTD_isError(reader->left))
            return fail(DATAERR, "the difference of weights: %s", ZSTD_getErrorName(reader->left));
        if (reader->left && reader->in.pos == at && block->pos == had)
            return fail(DATAERR, "the difference of weights is too long");
    }
    return OK;
}

status weights_difference_apply(int difference, int base, int64_t size, int out) {
    struct difference_buffers *buffers = NULL;
    struct difference_reader reader = {.context = mem_checked(ZSTD_createDCtx()), .fd = difference, .left = 1};
    struct stat before = {0};
    status result = OK;
    assert(size > 0);
    NEW(&buffers, 1);
    reader.piece = buffers->piece;
    if (fstat(base, &before)) TRY_TO(result, done, fail(UNAVAILABLE, "a file of weights: %s", strerror(errno)));
    if (size != before.st_size) TRY_TO(result, done, fail(DATAERR, "the weights before have another size"));
    ZSTD_DCtx_setParameter(reader.context, ZSTD_d_windowLogMax, WINDOW_LOG); // cannot fail
    for (int64_t at = 0; at < size; at += BLOCK) {
        const size_t count = size - at < BLOCK ? (size_t)(size - at) : BLOCK;
        ZSTD_outBuffer block = {.dst = buffers->planes, .size = count};
        TRY_TO(result, done, weights_difference_decompress(&reader, &block));
        TRY_TO(result, done, weights_difference_read(base, buffers->other, count, at));
        weights_difference_join(buffers->own, buffers->planes, buffers->other, count);
        if (!fd_pwrite_all(out, buffers->own, count, at))
            TRY_TO(result, done, fail(UNAVAILABLE, "a copy of weights: %s", strerror(errno)));
        // The disk begins to write, so that syncing finds little left to do; where it cannot, syncing does all.
        (void)sync_file_range(out, at, (off_t)count, SYNC_FILE_RANGE_WRITE);
    }
    ZSTD_outBuffer nothing = {.dst = reader.piece};
    TRY_TO(result, done, weights_difference_decompress(&reader, &nothing)); // the frame ends here, and the file, too
    const ssize_t more = reader.in.pos < reader.in.size ? 1 : fd_read(reader.fd, reader.piece, 1);
    if (more < 0) result = fail(UNAVAILABLE, "a difference of weights: %s", strerror(errno));
    if (more > 0) result = fail(DATAERR, "the difference of weights is too long");
done:
    ZSTD_freeDCtx(reader.context);
    free(buffers);
    return result;
}
