// Times the model's work on one group: model_bench DIR rollout|score|answers|train float32|bfloat16 [THREADS [DEVICE]].
// A 16-frame clip of 252 x 392 and 168 tokens of text (1,176 in all), 8 completions of 128 tokens, all random.
// `answers` is `score` with 8 new tokens behind the first 120 of each completion. Prints one line: work, precision,
// seconds, tokens of completions a second, the process's peak memory, processor seconds.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "shared/model/model.h"
#include "tests/bench/usage.h"

enum {
    CLIP_FRAMES = 16,
    CLIP_HEIGHT = 252,
    CLIP_WIDTH = 392,
    VISION_TOKENS = CLIP_FRAMES / 2 * (CLIP_HEIGHT / 28) * (CLIP_WIDTH / 28),
    TEXT_TOKENS = 168,
    PROMPT_TOKENS = VISION_TOKENS + TEXT_TOKENS,
    GROUP_SIZE = 8,
    COMPLETION_TOKENS = 128,
    ANSWER_TOKENS = 8,
};

struct bench {
    struct model *model;
    struct model_medium clip;
    struct model_prompt prompt;
    int64_t tokens[PROMPT_TOKENS];
    int64_t targets[GROUP_SIZE][COMPLETION_TOKENS];
    float logprobs[GROUP_SIZE][COMPLETION_TOKENS];
    struct generator *answers; // of bench_answers
};

static int64_t bench_token(const struct model_info *info, uint64_t stream, uint64_t position) {
    for (;; position += 1u << 20) {
        int64_t token = (int64_t)rng_below(1, stream, position, (uint64_t)info->vocab_size);
        if (token != info->image_token_id && token != info->video_token_id && token != info->vision_start_token_id)
            return token;
    }
}

static void bench_inputs(struct bench *bench, uint8_t **pixels) {
    const struct model_info *info = model_get_info(bench->model);
    size_t count = (size_t)CLIP_FRAMES * CLIP_HEIGHT * CLIP_WIDTH * 3;
    NEW(pixels, count);
    for (size_t i = 0; i < count; i++) (*pixels)[i] = (uint8_t)rng_bits(2, 0, i);
    int at = 0;
    for (; at < TEXT_TOKENS / 2; at++) bench->tokens[at] = bench_token(info, 3, (uint64_t)at);
    bench->tokens[at - 1] = info->vision_start_token_id;
    for (int i = 0; i < VISION_TOKENS; i++) bench->tokens[at++] = info->video_token_id;
    for (; at < PROMPT_TOKENS; at++) bench->tokens[at] = bench_token(info, 3, (uint64_t)at);
    bench->tokens[TEXT_TOKENS / 2 + VISION_TOKENS] = info->vision_end_token_id;
    for (int i = 0; i < GROUP_SIZE; i++)
        for (int t = 0; t < COMPLETION_TOKENS; t++)
            bench->targets[i][t] = bench_token(info, 4 + (uint64_t)i, (uint64_t)t);
    bench->clip = (struct model_medium){.video = true,
                                        .frames = CLIP_FRAMES,
                                        .height = CLIP_HEIGHT,
                                        .width = CLIP_WIDTH,
                                        .seconds_per_grid = 1,
                                        .pixels = *pixels};
    bench->prompt = (struct model_prompt){bench->tokens, PROMPT_TOKENS, &bench->clip, 1};
}

static struct generate_request bench_request(const struct bench *bench, int max_new_tokens) {
    return (struct generate_request){.prompt = bench->prompt,
                                     .count = GROUP_SIZE,
                                     .temperature = 1,
                                     .top_p = 0.95f,
                                     .max_new_tokens = max_new_tokens,
                                     .key = 5};
}

static status bench_rollout(struct bench *bench, int64_t *tokens) {
    struct generator *generator;
    const struct generator_options options = {.max_new_tokens = COMPLETION_TOKENS};
    const struct generate_request request = bench_request(bench, COMPLETION_TOKENS);
    const struct generated *found = NULL;
    void *tag;
    int count = 0;
    TRY(generator_new(&generator, bench->model, &options));
    status result = generator_add(generator, &request);
    while (result == OK && !(found = generator_pop(generator, &tag, &count))) result = generator_step(generator);
    *tokens = 0;
    for (int i = 0; result == OK && i < count; i++) *tokens += (int64_t)found[i].count;
    generator_free(&generator);
    return result;
}

