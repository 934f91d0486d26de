#include "shared/config/document.h"

#include <stdbool.h>
#include <string.h>

static status yaml_mistake(const yaml_parser_t *parser, struct place *place) {
    if (parser->error == YAML_MEMORY_ERROR) return fail_oom();
    bool reader = parser->error == YAML_READER_ERROR; // has no mark of its own
    yaml_mark_t mark = reader ? parser->mark : parser->problem_mark;
    *place = (struct place){mark.line + 1, mark.column + 1};
    return fail(DATAERR, "%zu:%zu: not YAML: %s", place->line, place->column,
                parser->problem ? parser->problem : "it cannot be read");
}

// A second document behind the first is a mistake.
static status check_end(yaml_parser_t *parser, struct place *place) {
    yaml_document_t more;
    if (!yaml_parser_load(parser, &more)) return yaml_mistake(parser, place);
    yaml_node_t *root = yaml_document_get_root_node(&more);
    status result = OK;
    if (root) {
        *place = document_place(root);
        result = fail(DATAERR, "%zu:%zu: a second YAML document", place->line, place->column);
    }
    yaml_document_delete(&more);
    return result;
}

status document_read(struct document *document, const char *data, size_t size, struct place *place) {
    *document = (struct document){0};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) return fail_oom();
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, size);
    status result = OK;
    if (!yaml_parser_load(&parser, &document->yaml)) {
        result = yaml_mistake(&parser, place);
    } else {
        document->root = yaml_document_get_root_node(&document->yaml);
        if (document->root) result = check_end(&parser, place);
        if (result != OK || !document->root) {
            yaml_document_delete(&document->yaml);
            document->root = NULL;
        }
    }
    yaml_parser_delete(&parser);
    return result;
}

void document_release(struct document *document) {
    if (document->root) yaml_document_delete(&document->yaml);
    document->root = NULL;
}

yaml_node_t *document_node(struct document *document, int index) {
    return yaml_document_get_node(&document->yaml, index);
}

struct place document_place(const yaml_node_t *node) {
    return (struct place){node->start_mark.line + 1, node->start_mark.column + 1};
}

const char *document_text(const yaml_node_t *node) {
    if (!node || node->type != YAML_SCALAR_NODE) return NULL;
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

const char *document_kind(const yaml_node_t *node) {
    switch (node ? node->type : YAML_NO_NODE) {
    case YAML_SCALAR_NODE:
        return strlen((const char *)node->data.scalar.value) == node->data.scalar.length ? "a text"
                                                                                         : "a text with a NUL";
    case YAML_SEQUENCE_NODE:
        return "a list";
    case YAML_MAPPING_NODE:
        return "a map";
    default:
        return "nothing";
    }
}
