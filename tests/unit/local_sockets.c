// Unix sockets over ZeroMQ: in a directory with a path of 300 bytes, with a name that is too long, and removed while
// they are in use.
#include "tests/unit/unit.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/wire/transport.h"

static char top[] = "/tmp/caravan-local-XXXXXX", deep[400], endpoint[500];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(top)) return 1;
    snprintf(deep, sizeof deep, "%s/%0140d/%0140d", top, 1, 2);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/rollout-12", deep);
    return dir_make(deep) != OK;
}

static int remove_directory(void **state) {
    (void)state;
    return (int)dir_remove(top);
}

static struct transport *open_transport(void) {
    struct transport *transport;
    assert_int_equal(zmq_transport_open(&transport, NULL), OK);
    return transport;
}

// Sends a message over a new link until the server has it.
static void send_one(struct transport *server, struct transport *client) {
    const struct transport_frames frames = {.count = 1, .head = "hello", .head_size = 5};
    struct transport_link *link;
    struct transport_event event = {0};
    bool gone = true;
    assert_int_equal(client->calls->connect(client, endpoint, NULL, client, &link), OK);
    for (int i = 0; i < 500 && event.kind != TRANSPORT_MESSAGE; i++) {
        if (gone) assert_int_equal(client->calls->send(client, link, NULL, &frames, &gone), OK);
        assert_int_equal(server->calls->receive(server, 10, &event), OK);
    }
    assert_int_equal(event.kind, TRANSPORT_MESSAGE);
    assert_memory_equal(event.frames.head, "hello", 5);
    client->calls->disconnect(client, link);
}

TEST(a_socket_may_have_a_long_path) {
    struct transport *server = open_transport(), *client = open_transport();
    assert_true(strlen(deep) > 300);
    assert_int_equal(server->calls->bind(server, endpoint), OK);
    assert_true(path_exists(endpoint + strlen("ipc://")));
    send_one(server, client);
    client->calls->free(client);
    server->calls->free(server);
}

TEST(a_removed_socket_is_made_again) {
    struct transport *server = open_transport(), *client = open_transport();
    struct transport_event event;
    const char *path = endpoint + strlen("ipc://");
    assert_int_equal(server->calls->bind(server, endpoint), OK);
    send_one(server, client);
    assert_int_equal(unlink(path), 0);
    for (int i = 0; i < 300 && !path_exists(path); i++)
        assert_int_equal(server->calls->receive(server, 10, &event), OK);
    send_one(server, client);
    client->calls->free(client);
    server->calls->free(server);
}

// Returns how many descriptors of this process are of the directory `deep`.
static int count_open_directories(void) {
    DIR *fds = opendir("/proc/self/fd");
    char target[600];
    int count = 0;
    for (struct dirent *entry; fds && (entry = readdir(fds));) {
        const ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
        if (length > 0) target[length] = 0;
        count += length > 0 && !strcmp(target, deep);
    }
    if (fds) closedir(fds);
    return count;
}

TEST(what_cannot_be_an_endpoint_is_refused) {
    struct transport *server = open_transport(), *client = open_transport();
    struct transport_link *link;
    char text[600];
    assert_int_equal(client->calls->connect(client, "tcp://10.0.0.1:5600", NULL, client, &link), OK);
    snprintf(text, sizeof text, "ipc://%s/x", top);
    assert_int_equal(server->calls->bind(server, text), OK);
    assert_true(path_exists(text + strlen("ipc://")));
    snprintf(text, sizeof text, "ipc://%s/%083d", deep, 1);
    assert_int_equal(server->calls->bind(server, text), USAGE);
    assert_non_null(strstr(fail_text(), "the name is too long for a socket"));
    snprintf(text, sizeof text, "ipc://%s/none/x", deep);
    assert_int_equal(server->calls->bind(server, text), UNAVAILABLE);
    assert_non_null(strstr(fail_text(), "/none: No such file or directory"));
    snprintf(text, sizeof text, "ipc://%s/%082d", deep, 1);
    assert_int_equal(server->calls->bind(server, text), OK);
    assert_int_equal(server->calls->bind(server, endpoint), OK);
    assert_int_equal(count_open_directories(), 1);
    client->calls->free(client);
    server->calls->free(server);
    assert_int_equal(count_open_directories(), 0);
}

int main(void) {
    return unit_run(make_directory, remove_directory);
}
