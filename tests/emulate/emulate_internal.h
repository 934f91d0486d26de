// What the emulator's files share: its devices and how work gets into a stream.
#pragma once

#include "emulate.h"

#include <cstddef>
#include <cstdint>

namespace emulate {

// How one of the emulated devices behaves. All of them compute the same bits, but for the sums of tensor cores.
struct device {
    const char *name;
    int major, minor;     // its compute capability
    size_t shared_bytes;  // dynamic shared memory that a block may have
    bool shuffled;        // threads run in random order, otherwise by number
    bool copies_early;    // asynchronous copies happen at once, otherwise when they are waited for
    bool streams_late;    // work of a stream is done when somebody waits for it, otherwise at once
    int products_at_once; // of one sum of a tensor core: sm_90 takes 16 products, sm_80 twice 8
    int sum_bits;         // fractional bits that are kept of each term, relative to the largest: 25, or 24 on sm_80
};

// Runs kernel() as every thread of the grid, as `device` does.
void run_grid(const struct device &device, const char *kernel_name, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()> &kernel);

// c[rows,8] += a[rows,16] b[16,8], as the tensor cores of sm_90 (16 products at once, 25 bits) or of sm_80 (8 products
// at once, 24 bits) do.
void add_products(float c[][8], const uint16_t a[][16], int rows, const uint16_t b[16][8], int products_at_once,
                  int sum_bits);

// Puts the work of another engine into a stream: it begins as soon as its turn has come, on late streams too, and what
// follows waits until `ended` says so. False when the stream is recorded or unknown.
bool put_engine(cudaStream_t stream, std::function<void()> begin, std::function<bool()> ended);

// Whether all of it is memory of a device.
bool is_device_memory(const void *address, size_t bytes);

// Memory that processes can share (shared_memory.cpp).

// What another process needs to find shared memory. The memory is a file without a name, which the process that shares
// it keeps open.
struct shared_name {
    int process, descriptor;
    uint64_t device, inode; // of the file
    size_t bytes;
};

// Returns memory of whole pages, of which the first `bytes` bytes may be used; NULL when there is none.
void *pages_new(size_t bytes);

// Frees pages of pages_new that are not shared.
void pages_free(void *pages, size_t bytes);

// Makes the pages shared, where they are and with what they hold. Returns false when there are no files or no memory.
bool pages_share(void *pages, size_t bytes, struct shared_name *out);

// Returns the pages that another process shares; NULL when they are gone.
void *shared_map(const struct shared_name *name);

// Unmaps them; the other process keeps them.
void shared_unmap(void *pages, const struct shared_name *name);

// What all processes together may have (capacity.cpp). Without CARAVAN_EMULATED_MEMORY these do nothing.

// Counts memory for this process. Returns false when there is not as much left.
bool capacity_take(size_t bytes);

// Counts it no more.
void capacity_return(size_t bytes);

// Counts memory that this process shares, or that it has imported, for all that have it: until the last one has called
// capacity_unshare, or has ended. Returns what capacity_unshare takes.
int capacity_share(const struct shared_name *memory);

// This process has it no more.
void capacity_unshare(int held);

// Sets what is left and what there is.
void capacity_info(size_t *free_bytes, size_t *total_bytes);

} // namespace emulate
