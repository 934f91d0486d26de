// The sums of a step's gradients: leaves that begin at zero, added in the order in which they come, each element
// rounded once a leaf; and the norm, which is taken by fixed units. So neither depends on what computed which part of
// it.
#include "shared/model/qwen_vl/model_internal.h"
#include "tests/unit/model_case.h"

TEST(units_depend_on_the_number_of_elements_alone) {
    static const int64_t exact[][2] = {{1, 64}, {64, 64}, {262144, 64}, {262145, 128}, {544997376, 133056}};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) assert_int_equal(shard_unit(exact[i][0]), exact[i][1]);
    for (int64_t elements = 1; elements < INT64_C(1) << 40; elements += elements / 3 + 1) {
        const int64_t unit = shard_unit(elements);
        assert_true(unit % 64 == 0 && (elements + unit - 1) / unit <= SHARD_UNITS);
        assert_true(unit == 64 || (elements + unit - 65) / (unit - 64) > SHARD_UNITS); // the smallest that will do
    }
}

TEST(ranks_own_whole_units_of_a_bucket_as_many_as_the_others) {
    static const int counts[] = {1, 2, 3, 4, 7, 16, 64};
    for (int64_t elements = 64; elements < INT64_C(1) << 40; elements += (elements / 3 + 63) / 64 * 64) {
        const struct parameter_bucket bucket = {.offset = 640, .count = elements};
        const int64_t unit = shard_unit(elements);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int count = counts[c];
            int64_t end = bucket.offset, most = 0;
            for (int rank = 0; rank < count; rank++) {
                const struct param_piece piece = shard_piece(&bucket, rank, count);
                const int64_t own = piece.end - piece.first, units = (elements + unit - 1) / unit;
                assert_int_equal(piece.first, end);
                assert_int_equal((piece.first - bucket.offset) % unit, 0);
                assert_in_range((own + unit - 1) / unit, units / count, (units + count - 1) / count);
                end = piece.end;
                if (own > most) most = own;
            }
            assert_int_equal(end, bucket.offset + bucket.count);
            assert_in_range(shard_most(&bucket, count), most, most + unit - 1);
        }
    }
}

// The precisions of a model, of the gradients of matrices, and of their sums.
struct precisions {
    const char *model, *gradients, *sums;
};

// A model in training, on the CPU or emulated.
static struct model *sums_model(struct model_case *it, const char *device, struct precisions precisions, bool vision) {
    return case_model(it, &(struct model_options){.device = device,
                                                  .threads = 2,
                                                  .precision = precisions.model,
                                                  .gradient_precision = precisions.gradients,
                                                  .sum_precision = precisions.sums,
                                                  .moment_precision = "float32",
                                                  .training = true,
                                                  .train_vision = vision,
                                                  .ema = true});
}

static const struct param_array *sums_of(const struct model *model) {
    return &model->trainer.optimizer.grads.sums;
}

TEST(buckets_cover_the_table_and_a_block_is_one) {
    for (int c = 0; c < ALL_CASES; c++) {
        SCOPED(struct model_case, case_close) it = case_open(case_names[c]);
        SCOPED(struct model *, model_free)
        model = sums_model(&it, "cpu", (struct precisions){"float32", "float32", NULL}, true);
        const struct parameter_table *table = &model->weights->base.table;
        const struct transformer *text = &model->weights->text;
        int64_t end = 0;
        size_t streamed = 0;
        for (size_t i = 0; i < table->bucket_count; i++) {
            const struct parameter_bucket *bucket = &table->buckets[i];
            const struct parameter_range *range = &table->ranges[bucket->range];
            assert_int_equal(bucket->offset, end);
            end += bucket->count;
            assert_true(bucket->count > 0 && bucket->count % 64 == 0);
            assert_true(bucket->offset >= range->offset && end <= range->offset + range->count);
            for (int b = 0; b < text->block_count; b++) // all matrices of a block or none
                assert_int_equal(text->blocks[b].qkv.offset == bucket->offset,
                                 text->blocks[b].down.offset >= bucket->offset && text->blocks[b].down.offset < end);
            streamed += bucket->use != BUCKET_ANY_TIME;
        }
        assert_int_equal(end, table->elements);
        const bool tied = !model->weights->lm_head.count;
        assert_int_equal(streamed, (size_t)text->block_count + (tied ? 0 : 2));
    }
}

