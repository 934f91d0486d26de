// The machines of a pipeline: ranges of them, their groups, the machines of each stage, and the TCP ports.
#include <arpa/inet.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/name_list.h"
#include "shared/config/pipeline_parse.h"

// ---- machines ----

// Adds a machine with copies of the keys.
static void pipeline_add_machine(struct parsed_file *file, const char *name, struct location at,
                                 const struct key_list *keys) {
    struct pipeline *pipeline = file->pipeline;
    GROW(&pipeline->machines, pipeline->machine_count);
    struct pipeline_machine *machine = &pipeline->machines[pipeline->machine_count++];
    *machine = (struct pipeline_machine){.name = name, .at = at};
    for (const struct key *key = keys->first; key; key = key->next)
        key_list_set(&machine->keys, &pipeline->arena, key->name, key->value, key->name_at, key->value_at);
}

void parse_machines(struct parsed_file *file, const char *name, struct location at, struct key_list *keys) {
    struct arena *arena = &file->pipeline->arena;
    struct key *address = key_list_find(keys, "address");
    struct string_list names, addresses = {0};
    if (name_list_expand(name, arena, &names) != OK) {
        diagnostic_add(&file->diagnostics, at, "machines: %s", fail_text());
        return;
    }
    if (names.count > 1 && address && address->value) {
        const bool expanded = name_list_expand(address->value, arena, &addresses) == OK;
        if (!expanded)
            diagnostic_add(&file->diagnostics, address->value_at, "%s: address: %s", name, fail_text());
        else if (addresses.count != names.count)
            diagnostic_add(&file->diagnostics, address->value_at, "%s: address: %zu addresses for %zu machines", name,
                           addresses.count, names.count);
        if (!expanded || addresses.count != names.count) address->value = NULL;
    }
    for (size_t i = 0; i < names.count; i++) {
        if (address && address->value && names.count > 1) address->value = addresses.data[i];
        pipeline_add_machine(file, names.data[i], at, keys);
    }
}

void parse_slurm_machines(struct parsed_file *file) {
    // Jobs that share a node listen on other ports, and so do nodes that share a host: both have 20 ranges of 1024.
    enum { FIRST = 10000, RANGES = 20, RANGE = 1024, NODES_OF_JOB = 7 };
    struct pipeline *pipeline = file->pipeline;
    const char *nodes = getenv("SLURM_JOB_NODELIST"), *job = getenv("SLURM_JOB_ID");
    const struct location at = pipeline->machines_at;
    struct string_list names;
    pipeline->slurm = true;
    pipeline->slurm_job = nodes != NULL;
    if (name_list_expand(nodes ? nodes : "localhost", &pipeline->arena, &names) != OK) {
        diagnostic_add(&file->diagnostics, at, "machines: SLURM_JOB_NODELIST: %s", fail_text());
        return;
    }
    const unsigned long number = job ? strtoul(job, NULL, 10) % RANGES : 0;
    for (size_t i = 0; i < names.count; i++) {
        const char *port =
            arena_printf(&pipeline->arena, "%d", FIRST + RANGE * (int)((number * NODES_OF_JOB + i) % RANGES));
        struct key_list keys = {0};
        key_list_set(&keys, &pipeline->arena, "address", names.data[i], at, at);
        key_list_set(&keys, &pipeline->arena, "port", port, at, at);
        pipeline_add_machine(file, names.data[i], at, &keys);
    }
}

static const char *pipeline_machine_value(const struct pipeline_machine *machine, const char *name) {
    const struct key *key = key_list_find(&machine->keys, name);
    return key ? key->value : NULL;
}

// The value of an integer option, or `otherwise` if it is not given or out of any range, which is diagnosed already.
static int pipeline_number(const char *value, int otherwise) {
    const long number = value && !value[strspn(value, "+0123456789")] ? strtol(value, NULL, 10) : 0;
    return number >= 1 && number <= UINT16_MAX ? (int)number : otherwise;
}

// A group of machines, or those of a stage while they are collected. `list` has room for all machines.
struct machine_set {
    const char *name;
    int *list;
    size_t count;
};

