// cuBLASLt: finding the library, which is loaded and never linked, describing products to it, and calling it.
//
// cuBLASLt counts columns first. A row-major matrix is its transpose there, so it computes out^T = b a^T.
#include "kernels/cuda/lt.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"

#define LT_FUNCTIONS(X)                                                                                                \
    X(Create)                                                                                                          \
    X(Destroy)                                                                                                         \
    X(GetVersion)                                                                                                      \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)                                                                                             \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatmulAlgoGetHeuristic)                                                                                          \
    X(MatmulAlgoConfigGetAttribute)                                                                                    \
    X(Matmul)

struct lt {
    cublasLtHandle_t handle;
    struct admitted *admitted;
    bool tried_some; // shapes have been tried since lt_open
    char name[32];   // "cuBLASLt 130100"
#define LT_FIELD(name) __typeof__(cublasLt##name) *name;
    LT_FUNCTIONS(LT_FIELD)
};

// ---- the library ----

// Where the library may be: where the loader looks, in CUDA's toolkit, in Python's package nvidia-cublas of pip, conda
// and Debian. $NAME is a variable of the environment. The emulator cannot use NVIDIA's.
#ifdef CARAVAN_EMULATED
#define LT_FILE "libcublasLt-emulated.so"
#else
#define LT_FILE "libcublasLt.so.1[23]"
#endif
#define LT_PACKAGE "lib/python3*/*-packages/nvidia/*/lib/" LT_FILE

static const char *const lt_places[] = {
#ifndef CARAVAN_EMULATED
    "libcublasLt.so.13",
    "libcublasLt.so.12",
#endif
    "/usr/local/cuda*/lib64/" LT_FILE,
    "$VIRTUAL_ENV/" LT_PACKAGE,
    "$CONDA_PREFIX/lib/" LT_FILE,
    "$CONDA_PREFIX/" LT_PACKAGE,
    "$HOME/.local/" LT_PACKAGE,
    "/usr/local/" LT_PACKAGE,
    "/usr/" LT_PACKAGE,
    "/opt/conda/lib/" LT_FILE,
    "/opt/conda/" LT_PACKAGE,
    "/opt/venv/" LT_PACKAGE,
    "/venv/" LT_PACKAGE,
    NULL};

// False if there is no such library, or the GPU's driver is too old for it; fail_text says which. What was loaded stays
// so until the program ends, as plug-ins do.
static bool lt_load(struct lt *lt, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)fail(UNAVAILABLE, "cannot load cuBLASLt: %s", dlerror());
        return false;
    }
#define LT_FIND(name) *(void **)&lt->name = dlsym(library, "cublasLt" #name);
    LT_FUNCTIONS(LT_FIND)
#define LT_MISSING(name) || !lt->name
    if (false LT_FUNCTIONS(LT_MISSING)) {
        (void)fail(UNAVAILABLE, "%s lacks functions of cuBLASLt", path);
        return false;
    }
    cublasStatus_t refused = lt->Create(&lt->handle);
    if (refused != CUBLAS_STATUS_SUCCESS)
        (void)fail(UNAVAILABLE, "%s does not work with this GPU and driver: status %d", path, (int)refused);
    return refused == CUBLAS_STATUS_SUCCESS;
}

// Whether a library of lt_places was loaded.
static bool lt_search(struct lt *lt) {
    for (const char *const *place = lt_places; *place; place++) {
        char pattern[4096];
        const char *rest = strchr(*place, '/'), *directory = "";
        if (!rest) {
            if (lt_load(lt, *place)) return true;
            continue;
        }
        if (**place == '$') {
            char name[32];
            snprintf(name, sizeof name, "%.*s", (int)(rest - *place - 1), *place + 1);
            directory = getenv(name);
            if (!directory || *directory != '/') continue;
        }
        snprintf(pattern, sizeof pattern, "%s%s", directory, rest);
        glob_t found;
        bool loaded = false;
        if (glob(pattern, 0, NULL, &found) != 0) continue;
        for (size_t i = found.gl_pathc; i-- > 0 && !loaded;) loaded = lt_load(lt, found.gl_pathv[i]); // newest first
        globfree(&found);
        if (loaded) return true;
    }
    return false;
}

static void lt_log_admitted(const struct lt *lt) {
    int shapes, admitted = admitted_count(lt->admitted, &shapes);
    log_info("%s: algorithms are admitted for %d of %d shapes of products so far", lt->name, admitted, shapes);
}

