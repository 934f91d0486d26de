// What must be equal to the bit: sampler, scorer and trainer on the same weights, whatever is computed beside them; and
// weights that were published, swapped, saved and read again.
#include "tests/unit/model_case.h"

#include "tests/support/guarded.h"

enum { REQUESTS = 3, GROUP = SAMPLED_COMPLETIONS, NEW_TOKENS = 21 };

// The case's prompt, or its text alone.
static struct model_prompt prompt_of(struct model_case *it, const struct model *model, int request) {
    if (request != 1) return it->prompt;
    const struct model_info *info = model_get_info(model);
    int64_t *words = arena_alloc(&it->arena, it->prompt.count * sizeof *words);
    size_t count = 0;
    for (size_t i = 0; i < it->prompt.count; i++)
        if (it->prompt.tokens[i] != info->image_token_id && it->prompt.tokens[i] != info->video_token_id)
            words[count++] = it->prompt.tokens[i];
    return (struct model_prompt){words, count, NULL, 0};
}

// Few rows begin with the shortest prompt, so that the cache it makes is too small for the next, which then waits.
static void sample_all(struct model_case *it, struct model *model, int rows, int requests, struct samples *out) {
    memset(out, 0, sizeof *out);
    out->requests = requests;
    SCOPED(struct generator *, generator_free) generator = NULL;
    MUST(generator_new(&generator, model, &(struct generator_options){.rows = rows, .max_new_tokens = NEW_TOKENS}));
    for (int i = 0; i < requests; i++) {
        int request = rows > 3 || i > 1 ? i : 1 - i;
        while (!generator_can_add(generator)) MUST(generator_step(generator));
        MUST(generator_add(generator, &(struct generate_request){.prompt = prompt_of(it, model, request),
                                                                 .count = GROUP,
                                                                 .temperature = 1,
                                                                 .top_p = 0.95f,
                                                                 .top_k = 50,
                                                                 .max_new_tokens = NEW_TOKENS,
                                                                 .key = (uint64_t)request + 7,
                                                                 .tag = (void *)(intptr_t)request}));
        case_take_finished(generator, out);
    }
    while (generator_busy(generator)) MUST(generator_step(generator));
    case_take_finished(generator, out);
    for (int i = 0; i < requests; i++) assert_int_equal(out->completions[i], GROUP);
}

static void completions_of(const struct samples *samples, int request, struct model_completion *out) {
    for (int i = 0; i < GROUP; i++)
        out[i] = (struct model_completion){samples->tokens[request][i], samples->count[request][i]};
}

static void expect_scores(struct model_case *it, struct model *model, const struct samples *samples) {
    for (int request = 0; request < samples->requests; request++) {
        struct model_completion completions[GROUP];
        float got[GROUP][NEW_TOKENS], *rows[GROUP];
        for (int i = 0; i < GROUP; i++) rows[i] = got[i];
        completions_of(samples, request, completions);
        struct model_prompt prompt = prompt_of(it, model, request);
        MUST(model_score(model, &prompt, completions, GROUP, NULL, rows));
        for (int i = 0; i < GROUP; i++)
            assert_memory_equal(got[i], samples->logprobs[request][i], completions[i].count * sizeof(float));
    }
}

// Some tokens alone have the log-probabilities that they have among all, and nothing else is written.
static void expect_wanted_scores(struct model_case *it, struct model *model, const struct samples *samples) {
    struct model_completion completions[GROUP];
    struct token_range wanted[GROUP];
    float got[GROUP][NEW_TOKENS], want[GROUP][NEW_TOKENS], *rows[GROUP];
    completions_of(samples, 0, completions);
    for (int i = 0; i < GROUP; i++) {
        size_t count = completions[i].count, first = i == 1 ? count : count / 3; // one has none
        wanted[i] = (struct token_range){first, i == 2 ? count : first + (count - first) / 2};
        rows[i] = got[i];
        for (size_t t = 0; t < NEW_TOKENS; t++)
            got[i][t] = want[i][t] = t < wanted[i].first || t >= wanted[i].end ? 7 : samples->logprobs[0][i][t];
    }
    for (int i = 0; i < GROUP; i++)
        for (size_t t = wanted[i].first; t < wanted[i].end; t++) got[i][t] = 0;
    struct model_prompt prompt = prompt_of(it, model, 0);
    MUST(model_score(model, &prompt, completions, GROUP, wanted, rows));
    assert_memory_equal(got, want, sizeof got);
    memset(wanted, 0, sizeof wanted);
    MUST(model_score(model, &prompt, completions, GROUP, wanted, rows));
    assert_memory_equal(got, want, sizeof got);
}

