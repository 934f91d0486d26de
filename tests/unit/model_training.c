// What a step of the optimizer does to the numbers that training keeps, and that a reload keeps every bit of them.
#include "tests/unit/model_case.h"

enum { STEPS = 3 };

static const struct optimizer_options rates = {3e-3, 0.9, 0.99, 1e-8, 0.01, 1.0};

// A training state that was saved, mapped.
struct saved_state {
    struct safetensors *store;
    const char *dir;
};

static void state_save(struct model_case *it, struct model *model, struct saved_state *out) {
    out->dir = unit_new_directory();
    MUST(model_save_state(model, out->dir));
    MUST(safetensors_open(&out->store, path_join(&it->arena, out->dir, "training.safetensors")));
}

static void state_release(struct saved_state *state) {
    safetensors_close(&state->store);
    MUST(dir_remove(state->dir));
}

// The values of a tensor of float32 or bfloat16 as float32, in the case's arena.
static float *values_of(struct model_case *it, const struct stored_tensor *tensor) {
    size_t count = (size_t)stored_tensor_count(tensor);
    float *values = arena_alloc(&it->arena, count * sizeof *values);
    const unsigned char *data = tensor->data;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        if (tensor->type == ELEMENT_F32) memcpy(&bits, data + 4 * i, 4);
        if (tensor->type == ELEMENT_BF16) bits = (uint32_t)data[2 * i + 1] << 24 | (uint32_t)data[2 * i] << 16;
        memcpy(&values[i], &bits, 4);
    }
    return values;
}

static float *state_values(struct model_case *it, const struct saved_state *state, const char *prefix,
                           const char *name) {
    const struct stored_tensor *tensor =
        safetensors_find(state->store, arena_printf(&it->arena, "%s.%s", prefix, name));
    assert_non_null(tensor);
    return values_of(it, tensor);
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// One AdamW step of one number in float32.
struct float_step {
    float param, exp_avg, exp_avg_sq;
};

static struct float_step adamw_of(struct float_step old, float grad, double norm, int step, bool decay) {
    double scale = rates.max_grad_norm / (norm + 1e-6);
    float g = grad * (float)(scale < 1 ? scale : 1);
    struct float_step new = {.exp_avg = old.exp_avg * (float)rates.beta1 + g * (float)(1 - rates.beta1),
                             .exp_avg_sq = old.exp_avg_sq * (float)rates.beta2 + g * g * (float)(1 - rates.beta2)};
    float size = (float)(rates.lr / (1 - pow(rates.beta1, step)));
    float root = (float)(1 / sqrt(1 - pow(rates.beta2, step)));
    float kept = decay ? (float)(1 - rates.lr * rates.weight_decay) : 1;
    new.param = old.param *kept - new.exp_avg *size / (sqrtf(new.exp_avg_sq) * root + (float)rates.eps);
    return new;
}

// Compares a step's result with the float32 step from the state before. Returns the number of ties among the
// parameters: only these differ, by one unit of the last place.
static int64_t expect_float_steps(struct model_case *it, const struct saved_state *before,
                                  const struct saved_state *after, const struct safetensors *grads, double norm,
                                  int step, int64_t *updates) {
    int64_t ties = 0;
    for (size_t t = 0; t < safetensors_count(grads); t++) {
        const struct stored_tensor *tensor = safetensors_at(before->store, t); // both are in the order of the table
        const char *name = strchr(tensor->name, '.') + 1;
        assert_memory_equal(tensor->name, "master.", 7);
        assert_int_equal(stored_tensor_count(tensor), stored_tensor_count(safetensors_at(grads, t)));
        const float *grad = values_of(it, safetensors_at(grads, t));
        const float *param = values_of(it, tensor), *exp_avg = state_values(it, before, "first", name),
                    *exp_avg_sq = state_values(it, before, "second", name);
        const float *new_param = state_values(it, after, "master", name),
                    *new_exp_avg = state_values(it, after, "first", name),
                    *new_exp_avg_sq = state_values(it, after, "second", name);
        for (int64_t i = 0; i < stored_tensor_count(tensor); i++) {
            struct float_step want = adamw_of((struct float_step){param[i], exp_avg[i], exp_avg_sq[i]}, grad[i], norm,
                                              step, tensor->rank > 1);
            bool tie = (bits_of(want.param) & 0x1ffff) == 0x18000;
            if (bits_of(new_param[i]) != bits_of(want.param) + tie)
                print_error("%s, element %lld: %.9g, not %.9g\n", name, (long long)i, (double)new_param[i],
                            (double)want.param);
            assert_int_equal(bits_of(new_param[i]), bits_of(want.param) + tie);
            assert_int_equal(bits_of(new_exp_avg[i]), bits_of(want.exp_avg));
            assert_int_equal(bits_of(new_exp_avg_sq[i]), bits_of(want.exp_avg_sq));
            ties += tie;
            ++*updates;
        }
    }
    return ties;
}

// Training in bfloat16 moves float32 weights, although the products read bfloat16: each update is that of float32, but
// for one unit of the last place in about one of 131,072.
TEST(bfloat16_updates_float32_weights) {
    int64_t ties = 0, updates = 0;
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        if (case_computes(&it, case_device(), "bfloat16")) {
            struct model *model = case_model(&it, &(struct model_options){.precision = "bfloat16",
                                                                          .gradient_precision = "float32",
                                                                          .moment_precision = "float32",
                                                                          .training = true,
                                                                          .train_vision = true});
            struct saved_state before, after;
            state_save(&it, model, &before);
            for (int step = 1; step <= STEPS; step++) {
                char *path = path_join(&it.arena, before.dir, "grads");
                struct safetensors *grads = NULL;
                double norm = 0;
                case_accumulate(&it, model);
                MUST(model_save_grads(model, path));
                MUST(safetensors_open(&grads, path));
                MUST(model_step(model, &rates, &norm));
                state_save(&it, model, &after);
                ties += expect_float_steps(&it, &before, &after, grads, norm, step, &updates);
                safetensors_close(&grads);
                state_release(&before);
                before = after;
            }
            state_release(&before);
            model_free(&model);
        }
    }
    print_message("%lld of %lld updates were rounded up by a tie\n", (long long)ties, (long long)updates);
    assert_true(ties * 32768 <= updates);
}

