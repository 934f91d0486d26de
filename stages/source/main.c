// caravan-source: makes a group of each sample of a data set, in the order in which they are to be trained.
//
// In a pipeline the runner asks for groups by their number (seq) and keeps the ledger; neither is done here.
#include <stdlib.h>

#include "shared/data/dataset.h"
#include "shared/stage/stage.h"

struct source_stage {
    struct dataset *dataset;
    int64_t count; // of groups
};

static status source_open(void **state, struct stage_context *context) {
    const struct source_options *options = stage_options(context);
    struct source_stage *stage;
    NEW(&stage, 1);
    *state = stage;
    TRY(dataset_open(&stage->dataset, options));
    stage->count = (int64_t)dataset_count(stage->dataset);
    // A filter does not learn what is quarantined later. In a pipeline the issuer counts the steps.
    const int64_t max_steps = options->max_steps, per_step = options->groups_per_step;
    if (max_steps && !stage_in_pipeline(context) && max_steps <= stage->count / per_step)
        stage->count = max_steps * per_step;
    return OK;
}

static status source_describe(void *state, int64_t *count, uint64_t *hash, struct buf *data) {
    struct source_stage *stage = state;
    *count = stage->count;
    *hash = dataset_hash(stage->dataset);
    dataset_describe(stage->dataset, data);
    return OK;
}

static status source_group_at(void *state, int64_t seq, struct group **out, size_t *line) {
    struct dataset *dataset = ((struct source_stage *)state)->dataset;
    TRY(dataset_group(dataset, (size_t)seq, out));
    *line = dataset_line(dataset, (size_t)seq);
    return OK;
}

static status source_close(void *state) {
    struct source_stage *stage = state;
    if (stage) dataset_free(&stage->dataset);
    free(stage);
    return OK;
}

static const struct stage source_stage_table = {
    .name = "source",
    .section = -1,
    .open = source_open,
    .describe = source_describe,
    .group_at = source_group_at,
    .close = source_close,
};

int main(int argc, char **argv) {
    return stage_main(&source_stage_table, argc, argv);
}
