// The classifier against Hugging Face (tests/parity/make_classifier_golden.py), on the CPU and on the emulated GPU;
// what does not change a bit; directories that are opened and saved. CLASSIFIER_GOLDEN names other golden data,
// CLASSIFIER_CHECKPOINTS a directory for what training saves.
// Last, config.json of a ModernBERT directory, in all spellings, right and wrong.
#include "tests/unit/model_compare.h"

#include "shared/model/classifier.h"
#include "shared/model/modernbert/classifier_weights.h"

enum { CASES_TRAINED = 4, GOLDEN_TEXTS = 4 };

static const char *const golden_names[] = {"mean", "biases", "newer", "wide", "labels"};
enum { GOLDEN_CASES = sizeof golden_names / sizeof *golden_names };

struct golden_case {
    struct model_case base; // its arena, name, dir, golden.json and golden.safetensors
    struct classifier_text texts[GOLDEN_TEXTS];
};

static struct golden_case cases_of[GOLDEN_CASES];
static const char *tested_device;

static int open_all(void **state) {
    (void)state;
    const char *root = getenv("CLASSIFIER_GOLDEN");
    for (int c = 0; c < GOLDEN_CASES; c++) {
        struct model_case *it = &cases_of[c].base;
        *it = (struct model_case){.name = golden_names[c]};
        it->dir = arena_printf(&it->arena, "%s/%s", root ? root : "tests/data/classifier", it->name);
        MUST(json_parse_file(&it->golden, &it->arena, path_join(&it->arena, it->dir, "golden.json")));
        if (c < CASES_TRAINED)
            MUST(safetensors_open(&it->tensors, path_join(&it->arena, it->dir, "golden.safetensors")));
        struct json *texts = key_of(it->golden, "texts");
        assert_int_equal(json_count(texts), GOLDEN_TEXTS);
        for (size_t i = 0; i < GOLDEN_TEXTS; i++)
            cases_of[c].texts[i].tokens = case_tokens(it, json_item(texts, i), &cases_of[c].texts[i].count);
    }
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int c = 0; c < GOLDEN_CASES; c++) case_close(&cases_of[c].base);
    return 0;
}

static struct classifier *opened(const char *dir, const char *precision, int threads, bool training) {
    struct classifier *classifier = NULL;
    MUST(classifier_open(
        &classifier, dir,
        &(struct classifier_options){
            .device = tested_device, .threads = threads, .precision = precision, .training = training, .seed = 7}));
    return classifier;
}

// In bfloat16, roundings of 2^-9 in twelve places of each layer add up to a difference of the logits by 5 e, as
// tests/unit/model_parity.c derives; a probability changes by a quarter of that at most.
static double bfloat16_bound(const struct golden_case *it) {
    return 20 * 0x1p-9 * sqrt(12 * number_of(it->base.golden, "layers"));
}

static void expect_probabilities(int first, int end, const char *precision) {
    for (int c = first; c < end; c++) {
        struct golden_case *it = &cases_of[c];
        SCOPED(struct classifier *, classifier_free) classifier = opened(it->base.dir, precision, 0, false);
        double got[GOLDEN_TEXTS], sum = 0, maximum = 0;
        MUST(classifier_score(classifier, it->texts, GOLDEN_TEXTS, got));
        for (size_t i = 0; i < GOLDEN_TEXTS; i++) {
            struct json *want = json_item(key_of(it->base.golden, "probabilities"), i);
            double difference = fabs(got[i] - json_double_or(want, NAN));
            sum += difference;
            if (!(difference <= maximum)) maximum = difference;
        }
        print_message("%s, %s: probabilities %.2g mean, %.2g at most\n", it->base.name, precision, sum / GOLDEN_TEXTS,
                      maximum);
        bool exact = strcmp(precision, "float32") == 0;
        assert_true(sum / GOLDEN_TEXTS <= (exact ? 1e-5 : bfloat16_bound(it) / 4));
        assert_true(maximum <= (exact ? 1e-4 : bfloat16_bound(it)));
    }
}

