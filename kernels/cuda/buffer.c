// Buffers, and copies between the host, tensors and types.
//
// Uploads go through a ring of pinned memory: the host's values are copied into it, and the GPU fetches them from there
// in its own time, so that an upload does not wait. Downloads go through two halves of pinned memory: the host empties
// one while the GPU fills the other.
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

enum {
    RING_BYTES = 16 << 20,
    PIECE_BYTES = 4 << 20, // at most, of an upload or a download
    RING_PIECES = 64,      // that the GPU has not fetched yet, at most
    PINNED_ALIGNMENT = 256,
};

// A piece of an upload, in the ring.
struct staged_piece {
    size_t begin, end;
    cudaEvent_t fetched;
};

struct cuda_staging {
    unsigned char *ring;
    struct staged_piece pieces[RING_PIECES]; // a queue: the oldest is pieces[first]
    int first, count;
    size_t next;            // where the next piece begins in the ring
    unsigned char *landing; // two pieces of a download
    cudaEvent_t landed[2];
    cudaEvent_t done;  // of cuda_wait
    uint32_t *reports; // the host's copy
};

// ---- staging memory ----

void cuda_staging_free(struct cuda_staging **pointer) {
    struct cuda_staging *staging = *pointer;
    if (!staging) return;
    for (int i = 0; i < RING_PIECES; i++)
        if (staging->pieces[i].fetched) (void)cudaEventDestroy(staging->pieces[i].fetched);
    for (int i = 0; i < 2; i++)
        if (staging->landed[i]) (void)cudaEventDestroy(staging->landed[i]);
    if (staging->done) (void)cudaEventDestroy(staging->done);
    (void)cudaFreeHost(staging->ring);
    (void)cudaFreeHost(staging->landing);
    (void)cudaFreeHost(staging->reports);
    free(staging);
    *pointer = NULL;
}

// An event whose waiters leave the processor to others, such as decoders of clips. Only a decoding step, which is over
// at once, is waited for by asking again and again.
static status buffer_event_new(cudaEvent_t *out) {
    CUDA_TRY(cudaEventCreateWithFlags(out, cudaEventDisableTiming | cudaEventBlockingSync));
    return OK;
}

status cuda_staging_new(struct cuda_staging **out) {
    NEW(out, 1);
    struct cuda_staging *staging = *out;
    CUDA_TRY(cudaMallocHost((void **)&staging->ring, RING_BYTES));
    CUDA_TRY(cudaMallocHost((void **)&staging->landing, (size_t)2 * PIECE_BYTES));
    CUDA_TRY(cudaMallocHost((void **)&staging->reports, sizeof *staging->reports));
    for (int i = 0; i < RING_PIECES; i++) TRY(buffer_event_new(&staging->pieces[i].fetched));
    for (int i = 0; i < 2; i++) TRY(buffer_event_new(&staging->landed[i]));
    return buffer_event_new(&staging->done);
}

// Whether the GPU has not fetched a piece yet that has bytes in common with [begin, end) of the ring.
static bool buffer_overlaps(const struct cuda_staging *staging, size_t begin, size_t end) {
    for (int i = 0; i < staging->count; i++) {
        const struct staged_piece *piece = &staging->pieces[(staging->first + i) % RING_PIECES];
        if (begin < piece->end && piece->begin < end) return true;
    }
    return false;
}

// ---- buffers ----

status cuda_buffer_new(struct backend *backend, size_t bytes, struct buffer **out) {
    struct cuda_backend *cuda = cuda_of(backend);
    *out = NULL;
    unsigned char *data = NULL;
    cudaError_t error = cudaMalloc((void **)&data, bytes ? bytes : PINNED_ALIGNMENT);
    if (error == cudaSuccess) error = cudaMemsetAsync(data, 0, bytes, cuda->stream);
    if (error == cudaSuccess) {
        NEW(out, 1);
        **out = (struct buffer){.data = data, .bytes = bytes};
        return OK;
    }
    (void)cudaFree(data);
    if (error != cudaErrorMemoryAllocation) return cuda_failed(error, "buffer_new");
    (void)cudaGetLastError();
    return fail(UNAVAILABLE, "out of memory: cannot allocate %zu bytes of the GPU for tensors", bytes);
}

