// Reads any text as the address of a request, as a cookie, as a Host and as an address to listen to.
#include "tests/fuzz/fuzz.h"

#include "shared/http/http_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct http_request request = {0};
    struct sockaddr_storage address;
    struct arena arena = {0};
    socklen_t length;
    const char *text = arena_strndup(&arena, (const char *)data, size);
    if (http_parse_target(&arena, text, &request) == OK) {
        fuzz_must(*request.path == '/' && utf8_valid(request.path, strlen(request.path)));
        for (size_t i = 0; i < request.argument_count; i++)
            fuzz_must(http_find_argument(&request, request.arguments[i].name) == request.arguments[i].value);
    }
    const char *cookie = http_parse_cookie(&arena, text, "caravan-6141");
    if (cookie) fuzz_must(!strchr(cookie, ';'));
    if (http_host_matches(text, "127.0.0.1", NULL, 6141)) fuzz_must(strchr(text, ':') != NULL);
    if (http_parse_listen(text, &address, &length) == OK) fuzz_must(length <= sizeof address);
    arena_release(&arena);
    return 0;
}