static int pipeline_find_machine(const struct pipeline *pipeline, const char *name) {
    for (size_t m = 0; m < pipeline->machine_count; m++)
        if (!strcmp(pipeline->machines[m].name, name)) return (int)m;
    return -1;
}

static void pipeline_add_to_set(struct parsed_file *file, struct machine_set *set, const char *owner, int machine,
                                struct location at) {
    for (size_t i = 0; i < set->count; i++) {
        if (set->list[i] != machine) continue;
        diagnostic_add(&file->diagnostics, at, "%s: %s is named twice", owner, file->pipeline->machines[machine].name);
        return;
    }
    set->list[set->count++] = machine;
}

// Fills the set with the machines of a key's value, or of each item of its array: a name is that of a machine, or of
// one of the first `count` groups. In a Slurm job it is "all", "first", "rest" (of a single node: the first), or a
// number from 1; outside of a job any number may be right, and is ignored.
static void pipeline_resolve(struct parsed_file *file, struct machine_set *set, const char *owner,
                             const struct key *key, const struct machine_set *groups, size_t count) {
    if (!key->value) return; // diagnosed already
    set->list = arena_alloc(&file->pipeline->arena, file->pipeline->machine_count * sizeof *set->list);
    for (const struct key *item = key->items ? key->items : key; item; item = key->items ? item->next : NULL) {
        struct string_list names;
        if (name_list_expand(item->value, &file->pipeline->arena, &names) != OK)
            diagnostic_add(&file->diagnostics, item->value_at, "%s: %s", owner, fail_text());
        for (size_t i = 0; i < names.count; i++) {
            static const char *const of_slurm[] = {"all", "first", "rest"};
            const struct pipeline *pipeline = file->pipeline;
            const char *name = names.data[i];
            const bool slurm = pipeline->slurm;
            const int machine = slurm ? -1 : pipeline_find_machine(pipeline, name);
            const size_t total = pipeline->machine_count, digits = strspn(name, "0123456789");
            size_t group = 0, first = 0, end = 0; // nodes of the job
            while (group < count && strcmp(groups[group].name, name) != 0) group++;
            if (machine >= 0) {
                pipeline_add_to_set(file, set, owner, machine, item->value_at);
            } else if (slurm && digits && !name[digits]) {
                const unsigned long number = strtoul(name, NULL, 10);
                if (!number || (number > total && pipeline->slurm_job))
                    diagnostic_add(&file->diagnostics, item->value_at,
                                   "%s: %s: the job's nodes have the numbers from 1 to %zu", owner, name, total);
                end = number <= total ? number : 0;
                first = end ? end - 1 : 0;
            } else if (slurm && (!strcmp(name, "all") || !strcmp(name, "rest"))) {
                first = *name == 'r' && total > 1;
                end = total;
            } else if (slurm && !strcmp(name, "first")) {
                end = total > 0;
            } else if (group < count) {
                for (size_t m = 0; m < groups[group].count; m++)
                    pipeline_add_to_set(file, set, owner, groups[group].list[m], item->value_at);
            } else {
                struct nearest nearest = nearest_to(name);
                for (size_t m = 0; m < (slurm ? sizeof of_slurm / sizeof *of_slurm : total); m++)
                    nearest_offer(&nearest, slurm ? of_slurm[m] : pipeline->machines[m].name);
                for (size_t g = 0; g < count; g++) nearest_offer(&nearest, groups[g].name);
                diagnostic_add(&file->diagnostics, item->value_at, "%s: no machine is named %s%s", owner, name,
                               nearest_question(&nearest));
            }
            for (size_t m = first; m < end; m++) pipeline_add_to_set(file, set, owner, (int)m, item->value_at);
        }
    }
}

