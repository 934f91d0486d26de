// groups.lmdb: sections by the hash of what they were computed from, complete groups by id.
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/store/group_store.h"
#include "shared/store/lmdb_env.h"
#include "tests/support/groups.h"

static struct group *make(const char *id, const char *more) {
    return group_of_format("{\"id\":\"%s\",\"prompt\":{\"messages\":[],\"solution\":\"\"}%s}", id, more);
}

// Stores the group and, unless `key` is NULL, its section.
static status save(struct group_store *store, const struct section_key *key, enum group_section section,
                   struct group *group) {
    struct group_record record = {.group = group, .section = key ? (int)section : -1};
    if (key) record.key = *key;
    return group_store_save_all(store, &record, 1);
}

TEST(sections_and_groups_are_saved_and_found) {
    SCOPED(struct group_store *, group_store_close) store = NULL;
    struct section_key first = {{1}}, second = {{2}};
    assert_int_equal(group_store_open(&store, unit_directory(), false), OK);
    struct group *given = make("e0-000001", ",\"advantages\":[1,-1],\"x\":1.50"), *bare = make("e0-000001", ""),
                 *back = NULL;
    bool found = true;
    assert_int_equal(group_store_find(store, &first, SECTION_REWARD, bare, &found), OK);
    assert_false(found);
    assert_int_equal(save(store, &first, SECTION_REWARD, given), OK);
    assert_int_equal(group_store_find(store, &second, SECTION_REWARD, bare, &found), OK);
    assert_false(found);
    assert_int_equal(group_store_find(store, &first, SECTION_REWARD, bare, &found), OK);
    assert_true(found);
    assert_int_equal(bare->advantages.count, 2);
    assert_int_equal(group_store_get(store, "e0-000001", &back), OK);
    assert_string_equal(back->unknown.first->json.data, "1.50");
    group_free(&back);
    // A slower process has the same section, but less of the group than has come since.
    SCOPED(struct group *, group_free) less = make("e0-000001", ",\"advantages\":[1,-1]");
    assert_int_equal(save(store, &first, SECTION_REWARD, less), OK);
    assert_int_equal(group_store_get(store, "e0-000001", &back), OK);
    assert_string_equal(back->unknown.first->json.data, "1.50");
    group_free(&back);
    // A section that was not usable was computed again, from another file.
    SCOPED(struct group *, group_free) again = make("e0-000001", ",\"advantages\":[2,-2,0]");
    assert_int_equal(save(store, &first, SECTION_REWARD, again), OK);
    assert_int_equal(group_store_find(store, &first, SECTION_REWARD, bare, &found), OK);
    assert_int_equal(bare->advantages.count, 3);
    assert_int_equal(group_store_get(store, "e0-000001", &back), OK);
    assert_int_equal(back->advantages.count, 3);
    group_free(&back);
    assert_int_equal(group_store_get(store, "e0-000002", &back), OK);
    assert_null(back);
    group_free(&given);
    group_free(&bare);
}

TEST(several_records_are_saved_at_once) {
    SCOPED(struct group_store *, group_store_close) store = NULL;
    struct group_record records[3];
    SCOPED(struct group *, group_free) back = NULL, bare = make("e0-000101", "");
    bool found;
    assert_int_equal(group_store_open(&store, unit_directory(), false), OK);
    for (int i = 0; i < 3; i++)
        records[i] =
            (struct group_record){.group = make(i ? "e0-000102" : "e0-000101", i < 2 ? ",\"advantages\":[1]" : ""),
                                  .key = {{(unsigned char)(100 + i)}},
                                  .section = i ? -1 : SECTION_REWARD};
    assert_int_equal(group_store_save_all(store, records, 3), OK);
    assert_int_equal(group_store_find(store, &records[0].key, SECTION_REWARD, bare, &found), OK);
    assert_true(found && bare->advantages.count == 1);
    assert_int_equal(group_store_find(store, &records[1].key, SECTION_REWARD, bare, &found), OK);
    assert_false(found);
    assert_int_equal(group_store_get(store, "e0-000102", &back), OK); // the later one of the two
    assert_null(back->advantages.data);
    for (int i = 0; i < 3; i++) group_free(&records[i].group);
}

static status count_groups(void *context, const struct group *group) {
    int *count = context;
    ++*count;
    return string_equals(group->id, "stop") ? fail(END, "enough") : OK;
}

