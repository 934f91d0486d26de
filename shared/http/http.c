// The server: one libmicrohttpd daemon without threads, whose epoll descriptor lies in an epoll set of our own, beside
// the sockets of all clients. The library does not look at those that wait, and of the others it asks for edges: if the
// end of a connection comes together with data, it reads the data and is never told of the end. So we watch for it.
//
// A request (`exchange`) begins in http_on_target, is handled in http_on_request, and ends in http_on_completed. While
// it waits for its answer, or for more of it, its connection is suspended.
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/http/http.h"
#include "shared/http/http_text.h"

#if MHD_VERSION >= 0x00097701
#define HTTP_STRICT MHD_OPTION_CLIENT_DISCIPLINE_LVL
#else
#define HTTP_STRICT MHD_OPTION_STRICT_FOR_CLIENT
#endif

enum { CONNECTION_MEMORY = 32768, STREAM_BLOCK = 4096, NEXT_PORTS = 100, MAX_HEADERS = 16, STEP_MS = 10 };

struct http_server {
    struct http_options options;
    struct MHD_Daemon *daemon;
    int epoll;
    bool loopback;
    int port;
    char name[64];    // as Host has it: 127.0.0.1, [::1]
    char address[80]; // with the port
    struct http_connection *connections;
    struct http_exchange *exchanges;
    size_t open;  // exchanges
    bool resumed; // a connection was, since the last step, which MHD_get_timeout does not count
};

struct http_connection {
    int fd;
    double deadline; // for the beginning of a request, then for all of it; infinite while one is handled or answered
    bool ended;      // the client sends nothing more; something that it sent may still be unread
    struct http_exchange *exchange; // NULL until a request's first line has come
    struct http_connection *next;
};

struct http_header {
    const char *name, *value;
};

struct http_exchange {
    struct http_request request; // the first member
    struct http_server *server;
    struct http_exchange *next;
    struct MHD_Connection *connection; // NULL until the headers have come
    struct arena arena;
    const char *target;
    struct buf body, stream; // what came; what is to be sent
    size_t stream_sent;      // bytes of `stream` that the library has
    struct http_header headers[MAX_HEADERS];
    int header_count, code;
    struct MHD_Response *response; // until it is given to the library
    bool handled, suspended, finished, gone;
};

static struct http_exchange *http_exchange_of(const struct http_request *request) {
    return (struct http_exchange *)(uintptr_t)request;
}

static struct http_connection *http_connection_of(struct MHD_Connection *connection) {
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

// ---- waiting ----

// Asks to be told once, also if it has come already, of the end of what a client sends. If this fails, it is only seen
// later that the client has gone away.
static void http_watch(const struct http_server *server, struct http_connection *connection, int operation) {
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = connection};
    (void)epoll_ctl(server->epoll, operation, connection->fd, &event);
}

static void http_suspend(struct http_exchange *exchange) {
    MHD_suspend_connection(exchange->connection);
    exchange->suspended = true;
    http_watch(exchange->server, http_connection_of(exchange->connection), EPOLL_CTL_MOD);
}

static void http_resume(struct http_exchange *exchange) {
    if (!exchange->suspended) return;
    exchange->suspended = false;
    exchange->server->resumed = true;
    MHD_resume_connection(exchange->connection);
}

// ---- answers ----

void http_add_header(struct http_request *request, const char *name, const char *value) {
    struct http_exchange *exchange = http_exchange_of(request);
    assert(exchange->header_count < MAX_HEADERS);
    exchange->headers[exchange->header_count++] =
        (struct http_header){arena_printf(&exchange->arena, "%s", name), arena_printf(&exchange->arena, "%s", value)};
}

