// The model against Hugging Face in float32 (tests/parity/make_model_golden.py): on the CPU with all cases, and on the
// emulated GPU with two. MODEL_DEVICE names another device, which gets all.
#include "tests/unit/model_compare.h"

// A case, and the precision in which it is computed; NULL: both.
struct parity_case {
    const char *name, *precision;
};

static const struct parity_case emulated_cases[] = {{"even", "float32"}, {"wide", "bfloat16"}};

// What the tests run on.
static const char *device;
static struct parity_case list[ALL_CASES];
static int case_count;
static struct model_case cases[ALL_CASES];

static bool left_out(int c, const char *precision) {
    return list[c].precision && strcmp(list[c].precision, precision) != 0;
}

struct bounds {
    double logprob_mean, logprob_max;
    double grads, one_grad;    // relative, of all tensors together and of each
    double update, one_update; // likewise
    double norm;               // of a step's gradient, relative
};

// In float32, and in bfloat16 as derived here.
//
// In bfloat16 a rounding is off by 2^-9 of the number (root mean square), and a block rounds its values twelve times.
// Independent errors add up as their squares do: e of a hidden state after all blocks. Logits spread by 1.8, and the
// random weights enlarge early errors up to threefold: 5 e for log-probabilities, and four times that at most.
//
// The loss's gradient inherits those 5 e, and on the way back each value is rounded twice as often, 3 sqrt(2) e: 7 e,
// and 10 e with roundings of weights and of the gradient itself. Where the parts of a tensor's gradient cancel, 25 e.
//
// A first step of AdamW is about the gradient's sign. Of normally distributed numbers with a relative error r, a share
// of r / pi has the other sign, which is a distance of sqrt(4 r / pi). Tensors that are off by more than others are
// held to less than the distance of a random direction, sqrt(2).
static struct bounds bounds_of(const struct model_case *it, const char *precision) {
    if (strcmp(precision, "float32") == 0) return (struct bounds){1e-5, 1e-4, 1e-4, 1e-4, 1e-3, 1e-3, 1e-3};
    double e = 0x1p-9 * sqrt(12 * number_of(it->golden, "blocks")), grads = 10 * e;
    return (struct bounds){5 * e, 20 * e, grads, 25 * e, sqrt(4 * grads / M_PI), 1, grads};
}

static struct model *scoring_model(const struct model_case *it, const char *precision) {
    return case_model(it, &(struct model_options){.device = device, .precision = precision});
}

// Gradients and moments are kept in the same precision.
static struct model *training_model(const struct model_case *it, const char *precision) {
    return case_model(it, &(struct model_options){.device = device,
                                                  .precision = precision,
                                                  .gradient_precision = precision,
                                                  .moment_precision = precision,
                                                  .training = true,
                                                  .train_vision = true,
                                                  .ema = true});
}

static void log_probabilities(const char *precision) {
    for (int c = 0; c < case_count; c++) {
        if (left_out(c, precision)) continue;
        struct model_case *it = &cases[c];
        SCOPED(struct model *, model_free) model = scoring_model(it, precision);
        float got[COMPLETIONS][MAX_TOKENS];
        case_score(it, model, got);
        double sum = 0, maximum = 0;
        size_t total = 0;
        for (int i = 0; i < COMPLETIONS; i++) {
            const struct stored_tensor *want =
                safetensors_find(it->tensors, arena_printf(&it->arena, "logprobs.%d", i));
            for (size_t t = 0; t < it->completions[i].count; t++, total++) {
                double difference = fabs((double)got[i][t] - ((const float *)want->data)[t]);
                sum += difference;
                if (!(difference <= maximum)) maximum = difference;
            }
        }
        print_message("%s: log-probabilities %.2g mean, %.2g at most\n", it->name, sum / (double)total, maximum);
        struct bounds bounds = bounds_of(it, precision);
        assert_true(sum / (double)total <= bounds.logprob_mean);
        assert_true(maximum <= bounds.logprob_max);
    }
}