status lt_open(struct cuda_backend *cuda) {
    const char *given = getenv("CARAVAN_CUBLASLT");
    if (given && strcmp(given, "none") == 0) return OK;
    struct lt *lt;
    NEW(&lt, 1);
    if (!(given ? lt_load(lt, given) : lt_search(lt))) {
        free(lt);
        if (given) return UNAVAILABLE;
#ifndef CARAVAN_EMULATED
        log_info("cuBLASLt was not found (CARAVAN_CUBLASLT may name its file): matrix products are slower");
#endif
        return OK;
    }
    cuda->lt = lt;
    snprintf(lt->name, sizeof lt->name, "cuBLASLt %zu", lt->GetVersion());
    TRY(admitted_open(&lt->admitted, cuda, lt->GetVersion()));
    lt_log_admitted(lt);
    return OK;
}

const char *lt_name(const struct cuda_backend *cuda) {
    return cuda->lt ? cuda->lt->name : NULL;
}

void lt_close(struct cuda_backend *cuda) {
    struct lt *lt = cuda->lt;
    if (!lt) return;
    if (lt->tried_some) lt_log_admitted(lt);
    admitted_free(&lt->admitted);
    (void)lt->Destroy(lt->handle);
    free(lt);
    cuda->lt = NULL;
}

// ---- a product, as cuBLASLt sees it ----

struct lt_call {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, out;
};

static void lt_call_release(struct lt *lt, struct lt_call *call) {
    if (call->desc) (void)lt->MatmulDescDestroy(call->desc);
    if (call->a) (void)lt->MatrixLayoutDestroy(call->a);
    if (call->b) (void)lt->MatrixLayoutDestroy(call->b);
    if (call->out) (void)lt->MatrixLayoutDestroy(call->out);
}

