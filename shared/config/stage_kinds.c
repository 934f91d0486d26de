// The tables of the stages' options, made from the lists in stage_options.h, and the facts of each stage.
#include "shared/config/stage_kinds.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "shared/config/stage_options.h"

// A row of the table of OWNER's options. MEMBER says where the field lies, NAME what the option is called.
#define MEMBER(field) field
#define NAME(field)   #field
#undef OPTION_ENTRY
#define OPTION_ENTRY(of_field, of_option, field, ...)                                                                  \
    {.name = NAME(field), .offset = offsetof(struct OWNER, MEMBER(field)), .type = of_option, __VA_ARGS__},

#define OWNER common_options
const struct option common_options[] = {COMMON_OPTIONS{0}};
const struct option internal_options[] = {INTERNAL_OPTIONS{0}};
#undef OWNER

// In the struct of a stage with a model, `model` is the first member, and frames' options lie in a member of that.
#define OWNER stage_model_options
#undef MEMBER
#undef NAME
#define MEMBER(field) frames.field
#define NAME(field)   "frames." #field
static const struct option model_internal_options[] = {
    {.name = "node",
     .offset = offsetof(struct stage_model_options, common.node),
     .type = OPTION_FILE,
     .help = "its node configuration in a run"},
    FRAMES_OPTIONS
#undef MEMBER
#undef NAME
#define MEMBER(field) field
#define NAME(field)   #field
        REPLAY_OPTIONS{0},
};
#undef OWNER
#undef MODEL_ENTRY
#define MODEL_ENTRY(of_option, member, field, ...)                                                                     \
    {.name = (field), .offset = offsetof(struct OWNER, model.member), .type = of_option, __VA_ARGS__},

#define OWNER source_options
static const struct option source_options[] = {SOURCE_OPTIONS{0}};
#undef OWNER

#define OWNER frames_options
static const struct option frames_options[] = {FRAMES_OPTIONS{0}};
#undef OWNER

#define OWNER rollout_options
static const struct option rollout_options[] = {ROLLOUT_OPTIONS{0}};
#undef OWNER

#define OWNER refscore_options
static const struct option refscore_options[] = {REFSCORE_OPTIONS{0}};
#undef OWNER

#define OWNER consistency_options
static const struct option consistency_options[] = {CONSISTENCY_OPTIONS{0}};
#undef OWNER

#define OWNER reward_options
static const struct option reward_options[] = {REWARD_OPTIONS{0}};
#undef OWNER

#define OWNER score_options
static const struct option score_options[] = {SCORE_OPTIONS{0}};
#undef OWNER

#define OWNER judge_options
static const struct option judge_options[] = {JUDGE_OPTIONS{0}};
#undef OWNER

#define OWNER optim_options
static const struct option optim_options[] = {OPTIM_OPTIONS{0}};
#undef OWNER

// common_options[], internal_options[] and model_internal_options[] rely on these offsets.
#define FIRST(stage, member) static_assert(offsetof(struct stage, member) == 0, "the first member")
FIRST(stage_model_options, common);
FIRST(source_options, common);
FIRST(frames_options, common);
FIRST(rollout_options, model);
FIRST(refscore_options, model);
FIRST(consistency_options, model);
FIRST(reward_options, common);
FIRST(score_options, common);
FIRST(judge_options, model);
FIRST(optim_options, model);

#define STAGE(stage, rest, text)                                                                                       \
    .name = #stage, .options = {.program = "caravan-" #stage,                                                          \
                                .help = (text),                                                                        \
                                .options = stage##_options,                                                            \
                                .common = common_options,                                                              \
                                .internal = (rest),                                                                    \
                                .size = sizeof(struct stage##_options)}

const struct stage_kind stage_kinds[STAGE_COUNT] = {
    [STAGE_SOURCE] = {STAGE(source, internal_options, "reads a data set and writes its samples as groups"),
                      .single = true},
    [STAGE_FRAMES] = {STAGE(frames, internal_options, "decodes and resizes clips and images into the store")},
    [STAGE_ROLLOUT] = {STAGE(rollout, model_internal_options, "samples completions from the policy"),
                       .follows_weights = true, .needs_frames = true},
    [STAGE_REFSCORE] = {STAGE(refscore, model_internal_options, "scores answers under the reference model"),
                        .follows_weights = true, .needs_frames = true, .scores = true},
    [STAGE_CONSISTENCY] = {STAGE(consistency, internal_options,
                                 "gives each completion the probability that its thinking supports its answer")},
    [STAGE_REWARD] = {STAGE(reward, internal_options, "computes rewards and advantages")},
    [STAGE_SCORE] = {STAGE(score, internal_options, "scores the completions as a benchmark's evaluation does")},
    [STAGE_JUDGE] = {STAGE(judge, internal_options,
                           "says whether the thinking of each completion supports its answer")},
    [STAGE_OPTIM] = {STAGE(optim, model_internal_options, "trains the policy on finished groups"), .single = true,
                     .needs_frames = true, .trains = true},
};

const struct stage_kind *stage_kind_find(const char *name) {
    for (int i = 0; i < STAGE_COUNT; i++)
        if (!strcmp(stage_kinds[i].name, name)) return &stage_kinds[i];
    return NULL;
}
