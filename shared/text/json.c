#include "shared/text/json.h"

#include <limits.h>

#include "shared/base/file.h"

status json_text(struct json_object **out, const char *data, size_t size) {
    *out = NULL;
    if (size >= INT_MAX) return fail(INPUT, "longer than 2 GiB");
    struct json_tokener *parser = json_tokener_new();
    if (!parser) return fail(SERVICE, "out of memory");
    json_tokener_set_flags(parser, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *value = json_tokener_parse_ex(parser, data ? data : "", (int)size);
    enum json_tokener_error error = json_tokener_get_error(parser);
    // A number at the very end only ends when the end is said.
    if (error == json_tokener_continue) {
        value = json_tokener_parse_ex(parser, "", 1);
        error = json_tokener_get_error(parser);
    }
    status result = OK;
    if (error != json_tokener_success) {
        size_t place = json_tokener_get_parse_end(parser);
        json_object_put(value);
        value = NULL;
        result = error == json_tokener_continue || error == json_tokener_error_parse_eof || place >= size
                     ? fail(INPUT, "not JSON: it ends in the middle")
                     : fail(INPUT, "not JSON: %s at byte %zu", json_tokener_error_desc(error), place);
    }
    json_tokener_free(parser);
    *out = value;
    return result;
}

status json_file(struct json_object **out, const char *path) {
    bytes content = {0};
    *out = NULL;
    status result;
    TRY_TO(result, done, file_read(path, &content));
    result = json_text(out, content.data, content.size);
    if (result == OK && !json_object_is_type(*out, json_type_object)) result = fail(INPUT, "not a JSON object");
    if (result != OK) {
        json_object_put(*out);
        *out = NULL;
        fail_within(result, "%s", path);
    }
done:
    bytes_release(&content);
    return result;
}

status json_find(struct json_object *object, const char *key, enum json_type type, struct json_object **out) {
    if (!json_object_object_get_ex(object, key, out) || !*out) return OK; // get_ex sets NULL
    if (json_object_is_type(*out, type)) return OK;
    enum json_type got = json_object_get_type(*out);
    *out = NULL;
    return fail(INPUT, "%s: %s where %s should be", key, json_type_to_name(got), json_type_to_name(type));
}

status json_flag(struct json_object *object, const char *key, bool otherwise, bool *out) {
    struct json_object *value;
    TRY(json_find(object, key, json_type_boolean, &value));
    *out = value ? json_object_get_boolean(value) : otherwise;
    return OK;
}