// Every token of the vocabulary as a completion of one token: the whole distribution after the prompt.
TEST(the_whole_distribution_is_that_of_transformers) {
    for (int c = 0; c < case_count; c++) {
        if (left_out(c, "float32")) continue;
        struct model_case *it = &cases[c];
        SCOPED(struct model *, model_free) model = scoring_model(it, "float32");
        size_t count = (size_t)model_get_info(model)->vocab_size;
        int64_t tokens[128];
        float got[128], *rows[128];
        struct model_completion completions[128];
        assert_in_range(count, 1, 128);
        for (size_t i = 0; i < count; i++) {
            tokens[i] = (int64_t)i;
            rows[i] = &got[i];
            completions[i] = (struct model_completion){&tokens[i], 1};
        }
        MUST(model_score(model, &it->prompt, completions, count, NULL, rows));
        const float *logits = safetensors_find(it->tensors, "logits")->data;
        double sum = 0, maximum = 0;
        for (size_t i = 0; i < count; i++) sum += exp((double)logits[i]);
        for (size_t i = 0; i < count; i++) maximum = fmax(maximum, fabs(got[i] - (logits[i] - log(sum))));
        print_message("%s: logits %.2g at most\n", it->name, maximum);
        assert_true(maximum <= 1e-4);
    }
}

static struct loss_options loss_of(struct json *step) {
    return (struct loss_options){.kl_beta = number_of(step, "kl"),
                                 .clip_low = number_of(step, "clip_low"),
                                 .clip_high = number_of(step, "clip_high")};
}

static size_t case_every(const struct model_case *it) {
    return (size_t)number_of(it->golden, "every");
}

// Compares the gradient after the first step's completions.
static void expect_grads(struct model_case *it, struct model *model, const struct bounds *bounds) {
    char *dir = unit_new_directory(), *path = path_join(&it->arena, dir, "gradients.safetensors");
    MUST(model_save_grads(model, path));
    struct distance difference = compare_tensors(it->tensors, case_every(it), "gradient.", path, NULL);
    double whole = distance_of_all(&difference);
    print_message("%s: gradients %.2g, one tensor's %.2g at most\n", it->name, whole, difference.maximum);
    assert_true(whole <= bounds->grads);
    assert_true(difference.maximum <= bounds->one_grad);
}

static void gradients_and_three_steps(const char *precision) {
    for (int c = 0; c < case_count; c++) {
        if (left_out(c, precision)) continue;
        struct model_case *it = &cases[c];
        SCOPED(struct model *, model_free) model = training_model(it, precision);
        char *before = unit_new_directory(), *after = unit_new_directory();
        struct bounds bounds = bounds_of(it, precision);
        bool exact = strcmp(precision, "float32") == 0;
        MUST(model_save_state(model, before));
        struct json *steps = key_of(it->golden, "steps"), *settings = key_of(it->golden, "settings");
        struct optimizer_options rates = {number_of(settings, "rate"),         number_of(settings, "beta1"),
                                          number_of(settings, "beta2"),        number_of(settings, "epsilon"),
                                          number_of(settings, "weight_decay"), number_of(settings, "clip_norm")};
        for (size_t s = 0; s < 3; s++) {
            struct json *step = json_item(steps, s);
            struct train_completion completions[COMPLETIONS];
            case_step(it, step, completions);
            struct loss_options loss = loss_of(step);
            struct train_result result;
            double norm = 0;
            MUST(model_accumulate(model, &it->prompt, completions, COMPLETIONS, &loss, 1, &result));
            if (s == 0) expect_grads(it, model, &bounds);
            if (s == 0) assert_true(fabs(result.loss - number_of(step, "loss")) <= 1e-6);
            MUST(model_step(model, &rates, &norm));
            if (s > 0 && !exact) continue; // the penalty of steps 2 and 3 is the exponential of a difference
            assert_true(fabs(result.loss / number_of(step, "loss") - 1) <= 1e-4 || fabs(result.loss) < 1e-3);
            assert_true(fabs(norm / number_of(step, "norm") - 1) <= bounds.norm);
        }
        assert_int_equal(model_version(model), 3);
        MUST(model_save_state(model, after));
        struct distance difference = compare_tensors(it->tensors, case_every(it), "update.",
                                                     path_join(&it->arena, after, "training.safetensors"),
                                                     path_join(&it->arena, before, "training.safetensors"));
        double whole = distance_of_all(&difference);
        print_message("%s: update of three steps %.2g, one tensor's %.2g at most\n", it->name, whole,
                      difference.maximum);
        assert_true(whole <= bounds.update);
        assert_true(difference.maximum <= bounds.one_update);
    }
}

