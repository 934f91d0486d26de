// Reads any bytes as a wire message and as a set of sequence numbers. What was read must survive being written and
// read, and a HELLO is admitted or refused with a reason.
#include "tests/fuzz/fuzz.h"

#include "shared/wire/admission.h"
#include "shared/wire/message.h"
#include "shared/wire/seq_set.h"

static void try_seqs(const uint8_t *data, size_t size) {
    int64_t *seqs = NULL, *again = NULL;
    size_t count = 0, count_again = 0;
    struct buf text = {0}, written = {0};
    fuzz_must(buf_append(&text, data, size < 200 ? size : 200) == OK);
    if (seq_set_parse(text.data ? text.data : "", &seqs, &count, NULL) == OK && count < 100) {
        fuzz_must(seq_set_format(seqs, count, &written) == OK);
        fuzz_must(seq_set_parse(written.data, &again, &count_again, NULL) == OK && count_again <= count);
    }
    free(seqs);
    free(again);
    buf_release(&text);
    buf_release(&written);
}

static void try_admission(const struct wire_message *hello) {
    const struct wire_self self = {.run = "0123456789abcdef source=1", .name = "frames", .replica = 1, .machine = "m"};
    char reason[ADMISSION_REASON_MAX];
    fuzz_must(admission_check(&self, hello, NULL, &reason) == !*reason);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct wire_message message, second;
    struct arena arena = {0};
    struct buf first = {0}, again = {0};
    try_seqs(data, size);
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
