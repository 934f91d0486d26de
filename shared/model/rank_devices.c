#include "shared/model/rank_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"

// Between two looks at an exchange; more between two of them: this process was stopped; for the reason of a failure.
static const double look_after = 50e-6, longest_step = 1, grace = 1;

// The bytes that go to another rank and come from there.
struct device_bytes {
    uint64_t sent, expected;
};

struct rank_devices {
    struct backend *backend;
    struct ranks *ranks;
    struct comm *comm;                 // NULL after a failure
    struct device_bytes *own, *theirs; // one for each rank: as this rank says it, and as the other one does
    struct rank_piece *pieces;         // these: `count` to send, `count` to receive
    struct rank_exchange *begun;       // of them; NULL: nothing is under way
};

static void rank_devices_pause(double seconds) {
    nanosleep(&(struct timespec){0, (long)(seconds * 1e9)}, NULL);
}

// Waits for the device. When it fails because a rank has, the ranks know soon which one.
static status rank_devices_wait(struct rank_devices *devices) {
    const struct operations *ops = devices->backend->ops;
    double last = clock_monotonic(), waited = 0;
    bool done = false, idle = false;
    char text[400];
    status result;
    for (;;) {
        result = ops->comm_test(devices->backend, devices->comm, &done, &idle);
        if (result != OK || done) break;
        const double now = clock_monotonic();
        if (idle) waited += now - last < longest_step ? now - last : longest_step;
        last = now;
        TRY(ranks_check(devices->ranks, waited));
        rank_devices_pause(look_after);
    }
    devices->ranks->waited += waited;
    if (result == OK) return OK;
    snprintf(text, sizeof text, "%s", fail_text());
    status known = OK;
    for (last = clock_monotonic(); known == OK && clock_monotonic() < last + grace;) {
        rank_devices_pause(100 * look_after);
        known = ranks_check(devices->ranks, 0);
    }
    return known != OK ? fail_prefix(known, "%s", text)
                       : fail(result, "the GPUs of rank %d and the others: %s", devices->ranks->own, text);
}

// ---- exchanges ----

// Returns the bytes of a piece.
static uint64_t exchange_piece_bytes(const struct comm_piece *piece) {
    const struct tensor t = piece->tensor;
    return t.buffer ? (uint64_t)(t.rows * t.columns) * element_size(t.type) : 0;
}

status rank_devices_begin(struct rank_devices *devices, const struct comm_piece *sends, size_t send_count,
                          const struct comm_piece *receives, size_t receive_count) {
    struct ranks *ranks = devices->ranks;
    const size_t count = (size_t)ranks->count;
    if (!devices->comm || devices->begun) return fail(BUG, "an exchange of GPUs after a failure, or before an end");
    memset(devices->own, 0, count * sizeof *devices->own);
    for (size_t i = 0; i < send_count; i++) devices->own[sends[i].rank].sent += exchange_piece_bytes(&sends[i]);
    for (size_t i = 0; i < receive_count; i++)
        devices->own[receives[i].rank].expected += exchange_piece_bytes(&receives[i]);
    status result = devices->backend->ops->comm_exchange(devices->backend, devices->comm, sends, send_count, receives,
                                                         receive_count);
    if (result == OK)
        result = ranks_begin(ranks, devices->pieces, count, devices->pieces + count, count, &devices->begun);
    if (result != OK) devices->backend->ops->comm_free(devices->backend, &devices->comm);
    return result;
}

status rank_devices_end(struct rank_devices *devices) {
    struct ranks *ranks = devices->ranks;
    if (!devices->begun) return OK;
    status result = ranks_end(ranks, &devices->begun);
    for (int rank = 0; rank < ranks->count && result == OK; rank++) {
        const struct device_bytes *own = &devices->own[rank], *theirs = &devices->theirs[rank];
        if (rank != ranks->own && (own->sent != theirs->expected || own->expected != theirs->sent))
            result = fail(BUG,
                          "rank %d sends %llu bytes to the GPU of rank %d, which expects %llu, and gets %llu instead "
                          "of %llu",
                          ranks->own, (unsigned long long)own->sent, rank, (unsigned long long)theirs->expected,
                          (unsigned long long)theirs->sent, (unsigned long long)own->expected);
    }
    if (result == OK) result = rank_devices_wait(devices);
    if (result != OK) devices->backend->ops->comm_free(devices->backend, &devices->comm);
    return result;
}

