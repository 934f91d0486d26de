// Products by cuBLASLt, where its library is there and has an algorithm that gives the bits of the canonical product
// (products.h). Everything works without it, slower. It is loaded and never linked.
//
// An algorithm of cuBLASLt serves a class of products only if it is admitted: it gives the canonical bits in trials.
//
// Classes. The number of tokens of a pass is any, and a row's bits may not depend on it. So the products of one shape
// form a class from half a power of two tokens, without that half, to the power itself. One algorithm serves the whole
// class, or none does.
//
// Trials. Each algorithm that cuBLASLt proposes is compared with the own product, bit by bit, at three numbers of
// tokens of the class: both ends, and an odd one. The elements show in which order products are added (lt_value).
//
// Why these numbers of tokens stand for all of a class: an algorithm is one kernel with fixed tiles.
// - How it adds up a tile could change with the number of tokens at some threshold. This shows, because both ends of a
//   class are tried.
// - Or it could change with the number of tiles, where blocks share sums to fill the GPU (stream-K). For that they have
//   to exchange parts of sums, and they get no workspace. What says that it splits sums is not tried at all.
// - In a weight's gradient the tokens are the inner length. A threshold, or sums that are begun anew after so many
//   elements, again show at an end of the class. Lengths that are no multiple of a step are tried too.
// - Outer lengths are cut where memory would be large, to the same remainder of a tile, with the same reason.
//
// Choice. The first algorithm of equal bits serves, in cuBLASLt's own order, which goes by the time that it expects for
// the shape itself. A clock would compare the trials, whose matrices may be smaller, and would choose otherwise in
// every run.
//
// The file. What was found out is kept in $XDG_CACHE_HOME/caravan or ~/.cache/caravan, one file for each kind of GPU.
// Its first line says what the rest is true for: the GPU, its driver, the version of cuBLASLt and the build of the
// plug-in. Each other line is one class with a check sum and is appended as a whole, so that several processes may
// share the file. A damaged line is passed over, and a file of another version is begun anew: then classes are tried
// again. A file that cannot be written is done without.
#include <ctype.h>
#include <cublasLt.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/products.h"

extern "C" {
#include "shared/base/log.h"
}

enum {
    LT_MAX_CANDIDATES = 16, // algorithms that are tried for a class
    LT_MIN_TOKENS = 9,      // with fewer the own product serves
    LT_MIN_COPIED = 128,    // with all lengths at least this, copies to aligned rows cost less than they save
    LT_MAX_LINE = 512,      // bytes of the file
    LT_THREADS = 256,
    LT_MAX_BLOCKS = 1024,
    LT_MAX_ELEMENTS = 1 << 25, // of an operand of a trial: 64 MiB
    LT_MAX_OUTPUTS = 4096,     // rows, and columns, of a trial's output
    LT_TILE = 128,             // rows and columns are left out in multiples of it
    LT_TRIALS = 3,             // numbers of tokens
    LT_PAIR_APART = 32,        // inner elements that have one pair of large ones
};

enum lt_flag { LT_A_TRANSPOSED = 1, LT_B_TRANSPOSED = 2, LT_OUT_F32 = 4, LT_BIAS = 8, LT_ADD = 16 };

// A class of products. The number of tokens is a's outer length, or the inner length in a weight's gradient; here it is
// a power of two.
struct lt_shape {
    int64_t a_outer, b_outer, inner;
    int64_t flags; // of enum lt_flag
};

// What is known of a class: words, which the file has too.
struct lt_entry {
    struct lt_shape shape;
    uint64_t admitted;         // 0 or 1
    cublasLtMatmulAlgo_t algo; // if admitted
};

enum { LT_ENTRY_WORDS = sizeof(struct lt_entry) / sizeof(uint64_t) };
static_assert(sizeof(struct lt_entry) == 5 * sizeof(uint64_t) + sizeof(cublasLtMatmulAlgo_t), "there are no gaps");