void http_add_page_headers(struct http_request *request) {
    http_add_header(request, "Content-Security-Policy",
                    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    http_add_header(request, "Referrer-Policy", "no-referrer");
    http_add_header(request, "Cross-Origin-Resource-Policy", "same-origin");
    http_add_header(request, "Cross-Origin-Opener-Policy", "same-origin");
}

// The library has the answer from now on; MHD_NO if it does not take it.
static enum MHD_Result http_queue(struct http_exchange *exchange) {
    const enum MHD_Result result =
        MHD_queue_response(exchange->connection, (unsigned)exchange->code, exchange->response);
    MHD_destroy_response(exchange->response);
    exchange->response = NULL;
    return result;
}

static void http_respond(struct http_exchange *exchange, int code, const char *type, struct MHD_Response *response) {
    assert(!exchange->code);
    exchange->code = code;
    exchange->response = mem_checked(response);
    if (type) mem_checked((void *)(uintptr_t)MHD_add_response_header(response, "Content-Type", type));
    mem_checked((void *)(uintptr_t)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff"));
    for (int i = 0; i < exchange->header_count; i++)
        mem_checked((void *)(uintptr_t)MHD_add_response_header(response, exchange->headers[i].name,
                                                               exchange->headers[i].value));
    http_resume(exchange);
}

void http_answer(struct http_request *request, int code, const char *type, struct buf *body) {
    struct MHD_Response *response = MHD_create_response_from_buffer(
        body->size, body->data, body->data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    http_respond(http_exchange_of(request), code, type, response);
    *body = (struct buf){0};
}

void http_refuse(struct http_request *request, int code, const char *format, ...) {
    const struct http_options *options = &http_exchange_of(request)->server->options;
    const char *type = "text/plain; charset=utf-8";
    struct buf text = {0}, body = {0};
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    utf8_replace(line, strlen(line), &text); // a line that is too long may be cut within a character
    if (options->describe)
        type = options->describe(options->context, code, text.data, &body);
    else
        buf_printf(&body, "%s\n", text.data);
    http_answer(request, code, type, &body);
    buf_release(&text);
}

bool http_allows(struct http_request *request, const char *methods) {
    const size_t length = strlen(request->method);
    const bool gets = strstr(methods, "GET") != NULL;
    for (const char *at = methods; *at; at += strcspn(at, ", "), at += strspn(at, ", "))
        if (!strncmp(at, request->method, length) && (!at[length] || strchr(", ", at[length]))) return true;
    http_add_header(request, "Allow",
                    gets ? arena_printf(&http_exchange_of(request)->arena, "%s, HEAD", methods) : methods);
    http_refuse(request, 405, "%s is not allowed here", request->method);
    return false;
}

// The library asks for more of a stream.
static ssize_t http_on_room(void *context, uint64_t position, char *data, size_t most) {
    struct http_exchange *exchange = context;
    const size_t left = http_unsent(&exchange->request), size = left < most ? left : most;
    (void)position;
    if (exchange->gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (!size && exchange->finished) return MHD_CONTENT_READER_END_OF_STREAM;
    if (!size) {
        http_suspend(exchange);
        return 0;
    }
    memcpy(data, exchange->stream.data + exchange->stream_sent, size);
    exchange->stream_sent += size;
    if (size == left) {
        buf_clear(&exchange->stream);
        exchange->stream_sent = 0;
    }
    return (ssize_t)size;
}

void http_stream(struct http_request *request, int code, const char *type) {
    struct http_exchange *exchange = http_exchange_of(request);
    http_respond(exchange, code, type,
                 MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, http_on_room, exchange, NULL));
}

void http_send(struct http_request *request, const void *data, size_t size) {
    struct http_exchange *exchange = http_exchange_of(request);
    assert(exchange->code && !exchange->finished);
    if (exchange->gone) return;
    buf_append(&exchange->stream, data, size);
    http_resume(exchange);
}

size_t http_unsent(const struct http_request *request) {
    return http_exchange_of(request)->stream.size - http_exchange_of(request)->stream_sent;
}

void http_finish(struct http_request *request) {
    struct http_exchange *exchange = http_exchange_of(request);
    exchange->finished = true;
    http_resume(exchange);
}

// ---- requests ----

void http_drop_body(struct http_request *request) {
    buf_release(&http_exchange_of(request)->body);
    request->body = string_of("");
}

// Looks for a header and counts how often it is there.
struct http_search {
    const char *name, *value;
    int count;
};

static enum MHD_Result http_search_visit(void *context, enum MHD_ValueKind kind, const char *key, const char *value) {
    struct http_search *search = context;
    (void)kind;
    if (strcasecmp(key, search->name) != 0) return MHD_YES;
    search->value = value ? value : "";
    search->count++;
    return MHD_YES;
}

static struct http_search http_search_run(const struct http_exchange *exchange, const char *name) {
    struct http_search search = {.name = name};
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, http_search_visit, &search);
    return search;
}

const char *http_find_header(const struct http_request *request, const char *name) {
    const struct http_search search = http_search_run(http_exchange_of(request), name);
    return search.count == 1 ? search.value : NULL;
}

const char *http_find_cookie(struct http_request *request, const char *name) {
    const char *cookies = http_find_header(request, "Cookie");
    return cookies ? http_parse_cookie(&http_exchange_of(request)->arena, cookies, name) : NULL;
}

// A request's first line has come. What this returns is the `tag` of the other functions.
static void *http_on_target(void *context, const char *target, struct MHD_Connection *connection) {
    struct http_server *server = context;
    struct http_exchange *exchange = NULL;
    http_connection_of(connection)->deadline = clock_monotonic() + server->options.timeout;
    NEW(&exchange, 1);
    http_connection_of(connection)->exchange = exchange;
    exchange->server = server;
    exchange->target = arena_printf(&exchange->arena, "%s", target);
    exchange->next = server->exchanges;
    server->exchanges = exchange;
    server->open++;
    return exchange;
}

// Is called when the headers have come, with each piece of the body, when the request is complete, and again when its
// connection was resumed.
static enum MHD_Result http_on_request(void *context, struct MHD_Connection *connection, const char *url,
                                       const char *method, const char *version, const char *data, size_t *size,
                                       void **tag) {
    struct http_server *server = context;
    struct http_exchange *exchange = *tag;
    (void)url, (void)version;
    if (exchange->gone) return MHD_NO;
    if (!exchange->connection) {
        exchange->connection = connection;
        struct http_request *request = &exchange->request;
        const struct http_search host = http_search_run(exchange, "Host");
        const struct http_search length = http_search_run(exchange, "Content-Length");
        request->method = strcmp(method, "HEAD") != 0 ? arena_printf(&exchange->arena, "%s", method) : "GET";
        if (host.count != 1 || !http_host_matches(host.value, server->name, server->options.host, server->port))
            http_refuse(request, 421, "Host must be the name of this server, once, with its port");
        else if (http_parse_target(&exchange->arena, exchange->target, request) != OK)
            http_refuse(request, 400, "%s", fail_text());
        else if (http_search_run(exchange, "Transfer-Encoding").count || length.count > 1)
            http_refuse(request, 411, "a body must come with one Content-Length");
        else if (length.count && strtoull(length.value, NULL, 10) > server->options.largest_body)
            http_refuse(request, 413, "the body is larger than %zu bytes", server->options.largest_body);
        else if (server->options.admit)
            server->options.admit(server->options.context, request);
        return exchange->response ? http_queue(exchange) : MHD_YES;
    }
    if (*size) {
        if (exchange->body.size + *size > server->options.largest_body) return MHD_NO;
        buf_append(&exchange->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!exchange->handled) {
        exchange->handled = true;
        http_connection_of(exchange->connection)->deadline = (double)INFINITY;
        exchange->request.body = (struct string){exchange->body.data ? exchange->body.data : "", exchange->body.size};
        server->options.handle(server->options.context, &exchange->request);
    }
    if (exchange->response) return http_queue(exchange);
    http_suspend(exchange);
    return MHD_YES;
}

static void http_on_completed(void *context, struct MHD_Connection *connection, void **tag,
                              enum MHD_RequestTerminationCode why) {
    struct http_server *server = context;
    struct http_exchange *exchange = *tag, **at = &server->exchanges;
    if (!exchange) return;
    server->open--;
    if (exchange->handled && server->options.ended)
        server->options.ended(server->options.context, &exchange->request, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    http_connection_of(connection)->deadline = clock_monotonic() + server->options.idle;
    http_connection_of(connection)->exchange = NULL;
    while (*at != exchange) at = &(*at)->next;
    *at = exchange->next;
    if (exchange->response) MHD_destroy_response(exchange->response);
    buf_release(&exchange->body);
    buf_release(&exchange->stream);
    arena_release(&exchange->arena);
    free(exchange);
    *tag = NULL;
}

static void http_on_connection(void *context, struct MHD_Connection *connection, void **tag,
                               enum MHD_ConnectionNotificationCode what) {
    struct http_server *server = context;
    struct http_connection *made = *tag, **at = &server->connections;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        NEW(&made, 1);
        made->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        made->deadline = clock_monotonic() + server->options.idle;
        made->next = server->connections;
        server->connections = *tag = made;
        http_watch(server, made, EPOLL_CTL_ADD);
        return;
    }
    (void)epoll_ctl(server->epoll, EPOLL_CTL_DEL, made->fd, NULL);
    while (*at != made) at = &(*at)->next;
    *at = made->next;
    free(made);
    *tag = NULL;
}

static void http_on_log(void *context, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));

static void http_on_log(void *context, const char *format, va_list arguments) {
    char line[512];
    (void)context;
    vsnprintf(line, sizeof line, format, arguments);
    line[strcspn(line, "\n")] = 0;
    log_debug("http: %s", line);
}

// ---- the server ----

status http_open(struct http_server **out, const struct http_options *options) {
    struct http_server *server = NULL;
    struct sockaddr_storage address;
    struct sockaddr_in *four = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
    char text[INET6_ADDRSTRLEN];
    socklen_t size = 0;
    int listening = -1;
    status result;
    NEW(&server, 1);
    server->options = *options;
    if (!server->options.timeout) server->options.timeout = 30;
    if (!server->options.idle) server->options.idle = 30;
    if (server->options.idle > server->options.timeout) server->options.idle = server->options.timeout;
    if (!server->options.connections) server->options.connections = 32;
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    TRY_TO(result, fail, http_parse_listen(options->listen, &address, &size));
    const bool is_six = address.ss_family == AF_INET6;
    in_port_t *port = is_six ? &six->sin6_port : &four->sin_port;
    const int on = 1;
    listening = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listening < 0) TRY_TO(result, fail, fail(UNAVAILABLE, "%s: %s", options->listen, strerror(errno)));
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (is_six) setsockopt(listening, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    bool bound = false;
    for (int i = 0; !bound; i++) {
        bound = !bind(listening, (struct sockaddr *)&address, size) && !listen(listening, 128);
        if (bound || errno != EADDRINUSE || !options->next_port || i == NEXT_PORTS || ntohs(*port) == 65535) break;
        *port = htons((in_port_t)(ntohs(*port) + 1));
    }
    if (!bound || getsockname(listening, (struct sockaddr *)&address, &size))
        TRY_TO(result, fail, fail(UNAVAILABLE, "%s: %s", options->listen, strerror(errno)));
    inet_ntop(address.ss_family, is_six ? (void *)&six->sin6_addr : (void *)&four->sin_addr, text, sizeof text);
    snprintf(server->name, sizeof server->name, is_six ? "[%s]" : "%s", text);
    server->port = ntohs(*port);
    snprintf(server->address, sizeof server->address, "%s:%d", server->name, server->port);
    server->loopback = is_six ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) : ntohl(four->sin_addr.s_addr) >> 24 == 127;
    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, http_on_request, server,
        MHD_OPTION_EXTERNAL_LOGGER, http_on_log, NULL, MHD_OPTION_LISTEN_SOCKET, listening, HTTP_STRICT, 1,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->options.connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)server->options.timeout,
        MHD_OPTION_URI_LOG_CALLBACK, http_on_target, server, MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, server, MHD_OPTION_END);
    struct epoll_event event = {.events = EPOLLIN};
    const int inner = server->daemon ? MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd : -1;
    if (server->epoll < 0 || !server->daemon || epoll_ctl(server->epoll, EPOLL_CTL_ADD, inner, &event))
        TRY_TO(result, fail, fail(UNAVAILABLE, "%s: cannot serve HTTP: %s", options->listen, strerror(errno)));
    *out = server;
    return OK;