TEST(groups_with_long_ids_are_listed) {
    SCOPED(struct group_store *, group_store_close) store = NULL;
    char id[2001];
    int count = 0;
    memset(id, 'x', 2000);
    id[2000] = 0;
    assert_int_equal(group_store_open(&store, unit_directory(), false), OK);
    const char *const ids[] = {id, "", "stop"};
    for (int i = 0; i < 3; i++) {
        SCOPED(struct group *, group_free) group = make(ids[i], ""), back = NULL;
        assert_int_equal(save(store, NULL, SECTION_PROMPT, group), OK);
        assert_int_equal(save(store, NULL, SECTION_PROMPT, group), OK);
        assert_int_equal(group_store_get(store, ids[i], &back), OK);
        assert_string_equal(back->id.data, ids[i]);
    }
    assert_int_equal(group_store_each(store, count_groups, &count), END);
    assert_in_range(count, 1, 4);
}

TEST(read_only_creates_nothing) {
    struct group_store *store = NULL;
    assert_int_equal(group_store_open(&store, "/tmp/caravan-no-such-store", true), DATAERR);
    assert_null(store);
    assert_false(path_exists("/tmp/caravan-no-such-store"));
}

// ---- what stays

// Saves group `number` of a training run, whose step of two groups is given; with a section unless key is 0.
static void save_trained(struct group_store *store, int number, int step, unsigned char key) {
    SCOPED(struct buf, buf_release) json = {0};
    char id[32];
    snprintf(id, sizeof id, "e0-%06d", number);
    buf_printf(&json,
               ",\"advantages\":[1],\"requires\":{\"policy\":0,\"reference\":0,\"exact\":1,"
               "\"order\":%d}",
               number);
    if (step) buf_printf(&json, ",\"trained\":{\"step\":%d}", step);
    SCOPED(struct group *, group_free) group = make(id, json.data);
    const struct section_key section = {{key, (unsigned char)number}};
    assert_int_equal(save(store, key ? &section : NULL, SECTION_REWARD, group), OK);
}

static bool has_group(struct group_store *store, int number) {
    char id[32];
    SCOPED(struct group *, group_free) group = NULL;
    snprintf(id, sizeof id, "e0-%06d", number);
    assert_int_equal(group_store_get(store, id, &group), OK);
    const bool found = group != NULL;
    return found;
}

static bool has_section(struct group_store *store, unsigned char key, int number) {
    const struct section_key section = {{key, (unsigned char)number}};
    SCOPED(struct group *, group_free) bare = make("bare", "");
    bool found;
    assert_int_equal(group_store_find(store, &section, SECTION_REWARD, bare, &found), OK);
    return found;
}

static struct group_store *open_own(const char *name) {
    struct group_store *store;
    char own[96];
    snprintf(own, sizeof own, "%s/%s", unit_directory(), name);
    assert_int_equal(group_store_open(&store, own, false), OK);
    return store;
}

TEST(the_newest_steps_stay) {
    SCOPED(struct group_store *, group_store_close) store = open_own("steps");
    group_store_set_keep(store, &(struct group_keep){.steps = 3}, 0);
    for (int i = 0; i < 20; i++) save_trained(store, i, i / 2 + 1, 0);
    for (int i = 0; i < 20; i++) assert_true(has_group(store, i) == (i >= 14)); // steps 8, 9 and 10
    // Optim goes back to step 8: its groups are saved again, and what was trained after it counts by its age.
    for (int i = 16; i < 20; i++) save_trained(store, i, i / 2 + 1, 0);
    for (int i = 0; i < 20; i++) assert_true(has_group(store, i) == (i >= 14));
    save_trained(store, 20, 0, 0); // quarantined: it counts with the step before it
    for (int i = 21; i < 27; i++) save_trained(store, i, i / 2 + 1, 0);
    for (int i = 14; i < 27; i++) assert_true(has_group(store, i) == (i >= 22));
}

