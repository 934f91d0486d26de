// caravan-reward: computes the rewards of each completion by kind, their total, and the advantages in the group. The
// formulas are in shared/reward.
#include "shared/reward/reward.h"
#include "shared/stage/stage.h"

static status reward_work(void *state, struct group *group) {
    const struct stage_context *context = state;
    return reward_group(group, stage_options(context));
}

static const struct stage reward_stage = {
    .name = "reward",
    .quick = true,
    .needs = NEED_COMPLETIONS,
    .section = SECTION_REWARD,
    .work = reward_work,
};

int main(int argc, char **argv) {
    return stage_main(&reward_stage, argc, argv);
}
