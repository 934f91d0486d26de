#include "shared/config/yaml_tree.h"

#include <stdbool.h>
#include <string.h>

enum { YAML_TREE_DEPTH = 100 }; // libyaml's time grows with the square of the depth

// Returns the location of the byte at `offset` of a UTF-8 text.
static struct location yaml_tree_offset_location(const char *data, size_t offset) {
    struct location at = {1, 1};
    for (size_t i = 0; i < offset; i++) {
        if (data[i] == '\n')
            at = (struct location){at.line + 1, 1};
        else
            at.column += ((unsigned char)data[i] & 0xC0) != 0x80; // a character counts once
    }
    return at;
}

// Whether the character at a location of a UTF-8 text is a tab.
static bool yaml_tree_is_tab(const char *data, size_t size, struct location at) {
    size_t i = 0;
    while (i < size && at.line > 1) at.line -= data[i++] == '\n';
    for (; i < size && at.column > 1; at.column--) do
            i++;
        while (i < size && ((unsigned char)data[i] & 0xC0) == 0x80);
    return i < size && data[i] == '\t';
}

static status yaml_tree_error(const yaml_parser_t *parser, const char *data, size_t size, struct location *at) {
    if (parser->error == YAML_MEMORY_ERROR) return fail_oom();
    const char *problem = parser->problem ? parser->problem : "it cannot be read";
    const bool utf8 = parser->encoding == YAML_UTF8_ENCODING;
    yaml_mark_t mark = parser->error == YAML_READER_ERROR ? parser->mark : parser->problem_mark;
    *at = (struct location){mark.line + 1, mark.column + 1};
    if (parser->error == YAML_READER_ERROR && utf8 && parser->problem_offset < size) {
        *at = yaml_tree_offset_location(data, parser->problem_offset); // the reader is ahead of its mark
        if (strstr(problem, "UTF-8"))
            return fail(DATAERR, "%zu:%zu: not YAML: the byte 0x%02X is not UTF-8: save the file as UTF-8", at->line,
                        at->column, (unsigned char)data[parser->problem_offset]);
    } else if (utf8 && yaml_tree_is_tab(data, size, *at)) {
        return fail(DATAERR, "%zu:%zu: not YAML: a tab; YAML is indented with spaces", at->line, at->column);
    }
    return fail(DATAERR, "%zu:%zu: not YAML: %s", at->line, at->column, problem);
}

// Reads all of the text without keeping it. DATAERR where it is not YAML or nested too deeply.
static status yaml_tree_check(const char *data, size_t size, struct location *at) {
    yaml_parser_t parser;
    yaml_event_t event;
    status result = OK;
    int depth = 0;
    if (!yaml_parser_initialize(&parser)) return fail_oom();
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, size);
    for (bool ended = false; !ended && result == OK;) {
        if (!yaml_parser_parse(&parser, &event)) {
            result = yaml_tree_error(&parser, data, size, at);
            break;
        }
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        ended = event.type == YAML_STREAM_END_EVENT;
        if (depth > YAML_TREE_DEPTH) {
            *at = (struct location){event.start_mark.line + 1, event.start_mark.column + 1};
            result = fail(DATAERR, "%zu:%zu: nested more than %d deep", at->line, at->column, YAML_TREE_DEPTH);
        }
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return result;
}

status yaml_tree_read(struct yaml_tree *tree, const char *data, size_t size, struct location *at) {
    *tree = (struct yaml_tree){0};
    yaml_parser_t parser;
    status result = OK;
    yaml_document_t more;
    TRY(yaml_tree_check(data, size, at));
    if (!yaml_parser_initialize(&parser)) return fail_oom();
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, size);
    if (!yaml_parser_load(&parser, &tree->yaml)) {
        result = yaml_tree_error(&parser, data, size, at);
        goto done;
    }
    tree->root = yaml_document_get_root_node(&tree->yaml);
    if (!tree->root) {
        yaml_document_delete(&tree->yaml);
    } else if (!yaml_parser_load(&parser, &more)) {
        result = yaml_tree_error(&parser, data, size, at);
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
