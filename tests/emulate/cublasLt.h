// The part of cuBLASLt that kernels/cuda uses, under its own names (cublaslt.cpp): the plug-in of the emulator offers
// it to a program whose $CARAVAN_CUBLASLT names the plug-in itself. Some of its algorithms give the canonical bits and
// some do not, so that a test sees which are admitted.
#pragma once

#include <stdint.h>

#include "cuda_runtime_api.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum { CUDA_R_32F = 0, CUDA_R_16BF = 14 } cudaDataType_t;
typedef enum { CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;
typedef enum { CUBLASLT_EPILOGUE_BIAS = 4 } cublasLtEpilogue_t;
enum {
    CUBLAS_OP_N = 0,
    CUBLAS_OP_T = 1,
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
};

typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
} cublasLtMatmulDescAttributes_t;

typedef enum {
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
} cublasLtMatmulPreferenceAttributes_t;

typedef enum {
    CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2,
    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3
} cublasLtMatmulAlgoConfigAttributes_t;

typedef struct emulated_lt *cublasLtHandle_t;
typedef struct emulated_matmul *cublasLtMatmulDesc_t;
typedef struct emulated_layout *cublasLtMatrixLayout_t;
typedef struct emulated_preference *cublasLtMatmulPreference_t;

typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

// Each function does what NVIDIA's documentation says of it.
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out);
// Frees a handle.
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
// The version.
size_t cublasLtGetVersion(void);
// A product: nothing is transposed, no bias.
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale);
// Frees a product.
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc);
// Sets an attribute.
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes);
// A matrix, its columns one after the other.
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t stride);
// Frees a layout.
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
// What algorithms must keep to.
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out);
// Frees a preference.
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
// Sets an attribute, which the algorithms here need not keep to.
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes);
// Proposes algorithms.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *out, int *found);
// Reads an attribute of an algorithm.
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written);
// D = alpha op(A) op(B) + beta C, plus the bias.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream);

// ---- for tests ----

// The algorithms, in the order in which they are proposed.
enum emulated_algorithm {
    ALGORITHM_SPLIT,     // says that it adds up two halves, and does not
    ALGORITHM_SCHEME,    // says that it has a reduction, and has none
    ALGORITHM_WORKSPACE, // wants a workspace, and needs none
    ALGORITHM_HALVES,    // adds up two halves of the inner length, and does not say so
    ALGORITHM_TURNS,     // adds up every other step of the inner length, and the others
    ALGORITHM_GROWING,   // two halves from 100 tokens on, also where the tokens are the inner length
    ALGORITHM_FEW,       // two halves below 80 tokens
    ALGORITHM_REFUSED,   // is refused when it is to run
    ALGORITHM_WHOLE,     // adds up in the canonical order
    ALGORITHMS,
};

struct emulated_cublaslt {
    size_t version;
    unsigned offered;     // a bit for each algorithm that is proposed
    int asked;            // calls of cublasLtMatmulAlgoGetHeuristic
    int runs[ALGORITHMS]; // products that each was asked for
};

extern struct emulated_cublaslt emulated_cublaslt;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