TEST(the_newest_bytes_stay) {
    SCOPED(struct group_store *, group_store_close) store = open_own("bytes");
    int64_t removed, freed;
    for (int i = 0; i < 100; i++) save_trained(store, i, 1, 0);
    assert_int_equal(group_store_prune(store, &(struct group_keep){0}, false, &removed, &freed), OK);
    assert_int_equal(removed, 0);
    assert_int_equal(group_store_prune(store, &(struct group_keep){.bytes = 1}, false, &removed, &freed), OK);
    assert_int_equal(removed, 99); // one always stays
    assert_true(has_group(store, 99));
    const int64_t each = freed / 99;
    assert_in_range(each, 100, 400);
    group_store_set_keep(store, &(struct group_keep){.bytes = 5 * each + 20}, 0);
    for (int i = 0; i < 40; i++) save_trained(store, i, 1, 0);
    for (int i = 0; i < 40; i++) assert_true(has_group(store, i) == (i >= 35));
    assert_false(has_group(store, 99));
    // A group that is saved again is the newest.
    save_trained(store, 35, 1, 0);
    save_trained(store, 40, 1, 0);
    for (int i = 35; i <= 40; i++) assert_true(has_group(store, i) == (i != 36));
}

TEST(old_sections_go) {
    SCOPED(struct group_store *, group_store_close) store = open_own("sections");
    int64_t removed, freed;
    SCOPED(struct group *, group_free) group = make("filter", ",\"advantages\":[1]");
    struct group_record only = {.group = group, .key = {{200}}, .section = SECTION_REWARD, .section_only = true};
    group_store_set_keep(store, &(struct group_keep){0}, 10);
    assert_int_equal(group_store_save_all(store, &only, 1), OK);
    for (int i = 0; i < 30; i++)
        for (unsigned char key = 1; key < 3; key++) save_trained(store, i, i + 1, key);
    assert_true(has_section(store, 200, 0)); // it has no place in an order
    for (int i = 0; i < 30; i++)
        assert_true(has_section(store, 1, i) == (i >= 19) && has_section(store, 2, i) == (i >= 19));
    for (int i = 0; i < 30; i++) assert_true(has_group(store, i));
    struct group *back;
    assert_int_equal(group_store_get(store, "filter", &back), OK);
    assert_null(back); // only its section was stored
    assert_int_equal(group_store_prune(store, &(struct group_keep){.steps = 4}, true, &removed, &freed), OK);
    assert_int_equal(removed, 26);
    assert_false(has_section(store, 200, 0) || has_section(store, 1, 29));
}

// Saves a group of the sample. Returns how many bytes were logged, of which the first are in line[].
static ssize_t save_of_sample(struct group_store *store, const char *id, const char *sample, char line[512]) {
    int ends[2], saved = dup(STDERR_FILENO);
    char more[64];
    snprintf(more, sizeof more, ",\"sample_id\":\"%s\"", sample);
    SCOPED(struct group *, group_free) group = make(id, more);
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    const status result = save(store, NULL, SECTION_PROMPT, group);
    assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    const ssize_t size = read(ends[0], line, 511);
    line[size > 0 ? size : 0] = 0;
    close(ends[0]), close(ends[1]), close(saved);
    assert_int_equal(result, OK);
    return size > 0 ? size : 0;
}

TEST(that_another_samples_group_is_replaced_is_said_once) {
    char line[512];
    for (int times = 0; times < 2; times++) {
        struct group_store *store = open_own("replaced");
        assert_int_equal(save_of_sample(store, "e0-000201", times ? "b" : "a", line) > 0, times);
        assert_int_equal(save_of_sample(store, "e0-000201", times ? "b" : "a", line), 0);
        assert_int_equal(save_of_sample(store, "e0-000202", "a", line), 0);
        assert_int_equal(save_of_sample(store, "e0-000202", "c", line) > 0, !times);
        if (!times) assert_non_null(strstr(line, "group e0-000202 of sample c replaces that of another sample"));
        assert_int_equal(save_of_sample(store, "e0-000202", "d", line), 0);
        assert_int_equal(save_of_sample(store, "e0-000202", "a", line), 0);
        group_store_close(&store);
    }
}

// ---- summaries