static cudaDataType_t lt_type(enum element type) {
    return type == ELEMENT_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static bool lt_layout(struct lt *lt, cublasLtMatrixLayout_t *out, enum element type, int64_t rows, int64_t columns,
                      int64_t stride) {
    return lt->MatrixLayoutCreate(out, lt_type(type), (uint64_t)columns, (uint64_t)rows, stride) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool lt_operand(struct lt *lt, cublasLtMatrixLayout_t *out, const struct operand *o) {
    return o->transposed ? lt_layout(lt, out, ELEMENT_BF16, o->inner, o->outer, o->stride)
                         : lt_layout(lt, out, ELEMENT_BF16, o->outer, o->inner, o->stride);
}

static bool lt_set(struct lt *lt, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                   const void *value, size_t bytes) {
    return lt->MatmulDescSetAttribute(desc, attribute, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

// False if cuBLASLt refuses. The caller releases the call in both cases.
static bool lt_describe(struct lt *lt, const struct product *p, struct lt_call *call) {
    memset(call, 0, sizeof *call);
    int32_t first = p->b.transposed ? CUBLAS_OP_N : CUBLAS_OP_T, second = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    int32_t bias_type = lt_type(p->bias_type);
    if (lt->MatmulDescCreate(&call->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        !lt_set(lt, call->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) ||
        !lt_set(lt, call->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second))
        return false;
    if (p->bias && (!lt_set(lt, call->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
                    !lt_set(lt, call->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias) ||
                    !lt_set(lt, call->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type)))
        return false;
    return lt_operand(lt, &call->a, &p->a) && lt_operand(lt, &call->b, &p->b) &&
           lt_layout(lt, &call->out, p->out_type, p->a.outer, p->b.outer, p->out_stride);
}

// No workspace: blocks that share a sum would exchange their parts there.
bool lt_run(struct cuda_backend *cuda, const struct product *p, const cublasLtMatmulAlgo_t *algo) {
    static const float one = 1, zero = 0;
    struct lt *lt = cuda->lt;
    struct lt_call call;
    bool done = lt_describe(lt, p, &call) &&
                lt->Matmul(lt->handle, call.desc, &one, p->b.data, call.b, p->a.data, call.a, p->add ? &one : &zero,
                           p->out, call.out, p->out, call.out, algo, NULL, 0, cuda->stream) == CUBLAS_STATUS_SUCCESS;
    lt_call_release(lt, &call);
    return done;
}

// ---- algorithms ----

// Matrices are aligned to 16 bytes, sums are not split, and there is no workspace, which is the default.
static bool lt_prefer(struct lt *lt, cublasLtMatmulPreference_t preference) {
    static const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } wishes[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_NONE}};
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        if (lt->MatmulPreferenceSetAttribute(preference, wishes[i].attribute, &wishes[i].value,
                                             sizeof wishes[i].value) != CUBLAS_STATUS_SUCCESS)
            return false;
    }
    return true;
}

// Whether an algorithm says, or may have meant to say, that it splits sums.
static bool lt_splits(struct lt *lt, const cublasLtMatmulAlgo_t *algo) {
    int32_t split = 0;
    uint32_t scheme = 0;
    size_t bytes;
    return lt->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &bytes) !=
               CUBLAS_STATUS_SUCCESS ||
           lt->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                                            &bytes) != CUBLAS_STATUS_SUCCESS ||
           split > 1 || split < 0 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
}

void lt_candidates(struct lt *lt, const struct product *p, cublasLtMatmulAlgo_t candidates[LT_CANDIDATES], int *count) {
    struct lt_call call;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t proposals[LT_CANDIDATES];
    int proposed = 0;
    *count = 0;
    if (lt_describe(lt, p, &call) && lt->MatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS &&
        lt_prefer(lt, preference) &&
        lt->MatmulAlgoGetHeuristic(lt->handle, call.desc, call.b, call.a, call.out, call.out, preference, LT_CANDIDATES,
                                   proposals, &proposed) == CUBLAS_STATUS_SUCCESS) {
        for (int i = 0; i < proposed; i++) {
            bool usable = proposals[i].state == CUBLAS_STATUS_SUCCESS && proposals[i].workspaceSize == 0;
            if (usable && !lt_splits(lt, &proposals[i].algo)) candidates[(*count)++] = proposals[i].algo;
        }
    }
    if (preference) (void)lt->MatmulPreferenceDestroy(preference);
    lt_call_release(lt, &call);
}

// ---- products ----

// Whether cuBLASLt may be asked for this product: many tokens, aligned throughout, with a bias of the output's type.
static bool lt_fits(const struct product *p) {
    size_t row = (size_t)p->out_stride * element_size(p->out_type);
    return (p->a.transposed ? p->a.inner : p->a.outer) >= LT_LEAST_TOKENS && operand_aligned(&p->a) &&
           operand_aligned(&p->b) && (uintptr_t)p->out % 16 == 0 && row % 16 == 0 &&
           (!p->bias || (p->bias_type == p->out_type && (uintptr_t)p->bias % 16 == 0));
}

static int64_t lt_token_class(int64_t tokens) {
    int64_t class = 1;
    while (class < tokens) class *= 2;
    return class;
}

static struct lt_shape lt_shape_of(const struct product *p) {
    struct lt_shape shape = {p->a.outer, p->b.outer, p->a.inner,
                             (p->a.transposed ? LT_A_TRANSPOSED : 0) | (p->b.transposed ? LT_B_TRANSPOSED : 0) |
                                 (p->out_type == ELEMENT_F32 ? LT_OUT_F32 : 0) | (p->bias ? LT_BIAS : 0) |
                                 (p->add ? LT_ADD : 0)};
    int64_t *tokens = p->a.transposed ? &shape.inner : &shape.a_outer;
    *tokens = lt_token_class(*tokens);
    return shape;
}

static status lt_try_shape(struct cuda_backend *cuda, const struct lt_shape *shape) {
    struct lt *lt = cuda->lt;
    struct lt_entry entry = {.shape = *shape};
    bool tried;
    TRY(admit_algorithm(cuda, &entry, &tried));
    const char *result = !tried ? "memory is too short to try" : entry.admitted ? "admitted" : "other bits";
    log_debug("cuBLASLt, a product of %lld x %lld x %lld, kind %lld: %s", (long long)shape->a_outer,
              (long long)shape->b_outer, (long long)shape->inner, (long long)shape->flags, result);
    lt->tried_some = true;
    return admitted_add(lt->admitted, &entry, tried);
}

status lt_product(struct cuda_backend *cuda, const struct product *p, bool *done) {
    struct lt *lt = cuda->lt;
    *done = false;
    if (!lt || cuda->recording || !lt_fits(p)) return OK;
    struct lt_shape shape = lt_shape_of(p);
    const struct lt_entry *entry = admitted_find(lt->admitted, &shape);
    if (!entry) {
        TRY(lt_try_shape(cuda, &shape));
        entry = admitted_find(lt->admitted, &shape);
    }
    if (entry->admitted) *done = lt_run(cuda, p, &entry->algo);
    return OK;
}
