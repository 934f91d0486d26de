#include "shared/base/log.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/clock.h"

enum {
    LOG_LINE_SIZE = 4096,
    LOG_SUFFIX_SIZE = 64,
    LOG_TIME_SIZE = 32,
    NS_PER_S = 1000000000,
    NS_PER_MS = 1000000,
    LOG_MINUTE_MS = 60000
};

static const char *log_program = "caravan";
static char log_program_suffix[LOG_SUFFIX_SIZE];
static bool log_time_on, log_debug_on;

void log_open(const char *name) {
    assert(name);
    log_program = name;
    const char *debug = getenv("CARAVAN_DEBUG");
    log_debug_on = debug && *debug && *debug != '0';
}

void log_suffix(const char *suffix) {
    snprintf(log_program_suffix, sizeof log_program_suffix, "%s", suffix ? suffix : "");
}

void log_timestamps(bool on) {
    log_time_on = on;
}

const char *log_skip_time(const char *line) {
    int size = 0;
    sscanf(line, "%*4d-%*2d-%*2dT%*2d:%*2d:%*2d.%*3dZ %n", &size);
    return line + size;
}

const char *log_name(void) {
    return log_program;
}

void log_clean(char *text) {
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
}

__attribute__((format(printf, 2, 0))) static void log_write(bool clean, const char *format, va_list arguments) {
    char line[LOG_LINE_SIZE], when[LOG_TIME_SIZE] = "";
    static_assert(sizeof line > sizeof when + LOG_SUFFIX_SIZE + 1024, "the prefix must fit");
    if (log_time_on) {
        int64_t now = clock_realtime_ns();
        time_t seconds = (time_t)(now / NS_PER_S);
        struct tm utc;
        size_t size = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &utc));
        snprintf(when + size, sizeof when - size, ".%03dZ ", (int)(now % NS_PER_S / NS_PER_MS));
    }
    int used = snprintf(line, sizeof line, "%s%.1024s%s: ", when, log_program, log_program_suffix);
    assert(used > 0 && used < (int)sizeof line - 1);
    int size = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    if (size < 0) return;
    if (!clean) log_clean(line + used);
    used = size < (int)sizeof line - 1 - used ? used + size : (int)sizeof line - 2;
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)used);
    (void)written; // a message that cannot be written is lost
}

void log_info(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    log_write(false, format, arguments);
    va_end(arguments);
}

void log_lines(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    log_write(true, format, arguments);
    va_end(arguments);
}

void log_debug(const char *format, ...) {
    if (!log_debug_on) return;
    va_list arguments;
    va_start(arguments, format);
    log_write(false, format, arguments);
    va_end(arguments);
}

bool log_limited(struct log_limit *limit, int64_t now_ms, const char *format, ...) {
    char line[LOG_LINE_SIZE];
    int free_at = -1;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    const uint64_t hash = XXH3_64bits(line, strlen(line));
    for (int i = 0; i < LOG_LIMIT_LINES; i++) {
        const bool old = limit->lines[i].until <= now_ms;
        if (!old && limit->lines[i].hash == hash) return false;
        if (old) free_at = i;
    }
    if (free_at < 0) return false;
    limit->lines[free_at].hash = hash;
    limit->lines[free_at].until = now_ms + LOG_MINUTE_MS;
    log_info("%s", line);
    return true;
}