static const char rewarded[] =
    ",\"sample_id\":\"%s\",\"requires\":{\"policy\":0,\"reference\":0,\"exact\":1,\"order\":6},\"completions\":["
    "{\"text\":\"<think>t</think><answer>B</answer>\",\"finish\":\"eos\",\"tokens\":[1,2],\"logprobs\":[-0.5,-1.5]},"
    "{\"text\":\"B green.\",\"finish\":\"length\",\"tokens\":[1,2,3,4],\"logprobs\":[-0.25,-0.25,-2,-0.5]},"
    "{\"text\":\"<answer>B green.</think><answer>B</answer>\",\"finish\":\"eos\",\"tokens\":[],\"logprobs\":[]}],"
    "\"reference\":{\"version\":0,\"answer_logprob\":[-1,null,null],\"logprobs\":[[-1.5,-1.5],[-0.25,-0.25,-2,-0.5],[]]"
    "},"
    "\"consistency\":{\"verdict\":[1,0,null]},\"rewards\":{\"accuracy\":[1,0,0],\"format\":[1,0,1],\"bonus\":[0.5,0,0],"
    "\"total\":[2.5,0,0.5]},\"advantages\":[1,-1,0],\"trained\":{\"step\":3},"
    "\"times\":{\"source\":[100.5,101],\"rollout\":[101,104.25,2]}";

static struct group *make_rewarded(const char *id, const char *sample) {
    SCOPED(struct buf, buf_release) more = {0};
    buf_printf(&more, rewarded, sample);
    return group_of_format(
        "{\"id\":\"%s\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":\"Which? \\u00e9\"}],"
        "\"solution\":\"<answer>B</answer>\",\"problem_type\":\"multiple choice\","
        "\"options\":[\"red\",\"green\"],\"level\":\"L1\"}%s}",
        id, more.data);
}

static bool near(float number, double wanted) {
    return fabs((double)number - wanted) < 1e-6;
}

TEST(a_whole_group_has_a_summary_and_a_row) {
    SCOPED(struct group_store *, group_store_close) store = open_own("summaries");
    SCOPED(struct group *, group_free) group = make_rewarded("e0-000006", "s1"), back = NULL;
    SCOPED(struct buf, buf_release) bytes = {0};
    struct numbered_summary list[4];
    struct group_row row;
    size_t count;
    bool found;
    int64_t number;
    assert_true(group_store_has_summaries(store));
    assert_int_equal(save(store, NULL, SECTION_PROMPT, group), OK);
    assert_int_equal(group_store_summaries(store, 0, list, 4, &count), OK);
    assert_int_equal(count, 1);
    const struct group_summary *summary = &list[0].summary;
    assert_true(summary->issued == 100.5 && summary->settled == 104.25);
    assert_int_equal(summary->seq, 6);
    assert_int_equal(summary->step, 3);
    assert_int_equal(summary->state, GROUP_TRAINED);
    assert_int_equal(summary->completions, 3);
    assert_int_equal(summary->right, 1);
    assert_int_equal(summary->well_formed, 2);
    assert_int_equal(summary->with_bonus, 1);
    assert_int_equal(summary->contradicting, 1);
    assert_int_equal(summary->truncated, 1);
    assert_int_equal(summary->uncounted, 1); // the last one; the second one has no <answer>
    assert_int_equal(summary->judged, 2);
    assert_int_equal(summary->longest, 4);
    assert_int_equal(summary->tokens, 6);
    assert_int_equal(summary->problem_type, 1);
    assert_int_equal(summary->marks, 0x287); // the second one contradicts, the third one is well formed
    assert_memory_equal(summary->level, "L1\0\0\0\0\0", 8);
    assert_true(near(summary->reward, 1) && near(summary->reward_std, sqrt((2.25 + 1 + 0.25) / 2)));
    assert_true(near(summary->accuracy, 1.0 / 3) && near(summary->format, 2.0 / 3) && near(summary->bonus, 0.5 / 3));
    assert_true(near(summary->length, 2) && near(summary->surprise, 5.0 / 6) && near(summary->lowest, -2));
    assert_true(near(summary->likelihood, exp(-1)) && near(summary->consistency, 0.5));
    assert_true(near(summary->kl, (exp(-1) + 1 - 1) / 6)); // one token differs, by -1
    assert_int_equal(group_store_row(store, list[0].number, &row, &bytes, &found), OK);
    assert_true(found && string_equals(row.question, "Which? \u00e9"));
    assert_true(string_equals(row.id, "e0-000006") && string_equals(row.sample_id, "s1"));
    assert_int_equal(row.count, 2);
    assert_true(string_equals(row.times[1].stage, "rollout") && row.times[1].in == 0.5F && row.times[1].out == 3.75F);
    assert_true(row.times[0].replica == 0 && row.times[1].replica == 2);
    assert_int_equal(group_store_get_number(store, list[0].number, &back), OK);
    assert_string_equal(back->id.data, "e0-000006");
    assert_int_equal(group_store_number_of(store, "e0-000006", &number), OK);
    assert_int_equal(number, list[0].number);
    assert_int_equal(group_store_number_of(store, "none", &number), OK);
    assert_int_equal(number, -1);
}

