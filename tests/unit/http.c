// The HTTP server, asked by sockets of this process over loopback.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/clock.h"
#include "shared/http/http.h"
#include "shared/http/http_text.h"

// ---- the server that is tested ----

static struct http_request *kept; // of /later and /stream
static int handled, ended, ended_sent;

static void on_request(void *context, struct http_request *request) {
    struct buf body = {0};
    (void)context;
    handled++;
    if (!strcmp(request->path, "/later")) {
        kept = request;
    } else if (!strcmp(request->path, "/stream")) {
        kept = request;
        http_stream(request, 200, "text/event-stream");
    } else if (!strcmp(request->path, "/page")) {
        if (!http_allows(request, "GET")) return;
        http_add_page_headers(request);
        buf_puts(&body, "page");
        http_answer(request, 200, "text/html", &body);
    } else if (!strcmp(request->path, "/large")) {
        for (int i = 0; i < 200000; i++) buf_puts(&body, "0123456789");
        http_answer(request, 200, "text/plain", &body);
    } else {
        const char *cookie = http_find_cookie(request, "c"), *given = http_find_header(request, "X-Given");
        buf_printf(&body, "%s %s", request->method, request->path);
        for (size_t i = 0; i < request->argument_count; i++)
            buf_printf(&body, " %s=%s", request->arguments[i].name, request->arguments[i].value);
        buf_printf(&body, " cookie=%s header=%s body=%zu:%.20s", cookie ? cookie : "none", given ? given : "none",
                   request->body.size, request->body.data);
        http_answer(request, 200, "text/plain", &body);
        assert_null(body.data);
    }
}

static void on_headers(void *context, struct http_request *request) {
    (void)context;
    const char *key = http_find_header(request, "X-Key");
    if (key && strcmp(key, "right") != 0) http_refuse(request, 401, "%s has a wrong key", request->path);
}

static void on_ended(void *context, struct http_request *request, bool sent) {
    (void)context;
    ended++;
    ended_sent += sent;
    if (kept == request) kept = NULL;
}

static struct http_server *serve(const struct http_options *given) {
    struct http_options options = *given;
    struct http_server *server = NULL;
    signal(SIGPIPE, SIG_IGN);
    kept = NULL;
    handled = ended = ended_sent = 0;
    options.listen = options.listen ? options.listen : "127.0.0.1:0";
    options.admit = on_headers;
    options.handle = on_request;
    options.ended = on_ended;
    MUST(http_open(&server, &options));
    return server;
}

// Waits for something to do, at most 20 ms, and does it.
static void step(struct http_server *server) {
    struct pollfd poll_fd = {.fd = http_fd(server), .events = POLLIN};
    const int timeout = http_timeout_ms(server);
    poll(&poll_fd, 1, timeout < 0 || timeout > 20 ? 20 : timeout);
    MUST(http_step(server));
}

// ---- its clients ----

static int client(const struct http_server *server) {
    struct sockaddr_storage address;
    socklen_t size;
    MUST(http_parse_listen(http_address(server), &address, &size));
    const int fd = socket(address.ss_family, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, size), 0);
    return fd;
}

static void say(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), 0), strlen(text));
}

// Appends what comes until the connection ends or `until` is there. Returns whether the connection has ended.
static bool hear(struct http_server *server, int fd, struct buf *out, const char *until) {
    const double deadline = clock_monotonic() + 60;
    for (;;) {
        char data[65536];
        step(server);
        const ssize_t size = recv(fd, data, sizeof data, MSG_DONTWAIT);
        if (size > 0) buf_append(out, data, (size_t)size);
        if (size == 0 || (size < 0 && errno != EAGAIN)) return true;
        if (until && out->data && strstr(out->data, until)) return false;
        assert_true(clock_monotonic() < deadline);
    }
}

// Sends one request, "GET /x HTTP/1.1" and further header lines, with a Host and its end added, and returns the answer.
static const char *ask(struct http_server *server, const char *lines) {
    static struct buf answer;
    SCOPED(struct buf, buf_release) text = {0};
    const int fd = client(server);
    buf_printf(&text, "%s\r\nHost: %s\r\nConnection: close\r\n\r\n", lines, http_address(server));
    buf_release(&answer);
    say(fd, text.data);
    assert_true(hear(server, fd, &answer, NULL));
    close(fd);
    return answer.data ? answer.data : "";
}