void validate_machines(struct parsed_file *file) {
    struct pipeline *pipeline = file->pipeline;
    struct arena *arena = &pipeline->arena;
    struct machine_set *groups = arena_alloc(arena, key_list_count(&pipeline->machine_groups) * sizeof *groups);
    size_t known = 0;
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        struct pipeline_machine *machine = &pipeline->machines[i];
        machine->address = pipeline_machine_value(machine, "address");
        machine->key = pipeline_machine_value(machine, "key");
        machine->bind = pipeline_machine_value(machine, "bind");
        machine->port = pipeline_number(pipeline_machine_value(machine, "port"), 0);
        if (machine->name[strcspn(machine->name, "/ \t\r\n")])
            diagnostic_add(&file->diagnostics, machine->at, "%s: a machine's name has no spaces and no '/'",
                           machine->name);
        const struct key *at = key_list_find(&machine->keys, "address");
        if (machine->address) {
            struct in6_addr v6;
            const size_t length = strcspn(machine->address, "%"); // fe80::1%eth0
            const char *number = arena_strndup(arena, machine->address, length);
            if (!*machine->address || machine->address[strcspn(machine->address, "/@ \t\r\n")] ||
                (strchr(machine->address, ':') && inet_pton(AF_INET6, number, &v6) != 1))
                diagnostic_add(&file->diagnostics, at->value_at,
                               "%s: address: '%s' is no host name and no IP address; a port is the key `port`",
                               machine->name, machine->address);
        }
        if (pipeline_find_machine(pipeline, machine->name) != (int)i)
            diagnostic_add(&file->diagnostics, machine->at, "%s: a second machine with this name", machine->name);
    }
    for (const struct key *key = pipeline->machine_groups.first; key; key = key->next) {
        const char *owner = arena_printf(arena, "machine_groups: %s", key->name);
        groups[known].name = key->name;
        if (pipeline_find_machine(pipeline, key->name) >= 0)
            diagnostic_add(&file->diagnostics, key->name_at, "%s: a machine has this name", owner);
        pipeline_resolve(file, &groups[known++], owner, key, NULL, 0);
    }
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        const struct key *on = key_list_find(&stage->options.given, "on");
        struct machine_set set = {0};
        const bool trains = stage->kind && stage->kind->trains;
        stage->replicas = pipeline_number(pipeline_value(stage, trains ? "ranks" : "replicas"), 1);
        if (on) pipeline_resolve(file, &set, arena_printf(arena, "%s: on", stage->name), on, groups, known);
        stage->machines = set.list;
        stage->machine_count = set.count;
        if (set.count > 1 && stage->kind && stage->kind->single && !trains)
            diagnostic_add(&file->diagnostics, on->value_at, "%s: on: it runs on one machine", stage->name);
    }
}

// ---- ports ----

int pipeline_port(const struct pipeline *pipeline, const struct pipeline_machine *machine,
                  const struct pipeline_stage *stage) {
    const int first = machine->port ? machine->port : PIPELINE_FIRST_PORT;
    return stage ? first + PIPELINE_STAGE_PORTS * (int)(stage - pipeline->stages + 1) : first;
}

// The ports on a machine of the i-th stage, or, for i = -1, of the supervisor. *count is 0 if the stage runs elsewhere.
static int pipeline_port_range(const struct pipeline *pipeline, int machine, int i, int *count) {
    const struct pipeline_stage *stage = i < 0 ? NULL : &pipeline->stages[i];
    const int first = pipeline_port(pipeline, &pipeline->machines[machine], stage);
    *count = !stage ? 1 : pipeline_stage_runs_on(stage, machine) ? stage->replicas : 0;
    if (!*count || !stage || !pipeline_stage_ranks(stage)) return first;
    const bool leads = pipeline_stage_machine(stage, 0) == machine;
    *count = leads + (pipeline_stage_machine_count(stage) > 1 ? stage->replicas : 0);
    return first + !leads;
}

