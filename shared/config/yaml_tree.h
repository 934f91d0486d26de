// A YAML file as libyaml's tree of nodes, each with its line and column. A file holds one document; a second one is an
// error.
#ifndef SHARED_CONFIG_YAML_TREE_H
#define SHARED_CONFIG_YAML_TREE_H

#include <stddef.h>
#include <yaml.h>

#include "shared/base/status.h"
#include "shared/config/diagnostics.h"

struct yaml_tree {
    yaml_document_t yaml;
    yaml_node_t *root; // NULL: an empty file
};

// Parses YAML text. DATAERR with "LINE:COLUMN: ..." when it is not YAML; *at is then where. Release with
// yaml_tree_release.
status yaml_tree_read(struct yaml_tree *tree, const char *data, size_t size, struct location *at);

// Frees the tree; a zeroed document is fine.
void yaml_tree_release(struct yaml_tree *tree);

// Returns the node with that index, NULL for 0. The document owns it.
yaml_node_t *yaml_tree_node(struct yaml_tree *tree, int index);

// Returns where a node begins.
struct location yaml_node_location(const yaml_node_t *node);

// Returns the string of a scalar, owned by the document; NULL for any other node and for a string with a NUL inside.
const char *yaml_node_string(const yaml_node_t *node);

// Returns what a node is, for messages: "an array", "a mapping", "a string".
const char *yaml_node_kind(const yaml_node_t *node);

#endif
