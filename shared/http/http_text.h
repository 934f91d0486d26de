// The texts of HTTP that are parsed here: addresses of requests, cookies, Host, and the address to listen to.
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

#include "shared/http/http.h"

// Sets path and arguments of a request from the address of its first line: "/groups?where=a%3E1". Percent escapes are
// decoded, and '+' in arguments to a blank. DATAERR: it does not begin with '/'; a character that must be escaped; a
// broken escape; a NUL or no UTF-8 in what was escaped; an argument given twice.
status http_parse_target(struct arena *arena, const char *target, struct http_request *request);

// Returns the value of a cookie in the header `cookies`, NULL if it has none or more than one of this name.
const char *http_parse_cookie(struct arena *arena, const char *cookies, const char *name);

// Whether a Host header names this server: "NAME:PORT", for port 80 also "NAME". NAME is 127.0.0.1, [::1], localhost,
// or one of `address` and `host`, which may be NULL.
bool http_host_matches(const char *value, const char *address, const char *host, int port);

// Parses an address to listen to. USAGE.
status http_parse_listen(const char *text, struct sockaddr_storage *address, socklen_t *size);
