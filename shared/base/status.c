#include "shared/base/status.h"
#undef fail
#undef fail_prefix
#undef fail_oom

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/log.h"

static _Thread_local char text[2048];

status fail(status code, const char *format, ...) {
    char fresh[sizeof text]; // the arguments may point into `text` itself
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fresh, sizeof fresh, format, arguments);
    va_end(arguments);
    memcpy(text, fresh, sizeof text);
    return code;
}

status fail_prefix(status code, const char *format, ...) {
    char prefix[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    return fail(code, "%s: %s", prefix, text);
}

status fail_oom(void) {
    return fail(UNAVAILABLE, "out of memory");
}

const char *fail_text(void) {
    return text;
}

void fail_trace(status code, const char *expression, const char *file, int line) {
    log_debug("%s:%d: status %d from %s", file, line, (int)code, expression);
}
