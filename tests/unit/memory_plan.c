// What `caravan plan` says that each stage takes of memory, against what it then takes: on a GPU what the emulator's
// allocator hands out, where kernels compute nothing; on the CPU what a process of its own had at most. And what it
// says of checkpoints, against their files.
#include "tests/unit/unit.h"

#include <dlfcn.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "shared/base/file.h"
#include "shared/base/ranks.h"
#include "shared/model/classifier.h"
#include "shared/model/model.h"
#include "shared/model/modernbert/classifier_weights.h"
#include "shared/model/qwen_vl/model_internal.h"
#include "tests/emulate/emulated.h"

enum {
    GROUP = 8,
    NEW_TOKENS = 256,
    CONTINUED = 32, // tokens behind a completion
    UNIT_ROWS = 30, // of the clip, in units of 28 x 28 pixels
    UNIT_COLUMNS = 68,
    UNITS = UNIT_ROWS * UNIT_COLUMNS,
    PROMPT = UNITS + 8,
};

#define TEXT_KEYS                                                                                                      \
    "\"image_token_id\": 1999, \"video_token_id\": 1998, \"vision_start_token_id\": 1997, \"vision_end_token_id\": "   \
    "1996,"                                                                                                            \
    " \"eos_token_id\": 1, \"bos_token_id\": 0, \"vocab_size\": 2000, \"hidden_size\": 256, \"intermediate_size\": "   \
    "640,"                                                                                                             \
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06,"      \
    " \"hidden_act\": \"silu\", \"use_sliding_window\": false, \"torch_dtype\": \"bfloat16\","                         \
    " \"tie_word_embeddings\": false, \"rope_theta\": 1000000.0,"                                                      \
    " \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [8, 12, 12]}, "

static const char *const configs[] = {
    "{\"model_type\": \"qwen2_5_vl\", " TEXT_KEYS "\"vision_config\": {\"depth\": 4,"
    " \"hidden_size\": 128, \"intermediate_size\": 320, \"num_heads\": 2, \"in_chans\": 3, \"out_hidden_size\": 256,"
    " \"patch_size\": 14, \"spatial_merge_size\": 2, \"temporal_patch_size\": 2, \"window_size\": 112,"
    " \"fullatt_block_indexes\": [1, 3], \"tokens_per_second\": 2}}",
    "{\"model_type\": \"qwen2_vl\", " TEXT_KEYS
    "\"vision_config\": {\"depth\": 4, \"embed_dim\": 128, \"mlp_ratio\": 4,"
    " \"num_heads\": 2, \"in_chans\": 3, \"hidden_size\": 256, \"patch_size\": 14, \"spatial_merge_size\": 2,"
    " \"temporal_patch_size\": 2}}",
};

static const char classifier_config[] =
    "{\"model_type\": \"modernbert\", \"vocab_size\": 2000, \"hidden_size\": 256, \"intermediate_size\": 384,"
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"classifier_pooling\": \"mean\", \"pad_token_id\": 0,"
    " \"id2label\": {\"0\": \"inconsistent\", \"1\": \"consistent\"}}";

static struct {
    const char *config_json;
    struct emulated_memory *memory; // NULL without the plug-in
    char dir[64];
    int64_t tokens[PROMPT];
    struct model_medium clip;
    struct model_prompt prompt;
    struct model_completion completions[GROUP];
} it;

static void write_config(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", it.dir);
    MUST(file_write_atomic(path, it.config_json, strlen(it.config_json)));
}

