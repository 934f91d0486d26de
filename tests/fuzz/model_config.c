// Reads any text as config.json, or as generation_config.json or preprocessor_config.json if the first byte is g or p.
// The parameter table of a configuration that is accepted must have no overlapping tensors.
#include "tests/fuzz/fuzz.h"

#include "shared/model/qwen_vl/qwen_weights.h"

static const char valid[] = "{\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":1,"
                            "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"rope_scaling\":{\"mrope_section\":"
                            "[1,1,2]},\"image_token_id\":1,\"video_token_id\":2,\"vision_start_token_id\":3,"
                            "\"vision_end_token_id\":4,\"vision_config\":{\"depth\":1,\"hidden_size\":8,"
                            "\"num_heads\":2,\"intermediate_size\":8,\"out_hidden_size\":16}}";

static struct model_config config; // too large for the stack

static status parse(enum config_file file, const char *text, size_t size) {
    struct arena arena = {0};
    struct json *root;
    status result = json_parse_object(&root, &arena, text, size, "fuzz");
    if (result == OK) result = model_config_fill(&config, file, root, "fuzz");
    arena_release(&arena);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    if (data[0] == 'g' || data[0] == 'p') {
        if (parse(CONFIG_MODEL, valid, strlen(valid)) != OK) abort();
        (void)parse(data[0] == 'g' ? CONFIG_GENERATION : CONFIG_PREPROCESSOR, text, size - 1);
        return 0;
    }
    if (parse(CONFIG_MODEL, text, size - 1) != OK) return 0;
    struct qwen_weights weights;
    if (qwen_weights_init(&weights, &config) != OK) return 0;
    const struct parameter_table *table = &weights.base.table;
    int64_t end = 0;
    for (size_t i = 0; i < table->count; i++) {
        if (table->list[i].offset < end) abort();
        end = table->list[i].offset + table->list[i].count;
    }
    if (end > table->elements) abort();
    weights_release(&weights.base);
    return 0;
}