void cuda_buffer_free(struct backend *backend, struct buffer **pointer) {
    struct buffer *buffer = *pointer;
    if (!buffer) return;
    struct cuda_backend *cuda = cuda_of(backend);
    if (buffer->imported) {
        (void)cudaStreamSynchronize(cuda->stream); // operations may still use it
        (void)cudaIpcCloseMemHandle(buffer->data);
    } else if (!buffer->exported) {   // or CUDA does not say what other processes have: the end of this one frees it
        (void)cudaFree(buffer->data); // waits for the operations that use it
    }
    free(buffer);
    *pointer = NULL;
}

// ---- buffers of other processes ----

// What a handle of ops.h holds. CUDA's handle names a whole allocation, as a buffer is one.
struct buffer_name {
    cudaIpcMemHandle_t memory;
    cudaUUID_t device;
    size_t bytes;
};
static_assert(sizeof(struct buffer_name) <= IPC_HANDLE_BYTES, "a handle has room for the name");

status cuda_buffer_export(struct backend *backend, struct buffer *buffer, unsigned char handle[IPC_HANDLE_BYTES]) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(!buffer->imported && !cuda->recording);
    struct buffer_name name = {.device = cuda->uuid, .bytes = buffer->bytes};
    CUDA_TRY(cudaIpcGetMemHandle(&name.memory, buffer->data));
    buffer->exported = true;
    memset(handle, 0, IPC_HANDLE_BYTES);
    memcpy(handle, &name, sizeof name);
    return OK;
}

status cuda_buffer_import(struct backend *backend, const unsigned char handle[IPC_HANDLE_BYTES], size_t bytes,
                          struct buffer **out) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct buffer_name name;
    unsigned char *data = NULL;
    *out = NULL;
    memcpy(&name, handle, sizeof name);
    CHECK(name.bytes == bytes && !cuda->recording);
    if (memcmp(&name.device, &cuda->uuid, sizeof name.device) != 0)
        return fail(UNAVAILABLE, "the memory of another process is on another device than %s", cuda->name);
    // A process that opens a handle again gets the same address, and closes it as often.
    cudaError_t error = cudaIpcOpenMemHandle((void **)&data, name.memory, cudaIpcMemLazyEnablePeerAccess);
    if (error == cudaSuccess) {
        NEW(out, 1);
        **out = (struct buffer){.data = data, .bytes = bytes, .imported = true};
        return OK;
    }
    (void)cudaGetLastError();
    return fail(UNAVAILABLE, "%s: the memory of another process cannot be used: %s", cuda->name,
                cudaGetErrorString(error));
}

// ---- copies ----

// A dense tensor is one long row: it is divided into pieces of any length.
static struct tensor buffer_flattened(struct tensor t) {
    return tensor_dense(t) ? tensor_reshape(t, 1, t.rows * t.columns) : t;
}

// A part of a tensor that fits in a piece: some rows, or some columns of one row.
struct tensor_part {
    struct tensor view;
    size_t host_offset; // of its first element among the dense elements
};

static struct tensor_part buffer_part(struct tensor whole, int64_t row, int64_t column, int64_t most) {
    struct tensor_part part = {.host_offset = (size_t)(row * whole.columns + column)};
    int64_t rows = whole.columns ? most / whole.columns : whole.rows;
    if (rows > 0 && column == 0) {
        part.view = tensor_rows(whole, row, rows < whole.rows - row ? rows : whole.rows - row);
    } else {
        int64_t left = whole.columns - column;
        part.view = tensor_columns(tensor_rows(whole, row, 1), column, most < left ? most : left);
    }
    return part;
}