TEST(summaries_go_with_their_groups) {
    SCOPED(struct group_store *, group_store_close) store = open_own("samples");
    struct numbered_summary list[40];
    int64_t numbers[40], removed, freed;
    struct group_row row;
    SCOPED(struct buf, buf_release) bytes = {0};
    size_t count, of_sample;
    bool found;
    for (int i = 0; i < 20; i++) {
        char id[32];
        snprintf(id, sizeof id, "e0-%06d", i);
        SCOPED(struct group *, group_free) group = make_rewarded(id, i % 4 ? "other" : "mine");
        assert_int_equal(save(store, NULL, SECTION_PROMPT, group), OK);
        if (i == 8) assert_int_equal(save(store, NULL, SECTION_PROMPT, group), OK); // it moves to a new number
    }
    SCOPED(struct group *, group_free) mine = make_rewarded("x", "mine");
    const uint64_t sample = group_summary_sample(mine);
    assert_int_equal(group_store_summaries(store, 0, list, 40, &count), OK);
    assert_int_equal(count, 20);
    assert_int_equal(list[8].number, 9);
    assert_int_equal(group_store_summaries(store, 10, list, 3, &count), OK);
    assert_int_equal(count, 3);
    assert_int_equal(list[0].number, 10);
    assert_int_equal(group_store_of_sample(store, sample, numbers, 40, &of_sample), OK);
    assert_int_equal(of_sample, 5);
    assert_int_equal(numbers[2], 9);
    assert_int_equal(group_store_of_sample(store, sample, numbers, 2, &of_sample), OK);
    assert_int_equal(of_sample, 2);
    assert_int_equal(group_store_prune(store, &(struct group_keep){.bytes = 1}, false, &removed, &freed), OK);
    assert_int_equal(removed, 19);
    assert_int_equal(group_store_summaries(store, 0, list, 40, &count), OK);
    assert_int_equal(count, 1);
    assert_int_equal(group_store_of_sample(store, sample, numbers, 40, &of_sample), OK);
    assert_int_equal(of_sample, 0);
    assert_int_equal(group_store_row(store, 10, &row, &bytes, &found), OK);
    assert_false(found);
}

TEST(a_store_of_before_the_summaries_can_be_read) {
    static const char *older[] = {"sections", "groups", "order", "numbers", "seqs", NULL, NULL};
    struct lmdb_env *env;
    struct numbered_summary list[1];
    char path[128];
    size_t count;
    struct group_store *made = open_own("older");
    group_store_close(&made);
    snprintf(path, sizeof path, "%s/older/groups.lmdb", unit_directory());
    assert_int_equal(unlink(path), 0);
    SCOPED(struct group_store *, group_store_close) store = NULL;
    assert_int_equal(lmdb_env_open(&env, path, older, NULL), OK);
    lmdb_env_close(&env);
    *strrchr(path, '/') = 0;
    assert_int_equal(group_store_open(&store, path, true), DATAERR);
    assert_non_null(strstr(fail_text(), "has no database 'totals'"));
    older[5] = "totals";
    *strchr(path, 0) = '/';
    assert_int_equal(lmdb_env_open(&env, path, older, NULL), OK);
    lmdb_env_close(&env);
    *strrchr(path, '/') = 0;
    assert_int_equal(group_store_open(&store, path, true), OK);
    assert_false(group_store_has_summaries(store));
    assert_int_equal(group_store_summaries(store, 0, list, 1, &count), OK);
    assert_int_equal(count, 0);
}

TEST(a_damaged_row_is_refused) {
    SCOPED(struct group *, group_free) group = make_rewarded("e0-000006", "s1");
    SCOPED(struct buf, buf_release) bytes = {0};
    struct group_row row;
    group_row_make(group, 100.5, &bytes);
    for (size_t size = 0; size < bytes.size; size++) assert_int_equal(group_row_read(&row, bytes.data, size), DATAERR);
    assert_int_equal(group_row_read(&row, bytes.data, bytes.size), OK);
}
