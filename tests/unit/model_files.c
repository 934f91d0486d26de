// Model directories: safetensors files with false headers, configurations in every layout, the table of parameters.
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/model/qwen_vl/model_internal.h"
#include "shared/model/safetensors.h"

static const char text_keys[] = "\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":2,"
                                "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"rms_norm_eps\":1e-6";
static const char token_keys[] = "\"image_token_id\":1,\"video_token_id\":2,\"vision_start_token_id\":3,"
                                 "\"vision_end_token_id\":4,\"model_type\":\"qwen2_5_vl\"";
static const char vision[] = "\"vision_config\":{\"depth\":1,\"hidden_size\":8,\"num_heads\":2,\"in_chans\":3,"
                             "\"intermediate_size\":12,\"out_hidden_size\":16,\"fullatt_block_indexes\":[0]}";

static status parse_file(struct model_config *config, enum config_file file, const char *text, const char *name) {
    SCOPED(struct arena, arena_release) arena = {0};
    struct json *root;
    TRY(json_parse_object(&root, &arena, text, strlen(text), name));
    return model_config_fill(config, file, root, name);
}

__attribute__((format(printf, 2, 3))) static status parse(struct model_config *config, const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return parse_file(config, CONFIG_MODEL, text, "config.json");
}

static void expect_message(const char *part) {
    if (!strstr(fail_text(), part)) print_error("expected \"%s\" in: %s\n", part, fail_text());
    assert_non_null(strstr(fail_text(), part));
}

// A file image with this header and `data_size` bytes of data.
static status open_image(const char *header, size_t data_size) {
    SCOPED(struct buf, buf_release) image = {0};
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++) buf_append(&image, &(char){(char)(length >> 8 * i)}, 1);
    buf_puts(&image, header);
    buf_reserve(&image, data_size + 1);
    memset(image.data + image.size, 0, data_size);
    image.size += data_size;
    struct safetensors *store = NULL;
    status result = safetensors_open_memory(&store, image.data, image.size, "x.safetensors");
    safetensors_close(&store);
    return result;
}

TEST(lying_headers_are_refused_by_name) {
    const struct {
        const char *header;
        size_t data_size;
        const char *says;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "a: data_offsets [0, 8] lie outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "hold 8 bytes"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "hold 8 bytes"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "dtype F64"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 8, "lie outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "shape[0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
         6, "b: its data overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "a: its data follow a hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "4 bytes at its end"},
        {"{\"a\":7}", 0, "not an object"},
        {"{\"a\"", 0, "not JSON"},
        {"[]", 0, "not a JSON object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(open_image(cases[i].header, cases[i].data_size), DATAERR);
        assert_non_null(strstr(fail_text(), "x.safetensors"));
        expect_message(cases[i].says);
    }
    assert_int_equal(open_image("{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[0,4]}}", 4), OK);
}

TEST(a_truncated_file_is_refused) {
    struct safetensors *store = NULL;
    assert_int_equal(safetensors_open_memory(&store, "\x02\0\0", 3, "x"), DATAERR);
    assert_int_equal(safetensors_open_memory(&store, "\x09\0\0\0\0\0\0\0{}", 10, "x"), DATAERR);
    assert_non_null(strstr(fail_text(), "truncated"));
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4967215128\n";
    assert_int_equal(safetensors_open_memory(&store, lfs, strlen(lfs), "x"), DATAERR);
    assert_string_equal(fail_text(), "x: a pointer of Git LFS, not the weights: type git lfs pull in its directory");
    assert_int_equal(safetensors_open_memory(&store, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "x"), DATAERR);
}

