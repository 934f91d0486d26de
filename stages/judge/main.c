// caravan-judge: says of each completion whether its thinking supports its answer. The judge `concludes` is in
// shared/reward/verdict.h, and `likelihood`, which needs a model, in likelihood.h.
#include <assert.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/reward/verdict.h"
#include "shared/stage/stage.h"
#include "stages/judge/likelihood.h"

struct judge {
    struct stage_model model; // open for `likelihood`
    bool has_model;
};
static_assert(offsetof(struct judge, model) == 0, "as the functions of stage_model.h need");

static status judge_open(void **state, struct stage_context *context) {
    struct judge *self;
    const struct judge_options *options = stage_options(context);
    NEW(&self, 1);
    *state = self;
    self->has_model = options->judge == JUDGE_LIKELIHOOD;
    return self->has_model ? stage_model_open(&self->model, context) : OK;
}

static status judge_work(void *state, struct group *group) {
    struct judge *self = state;
    return self->has_model ? likelihood_group(&self->model, group) : concludes_group(group);
}

static const struct stage judge_stage = {
    .name = "judge",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_CONSISTENCY,
    .open = judge_open,
    .fingerprint = stage_model_hash,
    .work = judge_work,
    .close = stage_model_close,
};

int main(int argc, char **argv) {
    return stage_main(&judge_stage, argc, argv);
}