struct lt_class {
    struct lt_entry entry;
    bool loaded; // its kernel has run in this process
};

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
    char name[32];            // "cuBLASLt 130100"
    struct lt_class *classes; // that have been tried
    size_t count;
    bool tried_some; // since lt_open
    char path[1200]; // of the file; "" if there is no place for it
    char version[LT_MAX_LINE];
    bool current; // the file's first line is `version`
#define LT_FIELD(name) __typeof__(cublasLt##name) *name;
    LT_FUNCTIONS(LT_FIELD)
};

// ---- a product, as cuBLASLt sees it ----
//
// cuBLASLt counts columns first. A row-major matrix is its transpose there, so it computes out^T = b a^T.

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

static bool lt_layout(struct lt *lt, cublasLtMatrixLayout_t *out, enum element type, const struct operand &o) {
    uint64_t rows = (uint64_t)(o.transposed ? o.inner : o.outer),
             columns = (uint64_t)(o.transposed ? o.outer : o.inner);
    return lt->MatrixLayoutCreate(out, lt_type(type), columns, rows, o.stride) == CUBLAS_STATUS_SUCCESS;
}

static bool lt_set(struct lt *lt, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                   const void *value, size_t bytes) {
    return lt->MatmulDescSetAttribute(desc, attribute, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

// False if cuBLASLt refuses. The caller releases the call in both cases.
static bool lt_describe(struct lt *lt, const struct product *p, struct lt_call *call) {
    *call = {};
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
    return lt_layout(lt, &call->a, ELEMENT_BF16, p->a) && lt_layout(lt, &call->b, ELEMENT_BF16, p->b) &&
           lt_layout(lt, &call->out, p->out_type, {p->out, p->a.outer, p->b.outer, p->out_stride, false});
}

// Starts a product with an algorithm. False if cuBLASLt refuses; then nothing has happened. There is no workspace:
// blocks that share a sum would exchange their parts there.
static bool lt_run(struct cuda_backend *cuda, const struct product *p, const cublasLtMatmulAlgo_t *algo) {
    static const float one = 1, zero = 0;
    struct lt *lt = cuda->lt;
    struct lt_call call;
    bool done = lt_describe(lt, p, &call) &&
                lt->Matmul(lt->handle, call.desc, &one, p->b.data, call.b, p->a.data, call.a, p->add ? &one : &zero,
                           p->out, call.out, p->out, call.out, algo, NULL, 0, cuda->stream) == CUBLAS_STATUS_SUCCESS;
    lt_call_release(lt, &call);
    return done;
}

// candidates[0..*count) = the algorithms that cuBLASLt proposes for a product and that do not say that they split sums,
// in its order.
static void lt_candidates(struct lt *lt, const struct product *p, cublasLtMatmulAlgo_t candidates[LT_MAX_CANDIDATES],
                          int *count) {
    // Matrices are aligned to 16 bytes, sums are not split, and there is no workspace, which is the default.
    static const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } wishes[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 16},
                  {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_NONE}};
    struct lt_call call;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t proposals[LT_MAX_CANDIDATES];
    int proposed = 0;
    *count = 0;
    bool ready = lt_describe(lt, p, &call) && lt->MatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; ready && i < sizeof wishes / sizeof *wishes; i++)
        ready = lt->MatmulPreferenceSetAttribute(preference, wishes[i].attribute, &wishes[i].value,
                                                 sizeof wishes[i].value) == CUBLAS_STATUS_SUCCESS;
    if (ready && lt->MatmulAlgoGetHeuristic(lt->handle, call.desc, call.b, call.a, call.out, call.out, preference,
                                            LT_MAX_CANDIDATES, proposals, &proposed) != CUBLAS_STATUS_SUCCESS)
        proposed = 0;
    for (int i = 0; i < proposed; i++) {
        const cublasLtMatmulAlgo_t *algo = &proposals[i].algo;
        int32_t split = 0;
        uint32_t scheme = 0;
        size_t bytes;
        // An algorithm that does not answer may have meant to say that it splits sums.
        if (proposals[i].state == CUBLAS_STATUS_SUCCESS && proposals[i].workspaceSize == 0 &&
            lt->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &bytes) ==
                CUBLAS_STATUS_SUCCESS &&
            lt->MatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                                             &bytes) == CUBLAS_STATUS_SUCCESS &&
            (split == 0 || split == 1) && scheme == CUBLASLT_REDUCTION_SCHEME_NONE)
            candidates[(*count)++] = *algo;
    }
    if (preference) (void)lt->MatmulPreferenceDestroy(preference);
    lt_call_release(lt, &call);
}

