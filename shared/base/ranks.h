// The ranks of a training, processes that train one model together, and bytes between them. Nothing here adds two
// numbers: transports copy. So every transport gives the same bits.
//
// An exchange moves bytes between all ranks at once. Each rank begins its exchanges in the same order; the n-th one of
// a rank is the n-th one of all. The pieces that a rank sends to another one are one run of bytes, in the order in
// which they are given, and so are the pieces that it receives from there; both runs must have the same size. Empty
// pieces and pieces to the rank itself are left out. Any number of exchanges may be under way.
//
// Ownership: the pieces' memory is the caller's. Until ranks_end it may not change what is sent nor touch what is
// received. Every exchange is ended, also after a failure.
//
// Errors: UNAVAILABLE when another rank is gone, hangs or has failed, BUG when ranks disagree about an exchange or a
// rank breaks the protocol; what another one has said in ranks_fail. The text names the rank. A failure is final: one
// rank's end is the end of all. The others are told, and every exchange that is not complete fails. What its pieces
// receive is then undefined.
//
// Threads: the calls for one struct ranks come from one thread at a time.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

struct rank_piece {
    int rank; // to which it is sent or from which it comes
    void *data;
    size_t bytes;
};

struct rank_exchange;

// An implementation's struct begins with this one. Rank 0 is the leader.
struct ranks {
    const struct ranks_calls *calls;
    int own, count;
    // partner[r]: the rank on rank 0's machine that reads and writes files for rank r, which is r itself there. NULL:
    // every rank reads and writes them.
    const int *partner;
    uint64_t begun; // exchanges
    uint64_t sent;  // bytes of pieces that this rank has sent, in the exchanges that were ended
    double waited;  // seconds in ranks_end and ranks_await, and others: for ranks, and for bytes on their way
    bool failed;    // an exchange has failed, or this rank: nothing can be exchanged any more
};

// Begins to send and to receive, and does not wait. BUG when a piece names no rank; then nothing has begun.
status ranks_begin(struct ranks *ranks, const struct rank_piece *sends, size_t send_count,
                   const struct rank_piece *receives, size_t receive_count, struct rank_exchange **out);

// Waits until everything has been received and the others have everything that was sent, frees the exchange and sets
// *exchange to NULL. NULL is fine.
status ranks_end(struct ranks *ranks, struct rank_exchange **exchange);

// As ranks_end, however long the others take before they begin: a rank whose process runs is not given up.
status ranks_await(struct ranks *ranks, struct rank_exchange **exchange);

// OK while all ranks are there. For a caller that waits for other ranks outside of an exchange: `waited` are the
// seconds that it has done so. UNAVAILABLE when one is gone, when they are too many, or as ranks_end. Does not wait.
status ranks_check(struct ranks *ranks, double waited);

// This rank cannot go on, for the reason in fail_text(), which stays: what the others wait for, or will, fails with
// `result` if that is DATAERR or BUG, else with UNAVAILABLE. Does nothing after a failure. Returns `result`.
status ranks_fail(struct ranks *ranks, status result);

// all[r] = the `bytes` bytes that rank r has at all[r], for every r; waits for all, so it is a barrier. It is an
// exchange like others. For small things: ids, hashes, sums of squares.
status ranks_gather(struct ranks *ranks, void *all, size_t bytes);

// As ranks_gather, however long the others take before they begin, as in ranks_await: where they read or write files,
// which a slow disk or network may hold up for longer than a rank may hang.
status ranks_await_all(struct ranks *ranks, void *all, size_t bytes);

// Leaves the others, who then miss this rank if they await it, and frees the ranks. May wait for seconds until the
// others leave, too. NULL is fine; sets *ranks to NULL.
void ranks_free(struct ranks **ranks);

// ---- for implementations ----

// The pieces to or from one other rank, as one run of bytes.
struct rank_stream {
    struct rank_piece *pieces;
    uint64_t total;     // bytes
    uint64_t done;      // sent or received
    uint64_t confirmed; // of those sent: the other rank has them
    bool agreed;        // the other rank has begun this exchange and expects as much as is sent to it
};

struct rank_exchange {
    uint64_t number;                      // from 0
    struct rank_stream *sends, *receives; // `count` of each
    struct rank_exchange *next;           // the implementation's
};

struct ranks_calls {
    // The exchange stays the implementation's until `end` returns. `patient`: as ranks_await.
    void (*begin)(struct ranks *ranks, struct rank_exchange *exchange);
    status (*end)(struct ranks *ranks, struct rank_exchange *exchange, bool patient);
    status (*check)(struct ranks *ranks, double waited);
    void (*give_up)(struct ranks *ranks, status code, const char *text); // does not wait
    void (*free)(struct ranks *ranks); // also of `ranks` itself; no exchange is under way
};

// Returns where byte `at` < total of a stream is, and at *bytes how many follow there in one piece, itself included.
void *rank_stream_at(const struct rank_stream *stream, uint64_t at, size_t *bytes);

// Writes the next `bytes` <= total - done bytes that have been received.
void rank_stream_write(struct rank_stream *stream, const void *data, size_t bytes);

// Whether the exchange waits for that rank.
bool rank_exchange_awaits(const struct rank_exchange *exchange, int rank);

// Appends an exchange to a list.
void rank_exchange_add(struct rank_exchange **list, struct rank_exchange *exchange);

// Returns the exchange of a list with that number. NULL: there is none.
struct rank_exchange *rank_exchange_find(struct rank_exchange *list, uint64_t number);

// Returns what the others fail with when a rank has failed with `code`.
status rank_failure(uint64_t code);

// Takes an exchange out of its list.
void rank_exchange_remove(struct rank_exchange **list, const struct rank_exchange *exchange);
