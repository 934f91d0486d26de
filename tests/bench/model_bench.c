// Times the model's work on one group:
// model_bench DIR rollout|score|answers|train float32|bfloat16 [THREADS [DEVICE [RANKS [GROUPS]]]].
// A 16-frame clip of 252 x 392 and 168 tokens of text (1,176 in all), 8 completions of 128 tokens, all random.
// `answers` is `score` with 8 new tokens behind the first 120 of each completion. Prints one line: work, precision,
// seconds, tokens of completions a second, the process's peak memory, processor seconds. `train` may be a step of
// GROUPS groups by RANKS processes with so many THREADS each; then the line goes on with the bytes that a rank sends in
// a step, and those that it would send if a ring reduced the gradients and gathered the weights.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"
#include "shared/base/ranks.h"
#include "shared/model/model.h"
#include "shared/wire/ranks_link.h"
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
    MOST_RANKS = 64,
};

struct bench {
    struct model *model;
    struct model_medium clip;
    struct model_prompt prompt;
    int64_t tokens[PROMPT_TOKENS];
    int64_t targets[GROUP_SIZE][COMPLETION_TOKENS];
    float logprobs[GROUP_SIZE][COMPLETION_TOKENS];
    struct generator *answers; // of bench_answers
    struct ranks *ranks;       // of bench_train; NULL: this process alone
    int groups;                // likewise
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
    *tokens = bench->groups * GROUP_SIZE * COMPLETION_TOKENS;
    const int ranks = bench->ranks ? bench->ranks->count : 1, own = bench->ranks ? bench->ranks->own : 0;
    for (int first = 0; first < bench->groups; first += ranks) {
        const int left = bench->groups - first;
        TRY(model_turn(bench->model, left < ranks ? left : ranks));
        if (own < left)
            TRY(model_accumulate(bench->model, &bench->prompt, completions, GROUP_SIZE, &loss, 1.0 / bench->groups,
                                 &found));
    }
    return model_step(bench->model, &rates, &norm);
}

static status bench_run(struct bench *bench, const char *dir, const char *kind, const char *precision, int threads,
                        const char *device) {
    const struct model_options options = {.device = device,
                                          .threads = threads,
                                          .precision = precision,
                                          .training = !strcmp(kind, "train"),
                                          .train_vision = true,
                                          .ranks = bench->ranks};
    status (*task)(struct bench *, int64_t *) = !strcmp(kind, "rollout")   ? bench_rollout
                                                : !strcmp(kind, "score")   ? bench_score
                                                : !strcmp(kind, "answers") ? bench_answers
                                                                           : bench_train;
    uint8_t *pixels = NULL;
    double best = 1e30, cpu = 0;
    int64_t tokens = 0;
    uint64_t sent = 0;
    TRY(model_open(&bench->model, dir, &options));
    bench_inputs(bench, &pixels);
    status result = OK;
    for (int pass = 0; result == OK && pass < 2; pass++) { // the first warms up
        double began = clock_monotonic(), before = bench_processor_seconds();
        sent = bench->ranks ? bench->ranks->sent : 0;
        result = task(bench, &tokens);
        if (clock_monotonic() - began < best) best = clock_monotonic() - began;
        cpu = bench_processor_seconds() - before;
    }
    if (result == OK && (!bench->ranks || bench->ranks->own == 0)) {
        printf("%s %s %.3f s %.0f tokens/s %.2f GB %.3f processor-s", kind, precision, best, (double)tokens / best,
               bench_peak_gigabytes(), cpu);
        if (bench->ranks) {
            const int ranks = bench->ranks->count, turns = (bench->groups + ranks - 1) / ranks;
            const double bytes =
                (double)model_get_info(bench->model)->parameter_count * (!strcmp(precision, "float32") ? 4 : 2);
            printf(" %.1f MB sent, a ring %.1f MB", (double)(bench->ranks->sent - sent) * 1e-6,
                   (turns + 1) * bytes * (ranks - 1) / ranks * 1e-6);
        }
        printf("\n");
    }
    free(pixels);
    generator_free(&bench->answers);
    model_free(&bench->model);
    return result;
}

// One of `count` processes, which meet at sockets in `dir`.
static status bench_join(struct ranks **out, int own, int count, const char *dir) {
    struct arena arena = {0};
    struct node_endpoint endpoints[MOST_RANKS] = {0};
    for (int r = 0; r < count; r++)
        endpoints[r] = (struct node_endpoint){.machine = "", .address = arena_printf(&arena, "ipc://%s/%d", dir, r)};
    const status result = ranks_link_open(out, &(struct ranks_link_options){.own = own,
                                                                            .count = count,
                                                                            .run = "bench",
                                                                            .ranks = endpoints,
                                                                            .listen = &endpoints[own].address,
                                                                            .listen_count = 1,
                                                                            .timeout = 600});
    arena_release(&arena);
    return result;
}

int main(int argc, char **argv) {
    const char *const device = argc > 5 ? argv[5] : "cpu";
    const int threads = argc > 4 ? atoi(argv[4]) : 0, ranks = argc > 6 ? atoi(argv[6]) : 1,
              groups = argc > 7 ? atoi(argv[7]) : ranks;
    char dir[] = "/tmp/ranks-XXXXXX";
    int own = 0, ended, code;
    struct bench *bench;
    status result = OK;
    log_open("model_bench");
    if (argc < 4 || ranks < 1 || ranks > MOST_RANKS || groups < 1 || (groups > 1 && strcmp(argv[2], "train") != 0)) {
        log_info("usage: model_bench DIR rollout|score|answers|train float32|bfloat16 [THREADS [DEVICE [RANKS "
                 "[GROUPS]]]]; several with train");
        return USAGE;
    }
    NEW(&bench, 1);
    bench->groups = groups;
    if (ranks > 1 && !mkdtemp(dir)) return UNAVAILABLE;
    for (int r = 1; r < ranks && own == 0 && result == OK; r++) {
        const pid_t process = fork();
        if (process < 0) result = fail(UNAVAILABLE, "a process for rank %d cannot be started", r);
        if (!process) own = r;
    }
    if (ranks > 1 && result == OK) result = bench_join(&bench->ranks, own, ranks, dir);
    if (result == OK) result = bench_run(bench, argv[1], argv[2], argv[3], threads, device);
    if (result != OK) log_info("%s", fail_text());
    ranks_free(&bench->ranks);
    free(bench);
    while (own == 0 && (ended = wait(&code)) > 0)
        if (result == OK && code) result = UNAVAILABLE;
    if (own == 0 && ranks > 1 && dir_remove(dir) != OK) log_info("%s", fail_text());
    return (int)result;
}
