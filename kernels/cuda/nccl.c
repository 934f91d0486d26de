// Tensors from the memory of one process's GPU to that of another's, by NCCL, which is loaded when somebody asks for it
// and never linked. Nothing is added on the way: of NCCL only sends and receives are used.
//
// No call waits for another process. The communicator does not block: its calls return while it is still connecting,
// and the event of an exchange's end is recorded afterwards (comm_test). An exchange is in a stream of its own, for
// which no other stream waits: the host asks. So a process whose peer is gone can always give up.
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nccl.h"

struct nccl {
    char name[32]; // "NCCL 2.28.9"
#define NCCL_FIELD(type, name, parameters) type(*name) parameters;
    NCCL_FUNCTIONS(NCCL_FIELD)
};

struct comm {
    struct ncclComm *nccl;
    int own, count;
    cudaStream_t stream;
    cudaEvent_t before, ended, idle; // what the exchange waits for; its end; the work beside it
    bool tested;                     // `idle` is recorded
    bool connected;                  // NCCL has put the exchange into the stream, and `ended` is behind it
    bool done;
};

static bool nccl_accepts(int result) {
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
}

// Returns UNAVAILABLE with the text of a result that is a failure.
static status nccl_status(const struct nccl *nccl, int result) {
    if (nccl_accepts(result)) return OK;
    return fail(UNAVAILABLE, "NCCL: %s (NCCL_DEBUG=WARN tells more)", nccl->GetErrorString(result));
}

// ---- the library ----

// The emulator cannot use NVIDIA's.
#ifdef CARAVAN_EMULATED
#define NCCL_FILE "libnccl-emulated.so"
static const char *const nccl_names[] = {NULL};
#else
#define NCCL_FILE "libnccl.so.2"
static const char *const nccl_names[] = {NCCL_FILE, NULL};
#endif

// False if there is no such library; fail_text says why. What was loaded stays so until the program ends.
static bool nccl_load(void *self, const char *path) {
    const int oldest = (int)NCCL_CONFIG_VERSION;
    struct nccl *nccl = self;
    int version = 0;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)fail(UNAVAILABLE, "cannot load NCCL: %s", dlerror());
        return false;
    }
#define NCCL_FIND(type, name, parameters) *(void **)&nccl->name = dlsym(library, "nccl" #name);
    NCCL_FUNCTIONS(NCCL_FIND)
#define NCCL_MISSING(type, name, parameters) || !nccl->name
    if (false NCCL_FUNCTIONS(NCCL_MISSING)) {
        (void)fail(UNAVAILABLE, "%s lacks functions of NCCL", path);
        return false;
    }
    const bool known = nccl->GetVersion(&version) == NCCL_SUCCESS;
    snprintf(nccl->name, sizeof nccl->name, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    if (known && version >= oldest) return true;
    (void)fail(UNAVAILABLE, "%s is %s; 2.14 or newer is needed", path, known ? nccl->name : "of no version");
    return false;
}

status cuda_comm_library(struct backend *backend, const char **name) {
    struct cuda_backend *cuda = cuda_of(backend);
    const char *given = getenv("CARAVAN_NCCL");
    if (!cuda->nccl && !(given && strcmp(given, "none") == 0)) {
        NEW(&cuda->nccl, 1);
        if (!(given ? nccl_load(cuda->nccl, given) : cuda_find_library(nccl_names, NCCL_FILE, nccl_load, cuda->nccl))) {
            free(cuda->nccl);
            cuda->nccl = NULL;
            if (given) return UNAVAILABLE;
        }
    }
    *name = cuda->nccl ? cuda->nccl->name : NULL;
    return OK;
}

// ---- communicators ----

status cuda_comm_id(struct backend *backend, unsigned char id[COMM_ID_BYTES]) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct nccl_id name;
    static_assert(sizeof name == COMM_ID_BYTES, "a name is NCCL's");
    CHECK(cuda->nccl);
    TRY(nccl_status(cuda->nccl, cuda->nccl->GetUniqueId(&name)));
    memcpy(id, &name, sizeof name);
    return OK;
}

static status comm_start(struct cuda_backend *cuda, struct comm *comm, const unsigned char id[COMM_ID_BYTES]) {
    struct nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0, .not_set = INT_MIN};
    cudaEvent_t *const events[] = {&comm->before, &comm->ended, &comm->idle};
    struct nccl_id name;
    memcpy(&name, id, sizeof name);
    CUDA_TRY(cudaStreamCreateWithFlags(&comm->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 3; i++) CUDA_TRY(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming));
    return nccl_status(cuda->nccl, cuda->nccl->CommInitRankConfig(&comm->nccl, comm->count, name, comm->own, &config));
}

