// caravan-rollout: samples `group_size` completions for each group under the policy.
//
// Completions of several groups are decoded in one batch; as soon as one ends, its row goes to the next completion. The
// tokens of a completion depend neither on its row nor on its neighbours.
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "shared/stage/stage.h"
#include "shared/stage/stage_model.h"

struct rollout {
    struct stage_model model;
    const struct rollout_options *options;
    bool trains; // optim gets the completions, and ends the run where their log-probabilities are not finite
};
static_assert(offsetof(struct rollout, model) == 0, "as the functions of stage_model.h need");

static status rollout_new_generator(struct rollout *self) {
    const struct generator_options options = {.max_new_tokens = (int)self->options->max_new_tokens};
    return generator_new(&self->model.generator, self->model.model, &options);
}

static status rollout_open(void **state, struct stage_context *context) {
    struct rollout *self;
    NEW(&self, 1);
    *state = self;
    self->options = stage_options(context);
    self->trains = stage_follows_optim(context);
    TRY(stage_model_open(&self->model, context));
    return rollout_new_generator(self);
}

static int rollout_capacity(void *state) {
    const struct rollout *self = state;
    return generator_can_add(self->model.generator); // 0 or 1
}

static status rollout_submit(void *state, struct group *group) {
    struct rollout *self = state;
    const struct rollout_options *options = self->options;
    struct stage_input input = {0};
    status result = OK;
    TRY_TO(result, done, stage_input_open(&self->model.input, group, INPUT_PROMPT, &input));
    if ((int64_t)input.prompt.count > options->max_prompt_tokens)
        TRY_TO(result, done,
               fail(BAD_SAMPLE, "prompt too long: %zu tokens, max_prompt_tokens is %lld", input.prompt.count,
                    (long long)options->max_prompt_tokens));
    const struct generate_request request = {
        .prompt = input.prompt,
        .count = (int)options->group_size,
        .temperature = (float)options->temperature,
        .top_p = (float)options->top_p,
        .top_k = (int)options->top_k,
        .max_new_tokens = (int)options->max_new_tokens,
        .key = rng_key((uint64_t)options->seed, group->id.data),
        .tag = group,
    };
    result = generator_add(self->model.generator, &request);
done:
    stage_input_release(&input);
    return result;
}

static status rollout_poll(void *state, bool draining, struct group **done) {
    struct rollout *self = state;
    void *tag = NULL;
    int count = 0;
    (void)draining; // the groups in the generator are finished either way
    *done = NULL;
    const struct generated *generated = generator_pop(self->model.generator, &tag, &count);
    if (!generated) {
        if (!generator_busy(self->model.generator)) return END;
        TRY(generator_step(self->model.generator));
        generated = generator_pop(self->model.generator, &tag, &count);
        if (!generated) return OK;
    }
    struct group *group = tag;
    *done = group;
    for (int i = 0; i < count && !self->trains; i++)
        for (size_t t = 0; t < generated[i].count; t++)
            if (!isfinite(generated[i].logprobs[t]))
                return fail(BAD_SAMPLE, "the log-probability of token %zu of completion %d is not finite", t, i);
    stage_input_set_completions(&self->model.input, group, generated, count);
    return OK;
}

static status rollout_return_weights(void *state) {
    struct rollout *self = state;
    // With the groups that it has, and with its graph, which refers to the weights.
    generator_free(&self->model.generator);
    TRY(stage_model_return(&self->model));
    return rollout_new_generator(self);
}

static const struct stage rollout_stage = {
    .name = "rollout",
    .section = SECTION_ROLLOUT,
    .open = rollout_open,
    .fingerprint = stage_model_hash,
    .follows = FOLLOWS_POLICY,
    .load_weights = stage_model_load,
    .return_weights = rollout_return_weights,
    .weights_intact = stage_model_intact,
    .capacity = rollout_capacity,
    .submit = rollout_submit,
    .poll = rollout_poll,
    .close = stage_model_close,
};

int main(int argc, char **argv) {
    return stage_main(&rollout_stage, argc, argv);
}
