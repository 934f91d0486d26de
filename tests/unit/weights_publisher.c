// The versions of the weights that optim has published: what they answer, and which files are removed.
#include "tests/unit/unit.h"

#include <unistd.h>

#include "shared/base/file.h"
#include "shared/stage/run_weights.h"

struct fixture {
    char dir[64], path[5][96];
    struct weights_publisher *publisher;
    struct wire_message reply;
    struct arena arena;
    struct buf bulk;
};

static struct fixture open_versions(void) {
    static int number;
    struct fixture fixture = {0};
    snprintf(fixture.dir, sizeof fixture.dir, "/tmp/caravan-unit-weights-%d-%d", (int)getpid(), number++);
    assert_int_equal(dir_make(fixture.dir), OK);
    for (int i = 0; i < 5; i++) snprintf(fixture.path[i], sizeof fixture.path[i], "%s/%d", fixture.dir, i);
    weights_publisher_new(&fixture.publisher);
    return fixture;
}

static void close_versions(struct fixture *fixture) {
    weights_publisher_free(&fixture->publisher);
    arena_release(&fixture->arena);
    buf_release(&fixture->bulk);
    assert_int_equal(dir_remove(fixture->dir), OK);
}

// Writes the file of a version, whose hash is 100 and the version, and publishes it.
static void publish(struct fixture *fixture, bool reference, int version) {
    char text[32];
    snprintf(text, sizeof text, "weights %d", version);
    assert_int_equal(file_write_atomic(fixture->path[version], text, strlen(text)), OK);
    const struct stage_weights weights = {
        .reference = reference, .version = version, .hash = 100 + (uint64_t)version, .path = fixture->path[version]};
    assert_int_equal(weights_publish(fixture->publisher, NULL, &weights), OK);
}

// Answers FETCH.
static enum message_kind answer(struct fixture *fixture, int64_t hash, int64_t offset, int64_t size) {
    const struct wire_message fetch = {.kind = MESSAGE_FETCH, .hash = hash, .offset = offset, .size = size};
    assert_int_equal(weights_publisher_read(fixture->publisher, &fetch, &fixture->reply, &fixture->bulk), OK);
    return fixture->reply.kind;
}

// Whether the newest weights of a kind are known; the reply then describes them.
static bool describe(struct fixture *fixture, bool reference) {
    return weights_publisher_describe(fixture->publisher, reference, &fixture->reply, &fixture->arena);
}

TEST(nothing_is_absent) {
    SCOPED(struct fixture, close_versions) fixture = open_versions();
    assert_false(describe(&fixture, false));
    publish(&fixture, true, 1); // a reference without a policy: optim has not published both yet
    assert_false(describe(&fixture, true));
    assert_int_equal(answer(&fixture, 7, 0, 9), MESSAGE_ABSENT);
}

TEST(the_newest_weights_are_described) {
    SCOPED(struct fixture, close_versions) fixture = open_versions();
    publish(&fixture, true, 1);
    publish(&fixture, false, 2);
    publish(&fixture, false, 3);
    assert_true(describe(&fixture, false));
    assert_int_equal(fixture.reply.kind, MESSAGE_WEIGHTS);
    assert_int_equal(fixture.reply.version, 3);
    assert_int_equal(fixture.reply.policy, 3);
    assert_int_equal(fixture.reply.hash, 103);
    assert_int_equal(fixture.reply.size, strlen("weights 3"));
    assert_string_equal(fixture.reply.path, fixture.path[3]);
    assert_true(describe(&fixture, true));
    assert_int_equal(fixture.reply.reference, 1);
    assert_int_equal(fixture.reply.version, 1);
    assert_int_equal(fixture.reply.policy, 3);
}