fail:
    if (listening >= 0 && !server->daemon) close(listening); // otherwise it is the daemon's
    http_close(&server);
    return result;
}

void http_close(struct http_server **server) {
    struct http_server *closing = *server;
    if (!closing) return;
    for (struct http_exchange *exchange = closing->exchanges; exchange; exchange = exchange->next) {
        exchange->gone = true;
        http_resume(exchange);
    }
    if (closing->daemon) MHD_stop_daemon(closing->daemon);
    assert(!closing->exchanges && !closing->connections);
    if (closing->epoll >= 0) close(closing->epoll);
    free(closing);
    *server = NULL;
}

void http_stop_listening(struct http_server *server) {
    const int listening = MHD_quiesce_daemon(server->daemon);
    if (listening >= 0) close(listening);
}

int http_fd(const struct http_server *server) {
    return server->epoll;
}

int http_timeout_ms(const struct http_server *server) {
    MHD_UNSIGNED_LONG_LONG milliseconds = 0;
    double wait = (double)INFINITY;
    if (MHD_get_timeout(server->daemon, &milliseconds) == MHD_YES) wait = (double)milliseconds;
    if (server->resumed) wait = 0;
    const double now = clock_monotonic();
    for (const struct http_connection *at = server->connections; at; at = at->next)
        wait = fmin(wait, fmax(0, ceil((at->deadline - now) * 1000)));
    return isinf(wait) ? -1 : (int)fmin(wait, 1e9);
}

