#include "shared/model/qwen_vl/adapters.h"

#include <dirent.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/rng.h"
#include "shared/model/model_shapes.h"
#include "shared/model/qwen_vl/qwen_weights.h"
#include "shared/model/training_state.h"

static const char config_file_name[] = "adapter_config.json", index_file_name[] = "model.safetensors.index.json";
const char adapters_file[] = "adapter_model.safetensors";

// Whether a key is missing, or its value is false for Python; but layer 0 of layers_to_transform is a layer.
static bool adapters_lack(struct config_scope scope, const char *key) {
    const struct json *value = config_find(scope, key);
    double number;
    if (!value) return true;
    if (json_is(value, JSON_BOOL)) return !value->boolean;
    if (json_is(value, JSON_STRING)) return json_string(value).size == 0;
    if (!json_is(value, JSON_NUMBER)) return json_count(value) == 0;
    return strcmp(key, "layers_to_transform") != 0 && json_double(value, &number) && number == 0;
}

// Whether alpha / rank is a positive float, neither infinite nor rounded to 0.
static bool adapters_scale_fits(double alpha, int64_t rank) {
    const double scale = alpha / (double)rank;
    return scale >= FLT_MIN && scale <= FLT_MAX;
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
    if (result == OK && !config_find(scope, "lora_alpha")) result = fail(DATAERR, "lora_alpha is missing");
    if (result == OK && (!json_double(json_at(root, "lora_alpha"), &out->alpha) || out->alpha <= 0))
        result = fail(DATAERR, "lora_alpha is not a positive number");
    if (result == OK && !adapters_scale_fits(out->alpha, out->rank))
        result = fail(DATAERR, "lora_alpha %g: the scale, lora_alpha / r, is not in the range of float32", out->alpha);
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

status adapters_open(struct safetensors **out, const struct parameter_table *table, const char *dir) {
    struct arena arena = {0};
    const char *path = path_join(&arena, dir, adapters_file);
    status result = safetensors_open(out, path);
    for (size_t i = 0; result == OK && i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        const struct stored_tensor *stored = safetensors_find(*out, parameter->name);
        if (!stored && parameter->alias) stored = safetensors_find(*out, parameter->alias);
        // Of a model of another shape: parameter_table_match says so.
        if (stored && memcmp(stored->shape, parameter->shape, 2 * sizeof *stored->shape) != 0) break;
        if (stored) continue;
        result =
            fail(DATAERR,
                 "%s: tensor %s is missing: each layer of the model needs adapters for all seven matrices (q_proj, "
                 "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj)",
                 path, parameter->name);
    }
    if (result != OK) safetensors_close(out);
    arena_release(&arena);
    return result;
}

// Whether a directory has adapters and no model.
static bool adapters_alone(const char *dir) {
    struct arena arena = {0};
    const bool alone =
        path_exists(path_join(&arena, dir, config_file_name)) && !path_exists(path_join(&arena, dir, "config.json"));
    arena_release(&arena);
    return alone;
}

status model_check_dir(const char *dir) {
    if (!adapters_alone(dir)) return OK;
    return fail(DATAERR, "%s: adapters, not a model: give the model that they belong to, and this directory as adapter",
                dir);
}

status model_find_base(const char **base, struct arena *arena, const char *dir) {
    struct json *root, *name;
    const char *path = path_join(arena, dir, config_file_name);
    *base = NULL;
    if (!adapters_alone(dir)) return OK;
    TRY(json_parse_file(&root, arena, path));
    const status result = json_require(root, "base_model_name_or_path", JSON_STRING, &name);
    if (result != OK) return fail_prefix(result, "%s", path);
    *base = json_text(name);
    if (path_exists(path_join(arena, *base, "config.json"))) return OK;
    return fail(DATAERR, "%s: its model, %s, is not here; caravan merge MODEL %s OUT adds it to a model", dir, *base,
                dir);
}

status adapters_settle(struct model_options *options) {
    if (options->adapter) {
        struct adapters_config found;
        TRY(adapters_config_read(&found, options->adapter));
        if ((options->lora && options->lora != found.rank) ||
            (options->lora_alpha != 0 && options->lora_alpha != found.alpha))
            return fail(USAGE, "lora %lld, lora_alpha %g: %s has rank %lld and alpha %g", (long long)options->lora,
                        options->lora_alpha, options->adapter, (long long)found.rank, found.alpha);
        options->lora = found.rank;
        options->lora_alpha = found.alpha;
    }
    if (options->lora < 0 || options->lora > MAX_LORA) return fail(USAGE, "lora is not in 0..%d", MAX_LORA);
    if (options->lora_alpha == 0) options->lora_alpha = (double)options->lora;
    if (options->lora && !(options->lora_alpha > 0)) return fail(USAGE, "lora_alpha is not positive");
    if (options->lora && !adapters_scale_fits(options->lora_alpha, options->lora))
        return fail(USAGE, "lora_alpha %g: lora_alpha / lora is not in the range of float32", options->lora_alpha);
    return OK;
}

status model_check_adapter(const char *model, const struct model_options *given, int64_t *rank) {
    struct model_options options = *given;
    struct model_config config;
    struct qwen_weights weights = {0};
    struct safetensors *store = NULL;
    status result;
    TRY_TO(result, done, adapters_settle(&options));
    *rank = options.lora;
    if (!options.adapter) goto done;
    TRY_TO(result, done, model_config_read_shape(&config, model));
    TRY_TO(result, done, qwen_weights_init(&weights, &config));
    TRY_TO(result, done, qwen_add_adapters(&weights, options.lora, 1));
    result = adapters_open(&store, &weights.adapters.table, options.adapter);
    if (result == OK) result = parameter_table_check(&weights.adapters.table, store);
    if (result != OK) fail_prefix(result, "%s: not adapters of %s", options.adapter, model);
done:
    safetensors_close(&store);
    parameter_table_release(&weights.adapters.table);
    parameter_table_release(&weights.base.table);
    return result;
}

status adapters_config_write(const struct adapters_config *config, const char *base, const char *dir) {
    struct arena arena = {0};
    struct buf text = {0};
    char *whole = realpath(base, NULL);
    if (whole) base = whole;
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
    free(whole);
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

// ---- merging ----

// What is passed along while matrices are merged.
struct adapters_merge {
    struct backend *backend;
    struct buffer *buffers[3]; // F32: of the largest matrix, A and B
    const struct parameter_table *table;
    const struct stored_tensor **found; // of the table
    float scale;
};

// *a, *b = the adapter's tensors of a matrix of the model; none if it has no adapter.
static void adapters_find(const struct adapters_merge *merge, const struct parameter *matrix,
                          const struct stored_tensor **a, const struct stored_tensor **b) {
    char names[2][300]; // longer than those of the table
    const struct stored_tensor **out[2] = {a, b};
    for (int k = 0; k < 2; k++) {
        *out[k] = NULL;
        snprintf(names[k], sizeof names[k], "base_model.model.%.*s.lora_%c.weight",
                 (int)(strlen(matrix->name) - strlen(".weight")), matrix->name, "AB"[k]);
        for (size_t i = 0; i < merge->table->count; i++)
            if (strcmp(merge->table->list[i].name, names[k]) == 0) *out[k] = merge->found[i];
    }
}

static struct tensor adapters_tensor(struct buffer *buffer, const struct stored_tensor *stored) {
    return (struct tensor){buffer, 0, ELEMENT_F32, stored->shape[0], stored->shape[1], stored->shape[1]};
}

// Uploads a file's tensor, which may be unaligned.
static status adapters_upload(struct backend *backend, struct tensor out, const struct stored_tensor *stored) {
    char *copy = NULL;
    TRY(mem_new_large(&copy, stored->size, 1));
    memcpy(copy, stored->data, stored->size);
    const status result = backend->ops->upload(backend, out, copy, stored->type);
    free(copy);
    return result;
}

static bool adapters_are_finite(const void *data, int64_t count, enum element type) {
    const uint32_t *wide = data, wide_exponent = 0x7f800000; // whose bits are all set in infinity and NaN
    const uint16_t *narrow = data, exponent = type == ELEMENT_F16 ? 0x7c00 : 0x7f80;
    int64_t i = 0;
    if (type == ELEMENT_F32)
        while (i < count && (wide[i] & wide_exponent) != wide_exponent) i++;
    else
        while (i < count && (narrow[i] & exponent) != exponent) i++;
    return i == count;
}

// data = W + scale * B A, in the type of W. DATAERR if a sum is not finite in it.
static status adapters_merge_matrix(const struct adapters_merge *merge, const struct stored_tensor *stored,
                                    const struct stored_tensor *stored_a, const struct stored_tensor *stored_b,
                                    void *data) {
    struct backend *backend = merge->backend;
    const struct operations *ops = backend->ops;
    const struct tensor whole = adapters_tensor(merge->buffers[0], stored),
                        a = adapters_tensor(merge->buffers[1], stored_a),
                        b = adapters_tensor(merge->buffers[2], stored_b);
    struct weight *weight = NULL;
    TRY(adapters_upload(backend, whole, stored));
    TRY(adapters_upload(backend, a, stored_a));
    TRY(adapters_upload(backend, b, stored_b));
    TRY(ops->scale(backend, b, b, merge->scale));
    TRY(ops->weight_new(backend, &weight, a, false));
    status result = ops->linear_grad_input(backend, whole, b, weight, true); // += b A
    if (result == OK) result = ops->download(backend, data, stored->type, whole);
    ops->weight_free(backend, &weight);
    if (result == OK && !adapters_are_finite(data, stored_tensor_count(stored), stored->type))
        return fail(DATAERR, "%s: added to tensor %s of %s, it gives numbers that are not finite", stored_a->file,
                    stored->name, stored->file);
    return result;
}

// Writes one file of the store: its tensors [first, end).
static status adapters_merge_file(const struct adapters_merge *merge, const struct safetensors *store, size_t first,
                                  size_t end, const struct parameter_table *base,
                                  const struct stored_tensor **base_found, const char *path) {
    struct safetensors_writer *writer = NULL;
    status result = safetensors_create(&writer, path, safetensors_at(store, first), end - first, true, NULL);
    for (size_t i = first; result == OK && i < end; i++) {
        const struct stored_tensor *stored = safetensors_at(store, i), *a = NULL, *b = NULL;
        const struct parameter *parameter = parameter_of_stored(base, base_found, stored);
        char *data = NULL;
        if (parameter) adapters_find(merge, parameter, &a, &b);
        if (a) result = mem_new_large(&data, stored->size, 1);
        if (result == OK && a) result = adapters_merge_matrix(merge, stored, a, b, data);
        if (result == OK) result = safetensors_write(writer, i - first, 0, a ? data : stored->data, stored->size);
        safetensors_release_pages(stored);
        free(data);
    }
    if (result == OK) return safetensors_finish(&writer);
    safetensors_abort(&writer);
    return result;
}

// Whether the values of a parameter differ, of those that have the same type in both.
static bool adapters_bases_differ(const struct parameter_table *base, const struct stored_tensor **left,
                                  const struct stored_tensor **right) {
    bool differ = false;
    for (size_t i = 0; i < base->count && !differ; i++) {
        if (!left[i] || !right[i] || left[i]->type != right[i]->type) continue;
        differ = memcmp(left[i]->data, right[i]->data, left[i]->size) != 0;
        safetensors_release_pages(left[i]);
        safetensors_release_pages(right[i]);
    }
    return differ;
}

// Warns if adapter_config.json names another directory as the adapter's model, which is here and has other weights than
// `dir`. The hash in a checkpoint's `progress` says less: it is also of options that the checkpoint does not have.
static void adapters_compare_base(const char *dir, const char *adapter, const struct parameter_table *base,
                                  const struct stored_tensor **found) {
    struct arena arena = {0};
    struct safetensors *store = NULL;
    struct json *root;
    char *own = realpath(dir, NULL), *other = NULL;
    if (json_parse_file(&root, &arena, path_join(&arena, adapter, config_file_name)) != OK) goto done;
    const char *named = json_string(json_at(root, "base_model_name_or_path")).data;
    if (named) other = realpath(named, NULL);
    if (!own || !other || !strcmp(own, other)) goto done; // also where it is a name on the Hub
    if (safetensors_open_dir(&store, other) != OK) goto done;
    const struct stored_tensor **others = arena_alloc(&arena, base->count * sizeof *others);
    if (parameter_table_match(base, store, others) != OK || adapters_bases_differ(base, found, others))
        log_info("%s was trained with %s, which has other weights than %s", adapter, named, dir);
done:
    safetensors_close(&store);
    free(other);
    free(own);
    arena_release(&arena);
}

// USAGE if a directory has weights, which may be read instead of those to be written into it, or an adapter, which
// transformers would add to them once more.
static status adapters_check_out(const char *to) {
    status result = OK;
    DIR *entries = opendir(to);
    if (!entries) return OK; // it is to be made
    for (const struct dirent *entry; result == OK && (entry = readdir(entries));) {
        const char *name = entry->d_name, *end = strrchr(name, '.');
        const bool is_weights = (end && !strcmp(end, ".safetensors")) || !strcmp(name, index_file_name);
        if (is_weights || !strcmp(name, config_file_name))
            result = fail(USAGE, "%s/%s is there already: give another directory, or remove this file", to, name);
    }
    closedir(entries);
    return result;
}

// Writes the directory. After a failure the weights that were written are removed: some files of several are no model,
// and another try is refused where there are any.
static status adapters_merge_files(const struct adapters_merge *merge, const struct safetensors *store,
                                   const struct parameter_table *base, const struct stored_tensor **base_found,
                                   const char *dir, const char *to) {
    struct arena arena = {0};
    const size_t count = safetensors_count(store);
    const bool made = !path_exists(to);
    size_t first = 0; // tensors in complete files
    status result = dir_make(to);
    for (size_t end = 0; result == OK && first < count;) { // one file after another
        const char *file = safetensors_at(store, first)->file;
        while (end < count && strcmp(safetensors_at(store, end)->file, file) == 0) end++;
        const char *path = path_join(&arena, to, path_base_name(file));
        result = adapters_merge_file(merge, store, first, end, base, base_found, path);
        if (result == OK) first = end;
    }
    if (result == OK) result = checkpoint_copy_files(dir, to, store, NULL);
    if (result == OK) result = dir_sync(to);
    for (size_t i = 0; result != OK && i < first; i++)
        (void)unlink(path_join(&arena, to, path_base_name(safetensors_at(store, i)->file)));
    if (result != OK) (void)unlink(path_join(&arena, to, index_file_name));
    if (result != OK && made) (void)rmdir(to); // if it is empty
    arena_release(&arena);
    return result;
}

status model_merge(const char *dir, const char *adapter, const char *to, int threads) {
    struct arena arena = {0};
    struct model_config config;
    struct adapters_config adapters;
    struct qwen_weights weights = {0};
    struct safetensors *store = NULL, *adapter_store = NULL;
    struct adapters_merge merge = {0};
    int64_t largest[3] = {0};
    status result;
    TRY(adapters_check_out(to));
    TRY_TO(result, done, model_config_read(&config, dir));
    TRY_TO(result, done, adapters_config_read(&adapters, adapter));
    TRY_TO(result, done, qwen_weights_init(&weights, &config));
    TRY_TO(result, done, qwen_add_adapters(&weights, adapters.rank, 1));
    TRY_TO(result, done, safetensors_open_dir(&store, dir));
    TRY_TO(result, done, adapters_open(&adapter_store, &weights.adapters.table, adapter));
    const struct parameter_table *base = &weights.base.table;
    const struct stored_tensor **base_found = arena_alloc(&arena, base->count * sizeof *base_found);
    merge.table = &weights.adapters.table;
    merge.found = arena_alloc(&arena, merge.table->count * sizeof *merge.found);
    merge.scale = (float)(adapters.alpha / (double)adapters.rank);
    TRY_TO(result, done, parameter_table_match(base, store, base_found));
    TRY_TO(result, done, parameter_table_match(merge.table, adapter_store, merge.found));
    adapters_compare_base(dir, adapter, base, base_found);

    TRY_TO(result, done, backend_open(&merge.backend, &(struct backend_options){.device = "cpu", .threads = threads}));
    for (size_t i = 0; i < base->count; i++) {
        const struct stored_tensor *a, *b;
        adapters_find(&merge, &base->list[i], &a, &b);
        const int64_t counts[] = {base->list[i].count, a ? stored_tensor_count(a) : 0, a ? stored_tensor_count(b) : 0};
        for (int k = 0; a && k < 3; k++)
            if (counts[k] > largest[k]) largest[k] = counts[k];
    }
    for (int k = 0; k < 3; k++)
        TRY_TO(result, done,
               merge.backend->ops->buffer_new(merge.backend, (size_t)largest[k] * sizeof(float), &merge.buffers[k]));
    result = adapters_merge_files(&merge, store, base, base_found, dir, to);
done:
    for (int k = 0; merge.backend && k < 3; k++) merge.backend->ops->buffer_free(merge.backend, &merge.buffers[k]);
    backend_close(&merge.backend);
    safetensors_close(&adapter_store);
    safetensors_close(&store);
    parameter_table_release(&weights.adapters.table);
    parameter_table_release(&weights.base.table);
    arena_release(&arena);
    return result;
}