// The best token is the same if it stands out by more than a log-probability can differ.
static void greedy_tokens(const char *precision) {
    for (int c = 0; c < case_count; c++) {
        if (left_out(c, precision)) continue;
        struct model_case *it = &cases[c];
        if (number_of(it->golden, "margin") <= bounds_of(it, precision).logprob_max) continue;
        SCOPED(struct model *, model_free) model = scoring_model(it, precision);
        SCOPED(struct generator *, generator_free) generator = NULL;
        MUST(generator_new(&generator, model, &(struct generator_options){.rows = 3, .max_new_tokens = 12}));
        for (int tiny = 0; tiny < 2; tiny++) { // a temperature so low that its inverse is infinite is greedy, too
            const struct generate_request request = {.prompt = it->prompt,
                                                     .count = 2,
                                                     .temperature = tiny ? 1e-40f : 0,
                                                     .top_p = 1,
                                                     .max_new_tokens = 12,
                                                     .key = 1};
            MUST(generator_add(generator, &request));
            while (generator_busy(generator)) MUST(generator_step(generator));
            void *tag = NULL;
            int count = 0;
            const struct generated *got = generator_pop(generator, &tag, &count);
            assert_int_equal(count, 2);
            size_t wanted = 0;
            int64_t *tokens = case_tokens(it, key_of(it->golden, "greedy"), &wanted);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(got[i].count, wanted);
                assert_memory_equal(got[i].tokens, tokens, wanted * sizeof *tokens);
                assert_int_equal(got[i].ended, tokens[wanted - 1] < 2);
            }
        }
    }
}

// The gradient of the packed group against the sum of its completions' own.
TEST(a_packed_groups_gradient_is_the_sum_of_its_completions) {
    for (int c = 0; c < case_count; c++) {
        if (left_out(c, "float32")) continue;
        struct model_case *it = &cases[c];
        SCOPED(struct model *, model_free)
        packed = training_model(it, "float32"), separate = training_model(it, "float32");
        struct json *step = json_item(key_of(it->golden, "steps"), 2);
        struct train_completion completions[COMPLETIONS];
        case_step(it, step, completions);
        struct loss_options loss = loss_of(step);
        struct train_result result;
        MUST(model_accumulate(packed, &it->prompt, completions, COMPLETIONS, &loss, 1, &result));
        float together[COMPLETIONS][MAX_TOKENS], alone[MAX_TOKENS], *row = alone;
        case_score(it, packed, together);
        double maximum = 0;
        for (size_t i = 0; i < COMPLETIONS; i++) {
            MUST(model_accumulate(separate, &it->prompt, &completions[i], 1, &loss, 1.0 / COMPLETIONS, &result));
            MUST(model_score(packed, &it->prompt, &it->completions[i], 1, NULL, &row));
            for (size_t t = 0; t < it->completions[i].count; t++)
                maximum = fmax(maximum, fabs((double)alone[t] - together[i][t]));
        }
        assert_true(maximum <= 1e-5);
        char *dir = unit_new_directory();
        char *one = path_join(&it->arena, dir, "packed"), *other = path_join(&it->arena, dir, "separate");
        MUST(model_save_grads(packed, one));
        MUST(model_save_grads(separate, other));
        SCOPED(struct safetensors *, safetensors_close) a = NULL, b = NULL;
        MUST(safetensors_open(&a, one));
        MUST(safetensors_open(&b, other));
        double difference = 0;
        for (size_t i = 0; i < safetensors_count(a); i++)
            difference = fmax(difference, relative_distance(safetensors_at(a, i)->data, safetensors_at(b, i)->data,
                                                            safetensors_at(a, i)->size / 4));
        print_message("%s: packed against separate: log-probabilities %.2g, gradients %.2g\n", it->name, maximum,
                      difference);
        assert_true(difference <= 1e-4);
    }
}

// -sum A log-probability / n / G, whose gradient is the on-policy loss's.
static double objective(struct model *model, const struct model_case *it, const struct train_completion *completions) {
    float got[COMPLETIONS][MAX_TOKENS];
    double sum = 0;
    case_score(it, model, got);
    for (int i = 0; i < COMPLETIONS; i++)
        for (size_t t = 0; t < it->completions[i].count; t++)
            sum -= completions[i].advantage * got[i][t] / (double)it->completions[i].count / COMPLETIONS;
    return sum;
}

