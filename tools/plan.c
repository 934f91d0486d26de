#include "tools/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"

enum { FIRST_PORT = 5600 };

const char *plan_machine(const struct plan *plan, int machine) {
    return plan->machines > 1 ? plan->pipeline->machines[machine].name : "";
}

const char *replica_stage(const struct replica *replica) {
    return replica->stage ? replica->stage->name : SUPERVISOR_NAME;
}

const char *plan_name(struct plan *plan, const struct replica *replica) {
    const char *stage = replica_stage(replica);
    const char *name = replica->number == 1 ? stage : arena_printf(&plan->arena, "%s-%d", stage, replica->number);
    return name ? name : stage;
}

const struct replica *plan_supervisor(const struct plan *plan, int machine) {
    return &plan->replicas[machine];
}

const struct replica *plan_find(const struct plan *plan, const char *stage, int number) {
    for (size_t i = 0; i < plan->count; i++) {
        const struct replica *replica = &plan->replicas[i];
        if (replica->number == number && !strcmp(replica_stage(replica), stage)) return replica;
    }
    return NULL;
}

const char *plan_endpoint(const struct plan *plan, const struct replica *replica) {
    return replica->machine == plan->here || !replica->remote ? replica->local : replica->remote;
}

const char *plan_key_file(struct arena *arena) {
    const char *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (folder && *folder) return arena_printf(arena, "%s/caravan/machine.key", folder);
    return arena_printf(arena, "%s/.config/caravan/machine.key", home ? home : ".");
}

// ---- fingerprint: what all machines must agree on ----

static status fingerprint(struct plan *plan) {
    const struct pipeline *pipeline = plan->pipeline;
    struct buf text = {0};
    status result = buf_printf(&text, "%s\n", pipeline->name);
    for (size_t i = 0; i < pipeline->stage_count && result == OK; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        result = buf_printf(&text, "%s %d %d %d\n", stage->name, stage->from, stage->replicas, stage->on);
    }
    for (size_t i = 0; i < pipeline->machine_count && result == OK; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        result = buf_printf(&text, "%s %s %d %s\n", machine->name, machine->address, machine->port,
                            machine->key ? machine->key : "");
    }
    // On one machine two runs of one file in two folders are two runs.
    if (result == OK && plan->machines < 2) result = buf_puts(&text, pipeline->run);
    if (result == OK)
        snprintf(plan->run, sizeof plan->run, "%016llx", (unsigned long long)XXH3_64bits(text.data, text.size));
    buf_release(&text);
    return result;
}

// ---- endpoints ----

// Unix sockets have short names: where the run's folder is too deep, they go to the user's own.
static status choose_sockets(struct plan *plan, size_t longest) {
    const size_t most = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    plan->sockets = arena_printf(&plan->arena, "%s/sockets", plan->pipeline->run);
    if (!plan->sockets) return fail_oom();
    if (strlen(plan->sockets) + 1 + longest <= most) return OK;
    const char *base = getenv("XDG_RUNTIME_DIR");
    XXH64_hash_t hash = XXH3_64bits(plan->pipeline->run, strlen(plan->pipeline->run));
    if (!base || !*base || strlen(base) + 30 + longest > most || access(base, W_OK)) base = "/tmp";
    plan->sockets =
        arena_printf(&plan->arena, "%s/caravan-%u-%016llx", base, (unsigned)getuid(), (unsigned long long)hash);
    if (!plan->sockets) return fail_oom();
    return strlen(plan->sockets) + 1 + longest <= most ? OK : fail(USAGE, "a stage's name is too long for a socket");
}

static status make_desk(struct plan *plan, struct replica *replica, int *port) {
    const struct pipeline_machine *machine = plan->machines > 1 ? &plan->pipeline->machines[replica->machine] : NULL;
    replica->local = arena_printf(&plan->arena, "ipc://%s/%s-%d", plan->sockets, replica_stage(replica),
                                  replica->stage ? replica->number : replica->machine + 1);
    if (!replica->local) return fail_oom();
    if (!machine) return OK;
    const char *format = strchr(machine->address, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d";
    char remote[1024];
    if (snprintf(remote, sizeof remote, format, machine->address, *port) >= (int)sizeof remote)
        return fail(USAGE, "machine %s: the address is too long", machine->name);
    replica->remote = arena_strndup(&plan->arena, remote, strlen(remote));
    replica->bound = arena_printf(&plan->arena, "tcp://*:%d", (*port)++);
    return replica->remote && replica->bound ? OK : fail_oom();
}

static status make_replicas(struct plan *plan) {
    const struct pipeline *pipeline = plan->pipeline;
    size_t count = plan->machines, longest = sizeof SUPERVISOR_NAME + 12;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        count += (size_t)pipeline->stages[i].replicas;
        size_t length = strlen(pipeline->stages[i].name) + 12;
        if (length > longest) longest = length;
    }
    TRY(choose_sockets(plan, longest));
    TRY(NEW(&plan->replicas, count));
    for (size_t i = 0; i < plan->machines; i++)
        plan->replicas[plan->count++] = (struct replica){.number = (int)i + 1, .machine = (int)i};
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        int machine = plan->machines > 1 && stage->on > 0 ? stage->on : 0;
        for (int k = 1; k <= stage->replicas; k++)
            plan->replicas[plan->count++] = (struct replica){.stage = stage, .number = k, .machine = machine};
    }
    int *ports;
    TRY(NEW(&ports, plan->machines));
    for (size_t i = 0; i < plan->machines; i++)
        ports[i] = plan->machines > 1 && pipeline->machines[i].port ? pipeline->machines[i].port : FIRST_PORT;
    status result = OK;
    for (size_t i = 0; i < plan->count && result == OK; i++)
        result = make_desk(plan, &plan->replicas[i], &ports[plan->replicas[i].machine]);
    free(ports);
    return result;
}

