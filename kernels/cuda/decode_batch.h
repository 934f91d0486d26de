// A decode batch on the device: its slots are in device memory, where `sample` moves them on, so that the host need not
// wait between steps. Every slot has a row in each step; what idle rows compute is not read.
#ifndef KERNELS_CUDA_DECODE_BATCH_H
#define KERNELS_CUDA_DECODE_BATCH_H

#include "kernels/cuda/attention.h"

struct cuda_decode_slot {
    struct decode_row row;
    int32_t at_work;
};

struct decode_draw {
    int32_t token; // -1: idle
    float logprob;
};

// What kernels see of a batch: pointers into one buffer.
struct decode_state {
    int capacity, eos_count;
    struct cuda_decode_slot *slots;               // [capacity]
    struct decode_draw *drawn;                    // [capacity], by the step that is computed
    struct decode_draw *history;                  // [2][capacity], of step i: history[i % 2]
    int64_t *steps;                               // sampled so far
    const int32_t *eos_ids;                       // [eos_count]
    int32_t *tokens, *position_ids, *cache_slots; // inputs of the next step
    struct attention_tile *tiles;                 // of the plan
};

struct cuda_decode_batch {
    struct decode_batch base;
    struct decode_state state;
    struct buffer *memory;       // of `state`
    struct decode_draw *history; // pinned: a copy for the host
    int64_t steps;               // asked for so far
    cudaEvent_t done[2];         // after the copy of step i: done[i % 2]
};

#ifdef __cplusplus
extern "C" {
#endif

static inline struct cuda_decode_batch *cuda_decode_batch_of(struct decode_batch *batch) {
    return (struct cuda_decode_batch *)batch;
}

// Ends a step: notes what was drawn, moves the slots on, and prepares the inputs of the next step. May be recorded.
status decode_batch_advance(struct cuda_backend *cuda, struct cuda_decode_batch *batch);

// Notes that the stream has got one more step, which decode_batch_read can then wait for. Not while a graph is
// recorded: a recorded step is noted when the graph is launched.
status decode_batch_asked(struct cuda_backend *cuda, struct cuda_decode_batch *batch);

// Notes that each launch of the graph that is recorded computes a step of `batch` (graph.c). UNAVAILABLE.
status graph_add_step(struct cuda_backend *cuda, struct decode_batch *batch);

#ifdef __cplusplus
}
#endif

#endif
