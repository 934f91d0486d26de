#include "shared/base/status.h"
#undef fail
#undef fail_prefix

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#include "shared/base/log.h"

static_assert(USAGE == EX_USAGE && DATAERR == EX_DATAERR, "exit codes are those of <sysexits.h>");
static_assert(UNAVAILABLE == EX_UNAVAILABLE && BUG == EX_SOFTWARE, "exit codes are those of <sysexits.h>");
static_assert(STOPPED == EX_TEMPFAIL, "exit codes are those of <sysexits.h>");

static _Thread_local char fail_message[2048];

status fail(status code, const char *format, ...) {
    char message[sizeof fail_message]; // the arguments may point into fail_message
    assert(code != OK);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    memcpy(fail_message, message, sizeof fail_message);
    return code;
}

status fail_prefix(status code, const char *format, ...) {
    char prefix[512];
    static_assert(sizeof prefix < sizeof fail_message, "room must remain for the message");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    return fail(code, "%s: %s", prefix, fail_message);
}

int status_exit_code(status result) {
    if (result == OK || result == END) return 0;
    return result >= USAGE ? (int)result : BUG;
}

const char *fail_text(void) {
    return fail_message;
}

void fail_trace(status code, const char *expression, const char *file, int line) {
    log_debug("%s:%d: status %d from %s", file, line, (int)code, expression);
}
