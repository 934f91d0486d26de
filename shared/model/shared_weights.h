// Weights that several processes of one machine use where they are, in the memory of one device. The process that
// trains them lends them: it writes a small file that says where they are, and that all of them map. Other processes
// borrow them: they import the memory that the file names. Where adapters are trained, it names their base, too.
//
// The file is a struct shared_weights_page. Its generation is odd while the weights change in place. A result is that
// of the version that was borrowed if the generation is the same before and after. The base never changes. Ranks that
// train one model lend the same weights, each on its device: the first one's file has the path itself, that of another
// one a number behind it.
#pragma once

#include "kernels/ops.h"

struct shared_weights_page;

// Arrays that are shared. The buffers are the lender's; a borrower says what it expects.
struct shared_arrays {
    struct buffer *values, *base; // base: of adapters; NULL: there is none
    size_t bytes, base_bytes;
    uint64_t layout; // a hash of what is where in them, and of what else a result depends on but the numbers
};

// What a process lends, and how.
struct shared_offer {
    struct shared_arrays arrays;
    uint64_t base_hash;
    bool copied;         // others may only copy the weights
    int lender, lenders; // this process among those that lend the same, from 0
};

// One process's view of the file and the memory.
struct shared_weights {
    char *path;
    struct shared_weights_page *page; // mapped
    struct buffer *imported;          // of the borrower; of the lender NULL
    struct buffer *imported_base;     // likewise; NULL: there is none
    uint64_t base_hash;               // of the borrower
    uint64_t generation;              // of the borrower: of the weights that it took
    bool copied;                      // of the borrower: the weights may only be copied
};

// ---- the lender ----

// Writes the file. The weights count as changing until the first shared_weights_end_change. Release with
// shared_weights_release. UNAVAILABLE when memory cannot be exported or the file cannot be written.
status shared_weights_lend(struct shared_weights *shared, struct backend *backend, const struct shared_offer *offer,
                           const char *path);

// Before the weights change. Fine twice, and for a zeroed struct.
void shared_weights_begin_change(struct shared_weights *shared);

// The change is complete on the device; `hash` is that of the weights now. Fine without a change.
void shared_weights_end_change(struct shared_weights *shared, uint64_t hash);

// ---- the borrower ----

// Whether the file at `path` is such a page, and not weights. DATAERR when it cannot be read.
status shared_weights_is_page(const char *path, bool *is_page);

// Maps the file of the lender on this device and imports its memory; `path` is that of the first lender. DATAERR when
// the weights have another layout or size, when none is on this device, or when it is gone. Release with
// shared_weights_release, after everything that uses `imported`, `imported_base`.
status shared_weights_borrow(struct shared_weights *shared, struct backend *backend,
                             const struct shared_arrays *expected, const char *path);

// Notes the present generation. BAD_SAMPLE when the weights are changing or are not those of `hash` any more.
status shared_weights_take(struct shared_weights *shared, uint64_t hash);

// Whether the weights are still those that were taken. Called after what was computed with them has been read.
bool shared_weights_intact(const struct shared_weights *shared);

// ---- both ----

// Unmaps the file, which stays, and frees what was imported. A zeroed struct is fine.
void shared_weights_release(struct shared_weights *shared, struct backend *backend);
