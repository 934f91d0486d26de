#include "tools/run/machines.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

status machines_connect(struct machines *machines, struct wire *wire, const struct deployment *deployment, double now) {
    const struct pipeline *pipeline = deployment->pipeline;
    NEW(&machines->list, deployment->machines);
    for (int i = 0; i < (int)deployment->machines; i++) {
        if (i == deployment->here) continue;
        struct machine *machine = &machines->list[machines->count++];
        machine->name = pipeline->machines[i].name;
        machine->address = pipeline->machines[i].address;
        machine->away_since = now;
        TRY(wire_connect(wire, deployment_endpoint(deployment, deployment_supervisor(deployment, i)),
                         pipeline->machines[i].key, "report", &machine->peer));
    }
    assert(machines->count == deployment->machines - 1);
    return OK;
}

void machines_release(struct machines *machines) {
    free(machines->list);
    *machines = (struct machines){0};
}

struct machine *machines_find(struct machines *machines, const char *name) {
    for (size_t i = 0; i < machines->count; i++)
        if (!strcmp(machines->list[i].name, name)) return &machines->list[i];
    return NULL;
}

void machines_update(struct machines *machines, double now) {
    for (size_t i = 0; i < machines->count; i++) {
        struct machine *machine = &machines->list[i];
        const bool there = machine->peer->open;
        if (there) machine->joined = true;
        if (there) machine->away_since = 0;
        if (!there && machine->away_since == 0) machine->away_since = now;
    }
}

void machines_missing(const struct machines *machines, struct buf *out) {
    for (size_t i = 0; i < machines->count; i++) {
        const struct machine *machine = &machines->list[i];
        if (machine->away_since > 0)
            buf_printf(out, "%s%s (%s)", out->size ? ", " : "", machine->name, machine->address);
    }
}

const struct machine *machines_away(const struct machines *machines, double now, double seconds) {
    for (size_t i = 0; i < machines->count; i++) {
        const struct machine *machine = &machines->list[i];
        if (machine->away_since > 0 && now - machine->away_since >= seconds) return machine;
    }
    return NULL;
}

const struct machine *machines_unaware(const struct machines *machines, bool all) {
    for (size_t i = 0; i < machines->count; i++) {
        const struct machine *machine = &machines->list[i];
        if ((all || machine->joined) && !machine->ended && !machine->stopped) return machine;
    }
    return NULL;
}
