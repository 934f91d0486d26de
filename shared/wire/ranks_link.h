// Ranks (shared/base/ranks.h) over ZeroMQ, between the processes of one or several machines.
//
// Every rank listens, and connects to the ranks before it. A thread of the ranks' own owns the sockets: it moves bytes
// while the caller computes, answers heartbeats, and finds out when another rank is gone. Only what the other side is
// ready to receive is sent, in chunks of at most 1 MiB, of which at most 8 MiB to a rank are on their way: so a rank
// that lags behind costs no memory. PROTOCOL.md has the messages.
//
// How a rank is missed, by all others:
// - it dies: its connections close, which is noticed within a few hundred milliseconds;
// - its machine is gone: TCP gives up after 10 s (transport.h);
// - it hangs or is stopped: `timeout` after a caller began to wait for it; in ranks_await, after its process has been
//   silent for so long. Time in which this process itself was stopped does not count;
// - it fails or leaves: it says so.
// What is left of an earlier start of the ranks cannot join a later one, of which rank 0 has drawn the number.
//
// After a failure ranks_end returns as soon as nothing reads what was sent any more, within three seconds.
#pragma once

#include "shared/base/ranks.h"
#include "shared/wire/node_config.h"
#include "shared/wire/transport.h"

// Strings and arrays need to live during the call only, `security` as long as the ranks.
struct ranks_link_options {
    int own, count;
    const char *run;                   // the same text for all ranks; one with another text does not join
    const struct node_endpoint *ranks; // one a rank: address, machine, and its key unless there is no security
    const char *const *listen;         // endpoints that this rank binds
    size_t listen_count;
    const struct wire_security *security; // CURVE; admits the keys. NULL: none
    double timeout;                       // seconds that a rank is waited for, at the start and in an exchange
};

// Joins the other ranks; waits until all are there. The first ones are those on rank 0's machine; each of the others
// gets one of them as its partner (ranks.h). UNAVAILABLE when an endpoint is taken, when a rank does not join in
// time or fails; END when the program is asked to stop before; USAGE when a key is missing. Free with ranks_free, which
// waits for the others two seconds at most.
status ranks_link_open(struct ranks **out, const struct ranks_link_options *options);