static void expect_training_agrees(struct model_case *it, struct model *model, const struct samples *samples) {
    for (int request = 0; request < samples->requests; request++) {
        struct model_completion completions[GROUP];
        struct train_completion train[GROUP];
        completions_of(samples, request, completions);
        for (int i = 0; i < GROUP; i++)
            train[i] = (struct train_completion){
                .completion = completions[i], .advantage = i - 1.5, .old_logprobs = samples->logprobs[request][i]};
        struct model_prompt prompt = prompt_of(it, model, request);
        struct train_result result;
        MUST(model_accumulate(model, &prompt, train, GROUP, &(struct loss_options){0}, 1, &result));
        assert_true(result.logprob_diff_mean == 0 && result.logprob_diff_max == 0);
        assert_int_equal(result.prompt_tokens, prompt.count);
    }
}

static const struct optimizer_options rates = {3e-3, 0.9, 0.99, 1e-8, 0.01, 1.0};

static void take_step(struct model_case *it, struct model *model) {
    double norm = 0;
    case_accumulate(it, model);
    MUST(model_step(model, &rates, &norm));
}

// Adapters that were trained for two steps.
struct trained_adapters {
    const char *dir, *published; // of the training state; a file
    uint64_t hash;
};

static struct trained_adapters train_adapters(struct model_case *it, const struct model_options *options) {
    struct trained_adapters out = {.dir = unit_new_directory()};
    struct model_options wanted = *options;
    wanted.training = true;
    SCOPED(struct model *, model_free) model = case_model(it, &wanted);
    for (int i = 0; i < 2; i++) take_step(it, model);
    out.published = path_join(&it->arena, out.dir, "weights");
    MUST(model_publish(model, false, out.published, &out.hash));
    MUST(model_save_state(model, out.dir));
    return out;
}

static void sampler_scorer_trainer(const char *precision, int64_t lora) {
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        static struct samples first, other;
        struct trained_adapters adapters = {0};
        for (int threads = 1; threads <= 3 && case_computes(&it, case_device(), precision); threads++) {
            struct model_options options = {
                .precision = precision, .threads = threads, .lora = lora, .lora_alpha = 1.5 * (double)lora};
            if (lora && threads == 1) adapters = train_adapters(&it, &options);
            SCOPED(struct model *, model_free) model = case_model(&it, &options);
            if (lora) MUST(model_swap(model, adapters.published, 2, adapters.hash));
            sample_all(&it, model, threads == 1 ? 64 : threads == 2 ? 3 : 5, REQUESTS, threads == 1 ? &first : &other);
            if (threads > 1) assert_memory_equal(&other, &first, sizeof first);
            expect_scores(&it, model, &first);
            expect_wanted_scores(&it, model, &first);
            model_free(&model);
            options.training = true;
            options.train_vision = !lora && threads < 3;
            model = case_model(&it, &options);
            if (lora) MUST(model_load_state(model, adapters.dir));
            expect_training_agrees(&it, model, &first);
        }
    }
}

TEST(sampler_scorer_and_trainer_agree_in_float32) {
    sampler_scorer_trainer("float32", 0);
}

TEST(sampler_scorer_and_trainer_agree_in_bfloat16) {
    sampler_scorer_trainer("bfloat16", 0);
}

// The outputs of a rank that is no multiple of what the products compute at once are narrow columns of wider rows.
TEST(sampler_scorer_and_trainer_agree_with_adapters) {
    sampler_scorer_trainer("float32", 5);
    sampler_scorer_trainer("bfloat16", 8);
}

// Tensor cores compute the heads of "wide".
static void sampler_scorer_trainer_emulated(const char *name, const char *precision, int64_t lora) {
    SCOPED(struct model_case, case_close) it = {0};
    static struct samples first, other;
    if (!case_emulator()) return;
    it = case_open(name);
    struct model_options options = {
        .device = "emulated", .precision = precision, .lora = lora, .lora_alpha = 1.5 * (double)lora};
    struct trained_adapters adapters = {0};
    if (lora) adapters = train_adapters(&it, &options);
    SCOPED(struct model *, model_free) model = case_model(&it, &options);
    if (lora) MUST(model_swap(model, adapters.published, 2, adapters.hash));
    sample_all(&it, model, 8, 2, &first);
    sample_all(&it, model, 3, 2, &other);
    assert_memory_equal(&other, &first, sizeof first);
    expect_scores(&it, model, &first);
    model_free(&model);
    options.training = true;
    model = case_model(&it, &options);
    if (lora) MUST(model_load_state(model, adapters.dir));
    expect_training_agrees(&it, model, &first);
}

