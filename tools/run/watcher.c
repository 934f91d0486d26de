#include "tools/run/watcher.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/run/active_runs.h"

// UNAVAILABLE when this user may not use what a run has at `path`. A missing file is OK.
static status watcher_check_access(const char *run, const char *path, int mode) {
    char owner[64];
    if (!access(path, mode) || errno != EACCES) return OK;
    path_owner(run, owner, sizeof owner);
    return fail(UNAVAILABLE, "%s belongs to user %s, who alone can watch and stop its run", run, owner);
}

// Says that there is no run in a directory, and which runs are active.
static status watcher_say_active(const char *what, const char *run) {
    struct buf table = {0};
    size_t count = 0;
    log_info("%s %s", what, run);
    const status result = active_runs_table(&table, &count);
    if (result == OK && count) log_info("active runs of this machine:");
    if (table.size) fwrite(table.data, 1, table.size, stderr);
    buf_release(&table);
    return result == OK ? fail(UNAVAILABLE, "%s", "") : result; // it was said
}

status watcher_not_active(const struct watcher *watcher) {
    return watcher_say_active("no run of this file is active in", watcher->deployment.pipeline->run);
}

status watcher_open(struct watcher *watcher, struct pipeline *pipeline, const char *machine, const char *key,
                    const char *name) {
    struct deployment *deployment = &watcher->deployment;
    struct transport *transport;
    *watcher = (struct watcher){0};
    TRY(deployment_init(deployment, pipeline, machine, key));
    const struct replica *supervisor = deployment_supervisor(deployment, deployment->here);
    const char *path =
        arena_printf(&deployment->arena, "%s/nodes/" SUPERVISOR_NAME "-%d", pipeline->run, supervisor->number);
    TRY(watcher_check_access(pipeline->run, pipeline->run, X_OK));
    TRY(watcher_check_access(pipeline->run, path, R_OK));
    TRY(watcher_check_access(pipeline->run, deployment->sockets, X_OK));
    if (!path_exists(path)) return watcher_say_active("no run of this file was started in", pipeline->run);
    TRY(node_config_read(&watcher->config, path));
    const struct wire_self self = {.run = deployment->run,
                                   .name = name,
                                   .replica = (int)getpid(), // several may watch a run
                                   .machine = deployment_machine(deployment, deployment->here)};
    TRY(zmq_transport_open(&transport, node_config_security(&watcher->config)));
    wire_open(&watcher->wire, &self, transport);
    return OK;
}

status watcher_connect(struct watcher *watcher, int machine, struct wire_peer **peer) {
    const struct deployment *deployment = &watcher->deployment;
    const char *key = deployment->machines > 1 ? deployment->pipeline->machines[machine].key : NULL;
    return wire_connect(watcher->wire, deployment_endpoint(deployment, deployment_supervisor(deployment, machine)), key,
                        "watch", peer);
}

void watcher_close(struct watcher *watcher) {
    wire_close(&watcher->wire);
    node_config_release(&watcher->config);
    deployment_release(&watcher->deployment);
}
