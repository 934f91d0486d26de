// caravan check FILE: every mistake in a pipeline file at once, and in what it names on this machine.
#include <stdio.h>

#include "shared/base/log.h"
#include "shared/config/pipeline.h"
#include "shared/resources/resource_plan.h"
#include "shared/wire/transport.h"
#include "tools/deployment.h"
#include "tools/check/inspection.h"
#include "tools/tools.h"

struct check_options {
    struct pipeline_file_options file;
    const char *machine;
};

static const struct option check_options[] = {
    PIPELINE_SET,
    TOOL_OPTION(check_options, machine, OPTION_STRING, "name of this machine in the file (default: the host's)"),
    {0},
};
const struct option_table check_table = {
    .program = "caravan check",
    .operands = "FILE|RUN",
    .help =
        "finds every mistake in a pipeline file, looks at the models, data and devices that it names, and lists the "
        "TCP ports of its machines",
    .details = "Of weights only the headers are read, of the data the first samples, and one\n"
               "image or video is opened. What stages on other machines name is not looked at.\n"
               "Lines memory: and disk: say what this machine has too little of now.\n"
               "Exit code 0 with warnings alone.\n",
    .options = check_options,
    .size = sizeof(struct check_options)};

// Prints what the pipeline is, and what was not looked at. Says what this machine has too little of now.
static void check_print(const struct inspection *inspection, struct pipeline *pipeline, const char *path) {
    const size_t warnings = diagnostics_warnings(inspection->diagnostics);
    struct buf ports = {0}, lines = {0};
    char counted[48] = "";
    const char *between = ""; // behind the name of a stage on another machine
    size_t processes = 0;
    for (size_t i = 0; i < pipeline->stage_count; i++)
        processes += (size_t)pipeline->stages[i].replicas * pipeline_stage_machine_count(&pipeline->stages[i]);
    if (warnings) snprintf(counted, sizeof counted, ", %zu warning%s", warnings, warnings == 1 ? "" : "s");
    printf("%s: no mistakes%s: %s, %zu stages in %zu processes, run in %s\n", path, counted, pipeline->name,
           pipeline->stage_count, processes, pipeline->run);
    if (inspection->here < 0) puts("this machine is none of the file's: what the stages name was not looked at");
    for (size_t i = 0; i < pipeline->stage_count && inspection->here >= 0; i++) {
        if (pipeline_stage_runs_on(&pipeline->stages[i], inspection->here)) continue;
        printf("%s%s",
               *between ? between : "not looked at, because they run on other machines: ", pipeline->stages[i].name);
        between = ", ";
    }
    if (*between) puts("");
    if (!inspection->devices) puts("not looked at, because this is no job of Slurm: devices");
    if (pipeline->machine_count > 1) pipeline_ports_text(pipeline, &ports);
    if (ports.size) fwrite(ports.data, 1, ports.size, stdout);
    buf_release(&ports);
    if (inspection->here < 0 || !inspection->devices) return;
    subcommand_set_publish(pipeline);
    // A model that cannot be read was diagnosed before.
    const status result = machine_resources_check(pipeline, inspection->here, &lines);
    if (result != OK) log_debug("memory and disk: %s", fail_text());
    if (result == OK && lines.size) fwrite(lines.data, 1, lines.size, stderr);
    buf_release(&lines);
}

status check_main(struct subcommand_call *call) {
    const struct check_options *given = call->given;
    struct pipeline *pipeline = call->pipeline;
    struct diagnostics diagnostics = {0};
    struct buf text = {0};
    struct inspection inspection = {
        .pipeline = pipeline, .devices = !pipeline->slurm || pipeline->slurm_job, .diagnostics = &diagnostics};
    status result = deployment_find_here(pipeline, given->machine, &inspection.here);
    if (result != OK && !given->machine) {
        inspection.here = -1;
        result = OK;
    }
    // Every machine needs a valid key, as caravan run demands. One machine needs none, and the nodes of a Slurm job
    // share one that is made for them.
    const size_t keys = result == OK && pipeline->machine_count > 1 && !pipeline->slurm ? pipeline->machine_count : 0;
    for (size_t i = 0; i < keys; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        const struct key *key = key_list_find(&machine->keys, "key");
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
    if (result == OK) {
        const size_t before = diagnostics.count;
        inspect_files(&inspection);
        if (diagnostics.count == before) { // otherwise the others would say it again
            inspect_values(&inspection);
            inspect_outputs(&inspection);
            inspect_devices(&inspection);
            inspect_models(&inspection);
            inspect_chat_templates(&inspection);
            inspect_data(&inspection);
        }
        result = diagnostics_report(&diagnostics, call->path, &text);
        if (text.size) fwrite(text.data, 1, text.size, stderr);
    }
    if (result == OK) check_print(&inspection, pipeline, call->path);
    buf_release(&text);
    diagnostics_release(&diagnostics);
    return result;
}