// ---- the elements of a trial ----

// Numbers to be made: element (outer, inner) is at outer * outer_stride + inner * inner_stride.
struct lt_fill {
    void *data;
    int64_t outer, inner, outer_stride, inner_stride;
    enum element type;
    uint64_t seed;
    bool pairs;   // some are large
    bool negated; // one of each pair is negative
};

// Elements that show in which order products are added. Most are uniform in [-2, 2). Among each 32 inner elements, one
// of the first and one of the last sixteen are large: 1024 in b, and in a 1024 and -1024 in an order that is the row's.
// Their products cancel, but what lies between them, and the sum before, lose their low bits beside 2^20: how much of
// the output is lost, and where, depends on the order.
DEVICE float lt_value(const struct lt_fill *f, int64_t outer, int64_t k) {
    int64_t group = k / LT_PAIR_APART, at = k % LT_PAIR_APART;
    uint64_t own = mix64(f->seed ^ mix64((uint64_t)(outer * f->inner + k))), places = mix64((uint64_t)group);
    bool whole = (group + 1) * LT_PAIR_APART <= f->inner;
    if (f->pairs && whole && at % 16 == (int64_t)(at < 16 ? places % 16 : places / 16 % 16)) {
        bool negative = f->negated && (at < 16) == (mix64((uint64_t)(outer + group)) % 2 == 0);
        return negative ? -1024.0f : 1024.0f;
    }
    return mul_rn((float)(int32_t)(uint32_t)own, 0x1p-30f);
}

__global__ void __launch_bounds__(LT_THREADS) lt_fill_kernel(struct lt_fill f) {
    int64_t count = f.outer * f.inner, step = (int64_t)gridDim.x * LT_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LT_THREADS + threadIdx.x; i < count; i += step) {
        int64_t outer = i / f.inner, k = i % f.inner, at = outer * f.outer_stride + k * f.inner_stride;
        float value = lt_value(&f, outer, k);
        if (f.type == ELEMENT_F32)
            ((float *)f.data)[at] = value;
        else
            ((struct bf16 *)f.data)[at] = bf16_from_f32(value);
    }
}

static unsigned lt_blocks(int64_t count) {
    int64_t blocks = (count + LT_THREADS - 1) / LT_THREADS;
    return (unsigned)(blocks < LT_MAX_BLOCKS ? blocks : (int64_t)LT_MAX_BLOCKS);
}

static void lt_fill_operand(struct cuda_backend *cuda, void *data, struct operand *o, uint64_t seed, bool negated) {
    struct lt_fill f = {
        data, o->outer, o->inner, o->transposed ? 1 : o->stride, o->transposed ? o->stride : 1, ELEMENT_BF16,
        seed, true,     negated};
    LAUNCH(lt_fill_kernel, lt_blocks(o->outer * o->inner), LT_THREADS, 0, cuda->stream, f);
    o->data = data;
}

static void lt_fill_rows(struct cuda_backend *cuda, void *data, enum element type, int64_t rows, int64_t columns,
                         uint64_t seed) {
    struct lt_fill f = {data, rows, columns, columns, 1, type, seed, false, false};
    LAUNCH(lt_fill_kernel, lt_blocks(rows * columns), LT_THREADS, 0, cuda->stream, f);
}

