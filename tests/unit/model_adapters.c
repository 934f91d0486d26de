// Adapters (LoRA): new ones change nothing; trained ones compute what the base with B A in its matrices computes, and
// their gradients follow from that model's gradients; and what is no adapter is refused. Last, adapters against PEFT in
// float32 (tests/parity/make_adapter_golden.py): a directory that it has written, its log-probabilities, gradients and
// three steps.
#include "tests/unit/model_compare.h"

enum { RANK = 3 };
static const double alpha = 7.5;

static const struct optimizer_options rates = {3e-3, 0.9, 0.99, 1e-8, 0.01, 1.0};

TEST(new_adapters_change_no_bit) {
    static const char *const precisions[] = {"float32", "bfloat16"};
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        for (int p = 0; p < 2; p++) {
            struct model_options options = {.precision = precisions[p]};
            float plain[COMPLETIONS][MAX_TOKENS], adapted[COMPLETIONS][MAX_TOKENS];
            if (!case_computes(&it, case_device(), precisions[p])) continue;
            SCOPED(struct model *, model_free) base = case_model(&it, &options);
            options.lora = RANK;
            options.lora_alpha = alpha;
            SCOPED(struct model *, model_free) model = case_model(&it, &options);
            const uint64_t hash = case_hash(model);
            case_score(&it, base, plain);
            case_score(&it, model, adapted);
            assert_memory_equal(adapted, plain, sizeof plain);
            // The hash is of the base, the rank, alpha and the values.
            assert_true(hash != case_hash(base));
            model_free(&model);
            model = case_model(&it, &options);
            assert_true(case_hash(model) == hash);
            model_free(&model);
            options.lora_alpha++;
            model = case_model(&it, &options);
            assert_true(case_hash(model) != hash);
            model_free(&model);
            options.lora_alpha--;
            options.lora_seed++;
            model = case_model(&it, &options);
            assert_true(case_hash(model) != hash);
        }
    }
}

static const struct stored_tensor *adapter_tensor(struct model_case *it, const struct safetensors *store,
                                                  const char *prefix, const char *module, char letter) {
    const struct stored_tensor *tensor = safetensors_find(
        store, arena_printf(&it->arena, "%sbase_model.model.%s.lora_%c.weight", prefix, module, letter));
    assert_non_null(tensor);
    assert_int_equal(tensor->type, ELEMENT_F32);
    return tensor;
}

// The name of the module of an A; NULL for other tensors.
static const char *module_of(struct model_case *it, const struct stored_tensor *tensor, const char *prefix) {
    const size_t head = strlen(prefix) + strlen("base_model.model.");
    const char *end = strstr(tensor->name, ".lora_A.weight");
    if (!end || strncmp(tensor->name, prefix, strlen(prefix)) != 0) return NULL;
    return arena_strndup(&it->arena, tensor->name + head, (size_t)(end - tensor->name) - head);
}

// Adds scale * B A of the adapters of a training state to the float32 weights of another one, in place.
static int merge_states(struct model_case *it, const char *adapters_dir, const char *whole_dir) {
    SCOPED(struct safetensors *, safetensors_close) adapters = NULL, whole = NULL;
    struct buf file = {0};
    const char *path = path_join(&it->arena, whole_dir, "training.safetensors");
    int merged = 0;
    MUST(file_read(path, &file));
    MUST(safetensors_open_memory(&whole, file.data, file.size, path));
    MUST(safetensors_open(&adapters, path_join(&it->arena, adapters_dir, "training.safetensors")));
    for (size_t i = 0; i < safetensors_count(adapters); i++) {
        const char *module = module_of(it, safetensors_at(adapters, i), "master.");
        if (!module) continue;
        const struct stored_tensor *a = safetensors_at(adapters, i),
                                   *b = adapter_tensor(it, adapters, "master.", module, 'B'),
                                   *w = find_tensor(whole, "master.", arena_printf(&it->arena, "%s.weight", module));
        const float *a_values = a->data, *b_values = b->data;
        float *values = (void *)(file.data + ((const char *)w->data - file.data));
        const int64_t rows = w->shape[0], columns = w->shape[1];
        assert_true(a->shape[0] == RANK && a->shape[1] == columns && b->shape[0] == rows && b->shape[1] == RANK);
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t column = 0; column < columns; column++) {
                double sum = 0;
                for (int k = 0; k < RANK; k++) sum += (double)b_values[row * RANK + k] * a_values[k * columns + column];
                values[row * columns + column] += (float)(alpha / RANK * sum);
            }
        }
        merged++;
    }
    MUST(file_write_atomic(path, file.data, file.size));
    buf_release(&file);
    return merged;
}

