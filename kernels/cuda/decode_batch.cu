// Decode batches (decode_batch.h): slots, the inputs of the next step, and what the last two steps drew. `sample`
// itself is in sample.cu.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/decode_batch.h"
#include "kernels/cuda/device.h"

enum {
    decode_threads = 32,
    decode_alignment = 256, // of the arrays in the buffer
};

static_assert(offsetof(struct cuda_decode_batch, base) == 0, "a decode batch is found by its public part");

// ---- memory ----

// Returns the offset of an array of `bytes` bytes, and moves *end behind it.
static size_t decode_batch_place(size_t *end, size_t bytes) {
    size_t at = *end;
    *end = (at + bytes + decode_alignment - 1) / decode_alignment * decode_alignment;
    return at;
}

static struct tensor decode_batch_tensor(struct buffer *memory, size_t offset, int rows, int columns) {
    struct tensor out = {memory, offset, ELEMENT_I32, rows, columns, columns};
    return out;
}

// Allocates the arrays, and sets the pointers to them.
static status decode_batch_allocate(struct backend *backend, struct cuda_decode_batch *it, int capacity,
                                    const int32_t *eos_ids, size_t eos_count) {
    struct decode_state *state = &it->state;
    size_t end = 0, rows = (size_t)capacity;
    size_t slots = decode_batch_place(&end, rows * sizeof *state->slots);
    size_t drawn = decode_batch_place(&end, rows * sizeof *state->drawn);
    size_t history = decode_batch_place(&end, 2 * rows * sizeof *state->history);
    size_t steps = decode_batch_place(&end, sizeof *state->steps);
    size_t ids = decode_batch_place(&end, eos_count * sizeof *state->eos_ids);
    size_t tokens = decode_batch_place(&end, rows * sizeof *state->tokens);
    size_t position_ids = decode_batch_place(&end, 3 * rows * sizeof *state->position_ids);
    size_t cache_slots = decode_batch_place(&end, rows * sizeof *state->cache_slots);
    TRY(cuda_buffer_new(backend, end, &it->memory));
    unsigned char *data = it->memory->data;
    state->capacity = capacity;
    state->eos_count = (int)eos_count;
    state->slots = (struct cuda_decode_slot *)(data + slots);
    state->drawn = (struct decode_draw *)(data + drawn);
    state->history = (struct decode_draw *)(data + history);
    state->steps = (int64_t *)(data + steps);
    state->eos_ids = (const int32_t *)(data + ids);
    state->tokens = (int32_t *)(data + tokens);
    state->position_ids = (int32_t *)(data + position_ids);
    state->cache_slots = (int32_t *)(data + cache_slots);
    it->base.rows = capacity;
    it->base.tokens = decode_batch_tensor(it->memory, tokens, capacity, 1);
    it->base.position_ids = decode_batch_tensor(it->memory, position_ids, capacity, 3);
    it->base.cache_slots = decode_batch_tensor(it->memory, cache_slots, capacity, 1);
    if (eos_count == 0) return OK;
    return cuda_upload(backend, decode_batch_tensor(it->memory, ids, 1, (int)eos_count), eos_ids, ELEMENT_I32);
}

// ---- the device's side ----

// The inputs of a slot's next step. An idle row, and one that only samples its first token, attends to nothing and
// writes nothing into the KV cache.
DEVICE void decode_batch_write_inputs(const struct decode_state *state, int slot) {
    const struct decode_row *row = &state->slots[slot].row;
    bool at_work = state->slots[slot].at_work != 0, computes = at_work && row->len > 0;
    struct attention_tile *tile = &state->tiles[slot];
    state->tokens[slot] = computes ? row->token : 0;
    for (int axis = 0; axis < 3; axis++) state->position_ids[3 * slot + axis] = at_work ? row->position : 0;
    state->cache_slots[slot] = computes ? row->kv_begin + row->len - 1 : -1;
    tile->prefix_begin = computes ? row->prefix_begin : 0;
    tile->prefix_len = computes ? row->prefix_len : 0;
    tile->kv_begin = computes ? row->kv_begin : 0;
    tile->visible = computes ? row->len : 0;
}

// From slot `first` on.
__global__ void __launch_bounds__(decode_threads)
    decode_inputs_kernel(struct decode_state state, int first, int count) {
    for (int i = (int)threadIdx.x; i < count; i += decode_threads) decode_batch_write_inputs(&state, first + i);
}

__global__ void __launch_bounds__(decode_threads) decode_advance_kernel(struct decode_state state) {
    int64_t step = *state.steps;
    for (int slot = (int)threadIdx.x; slot < state.capacity; slot += decode_threads) {
        struct decode_draw drawn = {-1, 0};
        struct cuda_decode_slot *it = &state.slots[slot];
        if (it->at_work) {
            drawn = state.drawn[slot];
            it->row.token = drawn.token;
            it->row.position++;
            it->row.len++;
            if (it->row.len == it->row.max_len) it->at_work = false;
            for (int i = 0; i < state.eos_count; i++)
                if (state.eos_ids[i] == drawn.token) it->at_work = false;
        }
        state.history[step % 2 * state.capacity + slot] = drawn;
        decode_batch_write_inputs(&state, slot);
    }
    __syncthreads(); // everybody has read the number of the step
    if (threadIdx.x == 0) *state.steps = step + 1;
}

