// Reads any text as a list of names. Its names written with commas must be the same list.
#include "tests/fuzz/fuzz.h"

#include "shared/config/name_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena arena = {0};
    struct buf text = {0};
    struct string_list first, second;
    buf_append(&text, data, size);
    if (name_list_expand(text.data, &arena, &first) == OK) {
        fuzz_must(first.count > 0 && first.count <= MAX_NAMES);
        buf_clear(&text);
        for (size_t i = 0; i < first.count; i++) buf_printf(&text, "%s%s", i ? "," : "", first.data[i]);
        fuzz_must(name_list_expand(text.data, &arena, &second) == OK && second.count == first.count);
        for (size_t i = 0; i < first.count; i++) fuzz_must(strcmp(first.data[i], second.data[i]) == 0);
    }
    buf_release(&text);
    arena_release(&arena);
    return 0;
}