// Sets *differ if the words are not the same.
__global__ void __launch_bounds__(LT_THREADS)
    lt_compare_kernel(const uint16_t *a, const uint16_t *b, int64_t count, uint32_t *differ) {
    int64_t step = (int64_t)gridDim.x * LT_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * LT_THREADS + threadIdx.x; i < count; i += step)
        if (a[i] != b[i]) atomicOr(differ, 1u);
}

// ---- trials ----

// A product in memory of its own, all of it one allocation.
struct lt_trial {
    struct product product; // its output is the canonical one
    void *memory, *out;     // the algorithm's output
    uint32_t *differ;
};

static int64_t lt_padded(int64_t columns) {
    return (columns + 7) / 8 * 8;
}

static struct operand lt_operand_of(int64_t outer, int64_t inner, bool transposed) {
    return {NULL, outer, inner, lt_padded(transposed ? outer : inner), transposed};
}

// A product of a shape, with rows of whole 16 bytes and without data.
static struct product lt_product_of(const struct lt_shape *shape) {
    struct product p = {};
    p.a = lt_operand_of(shape->a_outer, shape->inner, shape->flags & LT_A_TRANSPOSED);
    p.b = lt_operand_of(shape->b_outer, shape->inner, shape->flags & LT_B_TRANSPOSED);
    p.type = ELEMENT_BF16;
    p.out_type = p.bias_type = shape->flags & LT_OUT_F32 ? ELEMENT_F32 : ELEMENT_BF16;
    p.out_stride = lt_padded(shape->b_outer);
    p.add = shape->flags & LT_ADD;
    return p;
}

// An outer length of a trial, which is smaller if memory would be large.
static int64_t lt_cut(int64_t outer, int64_t inner) {
    int64_t most = LT_MAX_ELEMENTS / inner / LT_TILE * LT_TILE;
    if (most > LT_MAX_OUTPUTS) most = LT_MAX_OUTPUTS;
    return outer <= most + LT_TILE ? outer : most + outer % LT_TILE;
}

static size_t lt_bytes(const struct operand *o) {
    return (size_t)((o->transposed ? o->inner : o->outer) * o->stride) * sizeof(struct bf16);
}

// Allocates and fills a trial, and computes its canonical output. *fits = false if memory is too short. The caller
// frees out->memory in every case.
static status lt_trial_new(struct cuda_backend *cuda, const struct lt_shape *shape, struct lt_trial *out, bool *fits) {
    struct lt_shape cut = *shape;
    cut.a_outer = lt_cut(shape->a_outer, shape->inner);
    cut.b_outer = lt_cut(shape->b_outer, shape->inner);
    struct product p = lt_product_of(&cut);
    size_t outputs = (size_t)(cut.a_outer * p.out_stride) * element_size(p.out_type), end = 0;
    size_t a = cuda_place(&end, lt_bytes(&p.a)), b = cuda_place(&end, lt_bytes(&p.b));
    size_t bias = cuda_place(&end, (size_t)cut.b_outer * element_size(p.out_type));
    size_t canonical = cuda_place(&end, outputs), given = cuda_place(&end, outputs);
    size_t differ = cuda_place(&end, sizeof *out->differ);
    *fits = cut.a_outer > 0 && cut.b_outer > 0 && cudaMalloc(&out->memory, end) == cudaSuccess;
    if (!*fits) {
        (void)cudaGetLastError();
        return OK;
    }
    char *data = (char *)out->memory;
    lt_fill_operand(cuda, data + a, &p.a, 1, true);
    lt_fill_operand(cuda, data + b, &p.b, 2, false);
    p.bias = shape->flags & LT_BIAS ? data + bias : NULL;
    p.out = data + canonical;
    out->product = p;
    out->out = data + given;
    out->differ = (uint32_t *)(data + differ);
    lt_fill_rows(cuda, data + bias, p.bias_type, 1, cut.b_outer, 3);
    lt_fill_rows(cuda, p.out, p.out_type, cut.a_outer, p.out_stride, 4);
    return gemm_bf16(cuda, &p);
}