static bool computes_bfloat16(void) {
    struct classifier *classifier = NULL;
    status result = classifier_open(&classifier, cases_of[0].base.dir,
                                    &(struct classifier_options){.device = tested_device, .precision = "bfloat16"});
    classifier_free(&classifier);
    if (result != OK) assert_int_equal(result, UNAVAILABLE);
    return result == OK;
}

TEST(probabilities_agree_with_transformers) {
    expect_probabilities(0, GOLDEN_CASES, "float32");
    if (computes_bfloat16()) expect_probabilities(0, GOLDEN_CASES, "bfloat16");
}

// Alone or among others, in any order, with any number of threads.
TEST(bits_do_not_depend_on_neighbours) {
    for (int c = 0; c < GOLDEN_CASES; c++) {
        struct golden_case *it = &cases_of[c];
        SCOPED(struct classifier *, classifier_free) one = opened(it->base.dir, "float32", 1, false);
        SCOPED(struct classifier *, classifier_free) three = opened(it->base.dir, "float32", 3, false);
        struct classifier_text reversed[GOLDEN_TEXTS];
        double together[GOLDEN_TEXTS], alone, turned[GOLDEN_TEXTS];
        for (size_t i = 0; i < GOLDEN_TEXTS; i++) reversed[i] = it->texts[GOLDEN_TEXTS - 1 - i];
        MUST(classifier_score(one, it->texts, GOLDEN_TEXTS, together));
        MUST(classifier_score(three, reversed, GOLDEN_TEXTS, turned));
        for (size_t i = 0; i < GOLDEN_TEXTS; i++) {
            MUST(classifier_score(three, &it->texts[i], 1, &alone));
            assert_memory_equal(&alone, &together[i], sizeof alone);
            assert_memory_equal(&turned[GOLDEN_TEXTS - 1 - i], &together[i], sizeof alone);
        }
    }
}

// The step's labels.
static void labels_of(struct json *step, int out[GOLDEN_TEXTS]) {
    struct json *labels = key_of(step, "labels");
    for (size_t i = 0; i < GOLDEN_TEXTS; i++) out[i] = (int)json_int_or(json_item(labels, i), -1);
}

static struct optimizer_options rates_of(const struct golden_case *it, struct json *step) {
    struct json *settings = key_of(it->base.golden, "settings");
    return (struct optimizer_options){
        number_of(step, "lr"),          number_of(settings, "beta1"),        number_of(settings, "beta2"),
        number_of(settings, "epsilon"), number_of(settings, "weight_decay"), number_of(settings, "clip_norm")};
}

static struct json *step_of(const struct golden_case *it, size_t s) {
    return json_item(key_of(it->base.golden, "steps"), s);
}

// One step of the golden data. Returns the mean loss.
static double take_step(struct golden_case *it, struct classifier *classifier, size_t s, double *norm) {
    int labels[GOLDEN_TEXTS];
    double loss = 0;
    struct json *step = step_of(it, s);
    struct optimizer_options rates = rates_of(it, step);
    labels_of(step, labels);
    MUST(classifier_accumulate(classifier, it->texts, labels, GOLDEN_TEXTS, 1.0 / GOLDEN_TEXTS, &loss));
    MUST(classifier_step(classifier, &rates, norm));
    return loss / GOLDEN_TEXTS;
}

