// What a run needs of this machine, against what the machine has now.
#ifndef SHARED_RESOURCES_MACHINE_RESOURCES_H
#define SHARED_RESOURCES_MACHINE_RESOURCES_H

#include "shared/base/memory.h"
#include "shared/config/pipeline.h"

// Returns whether this machine has a GPU: whether a stage without `device` computes on one.
bool machine_has_gpu(void);

// Returns the bytes of memory that a process can take on this machine now: what is available there or, if that is less,
// what the limits of the process's cgroups leave; 0: it is not known.
uint64_t machine_memory_available(void);

// Appends a line for what this machine has too little of now for its part of the run: "memory: ..." and "disk: ...".
// `machine` is its index in the pipeline, whose optim has its `publish`. A user's program does not count, and what the
// run has written already counts as free. DATAERR when a model's configuration cannot be read; UNAVAILABLE for a
// directory that does not say how much room it has.
status machine_resources_check(const struct pipeline *pipeline, int machine, struct buf *lines);

#endif
