// What training keeps of its forward pass, and the memory that it needs: what is kept is not computed again, and the
// gradients have the same bits whatever is kept. The products are counted by a table of operations in front of the
// backend's.
#include "shared/model/qwen_vl/model_internal.h"
#include "tests/unit/model_case.h"

static struct {
    const struct operations *ops; // the backend's
    struct operations table;
    int products, attentions, patches; // calls of linear, attention, patchify
    uint64_t memory;                   // what info tells of the device's memory, all of it free
} counter;

static status counted_linear(struct backend *backend, struct tensor out, struct tensor in, struct weight *weight,
                             struct tensor bias, bool add) {
    counter.products++;
    return counter.ops->linear(backend, out, in, weight, bias, add);
}

static status counted_attention(struct backend *backend, struct tensor out, struct tensor qkv, float scale,
                                struct kv_cache *cache, int layer, const struct attention_plan *plan,
                                struct tensor lse) {
    counter.attentions++;
    return counter.ops->attention(backend, out, qkv, scale, cache, layer, plan, lse);
}

static status counted_patchify(struct backend *backend, struct tensor out, struct tensor frames,
                               const struct patch_shape *shape) {
    counter.patches++;
    return counter.ops->patchify(backend, out, frames, shape);
}

static status counted_info(struct backend *backend, struct backend_info *out) {
    TRY(counter.ops->info(backend, out));
    out->memory = out->memory_free = counter.memory;
    return OK;
}

static void count_operations(struct model *model) {
    counter.ops = model->backend->ops;
    counter.table = *counter.ops;
    counter.table.linear = counted_linear;
    counter.table.attention = counted_attention;
    counter.table.patchify = counted_patchify;
    counter.table.info = counted_info;
    model->backend->ops = &counter.table;
}

// What one group's gradient took, and the gradient.
struct pass {
    int products, attentions, patches;
    struct buf grads; // the file that model_save_grads writes
};

static void take_pass(struct model_case *it, struct model *model, struct pass *out) {
    struct train_completion completions[COMPLETIONS];
    struct json *step = json_item(key_of(it->golden, "steps"), 0);
    case_step(it, step, completions);
    struct train_result result;
    count_operations(model);
    counter.products = counter.attentions = counter.patches = 0;
    MUST(model_accumulate(model, &it->prompt, completions, COMPLETIONS, &(struct loss_options){0}, 1, &result));
    *out = (struct pass){counter.products, counter.attentions, counter.patches, {0}};
    model->backend->ops = counter.ops;
    char *dir = unit_new_directory(), *path = path_join(&it->arena, dir, "gradients");
    MUST(model_save_grads(model, path));
    MUST(file_read(path, &out->grads));
    MUST(dir_remove(dir));
}

static struct model *training_model(struct model_case *it, const char *precision, int kept, bool vision) {
    return case_model(it,
                      &(struct model_options){
                          .precision = precision, .training = true, .train_vision = vision, .kept_activations = kept});
}

static void expect_same_grads(struct pass *pass, const struct pass *other) {
    assert_int_equal(pass->grads.size, other->grads.size);
    assert_memory_equal(pass->grads.data, other->grads.data, pass->grads.size);
    buf_release(&pass->grads);
}

static bool computes(const char *precision) {
    struct backend *backend = NULL;
    MUST(backend_open(&backend, &(struct backend_options){.device = "cpu"}));
    bool can = backend->ops->supports(backend, strcmp(precision, "float32") == 0 ? ELEMENT_F32 : ELEMENT_BF16) == OK;
    backend_close(&backend);
    if (!can) print_message("left out: %s\n", precision);
    return can;
}

// Level 1 spares the products of query, key and value and of attention's output, and attention itself; level 2 spares
// gate_up's product, too. Without a level the CPU keeps as much as level 0.
static void levels_agree(const char *precision) {
    for (int c = 0; c < CASES && computes(precision); c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        struct pass pass, first = {0};
        for (int level = 0; level <= 3; level++) {
            SCOPED(struct model *, model_free)
            model = training_model(&it, precision, level < 3 ? level : -1, c % 2 == 0);
            int layers = model->config.text.num_hidden_layers;
            counter.memory = 0;
            take_pass(&it, model, level ? &pass : &first);
            if (level) {
                int kept = level % 3;
                assert_int_equal(first.products - pass.products, kept == 2 ? 3 * layers : kept == 1 ? 2 * layers : 0);
                assert_int_equal(first.attentions - pass.attentions, kept ? layers : 0);
                expect_same_grads(&pass, &first);
            }
        }
        buf_release(&first.grads);
    }
}