static void expect_training(int first, int end, const char *precision) {
    bool exact = strcmp(precision, "float32") == 0;
    for (int c = first; c < end; c++) {
        struct golden_case *it = &cases_of[c];
        SCOPED(struct classifier *, classifier_free) classifier = opened(it->base.dir, precision, 0, true);
        char *before = unit_new_directory(), *after = unit_new_directory();
        char *grads = path_join(&it->base.arena, before, "gradients.safetensors");
        size_t every = (size_t)number_of(it->base.golden, "every");
        double bound = exact ? 1e-4 : bfloat16_bound(it), loss = 0, norm = 0;
        int labels[GOLDEN_TEXTS];
        MUST(classifier_save_state(classifier, before));
        labels_of(step_of(it, 0), labels);
        MUST(classifier_accumulate(classifier, it->texts, labels, GOLDEN_TEXTS, 1.0 / GOLDEN_TEXTS, &loss));
        assert_true(fabs(loss / GOLDEN_TEXTS / number_of(step_of(it, 0), "loss") - 1) <= (exact ? 1e-5 : bound));
        MUST(classifier_save_grads(classifier, grads));
        struct distance distance = compare_some_tensors(it->base.tensors, every, "gradient.", grads, NULL);
        print_message("%s, %s: gradients of %zu tensors %.2g, one tensor's %.2g at most\n", it->base.name, precision,
                      distance.tensors, distance_of_all(&distance), distance.maximum);
        assert_true(distance.tensors >= 12);
        assert_true(distance_of_all(&distance) <= bound);
        assert_true(distance.maximum <= (exact ? bound : 3 * bound));
        struct optimizer_options rates = rates_of(it, step_of(it, 0));
        MUST(classifier_step(classifier, &rates, &norm));
        assert_true(fabs(norm / number_of(step_of(it, 0), "norm") - 1) <= (exact ? 1e-4 : bound));
        for (size_t s = 1; s < 3; s++) {
            loss = take_step(it, classifier, s, &norm);
            if (!exact) continue;
            assert_true(fabs(loss / number_of(step_of(it, s), "loss") - 1) <= 1e-3);
            assert_true(fabs(norm / number_of(step_of(it, s), "norm") - 1) <= 1e-3);
        }
        MUST(classifier_save_state(classifier, after));
        distance = compare_some_tensors(it->base.tensors, every, "update.",
                                        path_join(&it->base.arena, after, "training.safetensors"),
                                        path_join(&it->base.arena, before, "training.safetensors"));
        print_message("%s, %s: update of three steps %.2g, one tensor's %.2g at most\n", it->base.name, precision,
                      distance_of_all(&distance), distance.maximum);
        if (exact) assert_true(distance_of_all(&distance) <= 1e-3);
        assert_true(distance.maximum <= (exact ? 1e-3 : 1));
    }
}

TEST(gradients_and_three_steps_agree_with_torch) {
    expect_training(0, CASES_TRAINED, "float32");
    if (computes_bfloat16()) expect_training(CASES_TRAINED - 1, CASES_TRAINED, "bfloat16");
}

// Training that goes on from a state has the bits of one that was not interrupted, with any number of threads. What it
// saves is opened for scoring, with the hash that training says.
TEST(training_goes_on_from_a_state_to_the_same_bits) {
    for (int c = 0; c < CASES_TRAINED; c++) {
        struct golden_case *it = &cases_of[c];
        const char *root = getenv("CLASSIFIER_CHECKPOINTS");
        char *dir = unit_new_directory(), *saved = path_join(&it->base.arena, root ? root : dir, it->base.name);
        double norm, straight[GOLDEN_TEXTS], resumed[GOLDEN_TEXTS], reopened[GOLDEN_TEXTS];
        uint64_t hashes[3];
        SCOPED(struct classifier *, classifier_free) whole = opened(it->base.dir, "float32", 2, true);
        take_step(it, whole, 0, &norm);
        MUST(classifier_save_state(whole, dir));
        take_step(it, whole, 1, &norm);
        MUST(classifier_hash(whole, &hashes[0]));
        MUST(classifier_score(whole, it->texts, GOLDEN_TEXTS, straight));
        SCOPED(struct classifier *, classifier_free) again = opened(it->base.dir, "float32", 1, true);
        MUST(classifier_load_state(again, dir));
        take_step(it, again, 1, &norm);
        MUST(classifier_hash(again, &hashes[1]));
        MUST(classifier_score(again, it->texts, GOLDEN_TEXTS, resumed));
        assert_int_equal(hashes[0], hashes[1]);
        assert_memory_equal(straight, resumed, sizeof straight);
        MUST(classifier_save(again, saved));
        SCOPED(struct classifier *, classifier_free) scorer = opened(saved, "float32", 0, false);
        MUST(classifier_hash(scorer, &hashes[2]));
        MUST(classifier_score(scorer, it->texts, GOLDEN_TEXTS, reopened));
        bool exact = c == 0; // the others are stored in bfloat16
        if (exact) assert_int_equal(hashes[2], hashes[0]);
        for (size_t i = 0; i < GOLDEN_TEXTS; i++) // training may compute more exactly than scoring does
            assert_true(fabs(straight[i] - reopened[i]) <= (exact ? 1e-4 : 0.05));
    }
}

