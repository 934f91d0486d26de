// A cuBLASLt that computes with the emulated tensor cores. What its algorithms are for is said in cublasLt.h.
#include "cublasLt.h"

#include "kernels/cuda/device.h"

struct emulated_cublaslt emulated_cublaslt = {1, (1u << ALGORITHMS) - 1, 0, {}};

struct emulated_lt {
    int unused;
};

struct emulated_preference {
    int unused;
};

struct emulated_matmul {
    int32_t transposed[2];
    const void *bias;
    int32_t bias_type;
};

struct emulated_layout {
    cudaDataType_t type;
    int64_t rows, columns, stride;
};

// ---- objects ----

template <typename T> static cublasStatus_t lt_new(T **out) {
    *out = new T();
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t lt_delete(T *object) {
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    return lt_new(out);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return lt_delete(handle);
}

size_t cublasLtGetVersion(void) {
    return emulated_cublaslt.version;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    return lt_new(out);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return lt_delete(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    if (bytes != (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? 8u : 4u)) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        memcpy(&desc->transposed[0], value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        memcpy(&desc->transposed[1], value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        memcpy(&desc->bias, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        memcpy(&desc->bias_type, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        break; // a bias is added if there is one
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
    *out = new emulated_layout{type, (int64_t)rows, (int64_t)columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return lt_delete(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return lt_new(out);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return lt_delete(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}

// ---- algorithms ----

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t *out, int *found) {
    *found = 0;
    emulated_cublaslt.asked++;
    for (unsigned i = 0; i < ALGORITHMS && *found < wanted; i++) {
        if (!(emulated_cublaslt.offered >> i & 1)) continue;
        out[*found] = {};
        out[*found].algo.data[0] = i;
        out[*found].workspaceSize = i == ALGORITHM_WORKSPACE ? 1024 : 0;
        ++*found;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
    int32_t answer = 0;
    if (bytes != sizeof answer) return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
        answer = algo->data[0] == ALGORITHM_SPLIT ? 2 : 1;
    else if (algo->data[0] == ALGORITHM_SCHEME)
        answer = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    memcpy(value, &answer, sizeof answer);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- the product: a warp for 16 x 8 outputs ----

struct lt_matrix {
    const void *data;
    cudaDataType_t type;
    int64_t outer, inner, outer_stride, inner_stride;
};

struct lt_work {
    struct lt_matrix a, b, d; // d: outer is along a, inner along b
    const void *bias;         // along a
    void *out;                // d's data
    float beta;
    bool halves, turns; // two sums: of the halves of the inner length, of every other step
};

static uint32_t lt_pair(const struct lt_matrix &m, int64_t outer, int64_t k) {
    uint32_t pair = 0;
    for (int i = 0; i < 2; i++) {
        if (outer >= m.outer || k + i >= m.inner) continue;
        const auto *data = (const struct bf16 *)m.data;
        pair |= (uint32_t)data[outer * m.outer_stride + (k + i) * m.inner_stride].bits << 16 * i;
    }
    return pair;
}

static float lt_read(const void *data, cudaDataType_t type, int64_t at) {
    return type == CUDA_R_32F ? ((const float *)data)[at] : f32_from_bf16(((const struct bf16 *)data)[at]);
}

static void lt_store(const struct lt_work &w, int64_t row, int64_t column, float sum) {
    if (row >= w.d.outer || column >= w.d.inner) return;
    int64_t at = row * w.d.outer_stride + column * w.d.inner_stride;
    if (w.bias) sum += lt_read(w.bias, w.d.type, row);
    if (w.beta != 0 && w.d.type != CUDA_R_32F) sum = f32_from_bf16(bf16_from_f32(sum));
    if (w.beta != 0) sum += lt_read(w.out, w.d.type, at);
    if (w.d.type == CUDA_R_32F)
        ((float *)w.out)[at] = sum;
    else
        ((struct bf16 *)w.out)[at] = bf16_from_f32(sum);
}

static void lt_matmul_kernel(struct lt_work w) {
    int64_t row = (int64_t)blockIdx.x * 16, column = (int64_t)blockIdx.y * 8, steps = (w.a.inner + 15) / 16;
    int g = lane_id() / 4, t = lane_id() % 4 * 2;
    float sums[2][4] = {};
    for (int64_t step = 0; step < steps; step++) {
        int64_t k = step * 16 + t;
        const uint32_t a[4] = {lt_pair(w.a, row + g, k), lt_pair(w.a, row + g + 8, k), lt_pair(w.a, row + g, k + 8),
                               lt_pair(w.a, row + g + 8, k + 8)};
        const uint32_t b[2] = {lt_pair(w.b, column + g, k), lt_pair(w.b, column + g, k + 8)};
        bool second = w.halves ? step >= steps / 2 : w.turns && step % 2;
        mma_bf16(sums[second], a, b);
    }
    for (int i = 0; i < 4; i++) lt_store(w, row + g + i / 2 * 8, column + t + i % 2, sums[0][i] + sums[1][i]);
}

static struct lt_matrix lt_operand(const void *data, cublasLtMatrixLayout_t layout, bool columns_are_outer) {
    if (columns_are_outer) return {data, layout->type, layout->columns, layout->rows, layout->stride, 1};
    return {data, layout->type, layout->rows, layout->columns, 1, layout->stride};
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *, size_t,
                              cudaStream_t stream) {
    if (*(const float *)alpha != 1 || c != d) return CUBLAS_STATUS_NOT_SUPPORTED;
    enum emulated_algorithm algorithm = (enum emulated_algorithm)algo->data[0];
    bool weight_gradient = desc->transposed[1] == CUBLAS_OP_T;
    int64_t tokens = weight_gradient ? b_layout->columns : d_layout->columns;
    emulated_cublaslt.runs[algorithm]++;
    if (algorithm == ALGORITHM_REFUSED) return CUBLAS_STATUS_NOT_SUPPORTED;
    struct lt_work w = {lt_operand(a, a_layout, desc->transposed[0] == CUBLAS_OP_T),
                        lt_operand(b, b_layout, desc->transposed[1] == CUBLAS_OP_N),
                        lt_operand(d, d_layout, false),
                        desc->bias,
                        d,
                        *(const float *)beta,
                        algorithm == ALGORITHM_HALVES || (algorithm == ALGORITHM_GROWING && tokens >= 100) ||
                            (algorithm == ALGORITHM_FEW && tokens < 80),
                        algorithm == ALGORITHM_TURNS};
    if (w.a.inner != w.b.inner || w.a.outer != w.d.outer || w.b.outer != w.d.inner) return CUBLAS_STATUS_INVALID_VALUE;
    LAUNCH(lt_matmul_kernel, dim3((unsigned)((w.a.outer + 15) / 16), (unsigned)((w.b.outer + 7) / 8)), 32, 0, stream,
           w);
    return CUBLAS_STATUS_SUCCESS;
}