// *largest = the larger of it and the distance of the adapters' gradients from those that follow from the gradient G of
// the whole matrix: scale * G A^T of B, scale * B^T G of A.
static void expect_gradients(struct model_case *it, const char *state_dir, const char *adapter_grads,
                             const char *whole_grads, double *largest) {
    SCOPED(struct safetensors *, safetensors_close) state = NULL, adapters = NULL, whole = NULL;
    MUST(safetensors_open(&state, path_join(&it->arena, state_dir, "training.safetensors")));
    MUST(safetensors_open(&adapters, adapter_grads));
    MUST(safetensors_open(&whole, whole_grads));
    for (size_t i = 0; i < safetensors_count(adapters); i++) {
        const struct stored_tensor *grad_a = safetensors_at(adapters, i);
        const char *module = module_of(it, grad_a, "");
        if (!module) continue;
        const struct stored_tensor *grad_b = adapter_tensor(it, adapters, "", module, 'B');
        const struct stored_tensor *g = find_tensor(whole, "", arena_printf(&it->arena, "%s.weight", module));
        const float *a = adapter_tensor(it, state, "master.", module, 'A')->data;
        const float *b = adapter_tensor(it, state, "master.", module, 'B')->data, *values = g->data;
        const int64_t rows = g->shape[0], columns = g->shape[1];
        double *sums_a = arena_alloc(&it->arena, (size_t)(RANK * columns) * sizeof *sums_a);
        double *sums_b = arena_alloc(&it->arena, (size_t)(rows * RANK) * sizeof *sums_b);
        float *want_a = arena_alloc(&it->arena, (size_t)(RANK * columns) * sizeof *want_a);
        float *want_b = arena_alloc(&it->arena, (size_t)(rows * RANK) * sizeof *want_b);
        memset(sums_a, 0, (size_t)(RANK * columns) * sizeof *sums_a);
        memset(sums_b, 0, (size_t)(rows * RANK) * sizeof *sums_b);
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t column = 0; column < columns; column++) {
                const double grad = values[row * columns + column] * alpha / RANK;
                for (int k = 0; k < RANK; k++) {
                    sums_a[k * columns + column] += grad * b[row * RANK + k];
                    sums_b[row * RANK + k] += grad * a[k * columns + column];
                }
            }
        }
        for (int64_t k = 0; k < RANK * columns; k++) want_a[k] = (float)sums_a[k];
        for (int64_t k = 0; k < rows * RANK; k++) want_b[k] = (float)sums_b[k];
        const double distances[] = {relative_distance(grad_a->data, want_a, (size_t)(RANK * columns)),
                                    relative_distance(grad_b->data, want_b, (size_t)(rows * RANK))};
        for (int k = 0; k < 2; k++) {
            if (!(distances[k] <= 1e-4)) print_error("%s, %c: %.3g\n", module, "AB"[k], distances[k]);
            if (!(distances[k] <= *largest)) *largest = distances[k];
        }
    }
}

// Each of the seven matrices of a layer has an adapter, and none has a gradient besides.
TEST(adapters_compute_and_train_what_the_merged_model_does) {
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        struct model_options options = {.precision = "float32", .training = true, .lora = RANK, .lora_alpha = alpha};
        SCOPED(struct model *, model_free) model = case_model(&it, &options);
        options.lora = 0;
        SCOPED(struct model *, model_free) whole = case_model(&it, &options);
        const char *dir = unit_new_directory(), *whole_dir = unit_new_directory();
        const char *grads = path_join(&it.arena, dir, "grads"), *whole_grads = path_join(&it.arena, whole_dir, "grads");
        float plain[COMPLETIONS][MAX_TOKENS], adapted[COMPLETIONS][MAX_TOKENS], merged[COMPLETIONS][MAX_TOKENS];
        case_score(&it, whole, plain);
        double norm, largest = 0;
        for (int step = 0; step < 3; step++) {
            case_accumulate(&it, model);
            MUST(model_step(model, &rates, &norm));
        }
        MUST(model_save_state(model, dir));
        MUST(model_save_state(whole, whole_dir));
        const int count = merge_states(&it, dir, whole_dir);
        assert_true(count > 0 && count % 7 == 0);
        MUST(model_load_state(whole, whole_dir));
        case_score(&it, model, adapted);
        case_score(&it, whole, merged);
        const double change = relative_distance(adapted[0], plain[0], COMPLETIONS * MAX_TOKENS);
        const double distance = relative_distance(adapted[0], merged[0], COMPLETIONS * MAX_TOKENS);
        case_accumulate(&it, model);
        case_accumulate(&it, whole);
        MUST(model_save_grads(model, grads));
        MUST(model_save_grads(whole, whole_grads));
        expect_gradients(&it, dir, grads, whole_grads, &largest);
        print_message("%s: %d adapters, log-probabilities changed by %.2g, differ by %.2g; gradients by %.2g\n",
                      case_names[c], count, change, distance, largest);
        assert_true(change > 1e-4 && distance < 1e-5 && largest < 1e-4);
    }
}

