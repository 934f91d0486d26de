// Reads any bytes as a wire message. What was read must survive being written and read, and a HELLO is admitted or
// refused with a reason.
#include "tests/fuzz/fuzz.h"

#include "shared/wire/wire.h"

static void try_admission(const struct wire_message *hello) {
    const struct wire_self self = {.run = "0123456789abcdef source=1", .name = "frames", .replica = 1, .machine = "m"};
    const status result = wire_admits(&self, hello, NULL);
    fuzz_must(result == OK || (result == DATAERR && *fail_text()));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct wire_message message, second;
    struct arena arena = {0};
    struct buf first = {0}, again = {0};
    if (message_decode(&message, &arena, data, size) == OK) {
        fuzz_must(message_encode(&message, &first) == OK);
        fuzz_must(message_decode(&second, &arena, first.data, first.size) == OK);
        fuzz_must(message_encode(&second, &again) == OK);
        if (message.kind == MESSAGE_HELLO) try_admission(&message);
        fuzz_must(first.size == again.size && !memcmp(first.data, again.data, first.size));
    }
    arena_release(&arena);
    buf_release(&first);
    buf_release(&again);
    return 0;
}