// Moves (row, column) behind the part. False at the tensor's end.
static bool buffer_next(struct tensor whole, const struct tensor_part *part, int64_t *row, int64_t *column) {
    *column += part->view.columns;
    if (*column == whole.columns) {
        *row += part->view.rows;
        *column = 0;
    }
    return *row < whole.rows;
}

// *out = a dense tensor of the shape of `like` in scratch memory that has room for every part.
static status buffer_dense(struct cuda_backend *cuda, struct tensor like, enum element type, struct tensor *out) {
    TRY(cuda_scratch_tensor(cuda, CUDA_SCRATCH_CONVERT, ELEMENT_U8, 1, PIECE_BYTES, out));
    *out = (struct tensor){out->buffer, 0, type, like.rows, like.columns, like.columns};
    return OK;
}

// The distance of a tensor's rows in memory, in bytes.
static size_t buffer_pitch(struct tensor t) {
    return (size_t)(t.rows > 1 ? t.stride : t.columns) * element_size(t.type);
}

status cuda_upload(struct backend *backend, struct tensor out, const void *host, enum element type) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_staging *staging = cuda->staging;
    CHECK(tensor_fits(out) && elements_convertible(out.type, type) && !cuda->recording);
    if (out.rows == 0 || out.columns == 0) return OK;
    out = buffer_flattened(out);
    int64_t row = 0, column = 0, most = PIECE_BYTES / (int64_t)element_size(type);
    struct tensor_part part;
    do {
        part = buffer_part(out, row, column, most);
        struct tensor to = part.view, dense;
        size_t width = (size_t)to.columns * element_size(type), bytes = (size_t)to.rows * width;
        // The next bytes of the ring, after the GPU has fetched what was there.
        assert(bytes <= PIECE_BYTES);
        if (staging->next + bytes > RING_BYTES) staging->next = 0;
        while (staging->count == RING_PIECES || buffer_overlaps(staging, staging->next, staging->next + bytes)) {
            CUDA_TRY(cudaEventSynchronize(staging->pieces[staging->first].fetched));
            staging->first = (staging->first + 1) % RING_PIECES;
            staging->count--;
        }
        unsigned char *staged = staging->ring + staging->next;
        memcpy(staged, (const unsigned char *)host + part.host_offset * element_size(type), bytes);
        if (to.type == type) {
            CUDA_TRY(cudaMemcpy2DAsync(tensor_row(to, 0), buffer_pitch(to), staged, width, width, (size_t)to.rows,
                                       cudaMemcpyHostToDevice, cuda->stream));
        } else {
            TRY(buffer_dense(cuda, to, type, &dense));
            CUDA_TRY(cudaMemcpyAsync(tensor_row(dense, 0), staged, bytes, cudaMemcpyHostToDevice, cuda->stream));
            TRY(cuda_convert(cuda, to, dense));
        }
        // The copies from the ring are in the stream: the piece is listed.
        struct staged_piece *piece = &staging->pieces[(staging->first + staging->count) % RING_PIECES];
        piece->begin = staging->next;
        piece->end = staging->next + bytes;
        staging->next = (piece->end + PINNED_ALIGNMENT - 1) / PINNED_ALIGNMENT * PINNED_ALIGNMENT;
        staging->count++;
        CUDA_TRY(cudaEventRecord(piece->fetched, cuda->stream));
    } while (buffer_next(out, &part, &row, &column));
    return OK;
}