// Writes a directory with the config.json of a case, changed by sed-like replacement, and those of its tensors whose
// names contain `part`.
static char *derived_dir(struct golden_case *it, const char *from, const char *to, const char *part) {
    struct safetensors *store = NULL;
    struct safetensors_writer *writer = NULL;
    SCOPED(struct buf, buf_release) text = {0}, changed = {0};
    struct arena *arena = &it->base.arena;
    char *dir = unit_new_directory();
    MUST(file_read(path_join(arena, it->base.dir, "config.json"), &text));
    const char *at = strstr(text.data, from);
    assert_non_null(at);
    buf_append(&changed, text.data, (size_t)(at - text.data));
    buf_puts(&changed, to);
    buf_puts(&changed, at + strlen(from));
    MUST(file_write_atomic(path_join(arena, dir, "config.json"), changed.data, changed.size));
    MUST(safetensors_open_dir(&store, it->base.dir));
    struct stored_tensor kept[64];
    size_t count = 0;
    for (size_t i = 0; i < safetensors_count(store); i++)
        if (strstr(safetensors_at(store, i)->name, part)) kept[count++] = *safetensors_at(store, i);
    MUST(safetensors_create(&writer, path_join(arena, dir, "model.safetensors"), kept, count, false, NULL));
    for (size_t i = 0; i < count; i++) MUST(safetensors_write(writer, i, 0, kept[i].data, kept[i].size));
    MUST(safetensors_finish(&writer));
    safetensors_close(&store);
    return dir;
}

// Fresh parts are the same for one seed, within two deviations, and saved with the labels that training has.
TEST(fresh_parts_depend_on_the_seed_alone) {
    struct golden_case *it = &cases_of[4];
    struct arena *arena = &it->base.arena;
    char *encoder = derived_dir(it, "Entailment", "Entailment", "model."), *saved[2];
    const char *from[] = {it->base.dir, encoder};
    for (int i = 0; i < 2; i++) {
        struct classifier *classifier = opened(from[i], "float32", 0, true);
        assert_int_equal(classifier_get_info(classifier)->labels, 2);
        assert_int_equal(classifier_get_info(classifier)->consistent, 1);
        saved[i] = unit_new_directory();
        MUST(classifier_save(classifier, saved[i]));
        classifier_free(&classifier);
        SCOPED(struct safetensors *, safetensors_close) store = NULL;
        double probabilities[GOLDEN_TEXTS];
        classifier = opened(saved[i], "float32", 0, false);
        MUST(classifier_score(classifier, it->texts, GOLDEN_TEXTS, probabilities));
        classifier_free(&classifier);
        MUST(safetensors_open_dir(&store, saved[i]));
        const struct stored_tensor *weight = safetensors_find(store, "classifier.weight");
        assert_int_equal(weight->shape[0], 2);
        assert_int_equal(weight->type, ELEMENT_F16);
        assert_int_equal(safetensors_find(store, "classifier.bias")->shape[0], 2);
    }
    struct safetensors *one = NULL, *other = NULL;
    MUST(safetensors_open_dir(&one, saved[0]));
    MUST(safetensors_open_dir(&other, saved[1]));
    const struct stored_tensor *a = safetensors_find(one, "classifier.weight"),
                               *b = safetensors_find(other, "classifier.weight");
    assert_memory_equal(a->data, b->data, a->size);
    a = safetensors_find(one, "head.dense.weight");
    b = safetensors_find(other, "head.dense.weight");
    assert_memory_not_equal(a->data, b->data, a->size);
    b = safetensors_find(other, "head.norm.weight");
    for (int64_t i = 0; i < b->shape[0]; i++) assert_int_equal(((const uint16_t *)b->data)[i], 0x3c00); // 1
    safetensors_close(&one);
    safetensors_close(&other);
    // An encoder is no classifier that can score.
    struct classifier *classifier = NULL;
    assert_int_equal(classifier_open(&classifier, encoder, &(struct classifier_options){.device = "cpu"}), DATAERR);
    assert_non_null(
        strstr(fail_text(), arena_printf(arena, "%s/model.safetensors: tensor head.dense.weight", encoder)));
}

