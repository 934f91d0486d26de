// TensorBoard's event files: records of TFRecord, each with an Event of TensorFlow's event.proto. They are only written
// here, and only with what metrics need: scalars and histograms.
//
// A process that goes on after a crash begins a new file. Its first records tell the reader to forget the steps that
// will be trained again, and a record that the crash has cut short ends the file before.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"

// Returns the CRC-32C (Castagnoli) of the bytes.
uint32_t crc32c(const void *data, size_t size);

// A value that is not finite is left out.
struct event_scalar {
    const char *tag;
    double value;
};

// Of the finite values; left out if there is none.
struct event_histogram {
    const char *tag;
    const double *values;
    size_t count;
};

// Appends the first records of a file whose first step is `step`. `time` is in seconds since 1970, here and below.
void event_file_begin(struct buf *out, double time, int64_t step);

// Appends one record with the scalars and histograms of a step.
void event_file_step(struct buf *out, double time, int64_t step, const struct event_scalar *scalars,
                     size_t scalar_count, const struct event_histogram *histograms, size_t histogram_count);