TEST(a_file_is_sent_in_chunks) {
    SCOPED(struct fixture, close_versions) fixture = open_versions();
    publish(&fixture, false, 1);
    assert_int_equal(answer(&fixture, 101, 0, 4), MESSAGE_CHUNK);
    assert_int_equal(fixture.reply.bulk_size, 4);
    assert_memory_equal(fixture.reply.bulk, "weig", 4);
    assert_int_equal(answer(&fixture, 101, 4, 100), MESSAGE_CHUNK);
    assert_int_equal(fixture.reply.offset, 4);
    assert_int_equal(fixture.reply.bulk_size, 5);
    assert_memory_equal(fixture.reply.bulk, "hts 1", 5);
    const struct wire_message before = {.kind = MESSAGE_FETCH, .hash = 101, .offset = -1, .size = 4};
    assert_int_equal(weights_publisher_read(fixture.publisher, &before, &fixture.reply, &fixture.bulk), DATAERR);
}

TEST(the_fourth_version_removes_the_first_file) {
    SCOPED(struct fixture, close_versions) fixture = open_versions();
    for (int version = 1; version <= 3; version++) publish(&fixture, false, version);
    assert_true(path_exists(fixture.path[1]));
    publish(&fixture, false, 4);
    assert_false(path_exists(fixture.path[1]));
    assert_true(path_exists(fixture.path[2]));
    assert_int_equal(answer(&fixture, 101, 0, 9), MESSAGE_ABSENT);
    assert_int_equal(answer(&fixture, 102, 0, 9), MESSAGE_CHUNK);
}

TEST(an_old_file_is_recycled_unless_it_is_in_use) {
    SCOPED(struct fixture, close_versions) fixture = open_versions();
    publish(&fixture, true, 1); // the reference and the oldest policy have one file
    for (int version = 1; version <= 3; version++) publish(&fixture, false, version);
    weights_recycle(fixture.publisher, false, fixture.path[4]);
    assert_true(path_exists(fixture.path[1]));
    assert_false(path_exists(fixture.path[4]));
    for (int version = 2; version <= 4; version++) publish(&fixture, false, version);
    weights_recycle(fixture.publisher, false, fixture.path[0]);
    assert_false(path_exists(fixture.path[2]));
    assert_true(path_exists(fixture.path[0]));
}

// A slow machine gets the whole file of a version that all others have left behind.
TEST(a_version_stays_while_somebody_downloads_it) {
    SCOPED(struct fixture, close_versions) fixture = open_versions();
    for (int version = 1; version <= 3; version++) publish(&fixture, false, version);
    assert_int_equal(answer(&fixture, 101, 0, 4), MESSAGE_CHUNK);
    assert_int_equal(answer(&fixture, 102, 0, 4), MESSAGE_CHUNK);
    weights_recycle(fixture.publisher, false, fixture.path[0]);
    publish(&fixture, false, 4);
    publish(&fixture, false, 0);
    assert_int_equal(answer(&fixture, 101, 4, 4), MESSAGE_CHUNK);
    assert_int_equal(answer(&fixture, 102, 0, 9), MESSAGE_ABSENT); // no more than one
    assert_int_equal(answer(&fixture, 101, 8, 4), MESSAGE_CHUNK);  // the end
    weights_recycle(fixture.publisher, false, fixture.path[2]);
    assert_false(path_exists(fixture.path[1]));
    assert_true(path_exists(fixture.path[2]));
    assert_int_equal(answer(&fixture, 101, 0, 9), MESSAGE_ABSENT);
    assert_int_equal(answer(&fixture, 103, 0, 9), MESSAGE_CHUNK);
}

TEST(only_what_is_published_can_be_refused) {
    SCOPED(struct fixture, close_versions) fixture = open_versions();
    assert_false(weights_publisher_refuse(fixture.publisher, fixture.path[1], "too early"));
    publish(&fixture, false, 1);
    assert_false(weights_publisher_refuse(fixture.publisher, fixture.path[2], "of an earlier process"));
    assert_false(weights_publisher_refuse(fixture.publisher, "", "the directory's"));
    assert_null(weights_publisher_refused(fixture.publisher));
    assert_true(weights_publisher_refuse(fixture.publisher, fixture.path[1], "another container"));
    assert_false(weights_publisher_refuse(fixture.publisher, fixture.path[1], "another one"));
    char *reason = weights_publisher_refused(fixture.publisher);
    assert_non_null(reason);
    assert_string_equal(reason, "another container");
    free(reason);
    assert_null(weights_publisher_refused(fixture.publisher));
}
