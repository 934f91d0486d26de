// The leaves of a step: parts of groups, in one order.
#include "stages/optim/optim.h"
#include "tests/unit/unit.h"

#include <math.h>

enum { GROUPS = 6, MOST = 256 };

// Groups of 1 to 9 completions; some have no gradient, and some are as expensive as others.
static size_t step_leaves(struct leaf *out, int parts) {
    static const int64_t prompts[GROUPS] = {40, 7, 40, 100, 7, 13};
    static const size_t completions[GROUPS] = {4, 9, 4, 1, 8, 3};
    static const size_t lengths[9] = {5, 1, 9, 2, 2, 30, 4, 4, 1};
    size_t count = 0;
    for (size_t g = 0; g < GROUPS; g++) leaf_divide(out, &count, g, parts, prompts[g], lengths, completions[g], g != 3);
    assert_true(count <= GROUPS * (size_t)parts && count <= MOST);
    return count;
}

TEST(parts_are_runs_of_all_completions) {
    static const size_t completions[GROUPS] = {4, 9, 4, 1, 8, 3};
    struct leaf leaves[MOST];
    for (int parts = 1; parts <= 12; parts++) {
        const size_t count = step_leaves(leaves, parts);
        size_t at = 0;
        for (size_t g = 0; g < GROUPS; g++) {
            size_t next = 0, shortest = SIZE_MAX, longest = 0;
            for (; at < count && leaves[at].group == g; at++) {
                assert_int_equal(leaves[at].first, next);
                next += leaves[at].count;
                if (leaves[at].count < shortest) shortest = leaves[at].count;
                if (leaves[at].count > longest) longest = leaves[at].count;
            }
            assert_int_equal(next, completions[g]);
            assert_true(shortest > 0 && longest - shortest <= 1);
        }
        assert_int_equal(at, count);
    }
}

TEST(the_longest_leaf_comes_first_and_one_without_gradient_counts_a_third) {
    static const struct {
        size_t group;
        int64_t cost;
    } want[GROUPS] = {{1, 195}, {4, 192}, {0, 171}, {2, 171}, {3, 105}, {5, 84}};
    struct leaf leaves[MOST];
    const size_t count = step_leaves(leaves, 1);
    leaf_sort(leaves, count);
    assert_int_equal(count, GROUPS);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(leaves[i].group, want[i].group);
        assert_int_equal(leaves[i].cost, want[i].cost);
    }
}

// However they stood before: by cost, then by group, then by part.
TEST(the_order_is_that_of_the_leaves_alone) {
    for (int parts = 1; parts <= 5; parts += 2) {
        struct leaf leaves[MOST], other[MOST];
        const size_t count = step_leaves(leaves, parts);
        leaf_sort(leaves, count);
        for (size_t i = 1; i < count; i++) {
            const struct leaf *a = &leaves[i - 1], *b = &leaves[i];
            assert_true(a->cost > b->cost || (a->cost == b->cost && a->group < b->group) ||
                        (a->cost == b->cost && a->group == b->group && a->part < b->part));
        }
        for (size_t turn = 0; turn < count; turn++) { // turned, and backwards
            for (size_t i = 0; i < count; i++) other[turn % 2 ? i : count - 1 - i] = leaves[(i + turn) % count];
            leaf_sort(other, count);
            for (size_t i = 0; i < count; i++)
                assert_true(other[i].group == leaves[i].group && other[i].part == leaves[i].part);
        }
    }
}

TEST(a_group_says_what_its_parts_say) {
    const struct train_result parts[] = {
        {.loss = 1,
         .nll = 2,
         .logprob_diff_mean = 0.5,
         .logprob_diff_max = 0.75,
         .kl = 3,
         .entropy = 4,
         .tokens = 10,
         .compared = 10,
         .prompt_tokens = 7},
        {.loss = -3, .nll = 1, .kl = 1, .entropy = 2, .tokens = 30, .prompt_tokens = 7},
        {.loss = 0.5,
         .nll = 0,
         .logprob_diff_mean = 1.5,
         .logprob_diff_max = 3,
         .kl = 0,
         .entropy = 1,
         .tokens = 40,
         .compared = 30,
         .prompt_tokens = 7},
    };
    struct train_result all = {0};
    leaf_add_result(&all, &(struct train_result){0}); // a part without a token
    leaf_add_result(&all, &parts[0]);
    assert_memory_equal(&all, &parts[0], sizeof all);
    leaf_add_result(&all, &parts[1]);
    leaf_add_result(&all, &parts[2]);
    assert_true(all.loss == -1.5 && all.nll == 3 && all.logprob_diff_max == 3);
    assert_true(all.tokens == 80 && all.compared == 40 && all.prompt_tokens == 7);
    assert_true(fabs(all.logprob_diff_mean - (0.5 * 10 + 1.5 * 30) / 40) < 1e-12);
    assert_true(fabs(all.kl - (3.0 * 10 + 1.0 * 30) / 80) < 1e-12);
    assert_true(fabs(all.entropy - (4.0 * 10 + 2.0 * 30 + 40) / 80) < 1e-12);
}

