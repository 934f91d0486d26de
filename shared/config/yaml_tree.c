#include "shared/config/yaml_tree.h"

#include <stdbool.h>
#include <string.h>

static status yaml_tree_error(const yaml_parser_t *parser, struct location *at) {
    if (parser->error == YAML_MEMORY_ERROR) return fail_oom();
    bool reader = parser->error == YAML_READER_ERROR; // has no mark of its own
    yaml_mark_t mark = reader ? parser->mark : parser->problem_mark;
    *at = (struct location){mark.line + 1, mark.column + 1};
    return fail(DATAERR, "%zu:%zu: not YAML: %s", at->line, at->column,
                parser->problem ? parser->problem : "it cannot be read");
}

status yaml_tree_read(struct yaml_tree *tree, const char *data, size_t size, struct location *at) {
    *tree = (struct yaml_tree){0};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) return fail_oom();
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, size);
    status result = OK;
    yaml_document_t more;
    if (!yaml_parser_load(&parser, &tree->yaml)) {
        result = yaml_tree_error(&parser, at);
        goto done;
    }
    tree->root = yaml_document_get_root_node(&tree->yaml);
    if (!tree->root) {
        yaml_document_delete(&tree->yaml);
    } else if (!yaml_parser_load(&parser, &more)) {
        result = yaml_tree_error(&parser, at);
    } else {
        const yaml_node_t *second = yaml_document_get_root_node(&more);
        if (second) {
            *at = yaml_node_location(second);
            result = fail(DATAERR, "%zu:%zu: a second YAML document", at->line, at->column);
        }
        yaml_document_delete(&more);
    }
    if (result != OK) yaml_tree_release(tree);
done:
    yaml_parser_delete(&parser);
    return result;
}

void yaml_tree_release(struct yaml_tree *tree) {
    if (tree->root) yaml_document_delete(&tree->yaml);
    tree->root = NULL;
}

yaml_node_t *yaml_tree_node(struct yaml_tree *tree, int index) {
    return yaml_document_get_node(&tree->yaml, index);
}

struct location yaml_node_location(const yaml_node_t *node) {
    return (struct location){node->start_mark.line + 1, node->start_mark.column + 1};
}

const char *yaml_node_string(const yaml_node_t *node) {
    if (!node || node->type != YAML_SCALAR_NODE) return NULL;
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

const char *yaml_node_kind(const yaml_node_t *node) {
    switch (node ? node->type : YAML_NO_NODE) {
    case YAML_SCALAR_NODE:
        return strlen((const char *)node->data.scalar.value) == node->data.scalar.length ? "a string"
                                                                                         : "a string with a NUL";
    case YAML_SEQUENCE_NODE:
        return "an array";
    case YAML_MAPPING_NODE:
        return "a mapping";
    default:
        return "nothing";
    }
}