static int code_of(const char *answer) {
    return strncmp(answer, "HTTP/1.1 ", 9) ? -1 : atoi(answer + 9);
}

static bool ends_with(const char *text, const char *end) {
    return strlen(text) >= strlen(end) && !strcmp(text + strlen(text) - strlen(end), end);
}

// ---- tests ----

TEST(a_handler_sees_what_was_sent_and_nothing_else) {
    struct http_server *server = serve(&(struct http_options){.largest_body = 100});
    const char *answer =
        ask(server, "GET /a%20b/../c?x=1&y=%C3%a9+z&w HTTP/1.1\r\nCookie: b=2; c=3; cc=4\r\nX-Given: 5");
    assert_int_equal(code_of(answer), 200);
    assert_true(ends_with(answer, "\r\n\r\nGET /a b/../c x=1 y=é z w= cookie=3 header=5 body=0:"));
    assert_non_null(strstr(answer, "X-Content-Type-Options: nosniff\r\n"));
    assert_true(ends_with(ask(server, "GET / HTTP/1.1\r\nCookie: c=3; c=4\r\nX-Given: 5\r\nx-given: 6"),
                          "\r\n\r\nGET / cookie=none header=none body=0:"));
    assert_int_equal(handled, 2);
    assert_int_equal(ended_sent, 2);
    http_close(&server);
}

TEST(an_address_is_decoded_strictly) {
    static const char *const bad[] = {
        "",          "x",       "http://a/", "*",     "/%",    "/%4",       "/%zz",
        "/%00",      "/a%ff",   "/%C0%80",   "/a b",  "/\x7f", "/\xc3\xa9", "/?a=%ED%A0%80",
        "/?a=1&a=2", "/?%61&a", "/?a=%",     "/?a=%1"};
    SCOPED(struct arena, arena_release) arena = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct http_request request = {0};
        if (http_parse_target(&arena, bad[i], &request) != DATAERR) print_error("%s\n", bad[i]);
        request = (struct http_request){0};
        assert_int_equal(http_parse_target(&arena, bad[i], &request), DATAERR);
    }
    struct http_request request = {0};
    MUST(http_parse_target(&arena, "/%e2%82%ac+?=v&&a=b=c%26&+%2B=%3f?", &request));
    assert_string_equal(request.path, "/€+");
    assert_int_equal(request.argument_count, 3);
    assert_string_equal(http_find_argument(&request, ""), "v");
    assert_string_equal(http_find_argument(&request, "a"), "b=c&");
    assert_string_equal(http_find_argument(&request, " +"), "??");
    assert_null(http_find_argument(&request, "b"));
    struct http_server *server = serve(&(struct http_options){0});
    assert_int_equal(code_of(ask(server, "GET /%00 HTTP/1.1")), 400);
    assert_int_equal(code_of(ask(server, "GET http://127.0.0.1/ HTTP/1.1")), 400);
    assert_int_equal(handled, 0);
    http_close(&server);
}

// The answer's code to a request with these Host headers.
static int host_code(struct http_server *server, const char *hosts) {
    SCOPED(struct buf, buf_release) text = {0}, answer = {0};
    const int fd = client(server);
    buf_printf(&text, "GET / HTTP/1.1\r\n%sConnection: close\r\n\r\n", hosts);
    say(fd, text.data);
    hear(server, fd, &answer, NULL);
    close(fd);
    return code_of(answer.data);
}

TEST(a_host_must_be_this_server_and_be_there_once) {
    struct http_server *server = serve(&(struct http_options){.host = "box.example"});
    const char *port = strrchr(http_address(server), ':');
    static const char *const good[] = {"127.0.0.1", "[::1]", "localhost", "LOCALHOST", "box.example"};
    static const char *const bad[] = {"evil.example", "127.0.0.1.evil.example", "box.example.", "127.0.0.2", "::1"};
    char hosts[256];
    for (size_t i = 0; i < 5; i++) {
        snprintf(hosts, sizeof hosts, "Host: %s%s\r\n", good[i], port);
        assert_int_equal(host_code(server, hosts), 200);
        snprintf(hosts, sizeof hosts, "Host: %s\r\n", good[i]);
        assert_int_equal(host_code(server, hosts), 421);
        snprintf(hosts, sizeof hosts, "Host: %s%s\r\n", bad[i], port);
        assert_int_equal(host_code(server, hosts), 421);
    }
    snprintf(hosts, sizeof hosts, "Host: localhost%s0\r\n", port);
    assert_int_equal(host_code(server, hosts), 421);
    snprintf(hosts, sizeof hosts, "Host: localhost%s\r\nHost: evil.example\r\n", port);
    assert_int_equal(host_code(server, hosts), 421);
    snprintf(hosts, sizeof hosts, "Host: localhost%s\r\nHost: localhost%s\r\n", port, port);
    assert_int_equal(host_code(server, hosts), 421);
    assert_int_equal(host_code(server, ""), 400);
    assert_int_equal(handled, 5);
    assert_true(http_host_matches("localhost", "127.0.0.1", NULL, 80));
    http_close(&server);
}