TEST(sampler_scorer_and_trainer_agree_emulated_in_float32) {
    sampler_scorer_trainer_emulated("even", "float32", 0);
}

TEST(sampler_scorer_and_trainer_agree_emulated_with_adapters) {
    sampler_scorer_trainer_emulated("even", "float32", 5);
    if (EMULATOR_IS_FAST) sampler_scorer_trainer_emulated("wide", "bfloat16", 8);
}

TEST(sampler_scorer_and_trainer_agree_emulated_in_bfloat16) {
    if (EMULATOR_IS_FAST) sampler_scorer_trainer_emulated("wide", "bfloat16", 0);
}

static void publish_and_swap(const char *precision, const char *name, int64_t lora) {
    SCOPED(struct model_case, case_close) it = case_open(name);
    struct model_options options = {.precision = precision, .lora = lora, .lora_alpha = 16};
    if (!case_computes(&it, case_device(), precision)) {
        case_close(&it);
        return;
    }
    SCOPED(struct model *, model_free) scorer = case_model(&it, &options);
    options.training = options.ema = true;
    options.train_vision = !lora;
    struct model *trained = case_model(&it, &options);
    assert_true(case_hash(trained) == case_hash(scorer));
    char *dir = unit_new_directory(), *path = path_join(&it.arena, dir, "weights");
    uint64_t hash = 0, before = case_hash(scorer);
    take_step(&it, trained);
    MUST(model_publish(trained, false, path, &hash));
    assert_true(hash == case_hash(trained) && hash != before);
    assert_int_equal(model_swap(scorer, path, 1, hash ^ 1), DATAERR);
    assert_true(case_hash(scorer) == before);
    MUST(model_swap(scorer, path, 1, hash));
    assert_true(case_hash(scorer) == hash);
    assert_int_equal(model_version(scorer), 1);
    float a[COMPLETIONS][MAX_TOKENS], b[COMPLETIONS][MAX_TOKENS];
    case_score(&it, trained, a);
    case_score(&it, scorer, b);
    assert_memory_equal(a, b, sizeof a);
    uint64_t kept = 0;
    MUST(model_publish(trained, true, path, &kept)); // the reference is still the opened weights
    assert_true(kept == before);
    MUST(model_update_ema(trained, 0.5));
    MUST(model_publish(trained, true, path, &kept));
    assert_true(kept != before && kept != hash);
    MUST(model_swap(scorer, path, 2, kept));
    MUST(model_reset(scorer, before));
    assert_true(case_hash(scorer) == before && model_version(scorer) == 0);
    model_free(&trained);
}

TEST(published_weights_are_swapped) {
    publish_and_swap("float32", "pairs", 0);
    publish_and_swap("bfloat16", "even", 0);
    publish_and_swap("bfloat16", "seven", 0);
}

TEST(published_adapters_are_swapped) {
    publish_and_swap("float32", "pairs", 4);
    publish_and_swap("bfloat16", "even", 4);
    publish_and_swap("bfloat16", "seven", 4);
}

