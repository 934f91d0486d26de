// The generator on a backend that is asynchronous and records its steps: the same completions as on the CPU, to the
// bit, when requests join and leave, when the weights are swapped and when memory moves between two steps.
#include "tests/unit/model_case.h"
#include "tests/unit/recording_backend.h"

enum { REQUESTS = SAMPLED_REQUESTS, GROUP = SAMPLED_COMPLETIONS, NEW_TOKENS = SAMPLED_TOKENS };

// The first request is short: the cache that is made for it has no room for the others' prompts.
static struct generate_request request_of(const struct model_case *it, int request) {
    static const int64_t words[] = {5, 6, 7};
    return (struct generate_request){.prompt = request ? it->prompt : (struct model_prompt){words, 3, NULL, 0},
                                     .count = 1 + request % GROUP,
                                     .temperature = request == 2 ? 0 : 1.5f,
                                     .top_p = 0.98f,
                                     .max_new_tokens = NEW_TOKENS - 7 * (request % 3),
                                     .key = (uint64_t)request + 20,
                                     .tag = (void *)(intptr_t)request};
}

// Requests join as soon as they can, but the last one when all others have left. With few slots a slot is given to
// another completion several times.
static void sample_all(const struct model_case *it, struct model *model, int slots, struct samples *out) {
    memset(out, 0, sizeof *out);
    SCOPED(struct generator *, generator_free) generator = NULL;
    MUST(generator_new(&generator, model, &(struct generator_options){.rows = slots, .max_new_tokens = NEW_TOKENS}));
    for (int i = 0; i < REQUESTS; i++) {
        while (i == REQUESTS - 1 ? generator_busy(generator) : !generator_can_add(generator))
            MUST(generator_step(generator));
        const struct generate_request request = request_of(it, i);
        MUST(generator_add(generator, &request));
        case_take_finished(generator, out);
    }
    while (generator_busy(generator)) MUST(generator_step(generator));
    case_take_finished(generator, out);
}

TEST(requests_join_and_leave) {
    int ended = 0, full = 0;
    for (int c = 0; c < CASES; c++) {
        static struct samples want, got;
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        SCOPED(struct model *, model_free)
        model = case_model(&it, &(struct model_options){.precision = "float32", .threads = 2});
        sample_all(&it, model, 3, &want);
        recording_backend_enter(model);
        for (int slots = 1; slots <= 9; slots += 4) {
            sample_all(&it, model, slots, &got);
            assert_memory_equal(&got, &want, sizeof want);
        }
        assert_int_equal(recorder.early_reads, 0);
        assert_true(recorder.recorded >= 3 && recorder.launched > 10 * recorder.recorded);
        for (int i = 0; i < REQUESTS; i++) {
            for (int k = 0; k < i % GROUP + 1; k++) {
                ended += want.ended[i][k];
                full += !want.ended[i][k];
            }
        }
    }
    assert_true(ended > 0 && full > 0); // completions end in both ways
}

// Samples one request and calls `change` between two steps.
static void sample_changed(const struct model_case *it, struct model *model, void (*change)(struct model *, void *),
                           void *context, struct samples *out) {
    memset(out, 0, sizeof *out);
    struct generator *generator = NULL;
    MUST(generator_new(&generator, model, &(struct generator_options){.rows = GROUP, .max_new_tokens = NEW_TOKENS}));
    const struct generate_request request = request_of(it, 3);
    MUST(generator_add(generator, &request));
    for (int step = 0; generator_busy(generator); step++) {
        if (step == 7) change(model, context);
        MUST(generator_step(generator));
    }
    case_take_finished(generator, out);
    generator_free(&generator);
}

struct published {
    const char *path;
    uint64_t hash;
};

static void swap_weights(struct model *model, void *context) {
    const struct published *to = context;
    MUST(model_swap(model, to->path, 5, to->hash));
}

// A token has the version of the weights with which its step was asked for, also if it is read after the swap.
TEST(weights_are_swapped_between_steps) {
    static struct samples want, got;
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    struct model *trained = case_model(&it, &(struct model_options){.precision = "float32", .training = true});
    struct train_completion completions[COMPLETIONS];
    struct train_result result;
    double norm;
    case_step(&it, json_item(key_of(it.golden, "steps"), 0), completions);
    MUST(model_accumulate(trained, &it.prompt, completions, COMPLETIONS, &(struct loss_options){0}, 1, &result));
    MUST(model_step(trained, &(struct optimizer_options){3e-3, 0.9, 0.99, 1e-8, 0.01, 1.0}, &norm));
    char *dir = unit_new_directory();
    struct published to = {.path = path_join(&it.arena, dir, "weights")};
    MUST(model_publish(trained, false, to.path, &to.hash));
    model_free(&trained);

    SCOPED(struct model *, model_free) model = case_model(&it, &(struct model_options){.precision = "float32"});
    sample_changed(&it, model, swap_weights, &to, &want);
    model_free(&model);
    model = case_model(&it, &(struct model_options){.precision = "float32"});
    recording_backend_enter(model);
    sample_changed(&it, model, swap_weights, &to, &got);
    assert_memory_equal(&got, &want, sizeof want);
    int across = 0;
    for (int i = 0; i < GROUP; i++) { // before the swap there were the first token and seven steps
        assert_true(want.count[3][i] <= 7 || want.versions[3][i][7] == 0);
        assert_true(want.count[3][i] <= 8 || want.versions[3][i][8] == 5);
        across += want.count[3][i] > 8;
    }
    assert_true(across > 0);
    assert_int_equal(recorder.recorded, 2);
}

