// YAML files, and a pipeline file while it is being read: the pipeline as far as it is known, and everything wrong with
// it.
//
// The parts of reading call downwards only: pipeline_parse.c calls pipeline_validate.c, pipeline_machines.c and
// methods.c in this order, and all of them call pipeline.c.
#pragma once

#include <yaml.h>

#include "shared/config/pipeline.h"

// ---- a YAML file as libyaml's tree of nodes, each with its line and column ----

// A file holds one document; a second one is an error.
struct yaml_tree {
    yaml_document_t yaml;
    yaml_node_t *root; // NULL: an empty file
};

// Parses YAML text. DATAERR with "LINE:COLUMN: ..." when it is not YAML; *at is then where. Release with
// yaml_tree_release.
status yaml_tree_read(struct yaml_tree *tree, const char *data, size_t size, struct location *at);

// Frees the tree; a zeroed document is fine.
void yaml_tree_release(struct yaml_tree *tree);

// Returns where a node begins.
struct location yaml_node_location(const yaml_node_t *node);

// Returns the string of a scalar, owned by the document; NULL for any other node and for a string with a NUL inside.
const char *yaml_node_string(const yaml_node_t *node);

// Returns what a node is, for messages: "an array", "a mapping", "a string".
const char *yaml_node_kind(const yaml_node_t *node);

// ---- a pipeline file ----

struct parsed_file {
    struct pipeline *pipeline;
    struct yaml_tree tree;
    const char *current_dir;   // relative paths of --set start here
    const char *written_run;   // `run` of the file where --set gives another one, as it is written
    bool files_may_be_missing; // a file or program that is missing is no mistake
    struct diagnostics diagnostics;
};

// Checks every key against its option table and every name against what it names, makes paths absolute, and completes
// each stage with the values that it inherits.
void validate_pipeline(struct parsed_file *file);

// Adds the machines that `name` stands for, one or a list with ranges, with the keys. The address of several machines
// is such a list, too; the value of that key is overwritten.
void parse_machines(struct parsed_file *file, const char *name, struct location at, struct key_list *keys);

// Adds the nodes of the Slurm job that this process belongs to. Outside of a job, one machine stands for them.
void parse_slurm_machines(struct parsed_file *file);

// Fills in the machines, checks them and their groups, and sets the replicas and machines of each stage.
void validate_machines(struct parsed_file *file);

// Checks what the places of the stages ask of the pipeline. The stages are in the order of the flow.
void validate_placement(struct parsed_file *file);

// Sets and checks what the reward's method says of other stages. The stages are in the order of the flow.
void validate_method(struct parsed_file *file);

// Checks the keys against each other, with all inherited and set values in place.
void validate_combinations(struct parsed_file *file);