static status decode_batch_write_all_inputs(struct cuda_backend *cuda, const struct cuda_decode_batch *it) {
    LAUNCH(decode_inputs_kernel, 1, decode_threads, 0, cuda->stream, it->state, 0, it->state.capacity);
    TRY(cuda_launched("decode_batch"));
    return attention_plan_divide(cuda, it->base.plan);
}

// ---- operations ----

static status decode_batch_make_done(struct cuda_decode_batch *it) {
    CUDA_TRY(cudaMallocHost((void **)&it->history, 2 * (size_t)it->state.capacity * sizeof *it->history));
    for (int i = 0; i < 2; i++) CUDA_TRY(cudaEventCreateWithFlags(&it->done[i], cudaEventDisableTiming));
    return OK;
}

status cuda_decode_batch_new(struct backend *backend, struct decode_batch **out, int capacity, struct heads heads,
                             const int32_t *eos_ids, size_t eos_count) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_decode_batch *it = NULL;
    status result = OK;
    *out = NULL;
    CHECK(capacity > 0);
    NEW(&it, 1);
    *out = &it->base;
    TRY_TO(result, failed, decode_batch_allocate(backend, it, capacity, eos_ids, eos_count));
    TRY_TO(result, failed, attention_plan_for_decoding(cuda, &it->base.plan, heads, capacity));
    it->state.tiles = it->base.plan->tiles;
    TRY_TO(result, failed, decode_batch_write_all_inputs(cuda, it));
    TRY_TO(result, failed, decode_batch_make_done(it));
    return OK;
failed:
    cuda_decode_batch_free(backend, out);
    return result;
}

void cuda_decode_batch_free(struct backend *backend, struct decode_batch **batch) {
    if (!*batch) return;
    struct cuda_decode_batch *it = cuda_decode_batch_of(*batch);
    cuda_buffer_free(backend, &it->memory);
    cuda_attention_plan_free(backend, &it->base.plan);
    for (int i = 0; i < 2; i++)
        if (it->done[i]) (void)cudaEventDestroy(it->done[i]);
    (void)cudaFreeHost(it->history);
    free(it);
    *batch = NULL;
}

status cuda_decode_batch_set(struct backend *backend, struct decode_batch *batch, int slot,
                             const struct decode_row *row) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_decode_batch *it = cuda_decode_batch_of(batch);
    CHECK(slot >= 0 && slot < it->state.capacity && !cuda->recording);
    CHECK(!row || (row->len >= 0 && row->len < row->max_len && row->prefix_len >= 0));
    struct cuda_decode_slot value;
    memset(&value, 0, sizeof value);
    // With all its tokens but the last it attends to the most.
    if (row && row->max_len > 1) TRY(attention_plan_reserve(cuda, it->base.plan, row->prefix_len, row->max_len - 1));
    if (row) value.row = *row;
    value.at_work = row != NULL;
    struct tensor bytes = {it->memory, (size_t)slot * sizeof value, ELEMENT_U8, 1, sizeof value, sizeof value};
    TRY(cuda_upload(backend, bytes, &value, ELEMENT_U8));
    LAUNCH(decode_inputs_kernel, 1, decode_threads, 0, cuda->stream, it->state, slot, 1);
    TRY(cuda_launched("decode_batch_set"));
    return attention_plan_divide(cuda, it->base.plan);
}

status decode_batch_advance(struct cuda_backend *cuda, struct cuda_decode_batch *it) {
    size_t bytes = 2 * (size_t)it->state.capacity * sizeof *it->history;
    LAUNCH(decode_advance_kernel, 1, decode_threads, 0, cuda->stream, it->state);
    TRY(cuda_launched("sample"));
    TRY(attention_plan_divide(cuda, it->base.plan));
    CUDA_TRY(cudaMemcpyAsync(it->history, it->state.history, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    return OK;
}

status decode_batch_asked(struct cuda_backend *cuda, struct cuda_decode_batch *it) {
    CUDA_TRY(cudaEventRecord(it->done[it->steps % 2], cuda->stream));
    it->steps++;
    return OK;
}

status cuda_decode_batch_read(struct backend *backend, struct decode_batch *batch, int64_t step, int32_t *tokens,
                              float *logprobs) {
    struct cuda_decode_batch *it = cuda_decode_batch_of(batch);
    CHECK(!cuda_of(backend)->recording);
    CHECK(step >= 0 && step < it->steps && step >= it->steps - 2);
    CUDA_TRY(cudaEventSynchronize(it->done[step % 2]));
    const struct decode_draw *drawn = it->history + step % 2 * it->state.capacity;
    for (int slot = 0; slot < it->state.capacity; slot++) {
        tokens[slot] = drawn[slot].token;
        logprobs[slot] = drawn[slot].logprob;
    }
    return OK;
}
