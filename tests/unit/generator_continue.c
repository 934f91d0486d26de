// Continuing given completions: the same numbers as scoring them, whatever is decoded beside them, on which device and
// with how many threads; and Hugging Face's greedy tokens.
#include "tests/unit/model_case.h"
#include "tests/unit/recording_backend.h"

enum { GROUP = COMPLETIONS, NEW_TOKENS = 12, LONGEST = MAX_TOKENS + NEW_TOKENS };

struct continued {
    int64_t tokens[GROUP][NEW_TOKENS];
    float logprobs[GROUP][NEW_TOKENS];
    size_t count[GROUP];
    bool ended[GROUP], stopped[GROUP];
    float scored[GROUP][MAX_TOKENS];
};

struct continuation {
    int rows, max_new_tokens;
    float temperature;
    int only;        // the one completion that is continued; -1: all
    size_t stops_at; // tokens of a completion after which it is stopped; 0: it is not
    size_t seen[GROUP];
};

static const int64_t others[] = {9, 5, 11};

// One goes on from its end, one from its middle, one has its only token replaced, one its last ones.
static void prefixes_of(const struct model_case *it, int only, struct completion_prefix out[GROUP]) {
    out[0] = (struct completion_prefix){it->completions[0].count, NULL, 0};
    out[1] = (struct completion_prefix){0, others, 1};
    out[2] = (struct completion_prefix){it->completions[2].count / 2, NULL, 0};
    out[3] = (struct completion_prefix){it->completions[3].count - 2, others, 3};
    for (int i = 0; i < GROUP; i++)
        if (only >= 0 && i != only) out[i] = (struct completion_prefix){0};
}

static status stop_at(void *tag, int completion, int64_t token, bool *stop) {
    struct continuation *wish = tag;
    assert_true(token >= 0 && !*stop);
    *stop = ++wish->seen[completion] == wish->stops_at;
    return OK;
}

static void continue_with(struct generator *generator, const struct model_case *it, struct continuation *wish,
                          struct continued *out) {
    struct completion_prefix prefixes[GROUP];
    float *scored[GROUP];
    const struct generated *got;
    void *tag = NULL;
    int count = 0;
    memset(out, 0, sizeof *out);
    memset(wish->seen, 0, sizeof wish->seen);
    for (int i = 0; i < GROUP; i++) scored[i] = out->scored[i];
    prefixes_of(it, wish->only, prefixes);
    const struct generate_request request = {.prompt = it->prompt,
                                             .count = GROUP,
                                             .temperature = wish->temperature,
                                             .top_p = 0.97f,
                                             .max_new_tokens = wish->max_new_tokens,
                                             .key = 11,
                                             .tag = wish,
                                             .stop = wish->stops_at ? stop_at : NULL};
    MUST(generator_continue(generator, &request, it->completions, prefixes, NULL, scored));
    while (!(got = generator_pop(generator, &tag, &count))) MUST(generator_step(generator));
    assert_ptr_equal(tag, wish);
    assert_int_equal(count, GROUP);
    for (int i = 0; i < GROUP; i++) {
        out->count[i] = got[i].count;
        out->ended[i] = got[i].ended;
        out->stopped[i] = got[i].stopped;
        memcpy(out->tokens[i], got[i].tokens, got[i].count * sizeof(int64_t));
        memcpy(out->logprobs[i], got[i].logprobs, got[i].count * sizeof(float));
    }
}

static void continue_all(const struct model_case *it, struct model *model, struct continuation *wish,
                         struct continued *out) {
    struct generator *generator = NULL;
    const struct generator_options options = {
        .rows = wish->rows, .max_new_tokens = wish->max_new_tokens, .continues = true};
    MUST(generator_new(&generator, model, &options));
    continue_with(generator, it, wish, out);
    generator_free(&generator);
}

