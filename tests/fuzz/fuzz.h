// What every fuzz target needs.
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// libFuzzer calls this with each input.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Ends the process, which libFuzzer reports with the input, unless `holds`.
static inline void fuzz_must(bool holds) {
    if (!holds) abort();
}

#endif
