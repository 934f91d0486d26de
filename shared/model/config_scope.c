#include "shared/model/config_scope.h"

#include <assert.h>
#include <string.h>

struct json *config_find(struct config_scope scope, const char *key) {
    struct json *value = scope.inner ? json_at(scope.inner, key) : NULL;
    return value || !scope.outer ? value : json_at(scope.outer, key);
}

status config_int64(struct config_scope scope, const char *key, int64_t low, int64_t high, int64_t missing,
                    int64_t *out) {
    assert(low <= high && missing <= high);
    struct json *value = config_find(scope, key);
    *out = missing;
    if (!value && missing >= low) return OK;
    if (!value) return fail(DATAERR, "%s%s is missing", scope.prefix, key);
    if (!json_int(value, out)) return fail(DATAERR, "%s%s is not an integer", scope.prefix, key);
    if (*out < low || *out > high)
        return fail(DATAERR, "%s%s is %lld, not in %lld..%lld", scope.prefix, key, (long long)*out, (long long)low,
                    (long long)high);
    return OK;
}

status config_int(struct config_scope scope, const char *key, int low, int high, int missing, int *out) {
    int64_t value = 0;
    TRY(config_int64(scope, key, low, high, missing, &value));
    *out = (int)value;
    return OK;
}

status config_float(struct config_scope scope, const char *key, double low, double high, double missing, float *out) {
    struct json *value = config_find(scope, key);
    *out = (float)missing;
    if (!value) return OK;
    double number;
    if (!json_double(value, &number)) return fail(DATAERR, "%s%s is not a number", scope.prefix, key);
    if (!(number >= low && number <= high))
        return fail(DATAERR, "%s%s is %g, not in %g..%g", scope.prefix, key, number, low, high);
    *out = (float)number;
    return OK;
}

status config_bool(struct config_scope scope, const char *key, bool missing, bool *out) {
    struct json *value = config_find(scope, key);
    *out = missing;
    if (!value) return OK;
    if (!json_is(value, JSON_BOOL)) return fail(DATAERR, "%s%s is not true or false", scope.prefix, key);
    *out = value->boolean;
    return OK;
}

status config_require(struct config_scope scope, const char *key, const char *wanted) {
    struct json *value = config_find(scope, key);
    if (!value) return OK;
    if (!json_is(value, JSON_STRING) || strcmp(json_text(value), wanted) != 0)
        return fail(DATAERR, "%s%s is %.100s; only \"%s\" is supported", scope.prefix, key, json_text(value), wanted);
    return OK;
}