TEST(what_does_not_fit_into_memory_is_refused) {
    struct http_server *server = serve(&(struct http_options){0});
    SCOPED(struct buf, buf_release) text = {0};
    buf_puts(&text, "GET /");
    for (int i = 0; i < 10000; i++) buf_puts(&text, "01234567");
    buf_puts(&text, " HTTP/1.1");
    assert_int_equal(code_of(ask(server, text.data)), 414);
    buf_clear(&text);
    buf_puts(&text, "GET / HTTP/1.1\r\nX-Long: ");
    for (int i = 0; i < 10000; i++) buf_puts(&text, "01234567");
    assert_int_equal(code_of(ask(server, text.data)), 431);
    assert_int_equal(handled, 0);
    http_close(&server);
}

TEST(a_body_is_taken_up_to_its_limit) {
    struct http_server *server = serve(&(struct http_options){.largest_body = 200000});
    SCOPED(struct buf, buf_release) text = {0}, answer = {0};
    const int fd = client(server);
    buf_printf(&text, "POST /x HTTP/1.1\r\nHost: %s\r\nContent-Length: 200000\r\nConnection: close\r\n\r\n",
               http_address(server));
    for (int i = 0; i < 20000; i++) buf_printf(&text, "abcdefgh%c\n", i % 2 ? '\r' : '=');
    say(fd, text.data);
    hear(server, fd, &answer, NULL);
    assert_true(ends_with(answer.data, "POST /x cookie=none header=none body=200000:abcdefgh=\nabcdefgh\r\n"));
    close(fd);
    assert_int_equal(code_of(ask(server, "POST / HTTP/1.1\r\nContent-Length: 200001")), 413);
    assert_int_equal(code_of(ask(server, "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999")), 413);
    assert_int_equal(code_of(ask(server, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked")), 411);
    assert_int_equal(code_of(ask(server, "POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 1")), 411);
    assert_int_equal(handled, 1);
    http_close(&server);
}

TEST(a_step_reads_all_that_has_come) {
    enum { SIZE = 4 << 20, STEPS = 30 };
    struct http_server *server = serve(&(struct http_options){.largest_body = SIZE});
    SCOPED(struct buf, buf_release) text = {0};
    const int fd = client(server);
    buf_printf(&text, "POST /x HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", http_address(server), SIZE);
    const size_t whole = text.size + SIZE;
    while (text.size < whole) buf_puts(&text, "0123456789abcdef");
    size_t sent = 0;
    for (int i = 0; i < STEPS && !handled; i++) { // the client is faster than the server
        for (ssize_t size = 1; sent < whole && size > 0; sent += size > 0 ? (size_t)size : 0)
            size = send(fd, text.data + sent, whole - sent, MSG_DONTWAIT);
        MUST(http_step(server));
    }
    assert_int_equal(handled, 1);
    close(fd);
    http_close(&server);
}

TEST(what_has_come_in_time_is_read_before_a_connection_is_closed) {
    struct http_server *server = serve(&(struct http_options){.timeout = 6});
    SCOPED(struct buf, buf_release) text = {0}, answer = {0};
    const int fd = client(server);
    buf_printf(&text, "GET /page HTTP/1.1\r\nHost: %s\r\n", http_address(server));
    say(fd, text.data);
    for (int i = 0; i < 3; i++) step(server);
    usleep(3300000); // the server has other work
    say(fd, "Connection: close\r\n");
    for (int i = 0; i < 3; i++) step(server);
    say(fd, "\r\n");
    usleep(3300000);
    assert_true(hear(server, fd, &answer, NULL));
    assert_non_null(answer.data);
    assert_int_equal(code_of(answer.data), 200);
    close(fd);
    http_close(&server);
}

TEST(a_request_may_be_refused_before_its_body_comes) {
    struct http_server *server = serve(&(struct http_options){.largest_body = 200000});
    const char *answer = ask(server, "POST /x HTTP/1.1\r\nContent-Length: 200000\r\nX-Key: wrong");
    assert_int_equal(code_of(answer), 401);
    assert_true(ends_with(answer, "/x has a wrong key\n"));
    assert_int_equal(handled + ended, 0);
    assert_int_equal(code_of(ask(server, "POST /x HTTP/1.1\r\nContent-Length: 0\r\nX-Key: right")), 200);
    http_close(&server);
}

TEST(head_and_other_methods_are_answered_as_they_should) {
    struct http_server *server = serve(&(struct http_options){0});
    const char *answer = ask(server, "HEAD /page HTTP/1.1");
    assert_int_equal(code_of(answer), 200);
    assert_non_null(strstr(answer, "Content-Length: 4\r\n"));
    assert_non_null(strstr(answer, "Content-Security-Policy: default-src 'none'; script-src 'self';"));
    assert_true(ends_with(answer, "\r\n\r\n"));
    answer = ask(server, "DELETE /page HTTP/1.1");
    assert_int_equal(code_of(answer), 405);
    assert_non_null(strstr(answer, "Allow: GET, HEAD\r\n"));
    assert_int_equal(code_of(ask(server, "GE /page HTTP/1.1")), 405);
    assert_int_equal(code_of(ask(server, "HEAD /stream HTTP/1.1")), 200);
    http_close(&server);
}

TEST(a_client_that_sends_slowly_is_closed_and_holds_up_nobody) {
    struct http_server *server = serve(&(struct http_options){.timeout = 1});
    SCOPED(struct buf, buf_release) answer = {0};
    const int slow = client(server), silent = client(server);
    const double start = clock_monotonic();
    say(slow, "GET / HTTP/1.1\r\n");
    assert_int_equal(code_of(ask(server, "GET /page HTTP/1.1")), 200);
    for (;;) { // a byte now and then does not help
        char data[100];
        send(slow, "X", 1, MSG_NOSIGNAL);
        usleep(50000);
        step(server);
        if (recv(slow, data, sizeof data, MSG_DONTWAIT) == 0 || errno == ECONNRESET) break;
        assert_true(clock_monotonic() - start < 60);
    }
    assert_true(clock_monotonic() - start > 0.9);
    assert_true(hear(server, silent, &answer, NULL));
    assert_int_equal(answer.size, 0);
    assert_int_equal(handled, 1);
    close(slow);
    close(silent);
    http_close(&server);
}

TEST(a_connection_without_a_request_makes_room_before_one_with_half_a_request) {
    struct http_server *server = serve(&(struct http_options){.timeout = 60, .idle = 1});
    SCOPED(struct buf, buf_release) text = {0}, answer = {0}, last = {0};
    const int silent = client(server), answered = client(server), begun = client(server);
    buf_printf(&text, "GET /page HTTP/1.1\r\nHost: %s\r\n", http_address(server));
    say(begun, text.data);
    say(answered, text.data);
    say(answered, "\r\n");
    assert_true(hear(server, silent, &answer, NULL)); // closed, and so are kept ones
    assert_int_equal(answer.size, 0);
    assert_true(hear(server, answered, &answer, NULL));
    assert_int_equal(code_of(answer.data), 200);
    say(begun, "Connection: close\r\n\r\n");
    assert_true(hear(server, begun, &last, NULL));
    assert_non_null(last.data);
    assert_int_equal(code_of(last.data), 200);
    close(silent), close(answered), close(begun);
    http_close(&server);
}

TEST(an_answer_may_come_later_and_in_pieces) {
    struct http_server *server = serve(&(struct http_options){0});
    SCOPED(struct buf, buf_release) text = {0}, answer = {0}, body = {0};
    const int fd = client(server);
    buf_printf(&text, "GET /later HTTP/1.1\r\nHost: %s\r\n\r\n", http_address(server));
    say(fd, text.data);
    while (!kept) step(server);
    for (int i = 0; i < 3; i++) step(server);
    assert_int_equal(code_of(ask(server, "GET /page HTTP/1.1")), 200);
    assert_int_equal(http_open_requests(server), 1);
    assert_int_not_equal(http_timeout_ms(server), 0);
    buf_puts(&body, "late");
    http_answer(kept, 200, "text/plain", &body);
    assert_int_equal(http_timeout_ms(server), 0); // who waits for the next event would wait in vain
    assert_false(hear(server, fd, &answer, "\r\n\r\nlate"));
    while (kept) step(server);
    buf_clear(&text);
    buf_clear(&answer);
    buf_printf(&text, "GET /stream HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", http_address(server));
    say(fd, text.data); // on the same connection
    while (!kept) step(server);
    assert_false(hear(server, fd, &answer, "\r\n\r\n"));
    assert_non_null(strstr(answer.data, "Transfer-Encoding: chunked\r\n"));
    assert_int_not_equal(http_timeout_ms(server), 0);
    http_send(kept, "one", 3);
    assert_int_equal(http_timeout_ms(server), 0);
    assert_false(hear(server, fd, &answer, "\r\n\r\n3\r\none\r\n"));
    http_send(kept, "two", 3);
    http_send(kept, "three", 5);
    http_finish(kept);
    assert_true(hear(server, fd, &answer, NULL));
    assert_true(ends_with(answer.data, "8\r\ntwothree\r\n0\r\n\r\n"));
    assert_int_equal(ended_sent, 3);
    assert_int_equal(http_open_requests(server), 0);
    close(fd);
    http_close(&server);
}

TEST(a_client_that_goes_away_is_noticed_while_it_waits) {
    static const char *const paths[] = {"/later", "/stream"};
    struct http_server *server = serve(&(struct http_options){0});
    for (int i = 0; i < 2; i++) {
        SCOPED(struct buf, buf_release) text = {0}, answer = {0};
        const int fd = client(server);
        buf_printf(&text, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", paths[i], http_address(server));
        say(fd, text.data);
        while (!kept) step(server);
        if (i) {
            http_send(kept, "one", 3);
            assert_false(hear(server, fd, &answer, "3\r\none\r\n"));
        }
        for (int j = 0; j < 3; j++) step(server);
        assert_int_equal(ended, i);
        close(fd);
        struct pollfd poll_fd = {.fd = http_fd(server), .events = POLLIN};
        assert_int_equal(poll(&poll_fd, 1, 10000), 1); // the descriptor says so
        const double deadline = clock_monotonic() + 60;
        while (ended == i && clock_monotonic() < deadline) step(server);
        assert_int_equal(ended, i + 1);
        assert_int_equal(ended_sent, 0);
        assert_null(kept);
    }
    assert_int_equal(code_of(ask(server, "GET /page HTTP/1.1")), 200);
    http_close(&server);
}

TEST(clients_that_go_away_within_a_request_make_room_at_once) {
    enum { CONNECTIONS = 4, ABORTED = 64 };
    struct http_server *server = serve(&(struct http_options){.connections = CONNECTIONS, .timeout = 600, .idle = 600});
    SCOPED(struct buf, buf_release) text = {0};
    const double start = clock_monotonic();
    buf_printf(&text, "POST /page HTTP/1.1\r\nHost: %s\r\nContent-Length: 9\r\n\r\nbody", http_address(server));
    const size_t sizes[] = {0, 8, 30, text.size - 4, text.size}; // up to the line, headers and body
    for (int i = 0; i < ABORTED; i++) {
        const int fd = client(server);
        if (i % 2) step(server); // the end comes with the connection, or later
        assert_int_equal(send(fd, text.data, sizes[i % 5], 0), sizes[i % 5]);
        close(fd);
    }
    assert_int_equal(code_of(ask(server, "GET /page HTTP/1.1")), 200);
    assert_true(clock_monotonic() - start < 20);
    assert_int_equal(handled, 1);
    while (http_timeout_ms(server) != -1) step(server); // nothing is left to wait for
    assert_int_equal(http_open_requests(server), 0);
    http_close(&server);
}

TEST(a_client_that_closes_its_side_after_a_request_gets_its_answer) {
    static const char *const paths[] = {"/page", "/large"};
    struct http_server *server = serve(&(struct http_options){.timeout = 600, .idle = 600});
    for (int i = 0; i < 4; i++) {
        SCOPED(struct buf, buf_release) text = {0}, answer = {0};
        const int fd = client(server);
        if (i % 2) step(server);
        for (int j = 0; j < 2; j++) // two requests that are sent together
            buf_printf(&text, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", paths[i / 2], http_address(server));
        say(fd, text.data);
        shutdown(fd, SHUT_WR);
        assert_true(hear(server, fd, &answer, NULL)); // and then the connection is closed
        assert_int_equal(code_of(answer.data), 200);
        assert_int_equal(ended_sent, 2 * (i + 1));
        close(fd);
    }
    http_close(&server);
}

TEST(a_client_that_reads_slowly_gets_all_of_a_stream) {
    struct http_server *server = serve(&(struct http_options){0});
    SCOPED(struct buf, buf_release) text = {0}, answer = {0};
    const int fd = client(server), small = 65536;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    buf_printf(&text, "GET /stream HTTP/1.0\r\nHost: %s\r\n\r\n", http_address(server));
    say(fd, text.data);
    while (!kept) step(server);
    buf_clear(&text);
    for (int i = 0; i < 2000000; i++) buf_printf(&text, "%07d\n", i);
    http_send(kept, text.data, text.size);
    for (int i = 0; i < 50; i++) step(server);
    assert_true(http_unsent(kept) > 100000);
    http_finish(kept);
    hear(server, fd, &answer, NULL);
    assert_true(ends_with(answer.data, text.data));
    close(fd);
    http_close(&server);
}

TEST(a_large_answer_is_whole) {
    struct http_server *server = serve(&(struct http_options){0});
    const char *answer = ask(server, "GET /large HTTP/1.1");
    assert_int_equal(strlen(strstr(answer, "\r\n\r\n") + 4), 2000000);
    http_close(&server);
}

TEST(clients_beyond_the_limit_wait_until_another_has_gone) {
    struct http_server *server = serve(&(struct http_options){.connections = 2});
    SCOPED(struct buf, buf_release) text = {0}, answer = {0};
    const int first = client(server), second = client(server), third = client(server);
    buf_printf(&text, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", http_address(server));
    say(third, text.data);
    for (int i = 0; i < 10; i++) step(server);
    assert_int_equal(handled, 0);
    close(first);
    assert_true(hear(server, third, &answer, NULL));
    assert_int_equal(code_of(answer.data), 200);
    close(second);
    close(third);
    http_close(&server);
}

TEST(the_next_port_is_taken_only_if_asked_for) {
    struct http_server *server = serve(&(struct http_options){0}), *other = NULL;
    struct http_options options = {.listen = http_address(server), .handle = on_request};
    assert_int_equal(http_open(&other, &options), UNAVAILABLE);
    assert_null(other);
    options.next_port = true;
    MUST(http_open(&other, &options));
    assert_string_not_equal(http_address(server), http_address(other));
    assert_true(http_is_loopback(other));
    http_close(&other);
    static const char *const bad[] = {"127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:1x", "x:1", "::1:80",
                                      ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.listen = bad[i];
        assert_int_equal(http_open(&other, &options), USAGE);
    }
    http_close(&server);
}

TEST(a_server_that_stops_finishes_what_is_under_way_or_says_that_it_did_not) {
    struct http_server *server = serve(&(struct http_options){0});
    SCOPED(struct buf, buf_release) text = {0}, answer = {0}, body = {0};
    const int fd = client(server), other = client(server);
    struct sockaddr_storage address;
    socklen_t size;
    buf_printf(&text, "GET /later HTTP/1.1\r\nHost: %s\r\n\r\n", http_address(server));
    say(fd, text.data);
    while (!kept) step(server);
    http_stop_listening(server);
    MUST(http_parse_listen(http_address(server), &address, &size));
    const int refused = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(refused, (struct sockaddr *)&address, size), -1);
    buf_puts(&body, "late");
    http_answer(kept, 200, "text/plain", &body);
    assert_false(hear(server, fd, &answer, "\r\n\r\nlate"));
    while (kept) step(server);
    say(fd, text.data);
    while (!kept) step(server);
    http_close(&server);
    assert_int_equal(ended, 2);
    assert_int_equal(ended_sent, 1);
    assert_null(kept);
    close(fd);
    close(other);
    close(refused);
}

TEST(secrets_are_random_and_equal_only_to_themselves) {
    char token[HTTP_TOKEN_SIZE], other[HTTP_TOKEN_SIZE];
    http_make_token(token);
    http_make_token(other);
    assert_int_equal(strlen(token), 32);
    assert_int_equal(strspn(token, "0123456789abcdef"), 32);
    assert_string_not_equal(token, other);
    assert_true(http_same_secret(token, token));
    assert_false(http_same_secret(other, token));
    assert_false(http_same_secret("", token));
    assert_false(http_same_secret(NULL, token));
    assert_false(http_same_secret("aa", "a"));
}