static void expect_same_state(const struct saved_state *one, const struct saved_state *other) {
    assert_int_equal(safetensors_count(one->store), safetensors_count(other->store));
    for (size_t i = 0; i < safetensors_count(one->store); i++) {
        const struct stored_tensor *a = safetensors_at(one->store, i), *b = safetensors_at(other->store, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->size, b->size);
        assert_memory_equal(a->data, b->data, a->size);
    }
}

static void train_a_step(struct model_case *it, struct model *model) {
    double norm = 0;
    case_accumulate(it, model);
    MUST(model_step(model, &rates, &norm));
    MUST(model_update_ema(model, 0.9));
}

// A model that reads the state of another has the same state, and the same after a further step.
static void expect_exact_reload(const char *name, const struct model_options *options) {
    SCOPED(struct model_case, case_close) it = case_open(name);
    if (case_computes(&it, case_device(), options->precision)) {
        SCOPED(struct model *, model_free) straight = case_model(&it, options), again = case_model(&it, options);
        struct saved_state one, other;
        for (int i = 0; i < 2; i++) train_a_step(&it, straight);
        state_save(&it, straight, &one);
        MUST(model_load_state(again, one.dir));
        state_save(&it, again, &other);
        expect_same_state(&one, &other);
        state_release(&one);
        state_release(&other);
        train_a_step(&it, straight);
        train_a_step(&it, again);
        state_save(&it, straight, &one);
        state_save(&it, again, &other);
        expect_same_state(&one, &other);
        state_release(&one);
        state_release(&other);
    }
}

TEST(a_reload_is_exact) {
    static const char *const precisions[] = {"float32", "bfloat16"};
    for (int i = 0; i < 8; i++) {
        for (int c = 0; c < CASES; c++)
            expect_exact_reload(case_names[c], &(struct model_options){.precision = precisions[i % 2],
                                                                       .gradient_precision = precisions[i / 2 % 2],
                                                                       .moment_precision = precisions[i / 4],
                                                                       .training = true,
                                                                       .train_vision = c != 2,
                                                                       .ema = true});
    }
}

TEST(a_reload_of_adapters_is_exact) {
    for (int c = 0; c < CASES; c++)
        for (int half = 0; half < 2; half++)
            expect_exact_reload(case_names[c], &(struct model_options){.precision = half ? "bfloat16" : "float32",
                                                                       .training = true,
                                                                       .ema = true,
                                                                       .lora = 4,
                                                                       .lora_alpha = 8});
}