void validate_placement(struct parsed_file *file) {
    const struct pipeline *pipeline = file->pipeline;
    const int machines = (int)pipeline->machine_count, stages = (int)pipeline->stage_count;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const struct key *replicas = key_list_find(&stage->options.given, "replicas"),
                         *ranks = key_list_find(&stage->options.given, "ranks"),
                         *on = key_list_find(&stage->options.given, "on");
        if (machines > 1 && stage->replicas > PIPELINE_STAGE_PORTS && replicas)
            diagnostic_add(&file->diagnostics, replicas->value_at,
                           "%s: replicas: %d is out of range: 1 to %d where the file has several machines", stage->name,
                           stage->replicas, PIPELINE_STAGE_PORTS);
        if (ranks && pipeline_stage_ranks(stage) && stage->machine_count > 1 && stage->replicas >= PIPELINE_STAGE_PORTS)
            diagnostic_add(&file->diagnostics, ranks->value_at,
                           "%s: ranks: %d is out of range: 1 to %d where they run on several machines", stage->name,
                           stage->replicas, PIPELINE_STAGE_PORTS - 1);
        if (on && stage->machine_count > 1 && i + 1 == pipeline->stage_count && !(stage->kind && stage->kind->single))
            diagnostic_add(&file->diagnostics, on->value_at,
                           "%s: on: the last stage runs on one machine, whose store gets the whole groups",
                           stage->name);
        for (int k = 0; k < stages; k++) { // replicas are named STAGE, STAGE-2, STAGE-3 ...
            const struct pipeline_stage *other = &pipeline->stages[k];
            const size_t length = strlen(other->name);
            if (strncmp(stage->name, other->name, length) != 0 || stage->name[length] != '-') continue;
            const char *number = stage->name + length + 1;
            const size_t digits = strspn(number, "0123456789");
            const size_t replicas_there = (size_t)other->replicas * pipeline_stage_machine_count(other);
            const unsigned long which = digits && !number[digits] && *number != '0' ? strtoul(number, NULL, 10) : 0;
            if (which > 1 && which <= replicas_there)
                diagnostic_add(&file->diagnostics, stage->at, "%s: replica %lu of %s has this name", stage->name, which,
                               other->name);
        }
    }
    for (int m = 0; m < machines && machines > 1; m++) {
        const struct pipeline_machine *machine = &pipeline->machines[m];
        const struct key *port_key = key_list_find(&machine->keys, "port");
        const struct location at = port_key ? port_key->value_at : machine->at;
        const int first = pipeline_port(pipeline, machine, NULL),
                  last = first + PIPELINE_STAGE_PORTS * (stages + 1) - 1;
        if (last > UINT16_MAX)
            diagnostic_add(&file->diagnostics, at,
                           "%s: port: the stages need the ports from %d to %d, and the last one is %d", machine->name,
                           first, last, UINT16_MAX);
        int shared = 0; // a port that another machine with this address has
        for (int other = 0; other < m && !shared; other++) {
            const char *address = pipeline->machines[other].address;
            if (!address || !machine->address || strcmp(address, machine->address) != 0) continue;
            for (int k = -1; k < stages && !shared; k++)
                for (int i = -1; i < stages && !shared; i++) {
                    int count, count_here;
                    const int port = pipeline_port_range(pipeline, other, k, &count),
                              here = pipeline_port_range(pipeline, m, i, &count_here);
                    if (port < here + count_here && here < port + count) shared = port > here ? port : here;
                }
            if (shared)
                diagnostic_add(&file->diagnostics, at, "%s: port %d is one of %s, which has the same address",
                               machine->name, shared, pipeline->machines[other].name);
        }
    }
}

void pipeline_ports_text(const struct pipeline *pipeline, struct buf *out) {
    int name_width = (int)strlen("machine"), address_width = (int)strlen("address");
    for (size_t m = 0; m < pipeline->machine_count; m++) {
        const int name = (int)strlen(pipeline->machines[m].name), address = (int)strlen(pipeline->machines[m].address);
        if (name > name_width) name_width = name;
        if (address > address_width) address_width = address;
    }
    buf_printf(out, "%-*s  %-*s  TCP ports\n", name_width, "machine", address_width, "address");
    for (size_t m = 0; m < pipeline->machine_count; m++) {
        const struct pipeline_machine *machine = &pipeline->machines[m];
        buf_printf(out, "%-*s  %-*s  %d", name_width, machine->name, address_width, machine->address,
                   pipeline_port(pipeline, machine, NULL));
        for (int i = 0; i < (int)pipeline->stage_count; i++) {
            int count;
            const int first = pipeline_port_range(pipeline, (int)m, i, &count);
            if (count) buf_printf(out, ", %d", first);
            if (count > 1) buf_printf(out, "-%d", first + count - 1);
        }
        buf_puts(out, "\n");
    }
}
