// caravan-score: scores each completion as the evaluation of a benchmark does. The rules are in
// shared/reward/accuracy.h. It computes a group's scores faster than it could look them up, so it stores no section,
// only the groups.
#include "shared/reward/accuracy.h"
#include "shared/stage/stage.h"

static status score_work(void *state, struct group *group) {
    const struct score_options *options = stage_options(state);
    return score_group(group, options->scoring == SCORE_SCORING_RELEASED);
}

static const struct stage score_stage = {
    .name = "score",
    .quick = true,
    .needs = NEED_COMPLETIONS,
    .section = -1,
    .work = score_work,
};

int main(int argc, char **argv) {
    return stage_main(&score_stage, argc, argv);
}