TEST(what_cannot_be_adapted_is_refused) {
    static const struct model_options wrong[] = {
        {.lora = -1, .lora_alpha = 1},    {.lora = MAX_LORA + 1, .lora_alpha = 1},
        {.lora = 4, .lora_alpha = -1},    {.lora = 4, .lora_alpha = (double)NAN},
        {.lora = 4, .lora_alpha = 1e300}, {.lora = 4, .lora_alpha = 4, .training = true, .train_vision = true}};
    SCOPED(struct model_case, case_close) it = case_open("even");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct model *model = NULL;
        struct model_options options = wrong[i];
        options.device = case_device();
        assert_int_equal(model_open(&model, it.dir, &options), USAGE);
        assert_null(model);
    }
    // Adapters of another rank, alpha or base, or a whole model.
    struct model_options options = {.precision = "float32", .training = true, .lora = RANK, .lora_alpha = alpha};
    SCOPED(struct model *, model_free) trained = case_model(&it, &options);
    const char *path = path_join(&it.arena, unit_new_directory(), "weights");
    uint64_t hash;
    MUST(model_publish(trained, false, path, &hash));
    options.training = false;
    for (int i = 0; i < 4; i++) {
        struct model_options other = options;
        SCOPED(struct model_case, case_close) another = case_open(i == 2 ? "pairs" : "even");
        other.lora = i == 0 ? RANK + 1 : i == 3 ? 0 : RANK;
        other.lora_alpha = i == 1 ? alpha + 1 : alpha;
        SCOPED(struct model *, model_free) scorer = case_model(&another, &other);
        assert_int_equal(model_swap(scorer, path, 1, hash), DATAERR);
    }
    SCOPED(struct model *, model_free) scorer = case_model(&it, &options);
    MUST(model_swap(scorer, path, 1, hash));
    struct model *moved = NULL; // of the same shape, with other weights
    const char *moved_dir = path_join(&it.arena, unit_new_directory(), "merged");
    MUST(model_merge(it.dir, "tests/data/adapters/even", moved_dir, 1));
    options.device = case_device();
    MUST(model_open(&moved, moved_dir, &options));
    assert_int_equal(model_swap(moved, path, 1, hash), DATAERR);
    model_free(&moved);
}

