// JSON files with json-c (it keeps NULs inside strings and the order of keys): strict, UTF-8, errors that name the file
// and the key.
#ifndef SHARED_TEXT_JSON_H
#define SHARED_TEXT_JSON_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

// Parses one whole JSON value; INPUT with the byte and the reason. Release with json_object_put.
status json_text(struct json_object **out, const char *data, size_t size);

// Reads a file that must hold a JSON object; INPUT names the file.
status json_file(struct json_object **out, const char *path);

// The value of a key if it is there, not null and of that type; *out is NULL if it is not there or null. INPUT when it
// is of another type.
status json_find(struct json_object *object, const char *key, enum json_type type, struct json_object **out);

// A key's boolean; `otherwise` if it is not there.
status json_flag(struct json_object *object, const char *key, bool otherwise, bool *out);

#endif
