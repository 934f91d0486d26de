// CUDA's runtime API on the host's memory: devices, memory, streams, events and graphs.
//
// A stream is a queue of closures. On a device with late streams they run when somebody waits, so that a copy which
// reads pinned memory too late, or a missing wait, shows. Copies check that the device's side is the device's memory.
// Some work is done by others, and a stream waits for it.
#include "emulate_internal.h"
#include "emulated.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unistd.h>
#include <vector>

using closure = std::function<void()>;

struct emulated_graph {
    std::vector<closure> work;
    std::thread::id recorder;
    bool refused; // something was called that cannot be recorded
};

struct emulated_graph_exec {
    std::vector<closure> work;
};

// Work of a stream.
struct emulated_work {
    closure run;
    std::function<bool()> ready; // whether it can run now; none: at any time
};

struct emulated_stream {
    const struct emulate::device *device;
    std::deque<struct emulated_work> work;
    struct emulated_graph *recorded; // NULL: not recording
};

struct emulated_event {
    cudaStream_t stream; // NULL: never recorded
    int64_t waiting;     // records that have not been reached yet
};

extern "C" __attribute__((visibility("default"))) struct emulated_memory emulated_memory;
struct emulated_memory emulated_memory;
extern "C" __attribute__((visibility("default"))) struct emulated_kernel *emulated_kernels;
struct emulated_kernel *emulated_kernels;

namespace {

// Memory that processes share.
struct shared_memory {
    struct emulate::shared_name name;
    int held;   // of emulate::capacity_share
    int opened; // times, by this process
};

// The harness opens each kind of them as a version.
const struct emulate::device devices[] = {
    {"emulated, sm_90", 9, 0, 227 << 10, false, false, false, 16, 25},
    {"emulated, sm_90, shuffled", 9, 0, 227 << 10, true, false, true, 16, 25},
    {"emulated, sm_90, shuffled, early copies", 9, 0, 227 << 10, true, true, true, 16, 25},
    {"emulated, sm_80", 8, 0, 163 << 10, false, false, false, 8, 24},
    {"emulated, sm_90", 9, 0, 227 << 10, false, false, false, 16, 25}, // as the first: the second GPU of a machine
};

enum { device_count = sizeof devices / sizeof *devices, processors = 4 };

std::recursive_mutex lock; // of all below
std::set<cudaStream_t> streams;
std::map<const char *, size_t> device_memory, pinned_memory; // by address: bytes
std::map<const char *, struct shared_memory> exported;       // of device_memory
std::map<const char *, struct shared_memory> imported;       // memory of other processes
thread_local int current_device;
thread_local cudaError_t last_error = cudaSuccess;

using guard = std::lock_guard<std::recursive_mutex>;

cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

// Whether this thread records a stream, and so may not allocate or wait. What it has recorded is then lost.
bool refused_while_recording() {
    bool refused = false;
    for (cudaStream_t stream : streams) {
        if (!stream->recorded || stream->recorded->recorder != std::this_thread::get_id()) continue;
        refused = stream->recorded->refused = true;
    }
    return refused;
}

// Whether the machine does not let processes export memory, or import it.
bool ipc_lacks(const char *what) {
    const char *set = getenv("CARAVAN_EMULATED_IPC_LACKS");
    return set && strcmp(set, what) == 0;
}

cudaError_t error_of_wait() {
    const char *set = getenv("CARAVAN_EMULATED_ERROR");
    return set ? static_cast<cudaError_t>(atoi(set)) : cudaSuccess;
}

[[noreturn]] void runtime_misuse(const char *what, const void *address, size_t bytes) {
    fprintf(stderr, "emulate: %s: %p, %zu bytes\n", what, address, bytes);
    abort();
}

bool lies_in(const std::map<const char *, size_t> &memory, const void *address, size_t bytes) {
    const char *begin = static_cast<const char *>(address);
    auto behind = memory.upper_bound(begin);
    if (behind == memory.begin()) return false;
    auto own = std::prev(behind);
    return begin + bytes <= own->first + own->second;
}

// Whether the device may use the bytes.
bool on_device(const void *address, size_t bytes) {
    const char *begin = static_cast<const char *>(address);
    if (lies_in(device_memory, begin, bytes)) return true;
    auto behind = imported.upper_bound(begin);
    if (behind == imported.begin()) return false;
    auto own = std::prev(behind);
    return begin + bytes <= own->first + own->second.name.bytes;
}

// False when the work of others is not done.
bool run_next(cudaStream_t stream) {
    if (stream->work.front().ready && !stream->work.front().ready()) return false;
    closure run = std::move(stream->work.front().run);
    stream->work.pop_front();
    run();
    return true;
}

// Runs what can run now.
void run_ready(cudaStream_t stream) {
    while (!stream->work.empty() && run_next(stream)) {
    }
}

// Lets the threads of others work, which may need the lock. It is held once.
void let_others_work() {
    lock.unlock();
    usleep(100);
    lock.lock();
}

void run_all(cudaStream_t stream) {
    while (!stream->work.empty())
        if (!run_next(stream)) let_others_work();
}

void run_all_streams() {
    for (cudaStream_t stream : streams) run_ready(stream);
}

cudaError_t put(cudaStream_t stream, closure work, std::function<bool()> ready = nullptr) {
    guard held(lock);
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    if (stream->recorded) {
        if (stream->recorded->refused || ready) return result(cudaErrorStreamCaptureInvalidated);
        stream->recorded->work.push_back(std::move(work));
        return cudaSuccess;
    }
    stream->work.push_back({std::move(work), std::move(ready)});
    if (!stream->device->streams_late) run_ready(stream);
    return cudaSuccess;
}

struct rows {
    char *out;
    const char *in;
    size_t out_pitch, in_pitch, width, height;
};

void copy_rows(const struct rows &r) {
    for (size_t i = 0; i < r.height; i++) memmove(r.out + i * r.out_pitch, r.in + i * r.in_pitch, r.width);
}

size_t extent(size_t pitch, const struct rows &r) {
    return r.height ? (r.height - 1) * pitch + r.width : 0;
}

cudaError_t copy_from_host(struct rows r, cudaStream_t stream) {
    if (lies_in(pinned_memory, r.in, extent(r.in_pitch, r))) return put(stream, [r] { copy_rows(r); });
    if (stream->recorded) runtime_misuse("a recorded copy of memory that is not pinned", r.in, r.width);
    std::vector<char> values(extent(r.in_pitch, r));
    if (!values.empty()) memcpy(values.data(), r.in, values.size());
    return put(stream, [r, values = std::move(values)] {
        struct rows from_values = r;
        from_values.in = values.data();
        copy_rows(from_values);
    });
}

cudaError_t copy_to_host(struct rows r, cudaStream_t stream) {
    bool pinned = lies_in(pinned_memory, r.out, extent(r.out_pitch, r));
    if (!pinned && stream->recorded) runtime_misuse("a recorded copy to memory that is not pinned", r.out, r.width);
    cudaError_t error = put(stream, [r] { copy_rows(r); });
    if (!pinned && error == cudaSuccess) run_all(stream);
    return error;
}

} // namespace

