#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "shared/http/http_text.h"

// ---- addresses of requests ----

// Returns the value of a hexadecimal digit, -1 of another character.
static int http_digit(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

// *out = text[0..size), decoded.
static status http_decode(struct arena *arena, const char *text, size_t size, bool plus, const char **out) {
    char *decoded = arena_alloc(arena, size + 1);
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '%') {
            const int high = i + 2 < size ? http_digit(text[i + 1]) : -1;
            const int low = high >= 0 ? http_digit(text[i + 2]) : -1;
            if (low < 0) return fail(DATAERR, "the address has a broken escape");
            c = (char)(high * 16 + low);
            if (!c) return fail(DATAERR, "the address has a NUL");
            i += 2;
        } else if (plus && c == '+') {
            c = ' ';
        }
        decoded[count++] = c;
    }
    if (!utf8_valid(decoded, count)) return fail(DATAERR, "the address is not UTF-8");
    *out = decoded;
    return OK;
}

status http_parse_target(struct arena *arena, const char *target, struct http_request *request) {
    if (*target != '/') return fail(DATAERR, "the address does not begin with /");
    for (const char *at = target; *at; at++)
        if (*at <= ' ' || *at > '~') return fail(DATAERR, "the address has a character that must be escaped");
    const char *at = strchrnul(target, '?');
    TRY(http_decode(arena, target, (size_t)(at - target), false, &request->path));
    size_t most = 0;
    for (const char *p = at; *p; p++) most += *p == '?' || *p == '&';
    request->arguments = arena_alloc(arena, most * sizeof *request->arguments);
    while (*at) {
        const size_t size = strcspn(++at, "&"), name = strcspn(at, "=&");
        struct http_argument argument = {.value = ""};
        if (size) {
            TRY(http_decode(arena, at, name, true, &argument.name));
            if (name < size) TRY(http_decode(arena, at + name + 1, size - name - 1, true, &argument.value));
            if (http_find_argument(request, argument.name))
                return fail(DATAERR, "the address has an argument twice: %s", argument.name);
            request->arguments[request->argument_count++] = argument;
        }
        at += size;
    }
    return OK;
}

const char *http_find_argument(const struct http_request *request, const char *name) {
    for (size_t i = 0; i < request->argument_count; i++)
        if (!strcmp(request->arguments[i].name, name)) return request->arguments[i].value;
    return NULL;
}

// ---- headers ----

const char *http_parse_cookie(struct arena *arena, const char *cookies, const char *name) {
    const char *found = NULL;
    const size_t length = strlen(name);
    for (const char *at = cookies; *at;) {
        at += strspn(at, "; ");
        const size_t size = strcspn(at, ";");
        if (size > length && !strncmp(at, name, length) && at[length] == '=') {
            if (found) return NULL;
            found = arena_strndup(arena, at + length + 1, size - length - 1);
        }
        at += size;
    }
    return found;
}

bool http_host_matches(const char *value, const char *address, const char *host, int port) {
    const char *names[] = {"127.0.0.1", "[::1]", "localhost", address, host};
    char with_port[8];
    snprintf(with_port, sizeof with_port, ":%d", port);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t length = names[i] ? strlen(names[i]) : 0;
        if (!length || strncasecmp(value, names[i], length) != 0) continue;
        if (!strcmp(value + length, with_port) || (port == 80 && !value[length])) return true;
    }
    return false;
}

// ---- the address to listen to ----

status http_parse_listen(const char *text, struct sockaddr_storage *address, socklen_t *size) {
    struct sockaddr_in *four = (struct sockaddr_in *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    const char *colon = strrchr(text, ':');
    char name[64] = "", *end = NULL;
    const unsigned long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 65536;
    memset(address, 0, sizeof *address);
    if (port > 65535 || *end || (size_t)(colon - text) >= sizeof name)
        return fail(USAGE, "%s: this is no address with a port, such as 127.0.0.1:8000", text);
    memcpy(name, text, (size_t)(colon - text));
    const size_t length = strlen(name);
    if (!strcmp(name, "localhost")) strcpy(name, "127.0.0.1");
    if (inet_pton(AF_INET, name, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        *size = sizeof *four;
        return OK;
    }
    if (length > 2 && name[0] == '[' && name[length - 1] == ']') {
        name[length - 1] = 0;
        if (inet_pton(AF_INET6, name + 1, &six->sin6_addr) == 1) {
            six->sin6_family = AF_INET6;
            six->sin6_port = htons((uint16_t)port);
            *size = sizeof *six;
            return OK;
        }
    }
    return fail(USAGE, "%s: this is no address with a port, such as 127.0.0.1:8000", text);
}

// ---- secrets ----

void http_make_token(char token[HTTP_TOKEN_SIZE]) {
    unsigned char bits[16];
    if (getrandom(bits, sizeof bits, 0) != sizeof bits) abort(); // never for so few
    for (int i = 0; i < 16; i++) snprintf(token + 2 * i, 3, "%02x", bits[i]);
}

bool http_same_secret(const char *given, const char *secret) {
    const size_t length = strlen(secret), given_length = given ? strlen(given) : 0;
    volatile unsigned char difference = given_length != length;
    for (size_t i = 0; i < length; i++)
        difference |= (unsigned char)(secret[i] ^ (given_length ? given[i % given_length] : 0));
    return !difference;
}
