// Adds the sums of the blocks of a norm's gradient.
#include "kernels/cuda/norm.h"

enum {
    sum_groups = 8, // of the blocks' sums of a column, each added by one warp
    sum_threads = 32 * sum_groups,
};

// A warp adds every sum_groups-th row of 32 columns.
__global__ void __launch_bounds__(sum_threads)
    norm_sum_kernel(float *out, const float *sums, int64_t blocks, int64_t columns) {
    float *shared = (float *)dynamic_shared(); // [sum_groups][32]
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    float sum = 0;
    for (int64_t block = threadIdx.x / 32; block < blocks && column < columns; block += sum_groups)
        sum = add_rn(sum, sums[block * columns + column]);
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= columns) return;
    for (int group = 1; group < sum_groups; group++) sum = add_rn(sum, shared[group * 32 + (int)threadIdx.x]);
    out[column] = add_rn(out[column], sum);
}

void norm_add_sums(struct cuda_backend *cuda, struct tensor out, const float *sums, int64_t blocks) {
    LAUNCH(norm_sum_kernel, (unsigned)((out.columns + 31) / 32), sum_threads, sum_threads * sizeof(float), cuda->stream,
           (float *)tensor_row(out, 0), sums, blocks, out.columns);
}
