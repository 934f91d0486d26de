// The command line of every program, and the file of --config. Operands may stand anywhere; the file is read before the
// other options, so the command line wins.
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/config/options.h"
#include "shared/config/yaml_tree.h"

// ---- the file of --config ----

status options_read_file(struct options *options, const char *path) {
    struct buf content = {0};
    struct yaml_tree tree = {0};
    struct location at;
    const char *slash = strrchr(path, '/');
    const char *dir = arena_strndup(&options->arena, path, slash ? (size_t)(slash - path) + 1 : 0);
    if (!dir) return fail_oom();
    status result = file_read(path, &content);
    if (result != OK) goto done;
    result = yaml_tree_read(&tree, content.data, content.size, &at);
    if (result == OK && tree.root && tree.root->type != YAML_MAPPING_NODE)
        result = fail(DATAERR, "1:1: not a mapping of keys but %s", yaml_node_kind(tree.root));
    const yaml_node_pair_t *pair = result == OK && tree.root ? tree.root->data.mapping.pairs.start : NULL;
    for (; result == OK && pair && pair < tree.root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name_node = yaml_tree_node(&tree, pair->key),
                          *value_node = yaml_tree_node(&tree, pair->value);
        const char *name = yaml_node_string(name_node), *value = yaml_node_string(value_node);
        const struct option *option = name ? option_find(options->table, name) : NULL;
        if (!name) {
            result = fail(USAGE, "a key must be a name, not %s", yaml_node_kind(name_node));
        } else if (!value) {
            result = fail(USAGE, "%s: %s where a value belongs", name, yaml_node_kind(value_node));
        } else if (option && !strcmp(option->name, "config")) {
            result = fail(USAGE, "config: not inside such a file");
        } else {
            const char *absolute = option ? option_absolute(option, dir, value, &options->arena) : value;
            result = absolute ? options_set(options, name, absolute) : fail_oom();
        }
        at = yaml_node_location(name && (option || !value) ? value_node : name_node);
        if (result != OK) fail_prefix(result, "%zu:%zu", at.line, at.column);
    }
    if (result != OK) fail(result, "%s:%s", path, fail_text());
done:
    yaml_tree_release(&tree);
    buf_release(&content);
    return result;
}

// ---- the command line ----

// One option as it stands on the command line.
struct argument {
    char name[64];
    const char *value; // NULL: none was found yet
    const struct option *option;
};

// Parses argv[*at], which begins with "--", and moves *at to the last argument that belongs to it.
static status argument_parse(struct argument *argument, const struct option_table *table, int argc, char **argv,
                             int *at) {
    const char *name = argv[*at] + 2, *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    size_t length = strcspn(name, "=");
    *argument = (struct argument){.value = name[length] ? name + length + 1 : NULL};
    snprintf(argument->name, sizeof argument->name, "%.*s", (int)length, name);
    argument->option = length < sizeof argument->name ? option_find(table, argument->name) : NULL;
    if (!argument->option && !argument->value && (!strncmp(name, "no-", 3) || !strncmp(name, "no_", 3))) {
        argument->option = option_find(table, argument->name + 3);
        if (argument->option && argument->option->type != OPTION_BOOL) argument->option = NULL;
        argument->value = "false";
    }
    if (!argument->option) {
        const char *near = option_suggest(table, argument->name);
        if (near) return fail(USAGE, "--%s: no such option; did you mean --%s?", argument->name, near);
        return fail(USAGE, "--%s: no such option", argument->name);
    }
    if (argument->value) return OK;
    bool flag = argument->option->type == OPTION_BOOL;
    if (flag && (!next || option_check(argument->option, next) != OK)) {
        argument->value = "true";
        return OK;
    }
    if (!next) return fail(USAGE, "--%s: a value is missing", argument->name);
    argument->value = next;
    ++*at;
    return OK;
}

// Sets each option but --config, or --config alone. In the first case operands are counted and moved to the front.
static status options_parse_all(struct options *options, int argc, char **argv, bool config, int *operands) {
    bool ended = false;
    *operands = 0;
    for (int at = 1; at < argc; at++) {
        if (!ended && !strcmp(argv[at], "--")) {
            ended = true;
        } else if (ended || strncmp(argv[at], "--", 2) != 0) {
            if (!config) argv[1 + (*operands)++] = argv[at]; // the places up to `at` are read already
        } else {
            struct argument argument;
            TRY(argument_parse(&argument, options->table, argc, argv, &at));
            bool is_config = !strcmp(argument.option->name, "config");
            if (config != is_config) continue;
            TRY(options_set(options, argument.option->name, argument.value));
            if (config) TRY(options_read_file(options, argument.value));
        }
    }
    return OK;
}

status options_parse(struct options *options, int argc, char **argv, int *rest) {
    const struct option_table *table = options->table;
    struct buf text = {0};
    status result = OK;
    int operands = 0;
    for (int at = 1; at < argc && result == OK && !text.size && strcmp(argv[at], "--") != 0; at++) {
        if (!strcmp(argv[at], "--help") || !strcmp(argv[at], "-h"))
            result = options_help(table, &text);
        else if (!strcmp(argv[at], "--version"))
            result = buf_printf(&text, "%s %s\n", table->program, CARAVAN_VERSION);
    }
    if (result == OK && text.size) {
        fwrite(text.data, 1, text.size, stdout);
        fflush(stdout);
        result = fail(END, "help was printed");
    }
    buf_release(&text);
    TRY(result);
    TRY(options_parse_all(options, argc, argv, true, &operands));
    TRY(options_parse_all(options, argc, argv, false, &operands));
    assert(operands < argc);
    *rest = argc - operands;
    memmove(argv + *rest, argv + 1, (size_t)operands * sizeof *argv);
    if (operands && !table->operands) return fail(USAGE, "%s: not expected here", argv[*rest]);
    return options_check(options);
}
