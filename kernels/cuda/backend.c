// Opening and closing a GPU, and the table of operations.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/products.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"

enum { MIN_COMPUTE_CAPABILITY = 80 }; // bfloat16 products and asynchronous copies

static void backend_close_cuda(struct backend *backend) {
    struct cuda_backend *cuda = cuda_of(backend);
    if (cuda->stream) (void)cudaStreamSynchronize(cuda->stream);
    for (int slot = 0; slot < CUDA_SCRATCH_SLOTS; slot++) (void)cudaFree(cuda->scratch[slot].data);
    cuda_scratch_free_outgrown(cuda);
    lt_close(cuda);
    free(cuda->nccl);
    (void)cudaFree(cuda->reports);
    cuda_staging_free(&cuda->staging);
    if (cuda->stream) (void)cudaStreamDestroy(cuda->stream);
    free(cuda);
}

static status backend_supports_type(struct backend *backend, enum element type) {
    (void)backend;
    if (type == ELEMENT_F32 || type == ELEMENT_BF16) return OK;
    return fail(UNAVAILABLE, DEVICE_NAME ": products are computed in float32 or bfloat16 only");
}

// Passes are not divided: short kernels would leave a GPU idle.
static status backend_info_cuda(struct backend *backend, struct backend_info *out) {
    const struct cuda_backend *cuda = cuda_of(backend);
    size_t available, total;
    CUDA_TRY(cudaMemGetInfo(&available, &total));
    *out = (struct backend_info){.device = cuda->name,
                                 .kind = cuda->kind,
                                 .product_library = lt_name(cuda),
                                 .asynchronous = true,
                                 .rounds_products = true,
                                 .chunk_rows = {INT64_MAX, INT64_MAX},
                                 .chunk_patches = INT64_MAX,
                                 .memory = total,
                                 .memory_free = available};
    return OK;
}

#define ENTRY(name) .name = cuda_##name,
static const struct operations backend_operations = {.name = DEVICE_NAME,
                                                     .close = backend_close_cuda,
                                                     .supports = backend_supports_type,
                                                     .info = backend_info_cuda,
                                                     CUDA_OPERATIONS(ENTRY)};

// Sets up what the stream needs on the device that `cuda` names; the caller closes the backend also when this fails.
static status backend_start(struct cuda_backend *cuda) {
    CUDA_TRY(cudaSetDevice(cuda->device));
    CUDA_TRY(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaMalloc((void **)&cuda->reports, sizeof *cuda->reports));
    CUDA_TRY(cudaMemsetAsync(cuda->reports, 0, sizeof *cuda->reports, cuda->stream));
    TRY(cuda_staging_new(&cuda->staging));
    return lt_open(cuda);
}

static status backend_open_cuda(struct backend **out, const struct backend_options *options, int number) {
    (void)options; // a GPU has no threads to choose
    *out = NULL;
    int count = 0, driver = 0; // the driver's version stays so without one
    const int major = CUDART_VERSION / 1000;
    const char *newer = major == 13 ? ", driver 580 or newer" : "";
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) { // one of the same major version is enough
        (void)cudaDriverGetVersion(&driver);
        if (!driver)
            return fail(UNAVAILABLE, "device " DEVICE_NAME ": there is no driver for a GPU; CUDA %d.0%s, is needed",
                        major, newer);
        return fail(UNAVAILABLE, "device " DEVICE_NAME ": the driver is for CUDA %d.%d; %d.0%s, is needed",
                    driver / 1000, driver % 1000 / 10, major, newer);
    }
    if (error != cudaSuccess) return fail(UNAVAILABLE, "device " DEVICE_NAME ": %s", cudaGetErrorString(error));
    if (number < 0) number = 0;
    if (number >= count) return fail(UNAVAILABLE, "device " DEVICE_NAME ":%d: there are %d devices", number, count);
    struct cudaDeviceProp properties;
    CUDA_TRY(cudaGetDeviceProperties(&properties, number));
    if (properties.major * 10 + properties.minor < MIN_COMPUTE_CAPABILITY)
        return fail(UNAVAILABLE, "%s has compute capability %d.%d: 8.0 or more is needed", properties.name,
                    properties.major, properties.minor);
    struct cuda_backend *cuda;
    NEW(&cuda, 1);
    cuda->base.ops = &backend_operations;
    cuda->device = number;
    cuda->compute_capability = properties.major * 10 + properties.minor;
    cuda->processors = properties.multiProcessorCount;
    cuda->uuid = properties.uuid;
    snprintf(cuda->name, sizeof cuda->name, DEVICE_NAME ":%d", number);
    snprintf(cuda->kind, sizeof cuda->kind, "%s", properties.name);
    status result = backend_start(cuda);
    if (result == OK) {
        log_debug("using %s", cuda->kind);
        *out = &cuda->base;
    } else {
        backend_close_cuda(&cuda->base);
    }
    return result;
}

// The one symbol that is seen from outside.
extern const struct plugin caravan_plugin;
__attribute__((visibility("default"))) const struct plugin caravan_plugin = {
    .version = CARAVAN_VERSION, .operations_bytes = sizeof(struct operations), .open = backend_open_cuda};