TEST(what_is_written_is_read) {
    const char *dir = unit_new_directory();
    SCOPED(struct arena, arena_release) arena = {0};
    char *path = path_join(&arena, dir, "model.safetensors");
    const struct stored_tensor tensors[] = {{.name = "b", .type = ELEMENT_F32, .rank = 2, .shape = {2, 1}},
                                            {.name = "a", .type = ELEMENT_BF16, .rank = 1, .shape = {3}}};
    struct safetensors_writer *writer = NULL;
    assert_int_equal(safetensors_create(&writer, path, tensors, 2, true, NULL), OK);
    assert_int_equal(safetensors_write(writer, 0, 0, (float[]){1, 2}, 8), OK);
    assert_false(path_exists(path));
    assert_int_equal(safetensors_write(writer, 1, 0, (uint16_t[]){7, 8, 9}, 6), OK);
    assert_int_equal(safetensors_write(writer, 1, 6, "x", 1), BUG);
    assert_int_equal(safetensors_write(writer, 1, 7, "", 0), BUG);
    assert_int_equal(safetensors_write(writer, 2, 0, "", 0), BUG);
    assert_int_equal(safetensors_finish(&writer), OK);
    struct safetensors *store = NULL;
    assert_int_equal(safetensors_open_dir(&store, dir), OK);
    assert_int_equal(safetensors_count(store), 2);
    const struct stored_tensor *a = safetensors_find(store, "a");
    assert_int_equal(a->type, ELEMENT_BF16);
    assert_int_equal(((const uint16_t *)a->data)[2], 9);
    assert_null(safetensors_find(store, "c"));
    safetensors_close(&store);
    // A file left under the temporary name, longer than the new one, is written over.
    char *old = arena_printf(&arena, "%s.tmp", path);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(rename(path, old), 0);
    assert_int_equal(safetensors_create(&writer, path, tensors, 2, false, NULL), OK);
    assert_int_equal(safetensors_write(writer, 0, 0, (float[]){3, 4}, 8), OK);
    assert_int_equal(safetensors_write(writer, 1, 0, (uint16_t[]){5, 6, 7}, 6), OK);
    assert_int_equal(safetensors_finish(&writer), OK);
    assert_int_equal(safetensors_open(&store, path), OK);
    assert_int_equal(((const uint16_t *)safetensors_find(store, "a")->data)[2], 7);
    safetensors_close(&store);
    assert_int_equal(safetensors_create(&writer, "/dev/full/x", tensors, 2, true, NULL), UNAVAILABLE);
    struct stat info;
    char *pipe = path_join(&arena, dir, "pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(safetensors_create(&writer, pipe, tensors, 2, true, NULL), UNAVAILABLE);
    assert_non_null(strstr(fail_text(), "pipe: cannot write: it exists and is not a file"));
    assert_true(!stat(pipe, &info) && S_ISFIFO(info.st_mode));
    assert_int_equal(safetensors_create(&writer, path, tensors, 2, true, NULL), OK);
    assert_int_equal(safetensors_finish(&writer), BUG);
    assert_null(writer);
}

// Longer than what is written at once, and no whole number of pages; in the order of the file and in others.
TEST(a_long_file_is_written_whole) {
    enum { count = 5000003, parts = 4 };
    static const size_t cuts[parts + 1] = {0, 1000, 3000000, 3001024, count};
    static const int orders[][parts] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 3, 0, 1}};
    const char *dir = unit_new_directory();
    SCOPED(struct arena, arena_release) arena = {0};
    char *path = path_join(&arena, dir, "long.safetensors");
    float *values = arena_alloc(&arena, count * sizeof *values);
    for (int i = 0; i < count; i++) values[i] = (float)i;
    const struct stored_tensor tensor = {.name = "long", .type = ELEMENT_F32, .rank = 1, .shape = {count}};
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        struct safetensors_writer *writer = NULL;
        assert_int_equal(safetensors_create(&writer, path, &tensor, 1, true, NULL), OK);
        for (int i = 0; i < parts; i++) {
            const size_t first = cuts[orders[o][i]], end = cuts[orders[o][i] + 1];
            const size_t size = (end - first) * sizeof *values;
            assert_int_equal(safetensors_write(writer, 0, first * sizeof *values, values + first, size), OK);
        }
        assert_int_equal(safetensors_finish(&writer), OK);
        SCOPED(struct safetensors *, safetensors_close) store = NULL;
        assert_int_equal(safetensors_open(&store, path), OK);
        assert_memory_equal(safetensors_find(store, "long")->data, values, count * sizeof *values);
        assert_int_equal(remove(path), 0);
    }
}

