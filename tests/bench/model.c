// The model's work on one group, timed: bench-model FOLDER rollout|score|train float32|bfloat16 [THREADS].
// A 16-frame clip of 252 x 392 and 168 tokens of text (1,176 in all), 8 completions of 128 tokens, all random.
// Prints one line: work, precision, seconds, tokens of completions a second, peak memory, processor seconds.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "shared/base/clock.h"
#include "shared/base/rng.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/model/model.h"

enum {
    clip_frames = 16,
    clip_height = 252,
    clip_width = 392,
    vision_tokens = clip_frames / 2 * (clip_height / 28) * (clip_width / 28),
    text_tokens = 168,
    prompt_tokens = vision_tokens + text_tokens,
    group_size = 8,
    completion_tokens = 128,
};

struct work {
    struct model *model;
    struct model_medium clip;
    struct model_prompt prompt;
    int64_t tokens[prompt_tokens];
    int64_t answers[group_size][completion_tokens];
    float logprobs[group_size][completion_tokens];
};

// Processor seconds of all threads: what counts on a machine that others use too.
static double worked(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int64_t random_token(const struct model_info *facts, uint64_t stream, uint64_t place) {
    for (;; place += 1u << 20) {
        int64_t token = (int64_t)rng_below(1, stream, place, (uint64_t)facts->vocab_size);
        if (token != facts->image_token_id && token != facts->video_token_id && token != facts->vision_start_token_id)
            return token;
    }
}

static status fill(struct work *work, uint8_t **pixels) {
    const struct model_info *facts = model_get_info(work->model);
    size_t count = (size_t)clip_frames * clip_height * clip_width * 3;
    TRY(NEW(pixels, count));
    for (size_t i = 0; i < count; i++) (*pixels)[i] = (uint8_t)rng_bits(2, 0, i);
    int at = 0;
    for (; at < text_tokens / 2; at++) work->tokens[at] = random_token(facts, 3, (uint64_t)at);
    work->tokens[at - 1] = facts->vision_start_token_id;
    for (int i = 0; i < vision_tokens; i++) work->tokens[at++] = facts->video_token_id;
    for (; at < prompt_tokens; at++) work->tokens[at] = random_token(facts, 3, (uint64_t)at);
    work->tokens[text_tokens / 2 + vision_tokens] = facts->vision_end_token_id;
    for (int i = 0; i < group_size; i++)
        for (int t = 0; t < completion_tokens; t++)
            work->answers[i][t] = random_token(facts, 4 + (uint64_t)i, (uint64_t)t);
    work->clip = (struct model_medium){.video = true,
                                       .frames = clip_frames,
                                       .height = clip_height,
                                       .width = clip_width,
                                       .seconds_per_grid = 1,
                                       .pixels = *pixels};
    work->prompt = (struct model_prompt){work->tokens, prompt_tokens, &work->clip, 1};
    return OK;
}

static status rollout(struct work *work, int64_t *tokens) {
    struct generator *generator;
    const struct generator_options options = {.max_new_tokens = completion_tokens};
    const struct generate_request request = {.prompt = work->prompt,
                                             .count = group_size,
                                             .temperature = 1,
                                             .top_p = 0.95f,
                                             .max_new_tokens = completion_tokens,
                                             .key = 5};
    const struct generated *found = NULL;
    void *tag;
    int count = 0;
    TRY(generator_new(&generator, work->model, &options));
    status result = generator_add(generator, &request);
    while (result == OK && !(found = generator_pop(generator, &tag, &count))) result = generator_step(generator);
    *tokens = 0;
    for (int i = 0; result == OK && i < count; i++) *tokens += (int64_t)found[i].count;
    generator_free(&generator);
    return result;
}

static status score(struct work *work, int64_t *tokens) {
    struct model_completion completions[group_size];
    float *logprobs[group_size];
    for (int i = 0; i < group_size; i++) {
        completions[i] = (struct model_completion){work->answers[i], completion_tokens};
        logprobs[i] = work->logprobs[i];
    }
    *tokens = group_size * completion_tokens;
    return model_score(work->model, &work->prompt, completions, group_size, logprobs);
}

static status train(struct work *work, int64_t *tokens) {
    struct train_completion completions[group_size] = {0};
    const struct loss_options loss = {0};
    const struct optimizer_options rates = {
        .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .max_grad_norm = 5};
    struct train_result found;
    double norm;
    for (int i = 0; i < group_size; i++) {
        completions[i].completion = (struct model_completion){work->answers[i], completion_tokens};
        completions[i].advantage = i % 2 ? 1 : -1;
    }
    *tokens = group_size * completion_tokens;
    TRY(model_accumulate(work->model, &work->prompt, completions, group_size, &loss, 1, &found));
    return model_step(work->model, &rates, &norm);
}

static status run(struct work *work, const char *folder, const char *kind, const char *precision, int threads) {
    const struct model_options options = {.device = "cpu",
                                          .threads = threads,
                                          .precision = precision,
                                          .training = !strcmp(kind, "train"),
                                          .train_vision = true};
    status (*task)(struct work *, int64_t *) = !strcmp(kind, "rollout") ? rollout
                                               : !strcmp(kind, "score") ? score
                                                                        : train;
    uint8_t *pixels = NULL;
    double best = 1e30, effort = 0;
    int64_t tokens = 0;
    TRY(model_open(&work->model, folder, &options));
    status result = fill(work, &pixels);
    for (int turn = 0; result == OK && turn < 2; turn++) { // the first warms up
        double began = clock_monotonic(), before = worked();
        result = task(work, &tokens);
        if (clock_monotonic() - began < best) best = clock_monotonic() - began;
        effort = worked() - before;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (result == OK)
        printf("%s %s %.3f s %.0f tokens/s %.2f GB %.3f processor-s\n", kind, precision, best, (double)tokens / best,
               (double)usage.ru_maxrss * 1024 / 1e9, effort);
    free(pixels);
    model_free(&work->model);
    return result;
}

int main(int argc, char **argv) {
    log_open("bench-model");
    if (argc < 4) {
        log_info("usage: bench-model FOLDER rollout|score|train float32|bfloat16 [THREADS]");
        return USAGE;
    }
    struct work *work;
    status result = NEW(&work, 1);
    if (result == OK) result = run(work, argv[1], argv[2], argv[3], argc > 4 ? atoi(argv[4]) : 0);
    if (result != OK) log_info("%s", fail_text());
    free(work);
    return (int)result;
}
