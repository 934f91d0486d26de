// An NCCL for emulated devices, which the plug-in of the emulator offers to a program whose $CARAVAN_NCCL names the
// plug-in itself. Ranks are processes, or threads of one.
//
// From each rank to each other one bytes go through a ring in memory that all share. A thread of each exchange moves
// them, piece by piece, so that what is sent is read late and what is received comes late; until then it is NaN. An
// exchange connects the ranks first, if it is a communicator's first one: it is not in the stream yet when
// ncclGroupEnd returns. Calls that do not fit, such as other sizes than the other rank's, end the process.
//
// CARAVAN_EMULATED_NCCL, read when a rank joins, is a list of faults:
// - delay=MS: what goes to another rank begins to move up to so many milliseconds late, each time and for each pair of
//   ranks another time
// - hang=RANK:N, error=RANK:N: nothing moves in the N-th exchange of this rank; or that fails. 0: when it joins
// - alone: the others are imagined; they send nothing
#include "emulate_internal.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "kernels/cuda/nccl.h"

#define NCCL_DECLARE(type, name, parameters)                                                                           \
    extern "C" __attribute__((visibility("default"))) type nccl##name parameters;
NCCL_FUNCTIONS(NCCL_DECLARE)

namespace {

enum { most_ranks = 16, ring_bytes = 1 << 14, connecting_looks = 3, version = 29999 };

[[noreturn]] void nccl_misuse(const char *what, uint64_t a, uint64_t b) {
    fprintf(stderr, "emulate: nccl: %s: %llu, %llu\n", what, static_cast<unsigned long long>(a),
            static_cast<unsigned long long>(b));
    abort();
}

// ---- memory that the ranks share ----

// Bytes from one rank to another.
struct ring {
    std::atomic<uint64_t> written, read;
    char data[ring_bytes];
};

struct hub {
    std::atomic<int> joined;
    struct ring rings[most_ranks][most_ranks]; // from, to
};

// A file without a name; rank 0's process keeps it open until all have joined.
struct hub_name {
    int process, descriptor;
    uint64_t inode;
};

int hub_make(struct hub_name *out) {
    struct stat info = {};
    int file = memfd_create("caravan-nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(struct hub)) || fstat(file, &info)) return NCCL_SYSTEM_ERROR;
    *out = {getpid(), file, info.st_ino};
    return NCCL_SUCCESS;
}

std::shared_ptr<struct hub> hub_open(const struct hub_name &name) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.process, name.descriptor);
    int file = open(path, O_RDWR | O_CLOEXEC);
    bool found = file >= 0 && fstat(file, &info) == 0 && info.st_ino == name.inode;
    void *memory = found ? mmap(nullptr, sizeof(struct hub), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) return nullptr;
    return {static_cast<struct hub *>(memory), [](struct hub *it) { munmap(it, sizeof *it); }};
}

// ---- an exchange ----

struct transfer {
    int rank;
    char *data;
    uint64_t bytes;
    uint64_t done; // of the eight that say how many, and of these
};

// Copies between a ring and the next bytes of a transfer, as many as there are or fit.
void ring_move(struct ring &ring, struct transfer *transfer, bool sends) {
    const uint64_t total = sizeof transfer->bytes + transfer->bytes;
    std::atomic<uint64_t> &own = sends ? ring.written : ring.read;
    uint64_t at = own, room = sends ? ring_bytes - (at - ring.read) : ring.written - at, size = transfer->bytes;
    for (; room && transfer->done < total; room--, at++, transfer->done++) {
        char *in_ring = &ring.data[at % ring_bytes];
        char *in_memory = transfer->done < sizeof size ? reinterpret_cast<char *>(&size) + transfer->done
                                                       : transfer->data + (transfer->done - sizeof size);
        if (sends)
            *in_ring = *in_memory;
        else if (transfer->done >= sizeof size)
            *in_memory = *in_ring;
        else if (*in_memory != *in_ring)
            nccl_misuse("another size is sent than is expected by a rank", size, static_cast<uint64_t>(transfer->rank));
    }
    own = at;
}

uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    return (x ^ x >> 27) * 0x81dadef4bc2dd44du >> 33;
}

