#include "shared/model/json.h"

#include <limits.h>

#include "shared/base/file.h"

status json_parse(json_object **out, const char *text, size_t size, const char *name) {
    *out = NULL;
    if (size > INT_MAX / 2) return fail(INPUT, "%s: JSON of %zu bytes is too long", name, size);
    json_tokener *reader = json_tokener_new_ex(64);
    if (!reader) return fail(SERVICE, "out of memory");
    json_tokener_set_flags(reader, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    json_object *value = json_tokener_parse_ex(reader, text, (int)size);
    enum json_tokener_error error = json_tokener_get_error(reader);
    size_t end = json_tokener_get_parse_end(reader);
    json_tokener_free(reader);
    status result = OK;
    while (end < size && (text[end] == ' ' || text[end] == '\n' || text[end] == '\r' || text[end] == '\t')) end++;
    if (error != json_tokener_success) {
        result = fail(INPUT, "%s: not JSON: %s at byte %zu", name, json_tokener_error_desc(error), end);
    } else if (end < size) {
        result = fail(INPUT, "%s: not JSON: something follows the object at byte %zu", name, end);
    } else if (!json_object_is_type(value, json_type_object)) {
        result = fail(INPUT, "%s: not a JSON object", name);
    }
    if (result != OK) {
        json_object_put(value);
        value = NULL;
    }
    *out = value;
    return result;
}

status json_read_file(json_object **out, const char *path) {
    *out = NULL;
    bytes content = {0};
    status result = file_read(path, &content);
    if (result == OK) result = json_parse(out, content.data ? content.data : "", content.size, path);
    bytes_release(&content);
    return result;
}