// *equal = whether the algorithm gives the canonical bits.
static status lt_trial_run(struct cuda_backend *cuda, const struct lt_trial *trial, const cublasLtMatmulAlgo_t *algo,
                           bool *equal) {
    struct product p = trial->product;
    int64_t words = p.a.outer * p.out_stride * (int64_t)(element_size(p.out_type) / sizeof(uint16_t));
    uint32_t differ;
    *equal = false;
    CUDA_TRY(cudaMemsetAsync(trial->differ, 0, sizeof differ, cuda->stream));
    p.out = trial->out;
    lt_fill_rows(cuda, p.out, p.out_type, p.a.outer, p.out_stride, 4);
    if (!lt_run(cuda, &p, algo)) return OK;
    LAUNCH(lt_compare_kernel, lt_blocks(words), LT_THREADS, 0, cuda->stream, (const uint16_t *)trial->product.out,
           (const uint16_t *)p.out, words, trial->differ);
    TRY(cuda_launched("lt_compare"));
    CUDA_TRY(cudaMemcpyAsync(&differ, trial->differ, sizeof differ, cudaMemcpyDeviceToHost, cuda->stream));
    CUDA_TRY(cudaStreamSynchronize(cuda->stream));
    *equal = differ == 0;
    return OK;
}

// Leaves the candidates that give the canonical bits for a shape; asks for them first if there are none yet.
static status lt_filter(struct cuda_backend *cuda, const struct lt_shape *shape, cublasLtMatmulAlgo_t *candidates,
                        int *count, bool *fits) {
    struct lt_trial trial = {};
    status result;
    int kept = 0;
    TRY_TO(result, done, lt_trial_new(cuda, shape, &trial, fits));
    if (!*fits) goto done;
    if (*count < 0) {
        struct product whole = lt_product_of(shape);
        whole.bias = trial.product.bias;
        lt_candidates(cuda->lt, &whole, candidates, count);
    }
    for (int i = 0; i < *count; i++) {
        bool equal;
        TRY_TO(result, done, lt_trial_run(cuda, &trial, &candidates[i], &equal));
        if (equal) candidates[kept++] = candidates[i];
    }
    *count = kept;
done:
    (void)cudaFree(trial.memory);
    return result;
}

// ---- the classes that have been tried, and their file ----

static struct lt_class *lt_find(const struct lt *lt, const struct lt_shape *shape) {
    for (size_t i = 0; i < lt->count; i++) {
        if (memcmp(&lt->classes[i].entry.shape, shape, sizeof *shape) == 0) return &lt->classes[i];
    }
    return NULL;
}

static struct lt_class *lt_add(struct lt *lt, const struct lt_entry *entry) {
    RESIZE(&lt->classes, lt->count + 1);
    lt->classes[lt->count] = {*entry, false};
    return &lt->classes[lt->count++];
}

static uint64_t lt_check_sum(const uint64_t words[LT_ENTRY_WORDS]) {
    uint64_t sum = 0;
    for (int i = 0; i < LT_ENTRY_WORDS; i++) sum = ops_mix64(sum ^ words[i]);
    return sum;
}

// False if the line is damaged.
static bool lt_parse(const char *line, struct lt_entry *out) {
    uint64_t words[LT_ENTRY_WORDS + 1];
    for (int i = 0; i <= LT_ENTRY_WORDS; i++) {
        char *end;
        words[i] = strtoull(line, &end, 16);
        if (end == line) return false;
        line = end;
    }
    if (*line != '\n' || words[LT_ENTRY_WORDS] != lt_check_sum(words)) return false;
    memcpy(out, words, sizeof *out);
    return true;
}