// A model without weights gets its adapters with the first swap.
TEST(adapters_come_with_the_first_swap) {
    SCOPED(struct model_case, case_close) it = case_open("even");
    struct model_options options = {.precision = "float32", .training = true, .lora = RANK, .lora_alpha = alpha};
    SCOPED(struct model *, model_free) trained = case_model(&it, &options);
    const char *path = path_join(&it.arena, unit_new_directory(), "weights");
    uint64_t hash;
    double norm;
    float a[COMPLETIONS][MAX_TOKENS], b[COMPLETIONS][MAX_TOKENS];
    const uint64_t first = case_hash(trained);
    case_accumulate(&it, trained);
    MUST(model_step(trained, &rates, &norm));
    MUST(model_publish(trained, false, path, &hash));
    options.training = false;
    options.no_weights = true;
    for (int reset = 0; reset < 2; reset++) {
        SCOPED(struct model *, model_free) scorer = case_model(&it, &options);
        if (reset) MUST(model_reset(scorer, first));
        MUST(model_swap(scorer, path, 1, hash));
        case_score(&it, trained, a);
        case_score(&it, scorer, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

// A directory of adapters is read again, in both layouts of names, and training goes on from it.
TEST(a_directory_of_adapters_is_read_again) {
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        const char *kept = getenv("MODEL_CHECKPOINTS"); // for PEFT to load
        const char *dir = kept ? arena_printf(&it.arena, "%s/%s-adapter", kept, case_names[c]) : unit_new_directory();
        struct model_options options = {
            .precision = "float32", .training = true, .ema = true, .lora = RANK, .lora_alpha = alpha};
        SCOPED(struct model *, model_free) trained = case_model(&it, &options);
        double norm;
        case_accumulate(&it, trained);
        MUST(model_step(trained, &rates, &norm));
        MUST(model_update_ema(trained, 0.5));
        MUST(model_save(trained, dir));
        MUST(model_save_state(trained, dir));
        const uint64_t hash = case_hash(trained), bytes = model_saved_bytes(trained, true);
        SCOPED(struct safetensors *, safetensors_close) saved = NULL, base = NULL;
        MUST(safetensors_open(&saved, path_join(&it.arena, dir, "adapter_model.safetensors")));
        MUST(safetensors_open_dir(&base, it.dir));
        uint64_t expected = 0;
        for (size_t i = 0; i < safetensors_count(saved); i++) {
            const struct stored_tensor *tensor = safetensors_at(saved, i);
            const size_t head = strlen("base_model.model.");
            assert_memory_equal(tensor->name, "base_model.model.", head);
            const char *end = strstr(tensor->name, ".lora_");
            assert_non_null(end);
            assert_non_null(
                safetensors_find(base, arena_printf(&it.arena, "%.*s.weight",
                                                    (int)((size_t)(end - tensor->name) - head), tensor->name + head)));
            expected += 5 * tensor->size; // itself, two copies of it and two moments
        }
        assert_true(bytes == expected);

        struct model_options again = {.precision = "float32", .adapter = dir};
        SCOPED(struct model *, model_free) scorer = case_model(&it, &again);
        SCOPED(struct model *, model_free) plain = case_model(&it, &(struct model_options){.precision = "float32"});
        uint64_t files, files_again, files_plain;
        MUST(model_hash_files(scorer, &files));
        MUST(model_hash_files(plain, &files_plain));
        assert_true(case_hash(scorer) == hash && files != files_plain);
        float a[COMPLETIONS][MAX_TOKENS], b[COMPLETIONS][MAX_TOKENS];
        case_score(&it, trained, a);
        case_score(&it, scorer, b);
        assert_memory_equal(a, b, sizeof a);
        options.adapter = dir;
        SCOPED(struct model *, model_free) more = case_model(&it, &options);
        MUST(model_hash_files(more, &files_again));
        assert_true(files_again == files);
        MUST(model_load_state(more, dir));
        assert_int_equal(model_version(more), 1);
        case_accumulate(&it, trained);
        case_accumulate(&it, more);
        MUST(model_step(trained, &rates, &norm));
        MUST(model_step(more, &rates, &norm));
        assert_true(case_hash(more) == case_hash(trained) && case_hash(more) != hash);
        MUST(model_reset(scorer, hash));
    }
}

// Replaces the first `from` in a file of the directory by `to`, and says how a model opens then.
static status open_changed(const struct model_case *it, const char *dir, const char *name, const char *from,
                           const char *to) {
    SCOPED(struct arena, arena_release) arena = {0};
    const char *path = path_join(&arena, dir, name);
    struct buf text = {0}, changed = {0};
    MUST(file_read(path, &text));
    const char *at = memmem(text.data, text.size, from, strlen(from)), *end = text.data + text.size;
    assert_non_null(at);
    buf_append(&changed, text.data, (size_t)(at - text.data));
    buf_puts(&changed, to);
    at += strlen(from);
    buf_append(&changed, at, (size_t)(end - at));
    MUST(file_write_atomic(path, changed.data, changed.size));
    struct model *model = NULL;
    const status result = model_open(&model, it->dir, &(struct model_options){.device = case_device(), .adapter = dir});
    model_free(&model);
    MUST(file_write_atomic(path, text.data, text.size));
    buf_release(&text);
    buf_release(&changed);
    return result;
}

TEST(adapters_that_compute_otherwise_are_refused) {
    static const struct {
        const char *from, *to;
        status result;
    } changes[] = {{"\"r\"", "\"r\"", OK},
                   {"\"LORA\"", "\"IA3\"", DATAERR},
                   {"\"none\"", "\"all\"", DATAERR},
                   {"\"r\": 3", "\"r\": 4", DATAERR}, // the tensors have another shape
                   {"\"r\": 3", "\"r\": 0", DATAERR},
                   {"\"r\"", "\"rank\"", DATAERR},
                   {"\"lora_alpha\": 7.5", "\"lora_alpha\": null", DATAERR},
                   {"\"lora_alpha\": 7.5", "\"lora_alpha\": -1", DATAERR},
                   {"\"lora_alpha\": 7.5", "\"lora_alpha\": 1e300", DATAERR},
                   {"\"lora_alpha\": 7.5", "\"lora_alpha\": 1e-300", DATAERR},
                   {"\"r\"", "\"use_rslora\": false, \"rank_pattern\": {}, \"modules_to_save\": null, \"r\"", OK},
                   {"\"r\"", "\"use_rslora\": true, \"r\"", DATAERR},
                   {"\"r\"", "\"use_dora\": true, \"r\"", DATAERR},
                   {"\"r\"", "\"use_dora\": 1, \"r\"", DATAERR},
                   {"\"r\"", "\"use_rslora\": 1, \"r\"", DATAERR},
                   {"\"r\"", "\"use_rslora\": \"true\", \"r\"", DATAERR},
                   {"\"r\"", "\"use_rslora\": 0, \"use_dora\": 0.0, \"lora_bias\": \"\", \"r\"", OK},
                   {"\"r\"", "\"layers_to_transform\": 1, \"r\"", DATAERR},
                   {"\"r\"", "\"layers_to_transform\": 0, \"r\"", DATAERR},
                   {"\"r\"", "\"layers_to_transform\": [], \"r\"", OK},
                   {"\"r\"", "\"rank_pattern\": {\"q_proj\": 2}, \"r\"", DATAERR},
                   {"\"r\"", "\"modules_to_save\": [\"lm_head\"], \"r\"", DATAERR},
                   {"\"r\"", "\"init_lora_weights\": \"gaussian\", \"r\"", OK},
                   {"\"r\"", "\"init_lora_weights\": \"pissa\", \"r\"", DATAERR},
                   {"{", "[", DATAERR}};
    SCOPED(struct model_case, case_close) it = case_open("even");
    struct model_options options = {.precision = "float32", .training = true, .lora = RANK, .lora_alpha = alpha};
    SCOPED(struct model *, model_free) trained = case_model(&it, &options);
    const char *dir = path_join(&it.arena, unit_new_directory(), "new");
    MUST(model_save(trained, dir));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const status result = open_changed(&it, dir, "adapter_config.json", changes[i].from, changes[i].to);
        if (result != changes[i].result) print_error("%s: %s\n", changes[i].to, fail_text());
        assert_int_equal(result, changes[i].result);
        if (result != OK) assert_non_null(strstr(fail_text(), dir));
    }
    assert_int_equal(open_changed(&it, dir, "adapter_config.json", "\"lora_alpha\"", "\"alpha\""), DATAERR);
    assert_non_null(strstr(fail_text(), "lora_alpha is missing"));
    assert_int_equal(open_changed(&it, dir, "adapter_model.safetensors", "k_proj", "K_proj"), DATAERR);
    assert_non_null(
        strstr(fail_text(), "k_proj.lora_A.weight is missing: each layer of the model needs adapters for all"));
    struct model *model = NULL;
    options = (struct model_options){.device = case_device(), .adapter = dir, .lora = RANK + 1};
    assert_int_equal(model_open(&model, it.dir, &options), USAGE);
    options = (struct model_options){.device = case_device(), .adapter = dir, .lora_alpha = 1};
    assert_int_equal(model_open(&model, it.dir, &options), USAGE);
    options = (struct model_options){.device = case_device(), .adapter = it.dir}; // which has none
    assert_int_equal(model_open(&model, it.dir, &options), DATAERR);
    options = (struct model_options){.device = case_device(), .adapter = dir}; // of another base
    SCOPED(struct model_case, case_close) other = case_open("pairs");
    assert_int_equal(model_open(&model, other.dir, &options), DATAERR);
}

// The merged model's log-probabilities are those of the base with the adapter beside it, but for the rounding to the
// stored type. Nothing else in the directory differs.
TEST(a_merged_directory_computes_what_the_adapter_does) {
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        const char *dir = unit_new_directory(), *merged_dir = path_join(&it.arena, dir, "merged");
        struct model_options options = {.precision = "float32", .training = true, .lora = RANK, .lora_alpha = alpha};
        SCOPED(struct model *, model_free) trained = case_model(&it, &options);
        double norm;
        for (int i = 0; i < 3; i++) {
            case_accumulate(&it, trained);
            MUST(model_step(trained, &rates, &norm));
        }
        MUST(model_save(trained, dir));
        MUST(model_merge(it.dir, dir, merged_dir, 2));
        SCOPED(struct model *, model_free) plain = case_model(&it, &(struct model_options){.precision = "float32"});
        SCOPED(struct model *, model_free) merged = NULL;
        options = (struct model_options){.device = case_device(), .precision = "float32"};
        MUST(model_open(&merged, merged_dir, &options));
        float a[COMPLETIONS][MAX_TOKENS], b[COMPLETIONS][MAX_TOKENS], without[COMPLETIONS][MAX_TOKENS];
        case_score(&it, trained, a);
        case_score(&it, merged, b);
        case_score(&it, plain, without);

        SCOPED(struct safetensors *, safetensors_close) from = NULL, to = NULL;
        MUST(safetensors_open_dir(&from, it.dir));
        MUST(safetensors_open_dir(&to, merged_dir));
        assert_int_equal(safetensors_count(from), safetensors_count(to));
        int changed = 0;
        for (size_t i = 0; i < safetensors_count(from); i++) {
            const struct stored_tensor *one = safetensors_at(from, i), *other = safetensors_at(to, i);
            assert_string_equal(one->name, other->name);
            assert_string_equal(strrchr(one->file, '/'), strrchr(other->file, '/'));
            assert_true(one->type == other->type && one->size == other->size);
            changed += memcmp(one->data, other->data, one->size) != 0;
        }
        assert_true(changed > 0 && changed % 7 == 0);
        const bool half = safetensors_at(from, 0)->type == ELEMENT_BF16;
        const double change = relative_distance(a[0], without[0], COMPLETIONS * MAX_TOKENS);
        const double distance = relative_distance(a[0], b[0], COMPLETIONS * MAX_TOKENS);
        print_message("%s: log-probabilities differ by %.2g, changed by %.2g\n", case_names[c], distance, change);
        assert_true(half ? distance < change / 3 : distance < 1e-5);
        assert_true(path_exists(path_join(&it.arena, merged_dir, "generation_config.json")));
    }
    SCOPED(struct model_case, case_close) it = case_open("even");
    const char *to = path_join(&it.arena, unit_new_directory(), "merged");
    assert_int_equal(model_merge(it.dir, it.dir, to, 1), DATAERR); // no adapter
    assert_int_equal(model_merge("/nowhere", "tests/data/adapters/even", to, 1), DATAERR);
    assert_int_equal(model_merge(it.dir, "tests/data/adapters/pairs", to, 1), DATAERR);
    assert_false(path_exists(to));
}

