// The weights that the other stages of a run use.
//
// In files: one of the policy after each step, and one of the reference whenever it has changed. Version 0 has no file:
// it is the directory that every stage has opened. Lent: every version is in the same memory of the GPU, and one small
// file for the policy and one for the reference say where, of each rank on this machine. Another process has other
// memory, and names the files anew.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "stages/optim/optim.h"

static char *publish_name(struct arena *arena, const struct optim *optim, bool reference) {
    const char *kind = reference ? "reference" : "policy";
    if (optim->lent_name) return arena_printf(arena, "%s-%s%s", kind, optim->lent_name, LENT_WEIGHTS_SUFFIX);
    const int64_t version = reference ? optim->ema_step : model_version(optim->model);
    return arena_printf(arena, "%s-%06lld.safetensors", kind, (long long)version);
}

// Publishes the newest policy or reference. While its file cannot be written, tries again every few seconds.
static status publish_one(struct optim *optim, bool reference) {
    enum { PAUSE_S = 2, LOGGED_EVERY_S = 60 };
    const double begun = clock_monotonic();
    double logged_at = -LOGGED_EVERY_S; // when it was last logged, in seconds since `begun`
    struct stage_weights weights = {.reference = reference,
                                    .version = reference ? optim->ema_step : model_version(optim->model)};
    struct arena arena = {0};
    status result = OK;
    char *name = publish_name(&arena, optim, reference);
    char *path = arena_printf(&arena, "%s/%s", stage_weights_dir(optim->context), name);
    char *temporary = arena_printf(&arena, "%s.tmp", path);
    if (optim->lent_name) {
        const bool copied = optim->options->publish == OPTIM_PUBLISH_COPY;
        TRY_TO(result, done, order_lend(optim, reference, copied, path, &weights.hash));
    } else {
        stage_recycle(optim->context, reference, temporary); // model_publish overwrites a file of that name
        while ((result = model_publish(optim->model, reference, path, &weights.hash)) == UNAVAILABLE) {
            const double waited = clock_monotonic() - begun;
            if (waited - logged_at >= LOGGED_EVERY_S) {
                stage_notify(optim->context, "%s; the run waits until it can be written", fail_text());
                logged_at = waited;
            }
            if (signals_stopping()) result = END;
            if (result == END) goto done;
            sleep(PAUSE_S);
        }
        TRY_TO(result, done, result);
        if (logged_at >= 0) log_info("%s: written after %.0f s", path, clock_monotonic() - begun);
    }
    weights.path = path;
    result = stage_publish(optim->context, &weights);
done:
    arena_release(&arena);
    return result;
}

status publish_weights(struct optim *optim, bool both) {
    struct stage_weights initial = {.hash = optim->initial_hash};
    if (!stage_weights_dir(optim->context)) return OK;
    if (!optim->lent_name && !optim->publishes_files) { // decides how to publish, once
        bool has_means;
        status result = UNAVAILABLE;
        if (optim->options->publish != OPTIM_PUBLISH_FILES) {
            result = model_can_lend(optim->model, &has_means);
            if (result == UNAVAILABLE && has_means)
                stage_notify(optim->context, "%s: weights are written to files, not lent", fail_text());
            else if (result == UNAVAILABLE)
                log_debug("%s: weights are written to files", fail_text());
        }
        optim->publishes_files = result == UNAVAILABLE;
        if (!optim->publishes_files) {
            char name[64];
            TRY(result);
            snprintf(name, sizeof name, "%d-%.0f", (int)getpid(), clock_realtime() * 1e6);
            optim->lent_name = mem_strdup(name);
        }
    }
    const bool lent_reference = optim->lent_name && optim->options->ema_every > 0;
    if (both && (optim->ema_step || lent_reference)) {
        TRY(publish_one(optim, true));
    } else if (both) {
        initial.reference = true; // until its first change; the policy may be further
        TRY(stage_publish(optim->context, &initial));
    }
    if (model_version(optim->model) || optim->lent_name) return publish_one(optim, false);
    initial.reference = false;
    return stage_publish(optim->context, &initial);
}

status publish_files(void *state, const char *reason) {
    struct optim *optim = state;
    if (optim->publishes_files) return OK;
    stage_notify(optim->context, "%s; they are written to files from now on", reason);
    optim->publishes_files = true;
    free(optim->lent_name);
    optim->lent_name = NULL;
    return publish_weights(optim, true);
}

void publish_remove_old(const struct optim *optim) {
    const char *dir = stage_weights_dir(optim->context);
    struct arena arena = {0};
    if (!dir) return;
    dir_remove_old(dir, "policy-", publish_name(&arena, optim, false), 0);
    dir_remove_old(dir, "reference-", publish_name(&arena, optim, true), 0);
    arena_release(&arena);
}