// A step and an average, then the policy and the reference from the training state and from what was published.
static void load_stored(const char *precision) {
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    if (!case_computes(&it, case_device(), precision)) return;
    SCOPED(struct model *, model_free)
    trained = case_model(
        &it, &(struct model_options){.precision = precision, .training = true, .train_vision = true, .ema = true});
    SCOPED(struct model *, model_free) other = case_model(&it, &(struct model_options){.precision = precision});
    const char *dir = unit_new_directory(), *state = path_join(&it.arena, dir, "training.safetensors");
    const char *published = path_join(&it.arena, dir, "published");
    uint64_t files, opened;
    MUST(model_hash_files(trained, &files));
    MUST(model_hash_files(other, &opened));
    assert_true(files == opened); // read again from the directory
    take_step(&it, trained);
    MUST(model_update_ema(trained, 0.5));
    MUST(model_save_state(trained, dir));
    static const char *const prefixes[] = {"master.", "reference."};
    for (int reference = 0; reference < 2; reference++) {
        uint64_t hash;
        MUST(model_publish(trained, reference, published, &hash));
        MUST(model_load_stored(other, state, prefixes[reference], 7 + reference));
        assert_true(case_hash(other) == hash);
        assert_int_equal(model_version(other), 7 + reference);
        MUST(model_load_stored(other, state, prefixes[!reference], 1));
        assert_true(case_hash(other) != hash);
        MUST(model_load_stored(other, published, "", 3));
        assert_true(case_hash(other) == hash);
    }
    const uint64_t before = case_hash(other);
    assert_int_equal(model_load_stored(other, state, "", 1), DATAERR); // it has more than the weights
    assert_int_equal(model_load_stored(other, state, "none.", 1), DATAERR);
    assert_int_equal(model_load_stored(other, path_join(&it.arena, dir, "missing"), "", 1), DATAERR);
    assert_true(case_hash(other) == before && model_version(other) == 3);
    assert_int_equal(model_load_stored(trained, published, "", 1), BUG);
}

TEST(a_training_state_has_the_bits_that_were_published) {
    load_stored("float32");
    load_stored("bfloat16");
}

// Two steps and an average, with and without a restart in between.
TEST(a_restart_changes_no_bit) {
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        const struct model_options options = {
            .precision = "float32", .training = true, .train_vision = c != 2, .ema = true};
        char *dir = unit_new_directory();
        SCOPED(struct model *, model_free) straight = case_model(&it, &options);
        take_step(&it, straight);
        MUST(model_update_ema(straight, 0.9));
        MUST(model_save(straight, dir));
        MUST(model_save_state(straight, dir));
        SCOPED(struct model *, model_free) again = NULL;
        struct model_options wanted = options;
        wanted.device = case_device();
        MUST(model_open(&again, dir, &wanted));
        MUST(model_load_state(again, dir));
        assert_int_equal(model_version(again), 1);
        uint64_t one = 0, other = 0;
        for (int i = 0; i < 2; i++) {
            assert_true(case_hash(straight) == case_hash(again));
            char *path = path_join(&it.arena, dir, "weights");
            MUST(model_publish(straight, true, path, &one));
            MUST(model_publish(again, true, path, &other));
            assert_true(one == other);
            take_step(&it, straight);
            take_step(&it, again);
            MUST(model_update_ema(straight, 0.9));
            MUST(model_update_ema(again, 0.9));
        }
    }
}

// A checkpoint is a model directory in the layout and types of the one that was opened.
TEST(a_checkpoint_keeps_the_layout) {
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        SCOPED(struct model *, model_free)
        model = case_model(&it, &(struct model_options){.training = true, .precision = "float32"});
        const char *kept = getenv("MODEL_CHECKPOINTS"); // for transformers to load
        char *dir = kept ? arena_printf(&it.arena, "%s/%s", kept, case_names[c]) : unit_new_directory();
        MUST(model_save(model, dir));
        SCOPED(struct safetensors *, safetensors_close) from = NULL, to = NULL;
        MUST(safetensors_open_dir(&from, it.dir));
        MUST(safetensors_open_dir(&to, dir));
        assert_int_equal(safetensors_count(from), safetensors_count(to));
        for (size_t i = 0; i < safetensors_count(from); i++) {
            const struct stored_tensor *a = safetensors_at(from, i), *b = safetensors_at(to, i);
            assert_string_equal(a->name, b->name);
            assert_string_equal(strrchr(a->file, '/'), strrchr(b->file, '/'));
            assert_int_equal(a->type, b->type);
            assert_int_equal(a->size, b->size);
            assert_memory_equal(a->data, b->data, a->size);
        }
        assert_true(path_exists(path_join(&it.arena, dir, "config.json")));
        assert_true(path_exists(path_join(&it.arena, dir, "generation_config.json")));
    }
}

static void expect_bad_sample(struct model *model, const struct model_prompt *prompt,
                              const struct model_completion *completion, const char *says) {
    float got[MAX_TOKENS], *row = got;
    assert_int_equal(model_score(model, prompt, completion, 1, NULL, &row), BAD_SAMPLE);
    if (!strstr(fail_text(), says)) print_error("%s\n", fail_text());
    assert_non_null(strstr(fail_text(), says));
}