// ---- bytes ----

enum { TOKENS = 40, FRAMES = 2, HEIGHT = 6, WIDTH = 5, PIXELS = FRAMES * HEIGHT * WIDTH * 3 };

// Three completions, each with other flags; a clip and an image.
static void leaf_make(struct leaf_input *leaf) {
    static int64_t tokens[TOKENS];
    static float logprobs[TOKENS];
    static uint8_t pixels[PIXELS];
    static const struct model_medium media[2] = {{true, FRAMES, HEIGHT, WIDTH, 0.5, pixels},
                                                 {false, 1, HEIGHT, WIDTH, NAN, pixels + 7}};
    static struct train_completion completions[3];
    for (int i = 0; i < TOKENS; i++) tokens[i] = 1000 + i;
    for (int i = 0; i < TOKENS; i++) logprobs[i] = -0.5F * (float)i;
    for (int i = 0; i < PIXELS; i++) pixels[i] = (uint8_t)(i * 37);
    completions[0] = (struct train_completion){
        .completion = {tokens + 3, 5}, .advantage = -1.25, .old_logprobs = logprobs + 1, .stale = true};
    completions[1] = (struct train_completion){.completion = {tokens + 9, 1},
                                               .advantage = 0.1,
                                               .ref_logprobs = logprobs + 30,
                                               .kl_excluded = true,
                                               .has_answer = true,
                                               .answer = {0, 1}};
    completions[2] = (struct train_completion){.completion = {tokens + 20, 7},
                                               .old_logprobs = logprobs + 2,
                                               .ref_logprobs = logprobs + 11,
                                               .has_answer = true,
                                               .answer = {2, 6}};
    *leaf = (struct leaf_input){.group = "e0-000017",
                                .prompt = {tokens, 13, media, 2},
                                .completions = completions,
                                .count = 3,
                                .loss = {.kl_beta = 0.1,
                                         .clip_low = 0.2,
                                         .clip_high = 0.3,
                                         .group_size = 8,
                                         .kl_separate = true,
                                         .token_weight = 1.0 / 3},
                                .weight = 0.7};
}

static void expect_floats(const float *a, const float *b, size_t count) {
    assert_true(!a == !b);
    if (a) assert_memory_equal(a, b, count * sizeof *a);
}

TEST(a_leaf_is_the_same_after_it_was_sent) {
    SCOPED(struct buf, buf_release) bytes = {0};
    SCOPED(struct arena, arena_release) arena = {0};
    struct leaf_input a, b;
    leaf_make(&a);
    MUST(leaf_write(&a, &bytes));
    MUST(leaf_read(&b, &arena, bytes.data, bytes.size));
    assert_string_equal(a.group, b.group);
    assert_int_equal(a.count, b.count);
    assert_true(a.weight == b.weight && a.loss.kl_beta == b.loss.kl_beta && a.loss.clip_low == b.loss.clip_low);
    assert_true(a.loss.clip_high == b.loss.clip_high && a.loss.token_weight == b.loss.token_weight);
    assert_true(a.loss.group_size == b.loss.group_size && a.loss.kl_separate == b.loss.kl_separate);
    assert_int_equal(a.prompt.count, b.prompt.count);
    assert_memory_equal(a.prompt.tokens, b.prompt.tokens, a.prompt.count * sizeof *a.prompt.tokens);
    assert_int_equal(a.prompt.media_count, b.prompt.media_count);
    for (size_t i = 0; i < a.prompt.media_count; i++) {
        const struct model_medium *one = &a.prompt.media[i], *other = &b.prompt.media[i];
        assert_true(one->video == other->video && one->frames == other->frames && one->height == other->height);
        assert_true(one->width == other->width && isnan(one->seconds_per_grid) == isnan(other->seconds_per_grid));
        assert_true(isnan(one->seconds_per_grid) || one->seconds_per_grid == other->seconds_per_grid);
        assert_memory_equal(one->pixels, other->pixels, (size_t)one->frames * HEIGHT * WIDTH * 3);
    }
    for (size_t i = 0; i < a.count; i++) {
        const struct train_completion *one = &a.completions[i], *other = &b.completions[i];
        const size_t count = one->completion.count;
        assert_int_equal(count, other->completion.count);
        assert_memory_equal(one->completion.tokens, other->completion.tokens, count * sizeof(int64_t));
        expect_floats(one->old_logprobs, other->old_logprobs, count);
        expect_floats(one->ref_logprobs, other->ref_logprobs, count);
        assert_true(one->advantage == other->advantage && one->stale == other->stale);
        assert_true(one->kl_excluded == other->kl_excluded && one->has_answer == other->has_answer);
        assert_true(one->answer.first == other->answer.first && one->answer.end == other->answer.end);
    }
}

