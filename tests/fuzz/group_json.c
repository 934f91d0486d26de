// Reads any bytes as a group's JSON. A group that was read must come back the same from msgpack and from JSON.
#include "tests/fuzz/fuzz.h"

#include "shared/group/group.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct group *first = NULL, *second = NULL, *third = NULL;
    struct buf json = {0}, packed = {0}, again = {0};
    if (group_from_json(&first, (const char *)data, size) != OK) return 0;
    group_to_json(first, &json);
    group_to_msgpack(first, &packed);
    fuzz_must(group_from_msgpack(&second, packed.data, packed.size) == OK);
    group_to_json(second, &again);
    fuzz_must(json.size == again.size && !memcmp(json.data, again.data, json.size));
    buf_clear(&again);
    fuzz_must(group_from_json(&third, json.data, json.size) == OK);
    group_to_json(third, &again);
    fuzz_must(json.size == again.size && !memcmp(json.data, again.data, json.size));
    group_check(first, ~0u);
    group_free(&first);
    group_free(&second);
    group_free(&third);
    buf_release(&json);
    buf_release(&packed);
    buf_release(&again);
    return 0;
}