TEST(every_level_gives_the_same_bits_in_float32) {
    levels_agree("float32");
}

TEST(every_level_gives_the_same_bits_in_bfloat16) {
    levels_agree("bfloat16");
}

// On a device with memory of its own, -1 keeps what there is room for: more and more layers at the highest level.
TEST(as_much_is_kept_as_there_is_memory_for) {
    SCOPED(struct model_case, case_close) it = case_open("even");
    struct pass least, pass;
    struct model *model = training_model(&it, "float32", 0, false);
    int layers = model->config.text.num_hidden_layers, seen = 0, between = 0;
    counter.memory = 0;
    take_pass(&it, model, &least);
    size_t least_peak = model->workspace.peak;
    model_free(&model);
    for (size_t limit = 1 << 15; limit < 1 << 23; limit += limit / 8) {
        model = training_model(&it, "float32", -1, false);
        counter.memory = model->backend_info.memory = 80u << 20;
        model->workspace_limit = limit;
        take_pass(&it, model, &pass);
        int spared = least.products - pass.products;
        assert_in_range(spared, seen, 3 * layers);
        between += spared % layers != 0; // some layers keep more than others
        seen = spared;
        assert_in_range(model->workspace.peak, least_peak, (limit > least_peak ? limit : least_peak) + 64 * 256);
        expect_same_grads(&pass, &least);
        model_free(&model);
    }
    assert_int_equal(seen, 3 * layers);
    assert_true(between > 0);

    // The limit itself is found before the first pass, and leaves a quarter of what is free.
    model = training_model(&it, "float32", -1, false);
    model->backend_info.memory = counter.memory;
    take_pass(&it, model, &pass);
    assert_in_range(model->workspace_limit, 60u << 20, (60u << 20) + workspace_size(&model->workspace));
    expect_same_grads(&pass, &least);
    model_free(&model);
    buf_release(&least.grads);
}

// The bytes by which -1 decides are those that are allocated, but for the padding of each tensor.
TEST(kept_bytes_are_those_that_are_allocated) {
    SCOPED(struct model_case, case_close) it = case_open("pairs");
    SCOPED(struct model *, model_free) model = training_model(&it, "float32", 0, true);
    struct forward_state fwd = {.backend = model->backend,
                                .type = model->weights->base.type,
                                .transformer = &model->weights->text,
                                .workspace = &model->workspace,
                                .rows = 333};
    for (enum kept_level level = 0; level < KEPT_LEVELS; level++) {
        struct block_activations kept;
        size_t before = model->workspace.live;
        MUST(block_keep(&fwd, level, &kept));
        size_t bytes = block_kept_bytes(fwd.transformer, ELEMENT_F32, fwd.rows, level);
        assert_in_range(model->workspace.live - before, bytes, bytes + 8 * 256);
        workspace_restore(&model->workspace, (struct workspace_mark){0});
    }
}

// The tower's forward pass is computed once if there is room for the inputs of its blocks: on the CPU, if an earlier
// pass has needed as much. Its patches are made again for the gradient of their embedding.
TEST(the_tower_is_computed_once) {
    counter.memory = 0;
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        struct pass twice, once, frozen;
        struct model *model = training_model(&it, "float32", 0, false);
        take_pass(&it, model, &frozen);
        model_free(&model);
        int chunks = frozen.patches;
        model = training_model(&it, "float32", 0, true);
        int depth = model->config.vision.depth;
        take_pass(&it, model, &twice);
        model_free(&model);
        model = training_model(&it, "float32", 0, true);
        model->workspace.peak = 64 << 20;
        take_pass(&it, model, &once);
        model_free(&model);
        // The backward pass: a block's three products again, and the merger's first.
        assert_int_equal(once.products - frozen.products, chunks * (3 * depth + 1));
        assert_int_equal(once.attentions - frozen.attentions, chunks * depth);
        assert_int_equal(once.patches, 2 * chunks);
        assert_int_equal(twice.products - once.products,
                         chunks * (4 * depth + 3)); // and the patches', and the merger's
        assert_int_equal(twice.attentions - once.attentions, chunks * depth);
        assert_int_equal(twice.patches, 3 * chunks);
        expect_same_grads(&once, &twice);
        buf_release(&twice.grads);
        buf_release(&frozen.grads);
    }
}

