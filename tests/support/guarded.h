// The CPU's backend with buffers that can be read and written while an operation runs only: a SIGSEGV finds who reads
// or writes what a tensor holds from outside, which on a GPU would be another memory.
#pragma once

#include "kernels/ops.h"

// backend_open for the CPU, guarded.
status guarded_open(struct backend **out, const struct backend_options *options);