emulate::kernel_record::kernel_record(const char *signature) : seen(), name(strstr(signature, " = ") + 3) {
    name.pop_back(); // the bracket
    seen = {name.c_str(), false, false, emulated_kernels};
    emulated_kernels = &seen;
}

void emulate::launch(kernel_record *record, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                     std::function<void()> kernel) {
    guard held(lock);
    if (!streams.count(stream)) {
        result(cudaErrorInvalidResourceHandle);
        return;
    }
    const struct device *device = stream->device;
    bool fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= INT32_MAX && grid.y <= 65535 && grid.z <= 65535 &&
                block.x > 0 && block.x <= 1024 && block.y == 1 && block.z == 1;
    if (!fits || shared_bytes > device->shared_bytes) {
        result(fits ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration);
        return;
    }
    if (stream->recorded && !record->seen.loaded) {
        stream->recorded->refused = true;
        result(cudaErrorStreamCaptureUnsupported);
        return;
    }
    record->seen.loaded = true;
    if (emulated_memory.sizes_only) return;
    record->seen.launched = true;
    put(stream, [=, kernel = std::move(kernel)] {
        run_grid(*device, record->name.c_str(), grid, block, shared_bytes, kernel);
    });
}

bool emulate::put_engine(cudaStream_t stream, std::function<void()> begin, std::function<bool()> ended) {
    guard held(lock);
    if (!streams.count(stream) || stream->recorded) return false;
    put(stream, std::move(begin));
    put(
        stream, [] {}, std::move(ended));
    run_ready(stream);
    return true;
}

bool emulate::is_device_memory(const void *address, size_t bytes) {
    guard held(lock);
    return on_device(address, bytes);
}

// ---- devices and errors ----