// Whether a connection whose client sends nothing more has nothing left to read.
static bool http_is_drained(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

status http_step(struct http_server *server) {
    const double end = clock_monotonic() + STEP_MS * 1e-3;
    MHD_UNSIGNED_LONG_LONG wait = 0;
    double now;
    bool more;
    do { // the library reads a piece of each connection at a time
        struct epoll_event events[16];
        const int count = epoll_wait(server->epoll, events, 16, 0);
        server->resumed = false;
        for (int i = 0; i < count; i++) {
            struct http_connection *connection = events[i].data.ptr;
            if (!connection) continue; // the library's
            connection->ended = true;
            struct http_exchange *exchange = connection->exchange;
            if (!exchange || !exchange->suspended) continue;
            exchange->gone = true;
            http_resume(exchange);
        }
        if (MHD_run(server->daemon) != MHD_YES) return fail(UNAVAILABLE, "%s: cannot serve HTTP", server->address);
        more = count > 0 || server->resumed || (MHD_get_timeout(server->daemon, &wait) == MHD_YES && !wait);
        now = clock_monotonic();
    } while (more && now < end);
    for (struct http_connection *at = server->connections; at; at = at->next) {
        // Half a request stays half a request if the library has read all and the client sends nothing more.
        const bool aborted = at->ended && !more && isfinite(at->deadline) && http_is_drained(at->fd);
        if (at->deadline > now && !aborted) continue;
        at->deadline = (double)INFINITY;
        shutdown(at->fd, SHUT_RDWR); // the library sees the end of the connection
    }
    return OK;
}

size_t http_open_requests(const struct http_server *server) {
    return server->open;
}

const char *http_address(const struct http_server *server) {
    return server->address;
}

bool http_is_loopback(const struct http_server *server) {
    return server->loopback;
}