static void expect_refused(const char *dir, bool training, const char *says) {
    struct classifier *classifier = NULL;
    struct classifier_options options = {.device = "cpu", .training = training};
    assert_int_equal(classifier_open(&classifier, dir, &options), DATAERR);
    if (!strstr(fail_text(), says)) print_error("%s: %s\n", says, fail_text());
    assert_non_null(strstr(fail_text(), says));
    assert_non_null(strstr(fail_text(), dir));
}

TEST(wrong_directories_and_texts_are_refused) {
    struct golden_case *it = &cases_of[4];
    char *nameless = derived_dir(it, "\"1\": \"Entailment\"", "\"1\": \"yes\"", ""),
         *dropout = derived_dir(it, "{", "{\"mlp_dropout\": 0.1,", "");
    char *larger = derived_dir(it, "\"hidden_size\": 8", "\"hidden_size\": 16", "");
    expect_refused(nameless, false, "config.json: id2label has neither");
    expect_refused(dropout, true, "config.json: mlp_dropout is above 0");
    expect_refused(larger, false, "tensor model.embeddings.tok_embeddings.weight has shape [24, 8]");
    struct classifier *classifier = opened(dropout, "float32", 0, false); // scoring has no dropout
    double probability, loss = 0;
    const struct classifier_text empty = {NULL, 0}, outside = {(const int64_t[]){1, 24}, 2};
    assert_int_equal(classifier_score(classifier, &empty, 1, &probability), BAD_SAMPLE);
    assert_int_equal(classifier_score(classifier, &outside, 1, &probability), BAD_SAMPLE);
    assert_non_null(strstr(fail_text(), "text 0 has the token 24"));
    assert_int_equal(classifier_accumulate(classifier, it->texts, (const int[]){0}, 1, 1, &loss), BUG);
    classifier_free(&classifier);
}

TEST(the_emulator_agrees_with_transformers) {
    expect_probabilities(1, 2, "float32");
    expect_training(2, 3, "float32");
    if (EMULATOR_IS_FAST) expect_probabilities(3, 4, "bfloat16");
}

#define SIZES                                                                                                          \
    "\"vocab_size\":64,\"hidden_size\":16,\"num_hidden_layers\":4,\"num_attention_heads\":2,\"pad_token_id\":3"

static struct classifier_config config; // large

static status parse_text(const char *text, const char *name) {
    SCOPED(struct arena, arena_release) arena = {0};
    struct json *root;
    TRY(json_parse_object(&root, &arena, text, strlen(text), name));
    return classifier_config_fill(&config, root, name);
}

static status parse(const char *keys) {
    char text[2048];
    snprintf(text, sizeof text, "{%s%s%s}", SIZES, *keys ? "," : "", keys);
    return parse_text(text, "m/config.json");
}

// The layers with full attention, as bits.
static int full_layers(void) {
    int bits = 0;
    for (int i = 0; i < config.num_hidden_layers; i++) bits |= config.full_attention[i] << i;
    return bits;
}

