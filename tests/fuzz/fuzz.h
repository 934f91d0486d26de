// What every fuzz target needs.
#pragma once

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
