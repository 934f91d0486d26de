// Reads any bytes as a safetensors file. Every byte of every tensor of a file that is accepted must be readable.
#include "tests/fuzz/fuzz.h"

#include "shared/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors *store = NULL;
    if (safetensors_open_memory(&store, data, size, "fuzz") != OK) return 0;
    unsigned sum = 0;
    for (size_t i = 0; i < safetensors_count(store); i++) {
        const struct stored_tensor *tensor = safetensors_at(store, i);
        const uint8_t *bytes = tensor->data;
        for (size_t j = 0; j < tensor->size; j++) sum += bytes[j];
        if (safetensors_find(store, tensor->name) != tensor) abort();
    }
    safetensors_close(&store);
    volatile unsigned kept = sum; // keeps the compiler from removing the reads
    (void)kept;
    return 0;
}