// Zeros for all parameters, in bfloat16.
static void write_weights(const struct parameter_table *table) {
    SCOPED(struct arena, arena_release) arena = {0};
    struct safetensors_writer *writer;
    char path[128];
    struct stored_tensor *tensors = arena_alloc(&arena, table->count * sizeof *tensors);
    size_t most = 1;
    for (size_t i = 0; i < table->count; i++) {
        const struct parameter *parameter = &table->list[i];
        tensors[i] = parameter_stored(parameter, parameter->name, ELEMENT_BF16);
        if ((size_t)parameter->count > most) most = (size_t)parameter->count;
    }
    void *zeros = calloc(most, element_size(ELEMENT_BF16));
    snprintf(path, sizeof path, "%s/model.safetensors", it.dir);
    MUST(safetensors_create(&writer, path, tensors, table->count, true, NULL));
    for (size_t i = 0; i < table->count; i++)
        MUST(safetensors_write(writer, i, 0, zeros, (size_t)table->list[i].count * element_size(ELEMENT_BF16)));
    MUST(safetensors_finish(&writer));
    free(zeros);
}

static void write_model(void) {
    struct model_config config;
    struct qwen_weights weights;
    write_config();
    MUST(model_config_read(&config, it.dir));
    MUST(qwen_weights_init(&weights, &config));
    write_weights(&weights.base.table);
    weights_release(&weights.base);
}

static void write_classifier(void) {
    struct classifier_config config;
    struct classifier_weights weights;
    write_config();
    MUST(classifier_config_read(&config, it.dir));
    MUST(classifier_weights_init(&weights, &config, PART_NONE));
    write_weights(&weights.base.table);
    weights_release(&weights.base);
}

// The largest group: a prompt that is almost only a clip, and completions of as many tokens as there may be.
static void make_group(int unit_rows, int unit_columns) {
    static int64_t words[NEW_TOKENS];
    const int units = unit_rows * unit_columns, prompt = units + 8;
    assert_true(prompt <= PROMPT);
    for (int i = 0; i < NEW_TOKENS; i++) words[i] = 2;
    for (int i = 0; i < prompt; i++) it.tokens[i] = i == 0 ? 1997 : i <= units ? 1998 : i == units + 1 ? 1996 : 2;
    it.clip = (struct model_medium){
        .video = true, .frames = 2, .seconds_per_grid = 1, .height = 28 * unit_rows, .width = 28 * unit_columns};
    it.clip.pixels = calloc((size_t)it.clip.height * (size_t)it.clip.width, 6);
    it.prompt = (struct model_prompt){it.tokens, (size_t)prompt, &it.clip, 1};
    for (int i = 0; i < GROUP; i++) it.completions[i] = (struct model_completion){words, NEW_TOKENS};
}

static int open_emulator(void) {
    const char *dir = getenv("CARAVAN_LIB");
    char plugin[4096];
    snprintf(plugin, sizeof plugin, "%s/libcaravan-emulated.so", dir ? dir : ".");
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0; // not built for the thread sanitizer
    it.memory = dlsym(library, "emulated_memory");
    snprintf(it.dir, sizeof it.dir, "%s", "/tmp/caravan-memory-plan-XXXXXX");
    if (!it.memory || !mkdtemp(it.dir)) return -1;
    it.memory->sizes_only = true;
    setenv("CARAVAN_NCCL", plugin, 1);
    setenv("CARAVAN_EMULATED_NCCL", "alone", 1);
    return 0;
}

static int setup(void **state) {
    (void)state;
    if (open_emulator()) return -1;
    if (!it.memory) return 0;
    write_model();
    make_group(UNIT_ROWS, UNIT_COLUMNS);
    return 0;
}

static int setup_classifier(void **state) {
    (void)state;
    it.config_json = classifier_config;
    if (open_emulator()) return -1;
    if (it.memory) write_classifier();
    return 0;
}

static int setup_host(void **state) {
    (void)state;
    it.memory = NULL;
    snprintf(it.dir, sizeof it.dir, "%s", "/tmp/caravan-memory-plan-XXXXXX");
    if (!mkdtemp(it.dir)) return -1;
    write_model();
    make_group(UNIT_ROWS / 2, UNIT_COLUMNS / 2); // as much as a few seconds can compute
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free((void *)(uintptr_t)it.clip.pixels);
    it.clip.pixels = NULL;
    return *it.dir && dir_remove(it.dir) != OK;
}

