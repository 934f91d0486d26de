// Reads any text as the config.json of a ModernBERT directory. What is accepted must be within the bounds that the
// model counts on.
#include "tests/fuzz/fuzz.h"

#include "shared/model/modernbert/classifier_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct classifier_config config;
    struct arena arena = {0};
    struct json *root;
    status result = json_parse_object(&root, &arena, (const char *)data, size, "fuzz");
    if (result == OK) result = classifier_config_fill(&config, root, "fuzz");
    arena_release(&arena);
    if (result != OK) return 0;
    fuzz_must(config.head_dim > 0 && config.head_dim % 2 == 0);
    fuzz_must(config.hidden_size == (int64_t)config.head_dim * config.num_attention_heads);
    fuzz_must(config.window > 0);
    fuzz_must(config.labels > 0 && config.consistent < config.labels);
    fuzz_must(config.pad_token_id < config.vocab_size);
    fuzz_must(config.global_rope_theta >= 1 && config.local_rope_theta >= 1);
    fuzz_must(!config.trains_labels || config.consistent == 1);
    return 0;
}