cudaError_t cudaGetDeviceCount(int *count) {
    int driver;
    cudaDriverGetVersion(&driver);
    if (driver < CUDART_VERSION) return result(cudaErrorInsufficientDriver);
    *count = device_count;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    const char *set = getenv("CARAVAN_EMULATED_DRIVER");
    *version = set ? atoi(set) : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count) return result(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int number) {
    if (number < 0 || number >= device_count) return result(cudaErrorInvalidDevice);
    const struct emulate::device *device = &devices[number];
    *out = {};
    snprintf(out->name, sizeof out->name, "%s", device->name);
    snprintf(out->uuid.bytes, sizeof out->uuid.bytes, "emulated %d", number);
    out->totalGlobalMem = (size_t)8 << 30;
    out->sharedMemPerBlockOptin = device->shared_bytes;
    out->major = device->major;
    out->minor = device->minor;
    out->multiProcessorCount = processors;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    guard held(lock);
    size_t used = emulated_memory.used;
    *total_bytes = (size_t)8 << 30;
    *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
    emulate::capacity_info(free_bytes, total_bytes);
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    static const std::map<cudaError_t, const char *> texts = {
        {cudaSuccess, "no error"},
        {cudaErrorInvalidValue, "invalid argument"},
        {cudaErrorMemoryAllocation, "out of memory"},
        {cudaErrorInvalidConfiguration, "invalid configuration argument"},
        {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
        {cudaErrorInvalidDevice, "invalid device ordinal"},
        {cudaErrorDeviceUninitialized, "invalid device context"},
        {cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"},
        {cudaErrorInvalidResourceHandle, "invalid resource handle"},
        {cudaErrorNotReady, "device not ready"},
        {cudaErrorNotSupported, "operation not supported"},
        {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
        {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"}};
    auto known = texts.find(error);
    return known == texts.end() ? "an error that the emulator does not make" : known->second;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

// ---- memory ----

cudaError_t cudaMalloc(void **out, size_t bytes) {
    guard held(lock);
    *out = nullptr;
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    if (bytes == 0) return cudaSuccess;
    if (!emulate::capacity_take(bytes)) return result(cudaErrorMemoryAllocation);
    *out = emulate::pages_new(bytes);
    if (!*out) emulate::capacity_return(bytes);
    if (!*out) return result(cudaErrorMemoryAllocation);
    memset(*out, 0xff, bytes);
    device_memory[static_cast<const char *>(*out)] = bytes;
    emulated_memory.used += bytes;
    if (emulated_memory.used > emulated_memory.peak) emulated_memory.peak = emulated_memory.used;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    guard held(lock);
    if (!memory) return cudaSuccess;
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    run_all_streams();
    auto own = device_memory.find(static_cast<const char *>(memory));
    if (own == device_memory.end()) runtime_misuse("freed what was not allocated", memory, 0);
    if (exported.count(own->first)) runtime_misuse("freed what other processes may use", memory, own->second);
    emulate::capacity_return(own->second);
    emulate::pages_free(memory, own->second);
    emulated_memory.used -= own->second;
    device_memory.erase(own);
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *memory) {
    guard held(lock);
    auto own = device_memory.find(static_cast<const char *>(memory));
    if (own == device_memory.end()) return result(cudaErrorInvalidValue);
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    if (ipc_lacks("export")) return result(cudaErrorNotSupported);
    struct emulate::shared_name name;
    auto shared = exported.find(own->first);
    if (shared != exported.end()) {
        name = shared->second.name;
    } else {
        if (!emulate::pages_share(memory, own->second, &name)) return result(cudaErrorMemoryAllocation);
        exported[own->first] = {name, emulate::capacity_share(&name), 0};
    }
    *out = {};
    static_assert(sizeof name <= sizeof out->reserved, "a handle is a name");
    memcpy(out->reserved, &name, sizeof name);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    guard held(lock);
    *out = nullptr;
    struct emulate::shared_name name;
    memcpy(&name, handle.reserved, sizeof name);
    if (flags != cudaIpcMemLazyEnablePeerAccess) return result(cudaErrorInvalidValue);
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    if (name.process == getpid()) return result(cudaErrorDeviceUninitialized);
    for (auto &other : imported) {
        if (other.second.name.inode != name.inode) continue;
        other.second.opened++;
        *out = const_cast<char *>(other.first);
        return cudaSuccess;
    }
    if (!ipc_lacks("import")) *out = emulate::shared_map(&name);
    if (!*out) return result(cudaErrorMapBufferObjectFailed);
    imported[static_cast<const char *>(*out)] = {name, emulate::capacity_share(&name), 1};
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *memory) {
    guard held(lock);
    auto own = imported.find(static_cast<const char *>(memory));
    if (own == imported.end()) return result(cudaErrorInvalidValue);
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    if (--own->second.opened) return cudaSuccess;
    emulate::shared_unmap(memory, &own->second.name);
    emulate::capacity_unshare(own->second.held);
    imported.erase(own);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    guard held(lock);
    *out = nullptr;
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    if (bytes == 0) return cudaSuccess;
    if (posix_memalign(out, 256, bytes) != 0) return result(cudaErrorMemoryAllocation);
    memset(*out, 0xff, bytes);
    pinned_memory[static_cast<const char *>(*out)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory) {
    guard held(lock);
    if (!memory) return cudaSuccess;
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    run_all_streams();
    if (pinned_memory.erase(static_cast<const char *>(memory)) != 1)
        runtime_misuse("freed what was not allocated", memory, 0);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *out, size_t out_pitch, const void *in, size_t in_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    guard held(lock);
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    if (height > 1 && (out_pitch < width || in_pitch < width)) return result(cudaErrorInvalidValue);
    struct rows r = {static_cast<char *>(out), static_cast<const char *>(in), out_pitch, in_pitch, width, height};
    if (width == 0 || height == 0) return cudaSuccess;
    if (kind != cudaMemcpyDeviceToHost && !on_device(out, extent(out_pitch, r)))
        runtime_misuse("a copy to what is not the device's memory", out, extent(out_pitch, r));
    if (kind != cudaMemcpyHostToDevice && !on_device(in, extent(in_pitch, r)))
        runtime_misuse("a copy of what is not the device's memory", in, extent(in_pitch, r));
    if (kind == cudaMemcpyHostToDevice) return copy_from_host(r, stream);
    if (kind == cudaMemcpyDeviceToHost) return copy_to_host(r, stream);
    return put(stream, [r] { copy_rows(r); });
}

cudaError_t cudaMemcpyAsync(void *out, const void *in, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy2DAsync(out, bytes, in, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemset2DAsync(void *out, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    guard held(lock);
    struct rows r = {static_cast<char *>(out), nullptr, pitch, 0, width, height};
    if (width == 0 || height == 0) return cudaSuccess;
    if (height > 1 && pitch < width) return result(cudaErrorInvalidValue);
    if (!on_device(out, extent(pitch, r)))
        runtime_misuse("a memset of what is not the device's memory", out, extent(pitch, r));
    return put(stream, [r, value] {
        for (size_t i = 0; i < r.height; i++) memset(r.out + i * r.out_pitch, value, r.width);
    });
}

cudaError_t cudaMemsetAsync(void *out, int value, size_t bytes, cudaStream_t stream) {
    return cudaMemset2DAsync(out, bytes, value, bytes, 1, stream);
}

// ---- streams and events ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    guard held(lock);
    (void)flags;
    *out = new emulated_stream{&devices[current_device], {}, nullptr};
    streams.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    guard held(lock);
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    run_all(stream);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    guard held(lock);
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    run_all(stream);
    return result(error_of_wait());
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    (void)flags;
    *out = new emulated_event{};
    return cudaSuccess;
}

// What has been put into the stream goes on without the event.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    guard held(lock);
    if (event->waiting) run_all(event->stream);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    guard held(lock);
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    if (event->waiting && event->stream != stream) run_all(event->stream);
    event->stream = stream;
    event->waiting++;
    return put(stream, [event] { event->waiting--; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    guard held(lock);
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    while (event->waiting)
        if (!run_next(event->stream)) let_others_work();
    return result(error_of_wait());
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    guard held(lock);
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    while (event->waiting && run_next(event->stream)) {
    }
    return result(event->waiting ? cudaErrorNotReady : error_of_wait());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    guard held(lock);
    (void)flags;
    if (refused_while_recording()) return result(cudaErrorStreamCaptureUnsupported);
    if (event->stream == stream) return cudaSuccess;
    return put(
        stream, [] {},
        [event] {
            while (event->waiting && run_next(event->stream)) {
            }
            return event->waiting == 0;
        });
}

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    guard held(lock);
    (void)mode;
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    if (stream->recorded) return result(cudaErrorStreamCaptureUnsupported);
    stream->recorded = new emulated_graph{{}, std::this_thread::get_id(), false};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    guard held(lock);
    *out = nullptr;
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    if (!stream->recorded) return result(cudaErrorInvalidValue);
    struct emulated_graph *recorded = stream->recorded;
    stream->recorded = nullptr;
    if (!recorded->refused) {
        *out = recorded;
        return cudaSuccess;
    }
    delete recorded;
    return result(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    *out = new emulated_graph_exec{graph->work};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    guard held(lock);
    if (!streams.count(stream)) return result(cudaErrorInvalidResourceHandle);
    for (const closure &work : graph->work) {
        cudaError_t error = put(stream, work);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete graph;
    return cudaSuccess;
}