static void grow_angles(struct model *model, void *context) {
    (void)context;
    MUST(rope_angles_reserve(&model->text_rope, model->backend, 2 * model->text_rope.table.cos.rows));
}

TEST(angles_move_between_steps) {
    static struct samples want, got;
    SCOPED(struct model_case, case_close) it = case_open("even");
    SCOPED(struct model *, model_free) model = case_model(&it, &(struct model_options){.precision = "float32"});
    sample_changed(&it, model, grow_angles, NULL, &want);
    recording_backend_enter(model);
    sample_changed(&it, model, grow_angles, NULL, &got);
    assert_memory_equal(&got, &want, sizeof want);
    assert_int_equal(recorder.recorded, 2);
}

// ---- groups of many completions ----

enum { MANY = MAX_DECODE_ROWS + 44, MANY_TOKENS = 2 };

struct many_samples {
    int64_t tokens[MANY][MANY_TOKENS];
    float logprobs[MANY][MANY_TOKENS];
};

static void sample_many(struct model *model, struct many_samples *out) {
    static const int64_t words[] = {5, 6, 7};
    const struct generate_request request = {.prompt = {words, 3, NULL, 0},
                                             .count = MANY,
                                             .temperature = 1.5f,
                                             .top_p = 1,
                                             .max_new_tokens = MANY_TOKENS,
                                             .key = 60};
    SCOPED(struct generator *, generator_free) generator = NULL;
    void *tag;
    int count = 0;
    memset(out, 0, sizeof *out);
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = MANY_TOKENS}));
    MUST(generator_add(generator, &request));
    while (generator_busy(generator)) MUST(generator_step(generator));
    const struct generated *got = generator_pop(generator, &tag, &count);
    assert_int_equal(count, MANY);
    for (int i = 0; i < MANY; i++) {
        memcpy(out->tokens[i], got[i].tokens, got[i].count * sizeof *got[i].tokens);
        memcpy(out->logprobs[i], got[i].logprobs, got[i].count * sizeof *got[i].logprobs);
    }
}

TEST(a_group_may_have_more_completions_than_a_backend_decodes_side_by_side) {
    static struct many_samples want, got;
    SCOPED(struct model_case, case_close) it = case_open("even");
    SCOPED(struct model *, model_free) model = case_model(&it, &(struct model_options){.precision = "float32"});
    sample_many(model, &want);
    recording_backend_enter(model); // which refuses more
    sample_many(model, &got);
    assert_memory_equal(&got, &want, sizeof want);
    // Each completion has chance of its own.
    assert_memory_not_equal(want.tokens[0], want.tokens[MAX_DECODE_ROWS],
                            (MANY - MAX_DECODE_ROWS) * sizeof want.tokens[0]);
}

// ---- the CUDA backend's graphs, on the emulator ----

static struct counted_graphs {
    const struct operations *device;
    struct operations table;
    int recorded, launched;
} counted;

static status counted_graph_end(struct backend *backend, struct graph **out) {
    counted.recorded++;
    return counted.device->graph_end(backend, out);
}

static status counted_graph_launch(struct backend *backend, const struct graph *graph) {
    counted.launched++;
    return counted.device->graph_launch(backend, graph);
}

// Two requests, the second of which joins after some steps. They have five completions for two slots.
static void sample_emulated(struct model *model, bool with_graphs, struct samples *out) {
    static const int64_t words[] = {5, 6, 7, 8};
    struct generator *generator = NULL;
    memset(out, 0, sizeof *out);
    counted = (struct counted_graphs){.device = model->backend->ops, .table = *model->backend->ops};
    counted.table.graph_end = with_graphs ? counted_graph_end : NULL;
    counted.table.graph_launch = with_graphs ? counted_graph_launch : NULL;
    if (!with_graphs) counted.table.graph_begin = NULL;
    model->backend->ops = &counted.table;
    MUST(generator_new(&generator, model, &(struct generator_options){.rows = 2, .max_new_tokens = NEW_TOKENS}));
    for (int i = 0; i < 2; i++) {
        const struct generate_request request = {.prompt = {words, i ? 3 : 4, NULL, 0},
                                                 .count = 3 - i,
                                                 .temperature = 1.5f,
                                                 .top_p = 0.98f,
                                                 .max_new_tokens = 9 - 3 * i,
                                                 .key = (uint64_t)i + 40,
                                                 .tag = (void *)(intptr_t)i};
        MUST(generator_add(generator, &request));
        for (int step = 0; step < 5; step++) MUST(generator_step(generator));
    }
    while (generator_busy(generator)) MUST(generator_step(generator));
    case_take_finished(generator, out);
    generator_free(&generator);
    model->backend->ops = counted.device;
}

// Recorded once, a step gives the same as computed each time, to the bit.
TEST(a_recorded_step_gives_the_bits_of_a_computed_one) {
    for (int i = 0; i < 2; i++) {
        static struct samples want, got;
        SCOPED(struct model_case, case_close) it = {0};
        SCOPED(struct model *, model_free) model = NULL;
        it = case_open("even");
        const struct model_options options = {.precision = i ? "bfloat16" : "float32", .device = "emulated:1"};
        status opened = model_open(&model, it.dir, &options);
        if (opened == UNAVAILABLE) {
            print_message("left out: %s\n", fail_text());
        } else {
            assert_int_equal(opened, OK);
            sample_emulated(model, false, &want);
            assert_int_equal(counted.launched, 0);
            sample_emulated(model, true, &got);
            assert_memory_equal(&got, &want, sizeof want);
            assert_true(want.count[0][2] > 1 && want.count[1][1] > 1);
            assert_int_equal(counted.recorded, 1);
            assert_true(counted.launched > 10);
        }
    }
}