TEST(config_layouts_agree) {
    static struct model_config flat, nested, newest;
    assert_int_equal(parse(&flat,
                           "{%s,%s,%s,\"rope_theta\":5e5,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
                           "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,1,2]}}",
                           text_keys, token_keys, vision),
                     OK);
    assert_int_equal(parse(&nested,
                           "{%s,%s,%s,\"rope_theta\":5e5,\"dtype\":\"bfloat16\",\"text_config\":{%s,\"rope_theta\":5e5,"
                           "\"tie_word_embeddings\":true,\"rope_scaling\":{\"rope_type\":\"default\","
                           "\"mrope_section\":[1,1,2]}}}",
                           text_keys, token_keys, vision, text_keys),
                     OK);
    assert_int_equal(parse(&newest,
                           "{%s,%s,\"dtype\":\"bfloat16\",\"tie_word_embeddings\":true,\"text_config\":{%s,"
                           "\"rope_parameters\":{\"rope_theta\":500000.0,\"mrope_section\":[1,1,2]}}}",
                           token_keys, vision, text_keys),
                     OK);
    assert_memory_equal(&flat.text, &nested.text, sizeof flat.text);
    assert_memory_equal(&flat.text, &newest.text, sizeof flat.text);
    assert_true(flat.text.tie_word_embeddings);
    assert_int_equal(newest.dtype, ELEMENT_BF16);
    assert_true(flat.vision.tokens_per_second == 4);
    assert_true(flat.vision.fullatt_blocks[0]);
    assert_int_equal(parse_file(&flat, CONFIG_GENERATION, "{\"eos_token_id\":7}", "g"), OK);
    assert_int_equal(flat.eos_count, 1);
    assert_int_equal(parse_file(&flat, CONFIG_GENERATION, "{\"eos_token_id\":[7,9]}", "g"), OK);
    assert_int_equal(flat.eos_ids[1], 9);
    assert_int_equal(parse_file(&flat, CONFIG_GENERATION, "{\"eos_token_id\":64}", "g"), DATAERR);
}

