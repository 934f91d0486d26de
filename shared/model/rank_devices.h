// The GPUs of ranks: tensors go from the memory of one to that of another without the hosts, by the communicator of
// kernels/ops.h. Nothing is added on the way.
//
// The ranks begin and end exchanges in one order, as those of shared/base/ranks.h. With each goes a small one between
// the hosts, in which every rank says that it has begun and how much it sends and expects. So a rank that hangs, has
// ended or disagrees is missed and named as in any other exchange, and none waits for it in a call of CUDA or NCCL.
#pragma once

#include "kernels/ops.h"
#include "shared/base/ranks.h"

struct rank_devices;

// Joins the devices of all ranks, if each of them has a library for it; waits for all. *out = NULL if not, and without
// ranks: then tensors go through the hosts. On a GPU rank 0 says in the log which way they go. `backend` and `ranks`
// outlive it. The caller frees it with rank_devices_free. A failure is the backend's or one of the ranks.
status rank_devices_open(struct rank_devices **out, struct backend *backend, struct ranks *ranks);

// Gives up what is under way, and frees it. NULL is fine; sets *devices to NULL. Keeps fail_text.
void rank_devices_free(struct rank_devices **devices);

// Begins an exchange as comm_exchange does. One at a time. A failure is final.
status rank_devices_begin(struct rank_devices *devices, const struct comm_piece *sends, size_t send_count,
                          const struct comm_piece *receives, size_t receive_count);

// Waits for the exchange, if one is under way: operations that are called from now on read what was received and may
// change what was sent. UNAVAILABLE, which is final, when a rank is gone or hangs, or the connection fails; BUG when
// the ranks disagree. Then what was under way is given up.
status rank_devices_end(struct rank_devices *devices);
