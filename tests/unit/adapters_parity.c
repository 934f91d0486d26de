// Adapters against PEFT in float32 (tests/parity/make_adapter_golden.py): a directory that it has written, its
// log-probabilities, gradients and three steps.
#include "tests/unit/model_compare.h"

static const char *const names[] = {"even", "pairs", "clip"};

TEST(adapters_compute_and_train_as_in_peft) {
    const char *root = getenv("ADAPTER_GOLDEN");
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        SCOPED(struct model_case, case_close) it = case_open(names[c]);
        SCOPED(struct safetensors *, safetensors_close) golden = NULL;
        const char *dir = arena_printf(&it.arena, "%s/%s", root ? root : "tests/data/adapters", names[c]);
        struct json *values;
        MUST(json_parse_file(&values, &it.arena, path_join(&it.arena, dir, "golden.json")));
        MUST(safetensors_open(&golden, path_join(&it.arena, dir, "golden.safetensors")));
        SCOPED(struct model *, model_free)
        model = case_model(&it, &(struct model_options){.precision = "float32", .training = true, .adapter = dir});

        float got[COMPLETIONS][MAX_TOKENS];
        double sum = 0, maximum = 0;
        size_t total = 0;
        case_score(&it, model, got);
        for (int i = 0; i < COMPLETIONS; i++) {
            const struct stored_tensor *want = safetensors_find(golden, arena_printf(&it.arena, "logprobs.%d", i));
            for (size_t t = 0; t < it.completions[i].count; t++, total++) {
                const double difference = fabs((double)got[i][t] - ((const float *)want->data)[t]);
                sum += difference;
                if (!(difference <= maximum)) maximum = difference;
            }
        }
        assert_true(sum / (double)total <= 1e-5 && maximum <= 1e-4);

        const char *before = unit_new_directory(), *after = unit_new_directory();
        const char *grads = path_join(&it.arena, before, "grads");
        struct json *steps = key_of(it.golden, "steps"), *settings = key_of(it.golden, "settings");
        const struct optimizer_options rates = {number_of(settings, "rate"),         number_of(settings, "beta1"),
                                                number_of(settings, "beta2"),        number_of(settings, "epsilon"),
                                                number_of(settings, "weight_decay"), number_of(settings, "clip_norm")};
        struct distance first = {0};
        MUST(model_save_state(model, before));
        for (size_t s = 0; s < 3; s++) {
            struct json *step = json_item(steps, s), *want = json_item(key_of(values, "steps"), s);
            struct train_completion completions[COMPLETIONS];
            struct train_result result;
            const struct loss_options loss = {.kl_beta = number_of(step, "kl"),
                                              .clip_low = number_of(step, "clip_low"),
                                              .clip_high = number_of(step, "clip_high")};
            double norm;
            case_step(&it, step, completions);
            MUST(model_accumulate(model, &it.prompt, completions, COMPLETIONS, &loss, 1, &result));
            if (s == 0) MUST(model_save_grads(model, grads));
            if (s == 0) first = compare_tensors(golden, 1, "gradient.", grads, NULL);
            MUST(model_step(model, &rates, &norm));
            assert_true(fabs(result.loss - number_of(want, "loss")) <= 1e-5 + 1e-4 * fabs(result.loss));
            assert_true(fabs(norm / number_of(want, "norm") - 1) <= 1e-3);
        }
        MUST(model_save_state(model, after));
        const struct distance update =
            compare_tensors(golden, 1, "update.", path_join(&it.arena, after, "training.safetensors"),
                            path_join(&it.arena, before, "training.safetensors"));
        print_message("%s: log-probabilities %.2g at most, gradients %.2g, update of three steps %.2g\n", names[c],
                      maximum, first.maximum, update.maximum);
        assert_int_equal(first.tensors, update.tensors);
        assert_true(first.maximum <= 1e-4 && update.maximum <= 1e-3);
    }
}