// What moves in one exchange, and how far it is. The stream and the communicator have it.
struct exchange {
    std::shared_ptr<struct hub> hub;
    int own;
    uint64_t number;
    unsigned delay;
    bool hangs;
    std::vector<struct transfer> sends, receives;
    std::mutex lock; // of `mover`
    std::thread mover;
    std::atomic<bool> given_up{false}, ended{false};

    ~exchange() {
        if (mover.joinable()) mover.join();
    }

    // One transfer of each pair after the other. True when all are done.
    bool move(int64_t passed) {
        bool done = true;
        bool busy[2][most_ranks] = {};
        for (int sending = 0; sending < 2; sending++) {
            for (struct transfer &each : sending ? sends : receives) {
                const uint64_t key = number << 8 | static_cast<uint64_t>(own * most_ranks + each.rank);
                const bool late = sending && delay && passed < static_cast<int64_t>(mixed(key) % delay);
                struct ring &ring = sending ? hub->rings[own][each.rank] : hub->rings[each.rank][own];
                if (each.done == sizeof each.bytes + each.bytes) continue;
                if (!late && !busy[sending][each.rank]) ring_move(ring, &each, sending);
                busy[sending][each.rank] |= each.done < sizeof each.bytes + each.bytes;
                done &= each.done == sizeof each.bytes + each.bytes;
            }
        }
        return done;
    }

    void run() {
        const auto began = std::chrono::steady_clock::now();
        while (!given_up) {
            const auto passed = std::chrono::steady_clock::now() - began;
            if (!hangs && move(std::chrono::duration_cast<std::chrono::milliseconds>(passed).count())) break;
            usleep(50);
        }
        ended = true;
    }

    // Its turn in the stream has come.
    void begin() {
        std::lock_guard<std::mutex> held(lock);
        for (struct transfer &each : receives) memset(each.data, 0xff, each.bytes);
        if (given_up || !hub)
            ended = true;
        else
            mover = std::thread([this] { run(); });
    }

    void give_up() {
        std::lock_guard<std::mutex> held(lock);
        given_up = true;
        if (mover.joinable()) mover.join();
        ended = true;
    }
};

// A fault of CARAVAN_EMULATED_NCCL at one exchange of one rank.
struct fault {
    int rank;
    unsigned long exchange;
    bool set;

    bool is_at(int own, uint64_t number) const {
        return set && rank == own && exchange == number;
    }
};

struct fault fault_of(const char *list, const char *name) {
    struct fault it = {};
    const char *at = list ? strstr(list, name) : nullptr;
    it.set = at && sscanf(at + strlen(name), "=%d:%lu", &it.rank, &it.exchange) == 2;
    return it;
}

// What this thread's calls since ncclGroupStart ask for.
struct group {
    int depth;
    struct ncclComm *comm;
    cudaStream_t stream;
    std::vector<struct transfer> sends, receives;
};
thread_local struct group calls;

} // namespace

struct ncclComm {
    std::shared_ptr<struct hub> hub;
    int own, count, file; // file: rank 0's, -1 when it is closed
    unsigned delay;
    bool alone;
    struct fault hang, error;
    uint64_t exchanges;
    int looks;                                             // that the first exchange connects for
    std::shared_ptr<struct exchange> exchange, connecting; // the last one; one that is not in the stream yet
    cudaStream_t stream;
};

