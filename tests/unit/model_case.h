// A golden case of tests/data/model: its prompt, frames, completions and settings, ready for the model's calls.
#pragma once

#include "tests/unit/unit.h"

#include <math.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/model/model.h"
#include "shared/model/safetensors.h"

static const char *const case_names[] = {"even", "pairs", "seven", "thirds", "wide", "clip", "ratio"};
enum { CASES = 6, ALL_CASES = 7, COMPLETIONS = 4, MAX_TOKENS = 32 };

struct model_case {
    struct arena arena;
    const char *name, *dir;
    struct json *golden;
    struct safetensors *tensors;
    struct model_prompt prompt;
    struct model_completion completions[COMPLETIONS];
};

static inline struct json *key_of(struct json *object, const char *key) {
    struct json *value = json_at(object, key);
    if (!value) print_error("golden.json has no %s\n", key);
    assert_non_null(value);
    return value;
}

static inline double number_of(struct json *object, const char *key) {
    return json_double_or(key_of(object, key), NAN);
}

static inline int64_t *case_tokens(struct model_case *it, struct json *list, size_t *count) {
    *count = json_count(list);
    int64_t *tokens = arena_alloc(&it->arena, *count * sizeof *tokens);
    for (size_t i = 0; i < *count; i++) tokens[i] = json_int_or(json_item(list, i), -1);
    return tokens;
}