TEST(insane_values_are_refused_by_key) {
    static struct model_config config;
    const struct {
        const char *key, *value;
    } cases[] = {
        {"vocab_size", "-3"},
        {"hidden_size", "0"},
        {"hidden_size", "\"16\""},
        {"num_attention_heads", "3"},
        {"num_key_value_heads", "4"},
        {"num_hidden_layers", "1000000000"},
        {"rms_norm_eps", "2"},
        {"rms_norm_eps", "[]"},
        {"hidden_act", "\"gelu\""},
        {"head_dim", "4"},
        {"use_sliding_window", "true"},
        {"tie_word_embeddings", "1"},
        {"eos_token_id", "[1,\"2\"]"},
        {"image_token_id", "64"},
        {"vision_config", "[]"},
        {"model_type", "\"qwen3_vl\""},
        {"model_type", "2"},
        {"rope_theta", "0"},
        {"torch_dtype", "\"int8\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        // Of equal keys the last one counts.
        assert_int_equal(parse(&config, "{%s,%s,%s,\"rope_scaling\":{\"mrope_section\":[1,1,2]},\"%s\":%s}", text_keys,
                               token_keys, vision, cases[i].key, cases[i].value),
                         DATAERR);
        const char *named = strcmp(cases[i].key, "torch_dtype") == 0 ? "dtype" : cases[i].key;
        expect_message(named);
    }
    assert_int_equal(
        parse(&config, "{%s,%s,%s,\"rope_scaling\":{\"mrope_section\":[1,1,1]}}", text_keys, token_keys, vision),
        DATAERR);
    assert_non_null(strstr(fail_text(), "mrope_section"));
}

// Qwen2-VL's tower under its own keys, in a flat configuration and beside text_config.
TEST(a_config_of_qwen2_vl_is_read) {
    static struct model_config flat, nested;
    static const char tokens[] = "\"image_token_id\":1,\"video_token_id\":2,\"vision_start_token_id\":3,"
                                 "\"vision_end_token_id\":4,\"model_type\":\"qwen2_vl\"";
    static const char tower[] = "\"depth\":2,\"embed_dim\":40,\"num_heads\":5,\"mlp_ratio\":1.1,\"hidden_size\":16,"
                                "\"in_chans\":3,\"spatial_patch_size\":14,\"hidden_act\":\"quick_gelu\"";
    static const char rope[] = "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,1,2]}";
    assert_int_equal(parse(&flat, "{%s,%s,%s,\"vision_config\":{%s}}", text_keys, tokens, rope, tower), OK);
    assert_int_equal(parse(&nested,
                           "{%s,\"text_config\":{%s,%s,\"model_type\":\"qwen2_vl_text\"},\"vision_config\":{%s,"
                           "\"model_type\":\"qwen2_vl\"}}",
                           tokens, text_keys, rope, tower),
                     OK);
    assert_memory_equal(&flat.text, &nested.text, sizeof flat.text);
    assert_memory_equal(&flat.vision, &nested.vision, sizeof flat.vision);
    assert_int_equal(flat.vision.kind, VISION_QWEN2);
    assert_int_equal(flat.vision.hidden_size, 40);
    assert_int_equal(flat.vision.intermediate_size, 44); // 40 x 1.1 in double, as in Python
    assert_int_equal(flat.vision.out_hidden_size, 16);
    assert_int_equal(flat.vision.head_dim, 8);
    assert_true(flat.vision.fullatt_blocks[1] && !flat.vision.fullatt_blocks[2]);
    static const struct {
        const char *key, *value;
    } cases[] = {
        {"hidden_size", "32"}, {"mlp_ratio", "0.01"}, {"mlp_ratio", "-1"},        {"mlp_ratio", "\"4\""},
        {"num_heads", "3"},    {"embed_dim", "0"},    {"hidden_act", "\"silu\""}, {"in_channels", "1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(&flat, "{%s,%s,%s,\"vision_config\":{%s,\"%s\":%s}}", text_keys, tokens, rope, tower,
                               cases[i].key, cases[i].value),
                         DATAERR);
        expect_message("vision_config.");
        expect_message(cases[i].key);
    }
}

TEST(parameters_are_matched_in_both_namings) {
    static struct model_config config;
    assert_int_equal(parse(&config,
                           "{%s,%s,%s,\"tie_word_embeddings\":true,\"rope_scaling\":{\"mrope_section\":[1,1,2]}}",
                           text_keys, token_keys, vision),
                     OK);
    struct qwen_weights weights;
    assert_int_equal(qwen_weights_init(&weights, &config), OK);
    const struct parameter_table *table = &weights.base.table;
    assert_int_equal(weights.text.blocks[1].qkv.count, 3);
    assert_int_equal(weights.text.blocks[1].qkv.rows, 32);
    assert_int_equal(weights.lm_head.count, 0);
    const struct parameter *key = &table->list[weights.text.blocks[0].qkv.first + 1];
    assert_string_equal(key->name, "model.layers.0.self_attn.k_proj.weight");
    assert_int_equal(key->offset, weights.text.blocks[0].qkv.offset + 16 * 16);
    assert_string_equal(key->alias, "model.language_model.layers.0.self_attn.k_proj.weight");
    for (size_t i = 0; i < table->count; i++) {
        int range = 3;
        while (table->list[i].offset < table->ranges[range].offset) range--;
        assert_int_equal(table->ranges[range].decay, table->list[i].kind == PARAMETER_MATRIX);
        assert_int_equal(table->ranges[range].group, table->list[i].group);
        assert_int_equal(table->list[i].group == GROUP_VISION, strncmp(table->list[i].name, "visual.", 7) == 0);
    }
    weights_release(&weights.base);
}

// The longest prompt ends at position MAX_POSITION. Whatever goes beyond it is refused with its position.
TEST(position_ids_stay_in_their_range) {
    static struct model_config config;
    static const char fast_vision[] = "\"vision_config\":{\"hidden_size\":8,\"num_heads\":2,\"out_hidden_size\":16,"
                                      "\"tokens_per_second\":1e5}";
    assert_int_equal(
        parse(&config, "{%s,%s,%s,\"rope_scaling\":{\"mrope_section\":[1,1,2]}}", text_keys, token_keys, fast_vision),
        OK);
    struct model_medium clip = {.video = true, .frames = 4, .height = 28, .width = 28, .seconds_per_grid = 1};
    const int64_t tokens[] = {3, 2, 2, 4};
    const struct model_prompt prompt = {tokens, 4, &clip, 1};
    struct sequence sequence;
    SCOPED(struct arena, arena_release) arena = {0};
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, NULL, 0), OK);
    assert_int_equal(sequence.position_ids[2].axis[0], 100001);
    assert_int_equal(sequence.next_position, 100003);
    clip.seconds_per_grid = 9000;
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, NULL, 0), BAD_SAMPLE);
    expect_message("position id 900000001 is above 262144: seconds_per_grid is 9000");
    clip.seconds_per_grid = 2.62144; // the medium begins at position 1
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, NULL, 0), BAD_SAMPLE);
    expect_message("position id 262145 is above 262144");
    // An image has no seconds_per_grid.
    const int64_t image_tokens[] = {3, 1, 4};
    const struct model_medium image = {.frames = 1, .height = 28, .width = 28, .seconds_per_grid = NAN};
    const struct model_prompt image_prompt = {image_tokens, 3, &image, 1};
    assert_int_equal(sequence_make(&sequence, &arena, &config, &image_prompt, NULL, 0), OK);
    assert_int_equal(sequence.position_ids[1].axis[0], 1);
    assert_int_equal(sequence.next_position, 3);
    // Those of Qwen2-VL count frame pairs, whatever the seconds.
    config.vision.kind = VISION_QWEN2;
    clip.seconds_per_grid = 9000;
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, NULL, 0), OK);
    assert_int_equal(sequence.position_ids[2].axis[0], 2);
    assert_int_equal(sequence.next_position, 4);
}

TEST(a_completion_ends_at_the_last_position) {
    static struct model_config config;
    static int64_t tokens[MAX_POSITION + 2];
    assert_int_equal(
        parse(&config, "{%s,%s,%s,\"rope_scaling\":{\"mrope_section\":[1,1,2]}}", text_keys, token_keys, vision), OK);
    for (int i = 0; i < MAX_POSITION + 2; i++) tokens[i] = 3;
    struct sequence sequence;
    SCOPED(struct arena, arena_release) arena = {0};
    struct model_prompt prompt = {tokens, MAX_POSITION + 1, NULL, 0};
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, NULL, 0), OK);
    assert_int_equal(sequence.position_ids[MAX_POSITION].axis[2], MAX_POSITION);
    prompt.count++;
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, NULL, 0), BAD_SAMPLE);
    expect_message("position id 262145 is above 262144");
    prompt.count = MAX_POSITION;
    struct model_completion completion = {tokens, 2}; // its last token is not computed
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, &completion, 1), OK);
    completion.count = 3;
    assert_int_equal(sequence_make(&sequence, &arena, &config, &prompt, &completion, 1), BAD_SAMPLE);
    expect_message("position id 262145 is above 262144");
}