// ---- machines and keys ----

static status find_here(struct plan *plan, const char *machine) {
    const struct pipeline *pipeline = plan->pipeline;
    if (machine) {
        for (size_t i = 0; i < pipeline->machine_count; i++) {
            if (strcmp(pipeline->machines[i].name, machine) != 0) continue;
            plan->here = (int)i;
            return OK;
        }
        return fail(USAGE, "--machine %s: the pipeline file names no such machine", machine);
    }
    if (plan->machines < 2) return OK;
    return fail(USAGE, "the pipeline has %zu machines: say which one this is, --machine %s (say)", plan->machines,
                pipeline->machines[0].name);
}

static status check_keys(struct plan *plan, const char *secret) {
    if (plan->machines < 2) return OK;
    for (size_t i = 0; i < plan->machines; i++) {
        const struct pipeline_machine *machine = &plan->pipeline->machines[i];
        if (!machine->key)
            return fail(USAGE,
                        "machine %s has no key: type caravan keygen there, and write the public key into the file",
                        machine->name);
        if (!wire_key_valid(machine->key)) return fail(USAGE, "machine %s: its key is no key", machine->name);
    }
    plan->secret = secret ? secret : plan_key_file(&plan->arena);
    if (!plan->secret) return fail_oom();
    struct wire_security own = {0};
    status result = wire_key_read(&own, plan->secret);
    const struct pipeline_machine *here = &plan->pipeline->machines[plan->here];
    if (result == OK && strcmp(own.public, here->key) != 0)
        result = fail(USAGE, "%s is not the key that the file gives machine %s", plan->secret, here->name);
    wire_security_release(&own);
    return result;
}

status plan_make(struct plan *plan, struct pipeline *pipeline, const char *machine, const char *secret) {
    *plan = (struct plan){.pipeline = pipeline, .machines = pipeline->machine_count ? pipeline->machine_count : 1};
    status result = find_here(plan, machine);
    if (result == OK) result = check_keys(plan, secret);
    if (result == OK) result = fingerprint(plan);
    if (result == OK) result = make_replicas(plan);
    if (result != OK) plan_release(plan);
    return result;
}

void plan_release(struct plan *plan) {
    free(plan->replicas);
    arena_release(&plan->arena);
    *plan = (struct plan){0};
}

// ---- config ----

static status add_desks(const struct plan *plan, struct node_config *config) {
    TRY(NEW(&config->endpoints, plan->count));
    for (size_t i = 0; i < plan->count; i++) {
        const struct replica *replica = &plan->replicas[i];
        config->endpoints[config->endpoint_count++] =
            (struct node_endpoint){.stage = replica_stage(replica),
                                   .replica = replica->number,
                                   .machine = plan_machine(plan, replica->machine),
                                   .address = plan_endpoint(plan, replica),
                                   .key = plan->machines > 1 ? plan->pipeline->machines[replica->machine].key : NULL};
    }
    return OK;
}

static status add_readers(const struct plan *plan, const struct replica *replica, struct node_config *config) {
    const struct pipeline *pipeline = plan->pipeline;
    TRY(NEW(&config->readers, pipeline->stage_count));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        if (pipeline->stages[i].from >= 0 && &pipeline->stages[pipeline->stages[i].from] == replica->stage)
            config->readers[config->reader_count++] = pipeline->stages[i].name;
    }
    return OK;
}

static status add_command(const struct plan *plan, const struct pipeline_stage *stage, struct node_config *config) {
    config->home = plan->pipeline->dir;
    TRY(NEW(&config->command, key_list_count(&stage->keys) * 2 + 1));
    config->command[config->command_count++] = stage->program;
    for (const struct pipeline_key *key = stage->keys.first; key; key = key->next) {
        const char *option = arena_printf(&config->arena, "--%s", key->name);
        if (!option) return fail_oom();
        config->command[config->command_count++] = option;
        config->command[config->command_count++] = key->value;
    }
    return OK;
}

static status fill(const struct plan *plan, const struct replica *replica, struct node_config *config) {
    const struct pipeline *pipeline = plan->pipeline;
    *config = (struct node_config){.run = plan->run,
                                   .folder = pipeline->run,
                                   .stage = replica_stage(replica),
                                   .replica = replica->number,
                                   .machine = plan_machine(plan, replica->machine),
                                   .from = "",
                                   .secret = plan->secret};
    if (replica->stage && replica->stage->from >= 0) config->from = pipeline->stages[replica->stage->from].name;
    config->last = replica->stage == &pipeline->stages[pipeline->stage_count - 1];
    TRY(NEW(&config->listen, 2));
    config->listen[config->listen_count++] = replica->local;
    if (replica->bound) config->listen[config->listen_count++] = replica->bound;
    TRY(add_readers(plan, replica, config));
    if (replica->stage && replica->stage->program) TRY(add_command(plan, replica->stage, config));
    return add_desks(plan, config);
}

status plan_wire(const struct plan *plan, const struct replica *replica, const char *path) {
    struct node_config config = {0};
    struct buf text = {0};
    status result = fill(plan, replica, &config);
    if (result == OK) result = node_config_write(&config, &text);
    if (result == OK) result = file_write_atomic(path, text.data, text.size);
    node_config_release(&config);
    buf_release(&text);
    return result;
}