// Starts the copy of a part into a half of the landing memory.
static status buffer_land(struct cuda_backend *cuda, const struct tensor_part *part, enum element type, int half) {
    struct tensor in = part->view, dense;
    unsigned char *landing = cuda->staging->landing + (size_t)half * PIECE_BYTES;
    size_t width = (size_t)in.columns * element_size(type);
    if (in.type == type) {
        CUDA_TRY(cudaMemcpy2DAsync(landing, width, tensor_row(in, 0), buffer_pitch(in), width, (size_t)in.rows,
                                   cudaMemcpyDeviceToHost, cuda->stream));
    } else {
        TRY(buffer_dense(cuda, in, type, &dense));
        TRY(cuda_convert(cuda, dense, in));
        CUDA_TRY(cudaMemcpyAsync(landing, tensor_row(dense, 0), width * (size_t)in.rows, cudaMemcpyDeviceToHost,
                                 cuda->stream));
    }
    CUDA_TRY(cudaEventRecord(cuda->staging->landed[half], cuda->stream));
    return OK;
}

static status buffer_take(struct cuda_staging *staging, const struct tensor_part *part, unsigned char *host,
                          enum element type, int half) {
    CUDA_TRY(cudaEventSynchronize(staging->landed[half]));
    memcpy(host + part->host_offset * element_size(type), staging->landing + (size_t)half * PIECE_BYTES,
           (size_t)(part->view.rows * part->view.columns) * element_size(type));
    return OK;
}

status cuda_download(struct backend *backend, void *host, enum element type, struct tensor in) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_fits(in) && elements_convertible(type, in.type) && !cuda->recording);
    if (in.rows == 0 || in.columns == 0) return cuda_wait(backend);
    in = buffer_flattened(in);
    size_t larger = element_size(type) > element_size(in.type) ? element_size(type) : element_size(in.type);
    int64_t row = 0, column = 0, most = PIECE_BYTES / (int64_t)larger;
    struct tensor_part parts[2] = {buffer_part(in, row, column, most)};
    int half = 0;
    TRY(buffer_land(cuda, &parts[half], type, half));
    while (buffer_next(in, &parts[half], &row, &column)) {
        parts[!half] = buffer_part(in, row, column, most);
        TRY(buffer_land(cuda, &parts[!half], type, !half));
        TRY(buffer_take(cuda->staging, &parts[half], host, type, half));
        half = !half;
    }
    TRY(buffer_take(cuda->staging, &parts[half], host, type, half));
    return cuda_wait(backend);
}

status cuda_copy(struct backend *backend, struct tensor out, struct tensor in) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_fits(out) && tensor_fits(in) && out.rows == in.rows && out.columns == in.columns);
    return cuda_convert(cuda, out, in);
}

status cuda_zero(struct backend *backend, struct tensor out) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_fits(out));
    size_t size = element_size(out.type), width = (size_t)out.columns * size;
    if (tensor_dense(out)) {
        CUDA_TRY(cudaMemsetAsync(tensor_row(out, 0), 0, (size_t)out.rows * width, cuda->stream));
    } else {
        CUDA_TRY(
            cudaMemset2DAsync(tensor_row(out, 0), (size_t)out.stride * size, 0, width, (size_t)out.rows, cuda->stream));
    }
    return OK;
}

// ---- waiting ----

status cuda_wait(struct backend *backend) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(!cuda->recording);
    uint32_t *reports = cuda->staging->reports;
    CUDA_TRY(cudaMemcpyAsync(reports, cuda->reports, sizeof *reports, cudaMemcpyDeviceToHost, cuda->stream));
    CUDA_TRY(cudaEventRecord(cuda->staging->done, cuda->stream));
    CUDA_TRY(cudaEventSynchronize(cuda->staging->done));
    if (!*reports) return OK;
    CUDA_TRY(cudaMemsetAsync(cuda->reports, 0, sizeof *reports, cuda->stream));
    return fail(BUG, "the contents of a tensor break the contract: %s",
                *reports & CUDA_REPORT_INDEX    ? "an index is outside its table"
                : *reports & CUDA_REPORT_SLOT   ? "a cache slot is outside the cache"
                : *reports & CUDA_REPORT_TARGET ? "a target is outside the vocabulary"
                                                : "a position is outside the rope table");
}
