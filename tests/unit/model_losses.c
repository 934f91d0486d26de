// optim's losses against Hugging Face and torch in float64 (tests/parity/make_loss_golden.py): the KL term of all or of
// the accurate completions, whole or in parts, and the mean over tokens. A step has two groups of two completions.
#include "tests/unit/model_compare.h"

#include "shared/reward/reward.h"

enum { STEPS = 3, GROUP_SIZE = 2, GROUP_COUNT = COMPLETIONS / GROUP_SIZE };

static struct model_case even;
static struct json *golden;
static struct safetensors *golden_tensors;

static bool is_set(struct json *loss, const char *key) {
    return key_of(loss, key)->boolean;
}

// The step's completions with everything that this loss counts.
static void losses_step(struct json *loss, struct json *step, struct train_completion *out) {
    case_step(&even, step, out);
    for (size_t i = 0; i < COMPLETIONS; i++) {
        struct json *span = json_item(key_of(step, "spans"), i);
        if (number_of(loss, "kl") == 0) out[i].ref_logprobs = NULL;
        if (!span || !is_set(loss, "separate")) continue;
        out[i].has_answer = true;
        out[i].answer.first = (size_t)json_int_or(json_item(span, 0), 0);
        out[i].answer.end = (size_t)json_int_or(json_item(span, 1), 0);
    }
    for (size_t g = 0; is_set(loss, "accurate") && g < COMPLETIONS; g += GROUP_SIZE) {
        double accuracy[GROUP_SIZE];
        bool accurate[GROUP_SIZE];
        for (size_t i = 0; i < GROUP_SIZE; i++)
            accuracy[i] = json_double_or(json_item(key_of(step, "accuracy"), g + i), 0);
        reward_find_accurate(&(struct double_array){accuracy, GROUP_SIZE}, accurate);
        for (size_t i = 0; i < GROUP_SIZE; i++) out[g + i].kl_excluded = !accurate[i];
    }
}

// Adds the step's gradient and returns its loss.
static double losses_accumulate(struct model *model, struct json *loss, struct json *step) {
    struct json *settings = key_of(golden, "settings");
    const bool by_token = is_set(loss, "tokens");
    struct train_completion completions[COMPLETIONS];
    size_t tokens = 0;
    double sum = 0;
    losses_step(loss, step, completions);
    for (size_t i = 0; i < COMPLETIONS; i++) tokens += completions[i].completion.count;
    const struct loss_options options = {.kl_beta = number_of(loss, "kl"),
                                         .clip_low = number_of(settings, "clip_low"),
                                         .clip_high = number_of(settings, "clip_high"),
                                         .kl_separate = is_set(loss, "separate"),
                                         .token_weight = by_token ? 1.0 / (double)tokens : 0};
    for (size_t g = 0; g < COMPLETIONS; g += GROUP_SIZE) {
        const double weight = by_token ? 1 : 1.0 / GROUP_COUNT;
        struct train_result result;
        MUST(model_accumulate(model, &even.prompt, &completions[g], GROUP_SIZE, &options, weight, &result));
        sum += weight * result.loss;
    }
    return sum;
}

// Compares the first step's gradient, and the update of three steps.
static void check_loss(struct json *loss) {
    struct json *settings = key_of(golden, "settings"), *values = key_of(loss, "values");
    const char *name = json_text(key_of(loss, "name"));
    const size_t every = (size_t)number_of(golden, "every");
    const struct optimizer_options rates = {.lr = number_of(settings, "rate"),
                                            .beta1 = number_of(settings, "beta1"),
                                            .beta2 = number_of(settings, "beta2"),
                                            .eps = number_of(settings, "epsilon"),
                                            .weight_decay = number_of(settings, "weight_decay"),
                                            .max_grad_norm = number_of(settings, "clip_norm")};
    char *before = unit_new_directory(), *after = unit_new_directory();
    char *grads_path = path_join(&even.arena, before, "gradients");
    struct model *model = case_model(&even, &(struct model_options){.precision = "float32",
                                                                    .gradient_precision = "float32",
                                                                    .moment_precision = "float32",
                                                                    .training = true,
                                                                    .train_vision = true});
    MUST(model_save_state(model, before));
    for (size_t s = 0; s < STEPS; s++) {
        struct json *value = json_item(values, s);
        double norm;
        double got = losses_accumulate(model, loss, json_item(key_of(golden, "steps"), s));
        if (s == 0) MUST(model_save_grads(model, grads_path));
        MUST(model_step(model, &rates, &norm));
        assert_true(fabs(got - number_of(value, "loss")) <= 1e-4 * fmax(fabs(got), 1e-2));
        assert_true(fabs(norm / number_of(value, "norm") - 1) <= 1e-3);
    }
    MUST(model_save_state(model, after));
    const struct distance grads =
        compare_tensors(golden_tensors, every, arena_printf(&even.arena, "%s.gradient.", name), grads_path, NULL);
    const struct distance update = compare_tensors(golden_tensors, every, arena_printf(&even.arena, "%s.update.", name),
                                                   path_join(&even.arena, after, "training.safetensors"),
                                                   path_join(&even.arena, before, "training.safetensors"));
    print_message("%s: gradients %.2g, update of three steps %.2g\n", name, distance_of_all(&grads),
                  distance_of_all(&update));
    assert_true(distance_of_all(&grads) <= 1e-4);
    assert_true(distance_of_all(&update) <= 1e-3);
    model_free(&model);
}

TEST(losses_are_those_of_transformers) {
    struct json *losses = key_of(golden, "losses");
    assert_int_equal(json_count(losses), 6);
    for (size_t i = 0; i < json_count(losses); i++) check_loss(json_item(losses, i));
}

int main(void) {
    even = case_open("even");
    MUST(json_parse_file(&golden, &even.arena, path_join(&even.arena, even.dir, "losses.json")));
    MUST(safetensors_open(&golden_tensors, path_join(&even.arena, even.dir, "losses.safetensors")));
    int failed = unit_run(NULL, NULL);
    safetensors_close(&golden_tensors);
    case_close(&even);
    return failed;
}
