#include "tools/watcher.h"

#include <unistd.h>

#include "shared/base/file.h"
#include "shared/wire/zmq_transport.h"

status watcher_open(struct watcher *watcher, struct pipeline *pipeline, const char *machine, const char *key,
                    const char *name) {
    struct deployment *deployment = &watcher->deployment;
    struct transport *transport;
    *watcher = (struct watcher){0};
    TRY(deployment_init(deployment, pipeline, machine, key));
    const struct replica *supervisor = deployment_supervisor(deployment, deployment->here);
    const char *path =
        arena_printf(&deployment->arena, "%s/wiring/" SUPERVISOR_NAME "-%d", pipeline->run, supervisor->number);
    if (!path) return fail_oom();
    if (!path_exists(path)) return fail(UNAVAILABLE, "no run of this file was started in %s", pipeline->run);
    TRY(node_config_read(&watcher->config, path));
    const struct wire_self self = {.run = deployment->run,
                                   .name = name,
                                   .replica = (int)getpid(), // several may watch a run
                                   .machine = deployment_machine(deployment, deployment->here)};
    TRY(zmq_transport_open(&transport, node_config_security(&watcher->config)));
    return wire_open(&watcher->wire, &self, transport);
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
