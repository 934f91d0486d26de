// Objects, files and keys, with messages that name them.
#include "shared/base/file.h"
#include "shared/base/json.h"

status json_parse_object(json_object **out, const char *text, size_t size, const char *name) {
    status result = json_parse(out, text ? text : "", size);
    if (result == OK && !json_object_is_type(*out, json_type_object)) result = fail(DATAERR, "not a JSON object");
    if (result == OK) return OK;
    json_object_put(*out);
    *out = NULL;
    return fail_prefix(result, "%s", name);
}

status json_parse_file(json_object **out, const char *path) {
    struct buf content = {0};
    *out = NULL;
    status result = file_read(path, &content);
    if (result == OK) result = json_parse_object(out, content.data, content.size, path);
    buf_release(&content);
    return result;
}

status json_get(json_object *object, const char *key, enum json_type type, json_object **out) {
    if (!json_object_object_get_ex(object, key, out) || !*out) return OK; // get_ex sets NULL
    if (json_object_is_type(*out, type)) return OK;
    enum json_type got = json_object_get_type(*out);
    *out = NULL;
    return fail(DATAERR, "%s: %s where %s should be", key, json_type_to_name(got), json_type_to_name(type));
}

status json_get_bool(json_object *object, const char *key, bool otherwise, bool *out) {
    json_object *value;
    TRY(json_get(object, key, json_type_boolean, &value));
    *out = value ? json_object_get_boolean(value) : otherwise;
    return OK;
}
