#include "tools/deployment.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/wire/transport.h"

const char *deployment_machine(const struct deployment *deployment, int machine) {
    return deployment->machines > 1 ? deployment->pipeline->machines[machine].name : "";
}

const char *replica_stage(const struct replica *replica) {
    return replica->stage ? replica->stage->name : SUPERVISOR_NAME;
}

bool replica_follows(const struct replica *replica) {
    return replica->rank && replica->number > 1;
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
    const char *dir = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (dir && *dir) return arena_printf(arena, "%s/caravan/machine.key", dir);
    return home && *home ? arena_printf(arena, "%s/.config/caravan/machine.key", home) : "";
}

const char *deployment_shared_key_file(struct arena *arena, const struct pipeline *pipeline) {
    return path_join(arena, pipeline->run, "machine.key");
}

// ---- replicas and their endpoints ----

// Appends which model or adapter a directory is now: where a link such as checkpoints/latest leads, and when its
// weights were written.
static void deployment_describe_model(struct arena *arena, const char *dir, struct buf *out) {
    static const char *const files[] = {"model.safetensors", "model.safetensors.index.json",
                                        "adapter_model.safetensors"};
    char *real = realpath(dir, NULL);
    struct stat info;
    buf_printf(out, "%s\n", real ? real : "");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!stat(path_join(arena, dir, files[i]), &info))
            buf_printf(out, "%s %lld.%09ld\n", files[i], (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    free(real);
}

// Sets `run`: a hash of the pipeline's form, then NAME=HASH of the settings of each stage, so that a peer can tell
// which of them differ; and `settings`: a hash of all that the stages compute with, the model's directory included. An
// evaluation is only continued with the same.
static void deployment_fingerprint(struct deployment *deployment) {
    enum { MAX_RUN = 3500 }; // bytes: it is one string of HELLO
    const struct pipeline *pipeline = deployment->pipeline;
    struct buf text = {0}, settings = {0}, all = {0}, own = {0};
    buf_printf(&text, "%s\n", pipeline->name);
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        buf_printf(&text, "%s %d %d", stage->name, (int)i - 1, stage->replicas);
        for (size_t k = 0; k < pipeline_stage_machine_count(stage); k++)
            buf_printf(&text, " %d", pipeline_stage_machine(stage, k));
        buf_puts(&text, "\n");
        buf_printf(&all, "%s %s\n", stage->name, stage->program ? stage->program : "");
        buf_clear(&own);
        for (const struct key *key = stage->options.given.first; key; key = key->next) {
            const struct option *option = stage->kind ? option_find(&stage->kind->options, key->name) : NULL;
            if (!option || !option->not_hashed) buf_printf(&all, "%s=%s\n", key->name, key->value);
            if (option && (!strcmp(key->name, "model") || !strcmp(key->name, "adapter")))
                deployment_describe_model(&deployment->arena, key->value, &all);
            if (*key->value != '/') buf_printf(&own, "%s=%s\n", key->name, key->value);
        }
        // Paths and devices may differ from machine to machine and are left out. The types of a program's keys are
        // unknown: a value that begins with '/' counts as a path.
        const uint64_t hash = stage->kind ? options_hash(&stage->options, true) : XXH3_64bits(own.data, own.size);
        buf_printf(&settings, " %s=%016llx", stage->name, (unsigned long long)hash);
    }
    deployment->settings =
        arena_printf(&deployment->arena, "%016llx", (unsigned long long)XXH3_64bits(all.data, all.size));
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        const struct pipeline_machine *machine = &pipeline->machines[i];
        buf_printf(&text, "%s %s %d %s\n", machine->name, machine->address, machine->port,
                   machine->key ? machine->key : "");
    }
    // On one machine, one file can have a run in each of several directories.
    if (deployment->machines < 2) buf_puts(&text, pipeline->run);
    // Too many stages to list are hashed together.
    const bool listed = settings.size <= MAX_RUN;
    if (!listed) buf_append(&text, settings.data, settings.size);
    deployment->run = arena_printf(&deployment->arena, "%016llx%s",
                                   (unsigned long long)XXH3_64bits(text.data, text.size), listed ? settings.data : "");
    buf_release(&text);
    buf_release(&settings);
    buf_release(&all);
    buf_release(&own);
}

// Returns a TCP endpoint.
static const char *deployment_tcp(struct arena *arena, const char *address, int port) {
    const bool v6 = strchr(address, ':') != NULL;
    return arena_printf(arena, "tcp://%s%s%s:%d", v6 ? "[" : "", address, v6 ? "]" : "", port);
}

