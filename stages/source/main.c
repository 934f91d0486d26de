// caravan-source: makes a group of each sample of a data set, in the order in which they are to be trained.
//
// In a pipeline the runner asks for groups by their number (seq) and keeps the ledger; neither is done here.
#include "shared/data/dataset.h"
#include "shared/stage/stage.h"

static status source_open(void **state, struct stage_context *context) {
    return dataset_open((struct dataset **)state, stage_options(context));
}

static status source_describe(void *state, int64_t *count, uint64_t *hash) {
    *count = (int64_t)dataset_count(state);
    *hash = dataset_hash(state);
    return OK;
}

static status source_group_at(void *state, int64_t seq, struct group **out) {
    return dataset_group(state, (size_t)seq, out);
}

static status source_close(void *state) {
    struct dataset *dataset = state;
    dataset_free(&dataset);
    return OK;
}

static const struct stage source_stage = {
    .name = "source",
    .section = -1,
    .open = source_open,
    .describe = source_describe,
    .group_at = source_group_at,
    .close = source_close,
};

int main(int argc, char **argv) {
    return stage_main(&source_stage, argc, argv);
}