status cuda_comm_new(struct backend *backend, struct comm **out, const unsigned char id[COMM_ID_BYTES], int own,
                     int count) {
    struct cuda_backend *cuda = cuda_of(backend);
    *out = NULL;
    CHECK(cuda->nccl && 0 <= own && own < count);
    NEW(out, 1);
    (*out)->own = own;
    (*out)->count = count;
    const status result = comm_start(cuda, *out, id);
    if (result != OK) cuda_comm_free(backend, out);
    return result;
}

// NCCL's own end of a communicator may wait for other processes; giving up does not. Nothing is lost: what others
// still receive has left this device when its exchange has ended here and there.
void cuda_comm_free(struct backend *backend, struct comm **pointer) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct comm *comm = *pointer;
    if (!comm) return;
    if (comm->nccl) (void)cuda->nccl->CommAbort(comm->nccl);
    if (comm->stream) (void)cudaStreamDestroy(comm->stream);
    if (comm->before) (void)cudaEventDestroy(comm->before);
    if (comm->ended) (void)cudaEventDestroy(comm->ended);
    if (comm->idle) (void)cudaEventDestroy(comm->idle);
    free(comm);
    *pointer = NULL;
}

// Whether a piece moves; BUG when it cannot.
static status comm_moves(const struct comm *comm, const struct comm_piece *piece, size_t *bytes) {
    const struct tensor t = piece->tensor;
    *bytes = 0;
    if (tensor_none(t) || piece->rank == comm->own) return OK;
    CHECK(0 <= piece->rank && piece->rank < comm->count && tensor_fits(t) && tensor_dense(t));
    *bytes = (size_t)(t.rows * t.columns) * element_size(t.type);
    return OK;
}

status cuda_comm_exchange(struct backend *backend, struct comm *comm, const struct comm_piece *sends, size_t send_count,
                          const struct comm_piece *receives, size_t receive_count) {
    struct cuda_backend *cuda = cuda_of(backend);
    size_t bytes;
    CHECK(comm && comm->done && !cuda->recording);
    for (size_t i = 0; i < send_count; i++) TRY(comm_moves(comm, &sends[i], &bytes));
    for (size_t i = 0; i < receive_count; i++) TRY(comm_moves(comm, &receives[i], &bytes));
    comm->tested = comm->connected = comm->done = false;
    CUDA_TRY(cudaEventRecord(comm->before, cuda->stream));
    CUDA_TRY(cudaStreamWaitEvent(comm->stream, comm->before, 0));
    const struct nccl *nccl = cuda->nccl;
    int result = nccl->GroupStart();
    for (size_t i = 0; i < send_count; i++) {
        TRY(comm_moves(comm, &sends[i], &bytes));
        if (bytes && nccl_accepts(result))
            result =
                nccl->Send(tensor_row(sends[i].tensor, 0), bytes, NCCL_INT8, sends[i].rank, comm->nccl, comm->stream);
    }
    for (size_t i = 0; i < receive_count; i++) {
        TRY(comm_moves(comm, &receives[i], &bytes));
        if (bytes && nccl_accepts(result))
            result = nccl->Recv(tensor_row(receives[i].tensor, 0), bytes, NCCL_INT8, receives[i].rank, comm->nccl,
                                comm->stream);
    }
    const int end = nccl->GroupEnd();
    return nccl_status(nccl, nccl_accepts(result) ? end : result);
}

// Whether the event has been reached.
static status comm_reached(cudaEvent_t event, bool *reached) {
    const cudaError_t error = cudaEventQuery(event);
    *reached = error == cudaSuccess;
    if (error != cudaErrorNotReady) return error == cudaSuccess ? OK : cuda_failed(error, "comm_test");
    (void)cudaGetLastError(); // it is no error
    return OK;
}

status cuda_comm_test(struct backend *backend, struct comm *comm, bool *done, bool *idle) {
    struct cuda_backend *cuda = cuda_of(backend);
    int result = NCCL_SUCCESS;
    CHECK(comm && !cuda->recording);
    if (!comm->tested) CUDA_TRY(cudaEventRecord(comm->idle, cuda->stream));
    comm->tested = true;
    *done = comm->done;
    TRY(comm_reached(comm->idle, idle));
    if (comm->done) return OK;
    TRY(nccl_status(cuda->nccl, cuda->nccl->CommGetAsyncError(comm->nccl, &result)));
    TRY(nccl_status(cuda->nccl, result));
    if (result == NCCL_IN_PROGRESS) return OK;
    if (!comm->connected) CUDA_TRY(cudaEventRecord(comm->ended, comm->stream));
    comm->connected = true;
    TRY(comm_reached(comm->ended, &comm->done));
    *done = comm->done;
    return OK;
}