// Beside the merged weights, others would be read instead of them, and an adapter would be added once more.
TEST(a_merge_leaves_one_model_in_a_directory_or_none) {
    static const char *const names[] = {"model.safetensors", "model-00003-of-00003.safetensors",
                                        "model.safetensors.index.json", "adapter_config.json"};
    SCOPED(struct model_case, case_close) it = case_open("thirds");
    struct model_options options = {.precision = "float32", .training = true, .lora = RANK, .lora_alpha = alpha};
    SCOPED(struct model *, model_free) trained = case_model(&it, &options);
    const char *dir = path_join(&it.arena, unit_new_directory(), "new");
    const char *to = path_join(&it.arena, unit_new_directory(), "merged");
    MUST(model_save(trained, dir));
    MUST(dir_make(to));
    MUST(file_write_atomic(path_join(&it.arena, to, "notes.txt"), "x", 1));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *path = path_join(&it.arena, to, names[i]);
        MUST(file_write_atomic(path, "{}", 2));
        assert_int_equal(model_merge(it.dir, dir, to, 1), USAGE);
        assert_non_null(strstr(fail_text(), path));
        assert_false(path_exists(path_join(&it.arena, to, "config.json")));
        MUST(dir_remove(path));
    }
    // The second file cannot be written, or what is copied after the weights.
    static const char *const obstacles[] = {"model-00002-of-00002.safetensors.tmp", "config.json"};
    for (size_t i = 0; i < sizeof obstacles / sizeof *obstacles; i++) {
        const char *path = path_join(&it.arena, to, obstacles[i]);
        MUST(dir_make(path));
        assert_int_equal(model_merge(it.dir, dir, to, 1), UNAVAILABLE);
        assert_false(path_exists(path_join(&it.arena, to, "model-00001-of-00002.safetensors")));
        assert_false(path_exists(path_join(&it.arena, to, "model.safetensors.index.json")));
        MUST(dir_remove(path));
    }
    MUST(model_merge(it.dir, dir, to, 1));
    assert_true(path_exists(path_join(&it.arena, to, "notes.txt")));
    assert_int_equal(model_merge(it.dir, dir, to, 1), USAGE);
}

