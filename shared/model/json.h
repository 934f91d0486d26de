// JSON files of a model folder, read strictly: one value, UTF-8, nothing behind it.
#ifndef SHARED_MODEL_JSON_H
#define SHARED_MODEL_JSON_H

#include <stddef.h>

#include <json-c/json.h>

#include "shared/base/status.h"

// *out = the object that text[0..size) holds; INPUT says what is wrong, with `name` in front. Release with
// json_object_put.
status json_parse(json_object **out, const char *text, size_t size, const char *name);

// The same for a file.
status json_read_file(json_object **out, const char *path);

#endif