// A group's own fault is BAD_SAMPLE; a caller's fault is USAGE or BUG.
TEST(faults_are_told_apart) {
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    SCOPED(struct model *, model_free) model = NULL;
    assert_int_equal(model_open(&model, it.dir, &(struct model_options){.device = "cpu", .precision = "int8"}), USAGE);
    assert_int_equal(model_open(&model, it.dir, &(struct model_options){.device = "tpu"}), USAGE);
    assert_int_equal(model_open(&model, it.dir, &(struct model_options){.device = "cuda:99"}), UNAVAILABLE);
    assert_int_equal(model_open(&model, "/nowhere", &(struct model_options){.device = "cpu"}), DATAERR);
    assert_null(model);
    model = case_model(&it, &(struct model_options){.precision = "float32"});
    int64_t far = model_get_info(model)->vocab_size;
    expect_bad_sample(model, &it.prompt, &(struct model_completion){&far, 1}, "outside the vocabulary");
    expect_bad_sample(model, &it.prompt, &(struct model_completion){it.completions[0].tokens, 0}, "empty");
    struct model_prompt prompt = it.prompt;
    prompt.media_count--;
    expect_bad_sample(model, &prompt, &it.completions[0], "belongs to no medium");
    prompt = it.prompt;
    struct model_medium media[4];
    memcpy(media, prompt.media, prompt.media_count * sizeof *media);
    prompt.media = media;
    media[1].frames += 2;
    expect_bad_sample(model, &prompt, &it.completions[0], "placeholders");
    media[1].frames -= 2;
    media[1].height += 7;
    expect_bad_sample(model, &prompt, &it.completions[0], "units");
    struct train_result result;
    assert_int_equal(model_accumulate(model, &it.prompt, NULL, 0, &(struct loss_options){0}, 1, &result), BUG);
    SCOPED(struct generator *, generator_free) generator = NULL;
    assert_int_equal(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = 0}), USAGE);
    const struct generator_options many = {.rows = MAX_GENERATOR_ROWS + 1, .max_new_tokens = 1};
    assert_int_equal(generator_new(&generator, model, &many), USAGE);
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = 4}));
    struct generate_request request = {.prompt = it.prompt, .count = 1, .top_p = 1, .max_new_tokens = 5};
    assert_int_equal(generator_add(generator, &request), USAGE);
    request.max_new_tokens = 4;
    request.prompt.media_count = 0;
    assert_int_equal(generator_add(generator, &request), BAD_SAMPLE);
    assert_false(generator_busy(generator));
}

static bool guard_next; // the next backend that a model opens is guarded
status __real_backend_open(struct backend **out, const struct backend_options *options);
status __wrap_backend_open(struct backend **out, const struct backend_options *options);

status __wrap_backend_open(struct backend **out, const struct backend_options *options) {
    const bool guard = guard_next;
    guard_next = false;
    return guard ? guarded_open(out, options) : __real_backend_open(out, options);
}

// No code above the backend reads or writes what a buffer holds.
TEST(the_model_touches_nothing_behind_the_backend) {
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    const struct model_options plain_options = {.device = "cpu", .precision = "float32"};
    static struct samples guarded, plain;
    float a[COMPLETIONS][MAX_TOKENS], b[COMPLETIONS][MAX_TOKENS];
    SCOPED(struct model *, model_free) open = case_model(&it, &plain_options);
    guard_next = true;
    SCOPED(struct model *, model_free) closed = case_model(&it, &plain_options);
    sample_all(&it, open, 5, REQUESTS, &plain);
    sample_all(&it, closed, 5, REQUESTS, &guarded);
    assert_memory_equal(&plain, &guarded, sizeof plain);
    case_score(&it, open, a);
    case_score(&it, closed, b);
    assert_memory_equal(a, b, sizeof a);
    model_free(&open);
    model_free(&closed);
    struct model_options options = {
        .device = "cpu", .precision = "float32", .training = true, .train_vision = true, .ema = true};
    open = case_model(&it, &options);
    guard_next = true;
    closed = case_model(&it, &options);
    take_step(&it, open);
    take_step(&it, closed);
    MUST(model_update_ema(closed, 0.9));
    assert_true(case_hash(open) == case_hash(closed));
    char *dir = unit_new_directory();
    MUST(model_save(closed, dir));
    MUST(model_save_state(closed, dir));
    MUST(model_load_state(closed, dir));
}
