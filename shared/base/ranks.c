#include "shared/base/ranks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/memory.h"

// Sorts pieces by rank into `streams`. Their copies begin at `copies`; returns where they end.
static struct rank_piece *rank_streams_fill(const struct ranks *ranks, struct rank_stream *streams,
                                            const struct rank_piece *pieces, size_t count, struct rank_piece *copies) {
    for (int rank = 0; rank < ranks->count; rank++) {
        streams[rank].pieces = copies;
        for (size_t i = 0; i < count && rank != ranks->own; i++) {
            if (pieces[i].rank != rank || !pieces[i].bytes) continue;
            streams[rank].total += pieces[i].bytes;
            *copies++ = pieces[i];
        }
    }
    return copies;
}

status ranks_begin(struct ranks *ranks, const struct rank_piece *sends, size_t send_count,
                   const struct rank_piece *receives, size_t receive_count, struct rank_exchange **out) {
    struct rank_block { // one allocation
        struct rank_exchange exchange;
        struct rank_stream streams[];
    } * block;
    const size_t count = (size_t)ranks->count;
    *out = NULL;
    for (size_t i = 0; i < send_count + receive_count; i++) {
        const int rank = i < send_count ? sends[i].rank : receives[i - send_count].rank;
        if (rank < 0 || rank >= ranks->count)
            return fail(BUG, "exchange %llu: rank %d, but there are %d ranks", (unsigned long long)ranks->begun, rank,
                        ranks->count);
    }
    mem_new(&block, 1,
            sizeof *block + 2 * count * sizeof *block->streams +
                (send_count + receive_count) * sizeof(struct rank_piece));
    struct rank_exchange *exchange = &block->exchange;
    exchange->number = ranks->begun;
    exchange->sends = block->streams;
    exchange->receives = block->streams + count;
    struct rank_piece *copies = (struct rank_piece *)(void *)(block->streams + 2 * count);
    copies = rank_streams_fill(ranks, exchange->sends, sends, send_count, copies);
    rank_streams_fill(ranks, exchange->receives, receives, receive_count, copies);
    ranks->calls->begin(ranks, exchange);
    ranks->begun++;
    *out = exchange;
    return OK;
}

static status rank_exchange_end(struct ranks *ranks, struct rank_exchange **exchange, bool patient) {
    if (!*exchange) return OK;
    const double began = clock_monotonic();
    status result = ranks->calls->end(ranks, *exchange, patient);
    ranks->waited += clock_monotonic() - began;
    ranks->failed = ranks->failed || result != OK;
    for (int rank = 0; rank < ranks->count; rank++) ranks->sent += (*exchange)->sends[rank].done;
    free(*exchange);
    *exchange = NULL;
    return result;
}

status ranks_end(struct ranks *ranks, struct rank_exchange **exchange) {
    return rank_exchange_end(ranks, exchange, false);
}

status ranks_await(struct ranks *ranks, struct rank_exchange **exchange) {
    return rank_exchange_end(ranks, exchange, true);
}

status ranks_check(struct ranks *ranks, double waited) {
    const status result = ranks->calls->check(ranks, waited);
    ranks->failed = ranks->failed || result != OK;
    return result;
}

status ranks_fail(struct ranks *ranks, status result) {
    if (!ranks->failed) ranks->calls->give_up(ranks, result, fail_text());
    ranks->failed = true;
    return result;
}

static status rank_gather(struct ranks *ranks, void *all, size_t bytes, bool patient) {
    struct rank_exchange *exchange;
    struct rank_piece *sends, *receives;
    const size_t count = (size_t)ranks->count;
    char *data = all;
    NEW(&sends, 2 * count);
    receives = sends + count;
    for (int rank = 0; rank < ranks->count; rank++) {
        sends[rank] = (struct rank_piece){rank, data + (size_t)ranks->own * bytes, bytes};
        receives[rank] = (struct rank_piece){rank, data + (size_t)rank * bytes, bytes};
    }
    status result = ranks_begin(ranks, sends, count, receives, count, &exchange);
    if (result == OK) result = rank_exchange_end(ranks, &exchange, patient);
    free(sends);
    return result;
}

status ranks_gather(struct ranks *ranks, void *all, size_t bytes) {
    return rank_gather(ranks, all, bytes, false);
}

status ranks_await_all(struct ranks *ranks, void *all, size_t bytes) {
    return rank_gather(ranks, all, bytes, true);
}

void ranks_free(struct ranks **ranks) {
    if (*ranks) (*ranks)->calls->free(*ranks);
    *ranks = NULL;
}

// ---- for implementations ----

void *rank_stream_at(const struct rank_stream *stream, uint64_t at, size_t *bytes) {
    const struct rank_piece *piece = stream->pieces;
    assert(at < stream->total);
    for (; at >= piece->bytes; piece++) at -= piece->bytes;
    *bytes = piece->bytes - (size_t)at;
    return (char *)piece->data + at;
}

void rank_stream_write(struct rank_stream *stream, const void *data, size_t bytes) {
    assert(bytes <= stream->total - stream->done);
    for (size_t room; bytes > 0; bytes -= room) {
        void *out = rank_stream_at(stream, stream->done, &room);
        if (room > bytes) room = bytes;
        memcpy(out, data, room);
        data = (const char *)data + room;
        stream->done += room;
    }
}

bool rank_exchange_awaits(const struct rank_exchange *exchange, int rank) {
    return exchange->receives[rank].done < exchange->receives[rank].total ||
           exchange->sends[rank].confirmed < exchange->sends[rank].total;
}

void rank_exchange_add(struct rank_exchange **list, struct rank_exchange *exchange) {
    while (*list) list = &(*list)->next;
    *list = exchange;
}

struct rank_exchange *rank_exchange_find(struct rank_exchange *list, uint64_t number) {
    while (list && list->number != number) list = list->next;
    return list;
}

status rank_failure(uint64_t code) {
    return code == DATAERR || code == BUG ? (status)code : UNAVAILABLE;
}

void rank_exchange_remove(struct rank_exchange **list, const struct rank_exchange *exchange) {
    while (*list != exchange) list = &(*list)->next;
    *list = exchange->next;
}
