// A small HTTP server in the thread of its caller, who polls a descriptor and calls http_step. No other file knows
// libmicrohttpd.
//
// Before a request reaches the handler, its address was decoded strictly (400), it had exactly one Host header with a
// name that is allowed (421), and a body came with its length (411), which was not above the limit (413). The library
// itself answers 400, 414 and 431 for what is no HTTP or does not fit into a connection's memory. A connection that
// takes too long to send a request, or to begin one, is closed, and so is one whose client goes away within a request.
//
// Nothing here may be called by two threads at a time.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct http_server;

// An argument of an address.
struct http_argument {
    const char *name, *value; // UTF-8; "" where the argument has no '='
};

// What a client asks. It belongs to the server, and is valid until `ended` was called with it.
struct http_request {
    const char *method;              // "GET" also for HEAD, whose answer is sent without its body
    const char *path;                // decoded UTF-8, begins with '/'; may contain "..": never a part of a file's path
    struct http_argument *arguments; // in their order, each name once
    size_t argument_count;
    struct string body; // as it was sent; NUL-terminated
    void *tag;          // the caller's
};

struct http_options {
    const char *listen;  // "127.0.0.1:6141", "[::1]:6141" or "localhost:6141"; port 0: any that is free
    const char *host;    // another name that Host may have, without port; NULL: none
    bool next_port;      // if the port is taken, one of the next 100 will do
    int connections;     // at most; further ones wait until one is closed. 0: 32
    int timeout;         // seconds in which a request must have come, and a client must take some of an answer. 0: 30
    int idle;            // seconds that a connection may have no request, at most those of `timeout`. 0: 30
    size_t largest_body; // bytes
    void *context;       // of the functions that follow
    // Is called when a request's headers have come. If it answers, the body is not read, and nothing else is called.
    // NULL: nothing.
    void (*admit)(void *context, struct http_request *request);
    // Is called once for each request. It answers, or does so later.
    void (*handle)(void *context, struct http_request *request);
    // Is called once for each request that was handled, when its answer was sent (`sent`), or when the client has gone
    // away or the server is closed. The request is freed then. NULL: nothing.
    void (*ended)(void *context, struct http_request *request, bool sent);
    // Appends the body of an answer that http_refuse makes, and returns its type. NULL: a line of plain text.
    const char *(*describe)(void *context, int code, const char *text, struct buf *body);
};

// Starts to listen. USAGE: `listen` is no address with a port; UNAVAILABLE: the port is taken. Close it with
// http_close. SIGPIPE must be ignored.
status http_open(struct http_server **out, const struct http_options *options);

// Closes every connection, and calls `ended` for what is under way. NULL is fine; sets *server to NULL.
void http_close(struct http_server **server);

// Stops to listen. What is under way goes on.
void http_stop_listening(struct http_server *server);

// Returns the descriptor to poll for input. It stays the same.
int http_fd(const struct http_server *server);

// Returns after how many milliseconds http_step must be called although nothing has come; -1: never.
int http_timeout_ms(const struct http_server *server);

// Does what can be done without waiting, for about 10 ms at most: reads, calls the handler, writes. UNAVAILABLE: the
// library cannot go on.
status http_step(struct http_server *server);

// Returns how many requests have begun to come and have not ended.
size_t http_open_requests(const struct http_server *server);

// Returns the address with the port in use: "127.0.0.1:6142".
const char *http_address(const struct http_server *server);

// Whether only processes of this machine reach the address.
bool http_is_loopback(const struct http_server *server);

// ---- what a request has ----

// Returns the value of an argument, NULL if there is none.
const char *http_find_argument(const struct http_request *request, const char *name);

// Frees the body, which is empty then.
void http_drop_body(struct http_request *request);

// Returns the value of a header, NULL if there is none or more than one of this name.
const char *http_find_header(const struct http_request *request, const char *name);

// Returns the value of a cookie, NULL if there is none or more than one of this name.
const char *http_find_cookie(struct http_request *request, const char *name);

// ---- answers ----

// A request gets one answer: one call of http_answer, http_refuse or http_stream, in the handler or later.

// Adds a header to the answer, before it is made. At most 16.
void http_add_header(struct http_request *request, const char *name, const char *value);

// Adds the headers of a page that loads nothing from elsewhere and that no other site may show or read.
void http_add_page_headers(struct http_request *request);

// Answers with a whole body, of which it takes the memory: `body` is empty then. `type` is its media type, NULL if
// there is no body.
void http_answer(struct http_request *request, int code, const char *type, struct buf *body);

// Answers with a line that says why the request is refused.
void http_refuse(struct http_request *request, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Whether the request's method is one of `methods` ("GET, POST"), of which GET includes HEAD. Otherwise answers 405.
bool http_allows(struct http_request *request, const char *methods);

// Begins an answer that is sent as it comes: a body of http_send's pieces up to http_finish.
void http_stream(struct http_request *request, int code, const char *type);

// Appends to such an answer. Nothing is lost if the client is slow, and nothing happens if it has gone away.
void http_send(struct http_request *request, const void *data, size_t size);

// Returns how many bytes of the stream the server still has.
size_t http_unsent(const struct http_request *request);

// Ends such an answer.
void http_finish(struct http_request *request);

// ---- secrets ----

enum { HTTP_TOKEN_SIZE = 33 };

// Sets `token` to 128 random bits as 32 hexadecimal digits.
void http_make_token(char token[HTTP_TOKEN_SIZE]);

// Whether the texts are equal; `given` may be NULL. The time says nothing about where they differ.
bool http_same_secret(const char *given, const char *secret);