static void bench_completions(struct bench *bench, struct model_completion *completions, float **logprobs) {
    for (int i = 0; i < GROUP_SIZE; i++) {
        completions[i] = (struct model_completion){bench->targets[i], COMPLETION_TOKENS};
        logprobs[i] = bench->logprobs[i];
    }
}

static status bench_score(struct bench *bench, int64_t *tokens) {
    struct model_completion completions[GROUP_SIZE];
    float *logprobs[GROUP_SIZE];
    bench_completions(bench, completions, logprobs);
    *tokens = GROUP_SIZE * COMPLETION_TOKENS;
    return model_score(bench->model, &bench->prompt, completions, GROUP_SIZE, NULL, logprobs);
}

static status bench_answers(struct bench *bench, int64_t *tokens) {
    struct model_completion completions[GROUP_SIZE];
    struct completion_prefix prefixes[GROUP_SIZE];
    float *logprobs[GROUP_SIZE];
    const struct generate_request request = bench_request(bench, ANSWER_TOKENS);
    void *tag;
    int count;
    bench_completions(bench, completions, logprobs);
    for (int i = 0; i < GROUP_SIZE; i++)
        prefixes[i] = (struct completion_prefix){.kept = COMPLETION_TOKENS - ANSWER_TOKENS};
    if (!bench->answers) {
        const struct generator_options options = {.max_new_tokens = ANSWER_TOKENS, .continues = true};
        TRY(generator_new(&bench->answers, bench->model, &options));
    }
    TRY(generator_continue(bench->answers, &request, completions, prefixes, NULL, logprobs));
    while (!generator_pop(bench->answers, &tag, &count)) TRY(generator_step(bench->answers));
    *tokens = GROUP_SIZE * COMPLETION_TOKENS;
    return OK;
}

static status bench_train(struct bench *bench, int64_t *tokens) {
    struct train_completion completions[GROUP_SIZE] = {0};
    const struct loss_options loss = {0};
    const struct optimizer_options rates = {
        .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .max_grad_norm = 5};
    struct train_result found;
    double norm;
    for (int i = 0; i < GROUP_SIZE; i++) {
        completions[i].completion = (struct model_completion){bench->targets[i], COMPLETION_TOKENS};
        completions[i].advantage = i % 2 ? 1 : -1;
    }
    *tokens = GROUP_SIZE * COMPLETION_TOKENS;
    TRY(model_accumulate(bench->model, &bench->prompt, completions, GROUP_SIZE, &loss, 1, &found));
    return model_step(bench->model, &rates, &norm);
}

static status bench_run(struct bench *bench, const char *dir, const char *kind, const char *precision, int threads,
                        const char *device) {
    const struct model_options options = {.device = device,
                                          .threads = threads,
                                          .precision = precision,
                                          .training = !strcmp(kind, "train"),
                                          .train_vision = true};
    status (*task)(struct bench *, int64_t *) = !strcmp(kind, "rollout")   ? bench_rollout
                                                : !strcmp(kind, "score")   ? bench_score
                                                : !strcmp(kind, "answers") ? bench_answers
                                                                           : bench_train;
    uint8_t *pixels = NULL;
    double best = 1e30, cpu = 0;
    int64_t tokens = 0;
    TRY(model_open(&bench->model, dir, &options));
    bench_inputs(bench, &pixels);
    status result = OK;
    for (int pass = 0; result == OK && pass < 2; pass++) { // the first warms up
        double began = clock_monotonic(), before = bench_processor_seconds();
        result = task(bench, &tokens);
        if (clock_monotonic() - began < best) best = clock_monotonic() - began;
        cpu = bench_processor_seconds() - before;
    }
    if (result == OK)
        printf("%s %s %.3f s %.0f tokens/s %.2f GB %.3f processor-s\n", kind, precision, best, (double)tokens / best,
               bench_peak_gigabytes(), cpu);
    free(pixels);
    generator_free(&bench->answers);
    model_free(&bench->model);
    return result;
}

int main(int argc, char **argv) {
    log_open("model_bench");
    if (argc < 4) {
        log_info("usage: model_bench DIR rollout|score|answers|train float32|bfloat16 [THREADS [DEVICE]]");
        return USAGE;
    }
    struct bench *bench;
    NEW(&bench, 1);
    status result =
        bench_run(bench, argv[1], argv[2], argv[3], argc > 4 ? atoi(argv[4]) : 0, argc > 5 ? argv[5] : "cpu");
    if (result != OK) log_info("%s", fail_text());
    free(bench);
    return (int)result;
}
