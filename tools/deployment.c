#include "tools/deployment.h"

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

const char *deployment_machine(const struct deployment *deployment, int machine) {
    return deployment->machines > 1 ? deployment->pipeline->machines[machine].name : "";
}

const char *replica_stage(const struct replica *replica) {
    return replica->stage ? replica->stage->name : SUPERVISOR_NAME;
}

const char *deployment_name(struct deployment *deployment, const struct replica *replica) {
    const char *stage = replica_stage(replica);
    const char *name = replica->number == 1 ? stage : arena_printf(&deployment->arena, "%s-%d", stage, replica->number);
    return name ? name : stage;
}

const struct replica *deployment_supervisor(const struct deployment *deployment, int machine) {
    return &deployment->replicas[machine];
}

const struct replica *deployment_find(const struct deployment *deployment, const char *stage, int number) {
    for (size_t i = 0; i < deployment->count; i++) {
        const struct replica *replica = &deployment->replicas[i];
        if (replica->number == number && !strcmp(replica_stage(replica), stage)) return replica;
    }
    return NULL;
}

const char *deployment_endpoint(const struct deployment *deployment, const struct replica *replica) {
    return replica->machine == deployment->here || !replica->remote ? replica->local : replica->remote;
}

const char *deployment_key_file(struct arena *arena) {
    const char *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (folder && *folder) return arena_printf(arena, "%s/caravan/machine.key", folder);
    return arena_printf(arena, "%s/.config/caravan/machine.key", home ? home : ".");
}

// ---- fingerprint: what all machines must agree on ----

static status fingerprint(struct deployment *deployment) {
    const struct pipeline *pipeline = deployment->pipeline;
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
    if (result == OK && deployment->machines < 2) result = buf_puts(&text, pipeline->run);
    if (result == OK)
        snprintf(deployment->run, sizeof deployment->run, "%016llx",
                 (unsigned long long)XXH3_64bits(text.data, text.size));
    buf_release(&text);
    return result;
}

// ---- endpoints ----

// Unix sockets have short names: where the run's folder is too deep, they go to the user's own.
static status choose_sockets(struct deployment *deployment, size_t longest) {
    const size_t most = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    deployment->sockets = arena_printf(&deployment->arena, "%s/sockets", deployment->pipeline->run);
    if (!deployment->sockets) return fail_oom();
    if (strlen(deployment->sockets) + 1 + longest <= most) return OK;
    const char *base = getenv("XDG_RUNTIME_DIR");
    XXH64_hash_t hash = XXH3_64bits(deployment->pipeline->run, strlen(deployment->pipeline->run));
    if (!base || !*base || strlen(base) + 30 + longest > most || access(base, W_OK)) base = "/tmp";
    deployment->sockets =
        arena_printf(&deployment->arena, "%s/caravan-%u-%016llx", base, (unsigned)getuid(), (unsigned long long)hash);
    if (!deployment->sockets) return fail_oom();
    return strlen(deployment->sockets) + 1 + longest <= most ? OK
                                                             : fail(USAGE, "a stage's name is too long for a socket");
}

static status make_desk(struct deployment *deployment, struct replica *replica, int *port) {
    const struct pipeline_machine *machine =
        deployment->machines > 1 ? &deployment->pipeline->machines[replica->machine] : NULL;
    replica->local = arena_printf(&deployment->arena, "ipc://%s/%s-%d", deployment->sockets, replica_stage(replica),
                                  replica->stage ? replica->number : replica->machine + 1);
    if (!replica->local) return fail_oom();
    if (!machine) return OK;
    const char *format = strchr(machine->address, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d";
    char remote[1024];
    if (snprintf(remote, sizeof remote, format, machine->address, *port) >= (int)sizeof remote)
        return fail(USAGE, "machine %s: the address is too long", machine->name);
    replica->remote = arena_strndup(&deployment->arena, remote, strlen(remote));
    replica->bound = arena_printf(&deployment->arena, "tcp://*:%d", (*port)++);
    return replica->remote && replica->bound ? OK : fail_oom();
}

static status make_replicas(struct deployment *deployment) {
    const struct pipeline *pipeline = deployment->pipeline;
    size_t count = deployment->machines, longest = sizeof SUPERVISOR_NAME + 12;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        count += (size_t)pipeline->stages[i].replicas;
        size_t length = strlen(pipeline->stages[i].name) + 12;
        if (length > longest) longest = length;
    }
    TRY(choose_sockets(deployment, longest));
    TRY(NEW(&deployment->replicas, count));
    for (size_t i = 0; i < deployment->machines; i++)
        deployment->replicas[deployment->count++] = (struct replica){.number = (int)i + 1, .machine = (int)i};
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        int machine = deployment->machines > 1 && stage->on > 0 ? stage->on : 0;
        for (int k = 1; k <= stage->replicas; k++)
            deployment->replicas[deployment->count++] =
                (struct replica){.stage = stage, .number = k, .machine = machine};
    }
    int *ports;
    TRY(NEW(&ports, deployment->machines));
    for (size_t i = 0; i < deployment->machines; i++)
        ports[i] = deployment->machines > 1 && pipeline->machines[i].port ? pipeline->machines[i].port : FIRST_PORT;
    status result = OK;
    for (size_t i = 0; i < deployment->count && result == OK; i++)
        result = make_desk(deployment, &deployment->replicas[i], &ports[deployment->replicas[i].machine]);
    free(ports);
    return result;
}

