// What the service manager hears: a socket of this test takes its place.
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tools/run/run.h"

// Returns a manager's socket; `name` is its path, or begins with '@'.
static int open_manager(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t size = strlen(name);
    memcpy(address.sun_path, name, size);
    if (*name == '@') address.sun_path[0] = 0;
    const int manager = socket(AF_UNIX, SOCK_DGRAM, 0);
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
    assert_int_equal(bind(manager, (const struct sockaddr *)&address, length), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
    return manager;
}

// The manager must have got `state`, or nothing if that is NULL.
static void expect_heard(int manager, const char *state) {
    char heard[64] = {0};
    const ssize_t size = recv(manager, heard, sizeof heard - 1, MSG_DONTWAIT);
    if (!state) assert_int_equal(size, -1);
    if (state) assert_string_equal(heard, state);
}

static int clear(void **state) {
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return 0;
}

TEST_BETWEEN(without_a_manager_nothing_is_told, NULL, clear) {
    SCOPED(struct service, service_close) service = {0};
    assert_int_equal(service_open(&service), OK);
    service_notify(&service, "READY=1");
    service_alive(&service);
}

TEST_BETWEEN(the_manager_is_told, NULL, clear) {
    char names[2][64];
    snprintf(names[0], sizeof names[0], "/tmp/caravan-service-%d", (int)getpid());
    snprintf(names[1], sizeof names[1], "@caravan-service-%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        SCOPED(struct service, service_close) service = {0};
        const int manager = open_manager(names[i]);
        assert_int_equal(service_open(&service), OK);
        service_notify(&service, "READY=1");
        expect_heard(manager, "READY=1");
        service_alive(&service); // there is no watchdog
        expect_heard(manager, NULL);
        close(manager);
        service_notify(&service, "STOPPING=1"); // nobody hears it
    }
    unlink(names[0]);
}

TEST_BETWEEN(the_watchdog_is_told_in_time, NULL, clear) {
    struct service service;
    char name[64], process[16];
    snprintf(name, sizeof name, "@caravan-service-%d", (int)getpid());
    snprintf(process, sizeof process, "%d", (int)getpid());
    const int manager = open_manager(name);
    setenv("WATCHDOG_USEC", "40000000", 1);
    setenv("WATCHDOG_PID", process, 1);
    assert_int_equal(service_open(&service), OK);
    assert_int_equal(service.watchdog_ms, 40000);
    service.alive_at -= 40000;
    service_alive(&service);
    expect_heard(manager, "WATCHDOG=1");
    service_alive(&service);
    expect_heard(manager, NULL);
    service.alive_at -= 20000; // as if half of the time had passed
    service_alive(&service);
    expect_heard(manager, "WATCHDOG=1");
    service_close(&service);
    setenv("WATCHDOG_PID", "1", 1); // it is meant for another process
    assert_int_equal(service_open(&service), OK);
    assert_int_equal(service.watchdog_ms, 0);
    service_close(&service);
    close(manager);
}

TEST_BETWEEN(a_malformed_environment_is_refused, NULL, clear) {
    static const char *const sockets[] = {"", "relative/path", "/tmp/caravan-no-such-socket"};
    static const char *const times[] = {"", "x", "1x", "0", "-5", "99999999999999999999"};
    struct service service;
    char name[64], longest[200];
    for (size_t i = 0; i < sizeof sockets / sizeof *sockets; i++) {
        setenv("NOTIFY_SOCKET", sockets[i], 1);
        assert_int_equal(service_open(&service), i == 2 ? UNAVAILABLE : USAGE);
        service_close(&service);
    }
    memset(longest, '/', sizeof longest);
    longest[sizeof longest - 1] = 0;
    setenv("NOTIFY_SOCKET", longest, 1);
    assert_int_equal(service_open(&service), USAGE);
    service_close(&service);
    snprintf(name, sizeof name, "@caravan-service-%d", (int)getpid());
    const int manager = open_manager(name);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        setenv("WATCHDOG_USEC", times[i], 1);
        assert_int_equal(service_open(&service), USAGE);
        assert_non_null(strstr(fail_text(), "is not a number of microseconds"));
        service_close(&service);
    }
    close(manager);
}

int main(void) {
    return unit_run(clear, NULL);
}