TEST(missing_keys_have_defaults) {
    assert_int_equal(parse_text("{}", "config.json"), OK);
    assert_int_equal(config.vocab_size, 50368);
    assert_int_equal(config.hidden_size, 768);
    assert_int_equal(config.intermediate_size, 1152);
    assert_int_equal(config.num_hidden_layers, 22);
    assert_int_equal(config.head_dim, 64);
    assert_true(config.norm_eps == 1e-5f);
    assert_false(config.norm_bias || config.attention_bias || config.mlp_bias || config.classifier_bias);
    assert_int_equal(full_layers(), 0x249249);
    assert_int_equal(config.window, 64);
    assert_true(config.global_rope_theta == 160000 && config.local_rope_theta == 10000);
    assert_false(config.pools_mean);
    assert_int_equal(config.pad_token_id, 50283);
    assert_null(config.dropout);
    assert_int_equal(config.labels, 2);
    assert_int_equal(config.consistent, -1);
    assert_int_equal(classifier_config_check_labels(&config, "m"), DATAERR);
    assert_string_equal(fail_text(), "m/config.json: id2label is missing");
}

TEST(keys_of_old_and_new_configs_mean_the_same) {
    assert_int_equal(parse("\"global_attn_every_n_layers\":2,\"local_attention\":7,\"global_rope_theta\":5e5,"
                           "\"local_rope_theta\":null,\"norm_bias\":true,\"mlp_dropout\":0.1,"
                           "\"classifier_pooling\":\"mean\",\"rope_scaling\":{\"rope_type\":\"default\"}"),
                     OK);
    assert_int_equal(full_layers(), 5);
    assert_int_equal(config.window, 3);
    assert_true(config.global_rope_theta == 5e5f && config.local_rope_theta == 5e5f);
    assert_true(config.norm_bias && config.pools_mean);
    assert_string_equal(config.dropout, "mlp_dropout");

    // The new keys go first, each alone.
    assert_int_equal(parse("\"global_attn_every_n_layers\":3,\"layer_types\":[\"sliding_attention\","
                           "\"full_attention\",\"full_attention\",\"sliding_attention\"],\"global_rope_theta\":5e5,"
                           "\"local_rope_theta\":2e4,\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,"
                           "\"rope_type\":\"default\"},\"sliding_attention\":{\"rope_type\":\"default\"}}"),
                     OK);
    assert_int_equal(full_layers(), 6);
    assert_true(config.global_rope_theta == 1e6f && config.local_rope_theta == 2e4f);
    assert_int_equal(parse("\"pad_token_id\":null"), OK);
    assert_int_equal(config.pad_token_id, -1);
}

TEST(labels_are_found_by_name_in_any_order) {
    const struct {
        const char *keys;
        int labels, consistent;
        bool trains;
    } cases[] = {
        {"\"id2label\":{\"0\":\"inconsistent\",\"1\":\"consistent\"}", 2, 1, true},
        {"\"id2label\":{\"1\":\"consistent\",\"0\":\"inconsistent\"},\"num_labels\":5", 2, 1, true},
        {"\"id2label\":{\"0\":\"INCONSISTENT\",\"1\":\"Consistent\"}", 2, 1, false},
        {"\"id2label\":{\"0\":\"consistent\",\"1\":\"inconsistent\"}", 2, 0, false},
        {"\"id2label\":{\"0\":\"ENTAILMENT\",\"1\":\"neutral\",\"2\":\"contradiction\"}", 3, 0, false},
        {"\"id2label\":{\"0\":\"entailment\",\"1\":\"neutral\",\"2\":\"Consistent\"}", 3, 2, false},
        {"\"id2label\":{\"0\":\"LABEL_0\",\"1\":\"LABEL_1\"},\"label2id\":{\"consistent\":1}", 2, -1, false},
        {"\"num_labels\":3", 3, -1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(cases[i].keys), OK);
        assert_int_equal(config.labels, cases[i].labels);
        assert_int_equal(config.consistent, cases[i].consistent);
        assert_int_equal(config.trains_labels, cases[i].trains);
        assert_int_equal(classifier_config_check_labels(&config, "m"), cases[i].consistent < 0 ? DATAERR : OK);
    }
    assert_int_equal(parse("\"id2label\":{\"0\":\"yes\"}"), OK);
    assert_int_equal(classifier_config_check_labels(&config, "m"), DATAERR);
    assert_string_equal(fail_text(), "m/config.json: id2label has neither a label consistent nor a label entailment");
}

