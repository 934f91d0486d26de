// Lines for the terminal that come in floods, as one for each of 3,000 missing clips: the first few of a sender are
// written, then one line a second says how many more there were.
#ifndef TOOLS_RUN_NOTICE_LIMIT_H
#define TOOLS_RUN_NOTICE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { NOTICE_SENDERS = 32, NOTICE_BURST = 4 };

// A zeroed struct has seen nothing.
struct notice_limit {
    struct notice_sender {
        char name[64];     // a stage; "": free
        int64_t replica;   // 0: the whole stage
        double spare, now; // lines that may be written; clock_monotonic() as of then
        int64_t left_out;  // lines since the last one
    } senders[NOTICE_SENDERS];
};

// Whether a line about this replica (0: about the whole stage) may be written at `now`, in seconds; otherwise counts
// it. More senders than there is room for are not limited.
bool notice_limit_pass(struct notice_limit *limit, const char *name, int64_t replica, double now);

// Finds a sender whose lines were left out and which may write one again (`all`: any), and forgets them. The result is
// valid until the next call; its left_out says how many there were. NULL: there is none.
const struct notice_sender *notice_limit_due(struct notice_limit *limit, double now, bool all);

#endif