// Makes the list of replicas with their endpoints, and sets `sockets`. The replicas of a stage are numbered machine by
// machine, so that one more machine at the end changes no number.
static void deployment_make_replicas(struct deployment *deployment) {
    const struct pipeline *pipeline = deployment->pipeline;
    static_assert(PIPELINE_MAX_STAGE + 12 + sizeof ".ranks" <= MAX_LOCAL_NAME, "the names of sockets fit");
    size_t count = deployment->machines;
    struct arena *arena = &deployment->arena;
    for (size_t i = 0; i < pipeline->stage_count; i++)
        count += (size_t)pipeline->stages[i].replicas * pipeline_stage_machine_count(&pipeline->stages[i]);
    deployment->sockets = arena_printf(arena, "%s/sockets", pipeline->run);
    NEW(&deployment->replicas, count);
    for (size_t i = 0; i < deployment->machines; i++)
        deployment->replicas[deployment->count++] = (struct replica){.number = (int)i + 1, .machine = (int)i};
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const int replicas = stage->replicas * (int)pipeline_stage_machine_count(stage);
        for (int k = 0; k < replicas; k++)
            deployment->replicas[deployment->count++] =
                (struct replica){.stage = stage,
                                 .name = k ? arena_printf(arena, "%s-%d", stage->name, k + 1) : stage->name,
                                 .number = k + 1,
                                 .machine = pipeline_stage_machine(stage, (size_t)(k / stage->replicas)),
                                 .slot = k % stage->replicas};
    }
    assert(deployment->count == count);
    for (size_t i = 0; i < deployment->count; i++) {
        struct replica *replica = &deployment->replicas[i];
        replica->local = arena_printf(arena, "ipc://%s/%s-%d", deployment->sockets, replica_stage(replica),
                                      replica->stage ? replica->number : replica->machine + 1);
        if (replica->stage && pipeline_stage_ranks(replica->stage))
            replica->rank = arena_printf(arena, "%s.ranks", replica->local);
        if (deployment->machines < 2) continue;
        const struct pipeline_machine *machine = &pipeline->machines[replica->machine];
        const char *bind = machine->bind ? machine->bind : "*";
        const int port = pipeline_port(pipeline, machine, replica->stage) + replica->slot;
        if (!replica_follows(replica)) {
            replica->remote = deployment_tcp(arena, machine->address, port);
            replica->bound = deployment_tcp(arena, bind, port);
        }
        if (!replica->rank || pipeline_stage_machine_count(replica->stage) < 2) continue;
        replica->rank_remote = deployment_tcp(arena, machine->address, port + 1);
        replica->rank_bound = deployment_tcp(arena, bind, port + 1);
    }
}

// ---- the deployment ----

status deployment_find_here(const struct pipeline *pipeline, const char *name, int *here) {
    struct utsname host = {0};
    int similar = 0;
    *here = 0;
    if (!name && pipeline->machine_count < 2) return OK;
    if (!name && pipeline->slurm) name = getenv("SLURMD_NODENAME");
    if (!name && uname(&host)) return fail(UNAVAILABLE, "the name of this host: %s", strerror(errno));
    const size_t label = strcspn(host.nodename, "."); // of "gpu1.example.org"
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        const char *machine = pipeline->machines[i].name;
        if (strcmp(machine, name ? name : host.nodename) == 0) {
            *here = (int)i;
            return OK;
        }
        if (name || strcspn(machine, ".") != label || strncmp(machine, host.nodename, label) != 0) continue;
        *here = (int)i;
        similar++;
    }
    if (name) return fail(USAGE, "--machine %s: the pipeline file has no machine of that name", name);
    if (similar == 1) return OK;
    return fail(USAGE,
                "the pipeline has %zu machines, and none is named %s as this host is: say which one this is, for "
                "example --machine %s",
                pipeline->machine_count, host.nodename, pipeline->machines[0].name);
}