// One array of numbers for each completion; NULL where the step has none.
static inline float *case_floats(struct model_case *it, struct json *step, const char *key, size_t completion) {
    struct json *lists = json_at(step, key);
    if (!lists) return NULL;
    struct json *list = json_item(lists, completion);
    size_t count = json_count(list);
    float *values = arena_alloc(&it->arena, count * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = (float)json_double_or(json_item(list, i), NAN);
    return values;
}

static inline void case_media(struct model_case *it) {
    struct json *list = key_of(it->golden, "media");
    size_t count = json_count(list);
    struct model_medium *media = arena_alloc(&it->arena, count * sizeof *media);
    for (size_t m = 0; m < count; m++) {
        struct json *entry = json_item(list, m);
        media[m] = (struct model_medium){.video = key_of(entry, "video")->boolean,
                                         .frames = (int)number_of(entry, "frames"),
                                         .height = (int)number_of(entry, "height"),
                                         .width = (int)number_of(entry, "width"),
                                         .seconds_per_grid = number_of(entry, "seconds_per_grid")};
        uint64_t size = (uint64_t)media[m].frames * (uint64_t)media[m].height * (uint64_t)media[m].width * 3;
        uint8_t *pixels = arena_alloc(&it->arena, size);
        for (uint64_t i = 0; i < size; i++) { // as make_model_golden.py does
            uint64_t mixed = (i * 2654435761u + m * 40503 * 65537 + 12345) & 0xffffffffu;
            mixed = ((mixed ^ mixed >> 15) * 2246822519u) & 0xffffffffu;
            pixels[i] = (uint8_t)(mixed >> 24);
        }
        media[m].pixels = pixels;
    }
    it->prompt.media = media;
    it->prompt.media_count = count;
}

static inline struct model_case case_open(const char *name) {
    struct model_case it = {.name = name};
    const char *root = getenv("MODEL_GOLDEN");
    it.dir = arena_printf(&it.arena, "%s/%s", root ? root : "tests/data/model", name);
    MUST(json_parse_file(&it.golden, &it.arena, path_join(&it.arena, it.dir, "golden.json")));
    MUST(safetensors_open(&it.tensors, path_join(&it.arena, it.dir, "golden.safetensors")));
    it.prompt.tokens = case_tokens(&it, key_of(it.golden, "prompt"), &it.prompt.count);
    case_media(&it);
    struct json *completions = key_of(it.golden, "completions");
    for (size_t i = 0; i < COMPLETIONS; i++)
        it.completions[i].tokens = case_tokens(&it, json_item(completions, i), &it.completions[i].count);
    return it;
}

static inline void case_close(struct model_case *it) {
    safetensors_close(&it->tensors);
    arena_release(&it->arena);
}

// The device of models that name none: MODEL_DEVICE, else the CPU.
static inline const char *case_device(void) {
    const char *device = getenv("MODEL_DEVICE");
    return device ? device : "cpu";
}

static inline struct model *case_model(const struct model_case *it, const struct model_options *options) {
    struct model *model = NULL;
    struct model_options wanted = *options;
    if (!wanted.device) wanted.device = case_device();
    MUST(model_open(&model, it->dir, &wanted));
    return model;
}

// Whether the device is there and computes in this precision. The CPU computes in float32.
static inline bool case_computes(const struct model_case *it, const char *device, const char *precision) {
    struct model *model = NULL;
    status result = model_open(&model, it->dir, &(struct model_options){.device = device, .precision = precision});
    model_free(&model);
    if (result == OK) return true;
    print_message("left out: %s\n", fail_text());
    assert_int_equal(result, UNAVAILABLE);
    const bool named = strcmp(device, "cpu") == 0 || strcmp(device, case_device()) == 0; // MODEL_DEVICE must be there
    assert_false(named && strcmp(precision, "float32") == 0);
    return false;
}

// Under the address sanitizer the emulator takes minutes for tensor cores. The tests of operations cover them there.
#ifdef __SANITIZE_ADDRESS__
enum { EMULATOR_IS_FAST = false };
#else
enum { EMULATOR_IS_FAST = true };
#endif

// Whether the emulated GPU is there. The build for the thread sanitizer lacks it.
static inline bool case_emulator(void) {
    struct backend *backend = NULL;
    status result = backend_open(&backend, &(struct backend_options){.device = "emulated"});
    if (result != OK) print_message("left out: %s\n", fail_text());
    backend_close(&backend);
    return result == OK;
}

// |a - b| / |b| over all elements.
static inline double relative_distance(const float *a, const float *b, size_t count) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

// The step's completions with advantages, behaviour and reference.
static inline void case_step(struct model_case *it, struct json *step, struct train_completion *out) {
    for (size_t i = 0; i < COMPLETIONS; i++) {
        struct json *advantages = key_of(step, "advantages");
        out[i] = (struct train_completion){.completion = it->completions[i],
                                           .advantage = json_double_or(json_item(advantages, i), NAN),
                                           .old_logprobs = case_floats(it, step, "behaviour", i),
                                           .ref_logprobs = case_floats(it, step, "reference", i),
                                           .stale = key_of(step, "stale")->boolean};
    }
}

// Accumulates the gradients of the golden data's first step.
static inline void case_accumulate(struct model_case *it, struct model *model) {
    struct train_completion completions[COMPLETIONS];
    struct train_result result;
    case_step(it, json_item(key_of(it->golden, "steps"), 0), completions);
    MUST(model_accumulate(model, &it->prompt, completions, COMPLETIONS, &(struct loss_options){0}, 1, &result));
}

static inline void case_score(const struct model_case *it, struct model *model, float out[COMPLETIONS][MAX_TOKENS]) {
    float *rows[COMPLETIONS];
    memset(out, 0, sizeof(float[COMPLETIONS][MAX_TOKENS]));
    for (int i = 0; i < COMPLETIONS; i++) rows[i] = out[i];
    MUST(model_score(model, &it->prompt, it->completions, COMPLETIONS, NULL, rows));
}

static inline uint64_t case_hash(struct model *model) {
    uint64_t hash = 0;
    MUST(model_hash(model, &hash));
    return hash;
}

// The completions of some requests, whose tags are their numbers.
enum { SAMPLED_REQUESTS = 5, SAMPLED_COMPLETIONS = 4, SAMPLED_TOKENS = 24 };

struct samples {
    int requests, completions[SAMPLED_REQUESTS];
    int64_t tokens[SAMPLED_REQUESTS][SAMPLED_COMPLETIONS][SAMPLED_TOKENS];
    int64_t versions[SAMPLED_REQUESTS][SAMPLED_COMPLETIONS][SAMPLED_TOKENS];
    float logprobs[SAMPLED_REQUESTS][SAMPLED_COMPLETIONS][SAMPLED_TOKENS];
    size_t count[SAMPLED_REQUESTS][SAMPLED_COMPLETIONS];
    bool ended[SAMPLED_REQUESTS][SAMPLED_COMPLETIONS];
};

static inline void case_take_finished(struct generator *generator, struct samples *out) {
    void *tag = NULL;
    int count = 0;
    for (const struct generated *got; (got = generator_pop(generator, &tag, &count));) {
        int request = (int)(intptr_t)tag;
        out->completions[request] = count;
        for (int i = 0; i < count; i++) {
            out->count[request][i] = got[i].count;
            out->ended[request][i] = got[i].ended;
            memcpy(out->tokens[request][i], got[i].tokens, got[i].count * sizeof(int64_t));
            memcpy(out->versions[request][i], got[i].versions, got[i].count * sizeof(int64_t));
            memcpy(out->logprobs[request][i], got[i].logprobs, got[i].count * sizeof(float));
        }
    }
}
