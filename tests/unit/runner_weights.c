// The runner with weights that change while a stage has groups: what was computed with them is neither stored nor sent.
#include "tests/unit/unit.h"

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/config/stage_kinds.h"
#include "shared/stage/runner.h"
#include "tests/support/groups.h"

enum { GROUPS = 3 };

// ---- a stage whose result is the version of its weights

struct scorer {
    int version; // of the weights that were loaded
    bool intact;
    int changes_at; // the weights change during this piece of work; -1: never
    int worked;
    struct group *held[GROUPS];
    int held_count;
};

static status scorer_work(void *state, struct group *group) {
    struct scorer *scorer = state;
    if (scorer->worked++ == scorer->changes_at) scorer->intact = false;
    GROUP_ARRAY(group, &group->advantages, 1);
    group->advantages.data[0] = scorer->version;
    return OK;
}

static uint64_t scorer_fingerprint(void *state) {
    const struct scorer *scorer = state;
    return (uint64_t)scorer->version;
}

static bool scorer_intact(void *state) {
    const struct scorer *scorer = state;
    return scorer->intact;
}

static int scorer_capacity(void *state) {
    const struct scorer *scorer = state;
    return GROUPS - scorer->held_count;
}

static status scorer_submit(void *state, struct group *group) {
    struct scorer *scorer = state;
    scorer->held[scorer->held_count++] = group;
    return OK;
}

static status scorer_poll(void *state, bool draining, struct group **done) {
    struct scorer *scorer = state;
    (void)draining;
    if (scorer->held_count == 0) return END;
    *done = scorer->held[--scorer->held_count];
    return scorer_work(scorer, *done);
}

static const struct option_table no_options = {.program = "caravan-test",
                                               .help = "a stage for tests",
                                               .common = common_options,
                                               .size = sizeof(struct common_options)};

static const struct stage one_by_one = {.name = "reward",
                                        .section = SECTION_REWARD,
                                        .fingerprint = scorer_fingerprint,
                                        .weights_intact = scorer_intact,
                                        .work = scorer_work};
static const struct stage side_by_side = {.name = "reward",
                                          .section = SECTION_REWARD,
                                          .fingerprint = scorer_fingerprint,
                                          .weights_intact = scorer_intact,
                                          .capacity = scorer_capacity,
                                          .submit = scorer_submit,
                                          .poll = scorer_poll};

// ---- a channel that loads the next weights when the stage has no group

struct source {
    struct scorer *scorer;
    struct held_group held[GROUPS];
    int taken;                 // groups that the stage has
    int delivered, returned;   // groups
    bool recalls;              // the stage has to give its weights back when it has all groups, once
    double of_version[GROUPS]; // of what was delivered
};

static status source_receive(void *self, int capacity, int timeout_ms, struct held_group **out) {
    struct source *source = self;
    (void)capacity;
    *out = NULL;
    for (int i = 0; i < GROUPS; i++)
        if (source->held[i].state == HELD_WAITING) *out = &source->held[i];
    if (!*out) return source->taken && timeout_ms == 0 ? OK : END;
    if (!source->scorer->intact && source->taken) {
        *out = NULL;
        return OK;
    }
    if (!source->scorer->intact) source->scorer->version++;
    source->scorer->intact = true;
    (*out)->state = HELD_WORKING;
    source->taken++;
    return OK;
}

static status source_deliver(void *self, struct held_group *held, status outcome) {
    struct source *source = self;
    assert_int_equal(outcome, OK);
    assert_int_equal(held->group->advantages.count, 1);
    source->of_version[source->delivered++] = held->group->advantages.data[0];
    source->taken--;
    held->state = HELD_DONE;
    group_free(&held->group);
    return OK;
}

static void source_give_back(void *self, struct held_group *held) {
    struct source *source = self;
    assert_null(held->group->times.data);
    source->returned++;
    source->taken--;
    held->state = HELD_WAITING;
}

// The stage forgets its groups, and gets other weights before the next one.
static status source_update_weights(void *self, bool *forgotten) {
    struct source *source = self;
    *forgotten = source->recalls && source->taken == GROUPS;
    if (!*forgotten) return OK;
    source->recalls = false;
    source->scorer->held_count = 0;
    source->scorer->intact = false;
    return OK;
}

// Passes the groups through the stage, whose weights change during the piece of work `changes_at`.
static struct source run(const struct stage *stage, const char *store, struct scorer *scorer, bool recalls) {
    struct common_options values;
    struct stage_context context = {
        .stage = stage, .table = &no_options, .state = scorer, .progress_at = clock_monotonic()};
    struct source source = {.scorer = scorer, .recalls = recalls};
    const struct channel channel = {&source, source_receive, source_deliver, source_give_back, source_update_weights};
    options_init(&context.options, &no_options, &values);
    assert_int_equal(group_store_open(&context.store, store, false), OK);
    for (int i = 0; i < GROUPS; i++) {
        source.held[i].state = HELD_WAITING;
        source.held[i].group =
            group_of_format("{\"v\":1,\"id\":\"%d\",\"sample_id\":\"%d\",\"prompt\":{\"messages\":[{\"role\":\"user\","
                            "\"content\":[{\"type\":\"text\",\"text\":\"?\"}]}],\"problem_type\":\"free-form\","
                            "\"solution\":\"x\"}}",
                            i, i);
    }
    assert_int_equal(runner_run(&context, &channel), OK);
    assert_int_equal(source.delivered, GROUPS);
    group_store_close(&context.store);
    options_release(&context.options);
    return source;
}

TEST(a_group_is_worked_on_with_one_version_of_the_weights) {
    const struct stage *const stages[] = {&one_by_one, &side_by_side};
    for (int i = 0; i < 2; i++) {
        const char *dir = unit_new_directory();
        struct scorer scorer = {.version = 1, .intact = true, .changes_at = 1};
        struct source source = run(stages[i], dir, &scorer, false);
        // One by one, the second group is done again; side by side the third, which was there too.
        assert_int_equal(source.returned, i == 0 ? 1 : 2);
        assert_int_equal(scorer.worked, GROUPS + source.returned);
        for (int k = 0; k < GROUPS; k++) assert_true(source.of_version[k] == (k == 0 ? 1 : 2));
        // Nothing but the first result was stored under the old version, and the others under the new one.
        for (int version = 1; version <= 2; version++) {
            scorer = (struct scorer){.version = version, .intact = true, .changes_at = -1};
            run(stages[i], dir, &scorer, false);
            assert_int_equal(scorer.worked, version == 1 ? GROUPS - 1 : 1);
        }
    }
}

// What the stage had of groups when it gave its weights back counts for nothing; each is done once, with other weights.
TEST(groups_are_given_back_with_the_weights) {
    const char *dir = unit_new_directory();
    struct scorer scorer = {.version = 1, .intact = true, .changes_at = -1};
    struct source source = run(&side_by_side, dir, &scorer, true);
    assert_int_equal(source.returned, GROUPS);
    assert_int_equal(scorer.worked, GROUPS);
    for (int i = 0; i < GROUPS; i++) assert_true(source.of_version[i] == 2);
}
