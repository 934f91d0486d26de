// The part of CUDA's runtime API that kernels/cuda uses, under its own names, on the memory of the host (runtime.cpp).
// The emulated build takes this header in place of the toolkit's, which it does not need.
//
// The environment makes the machine a worse one:
// - CARAVAN_EMULATED_DRIVER is the version of CUDA that the driver supports (12040 for 12.4; 0: there is no driver).
// - CARAVAN_EMULATED_ERROR is the number of the error that every wait for a stream or an event returns.
// - CARAVAN_EMULATED_MEMORY is BYTES:DIRECTORY: all processes that name this directory, which exists, have so much
//   memory together. What one of them has imported is taken until it lets go of it, whatever becomes of the exporter.
// - CARAVAN_EMULATED_NCCL is said in nccl.cpp.
// - CARAVAN_EMULATED_IPC_LACKS is `export` where no memory can be exported (as under WSL), or `import` where what
//   others have exported cannot be opened (as from another container).
//
// On some devices (emulate_devices in emulate.cpp) what is put into a stream runs at once, on others only when somebody
// waits for it or asks, as late as CUDA allows.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDART_VERSION 13000

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorMapBufferObjectFailed = 205,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorHardwareStackError = 714,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorInvalidAddressSpace = 717,
    cudaErrorInvalidPc = 718,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
} cudaError_t;

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventBlockingSync = 1 };
enum { cudaIpcMemLazyEnablePeerAccess = 1 };

typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_graph_exec *cudaGraphExec_t;

typedef struct cudaUUID {
    char bytes[16];
} cudaUUID_t;

typedef struct cudaIpcMemHandle {
    char reserved[64];
} cudaIpcMemHandle_t;

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    size_t sharedMemPerBlockOptin;
    int major, minor;
    int multiProcessorCount;
};

// Each function does what CUDA's documentation says of it. cudaErrorInsufficientDriver.
cudaError_t cudaGetDeviceCount(int *count);
// ... of CUDA that the driver supports; 0 without a driver.
cudaError_t cudaDriverGetVersion(int *version);
// ... makes `device` the calling thread's.
cudaError_t cudaSetDevice(int device);
// ... of a device.
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
// ... of the calling thread's device.
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
// The text of an error.
const char *cudaGetErrorString(cudaError_t error);
// The last error, which is then forgotten.
cudaError_t cudaGetLastError(void);

// Memory of the device: filled with NaN, aligned to 256. It may not be read by host code.
cudaError_t cudaMalloc(void **out, size_t bytes);
// Waits for all streams, but not for what other processes do. NULL is fine. Memory that has a handle
// (cudaIpcGetMemHandle) is a mistake, since CUDA does not say what becomes of those who have opened it.
cudaError_t cudaFree(void *memory);
// A name under which another process can map an allocation of cudaMalloc; `memory` is its first byte.
// cudaErrorNotSupported.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *memory);
// The memory of another process, under the same address for each handle of it. cudaErrorDeviceUninitialized for the
// process's own memory, cudaErrorMapBufferObjectFailed when the memory is gone.
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags);
// Once for each time that it was opened. Does not wait.
cudaError_t cudaIpcCloseMemHandle(void *memory);
// Pinned memory of the host.
cudaError_t cudaMallocHost(void **out, size_t bytes);
// Waits for all streams. NULL is fine.
cudaError_t cudaFreeHost(void *memory);
// Copies of pageable host memory are done when the call returns.
cudaError_t cudaMemcpyAsync(void *out, const void *in, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
// The same, of rows.
cudaError_t cudaMemcpy2DAsync(void *out, size_t out_pitch, const void *in, size_t in_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream);
// Sets bytes.
cudaError_t cudaMemsetAsync(void *out, int value, size_t bytes, cudaStream_t stream);
// The same, of rows.
cudaError_t cudaMemset2DAsync(void *out, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream);

// A queue of work.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
// Waits for the stream first.
cudaError_t cudaStreamDestroy(cudaStream_t stream);
// Waits for the stream.
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
// The stream's later work waits for the event.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

// A point in a stream.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
// NULL is not fine.
cudaError_t cudaEventDestroy(cudaEvent_t event);
// The point behind all work of the stream so far.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
// Waits for the work before the point.
cudaError_t cudaEventSynchronize(cudaEvent_t event);
// cudaErrorNotReady while the work before the point is not done.
cudaError_t cudaEventQuery(cudaEvent_t event);

// From now on the stream's work is recorded and does not run. Allocating, freeing, waiting, events and the first launch
// of a kernel that is not loaded are errors of the calling thread meanwhile, after which nothing more is recorded. CUDA
// would record events, and may be able to load a kernel.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
// The recorded work. cudaErrorStreamCaptureInvalidated, and NULL, after one of those errors.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
// The recorded work, ready to run; independent of `graph` from then on.
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
// Puts the recorded work into the stream.
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
// Frees a graph.
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
// Frees a graph.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);

#ifdef __cplusplus
}
#endif
