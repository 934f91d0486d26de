// A decode batch on the CPU: its slots are on the host, and only the rows at work are computed.
#ifndef KERNELS_CPU_DECODE_BATCH_H
#define KERNELS_CPU_DECODE_BATCH_H

#include "kernels/cpu/cpu.h"
#include "shared/base/memory.h"

// What a step drew, for each slot.
struct decode_draws {
    int32_t *tokens; // -1: idle
    float *logprobs;
};

struct decode_slot {
    bool at_work;
    struct decode_row row;
};

struct cpu_decode_batch {
    struct decode_batch base;
    struct arena arena; // of the arrays
    int capacity;
    struct heads heads;
    const int32_t *eos_ids;
    size_t eos_count;
    struct decode_slot *slots;    // [capacity]
    int *slot_of_row;             // [base.rows]
    struct attention_span *spans; // [base.rows]
    int64_t steps;                // sampled so far
    struct decode_draws draws[2]; // of step i: draws[i % 2]
    struct buffer *inputs;        // the memory of the tensors
};

static inline struct cpu_decode_batch *cpu_decode_batch_of(struct decode_batch *batch) {
    return (struct cpu_decode_batch *)batch;
}

// Begins a step: no slot has drawn a token yet.
void decode_batch_begin(struct cpu_decode_batch *batch);

// Draws the token of row `row` from its logits. Rows may be drawn by several threads.
void decode_batch_draw(const struct cpu_backend *cpu, struct cpu_decode_batch *batch, int64_t row, const float *logits,
                       int64_t vocabulary);

// Ends the step, in which every row has drawn a token: the rows move on. UNAVAILABLE when memory is short.
status decode_batch_end(struct backend *backend, struct cpu_decode_batch *batch);

#endif
