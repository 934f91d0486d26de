// What every operation uses: the current device, errors of the runtime and of kernels, and scratch memory. This file
// has no operation.
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

// The runtime's current device belongs to a thread.
struct cuda_backend *cuda_of(struct backend *backend) {
    static _Thread_local int current = -1;
    struct cuda_backend *cuda = (struct cuda_backend *)backend;
    if (current != cuda->device && cudaSetDevice(cuda->device) == cudaSuccess) current = cuda->device;
    return cuda;
}

// ---- errors ----

#undef cuda_failed // cuda.h defines it for the static analyzer
status cuda_failed(cudaError_t error, const char *expression) {
    static const cudaError_t bugs[] = {cudaErrorInvalidValue,
                                       cudaErrorInvalidConfiguration,
                                       cudaErrorInvalidDeviceFunction,
                                       cudaErrorInvalidResourceHandle,
                                       cudaErrorIllegalAddress,
                                       cudaErrorHardwareStackError,
                                       cudaErrorIllegalInstruction,
                                       cudaErrorMisalignedAddress,
                                       cudaErrorInvalidAddressSpace,
                                       cudaErrorInvalidPc,
                                       cudaErrorLaunchFailure,
                                       cudaErrorStreamCaptureUnsupported,
                                       cudaErrorStreamCaptureInvalidated};
    (void)cudaGetLastError(); // it is reported here, and not by the next launch too
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        if (error == bugs[i]) return fail(BUG, "%s: %s", expression, cudaGetErrorString(error));
    return fail(UNAVAILABLE, DEVICE_NAME ": %s", cudaGetErrorString(error));
}

status cuda_launched(const char *operation) {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? OK : cuda_failed(error, operation);
}

// ---- scratch memory ----

void cuda_scratch_free_outgrown(struct cuda_backend *cuda) {
    for (size_t i = 0; i < cuda->outgrown_count; i++) (void)cudaFree(cuda->outgrown[i]);
    free(cuda->outgrown);
    cuda->outgrown = NULL;
    cuda->outgrown_count = 0;
}

status cuda_scratch(struct cuda_backend *cuda, enum cuda_scratch_slot slot, size_t bytes, void *out) {
    struct buffer *scratch = &cuda->scratch[slot];
    if (scratch->bytes < bytes) {
        if (cuda->recording) return fail(BUG, "scratch memory %d grows while a graph is recorded", (int)slot);
        if (cuda->graphs && scratch->data) { // which may use it
            RESIZE(&cuda->outgrown, cuda->outgrown_count + 1);
            cuda->outgrown[cuda->outgrown_count++] = scratch->data;
        } else {
            CUDA_TRY(cudaFree(scratch->data));
        }
        *scratch = (struct buffer){0};
        CUDA_TRY(cudaMalloc((void **)&scratch->data, bytes));
        scratch->bytes = bytes;
    }
    memcpy(out, &scratch->data, sizeof scratch->data);
    return OK;
}

status cuda_scratch_tensor(struct cuda_backend *cuda, enum cuda_scratch_slot slot, enum element type, int64_t rows,
                           int64_t columns, struct tensor *out) {
    unsigned char *data;
    *out = (struct tensor){&cuda->scratch[slot], 0, type, rows, columns, columns};
    return cuda_scratch(cuda, slot, (size_t)(rows * columns) * element_size(type), &data);
}
