// The file of --config: one YAML map of keys.
#include "shared/config/options.h"

#include <string.h>

#include "shared/base/file.h"
#include "shared/config/yaml_tree.h"
#include "shared/config/table.h"
#include "shared/config/option_value.h"

char *option_absolute(const struct option *key, const char *folder, const char *value, struct arena *arena) {
    bool path = key->type == OPTION_PATH || (key->type == OPTION_FILE && choice_index(key->choices, value) < 0);
    if (!path || !*value) return arena_strndup(arena, value, strlen(value));
    if (!folder || !*folder) folder = ".";
    while (value[0] == '.' && value[1] == '/') value += 2 + strspn(value + 2, "/");
    if (!*value || !strcmp(value, ".")) return arena_strndup(arena, folder, strlen(folder));
    return strcmp(folder, ".") ? path_join(arena, folder, value) : arena_strndup(arena, value, strlen(value));
}

static status set_pair(struct settings *settings, const char *folder, yaml_node_t *name_node, yaml_node_t *value_node) {
    struct arena memory = {0};
    const char *name = yaml_node_string(name_node), *value = yaml_node_string(value_node);
    struct location place = yaml_node_location(value_node);
    status result = OK;
    if (!name) {
        place = yaml_node_location(name_node);
        result = fail(USAGE, "a key must be a name, not %s", yaml_node_kind(name_node));
    } else if (!value) {
        result = fail(USAGE, "%s: %s where a value belongs", name, yaml_node_kind(value_node));
    } else {
        const struct option *key = option_find(settings_table(settings), name);
        if (!key) place = yaml_node_location(name_node);
        char *resolved = key ? option_absolute(key, folder, value, &memory) : NULL;
        if (key && !strcmp(key->name, "config")) {
            result = fail(USAGE, "config: not inside such a file");
        } else if (key && !resolved) {
            result = fail_oom();
        } else {
            result = settings_set(settings, name, key ? resolved : value);
        }
    }
    if (result != OK) fail_prefix(result, "%zu:%zu", place.line, place.column);
    arena_release(&memory);
    return result;
}

static status set_pairs(struct settings *settings, struct yaml_tree *document, const char *folder) {
    yaml_node_t *root = document->root;
    if (!root) return OK;
    if (root->type != YAML_MAPPING_NODE)
        return fail(DATAERR, "1:1: not a mapping of keys but %s", yaml_node_kind(root));
    for (yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++)
        TRY(set_pair(settings, folder, yaml_tree_node(document, pair->key), yaml_tree_node(document, pair->value)));
    return OK;
}

status settings_file(struct settings *settings, const char *path) {
    struct arena memory = {0};
    struct buf content = {0};
    struct yaml_tree document = {0};
    struct location place;
    status result;
    const char *slash = strrchr(path, '/');
    char *folder = arena_strndup(&memory, path, slash ? (size_t)(slash - path) + 1 : 0);
    if (!folder) return fail_oom();
    result = file_read(path, &content);
    if (result != OK) goto done;
    result = yaml_tree_read(&document, content.data, content.size, &place);
    if (result == OK) result = set_pairs(settings, &document, folder);
    if (result != OK) fail(result, "%s:%s", path, fail_text());
done:
    yaml_tree_release(&document);
    buf_release(&content);
    arena_release(&memory);
    return result;
}