// The objective with tensor `changed` moved by `by` along its gradient; everything else as in the case's directory.
static double objective_moved(struct model_case *it, const char *dir, const struct train_completion *completions,
                              const struct stored_tensor *changed, const float *gradient, double by) {
    struct safetensors *store = NULL;
    struct safetensors_writer *writer = NULL;
    char *path = path_join(&it->arena, dir, "model.safetensors");
    MUST(safetensors_open_dir(&store, it->dir));
    MUST(safetensors_create(&writer, path, safetensors_at(store, 0), safetensors_count(store), true, NULL));
    for (size_t i = 0; i < safetensors_count(store); i++) {
        const struct stored_tensor *tensor = safetensors_at(store, i);
        float *values = malloc(tensor->size);
        memcpy(values, tensor->data, tensor->size);
        if (strcmp(tensor->name, changed->name) == 0)
            for (size_t j = 0; j < tensor->size / 4; j++) values[j] += (float)(by * gradient[j]);
        MUST(safetensors_write(writer, i, 0, values, tensor->size));
        free(values);
    }
    MUST(safetensors_finish(&writer));
    safetensors_close(&store);
    struct model *model = NULL;
    MUST(model_open(&model, dir, &(struct model_options){.device = "cpu", .precision = "float32"}));
    double value = objective(model, it, completions);
    model_free(&model);
    return value;
}

static double size_of(const float *values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)values[i] * values[i];
    return sqrt(sum);
}

// Compares the gradient of every third tensor with finite differences of the objective along it. Uses no golden
// results.
TEST(the_gradient_is_that_of_finite_differences) {
    struct model_case *it = &cases[0]; // stored in float32, in one file
    struct train_completion completions[COMPLETIONS];
    case_step(it, json_item(key_of(it->golden, "steps"), 0), completions);
    char *dir = unit_new_directory();
    SCOPED(struct buf, buf_release) config = {0};
    MUST(file_read(path_join(&it->arena, it->dir, "config.json"), &config));
    MUST(file_write_atomic(path_join(&it->arena, dir, "config.json"), config.data, config.size));
    struct model *model = training_model(it, "float32");
    struct train_result result;
    MUST(model_accumulate(model, &it->prompt, completions, COMPLETIONS, &(struct loss_options){0}, 1, &result));
    char *path = path_join(&it->arena, dir, "gradients");
    MUST(model_save_grads(model, path));
    model_free(&model);
    SCOPED(struct safetensors *, safetensors_close) gradients = NULL;
    MUST(safetensors_open(&gradients, path));
    double maximum = 0;
    for (size_t i = 0; i < safetensors_count(gradients); i += 3) {
        const struct stored_tensor *tensor = safetensors_at(gradients, i);
        double norm = size_of(tensor->data, tensor->size / 4);
        if (norm < 1e-3) continue; // lost in the rounding of the objective
        double by = 1e-3 / norm;   // moves the tensor by a distance of 1e-3
        double up = objective_moved(it, dir, completions, tensor, tensor->data, by);
        double down = objective_moved(it, dir, completions, tensor, tensor->data, -by);
        double difference = fabs((up - down) / (2 * by * norm * norm) - 1);
        if (!(difference <= 0.02)) print_error("%s: %g apart, norm %g\n", tensor->name, difference, norm);
        if (!(difference <= maximum)) maximum = difference;
    }
    print_message("finite differences: %.2g at most\n", maximum);
    assert_true(maximum <= 0.02);
}

// A test of each precision.
#define TESTS(name)                                                                                                    \
    TEST(name##_agree_in_float32) {                                                                                    \
        name("float32");                                                                                               \
    }                                                                                                                  \
    TEST(name##_agree_in_bfloat16) {                                                                                   \
        if (case_computes(&cases[0], device, "bfloat16")) name("bfloat16");                                            \
    }
TESTS(log_probabilities)
TESTS(gradients_and_three_steps)
TESTS(greedy_tokens)

static int open_cases(void **state) {
    (void)state;
    for (int c = 0; c < case_count; c++) cases[c] = case_open(list[c].name);
    return 0;
}

static int close_cases(void **state) {
    (void)state;
    for (int c = 0; c < case_count; c++) case_close(&cases[c]);
    return 0;
}

int main(void) {
    device = case_device();
    for (case_count = 0; case_count < ALL_CASES; case_count++) list[case_count].name = case_names[case_count];
    const int failed = unit_run(open_cases, close_cases);
    if (getenv("MODEL_DEVICE") || !case_emulator()) return failed;
    device = "emulated";
    case_count = EMULATOR_IS_FAST ? sizeof emulated_cases / sizeof *emulated_cases : 1;
    memcpy(list, emulated_cases, sizeof emulated_cases);
    cmocka_set_skip_filter("*gradient_is_*"); // what follows from the other tests
    return failed + unit_run(open_cases, close_cases);
}