static void lt_write(struct lt *lt, const struct lt_entry *entry) {
    char line[LT_MAX_LINE];
    if (!*lt->path) return;
    int fd = open(lt->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd >= 0 && !lt->current && flock(fd, LOCK_EX) == 0) { // until it is closed
        // Another process may have begun the file anew since it was read.
        ssize_t size = pread(fd, line, sizeof line, 0), length = (ssize_t)strlen(lt->version);
        lt->current = size >= length && memcmp(line, lt->version, (size_t)length) == 0;
        if (!lt->current && ftruncate(fd, 0) != 0) log_debug("cannot begin %s anew", lt->path);
    }
    uint64_t words[LT_ENTRY_WORDS + 1];
    memcpy(words, entry, sizeof *entry);
    words[LT_ENTRY_WORDS] = lt_check_sum(words);
    char *end = line;
    for (int i = 0; i <= LT_ENTRY_WORDS; i++)
        end += sprintf(end, "%llx%c", (unsigned long long)words[i], i < LT_ENTRY_WORDS ? ' ' : '\n');
    bool written = fd >= 0 && (lt->current || dprintf(fd, "%s", lt->version) > 0) && dprintf(fd, "%s", line) > 0;
    if (!written) log_debug("cannot write %s: the shapes will be tried again", lt->path);
    lt->current = written;
    if (fd >= 0) close(fd);
}

// Finds out what the entries are true for, and reads those of the file. A build of the plug-in is known by its file's
// time and size.
static status lt_read(struct lt *lt, const struct cuda_backend *cuda) {
    static const char format[] = "caravan cublaslt 1: %.256s, compute capability %d, %d processors, driver %d, "
                                 "cublaslt %zu, plug-in %lld.%09ld %lld\n";
    int driver;
    Dl_info plugin;
    struct stat file = {};
    CUDA_TRY(cudaDriverGetVersion(&driver));
    bool known = dladdr(format, &plugin) != 0 && stat(plugin.dli_fname, &file) == 0;
    snprintf(lt->version, sizeof lt->version, format, cuda->kind, cuda->compute_capability, cuda->processors, driver,
             lt->GetVersion(), (long long)file.st_mtim.tv_sec, file.st_mtim.tv_nsec, (long long)file.st_size);

    // The path stays "" if the environment names no place. The directory is made too.
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && *cache == '/';
    char dir[1000];
    if (!known || (!given && (!home || *home != '/'))) return OK;
    snprintf(dir, sizeof dir, "%s%s", given ? cache : home, given ? "" : "/.cache");
    (void)mkdir(dir, 0777);
    snprintf(lt->path, sizeof lt->path, "%s/caravan", dir);
    (void)mkdir(lt->path, 0777);
    size_t size = strlen(lt->path);
    snprintf(lt->path + size, sizeof lt->path - size, "/cublaslt-%.100s", cuda->kind);
    for (char *at = lt->path + size + 1; *at; at++)
        if (!isalnum((unsigned char)*at)) *at = '-';

    FILE *kept = fopen(lt->path, "re");
    if (!kept) return OK;
    char line[LT_MAX_LINE];
    lt->current = fgets(line, sizeof line, kept) && strcmp(line, lt->version) == 0;
    while (lt->current && fgets(line, sizeof line, kept)) {
        struct lt_entry entry;
        if (lt_parse(line, &entry) && !lt_find(lt, &entry.shape)) (void)lt_add(lt, &entry);
    }
    fclose(kept);
    return OK;
}

// ---- the library ----

// The emulator cannot use NVIDIA's.
#ifdef CARAVAN_EMULATED
#define LT_FILE "libcublasLt-emulated.so"
static const char *const lt_names[] = {NULL};
#else
#define LT_FILE "libcublasLt.so.1[23]"
static const char *const lt_names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
#endif

