#include "shared/model/qwen_vl/adapters.h"

#include <math.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/rng.h"
#include "shared/model/model.h"
#include "shared/model/model_shapes.h"

static const char config_file_name[] = "adapter_config.json";
const char adapters_file[] = "adapter_model.safetensors";

// Whether a key is missing, or has nothing in it.
static bool adapters_lack(struct config_scope scope, const char *key) {
    const struct json *value = config_find(scope, key);
    return !value || (json_is(value, JSON_BOOL) && !value->boolean) ||
           (!json_is(value, JSON_BOOL) && !json_is(value, JSON_STRING) && json_count(value) == 0);
}

status adapters_config_read(struct adapters_config *out, const char *dir) {
    // Keys that change what is computed: their only value here is none, false or empty.
    static const char *const others[] = {"use_dora",          "use_rslora",
                                         "rank_pattern",      "alpha_pattern",
                                         "modules_to_save",   "layers_to_transform",
                                         "fan_in_fan_out",    "lora_bias",
                                         "layer_replication", "use_qalora",
                                         "use_bdlora",        "kasa_config",
                                         "arrow_config",      "alora_invocation_tokens",
                                         "monteclora_config"};
    struct arena arena = {0};
    struct json *root;
    const char *path = path_join(&arena, dir, config_file_name);
    status result = json_parse_file(&root, &arena, path);
    struct config_scope scope = {root, NULL, ""};
    if (result != OK) goto done;
    result = config_require(scope, "peft_type", "LORA");
    if (result == OK) result = config_require(scope, "bias", "none");
    if (result == OK) result = config_int64(scope, "r", 1, MAX_LORA, 0, &out->rank);
    if (result == OK && (!json_double(json_at(root, "lora_alpha"), &out->alpha) || out->alpha <= 0))
        result = fail(DATAERR, "lora_alpha is not a positive number");
    for (size_t i = 0; result == OK && i < sizeof others / sizeof *others; i++)
        if (!adapters_lack(scope, others[i])) result = fail(DATAERR, "%s is not supported", others[i]);
    // Other ways to begin than with random numbers change the base, too.
    const struct string begun = json_string(json_at(root, "init_lora_weights"));
    if (result == OK && begun.data && !string_equals(begun, "gaussian"))
        result = fail(DATAERR, "init_lora_weights \"%s\" is not supported", begun.data);
    if (result != OK) fail_prefix(result, "%s", path);
done:
    arena_release(&arena);
    return result;
}

status adapters_config_write(const struct adapters_config *config, const char *base, const char *dir) {
    struct arena arena = {0};
    struct buf text = {0};
    buf_puts(&text, "{\n  \"base_model_name_or_path\": ");
    json_print_string(&text, base, strlen(base));
    buf_puts(&text, ",\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"bias\": \"none\",\n"
                    "  \"lora_dropout\": 0.0,\n  \"inference_mode\": true,\n  \"lora_alpha\": ");
    json_print_double(&text, config->alpha);
    // A regular expression: the matrices of the vision tower have some of these names too.
    buf_printf(&text,
               ",\n  \"r\": %lld,\n  \"target_modules\": \"model\\\\.(language_model\\\\.)?layers\\\\.\\\\d+"
               "\\\\.(self_attn\\\\.[qkvo]|mlp\\\\.(gate|up|down))_proj\"\n}\n",
               (long long)config->rank);
    const status result = file_write_atomic(path_join(&arena, dir, config_file_name), text.data, text.size);
    buf_release(&text);
    arena_release(&arena);
    return result;
}

status adapters_new(struct buf *image, const struct parameter_table *table, uint64_t seed) {
    struct buf header = {0};
    uint64_t bytes = 0;
    status result;
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        const uint64_t end = bytes + (uint64_t)parameter->count * sizeof(float);
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld,%lld],\"data_offsets\":[%llu,%llu]}",
                   i ? "," : "{", parameter->name, (long long)parameter->shape[0], (long long)parameter->shape[1],
                   (unsigned long long)bytes, (unsigned long long)end);
        bytes = end;
    }
    buf_puts(&header, "}");
    while (header.size % sizeof(uint64_t)) buf_puts(&header, " ");
    const uint64_t header_size = header.size; // little-endian, as the machine is
    *image = (struct buf){0};
    TRY_TO(result, done, buf_reserve_large(image, sizeof header_size + header.size + bytes));
    buf_append(image, &header_size, sizeof header_size);
    buf_append(image, header.data, header.size);
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        const bool zero = strstr(parameter->name, ".lora_B.");
        const double bound = 1 / sqrt((double)parameter->shape[1]);
        const uint64_t key = rng_key(seed, parameter->name);
        for (int64_t k = 0; k < parameter->count; k++) {
            const float value = zero ? 0 : (float)(bound * (2 * rng_uniform(key, (uint64_t)k, 0) - 1));
            buf_append(image, &value, sizeof value);
        }
    }
done:
    buf_release(&header);
    return result;
}