TEST(wrong_values_are_refused_by_name) {
    const struct {
        const char *keys, *says;
    } cases[] = {
        {"\"model_type\":\"bert\"", "model_type is bert; only \"modernbert\" is supported"},
        {"\"hidden_activation\":\"gelu_new\"", "hidden_activation is gelu_new; only \"gelu\""},
        {"\"classifier_activation\":\"silu\"", "classifier_activation is silu"},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\"}", "rope_scaling.rope_type is yarn"},
        {"\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.type is linear"},
        {"\"rope_scaling\":4", "rope_scaling is 4"},
        {"\"rope_parameters\":[]", "rope_parameters is not an object"},
        {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"dynamic\"}}",
         "rope_parameters.full_attention.rope_type is dynamic"},
        {"\"rope_parameters\":{\"sliding_attention\":7}", "rope_parameters.sliding_attention is not an object"},
        {"\"rope_parameters\":{\"rope_theta\":7}", "rope_parameters.rope_theta belongs to neither"},
        {"\"layer_types\":[\"full_attention\"]", "layer_types is not an array of num_hidden_layers 4 strings"},
        {"\"layer_types\":[1,2,3,4]", "layer_types[0] is not"},
        {"\"local_attention\":1", "local_attention is 1, not in 2.."},
        {"\"global_attn_every_n_layers\":0", "global_attn_every_n_layers is 0"},
        {"\"num_attention_heads\":3", "num_attention_heads 3 does not divide hidden_size 16"},
        {"\"num_attention_heads\":16", "into heads of even size"},
        {"\"hidden_size\":\"16\"", "hidden_size is not an integer"},
        {"\"norm_eps\":-1", "norm_eps is -1"},
        {"\"norm_bias\":1", "norm_bias is not true or false"},
        {"\"attention_dropout\":2", "attention_dropout is 2"},
        {"\"classifier_pooling\":\"max\"", "classifier_pooling is not mean or cls"},
        {"\"pad_token_id\":64", "pad_token_id is 64, not in 0..63"},
        {"\"quantization_config\":{}", "quantization_config"},
        {"\"id2label\":[\"consistent\"]", "id2label is not an object"},
        {"\"id2label\":{}", "id2label is not an object of 1 to"},
        {"\"id2label\":{\"0\":\"a\",\"2\":\"b\"}", "id2label has 2 labels, but none has the key \"1\""},
        {"\"id2label\":{\"0\":3}", "id2label[0] is not a string"},
        {"\"num_labels\":0", "num_labels is 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(cases[i].keys), DATAERR);
        if (!strstr(fail_text(), cases[i].says)) print_error("%s: %s\n", cases[i].says, fail_text());
        assert_non_null(strstr(fail_text(), cases[i].says));
        assert_memory_equal(fail_text(), "m/config.json: ", 15);
    }
    assert_int_equal(parse_text("{\"vocab_size\":64}", "c"), DATAERR);
    assert_string_equal(fail_text(), "c: pad_token_id is missing");
    assert_int_equal(classifier_config_read(&config, "/nowhere"), DATAERR);
    assert_non_null(strstr(fail_text(), "/nowhere/config.json"));
}

int main(void) {
    tested_device = "cpu";
    cmocka_set_skip_filter("the_emulator_*");
    const int failed = unit_run(open_all, close_all);
    if (!case_emulator()) return failed;
    tested_device = "emulated";
    cmocka_set_skip_filter(NULL);
    cmocka_set_test_filter("the_emulator_*");
    return failed + unit_run(open_all, close_all);
}