// The sum of the items is within 5 % of the peak since `peak` was set to 0.
static void expect_peak(const struct memory_item *items, size_t count, const char *stage) {
    double planned = 0, peak = (double)it.memory->peak;
    for (size_t i = 0; i < count; i++) planned += (double)items[i].bytes;
    print_message("%s: %.1f MB planned, %.1f MB allocated\n", stage, planned * 1e-6, peak * 1e-6);
    assert_true(fabs(planned / peak - 1) <= 0.05);
}

// The plan for the numbers of the request.
static void expect_planned(struct memory_request request, const char *stage) {
    struct memory_item items[MEMORY_ITEMS];
    size_t count;
    request.prompt_tokens = PROMPT;
    request.group_size = GROUP;
    request.new_tokens = NEW_TOKENS;
    MUST(model_memory_needs(it.dir, &request, items, &count));
    expect_peak(items, count, stage);
}

static struct model *open_model(struct model_options options) {
    struct model *model = NULL;
    options.device = "emulated";
    it.memory->peak = it.memory->used;
    MUST(model_open(&model, it.dir, &options));
    return model;
}

static void the_plan_holds_for_refscore(void **state) {
    (void)state;
    if (!it.memory) skip();
    static float logprobs[GROUP][NEW_TOKENS];
    float *rows[GROUP];
    for (int i = 0; i < GROUP; i++) rows[i] = logprobs[i];
    struct model *model = open_model((struct model_options){0});
    for (int i = 0; i < 2; i++) MUST(model_score(model, &it.prompt, it.completions, GROUP, NULL, rows));
    expect_planned((struct memory_request){0}, "refscore");
    model_free(&model);
    assert_int_equal(it.memory->used, 0);
    model = open_model((struct model_options){.lora = 64, .lora_alpha = 16});
    for (int i = 0; i < 2; i++) MUST(model_score(model, &it.prompt, it.completions, GROUP, NULL, rows));
    expect_planned((struct memory_request){.lora = 64}, "refscore with adapters");
    model_free(&model);
    assert_int_equal(it.memory->used, 0);
}

static void the_plan_holds_for_refscore_that_writes_answers(void **state) {
    (void)state;
    if (!it.memory) skip();
    static float logprobs[GROUP][NEW_TOKENS];
    float *rows[GROUP];
    struct completion_prefix prefixes[GROUP] = {0};
    struct generator *generator = NULL;
    void *tag;
    int count;
    for (int i = 0; i < GROUP; i++) rows[i] = logprobs[i];
    const struct generate_request request = {
        .prompt = it.prompt, .count = GROUP, .temperature = 1, .top_p = 1, .max_new_tokens = CONTINUED};
    struct model *model = open_model((struct model_options){0});
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = CONTINUED, .continues = true}));
    for (int pass = 0; pass < 2; pass++) { // in the first one no completion is continued
        for (int i = 0; i < GROUP; i++) prefixes[i].kept = pass ? NEW_TOKENS : 0;
        MUST(generator_continue(generator, &request, it.completions, prefixes, NULL, rows));
        assert_int_equal(generator_pop(generator, &tag, &count) != NULL, !pass);
    }
    MUST(generator_step(generator)); // the first one allocates what all use
    expect_planned((struct memory_request){.continued_tokens = CONTINUED}, "refscore that writes answers");
    generator_free(&generator);
    model_free(&model);
    assert_int_equal(it.memory->used, 0);
}

// The first step allocates what all use.
static void the_plan_holds_for_rollout(void **state) {
    (void)state;
    if (!it.memory) skip();
    struct generator *generator = NULL;
    struct model *model = open_model((struct model_options){0});
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = NEW_TOKENS}));
    struct generate_request request = {
        .prompt = it.prompt, .count = GROUP, .temperature = 1, .top_p = 1, .max_new_tokens = NEW_TOKENS};
    MUST(generator_add(generator, &request));
    MUST(generator_step(generator));
    expect_planned((struct memory_request){.generates = true}, "rollout");
    generator_free(&generator);
    model_free(&model);
    assert_int_equal(it.memory->used, 0);
}

