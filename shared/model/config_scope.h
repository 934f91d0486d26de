// The keys of a model directory's JSON files. A value of the wrong type or outside a range is refused with the key's
// name. A key that is null counts as missing.
#ifndef SHARED_MODEL_CONFIG_SCOPE_H
#define SHARED_MODEL_CONFIG_SCOPE_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/json.h"

// Where a key is looked up: in the inner object first, then in the outer one. Either may be NULL.
struct config_scope {
    struct json *inner, *outer;
    const char *prefix; // of the inner object's keys in messages: "vision_config."
};

// Returns the value of a key, or NULL. It lives as long as the objects.
struct json *config_find(struct config_scope scope, const char *key);

// *out = an integer in low..high, or `missing`. A key whose default is below `low` has no default: it must be there.
// DATAERR.
status config_int64(struct config_scope scope, const char *key, int64_t low, int64_t high, int64_t missing,
                    int64_t *out);

// The same for an int.
status config_int(struct config_scope scope, const char *key, int low, int high, int missing, int *out);

// *out = a number in low..high, or `missing`. DATAERR.
status config_float(struct config_scope scope, const char *key, double low, double high, double missing, float *out);

// *out = a boolean, or `missing`. DATAERR.
status config_bool(struct config_scope scope, const char *key, bool missing, bool *out);

// DATAERR if the key is there and is not the string `wanted`, the only value that is supported.
status config_require(struct config_scope scope, const char *key, const char *wanted);

#endif