status deployment_init(struct deployment *deployment, struct pipeline *pipeline, const char *machine,
                       const char *secret) {
    const size_t machines = pipeline->machine_count ? pipeline->machine_count : 1;
    struct wire_security own = {0};
    status result = OK;
    *deployment = (struct deployment){.pipeline = pipeline, .machines = machines};
    if (pipeline->slurm && !pipeline->slurm_job)
        return fail(USAGE, "machines: slurm: this is no job of Slurm: SLURM_JOB_NODELIST is not set");
    TRY(deployment_find_here(pipeline, machine, &deployment->here));
    if (pipeline->slurm && machines > 1) { // the nodes of a Slurm job have one key
        if (!secret) secret = deployment_shared_key_file(&deployment->arena, pipeline);
        TRY_TO(result, done, wire_key_read(&own, secret));
        const char *public = arena_strndup(&pipeline->arena, own.public, strlen(own.public));
        wire_security_release(&own);
        for (size_t i = 0; i < pipeline->machine_count; i++) pipeline->machines[i].key = public;
    }
    for (size_t i = 0; i < machines && machines > 1; i++) {
        const struct pipeline_machine *other = &pipeline->machines[i];
        if (!other->key)
            return fail(USAGE,
                        "machine %s has no key: run caravan keygen there, and write the public key into the file",
                        other->name);
        if (!wire_key_valid(other->key)) return fail(USAGE, "machine %s: the key is not valid", other->name);
    }
    if (machines > 1) {
        // RUN/pipeline.yaml of a Slurm job lists the nodes as machines, which have the job's key.
        const char *shared = deployment_shared_key_file(&deployment->arena, pipeline);
        if (!secret && path_exists(shared)) secret = shared;
        deployment->secret = secret ? secret : deployment_key_file(&deployment->arena);
        if (!*deployment->secret)
            TRY_TO(result, done, fail(USAGE, "HOME is not set: give this machine's key file with --key FILE"));
        TRY_TO(result, done, wire_key_read(&own, deployment->secret));
        const struct pipeline_machine *here = &pipeline->machines[deployment->here];
        if (strcmp(own.public, here->key) != 0)
            TRY_TO(result, done,
                   fail(USAGE, "%s does not match the key of machine %s in the pipeline file", deployment->secret,
                        here->name));
    }
    deployment_fingerprint(deployment);
    deployment_make_replicas(deployment);
done:
    wire_security_release(&own);
    if (result != OK) deployment_release(deployment);
    return result;
}

void deployment_release(struct deployment *deployment) {
    free(deployment->replicas);
    arena_release(&deployment->arena);
    *deployment = (struct deployment){0};
}

// ---- the configuration of a replica ----

status deployment_write_config(const struct deployment *deployment, const struct replica *replica, const char *path) {
    const struct pipeline *pipeline = deployment->pipeline;
    const struct pipeline_stage *stage = replica->stage, *stages = pipeline->stages;
    const bool follows = replica_follows(replica), flows = stage && !follows;
    struct node_config config = {.run = deployment->run,
                                 .run_dir = pipeline->run,
                                 .stage = replica_stage(replica),
                                 .replica = replica->number,
                                 .machine = deployment_machine(deployment, replica->machine),
                                 .from = flows && stage > stages ? stage[-1].name : "",
                                 .last_stage = stages[pipeline->stage_count - 1].name,
                                 .last = flows && stage == &stages[pipeline->stage_count - 1],
                                 .trains = pipeline_optim(pipeline) != NULL,
                                 .settings = pipeline_optim(pipeline) ? NULL : deployment->settings,
                                 .secret = deployment->secret};
    struct buf text = {0};
    status result;
    NEW(&config.listen, 2);
    config.listen[config.listen_count++] = replica->local;
    if (replica->bound) config.listen[config.listen_count++] = replica->bound;
    NEW(&config.readers, 1);
    if (flows && !config.last) config.readers[config.reader_count++] = stage[1].name;
    if (stage && stage->program) {
        config.program_dir = pipeline->dir;
        NEW(&config.command, key_list_count(&stage->options.given) * 2 + 1);
        config.command[config.command_count++] = stage->program;
        for (const struct key *key = stage->options.given.first; key; key = key->next) {
            const char *option = arena_printf(&config.arena, "--%s", key->name);
            config.command[config.command_count++] = option;
            config.command[config.command_count++] = key->value;
        }
    }
    NEW(&config.ranks, deployment->count);
    for (size_t i = 0; i < deployment->count && replica->rank; i++) {
        const struct replica *other = &deployment->replicas[i];
        if (other->stage != stage) continue;
        config.ranks[config.rank_count++] = (struct node_endpoint){
            .stage = stage->name,
            .replica = other->number,
            .machine = deployment_machine(deployment, other->machine),
            .address = other->machine == replica->machine ? other->rank : other->rank_remote,
            .key = other->rank_remote ? pipeline->machines[other->machine].key : NULL,
        };
    }
    NEW(&config.rank_listen, 2);
    if (replica->rank) config.rank_listen[config.rank_listen_count++] = replica->rank;
    if (replica->rank_bound) config.rank_listen[config.rank_listen_count++] = replica->rank_bound;
    NEW(&config.endpoints, deployment->count);
    for (size_t i = 0; i < deployment->count; i++) {
        const struct replica *other = &deployment->replicas[i];
        if (replica_follows(other) && stage) continue;
        config.endpoints[config.endpoint_count++] =
            (struct node_endpoint){.stage = replica_stage(other),
                                   .replica = other->number,
                                   .machine = deployment_machine(deployment, other->machine),
                                   .address = deployment_endpoint(deployment, other),
                                   .key = deployment->machines > 1 ? pipeline->machines[other->machine].key : NULL};
    }
    TRY_TO(result, done, node_config_write(&config, &text));
    result = file_write_atomic(path, text.data, text.size);
done:
    node_config_release(&config);
    buf_release(&text);
    return result;
}
