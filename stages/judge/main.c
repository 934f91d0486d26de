// caravan-judge: says of each completion whether its thinking supports its answer. The judge `concludes` is in
// shared/reward/concludes.h.
#include "shared/reward/concludes.h"
#include "shared/stage/stage.h"

static status judge_work(void *state, struct group *group) {
    (void)state; // there is one judge
    return concludes_group(group);
}

static const struct stage judge_stage = {
    .name = "judge",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_CONSISTENCY,
    .work = judge_work,
};

int main(int argc, char **argv) {
    return stage_main(&judge_stage, argc, argv);
}
