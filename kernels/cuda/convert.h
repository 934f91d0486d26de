// Copies of rows by an index, for gather and scatter. Copies without one are cuda_convert (cuda.h).
#ifndef KERNELS_CUDA_CONVERT_H
#define KERNELS_CUDA_CONVERT_H

#include "kernels/cuda/rows.h"

// out[i] = in[index[i]], or out[index[i]] = in[i] with `scatter`, converted between float types or copied; index I32
// [T,1]. out and in have the same number of columns. BUG for types that do not convert.
status cuda_convert_indexed(struct cuda_backend *cuda, struct tensor out, struct tensor in, struct tensor index,
                            bool scatter);

#endif
