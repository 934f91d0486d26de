#include "tools/run/run_end.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/stage_options.h"

// Appends the options with which the same command trains on.
static void run_end_more(const struct pipeline *pipeline, struct buf *out) {
    const struct source_options *source = pipeline_options(&pipeline->stages[0]);
    const bool limited = source->max_steps; // by the steps or by the data: twice both is enough
    if (limited) buf_printf(out, "--set source.max_steps=%lld ", 2LL * source->max_steps);
    buf_printf(out, "--set source.epochs=%lld", (long long)source->epochs * (limited ? 2 : 1) + !limited);
}

// Appends where the newest checkpoint is, if this machine has it, and what to do with it.
static status run_end_training(const struct deployment *deployment, struct buf *out) {
    const struct pipeline_stage *optim = pipeline_optim(deployment->pipeline);
    struct arena arena = {0};
    status result = OK;
    char *latest = path_join(&arena, pipeline_value(optim, "out"), "latest"), *path = NULL;
    path = pipeline_stage_runs_on(optim, deployment->here) ? realpath(latest, NULL) : NULL;
    if (!path) goto done;
    buf_printf(out, "newest checkpoint: %s\n", path);
    buf_puts(out, "next: evaluate it with a file of pipelines/eval and --set model=CHECKPOINT, or "
                  "train on with ");
    run_end_more(deployment->pipeline, out);
    buf_puts(out, "\n");
done:
    free(path);
    arena_release(&arena);
    return result;
}

status run_end_lines(const struct deployment *deployment, const struct run_status *run_status, double seconds,
                     struct buf *out) {
    const struct pipeline *pipeline = deployment->pipeline;
    const long long whole = (long long)seconds;
    struct run_summary run;
    bool scores = false;
    run_status_summary(run_status, 0, &run);
    buf_printf(out, "this start took %lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    if (!isnan(run.reward)) buf_printf(out, "; last step: reward %.3f", run.reward);
    if (!isnan(run.accuracy)) buf_printf(out, ", accuracy %.3f", run.accuracy);
    buf_puts(out, "\n");
    if (pipeline_optim(pipeline)) return run_end_training(deployment, out);
    for (size_t i = 0; i < pipeline->stage_count; i++) scores |= pipeline->stages[i].kind == &stage_kinds[STAGE_SCORE];
    buf_printf(out, "next: caravan %s %s\n", scores ? "eval" : "groups ls", pipeline->run);
    return OK;
}

// ---- the note ----

// Machines may share the run's directory.
static char *run_end_path(struct arena *arena, const struct deployment *deployment) {
    return arena_printf(arena, "%s/ended-%s", deployment->pipeline->run,
                        deployment_machine(deployment, deployment->here));
}

status run_end_note(const struct deployment *deployment, const char *reason) {
    struct arena arena = {0};
    struct buf text = {0};
    buf_printf(&text, "%s\n%s\n", deployment->settings, reason);
    const status result = file_write_atomic(run_end_path(&arena, deployment), text.data, text.size);
    buf_release(&text);
    arena_release(&arena);
    return result;
}

status run_end_find(const struct deployment *deployment, struct buf *reason) {
    struct arena arena = {0};
    struct buf text = {0};
    const char *path = run_end_path(&arena, deployment);
    const status result = path_exists(path) ? file_read(path, &text) : OK;
    const size_t size = strlen(deployment->settings);
    // A run that was given other settings, for example more epochs, goes on.
    if (text.size > size + 1 && !strncmp(text.data, deployment->settings, size) && text.data[size] == '\n')
        buf_printf(reason, "%.*s", (int)strcspn(text.data + size + 1, "\n"), text.data + size + 1);
    buf_release(&text);
    arena_release(&arena);
    return result;
}

void run_end_forget(const struct deployment *deployment) {
    struct arena arena = {0};
    unlink(run_end_path(&arena, deployment));
    arena_release(&arena);
}
