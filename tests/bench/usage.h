// What a process has used so far.
#pragma once

#include <sys/resource.h>

// Processor seconds of all threads, which other work on the machine does not change.
static inline double bench_processor_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// The most memory at a time, in 10^9 bytes.
static inline double bench_peak_gigabytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024 / 1e9;
}
