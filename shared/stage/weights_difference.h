// The difference between two versions of a file of weights: their XOR, compressed with zstd. A training step changes
// few bytes of a number, so the difference is much smaller than the file.
//
// It is one zstd frame with a checksum, whose content has the file's size: for each block of 1 MiB (the last one may be
// shorter) the XOR's bytes 0, 4, 8, ..., then 1, 5, 9, ..., then 2, 6, ..., then 3, 7, ...: what changes in a number is
// mostly its last byte.
#ifndef SHARED_STAGE_WEIGHTS_DIFFERENCE_H
#define SHARED_STAGE_WEIGHTS_DIFFERENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/base/status.h"

// Writes the difference of two files to the empty file `out`, all three given by their descriptors. BAD_SAMPLE when the
// files differ in size, or the difference would have more than `limit` bytes; END when *stop becomes true; UNAVAILABLE
// when a file cannot be read or written.
status weights_difference_make(int base, int file, int64_t limit, const atomic_bool *stop, int out);

// Makes the file again: writes `size` bytes, which the base has too, to `out` from its beginning. DATAERR when
// `difference` is no difference of files of that size, or damaged; UNAVAILABLE when a file cannot be read or written,
// or memory is short. No more than `size` bytes are written in any case, and less than 8 MiB of memory are used.
status weights_difference_apply(int difference, int base, int64_t size, int out);

#endif