// Reads everything that a leaf refers to, for the sanitizers.
static uint64_t leaf_touch(const struct leaf_input *leaf) {
    uint64_t sum = strlen(leaf->group);
    for (size_t i = 0; i < leaf->prompt.count; i++) sum += (uint64_t)leaf->prompt.tokens[i];
    for (size_t i = 0; i < leaf->count; i++) {
        const struct train_completion *completion = &leaf->completions[i];
        assert_true(completion->answer.first <= completion->answer.end);
        assert_true(completion->answer.end <= completion->completion.count);
        for (size_t t = 0; t < completion->completion.count; t++) {
            sum += (uint64_t)completion->completion.tokens[t];
            if (completion->old_logprobs) sum += completion->old_logprobs[t] < -1;
            if (completion->ref_logprobs) sum += completion->ref_logprobs[t] < -1;
        }
    }
    for (size_t i = 0; i < leaf->prompt.media_count; i++) {
        const struct model_medium *medium = &leaf->prompt.media[i];
        const size_t size = (size_t)medium->frames * (size_t)medium->height * (size_t)medium->width * 3;
        for (size_t p = 0; p < size; p++) sum += medium->pixels[p];
    }
    return sum;
}

// Reads a copy that ends where its memory ends.
static status leaf_read_copy(const char *data, size_t size) {
    SCOPED(struct arena, arena_release) arena = {0};
    struct leaf_input leaf;
    char *copy = malloc(size ? size : 1);
    if (size) memcpy(mem_checked(copy), data, size);
    const status result = leaf_read(&leaf, &arena, copy, size);
    if (result == OK) assert_true(leaf_touch(&leaf) > 0);
    free(copy);
    return result;
}

TEST(a_leaf_that_is_damaged_is_refused) {
    SCOPED(struct buf, buf_release) bytes = {0};
    struct leaf_input leaf;
    leaf_make(&leaf);
    MUST(leaf_write(&leaf, &bytes));
    for (size_t size = 0; size < bytes.size; size++) {
        assert_int_equal(leaf_read_copy(bytes.data, size), BUG);
        assert_non_null(strstr(fail_text(), "is cut short"));
    }
    buf_append(&bytes, "", 1);
    assert_int_equal(leaf_read_copy(bytes.data, bytes.size), BUG);
    assert_non_null(strstr(fail_text(), "is longer than it says"));
    bytes.size--;
    // The numbers before the tokens: one head, two media, three completions. A real number may have any value.
    const size_t numbers = (11 + 2 * 5 + 3 * 5) * 8;
    size_t refused = 0;
    for (size_t at = 0; at < numbers; at++)
        for (int bit = 0; bit < 8; bit++) {
            bytes.data[at] = (char)(bytes.data[at] ^ 1 << bit);
            refused += leaf_read_copy(bytes.data, bytes.size) != OK;
            bytes.data[at] = (char)(bytes.data[at] ^ 1 << bit);
        }
    // Of the integers that say sizes every bit counts.
    assert_in_range(refused, (4 + 2 * 3 + 3) * 64, numbers * 8);
    MUST(leaf_read_copy(bytes.data, bytes.size));
}
