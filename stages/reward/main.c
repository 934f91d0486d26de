// caravan-reward: rewards by kind, their total, and the group's advantages. It holds nothing but its keys.
#include <math.h>
#include <stdlib.h>

#include "shared/reward/reward.h"
#include "shared/stage/stage.h"

static status read_method(const struct settings *settings, enum reward_method *out) {
    static const struct {
        const char *name;
        enum reward_method method;
    } methods[] = {
        {"care", METHOD_CARE}, {"densecons", METHOD_DENSECONS}, {"grpo", METHOD_PLAIN}, {"nokl", METHOD_PLAIN}};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (!settings_is(settings, "method", methods[i].name)) continue;
        *out = methods[i].method;
        return OK;
    }
    return fail(USAGE, "method: %s is not there yet; care, densecons, grpo and nokl are",
                settings_text(settings, "method"));
}

static status open_rules(void **state, struct stage_context *context) {
    const struct settings *settings = stage_settings(context);
    struct reward_options *rules;
    TRY(NEW(&rules, 1));
    *state = rules;
    TRY(read_method(settings, &rules->method));
    rules->coefficient = settings_number(settings, "coefficient");
    rules->margin = settings_number(settings, "margin");
    rules->upper_bound = settings_number(settings, "upper_bound");
    rules->arithmetic_mean = settings_is(settings, "likelihood", "arithmetic");
    settings_range(settings, "length_reward", &rules->min_length, &rules->max_length);
    return OK;
}

static status work(void *state, struct group *group) {
    return reward_group(group, state);
}

static status close_rules(void *state) {
    free(state);
    return OK;
}

static const struct stage reward = {
    .name = "reward",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_REWARD,
    .open = open_rules,
    .work = work,
    .close = close_rules,
};

int main(int argc, char **argv) {
    return stage_main(&reward, argc, argv);
}