// Writes a value of the type to the last number of a tensor in a file.
static void poison(const char *path, const char *name, const void *value, size_t size) {
    SCOPED(struct safetensors *, safetensors_close) store = NULL;
    struct buf file = {0};
    MUST(file_read(path, &file));
    MUST(safetensors_open_memory(&store, file.data, file.size, path));
    const struct stored_tensor *tensor = safetensors_find(store, name);
    assert_non_null(tensor);
    memcpy(file.data + ((const char *)tensor->data - file.data) + tensor->size - size, value, size);
    MUST(file_write_atomic(path, file.data, file.size));
    buf_release(&file);
}

// NaN and infinity in an adapter, and finite numbers whose product is too large for the type of the weights.
TEST(sums_that_are_not_finite_are_refused) {
    static const char first[] = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    static const char second[] = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
    static const char *const names[] = {"thirds", "pairs"}; // float32 in two files, bfloat16
    static const float wrong[] = {NAN, -INFINITY, 3e38f};
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        SCOPED(struct model_case, case_close) it = case_open(names[c]);
        struct model_options options = {.precision = "float32", .training = true, .lora = RANK, .lora_alpha = 3 * RANK};
        SCOPED(struct model *, model_free) trained = case_model(&it, &options);
        const char *to = path_join(&it.arena, unit_new_directory(), "merged");
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            const char *dir = path_join(&it.arena, unit_new_directory(), "new");
            const char *path = path_join(&it.arena, dir, "adapter_model.safetensors");
            MUST(model_save(trained, dir));
            poison(path, i ? second : first, &wrong[i], sizeof *wrong);
            assert_int_equal(model_merge(it.dir, dir, to, 1), DATAERR);
            assert_non_null(strstr(fail_text(), path));
            assert_non_null(
                strstr(fail_text(), i ? "layers.1.mlp.down_proj.weight" : "layers.0.self_attn.q_proj.weight"));
            assert_false(path_exists(to));
        }
    }
}