static void ranks_begin_nothing(struct ranks *ranks, struct rank_exchange *exchange) {
    (void)ranks, (void)exchange;
}

// The others have the same library (the longest message), and send and expect what this rank expects and sends.
static status ranks_end_nothing(struct ranks *ranks, struct rank_exchange *exchange, bool patient) {
    (void)patient;
    for (int rank = 0; rank < ranks->count; rank++) {
        const struct rank_stream *send = &exchange->sends[rank], *receive = &exchange->receives[rank];
        if (send->total != receive->total || send->total < 16) continue;
        memcpy(receive->pieces->data, send->pieces->data, send->pieces->bytes);
        if (send->total > 16) continue;
        memcpy(receive->pieces->data, (char *)send->pieces->data + 8, 8);
        memcpy((char *)receive->pieces->data + 8, send->pieces->data, 8);
    }
    return OK;
}

static status ranks_check_nothing(struct ranks *ranks, double waited) {
    (void)ranks, (void)waited;
    return OK;
}

// Alone, or as the last of several ranks, of which the others have no leaf; all weights, or adapters.
static void expect_planned_training(int count, int64_t lora, const char *what) {
    static const struct ranks_calls calls = {
        .begin = ranks_begin_nothing, .end = ranks_end_nothing, .check = ranks_check_nothing};
    struct ranks ranks = {.calls = &calls, .own = count - 1, .count = count};
    static float old_logprobs[NEW_TOKENS];
    struct train_completion completions[GROUP];
    for (int i = 0; i < GROUP; i++)
        completions[i] =
            (struct train_completion){.completion = it.completions[i], .advantage = 1, .old_logprobs = old_logprobs};
    struct model *model = open_model((struct model_options){.training = true,
                                                            .train_vision = !lora,
                                                            .ema = true,
                                                            .lora = lora,
                                                            .lora_alpha = 16,
                                                            .ranks = count > 1 ? &ranks : NULL});
    assert_int_equal(model->trainer.devices != NULL, count > 1);
    for (int i = 0; i < 2; i++) {
        struct train_result result;
        MUST(model_turn(model, count));
        MUST(model_accumulate(model, &it.prompt, completions, GROUP, &(struct loss_options){0}, 1, &result));
        MUST(model_update_ema(model, 0.5));
    }
    expect_planned(
        (struct memory_request){.training = true, .train_vision = !lora, .ema = true, .lora = lora, .ranks = count},
        what);
    model_free(&model);
    assert_int_equal(it.memory->used, 0);
}

static void the_plan_holds_for_optim(void **state) {
    (void)state;
    if (!it.memory) skip();
    expect_planned_training(1, 0, "optim");
    expect_planned_training(4, 0, "optim, one of four ranks");
    expect_planned_training(1, 64, "optim of adapters");
    expect_planned_training(4, 64, "optim of adapters, one of four ranks");
}

// ---- on the CPU ----

// Returns a number of kilobytes of /proc/self/status in bytes.
static double status_bytes(const char *name) {
    char line[256];
    double kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && kilobytes < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':') kilobytes = atof(line + strlen(name) + 1);
    if (file) fclose(file);
    return kilobytes * 1024;
}

// What a stage does with its largest group on the CPU.
struct host_stage {
    const char *name;
    struct model_options options;
    struct memory_request request;
    void (*run)(struct model *model);
};

static void host_score(struct model *model) {
    static float logprobs[GROUP][NEW_TOKENS];
    float *rows[GROUP];
    for (int i = 0; i < GROUP; i++) rows[i] = logprobs[i];
    MUST(model_score(model, &it.prompt, it.completions, GROUP, NULL, rows));
}

static void host_generate(struct model *model) {
    SCOPED(struct generator *, generator_free) generator = NULL;
    MUST(generator_new(&generator, model, &(struct generator_options){.max_new_tokens = NEW_TOKENS}));
    const struct generate_request request = {
        .prompt = it.prompt, .count = GROUP, .temperature = 1, .top_p = 1, .max_new_tokens = NEW_TOKENS};
    for (int i = 0; i < GENERATOR_ROWS / GROUP; i++) MUST(generator_add(generator, &request));
    for (int i = 0; i < 3; i++) MUST(generator_step(generator));
}

