// What every fuzz target needs.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// libFuzzer calls this with each input.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Ends the process, which libFuzzer reports with the input, unless `holds`.
#define fuzz_must(holds) fuzz_check(holds, __FILE__, __LINE__, #holds)

static inline void fuzz_check(bool holds, const char *file, int line, const char *text) {
    if (holds) return;
    fprintf(stderr, "%s:%d: must hold: %s\n", file, line, text);
    abort();
}
