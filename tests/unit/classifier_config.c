// config.json of a ModernBERT directory, in all spellings, right and wrong.
#include "tests/unit/unit.h"

#include "shared/model/modernbert/classifier_weights.h"

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