// ---- life ----

// The first exchange, of a word. In it the library connects the devices, and takes the memory that it needs, before
// others look how much there is.
static status rank_devices_connect(struct rank_devices *devices) {
    struct backend *backend = devices->backend;
    const int count = devices->ranks->count;
    struct comm_piece *pieces;
    struct buffer *words;
    TRY(backend->ops->buffer_new(backend, 2 * (size_t)count * sizeof(int32_t), &words));
    NEW(&pieces, 2 * (size_t)count);
    for (int i = 0; i < 2 * count; i++)
        pieces[i] = (struct comm_piece){i % count, {words, (size_t)i * sizeof(int32_t), ELEMENT_I32, 1, 1, 1}};
    status result = rank_devices_begin(devices, pieces, (size_t)count, pieces + count, (size_t)count);
    if (result == OK) result = rank_devices_end(devices);
    free(pieces);
    backend->ops->buffer_free(backend, &words);
    return result;
}

status rank_devices_open(struct rank_devices **out, struct backend *backend, struct ranks *ranks) {
    struct device_identity {
        char library[64]; // "": none
        unsigned char id[COMM_ID_BYTES];
    } * all;
    const struct operations *ops = backend->ops;
    const char *library = NULL;
    status result = OK;
    *out = NULL;
    if (!ranks) return OK;
    if (ops->comm_library) TRY(ops->comm_library(backend, &library));
    NEW(&all, (size_t)ranks->count);
    struct device_identity *own = &all[ranks->own];
    int lacks = 0;
    snprintf(own->library, sizeof own->library, "%s", library ? library : "");
    if (library && ranks->own == 0) TRY_TO(result, done, ops->comm_id(backend, own->id));
    TRY_TO(result, done, ranks_await_all(ranks, all, sizeof *all)); // they come from reading the model
    while (lacks < ranks->count && *all[lacks].library) lacks++;
    if (ranks->own == 0 && lacks < ranks->count && ops->comm_library)
        log_info("gradients and weights go from GPU to GPU through the memory of the hosts: rank %d uses no NCCL "
                 "(CARAVAN_NCCL names its file, or is none)",
                 lacks);
    if (ranks->own == 0 && lacks == ranks->count)
        log_info("gradients and weights go from GPU to GPU by %s%s", library,
                 ranks->partner ? ", between machines without encryption" : "");
    if (lacks < ranks->count) goto done;
    const size_t count = (size_t)ranks->count;
    NEW(out, 1);
    **out = (struct rank_devices){.backend = backend, .ranks = ranks};
    NEW(&(*out)->own, 2 * count);
    NEW(&(*out)->pieces, 2 * count);
    (*out)->theirs = (*out)->own + count;
    for (size_t i = 0; i < 2 * count; i++)
        (*out)->pieces[i] = (struct rank_piece){(int)(i % count), &(*out)->own[i], sizeof(struct device_bytes)};
    TRY_TO(result, done, ops->comm_new(backend, &(*out)->comm, all->id, ranks->own, ranks->count));
    TRY_TO(result, done, rank_devices_wait(*out));
    result = rank_devices_connect(*out);
done:
    free(all);
    if (result != OK) rank_devices_free(out);
    return result;
}

void rank_devices_free(struct rank_devices **pointer) {
    struct rank_devices *devices = *pointer;
    char reason[1000]; // why there may be something on its way
    if (!devices) return;
    snprintf(reason, sizeof reason, "%s", fail_text());
    devices->backend->ops->comm_free(devices->backend, &devices->comm);
    if (ranks_end(devices->ranks, &devices->begun) != OK) (void)fail(UNAVAILABLE, "%s", reason);
    free(devices->own);
    free(devices->pieces);
    free(devices);
    *pointer = NULL;
}
