// The leaves of a step: parts of groups, in one order.
#include "stages/optim/leaf.h"
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
