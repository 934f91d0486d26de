// Unix sockets over ZeroMQ: in a directory with a path of 300 bytes, with a name that is too long, and removed while
// they are in use. A peer that dies while a socket is closed.
#include "tests/unit/unit.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
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
    for (int i = 0; i < 6000 && event.kind != TRANSPORT_MESSAGE; i++) {
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
    for (int i = 0; i < 6000 && !path_exists(path); i++)
        assert_int_equal(server->calls->receive(server, 10, &event), OK);
    send_one(server, client);
    client->calls->free(client);
    server->calls->free(server);
}

// libzmq's own limit is 1023 sockets.
TEST(a_process_may_have_more_than_a_thousand_links) {
    enum { LINKS = 1100 };
    if (fd_raise_limit() < 4 * LINKS) skip();
    struct transport *client = open_transport();
    struct transport_link *link;
    for (int i = 0; i < LINKS; i++) assert_int_equal(client->calls->connect(client, endpoint, NULL, client, &link), OK);
    client->calls->free(client);
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

// Sends messages until it is killed.
static void send_for_ever(void) {
    static const char text[1000];
    const struct transport_frames frames = {.count = 1, .head = text, .head_size = sizeof text};
    struct transport *client;
    struct transport_link *link;
    bool gone;
    if (zmq_transport_open(&client, NULL) != OK) _exit(1);
    if (client->calls->connect(client, endpoint, NULL, client, &link) != OK) _exit(1);
    while (client->calls->send(client, link, NULL, &frames, &gone) == OK) usleep(200);
    _exit(1);
}

// The server has answers that the peer did not read when it closes its socket. Then the peer sends more, and dies.
TEST(a_peer_that_dies_while_its_socket_is_closed_ends_nobody_else) {
    enum { ANSWERS = 64, ANSWER = 1 << 20 };
    struct transport *server = NULL;
    struct transport_event event = {0};
    char *answer;
    bool gone;
    const pid_t peer = fork(); // before this process has threads
    if (peer == 0) send_for_ever();
    assert_true(peer > 0);
    server = open_transport();
    assert_int_equal(server->calls->bind(server, endpoint), OK);
    for (int i = 0; i < 6000 && event.kind != TRANSPORT_MESSAGE; i++)
        assert_int_equal(server->calls->receive(server, 10, &event), OK);
    assert_int_equal(event.kind, TRANSPORT_MESSAGE);
    const struct transport_client client = event.client;
    usleep(1600000); // libzmq asks after two seconds whether the peer is there, if it is told to ask
    NEW(&answer, ANSWER);
    assert_int_equal(kill(peer, SIGSTOP), 0);
    const struct transport_frames frames = {
        .count = 2, .head = "answer", .head_size = 6, .bulk = answer, .bulk_size = ANSWER};
    for (int i = 0; i < ANSWERS; i++) assert_int_equal(server->calls->send(server, NULL, &client, &frames, &gone), OK);
    const pid_t killer = fork();
    if (killer == 0) {
        usleep(100000);
        kill(peer, SIGCONT);
        usleep(2000);
        kill(peer, SIGKILL);
        _exit(0);
    }
    server->calls->free(server);
    assert_int_equal(waitpid(killer, NULL, 0), killer);
    assert_int_equal(waitpid(peer, NULL, 0), peer);
    free(answer);
}
