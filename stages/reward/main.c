// caravan-reward: computes the rewards of each completion by kind, their total, and the advantages in the group. The
// formulas are in shared/reward.
#include <string.h>

#include "shared/reward/reward.h"
#include "shared/stage/stage.h"

static status reward_open(void **state, struct stage_context *context) {
    static const struct {
        const char *name;
        enum reward_method method;
    } methods[] = {
        {"care", METHOD_CARE}, {"densecons", METHOD_DENSECONS}, {"grpo", METHOD_PLAIN}, {"nokl", METHOD_PLAIN}};
    const size_t method_count = sizeof methods / sizeof *methods;
    const struct reward_stage_options *options = stage_options(context);
    static struct reward_options reward; // a program has one stage
    size_t method = 0;
    while (method < method_count && strcmp(methods[method].name, options->method) != 0) method++;
    if (method == method_count)
        return fail(USAGE, "method: %s is not available yet; care, densecons, grpo and nokl are", options->method);
    reward = (struct reward_options){
        .method = methods[method].method,
        .coefficient = options->coefficient,
        .margin = options->margin,
        .upper_bound = options->upper_bound,
        .arithmetic_mean = options->likelihood == REWARD_LIKELIHOOD_ARITHMETIC,
        .min_length = options->length_reward.from,
        .max_length = options->length_reward.to,
    };
    *state = &reward;
    return OK;
}

static status reward_work(void *state, struct group *group) {
    return reward_group(group, state);
}

static const struct stage reward_stage = {
    .name = "reward",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_REWARD,
    .open = reward_open,
    .work = reward_work,
};

int main(int argc, char **argv) {
    return stage_main(&reward_stage, argc, argv);
}
