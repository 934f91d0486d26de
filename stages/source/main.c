// caravan-source: a data set's samples as groups, in the order in which they are to be trained.
#include "shared/data/dataset.h"
#include "shared/stage/stage.h"

static status open_source(void **state, struct stage_context *context) {
    return dataset_open((struct dataset **)state, stage_options(context));
}

static uint64_t fingerprint(void *state) {
    return dataset_hash(state);
}

static status count(void *state, int64_t *out) {
    *out = (int64_t)dataset_count(state);
    return OK;
}

static status group_at(void *state, int64_t seq, struct group **out) {
    return dataset_group(state, (size_t)seq, out);
}

static status close_source(void *state) {
    struct dataset *dataset = state;
    dataset_free(&dataset);
    return OK;
}

static const struct stage source = {
    .name = "source",
    .section = -1,
    .open = open_source,
    .fingerprint = fingerprint,
    .count = count,
    .group_at = group_at,
    .close = close_source,
};

int main(int argc, char **argv) {
    return stage_main(&source, argc, argv);
}