static void host_train(struct model *model) {
    struct train_completion completions[GROUP];
    double norm;
    for (int i = 0; i < GROUP; i++)
        completions[i] = (struct train_completion){.completion = it.completions[i], .advantage = 1};
    for (int i = 0; i < 2; i++) {
        struct train_result result;
        MUST(model_accumulate(model, &it.prompt, completions, GROUP, &(struct loss_options){0}, 1, &result));
        MUST(
            model_step(model, &(struct optimizer_options){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8}, &norm));
    }
    MUST(model_update_ema(model, 0.5));
}

// Runs the stage in a process of its own. Returns 0 if its memory grew by what was planned, within a fifth. The first
// pass may take two chunks of 32 MiB where one is enough later, which counts in bfloat16 only, where passes are small.
static int host_measure(const struct host_stage *stage) {
    struct memory_item items[MEMORY_ITEMS];
    struct memory_request request = stage->request;
    struct model_options options = stage->options;
    struct model *model = NULL;
    size_t count;
    double planned = 0;
    request.prompt_tokens = (int64_t)it.prompt.count;
    request.group_size = GROUP;
    request.new_tokens = NEW_TOKENS;
    request.on_cpu = true;
    request.threads = 2;
    request.medium_patches = 4 * request.prompt_tokens;
    MUST(model_memory_needs(it.dir, &request, items, &count));
    for (size_t i = 0; i < count; i++) planned += (double)items[i].bytes;
    const double before = status_bytes("VmRSS");
    options.device = "cpu";
    options.threads = 2;
    MUST(model_open(&model, it.dir, &options));
    stage->run(model);
    model_free(&model);
    const double peak = status_bytes("VmHWM") - before;
    print_message("%s on the CPU: %.1f MB planned, %.1f MB taken\n", stage->name, planned * 1e-6, peak * 1e-6);
    const double chunk = stage->request.precision ? 0 : 0x1p25;
    return fabs(planned - peak) > peak / 5 + chunk;
}

static void the_plan_holds_on_the_cpu(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); // a sanitizer has memory of its own
#endif
    static const struct host_stage stages[] = {
        {"refscore", {0}, {.precision = "float32"}, host_score},
        {"rollout", {0}, {.precision = "float32", .generates = true}, host_generate},
        {"optim",
         {.training = true, .train_vision = true, .ema = true},
         {.precision = "float32",
          .gradient_precision = "float32",
          .moment_precision = "float32",
          .training = true,
          .train_vision = true,
          .ema = true},
         host_train},
        {"refscore in bfloat16", {.precision = "bfloat16"}, {0}, host_score},
        {"refscore with adapters", {.lora = 64, .lora_alpha = 16}, {.precision = "float32", .lora = 64}, host_score},
        {"optim of adapters",
         {.training = true, .ema = true, .lora = 64, .lora_alpha = 16},
         {.precision = "float32",
          .gradient_precision = "float32",
          .moment_precision = "float32",
          .training = true,
          .ema = true,
          .lora = 64},
         host_train},
    };
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        int code = 0;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) _exit(host_measure(&stages[i]));
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_int_equal(code, 0);
    }
}