// ---- machines and keys ----

static status find_here(struct deployment *deployment, const char *machine) {
    const struct pipeline *pipeline = deployment->pipeline;
    if (machine) {
        for (size_t i = 0; i < pipeline->machine_count; i++) {
            if (strcmp(pipeline->machines[i].name, machine) != 0) continue;
            deployment->here = (int)i;
            return OK;
        }
        return fail(USAGE, "--machine %s: the pipeline file names no such machine", machine);
    }
    if (deployment->machines < 2) return OK;
    return fail(USAGE, "the pipeline has %zu machines: say which one this is, --machine %s (say)", deployment->machines,
                pipeline->machines[0].name);
}

static status check_keys(struct deployment *deployment, const char *secret) {
    if (deployment->machines < 2) return OK;
    for (size_t i = 0; i < deployment->machines; i++) {
        const struct pipeline_machine *machine = &deployment->pipeline->machines[i];
        if (!machine->key)
            return fail(USAGE,
                        "machine %s has no key: type caravan keygen there, and write the public key into the file",
                        machine->name);
        if (!wire_key_valid(machine->key)) return fail(USAGE, "machine %s: its key is no key", machine->name);
    }
    deployment->secret = secret ? secret : deployment_key_file(&deployment->arena);
    if (!deployment->secret) return fail_oom();
    struct wire_security own = {0};
    status result = wire_key_read(&own, deployment->secret);
    const struct pipeline_machine *here = &deployment->pipeline->machines[deployment->here];
    if (result == OK && strcmp(own.public, here->key) != 0)
        result = fail(USAGE, "%s is not the key that the file gives machine %s", deployment->secret, here->name);
    wire_security_release(&own);
    return result;
}

status deployment_init(struct deployment *deployment, struct pipeline *pipeline, const char *machine,
                       const char *secret) {
    *deployment =
        (struct deployment){.pipeline = pipeline, .machines = pipeline->machine_count ? pipeline->machine_count : 1};
    status result = find_here(deployment, machine);
    if (result == OK) result = check_keys(deployment, secret);
    if (result == OK) result = fingerprint(deployment);
    if (result == OK) result = make_replicas(deployment);
    if (result != OK) deployment_release(deployment);
    return result;
}

void deployment_release(struct deployment *deployment) {
    free(deployment->replicas);
    arena_release(&deployment->arena);
    *deployment = (struct deployment){0};
}

// ---- config ----

static status add_desks(const struct deployment *deployment, struct node_config *config) {
    TRY(NEW(&config->endpoints, deployment->count));
    for (size_t i = 0; i < deployment->count; i++) {
        const struct replica *replica = &deployment->replicas[i];
        config->endpoints[config->endpoint_count++] = (struct node_endpoint){
            .stage = replica_stage(replica),
            .replica = replica->number,
            .machine = deployment_machine(deployment, replica->machine),
            .address = deployment_endpoint(deployment, replica),
            .key = deployment->machines > 1 ? deployment->pipeline->machines[replica->machine].key : NULL};
    }
    return OK;
}

static status add_readers(const struct deployment *deployment, const struct replica *replica,
                          struct node_config *config) {
    const struct pipeline *pipeline = deployment->pipeline;
    TRY(NEW(&config->readers, pipeline->stage_count));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        if (pipeline->stages[i].from >= 0 && &pipeline->stages[pipeline->stages[i].from] == replica->stage)
            config->readers[config->reader_count++] = pipeline->stages[i].name;
    }
    return OK;
}

static status add_command(const struct deployment *deployment, const struct pipeline_stage *stage,
                          struct node_config *config) {
    config->home = deployment->pipeline->dir;
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

static status fill(const struct deployment *deployment, const struct replica *replica, struct node_config *config) {
    const struct pipeline *pipeline = deployment->pipeline;
    *config = (struct node_config){.run = deployment->run,
                                   .folder = pipeline->run,
                                   .stage = replica_stage(replica),
                                   .replica = replica->number,
                                   .machine = deployment_machine(deployment, replica->machine),
                                   .from = "",
                                   .secret = deployment->secret};
    if (replica->stage && replica->stage->from >= 0) config->from = pipeline->stages[replica->stage->from].name;
    config->last = replica->stage == &pipeline->stages[pipeline->stage_count - 1];
    TRY(NEW(&config->listen, 2));
    config->listen[config->listen_count++] = replica->local;
    if (replica->bound) config->listen[config->listen_count++] = replica->bound;
    TRY(add_readers(deployment, replica, config));
    if (replica->stage && replica->stage->program) TRY(add_command(deployment, replica->stage, config));
    return add_desks(deployment, config);
}

status deployment_write_config(const struct deployment *deployment, const struct replica *replica, const char *path) {
    struct node_config config = {0};
    struct buf text = {0};
    status result = fill(deployment, replica, &config);
    if (result == OK) result = node_config_write(&config, &text);
    if (result == OK) result = file_write_atomic(path, text.data, text.size);
    node_config_release(&config);
    buf_release(&text);
    return result;
}