// One of three leaves: the case's group, its first two completions, or a text without media.
static void leaf_accumulate(struct model_case *it, struct model *model, int leaf) {
    static const int64_t words[] = {3, 4, 5, 6, 7};
    const struct model_prompt text = {words, sizeof words / sizeof *words, NULL, 0};
    struct train_completion completions[COMPLETIONS];
    struct train_result result;
    case_step(it, json_item(key_of(it->golden, "steps"), 0), completions);
    MUST(model_accumulate(model, leaf == 2 ? &text : &it->prompt, completions, leaf ? 2 : COMPLETIONS,
                          &(struct loss_options){0}, 0.3 + leaf, &result));
}

// All sums as they are, in the arena.
static struct buf sums_take(struct model_case *it, const struct model *model) {
    const struct param_array *sums = sums_of(model);
    struct buf out = {0};
    for (int i = 0; i < sums->ranges; i++) {
        const struct tensor range = param_range(sums, i);
        const size_t bytes = (size_t)range.columns * element_size(range.type);
        char *data = arena_alloc(&it->arena, bytes);
        MUST(model->backend->ops->download(model->backend, data, range.type, range));
        buf_append(&out, data, bytes);
    }
    return out;
}

static float sums_value(enum element type, const char *data, size_t i) {
    uint32_t bits = 0;
    if (type == ELEMENT_F32) memcpy(&bits, data + 4 * i, 4);
    if (type == ELEMENT_BF16) bits = (uint32_t)(uint8_t)data[2 * i + 1] << 24 | (uint32_t)(uint8_t)data[2 * i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// The sum of two numbers, rounded to nearest, ties to even, as the type says; its bits.
static uint32_t sums_added(enum element type, float a, float b) {
    const float sum = a + b;
    uint32_t bits;
    memcpy(&bits, &sum, 4);
    return type == ELEMENT_F32 ? bits : (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
}

// Three leaves one after another, and each of them alone in a model of its own, whose sum has all of its bits.
static void expect_sums_of_leaves(const char *name, const char *device, struct precisions precisions, bool vision) {
    static const int order[] = {1, 0, 2, 0};
    SCOPED(struct model_case, case_close) it = case_open(name);
    struct precisions exact = precisions;
    exact.sums = "float32";
    struct buf alone[3];
    for (int leaf = 0; leaf < 3; leaf++) {
        SCOPED(struct model *, model_free) model = sums_model(&it, device, exact, vision);
        leaf_accumulate(&it, model, leaf);
        alone[leaf] = sums_take(&it, model);
    }
    SCOPED(struct model *, model_free) model = sums_model(&it, device, precisions, vision);
    const struct param_array *sums = sums_of(model);
    SCOPED(struct buf, buf_release) got = {0};
    for (size_t leaf = 0; leaf < sizeof order / sizeof *order; leaf++) leaf_accumulate(&it, model, order[leaf]);
    got = sums_take(&it, model);
    for (int range = 0; range < sums->ranges; range++) {
        const struct tensor row = param_range(sums, range);
        const size_t begin = sums->starts[range], first = (size_t)sums->table->ranges[range].offset;
        for (size_t i = 0; i < (size_t)row.columns; i++) {
            float want = 0;
            for (size_t leaf = 0; leaf < sizeof order / sizeof *order; leaf++) {
                const uint32_t bits =
                    sums_added(row.type, want, sums_value(ELEMENT_F32, alone[order[leaf]].data, first + i));
                memcpy(&want, &bits, 4);
            }
            const float found = sums_value(row.type, got.data + begin, i);
            if (found != want) print_error("range %d, element %zu: %g, not %g\n", range, i, found, want);
            assert_true(found == want && !signbit(found) == !signbit(want));
        }
    }
    const struct parameter_range *last = &sums->table->ranges[sums->ranges - 1];
    for (size_t i = 0; i < sums->table->bucket_count; i++) { // no bucket is left out
        const struct parameter_bucket *bucket = &sums->table->buckets[i];
        bool some = bucket->offset >= last->offset + last->count;
        for (int64_t k = bucket->offset; k < bucket->offset + bucket->count && !some; k++)
            some = sums_value(ELEMENT_F32, alone[0].data, (size_t)k) != 0;
        assert_true(some);
    }
    for (int leaf = 0; leaf < 3; leaf++) buf_release(&alone[leaf]);
}

TEST(a_step_is_the_sum_of_its_leaves_to_the_bit) {
    for (int c = 0; c < CASES; c++) {
        const char *one = c % 2 ? "float32" : "bfloat16", *other = c % 2 ? "bfloat16" : "float32";
        expect_sums_of_leaves(case_names[c], "cpu", (struct precisions){"float32", "float32", NULL}, c != 1);
        expect_sums_of_leaves(case_names[c], "cpu", (struct precisions){"float32", "bfloat16", NULL}, c != 2);
        expect_sums_of_leaves(case_names[c], "cpu", (struct precisions){"float32", one, other}, true);
    }
    if (!case_emulator()) return;
    expect_sums_of_leaves("even", "emulated", (struct precisions){"float32", "float32", NULL}, true);
    expect_sums_of_leaves("even", "emulated", (struct precisions){"bfloat16", "bfloat16", NULL}, true);
    if (!EMULATOR_IS_FAST) return;
    expect_sums_of_leaves("pairs", "emulated", (struct precisions){"float32", "bfloat16", NULL}, true);
    expect_sums_of_leaves("clip", "emulated", (struct precisions){"float32", "bfloat16", "float32"}, true);
    expect_sums_of_leaves("clip", "emulated", (struct precisions){"bfloat16", "bfloat16", NULL}, false);
}

// After a step, and after a leaf that was given up, nothing is left of what was there before.
TEST(a_step_begins_at_zero) {
    SCOPED(struct model_case, case_close) it = case_open("clip");
    SCOPED(struct model *, model_free)
    model = sums_model(&it, "cpu", (struct precisions){"float32", "bfloat16", NULL}, true);
    struct step_sums *sums = &model->trainer.optimizer.grads;
    const struct optimizer_options still = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8}; // with a rate of 0
    double norm;
    leaf_accumulate(&it, model, 0);
    SCOPED(struct buf, buf_release) first = sums_take(&it, model);
    MUST(model_step(model, &still, &norm));
    MUST(step_sums_begin(sums, GROUP_VISION + 1));
    const struct fused_param *params[] = {&model->weights->embedding, &model->weights->text.blocks[1].out,
                                          &model->weights->norm, &model->weights->patch_embed};
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        const struct tensor grad = step_sums_grad(sums, params[i]);
        float *ones = arena_alloc(&it.arena, (size_t)(grad.rows * grad.columns) * sizeof *ones);
        for (int64_t k = 0; k < grad.rows * grad.columns; k++) ones[k] = 1;
        MUST(model->backend->ops->upload(model->backend, grad, ones, ELEMENT_F32));
    }
    leaf_accumulate(&it, model, 0);
    SCOPED(struct buf, buf_release) again = sums_take(&it, model);
    assert_int_equal(first.size, again.size);
    assert_memory_equal(first.data, again.data, first.size);
}

// Squares of pieces that begin and end at units, as any number of processes would have them.
static void expect_norm_of_pieces(const char *device, const char *precision) {
    SCOPED(struct model_case, case_close) it = case_open("clip");
    SCOPED(struct model *, model_free)
    model = sums_model(&it, device, (struct precisions){"float32", precision, NULL}, true);
    const struct param_array *sums = sums_of(model);
    double norm;
    leaf_accumulate(&it, model, 0);
    leaf_accumulate(&it, model, 2);
    MUST(step_sums_norm(&model->trainer.optimizer.grads, &norm));
    for (int64_t pieces = 1; pieces <= 16; pieces += pieces / 2 + 1) {
        double squares = 0;
        for (size_t i = 0; i < sums->table->bucket_count; i++) {
            const struct parameter_bucket *bucket = &sums->table->buckets[i];
            const int64_t unit = shard_unit(bucket->count), units = (bucket->count + unit - 1) / unit;
            const struct tensor row = param_slice(sums, shard_own(bucket, NULL));
            for (int64_t piece = 0; piece < pieces; piece++) {
                double own[SHARD_UNITS];
                const int64_t first = units * piece / pieces, end = units * (piece + 1) / pieces;
                const int64_t last = end * unit < bucket->count ? end * unit : bucket->count;
                const struct square_range range = {tensor_columns(row, first * unit, last - first * unit), unit};
                MUST(model->backend->ops->square_sums(model->backend, own, &range, 1));
                for (int64_t u = first; u < end; u++) squares += own[u - first];
            }
        }
        assert_true(norm == sqrt(squares));
    }
}

TEST(the_norm_is_the_same_wherever_units_are_added) {
    expect_norm_of_pieces("cpu", "float32");
    expect_norm_of_pieces("cpu", "bfloat16");
    if (case_emulator()) expect_norm_of_pieces("emulated", "float32");
}
