#include "shared/wire/log_limit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/log.h"

enum { MINUTE_MS = 60000, LINE_MAX_BYTES = 2048 };

bool log_limited(struct log_limit *limit, int64_t now_ms, const char *format, ...) {
    char line[LINE_MAX_BYTES];
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
    limit->lines[free_at].until = now_ms + MINUTE_MS;
    log_info("%s", line);
    return true;
}
