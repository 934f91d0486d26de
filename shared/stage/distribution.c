#include "shared/stage/distribution.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    DOWNLOADS_MAX = 2,      // at a time from one machine
    PATIENCE_MS = 1000,     // for which a replica waits at least, and as long as the file takes at
    SLOW_BYTES_A_MS = 10000 // this rate
};

// A replica on another machine.
struct weights_reader {
    struct wire_peer *peer;
    int64_t has[2];          // hashes of its copies, the newer one first; 0: none
    int64_t wants;           // hash of the file that it is fetching; 0: none
    struct wire_peer *giver; // from whom it fetches; NULL: from optim, or it waits
    bool waiting;
    int64_t waits_until;       // ms
    int64_t size;              // of the file
    struct wire_message fetch; // the last one
};

void distribution_release(struct distribution *distribution) {
    free(distribution->readers);
    *distribution = (struct distribution){0};
}

static struct weights_reader *distribution_find(const struct distribution *distribution, const struct wire_peer *peer) {
    for (size_t i = 0; i < distribution->count; i++)
        if (distribution->readers[i].peer == peer) return &distribution->readers[i];
    return NULL;
}

static void distribution_add(struct distribution *distribution, struct wire_peer *peer, struct weights_reader **out) {
    *out = distribution_find(distribution, peer);
    if (*out) return;
    RESIZE(&distribution->readers, distribution->count + 1);
    *out = &distribution->readers[distribution->count++];
    **out = (struct weights_reader){.peer = peer};
}

static bool weights_reader_has(const struct weights_reader *reader, int64_t hash) {
    return reader->has[0] == hash || reader->has[1] == hash;
}

// Counts the downloads from the machine of `giver`; NULL: from optim.
static int distribution_load(const struct distribution *distribution, const struct wire_peer *giver) {
    int load = 0;
    for (size_t i = 0; i < distribution->count; i++) {
        const struct weights_reader *reader = &distribution->readers[i];
        if (!reader->wants || reader->waiting) continue;
        if (!giver || !reader->giver)
            load += !giver && !reader->giver;
        else
            load += !strcmp(reader->giver->machine, giver->machine);
    }
    return load;
}

// Optim serves the reader's last FETCH. The last one of a file ends the download.
static enum distribution_verdict distribution_serve(struct weights_reader *reader) {
    reader->waiting = false;
    if (reader->fetch.offset + reader->fetch.size >= reader->size) reader->wants = 0;
    return DISTRIBUTION_SERVE;
}

// Decides about a reader that nobody gives anything to yet.
static enum distribution_verdict distribution_decide(const struct distribution *distribution,
                                                     struct weights_reader *reader, int64_t now_ms) {
    int least = DOWNLOADS_MAX;
    reader->waiting = true; // it does not count
    reader->giver = NULL;
    if (distribution_load(distribution, NULL) >= DOWNLOADS_MAX) {
        for (size_t i = 0; i < distribution->count; i++) {
            const struct weights_reader *other = &distribution->readers[i];
            if (other == reader || !weights_reader_has(other, reader->wants)) continue;
            const int load = distribution_load(distribution, other->peer);
            if (load >= least) continue;
            least = load;
            reader->giver = other->peer;
        }
        if (!reader->giver && now_ms < reader->waits_until) return DISTRIBUTION_WAIT;
    }
    if (!reader->giver) return distribution_serve(reader);
    reader->waiting = false;
    return DISTRIBUTION_ELSEWHERE;
}

void distribution_fetch(struct distribution *distribution, struct wire_peer *peer, const struct wire_message *fetch,
                        int64_t size, int64_t now_ms, enum distribution_verdict *verdict, struct wire_peer **giver) {
    struct weights_reader *reader;
    assert(fetch->kind == MESSAGE_FETCH);
    distribution_add(distribution, peer, &reader);
    const bool same = reader->wants == fetch->hash;
    reader->wants = fetch->hash;
    reader->size = size;
    reader->fetch =
        (struct wire_message){.kind = MESSAGE_FETCH, .hash = fetch->hash, .offset = fetch->offset, .size = fetch->size};
    if (same && !reader->waiting && !reader->giver) {
        *verdict = distribution_serve(reader);
    } else {
        struct weights_reader *failed = same && reader->giver ? distribution_find(distribution, reader->giver) : NULL;
        for (int i = 0; failed && i < 2; i++)
            if (failed->has[i] == fetch->hash) failed->has[i] = 0;
        if (!same || !reader->waiting) reader->waits_until = now_ms + PATIENCE_MS + size / SLOW_BYTES_A_MS;
        *verdict = distribution_decide(distribution, reader, now_ms);
    }
    *giver = reader->giver;
}

struct wire_peer *distribution_next(struct distribution *distribution, int64_t now_ms, struct wire_message *fetch,
                                    enum distribution_verdict *verdict, struct wire_peer **giver) {
    for (size_t i = 0; i < distribution->count; i++) {
        struct weights_reader *reader = &distribution->readers[i];
        if (!reader->waiting) continue;
        *verdict = distribution_decide(distribution, reader, now_ms);
        if (*verdict == DISTRIBUTION_WAIT) continue;
        *fetch = reader->fetch;
        *giver = reader->giver;
        return reader->peer;
    }
    return NULL;
}

void distribution_end(struct distribution *distribution, const struct wire_peer *peer) {
    struct weights_reader *reader = distribution_find(distribution, peer);
    if (!reader) return;
    reader->wants = 0;
    reader->giver = NULL;
    reader->waiting = false;
}

void distribution_has(struct distribution *distribution, struct wire_peer *peer, int64_t hash) {
    struct weights_reader *reader;
    distribution_add(distribution, peer, &reader);
    distribution_end(distribution, peer);
    if (reader->has[0] != hash) reader->has[1] = reader->has[0];
    reader->has[0] = hash;
}

void distribution_gone(struct distribution *distribution, const struct wire_peer *peer) {
    struct weights_reader *reader = distribution_find(distribution, peer);
    if (!reader) return;
    *reader = distribution->readers[--distribution->count];
    for (size_t i = 0; i < distribution->count; i++)
        if (distribution->readers[i].giver == peer) distribution->readers[i].giver = NULL;
}
