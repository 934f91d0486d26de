// caravan check FILE: every mistake in a pipeline file at once.
#include <stdio.h>

#include "shared/config/pipeline.h"
#include "shared/wire/security.h"
#include "tools/tools.h"

static const struct option check_options[] = {PIPELINE_SET, {0}};
const struct option_table check_table = {.program = "caravan check",
                                         .operands = "FILE",
                                         .help = "finds every mistake in a pipeline file, and lists the TCP "
                                                 "ports of its machines",
                                         .options = check_options,
                                         .size = sizeof(struct pipeline_file_options)};

// Diagnoses every machine whose key is missing or malformed, as caravan run would. One machine needs none, and the
// nodes of a Slurm job share one that is made for them. DATAERR, as diagnostics_report.
static status check_keys(const struct pipeline *pipeline, const char *path) {
    struct diagnostics diagnostics = {0};
    struct buf text = {0};
    for (size_t i = 0; i < pipeline->machine_count && pipeline->machine_count > 1 && !pipeline->slurm; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        const struct pipeline_key *key = key_list_find(&machine->keys, "key");
        if (i && machine->at.line == machine[-1].at.line && machine->at.column == machine[-1].at.column)
            continue; // machines of one range have the same keys
        if (!key)
            diagnostic_add(&diagnostics, machine->at,
                           "%s: missing: key; type caravan keygen on that machine, and write the public key here",
                           machine->name);
        else if (!wire_key_valid(key->value))
            diagnostic_add(&diagnostics, key->value_at,
                           "%s: key: '%s' is not a public key, which has 40 characters; caravan keygen prints it",
                           machine->name, key->value);
    }
    const status result = diagnostics_report(&diagnostics, path, &text);
    if (text.size) fwrite(text.data, 1, text.size, stderr);
    buf_release(&text);
    diagnostics_release(&diagnostics);
    return result;
}

int check_main(int argc, char **argv) {
    struct pipeline_file_options given;
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    struct buf ports = {0};
    const char *path;
    status result = subcommand_open_pipeline(&pipeline, &options, &check_table, &given, argc, argv, &path);
    if (result == OK) result = check_keys(pipeline, path);
    if (result == OK) {
        size_t processes = 0;
        for (size_t i = 0; i < pipeline->stage_count; i++)
            processes += (size_t)pipeline->stages[i].replicas * pipeline_stage_machine_count(&pipeline->stages[i]);
        printf("%s: no mistakes: %s, %zu stages in %zu processes, run in %s\n", path, pipeline->name,
               pipeline->stage_count, processes, pipeline->run);
        if (pipeline->machine_count > 1) result = pipeline_ports_text(pipeline, &ports);
        if (result == OK && ports.size) fwrite(ports.data, 1, ports.size, stdout);
    }
    buf_release(&ports);
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
