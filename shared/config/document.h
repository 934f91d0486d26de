// A YAML file as libyaml's tree of nodes, each with its line and column. Only the first document of a file counts;
// a second one is a mistake.
#ifndef SHARED_CONFIG_DOCUMENT_H
#define SHARED_CONFIG_DOCUMENT_H

#include <stddef.h>
#include <yaml.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct document {
    yaml_document_t yaml;
    yaml_node_t *root; // NULL: an empty file
};

// Where something stands, both from 1.
struct place {
    size_t line, column;
};

// Parses YAML text. DATAERR with "LINE:COLUMN: ..." when it is none; *place is then where. Release with
// document_release.
status document_read(struct document *document, const char *data, size_t size, struct place *place);

// Frees the tree; a zeroed document is fine.
void document_release(struct document *document);

// The node with that index, NULL for 0.
yaml_node_t *document_node(struct document *document, int index);

// Where a node begins.
struct place document_place(const yaml_node_t *node);

// The text of a scalar, NULL if the node is none or has a NUL inside.
const char *document_text(const yaml_node_t *node);

// What a node is, for messages: "a list", "a map", "a text".
const char *document_kind(const yaml_node_t *node);

#endif