static const char *const peft_names[] = {"even", "pairs", "clip"};

TEST(adapters_compute_and_train_as_in_peft) {
    const char *root = getenv("ADAPTER_GOLDEN");
    for (size_t c = 0; c < sizeof peft_names / sizeof *peft_names; c++) {
        SCOPED(struct model_case, case_close) it = case_open(peft_names[c]);
        SCOPED(struct safetensors *, safetensors_close) golden = NULL;
        const char *dir = arena_printf(&it.arena, "%s/%s", root ? root : "tests/data/adapters", peft_names[c]);
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
        const struct optimizer_options given = {number_of(settings, "rate"),         number_of(settings, "beta1"),
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
            MUST(model_step(model, &given, &norm));
            assert_true(fabs(result.loss - number_of(want, "loss")) <= 1e-5 + 1e-4 * fabs(result.loss));
            assert_true(fabs(norm / number_of(want, "norm") - 1) <= 1e-3);
        }
        MUST(model_save_state(model, after));
        const struct distance update =
            compare_tensors(golden, 1, "update.", path_join(&it.arena, after, "training.safetensors"),
                            path_join(&it.arena, before, "training.safetensors"));
        print_message("%s: log-probabilities %.2g at most, gradients %.2g, update of three steps %.2g\n", peft_names[c],
                      maximum, first.maximum, update.maximum);
        assert_int_equal(first.tensors, update.tensors);
        assert_true(first.maximum <= 1e-4 && update.maximum <= 1e-3);
    }
}
