#include "shared/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *program = "caravan";
static bool debug;

void log_open(const char *name) {
    program = name;
    const char *asked = getenv("CARAVAN_DEBUG");
    debug = asked && *asked && *asked != '0';
}

const char *log_name(void) {
    return program;
}

static void write_line(const char *format, va_list arguments) {
    char line[4096];
    int used = snprintf(line, sizeof line, "%s: ", program);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    if (more < 0) return;
    used += more;
    if (used > (int)sizeof line - 2) used = (int)sizeof line - 2;
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)used);
    (void)written; // standard error is gone: there is nowhere left to say so
}

void log_info(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

void log_debug(const char *format, ...) {
    if (!debug) return;
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}
