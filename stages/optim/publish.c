// The weights that the other stages of a run load: a file of the policy after each step, and a file of the reference
// whenever it has changed. Version 0 has no file: it is the directory that every stage has opened.
#include "shared/base/file.h"
#include "stages/optim/optim.h"

static char *publish_name(struct arena *arena, bool reference, int64_t version) {
    return arena_printf(arena, "%s-%06lld.safetensors", reference ? "reference" : "policy", (long long)version);
}

static status publish_file(struct optim *optim, bool reference, int64_t version) {
    struct stage_weights weights = {.reference = reference, .version = version};
    struct arena arena = {0};
    status result = OK;
    char *name = publish_name(&arena, reference, version);
    char *path = name ? arena_printf(&arena, "%s/%s", stage_weights_dir(optim->context), name) : NULL;
    char *temporary = path ? arena_printf(&arena, "%s.tmp", path) : NULL;
    if (!temporary) TRY_TO(result, done, fail_oom());
    stage_recycle(optim->context, reference, temporary); // model_publish overwrites a file of that name
    TRY_TO(result, done, model_publish(optim->model, reference, path, &weights.hash));
    weights.path = path;
    result = stage_publish(optim->context, &weights);
done:
    arena_release(&arena);
    return result;
}

status publish_weights(struct optim *optim, bool both) {
    const int64_t step = model_version(optim->model);
    struct stage_weights initial = {.hash = optim->initial_hash};
    if (!stage_weights_dir(optim->context)) return OK;
    if (both && optim->ema_step) {
        TRY(publish_file(optim, true, optim->ema_step));
    } else if (both) {
        initial.reference = true; // until its first change; the policy may be further
        TRY(stage_publish(optim->context, &initial));
    }
    if (step) return publish_file(optim, false, step);
    initial.reference = false;
    return stage_publish(optim->context, &initial);
}

void publish_remove_old(const struct optim *optim) {
    struct arena arena = {0};
    const char *policy = publish_name(&arena, false, model_version(optim->model));
    const char *reference = publish_name(&arena, true, optim->ema_step);
    const char *dir = stage_weights_dir(optim->context);
    if (dir && policy && reference) {
        dir_remove_old(dir, "policy-", policy, 0);
        dir_remove_old(dir, "reference-", reference, 0);
    }
    arena_release(&arena);
}