// The scorer finds the same log-probabilities: those of the completions, and those of each prefix with its new tokens.
static void expect_scores(const struct model_case *it, struct model *model, const struct continued *got) {
    struct completion_prefix prefixes[GROUP];
    int64_t tokens[GROUP][LONGEST];
    float logprobs[GROUP][LONGEST], *rows[GROUP];
    struct model_completion completions[GROUP];
    for (int i = 0; i < GROUP; i++) rows[i] = logprobs[i];
    MUST(model_score(model, &it->prompt, it->completions, GROUP, NULL, rows));
    for (int i = 0; i < GROUP; i++)
        assert_memory_equal(got->scored[i], logprobs[i], it->completions[i].count * sizeof(float));
    prefixes_of(it, -1, prefixes);
    for (int i = 0; i < GROUP; i++) {
        size_t kept = prefixes[i].kept, count = prefixes[i].count;
        memcpy(tokens[i], it->completions[i].tokens, kept * sizeof(int64_t));
        if (count) memcpy(tokens[i] + kept, prefixes[i].tokens, count * sizeof(int64_t));
        memcpy(tokens[i] + kept + count, got->tokens[i], got->count[i] * sizeof(int64_t));
        completions[i] = (struct model_completion){tokens[i], kept + count + got->count[i]};
    }
    MUST(model_score(model, &it->prompt, completions, GROUP, NULL, rows));
    for (int i = 0; i < GROUP; i++)
        assert_memory_equal(got->logprobs[i], logprobs[i] + prefixes[i].kept + prefixes[i].count,
                            got->count[i] * sizeof(float));
}

// Fewer rows, a completion alone, and fewer new tokens change nothing.
static void expect_same_in_company(const struct model_case *it, struct model *model, const struct continued *want) {
    static struct continued got;
    for (int rows = 1; rows < GROUP; rows += 2) {
        continue_all(it, model, &(struct continuation){rows, NEW_TOKENS, 1.5f, -1, 0, {0}}, &got);
        assert_memory_equal(&got, want, sizeof got);
    }
    for (int i = 0; i < GROUP; i++) {
        continue_all(it, model, &(struct continuation){2, 5, 1.5f, i, 0, {0}}, &got);
        for (int k = 0; k < GROUP; k++) {
            size_t count = k != i ? 0 : want->count[k] < 5 ? want->count[k] : 5;
            assert_int_equal(got.count[k], count);
            assert_memory_equal(got.tokens[k], want->tokens[k], count * sizeof(int64_t));
        }
        assert_memory_equal(got.scored, want->scored, sizeof got.scored);
    }
}

// A stopped completion has its first tokens, and its row goes to another one.
static void expect_stops(const struct model_case *it, struct model *model, const struct continued *want) {
    static struct continued got;
    for (int rows = 1; rows <= GROUP; rows += 3) {
        continue_all(it, model, &(struct continuation){rows, NEW_TOKENS, 1.5f, -1, 3, {0}}, &got);
        for (int i = 0; i < GROUP; i++) {
            bool stopped = want->count[i] > 3 || (want->count[i] == 3 && !want->ended[i]);
            assert_int_equal(got.stopped[i], stopped);
            assert_int_equal(got.count[i], stopped ? 3 : want->count[i]);
            assert_memory_equal(got.tokens[i], want->tokens[i], got.count[i] * sizeof(int64_t));
        }
    }
}

TEST(continued_completions_keep_their_bits_on_the_cpu) {
    size_t ended = 0;
    for (int c = 0; c < CASES; c++) {
        static struct continued want, got;
        SCOPED(struct model_case, case_close) it = {0};
        struct continuation wish = {0, NEW_TOKENS, 1.5f, -1, 0, {0}};
        it = case_open(case_names[c]);
        for (int threads = 1; threads <= 2; threads++) {
            SCOPED(struct model *, model_free)
            model = case_model(&it, &(struct model_options){.precision = "float32", .threads = threads});
            continue_all(&it, model, &wish, threads == 1 ? &want : &got);
            if (threads == 2) assert_memory_equal(&got, &want, sizeof got);
            expect_scores(&it, model, &want);
            if (threads == 1) expect_same_in_company(&it, model, &want);
            if (threads == 1) expect_stops(&it, model, &want);
        }
        for (int i = 0; i < GROUP; i++) ended += want.ended[i];
    }
    assert_true(ended > 0); // completions end with a token too
}

// A backend that is asynchronous and records steps draws for a stopped row once more, which must not count.
TEST(continued_completions_keep_their_bits_when_steps_are_recorded) {
    static struct continued want, got;
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    SCOPED(struct model *, model_free) model = case_model(&it, &(struct model_options){.precision = "float32"});
    continue_all(&it, model, &(struct continuation){0, NEW_TOKENS, 1.5f, -1, 0, {0}}, &want);
    recording_backend_enter(model);
    expect_same_in_company(&it, model, &want);
    expect_stops(&it, model, &want);
    struct generator *generator = NULL; // one group after another, the second one larger: steps are recorded again
    MUST(
        generator_new(&generator, model, &(struct generator_options){.max_new_tokens = NEW_TOKENS, .continues = true}));
    for (int group = 0; group < 4; group++) {
        struct continuation wish = {0, group ? NEW_TOKENS : 3, 1.5f, -1, group == 2 ? 3 : 0, {0}};
        continue_with(generator, &it, &wish, &got);
        if (group % 2) assert_memory_equal(&got, &want, sizeof got);
    }
    generator_free(&generator);
    assert_int_equal(recorder.early_reads, 0);
    assert_true(recorder.recorded > 0 && recorder.launched > recorder.recorded);
}