// A prompt of a small image and a larger one: the larger one needs a larger cache while the small one is kept.
static void add_images(struct model_case *it, const struct model_info *info, struct model_medium media[2]) {
    int unit = info->patch_size * info->spatial_merge_size;
    int64_t *tokens = arena_alloc(&it->arena, 64 * sizeof *tokens);
    size_t count = 0;
    for (int i = 0; i < 2; i++) {
        int side = i ? 6 : 1;
        size_t bytes = (size_t)3 * (size_t)(side * unit) * (size_t)(side * unit);
        uint8_t *pixels = arena_alloc(&it->arena, bytes);
        for (size_t k = 0; k < bytes; k++) pixels[k] = (uint8_t)(k * 37 % 251);
        media[i] = (struct model_medium){.frames = 1, .height = side * unit, .width = side * unit, .pixels = pixels};
        tokens[count++] = info->vision_start_token_id;
        for (int k = 0; k < side * side; k++) tokens[count++] = info->image_token_id;
        tokens[count++] = info->vision_end_token_id;
    }
    it->prompt = (struct model_prompt){tokens, count, media, 2};
}

TEST(a_larger_image_follows) {
    SCOPED(struct model_case, case_close) it = case_open("even");
    struct model_medium media[2];
    struct pass twice, once;
    counter.memory = 0;
    struct model *model = training_model(&it, "float32", 0, true);
    add_images(&it, model_get_info(model), media);
    take_pass(&it, model, &twice);
    model_free(&model);
    model = training_model(&it, "float32", 0, true);
    model->workspace.peak = 64 << 20;
    take_pass(&it, model, &once);
    assert_true(once.products < twice.products);
    expect_same_grads(&once, &twice);
    model_free(&model);
    buf_release(&twice.grads);
}

static uint64_t item_bytes(const struct memory_item *items, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(items[i].name, name) == 0) return items[i].bytes;
    return 0;
}

// What `caravan plan` says before anything runs, against what is then allocated.
TEST(needs_are_those_of_a_pass) {
    counter.memory = 0;
    for (int c = 0; c < CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        struct memory_request request = {.precision = "float32",
                                         .gradient_precision = "float32",
                                         .moment_precision = "float32",
                                         .training = true,
                                         .train_vision = true,
                                         .prompt_tokens = (int64_t)it.prompt.count,
                                         .group_size = COMPLETIONS,
                                         .new_tokens = MAX_TOKENS};
        struct memory_item items[MEMORY_ITEMS];
        size_t count;
        MUST(model_memory_needs(it.dir, &request, items, &count));
        struct pass pass;
        struct model *model = training_model(&it, "float32", 0, true);
        take_pass(&it, model, &pass);
        uint64_t bytes = (uint64_t)model->weights->base.table.elements * sizeof(float);
        assert_int_equal(item_bytes(items, count, "weights"), bytes);
        assert_int_equal(item_bytes(items, count, "sums of gradients"), bytes);
        const uint64_t group = item_bytes(items, count, "gradients of a group"); // its blocks have one place
        assert_in_range(group, bytes / 16, bytes);
        assert_int_equal(item_bytes(items, count, "moments"), 2 * bytes);
        assert_int_equal(item_bytes(items, count, "remainders of the weights"), 0);
        assert_int_equal(item_bytes(items, count, "reference"), 0);
        uint64_t work = item_bytes(items, count, "working memory") + item_bytes(items, count, "the tower's inputs");
        assert_in_range(model->workspace.peak, work / 8, work + work / 8 + 200 * 256); // indices, frames and padding
        buf_release(&pass.grads);
        model_free(&model);

        request.precision = request.gradient_precision = request.moment_precision = NULL;
        request.ema = true;
        MUST(model_memory_needs(it.dir, &request, items, &count));
        assert_int_equal(item_bytes(items, count, "weights"), bytes / 2);
        assert_int_equal(item_bytes(items, count, "remainders of the weights"), bytes / 2);
        assert_int_equal(item_bytes(items, count, "reference"), bytes);
        assert_in_range(item_bytes(items, count, "moments"), bytes, 2 * bytes - 1); // those of vectors are float32
        const uint64_t sums = item_bytes(items, count, "sums of gradients");
        request.sum_precision = "float32";
        MUST(model_memory_needs(it.dir, &request, items, &count));
        assert_in_range(sums, bytes / 2, bytes - 1);
        assert_int_equal(item_bytes(items, count, "sums of gradients"), bytes);
        assert_in_range(item_bytes(items, count, "gradients of a group"), bytes / 32, group - 1);
    }
}

TEST(an_unknown_level_is_refused) {
    SCOPED(struct model_case, case_close) it = case_open("even");
    struct model *model = NULL;
    struct model_options options = {.device = "cpu", .training = true, .kept_activations = KEPT_LEVELS};
    assert_int_equal(model_open(&model, it.dir, &options), USAGE);
    options.kept_activations = -2;
    assert_int_equal(model_open(&model, it.dir, &options), USAGE);
}
