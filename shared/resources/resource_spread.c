// The replicas are placed from the largest to the smallest, each on the GPU with the smallest sum: Graham's rule.
#include "shared/resources/resource_spread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct resource_spread {
    const struct resource_plan *plan;
    int gpus, machines;
    uint64_t *loads;     // [machines, gpus] bytes
    uint64_t *bytes;     // of one replica of each stage; 0: it computes on no GPU
    int *placed;         // replicas of each stage
    struct buf *devices; // of each stage, "1,2,1"
};

// Returns the sum of a GPU on the fullest of the stage's machines.
static uint64_t resource_spread_load(const struct resource_spread *spread, size_t stage, int gpu) {
    uint64_t most = 0;
    for (int m = 0; m < spread->machines; m++) {
        const uint64_t load = spread->loads[m * spread->gpus + gpu];
        if (pipeline_stage_runs_on(spread->plan->stages[stage].stage, m) && load > most) most = load;
    }
    return most;
}

static void resource_spread_place(struct resource_spread *spread, size_t stage) {
    int best = 0;
    for (int gpu = 1; gpu < spread->gpus; gpu++)
        if (resource_spread_load(spread, stage, gpu) < resource_spread_load(spread, stage, best)) best = gpu;
    for (int m = 0; m < spread->machines; m++)
        if (pipeline_stage_runs_on(spread->plan->stages[stage].stage, m))
            spread->loads[m * spread->gpus + best] += spread->bytes[stage];
    buf_printf(&spread->devices[stage], spread->placed[stage]++ ? ",%d" : "%d", best);
}

// Places all replicas, and more of rollout on the GPUs that are left.
static void resource_spread_all(struct resource_spread *spread) {
    const struct resource_plan *plan = spread->plan;
    for (;;) {
        size_t next = plan->count;
        for (size_t i = 0; i < plan->count; i++)
            if (spread->placed[i] < plan->stages[i].stage->replicas && spread->bytes[i] &&
                (next == plan->count || spread->bytes[i] > spread->bytes[next]))
                next = i;
        if (next == plan->count) break;
        resource_spread_place(spread, next);
    }
    for (size_t i = 0; i < plan->count; i++) {
        const bool rollout = plan->stages[i].stage->kind == &stage_kinds[STAGE_ROLLOUT] && spread->bytes[i];
        for (int gpu = 0; rollout && gpu < spread->gpus; gpu++)
            if (!resource_spread_load(spread, i, gpu)) resource_spread_place(spread, i);
    }
}

// Whether a stage names another GPU than the first one. USAGE when there is none of that number.
static status resource_spread_check(const struct resource_plan *plan, int gpus, bool *named) {
    *named = false;
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        for (int slot = 0; slot < stage->stage->replicas && !stage->on_cpu; slot++) {
            const char *colon = strchr(stage->devices[slot], ':');
            *named |= colon != NULL;
            if (colon && atoi(colon + 1) >= gpus) // NOLINT: a valid device
                return fail(USAGE, "%s.device: %s, but --gpus is %d", stage->stage->name, stage->devices[slot], gpus);
        }
    }
    return OK;
}

// Writes the places into the pipeline.
static void resource_spread_set(struct resource_spread *spread, struct pipeline *pipeline) {
    for (size_t i = 0; i < spread->plan->count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        struct buf text = {0};
        if (!spread->placed[i]) continue;
        stage->replicas = spread->placed[i];
        buf_printf(&text, stage->replicas > 1 ? "cuda:[%s]" : "cuda:%s", spread->devices[i].data);
        pipeline_set(pipeline, stage, "device", text.data);
        buf_release(&text);
    }
}

status resource_spread(const struct resource_plan *plan, struct pipeline *pipeline, int gpus, bool *placed) {
    struct resource_spread spread = {
        .plan = plan, .gpus = gpus, .machines = pipeline->machine_count ? (int)pipeline->machine_count : 1};
    status result = OK;
    bool named;
    *placed = false;
    TRY(resource_spread_check(plan, gpus, &named));
    if (named || gpus == 1 || !plan->on_gpu) return OK;
    NEW(&spread.loads, (size_t)(spread.machines * gpus));
    NEW(&spread.bytes, plan->count);
    NEW(&spread.placed, plan->count);
    NEW(&spread.devices, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        struct memory_item items[MEMORY_ITEMS];
        size_t count;
        if (plan->stages[i].on_cpu) continue;
        TRY_TO(result, done, planned_stage_needs(&plan->stages[i], items, &count));
        for (size_t k = 0; k < count; k++) spread.bytes[i] += items[k].bytes;
    }
    resource_spread_all(&spread);
    resource_spread_set(&spread, pipeline);
    *placed = true;
done:
    for (size_t i = 0; spread.devices && i < plan->count; i++) buf_release(&spread.devices[i]);
    free(spread.devices);
    free(spread.placed);
    free(spread.bytes);
    free(spread.loads);
    return result;
}