TEST(continued_completions_keep_their_bits_on_the_emulator) {
    static struct continued want, got;
    SCOPED(struct model_case, case_close) it = {0};
    if (!case_emulator()) return;
    it = case_open("even");
    SCOPED(struct model *, model_free)
    model = case_model(&it, &(struct model_options){.device = "emulated", .precision = "float32"});
    continue_all(&it, model, &(struct continuation){4, NEW_TOKENS, 1.5f, -1, 0, {0}}, &want);
    expect_scores(&it, model, &want);
    continue_all(&it, model, &(struct continuation){2, NEW_TOKENS, 1.5f, -1, 0, {0}}, &got);
    assert_memory_equal(&got, &want, sizeof got);
}

// Behind some of Hugging Face's greedy tokens come the others.
TEST(greedy_tokens_are_those_of_transformers) {
    for (int c = 0; c < CASES; c++) {
        struct model_case it;
        struct generator *generator = NULL;
        size_t count;
        void *tag;
        int results;
        float scored[2][NEW_TOKENS], *rows[2] = {scored[0], scored[1]};
        it = case_open(case_names[c]);
        int64_t *greedy = case_tokens(&it, key_of(it.golden, "greedy"), &count);
        struct model *model = case_model(&it, &(struct model_options){.precision = "float32"});
        MUST(generator_new(&generator, model,
                           &(struct generator_options){.max_new_tokens = (int)count - 1, .continues = true}));
        const struct model_completion completions[2] = {{greedy, count}, {others, 3}};
        const struct completion_prefix prefixes[2] = {{1, NULL, 0}, {0, greedy, count > 2 ? 2 : 1}};
        const struct generate_request request = {
            .prompt = it.prompt, .count = 2, .top_p = 1, .max_new_tokens = (int)count - 1};
        MUST(generator_continue(generator, &request, completions, prefixes, NULL, rows));
        const struct generated *got;
        while (!(got = generator_pop(generator, &tag, &results))) MUST(generator_step(generator));
        for (int i = 0; i < 2; i++) {
            size_t from = i ? prefixes[1].count : 1, left = count - from;
            assert_true(got[i].count >= left);
            assert_memory_equal(got[i].tokens, greedy + from, left * sizeof(int64_t));
        }
        generator_free(&generator);
        model_free(&model);
        case_close(&it);
    }
}

TEST(faults_are_told_apart) {
    struct model_case it;
    struct generator *generator = NULL;
    float scored[MAX_TOKENS], *row = scored;
    it = case_open("even");
    struct model *model = case_model(&it, &(struct model_options){.precision = "float32"});
    const struct generator_options options = {.max_new_tokens = 4, .continues = true};
    struct generate_request request = {.prompt = it.prompt, .count = 1, .top_p = 1, .max_new_tokens = 5};
    struct completion_prefix prefix = {.kept = 1};
    MUST(generator_new(&generator, model, &options));
    assert_int_equal(generator_add(generator, &request), BUG);
    assert_int_equal(generator_continue(generator, &request, it.completions, &prefix, NULL, &row), USAGE);
    request.max_new_tokens = 4;
    request.top_p = 0;
    assert_int_equal(generator_continue(generator, &request, it.completions, &prefix, NULL, &row), USAGE);
    request.top_p = 1;
    const int64_t far = model_get_info(model)->vocab_size;
    prefix = (struct completion_prefix){.tokens = &far, .count = 1};
    assert_int_equal(generator_continue(generator, &request, it.completions, &prefix, NULL, &row), BAD_SAMPLE);
    prefix = (struct completion_prefix){.kept = 1};
    request.prompt.media_count = 0;
    assert_int_equal(generator_continue(generator, &request, it.completions, &prefix, NULL, &row), BAD_SAMPLE);
    request.prompt = it.prompt;
    assert_false(generator_busy(generator));
    MUST(generator_continue(generator, &request, it.completions, &prefix, NULL, &row));
    assert_int_equal(generator_continue(generator, &request, it.completions, &prefix, NULL, &row), BUG);
    generator_free(&generator);
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = 4}));
    assert_int_equal(generator_continue(generator, &request, it.completions, &prefix, NULL, &row), BUG);
    generator_free(&generator);
    model_free(&model);
    case_close(&it);
}
