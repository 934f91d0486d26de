// Sums over dense memory that the host receives: square_sum and digest. Each block adds up a share, whose bounds depend
// on the length alone, and the host adds the blocks' sums in order.
#include "kernels/cuda/rows.h"

enum { sum_most_blocks = 1024, sum_block_threads = 256 };

// What a block adds up; in scratch memory.
union sum_of_block {
    double squares;
    uint64_t words;
};

// Every block adds the octets of its threads; the number of blocks depends on `count` alone.
template <int layout>
__global__ void __launch_bounds__(sum_block_threads)
    square_sum_kernel(union sum_of_block *sums, struct device_rows in, int64_t count) {
    int64_t step = (int64_t)gridDim.x * sum_block_threads;
    double sum = 0;
    for (int64_t o = (int64_t)blockIdx.x * sum_block_threads + threadIdx.x; o * octet < count; o += step) {
        float values[octet];
        octet_load<layout>(values, in, 0, o * octet, count);
#pragma unroll
        for (int e = 0; e < octet; e++) sum += (double)values[e] * (double)values[e];
    }
    sum = block_sum(sum, (double *)dynamic_shared());
    if (threadIdx.x == 0) sums[blockIdx.x].squares = sum;
}

// The w-th word of `bytes` bytes at any address.
DEVICE uint64_t digest_word(const unsigned char *data, int64_t bytes, int64_t w) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        if (w * 8 + i < bytes) word |= (uint64_t)data[w * 8 + i] << 8 * i;
    return word;
}

// A thread takes two words at a time.
__global__ void __launch_bounds__(sum_block_threads)
    digest_kernel(union sum_of_block *sums, const unsigned char *data, int64_t bytes, uint64_t first) {
    int64_t step = (int64_t)gridDim.x * sum_block_threads, words = (bytes + 7) / 8;
    bool aligned = (uintptr_t)data % 16 == 0;
    uint64_t sum = 0;
    for (int64_t w = 2 * ((int64_t)blockIdx.x * sum_block_threads + threadIdx.x); w < words; w += 2 * step) {
        uint64_t word[2];
        if (aligned && w * 8 + 16 <= bytes) {
            struct words16 in = *(const struct words16 *)(data + w * 8);
            word[0] = in.word[0] | (uint64_t)in.word[1] << 32;
            word[1] = in.word[2] | (uint64_t)in.word[3] << 32;
        } else {
            word[0] = digest_word(data, bytes, w);
            word[1] = digest_word(data, bytes, w + 1);
        }
        sum += mix64(word[0] ^ mix64(first + (uint64_t)w));
        if (w + 1 < words) sum += mix64(word[1] ^ mix64(first + (uint64_t)w + 1));
    }
    sum = block_sum(sum, (uint64_t *)dynamic_shared());
    if (threadIdx.x == 0) sums[blockIdx.x].words = sum;
}

// The number of blocks whose threads take `units` units of memory in turn.
static int64_t sums_blocks(int64_t units) {
    int64_t blocks = (units + sum_block_threads - 1) / sum_block_threads;
    return blocks < sum_most_blocks ? blocks : (int64_t)sum_most_blocks;
}

// host = the blocks' sums; waits.
static status sums_read(struct cuda_backend *cuda, union sum_of_block *host, int64_t blocks) {
    int64_t bytes = blocks * (int64_t)sizeof *host;
    struct tensor sums = {};
    sums.buffer = &cuda->scratch[CUDA_SCRATCH_SUMS];
    sums.type = ELEMENT_U8;
    sums.rows = 1;
    sums.columns = sums.stride = bytes;
    return cuda_download(&cuda->base, host, ELEMENT_U8, sums);
}

status cuda_square_sum(struct backend *backend, double *sum, struct tensor in) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t count = in.rows * in.columns, blocks = sums_blocks(octets_of(count));
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_dense(in));
    if (count == 0) return OK;
    struct device_rows row = device_rows_of(tensor_reshape(in, 1, count));
    union sum_of_block *sums, host[sum_most_blocks];
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_SUMS, (size_t)blocks * sizeof *sums, &sums));
    LAUNCH_LAYOUT(layout_of(count, &row, 1), square_sum_kernel, (unsigned)blocks, sum_block_threads,
                  sum_block_threads / 32 * sizeof(double), cuda->stream, sums, row, count);
    TRY(cuda_launched("square_sum"));
    TRY(sums_read(cuda, host, blocks));
    for (int64_t i = 0; i < blocks; i++) *sum += host[i].squares;
    return OK;
}

status cuda_digest(struct backend *backend, struct tensor in, uint64_t first, uint64_t *sum) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_fits(in) && tensor_dense(in));
    int64_t bytes = in.rows * in.columns * (int64_t)element_size(in.type);
    int64_t blocks = sums_blocks((bytes + 15) / 16);
    if (bytes == 0) return OK;
    union sum_of_block *sums, host[sum_most_blocks];
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_SUMS, (size_t)blocks * sizeof *sums, &sums));
    LAUNCH(digest_kernel, (unsigned)blocks, sum_block_threads, sum_block_threads / 32 * sizeof(uint64_t), cuda->stream,
           sums, (const unsigned char *)tensor_row(in, 0), bytes, first);
    TRY(cuda_launched("digest"));
    TRY(sums_read(cuda, host, blocks));
    for (int64_t i = 0; i < blocks; i++) *sum += host[i].words;
    return OK;
}