static int comm_put(struct ncclComm *comm) {
    std::shared_ptr<struct exchange> it = std::move(comm->connecting);
    const bool taken = emulate::put_engine(
        comm->stream, [it] { it->begin(); }, [it] { return it->ended.load(); });
    return taken ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

// ---- the functions ----

int ncclGetVersion(int *out) {
    *out = version;
    return NCCL_SUCCESS;
}

int ncclGetUniqueId(struct nccl_id *out) {
    struct hub_name name = {};
    static_assert(sizeof name <= sizeof out->bytes, "an id is a name");
    *out = {};
    const int result = hub_make(&name);
    memcpy(out->bytes, &name, sizeof name);
    return result;
}

int ncclCommInitRankConfig(struct ncclComm **out, int count, struct nccl_id id, int own, struct nccl_config *config) {
    const char *set = getenv("CARAVAN_EMULATED_NCCL"), *delay = set ? strstr(set, "delay=") : nullptr;
    struct hub_name name;
    *out = nullptr;
    if (config->size != sizeof *config || config->magic != NCCL_CONFIG_MAGIC ||
        config->version != NCCL_CONFIG_VERSION || config->blocking || own < 0 || own >= count || count > most_ranks)
        return NCCL_INVALID_ARGUMENT;
    memcpy(&name, id.bytes, sizeof name);
    auto *comm = new ncclComm{};
    comm->own = own;
    comm->count = count;
    comm->alone = set && strstr(set, "alone");
    comm->delay = delay ? static_cast<unsigned>(atoi(delay + strlen("delay="))) : 0;
    comm->hang = fault_of(set, "hang");
    comm->error = fault_of(set, "error");
    comm->file = own ? -1 : name.descriptor;
    if (!comm->alone) comm->hub = hub_open(name);
    *out = comm;
    if (!comm->alone && !comm->hub) return NCCL_SYSTEM_ERROR;
    if (comm->hub && !comm->hang.is_at(own, 0)) comm->hub->joined++;
    return NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(struct ncclComm *comm, int *error) {
    *error = NCCL_SUCCESS;
    if (comm->error.is_at(comm->own, comm->exchanges)) {
        *error = NCCL_REMOTE_ERROR;
    } else if (comm->hub && comm->hub->joined < comm->count) {
        *error = NCCL_IN_PROGRESS;
    } else if (comm->connecting) {
        *error = NCCL_IN_PROGRESS;
        if (--comm->looks == 0) *error = comm_put(comm);
    } else if (comm->file >= 0) {
        close(comm->file);
        comm->file = -1;
    }
    return NCCL_SUCCESS;
}

int ncclCommAbort(struct ncclComm *comm) {
    if (comm->exchange) comm->exchange->give_up();
    if (comm->file >= 0) close(comm->file);
    delete comm;
    return NCCL_SUCCESS;
}

int ncclGroupStart(void) {
    calls.depth++;
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void) {
    if (calls.depth < 1) return NCCL_INVALID_ARGUMENT;
    if (--calls.depth) return NCCL_SUCCESS;
    struct ncclComm *comm = calls.comm;
    const bool first = comm && comm->exchanges == 0;
    if (!comm) return NCCL_SUCCESS;
    auto it = std::make_shared<struct exchange>();
    it->hub = comm->hub;
    it->own = comm->own;
    it->number = ++comm->exchanges;
    it->delay = comm->delay;
    it->hangs = comm->hang.is_at(comm->own, it->number) || comm->error.is_at(comm->own, it->number);
    it->sends = std::move(calls.sends);
    it->receives = std::move(calls.receives);
    comm->exchange = comm->connecting = it;
    comm->stream = calls.stream;
    calls = {};
    if (!first) return comm_put(comm);
    comm->looks = connecting_looks;
    return NCCL_IN_PROGRESS;
}

static int calls_add(std::vector<struct transfer> *list, const void *data, size_t count, int type, int rank,
                     struct ncclComm *comm, cudaStream_t stream) {
    if (!calls.depth || type != NCCL_INT8 || rank < 0 || rank >= comm->count || rank == comm->own || comm->connecting ||
        (calls.comm && (calls.comm != comm || calls.stream != stream)))
        return NCCL_INVALID_ARGUMENT;
    if (!emulate::is_device_memory(data, count)) nccl_misuse("not a device's memory", (uintptr_t)data, count);
    calls.comm = comm;
    calls.stream = stream;
    list->push_back({rank, static_cast<char *>(const_cast<void *>(data)), count, 0});
    return NCCL_SUCCESS;
}

int ncclSend(const void *data, size_t count, int type, int rank, struct ncclComm *comm, cudaStream_t stream) {
    return calls_add(&calls.sends, data, count, type, rank, comm, stream);
}

int ncclRecv(void *data, size_t count, int type, int rank, struct ncclComm *comm, cudaStream_t stream) {
    return calls_add(&calls.receives, data, count, type, rank, comm, stream);
}

const char *ncclGetErrorString(int result) {
    switch (result) {
    case NCCL_SYSTEM_ERROR:
        return "unhandled system error";
    case NCCL_INVALID_ARGUMENT:
        return "invalid argument";
    case NCCL_REMOTE_ERROR:
        return "remote process exited or there was a network error";
    default:
        return "an error that the emulator does not make";
    }
}
