#include "tests/ops/sampling.h"

#include "shared/base/rng.h"
#include "tests/ops/state.h"

uint64_t sampling_key(double low, double high) {
    uint64_t key = 0;
    for (; !(rng_uniform(key, 0, 0) >= low && rng_uniform(key, 0, 0) < high);) key++;
    return key;
}

void sampling_step(struct harness *h, struct tensor in, struct weight *head, const struct decode_row *rows,
                   int32_t *tokens, float *logprobs) {
    struct decode_batch *batch = NULL;
    harness_must(h->ops->decode_batch_new(h->backend, &batch, (int)in.rows, (struct heads){2, 1, 4}, NULL, 0));
    for (int i = 0; i < in.rows; i++) harness_ok(h, h->ops->decode_batch_set(h->backend, batch, i, &rows[i]));
    harness_hold(h, batch->rows == in.rows, "%d rows are at work, not %lld", batch->rows, (long long)in.rows);
    harness_ok(h, h->ops->sample(h->backend, batch, in, head));
    harness_ok(h, h->ops->decode_batch_read(h->backend, batch, 0, tokens, logprobs));
    h->ops->decode_batch_free(h->backend, &batch);
    harness_hold(h, !batch, "a batch that was freed is not NULL");
}
