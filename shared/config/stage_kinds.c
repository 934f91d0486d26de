// The tables of the stages' options, made from the lists in stage_options.h, and the facts of each stage.
#include "shared/config/stage_kinds.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "shared/config/stage_options.h"

// A row of the table of OWNER's options. `member` is where the field lies, `field` its name; then come what the type
// takes, the help, and what else the option says.
#define ROW(kind, member, field, ...)                                                                                  \
    {.name = field, .offset = offsetof(struct OWNER, member), .type = kind, __VA_ARGS__},
#define OPT_TEXT(field, text, ...)   ROW(OPTION_STRING, field, #field, .help = (text), ##__VA_ARGS__)
#define OPT_FILE(field, text, ...)   ROW(OPTION_FILE, field, #field, .help = (text), ##__VA_ARGS__)
#define OPT_PATH(field, text, ...)   ROW(OPTION_PATH, field, #field, .help = (text), ##__VA_ARGS__)
#define OPT_DEVICE(field, text, ...) ROW(OPTION_DEVICE, field, #field, .help = (text), ##__VA_ARGS__)
#define OPT_SIZE(field, text, ...)   ROW(OPTION_SIZE, field, #field, .help = (text), ##__VA_ARGS__)
#define WORDS(kind, field, first, words, text, ...)                                                                    \
    ROW(kind, field, #field, .default_value = (first), .choices = (words), .help = (text), ##__VA_ARGS__)
#define OPT_NAME(...)   WORDS(OPTION_NAME, __VA_ARGS__)
#define OPT_CHOICE(...) WORDS(OPTION_CHOICE, __VA_ARGS__)
#define OPT_RANGE(...)  WORDS(OPTION_RANGE, __VA_ARGS__)
#define OPT_KEEP(...)   WORDS(OPTION_KEEP, __VA_ARGS__)
#define OPT_BOOL(field, first, text, ...)                                                                              \
    ROW(OPTION_BOOL, field, #field, .default_value = (first), .help = (text), ##__VA_ARGS__)
#define BOUNDED(kind, field, first, least, most, text, ...)                                                            \
    ROW(kind, field, #field, .default_value = (first), .low = (least), .high = (most), .help = (text), ##__VA_ARGS__)
#define OPT_INT(...)    BOUNDED(OPTION_INT, __VA_ARGS__)
#define OPT_NUMBER(...) BOUNDED(OPTION_NUMBER, __VA_ARGS__)
#define OPT_NUMBER_OR(field, first, least, most, words, ...)                                                           \
    BOUNDED(OPTION_NUMBER_OR, field, first, least, most, __VA_ARGS__, .choices = (words))
// OPT_MEDIA's rows where the fields lie in `model`.
#define OPT_MODEL_MEDIA                                                                                                \
    ROW(OPTION_FILE, model.media_root, "media_root", .help = MEDIA_ROOT_HELP, FROM_SOURCE, NOT_HASHED)                 \
    ROW(OPTION_CHOICE, model.media_outside, "media_outside", .default_value = "allow", .choices = "allow|refuse",      \
        .help = MEDIA_OUTSIDE_HELP, FROM_SOURCE, NOT_HASHED)
#define OPT_MODEL(text, ...) ROW(OPTION_FILE, model.dir, "model", .help = (text), ##__VA_ARGS__)

#define OWNER common_options
const struct option common_options[] = {COMMON_OPTIONS{0}};
#undef OWNER

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

// common_options[] relies on these offsets.
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

#define STAGE(stage, owner, text)                                                                                      \
    .name = #stage, .options = {.program = "caravan-" #stage,                                                          \
                                .help = (text),                                                                        \
                                .options = stage##_options,                                                            \
                                .common = common_options,                                                              \
                                .size = sizeof(struct owner)}

const struct stage_kind stage_kinds[STAGE_COUNT] = {
    [STAGE_SOURCE] = {STAGE(source, source_options, "reads a data set and writes its samples as groups"),
                      .single = true},
    [STAGE_FRAMES] = {STAGE(frames, frames_options, "decodes and resizes clips and images into the store")},
    [STAGE_ROLLOUT] = {STAGE(rollout, rollout_options, "samples completions from the policy"), .follows_weights = true},
    [STAGE_REFSCORE] = {STAGE(refscore, refscore_options, "scores answers under the reference model"),
                        .follows_weights = true, .scores = true},
    [STAGE_CONSISTENCY] = {STAGE(consistency, consistency_options,
                                 "gives each completion the probability that its thinking supports its answer")},
    [STAGE_REWARD] = {STAGE(reward, reward_options, "computes rewards and advantages")},
    [STAGE_SCORE] = {STAGE(score, score_options, "scores the completions as a benchmark's evaluation does")},
    [STAGE_JUDGE] = {STAGE(judge, judge_options, "says whether the thinking of each completion supports its answer")},
    [STAGE_OPTIM] = {STAGE(optim, optim_options, "trains the policy on finished groups"), .single = true},
};

const struct stage_kind *stage_kind_find(const char *name) {
    for (int i = 0; i < STAGE_COUNT; i++)
        if (!strcmp(stage_kinds[i].name, name)) return &stage_kinds[i];
    return NULL;
}
