// Who gives a version of the weights to whom: optim to two replicas at a time, and each machine that has a whole copy
// to two more. The others wait, but no longer than a slow download would take them. No sockets here.
#ifndef SHARED_STAGE_DISTRIBUTION_H
#define SHARED_STAGE_DISTRIBUTION_H

#include "shared/wire/wire.h"

// A zeroed struct is empty. Free with distribution_release.
struct distribution {
    struct weights_reader *readers;
    size_t count;
};

enum distribution_verdict {
    DISTRIBUTION_SERVE, // optim answers
    DISTRIBUTION_ELSEWHERE,
    DISTRIBUTION_WAIT, // distribution_next tells when
};

// Frees what it holds.
void distribution_release(struct distribution *distribution);

// A peer has sent FETCH for a file of `size` bytes. ELSEWHERE: *giver has the file. A peer that comes back from there
// could not get it; that giver is asked no more for this file.
void distribution_fetch(struct distribution *distribution, struct wire_peer *peer, const struct wire_message *fetch,
                        int64_t size, int64_t now_ms, enum distribution_verdict *verdict, struct wire_peer **giver);

// Returns a peer that has waited and needs to wait no more, with its FETCH; NULL: none. *verdict is SERVE or ELSEWHERE.
struct wire_peer *distribution_next(struct distribution *distribution, int64_t now_ms, struct wire_message *fetch,
                                    enum distribution_verdict *verdict, struct wire_peer **giver);

// A peer needs no more of the file that it was fetching: it has asked for its end, or the file is gone.
void distribution_end(struct distribution *distribution, const struct wire_peer *peer);

// A peer has a whole copy of the file; the last two count.
void distribution_has(struct distribution *distribution, struct wire_peer *peer, int64_t hash);

// A peer is gone.
void distribution_gone(struct distribution *distribution, const struct wire_peer *peer);

#endif