// What a checkpoint takes of the disk, but for the headers of its files.
static void the_plan_holds_for_a_checkpoint(void **state) {
    (void)state;
    static const struct {
        struct model_options options;
        struct memory_request request;
    } cases[] = {
        {{.precision = "float32", .gradient_precision = "float32", .moment_precision = "float32", .ema = true},
         {.precision = "float32", .gradient_precision = "float32", .moment_precision = "float32", .ema = true}},
        {{.precision = "bfloat16", .moment_precision = "bfloat16", .train_vision = true}, {.train_vision = true}},
        {{.precision = "bfloat16", .moment_precision = "float32", .train_vision = true, .ema = true},
         {.moment_precision = "float32", .train_vision = true, .ema = true}},
        {{.precision = "bfloat16", .moment_precision = "bfloat16", .ema = true, .lora = 4, .lora_alpha = 4},
         {.ema = true, .lora = 4}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_options options = cases[i].options;
        struct memory_request request = cases[i].request;
        struct model_file_bytes planned;
        SCOPED(struct model *, model_free) model = NULL;
        struct stat info;
        char path[128];
        uint64_t hash;
        options.device = "cpu";
        options.threads = 1;
        options.training = request.training = true;
        MUST(model_open(&model, it.dir, &options));
        MUST(model_disk_needs(it.dir, &request, &planned));
        assert_int_equal(planned.model + planned.state, model_saved_bytes(model, true));
        assert_int_equal(planned.state, model_saved_bytes(model, false));
        snprintf(path, sizeof path, "%s/published", it.dir);
        MUST(model_publish(model, false, path, &hash));
        assert_int_equal(stat(path, &info), 0);
        assert_true((uint64_t)info.st_size >= planned.published && (uint64_t)info.st_size < planned.published + 65536);
    }
}

// Nothing computes, so the logits are any numbers.
static void score_texts(struct classifier *classifier, const struct classifier_text *texts, size_t count) {
    double probabilities[GROUP];
    const status result = classifier_score(classifier, texts, count, probabilities);
    assert_true(result == OK || (result == DATAERR && strstr(fail_text(), "the logits are not finite")));
}

// The first texts are fewer than there may be, the last ones as many.
static void expect_classifier(const char *precision, size_t count, size_t tokens, const char *what) {
    static int64_t words[1 << 14];
    struct memory_item items[MEMORY_ITEMS];
    struct classifier_text texts[GROUP];
    struct classifier *classifier = NULL;
    size_t item_count;
    assert_true(count <= GROUP && tokens <= sizeof words / sizeof *words);
    it.memory->peak = it.memory->used;
    MUST(classifier_open(&classifier, it.dir,
                         &(struct classifier_options){.device = "emulated", .precision = precision}));
    for (size_t i = 0; i < count; i++) texts[i] = (struct classifier_text){words, tokens};
    score_texts(classifier, texts, 1);
    for (int i = 0; i < 2; i++) score_texts(classifier, texts, count);
    MUST(classifier_memory_needs(it.dir, precision, false, (int64_t)tokens, (int64_t)(count * tokens), items,
                                 &item_count));
    expect_peak(items, item_count, what);
    classifier_free(&classifier);
    assert_int_equal(it.memory->used, 0);
}

static void the_plan_holds_for_consistency(void **state) {
    (void)state;
    if (!it.memory) skip();
    expect_classifier(NULL, GROUP, 1024, "consistency"); // as many rows as a pass may have
    expect_classifier(NULL, 2, 12000, "consistency, a pair longer than a pass");
    expect_classifier("float32", 3, 2500, "consistency in float32"); // conversion of the weights takes some more
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plan_holds_for_refscore),
                                       cmocka_unit_test(the_plan_holds_for_refscore_that_writes_answers),
                                       cmocka_unit_test(the_plan_holds_for_rollout),
                                       cmocka_unit_test(the_plan_holds_for_optim)};
    int failed = 0;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        it.config_json = configs[i];
        failed += cmocka_run_group_tests(tests, setup, teardown);
    }
    const struct CMUnitTest classifier_tests[] = {cmocka_unit_test(the_plan_holds_for_consistency)};
    failed += cmocka_run_group_tests(classifier_tests, setup_classifier, teardown);
    const struct CMUnitTest host_tests[] = {cmocka_unit_test(the_plan_holds_on_the_cpu),
                                            cmocka_unit_test(the_plan_holds_for_a_checkpoint)};
    it.config_json = configs[0];
    return failed + cmocka_run_group_tests(host_tests, setup_host, teardown);
}
