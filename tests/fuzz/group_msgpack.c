// Reads any bytes as a group's msgpack. A group that was read must come back the same from JSON and from msgpack.
#include "tests/fuzz/fuzz.h"

#include "shared/group/group.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct group *first = NULL, *second = NULL;
    struct buf json = {0}, packed = {0}, again = {0};
    if (group_from_msgpack(&first, data, size) != OK) return 0;
    group_to_json(first, &json);
    group_to_msgpack(first, &packed);
    fuzz_must(group_from_json(&second, json.data, json.size) == OK);
    group_to_json(second, &again);
    fuzz_must(json.size == again.size && !memcmp(json.data, again.data, json.size));
    buf_clear(&packed);
    for (enum group_section section = SECTION_PROMPT; section <= SECTION_TIMES; section++) {
        buf_clear(&packed);
        group_section_to_msgpack(first, section, &packed);
        fuzz_must(group_section_from_msgpack(second, section, packed.data, packed.size) == OK);
    }
    group_free(&first);
    group_free(&second);
    buf_release(&json);
    buf_release(&packed);
    buf_release(&again);
    return 0;
}
