// Any bytes as a message of the wire: what is read must be written and read again the same; and as a list of orders.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shared/wire/message.h"
#include "shared/wire/orders.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int good) {
    if (!good) abort();
}

static void try_orders(const uint8_t *data, size_t size) {
    int64_t *orders = NULL, *again = NULL;
    size_t count = 0, count_again = 0;
    struct buf text = {0}, written = {0};
    must(buf_append(&text, data, size < 200 ? size : 200) == OK);
    if (orders_read(text.data ? text.data : "", &orders, &count, NULL) == OK && count < 100) {
        must(orders_write(orders, count, &written) == OK);
        must(orders_read(written.data, &again, &count_again, NULL) == OK && count_again <= count);
    }
    free(orders);
    free(again);
    buf_release(&text);
    buf_release(&written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct wire_message message, second;
    struct arena arena = {0};
    struct buf first = {0}, again = {0};
    try_orders(data, size);
    if (message_decode(&message, &arena, data, size) == OK) {
        must(message_encode(&message, &first) == OK);
        must(message_decode(&second, &arena, first.data, first.size) == OK);
        must(message_encode(&second, &again) == OK);
        must(first.size == again.size && !memcmp(first.data, again.data, first.size));
    }
    arena_release(&arena);
    buf_release(&first);
    buf_release(&again);
    return 0;
}