// The distance between what `steps` steps change in two models, relative to the change itself, over all parameters.
static double distance_of_changes(struct model_case *it, const struct saved_state *start, const struct saved_state *one,
                                  const struct saved_state *other) {
    double difference = 0, change = 0;
    for (size_t t = 0; t < safetensors_count(start->store); t++) {
        const struct stored_tensor *tensor = safetensors_at(start->store, t);
        if (strncmp(tensor->name, "master.", 7) != 0) continue;
        const float *from = values_of(it, tensor), *a = state_values(it, one, "master", tensor->name + 7),
                    *b = state_values(it, other, "master", tensor->name + 7);
        for (int64_t i = 0; i < stored_tensor_count(tensor); i++) {
            difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            change += ((double)a[i] - from[i]) * ((double)a[i] - from[i]);
        }
    }
    return sqrt(difference / change);
}

// Gradients and moments in bfloat16 change the weights almost as those in float32 do. The state's file has the moments
// in their type, and a model that keeps another type refuses it.
TEST(coarse_gradients_and_moments_train_almost_the_same) {
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    struct model_options options = {.precision = "float32", .training = true, .train_vision = true, .ema = true};
    SCOPED(struct model *, model_free) fine = case_model(&it, &options);
    options.gradient_precision = options.moment_precision = "bfloat16";
    SCOPED(struct model *, model_free) coarse = case_model(&it, &options);
    struct saved_state start, one, other;
    state_save(&it, fine, &start);
    for (int i = 0; i < STEPS; i++) {
        train_a_step(&it, fine);
        train_a_step(&it, coarse);
    }
    state_save(&it, fine, &one);
    state_save(&it, coarse, &other);
    double distance = distance_of_changes(&it, &start, &one, &other);
    print_message("gradients and moments in bfloat16: %.2g of the change\n", distance);
    assert_true(distance > 0 && distance < 0.05);
    static const char *const moments[] = {"first", "second"};
    for (int i = 0; i < 2; i++) {
        const char *names[] = {"model.embed_tokens.weight", "model.norm.weight"};
        const enum element types[] = {ELEMENT_BF16, ELEMENT_F32};
        for (int j = 0; j < 2; j++) {
            const struct stored_tensor *tensor =
                safetensors_find(other.store, arena_printf(&it.arena, "%s.%s", moments[i], names[j]));
            assert_non_null(tensor);
            assert_int_equal(tensor->type, types[j]);
        }
    }
    assert_int_equal(model_load_state(fine, other.dir), USAGE);
    assert_non_null(strstr(fail_text(), "float32 numbers"));
    struct model *none = NULL;
    options.moment_precision = "float16";
    options.device = case_device();
    assert_int_equal(model_open(&none, it.dir, &options), USAGE);
    assert_non_null(strstr(fail_text(), "moment_precision float16"));
    state_release(&start);
    state_release(&one);
    state_release(&other);
}

// A device that packs nothing gives the same weights the same hash, takes over published ones
// and computes with them.
TEST(weights_are_the_same_on_a_device_that_does_not_pack) {
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        for (int i = 0; i < 2; i++) {
            struct model_options options = {.precision = i ? "bfloat16" : "float32", .device = "emulated"};
            SCOPED(struct model *, model_free) scorer = NULL;
            status result = model_open(&scorer, it.dir, &options);
            if (result != OK) print_message("left out: %s\n", fail_text());
            if (result == UNAVAILABLE || !case_computes(&it, case_device(), options.precision)) {
                model_free(&scorer);
                continue;
            }
            assert_int_equal(result, OK);
            options = (struct model_options){
                .precision = options.precision, .training = true, .train_vision = true, .ema = true};
            SCOPED(struct model *, model_free) trained = case_model(&it, &options);
            uint64_t first = case_hash(trained), hash = 0;
            assert_true(case_hash(scorer) == first);
            train_a_step(&it, trained);
            char *dir = unit_new_directory(), *path = path_join(&it.arena, dir, "weights");
            MUST(model_publish(trained, true, path, &hash));
            MUST(model_swap(scorer, path, 1, hash));
            assert_true(hash != first && case_hash(scorer) == hash);
            float fine[COMPLETIONS][MAX_TOKENS] = {0}, other[COMPLETIONS][MAX_TOKENS] = {0};
            struct model *packed = case_model(&it, &(struct model_options){.precision = options.precision});
            MUST(model_swap(packed, path, 1, hash));
            case_score(&it, packed, fine);
            case_score(&it, scorer, other);
            double distance = relative_distance(other[0], fine[0], COMPLETIONS * MAX_TOKENS);
            print_message("%s, %s: log-probabilities differ by %.2g\n", case_names[c], options.precision, distance);
            assert_true(distance < (i ? 1e-2 : 1e-5));
            model_free(&packed);
            MUST(model_reset(scorer, first));
            assert_true(case_hash(scorer) == first);
            MUST(dir_remove(dir));
        }
    }
}
