// caravan-rollout: samples the completions of several groups side by side. A finished completion's place goes to the
// next.
#include <stdlib.h>

#include "shared/base/rng.h"
#include "shared/base/memory.h"
#include "shared/stage/stage_model.h"
#include "shared/stage/stage.h"

struct rollout {
    struct stage_model model;
    struct generator *generator;
    struct generate_request request; // what all groups share
    int64_t max_prompt_tokens;
    uint64_t seed;
};

static status rollout_open(void **state, struct stage_context *context) {
    struct rollout *self;
    const struct rollout_options *options = stage_options(context);
    TRY(NEW(&self, 1));
    *state = self;
    self->seed = (uint64_t)options->seed;
    self->max_prompt_tokens = options->max_prompt_tokens;
    self->request = (struct generate_request){
        .count = (int)options->group_size,
        .temperature = (float)options->temperature,
        .top_p = (float)options->top_p,
        .top_k = (int)options->top_k,
        .max_new_tokens = (int)options->max_new_tokens,
    };
    TRY(stage_model_open(&self->model, context));
    const struct generator_options generation = {.max_new_tokens = self->request.max_new_tokens};
    return generator_new(&self->generator, self->model.model, &generation);
}

static status rollout_load_weights(void *state, const struct stage_weights *weights) {
    struct rollout *self = state;
    return stage_model_load(&self->model, weights);
}

static uint64_t rollout_fingerprint(void *state) {
    const struct rollout *self = state;
    return self->model.hash;
}

static int rollout_capacity(void *state) {
    const struct rollout *self = state;
    return generator_can_add(self->generator) ? 1 : 0;
}

static status rollout_submit(void *state, struct group *group) {
    struct rollout *self = state;
    struct stage_input input = {0};
    status result = stage_input_open(self->model.input, group, INPUT_PROMPT, &input);
    if (result == OK && (int64_t)input.prompt.count > self->max_prompt_tokens)
        result = fail(BAD_SAMPLE, "prompt too long: %zu tokens, max_prompt_tokens is %lld", input.prompt.count,
                      (long long)self->max_prompt_tokens);
    if (result == OK) {
        struct generate_request request = self->request;
        request.prompt = input.prompt;
        request.key = rng_key(self->seed, group->id.data);
        request.tag = group;
        result = generator_add(self->generator, &request);
    }
    stage_input_release(&input);
    return result;
}

static status fill_completion(const struct rollout *self, struct group *group, struct completion *out,
                              const struct generated *from) {
    TRY(group_ints(group, &out->tokens, from->count));
    TRY(group_floats(group, &out->logprobs, from->count));
    TRY(group_ints(group, &out->versions, from->count));
    for (size_t i = 0; i < from->count; i++) {
        out->tokens.data[i] = from->tokens[i];
        out->logprobs.data[i] = from->logprobs[i];
        out->versions.data[i] = from->versions[i];
    }
    const char *finish = from->ended ? "eos" : "length";
    TRY(group_string(group, &out->finish, finish, from->ended ? 3 : 6));
    struct buf text = {0};
    status result = buf_puts(&text, "");
    if (result == OK)
        result =
            tokenizer_decode_utf8(input_builder_tokenizer(self->model.input), from->tokens, from->count, true, &text);
    if (result == OK) result = group_string(group, &out->text, text.data, text.size);
    buf_release(&text);
    return result;
}

static status rollout_poll(void *state, bool draining, struct group **done) {
    struct rollout *self = state;
    void *tag = NULL;
    int count = 0;
    (void)draining; // what is at work is finished either way
    *done = NULL;
    const struct generated *found = generator_pop(self->generator, &tag, &count);
    if (!found) {
        if (!generator_busy(self->generator)) return END;
        TRY(generator_step(self->generator));
        found = generator_pop(self->generator, &tag, &count);
        if (!found) return OK;
    }
    *done = tag;
    TRY(group_completions(*done, (size_t)count));
    for (int i = 0; i < count; i++) TRY(fill_completion(self, *done, &(*done)->completions[i], &found[i]));
    return OK;
}

static status rollout_close(void *state) {
    struct rollout *self = state;
    if (!self) return OK;
    generator_free(&self->generator);
    stage_model_release(&self->model);
    free(self);
    return OK;
}

static const struct stage rollout_stage = {
    .name = "rollout",
    .needs = 0,
    .section = SECTION_ROLLOUT,
    .open = rollout_open,
    .fingerprint = rollout_fingerprint,
    .follows = FOLLOWS_POLICY,
    .load_weights = rollout_load_weights,
    .capacity = rollout_capacity,
    .submit = rollout_submit,
    .poll = rollout_poll,
    .close = rollout_close,
};

int main(int argc, char **argv) {
    return stage_main(&rollout_stage, argc, argv);
}