// False if there is no such library, or the GPU's driver is too old for it; fail_text says which. What was loaded stays
// so until the program ends, as plug-ins do.
static bool lt_load(void *self, const char *path) {
    struct lt *lt = (struct lt *)self;
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

static void lt_log_admitted(const struct lt *lt) {
    int admitted = 0;
    for (size_t i = 0; i < lt->count; i++) admitted += lt->classes[i].entry.admitted != 0;
    log_info("%s: algorithms are admitted for %d of %d shapes of products so far", lt->name, admitted, (int)lt->count);
}

status lt_open(struct cuda_backend *cuda) {
    const char *given = getenv("CARAVAN_CUBLASLT");
    if (given && strcmp(given, "none") == 0) return OK;
    struct lt *lt;
    NEW(&lt, 1);
    if (!(given ? lt_load(lt, given) : cuda_find_library(lt_names, LT_FILE, lt_load, lt))) {
        free(lt);
        if (given) return UNAVAILABLE;
#ifndef CARAVAN_EMULATED
        log_info("cuBLASLt was not found (CARAVAN_CUBLASLT may name its file): matrix products are slower");
#endif
        return OK;
    }
    cuda->lt = lt;
    snprintf(lt->name, sizeof lt->name, "cuBLASLt %zu", lt->GetVersion());
    TRY(lt_read(lt, cuda));
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
    free(lt->classes);
    (void)lt->Destroy(lt->handle);
    free(lt);
    cuda->lt = NULL;
}

// ---- products ----

// Tries the algorithms for a class. *out = what is then known of it, which is kept on disk too, unless memory was too
// short to try. Waits; what it allocates is freed.
static status lt_try(struct cuda_backend *cuda, const struct lt_shape *shape, struct lt_class **out) {
    struct lt_shape trial = *shape;
    int64_t *tokens = shape->flags & LT_A_TRANSPOSED ? &trial.inner : &trial.a_outer, most = *tokens;
    const int64_t numbers[LT_TRIALS] = {most, most / 2 + 1, most - most / 4 - 3}; // both ends, and an odd one
    cublasLtMatmulAlgo_t candidates[LT_MAX_CANDIDATES];
    int count = -1; // not asked yet
    bool fits = true;
    for (int i = 0; i < LT_TRIALS && count != 0 && fits; i++) {
        *tokens = numbers[i];
        TRY(lt_filter(cuda, &trial, candidates, &count, &fits));
    }
    struct lt_entry entry = {};
    entry.shape = *shape;
    entry.admitted = fits && count > 0;
    if (entry.admitted) entry.algo = candidates[0];
    const char *result = !fits ? "memory is too short to try" : entry.admitted ? "admitted" : "other bits";
    log_debug("cuBLASLt, a product of %lld x %lld x %lld, kind %lld: %s", (long long)shape->a_outer,
              (long long)shape->b_outer, (long long)shape->inner, (long long)shape->flags, result);
    cuda->lt->tried_some = true;
    *out = lt_add(cuda->lt, &entry);
    if (fits) lt_write(cuda->lt, &entry);
    return OK;
}

// A view of device memory; `buffer` is the caller's.
static struct tensor lt_tensor_of(struct buffer *buffer, const void *data, enum element type, int64_t rows,
                                  int64_t columns, int64_t stride) {
    size_t offset = (uintptr_t)data % 16;
    *buffer = {};
    buffer->data = (unsigned char *)const_cast<void *>(data) - offset;
    return {buffer, offset, type, rows, columns, stride};
}

static status lt_copy(struct cuda_backend *cuda, void *out, int64_t out_stride, const void *in, int64_t in_stride,
                      int64_t rows, int64_t columns, enum element type) {
    struct buffer buffers[2];
    return cuda_convert(cuda, lt_tensor_of(&buffers[0], out, type, rows, columns, out_stride),
                        lt_tensor_of(&buffers[1], in, type, rows, columns, in_stride));
}

// Copies an operand to scratch memory, where its rows begin at multiples of 16 bytes; not if they do.
static status lt_align(struct cuda_backend *cuda, enum cuda_scratch_slot slot, struct operand *o) {
    if (operand_alignment(o) == 16) return OK;
    int64_t rows = o->transposed ? o->inner : o->outer, columns = o->transposed ? o->outer : o->inner;
    struct operand from = *o;
    struct bf16 *data;
    o->stride = lt_padded(columns);
    TRY(cuda_scratch(cuda, slot, (size_t)(rows * o->stride) * sizeof *data, &data));
    o->data = data;
    return lt_copy(cuda, data, o->stride, from.data, from.stride, rows, columns, ELEMENT_BF16);
}

static bool lt_out_aligned(const struct product *p) {
    return (uintptr_t)p->out % 16 == 0 && (size_t)p->out_stride * element_size(p->out_type) % 16 == 0;
}

// Runs a product whose matrices may not be aligned, on copies of those that are not.
static status lt_run_aligned(struct cuda_backend *cuda, struct product p, const cublasLtMatmulAlgo_t *algo,
                             bool *done) {
    const struct product given = p;
    int64_t rows = p.a.outer, columns = p.b.outer;
    TRY(lt_align(cuda, CUDA_SCRATCH_A, &p.a));
    TRY(lt_align(cuda, CUDA_SCRATCH_B, &p.b));
    bool apart = !lt_out_aligned(&p);
    if (apart) {
        p.out_stride = lt_padded(columns);
        TRY(cuda_scratch(cuda, CUDA_SCRATCH_OUT, (size_t)(rows * p.out_stride) * element_size(p.out_type), &p.out));
        if (p.add) TRY(lt_copy(cuda, p.out, p.out_stride, given.out, given.out_stride, rows, columns, p.out_type));
    }
    *done = lt_run(cuda, &p, algo);
    if (!*done || !apart) return OK;
    return lt_copy(cuda, given.out, given.out_stride, p.out, p.out_stride, rows, columns, p.out_type);
}

status lt_product(struct cuda_backend *cuda, const struct product *p, bool *done) {
    struct lt *lt = cuda->lt;
    *done = false;
    if (!lt) return OK;

    // cuBLASLt is asked for products of some tokens, with a bias of the output's type, and aligned throughout or so
    // large that copies are worth while.
    bool aligned = operand_alignment(&p->a) == 16 && operand_alignment(&p->b) == 16 && lt_out_aligned(p);
    if ((p->a.transposed ? p->a.inner : p->a.outer) < LT_MIN_TOKENS) return OK;
    if (p->bias && (p->bias_type != p->out_type || (uintptr_t)p->bias % 16 != 0)) return OK;
    if (!aligned &&
        (cuda->recording || p->a.outer < LT_MIN_COPIED || p->b.outer < LT_MIN_COPIED || p->a.inner < LT_MIN_COPIED))
        return OK;

    struct lt_shape shape = {p->a.outer, p->b.outer, p->a.inner,
                             (p->a.transposed ? LT_A_TRANSPOSED : 0) | (p->b.transposed ? LT_B_TRANSPOSED : 0) |
                                 (p->out_type == ELEMENT_F32 ? LT_OUT_F32 : 0) | (p->bias ? LT_BIAS : 0) |
                                 (p->add ? LT_ADD : 0)};
    int64_t *tokens = p->a.transposed ? &shape.inner : &shape.a_outer, most = 1;
    while (most < *tokens) most *= 2;
    *tokens = most;
    struct lt_class *known = lt_find(lt, &shape);
    if (cuda->recording && (!known || !known->loaded)) return OK;
    if (!known) TRY(lt_try(cuda, &shape, &known));
    if (!known->entry.admitted) return OK;
    TRY(lt_run_aligned(cuda, *p, &known->entry.algo, done));
    known->loaded = *done;
    return OK;
}
