// caravan run FILE: this machine's part of a pipeline, from making the run's directory to its end.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/pipeline.h"
#include "shared/data/dataset.h"
#include "tools/check/inspection.h"
#include "tools/run/run.h"
#include "tools/tools.h"

static const struct option run_options[] = {RUN_MEMBER, {0}};
const struct option_table run_table = {.program = "caravan run",
                                       .operands = "FILE",
                                       .help =
                                           "starts a pipeline; Ctrl-C stops it with exit code 75, and the same command "
                                           "resumes it",
                                       .options = run_options,
                                       .size = sizeof(struct run_member_options)};

// Sets *steps to the number of steps of the run: optim's `steps`, or what the data and max_steps make.
static status run_count_steps(const struct deployment *deployment, int64_t *steps) {
    const struct optim_options *optim = pipeline_options(pipeline_optim(deployment->pipeline));
    const struct source_options *source = pipeline_options(&deployment->pipeline->stages[0]);
    size_t groups;
    *steps = optim->steps;
    if (*steps) return OK;
    const status result = dataset_count_groups(source, &groups);
    if (result != OK && deployment->machines > 1)
        return fail_prefix(
            result, "this machine cannot count the steps: set optim's `steps`, or copy the data to this machine");
    TRY(result);
    int64_t count = (int64_t)groups / source->groups_per_step;
    if (source->max_steps && source->max_steps < count) count = source->max_steps;
    *steps = count > 0 ? count : 1;
    return OK;
}

// Sets `steps` where a stage of this machine needs it: for the learning rate's schedule and for that of cora's beta.
static status run_set_steps(struct deployment *deployment) {
    struct pipeline *pipeline = deployment->pipeline;
    int64_t steps = 0;
    if (!pipeline_optim(pipeline) || pipeline->stages[0].kind != &stage_kinds[STAGE_SOURCE]) return OK;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        bool needed = false; // it computes with a number of steps that the file does not give
        char text[32];
        if (!pipeline_stage_runs_on(stage, deployment->here)) continue;
        if (stage->kind == &stage_kinds[STAGE_OPTIM]) {
            const struct optim_options *optim = pipeline_options(stage);
            needed = !optim->steps && (optim->schedule != OPTIM_SCHEDULE_CONSTANT || optim->warmup_ratio > 0);
        } else if (stage->kind == &stage_kinds[STAGE_REWARD]) {
            const struct reward_options *reward = pipeline_options(stage);
            needed = !reward->steps && reward->beta_schedule != REWARD_BETA_SCHEDULE_CONSTANT;
        }
        if (!needed) continue;
        if (!steps) TRY(run_count_steps(deployment, &steps));
        snprintf(text, sizeof text, "%lld", (long long)steps);
        pipeline_set(stage, "steps", text);
    }
    return OK;
}

// Several machines may share the run's directory, but LMDB files cannot be shared: instead of the default RUN/store
// each machine has RUN/store-MACHINE. Called when pipeline.yaml is written, which is the same for all machines.
static void run_set_stores(struct deployment *deployment) {
    struct pipeline *pipeline = deployment->pipeline;
    struct arena *arena = &pipeline->arena;
    const char *common = path_join(arena, pipeline->run, "store");
    const char *own = arena_printf(arena, "%s-%s", common, deployment_machine(deployment, deployment->here));
    if (deployment->machines < 2) return;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const char *store = pipeline_value(&pipeline->stages[i], "store");
        if (store && !strcmp(store, common)) pipeline_set(&pipeline->stages[i], "store", own);
    }
}

// Makes the key that the nodes of a Slurm job share. They start at the same time, and the first one wins.
static status run_make_key(const struct pipeline *pipeline) {
    struct arena arena = {0};
    struct wire_security keys = {0};
    struct utsname host = {0};
    status result = OK;
    const char *path = deployment_shared_key_file(&arena, pipeline);
    uname(&host);
    const char *own = arena_printf(&arena, "%s.%s.%d", path, host.nodename, (int)getpid());
    if (path_exists(path)) goto done;
    TRY_TO(result, done, dir_make(pipeline->run));
    TRY_TO(result, done, wire_key_make(&keys));
    TRY_TO(result, done, wire_key_write(&keys, own));
    if (link(own, path) && errno != EEXIST) result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    unlink(own);
done:
    wire_security_release(&keys);
    arena_release(&arena);
    return result;
}

// Makes the directory of the local endpoints, which no other user may enter. It must not be a link to another one.
static status run_make_sockets(const char *path) {
    TRY(dir_make(path));
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const bool private = fd >= 0 && !fchmod(fd, 0700);
    const status result = private ? OK : fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return result;
}

// Tells the stages that need frames how the run's frames stage makes them, and its limit: they decode evicted frames
// again, and evict from the stores of their machines.
static void run_set_frames_options(struct pipeline *pipeline) {
    const struct pipeline_stage *frames = pipeline_find_stage(pipeline, stage_kinds[STAGE_FRAMES].name);
    if (!frames || frames->kind != &stage_kinds[STAGE_FRAMES]) return;
    for (const struct key *key = frames->options.given.first; key; key = key->next) {
        char name[64];
        const struct option *option = option_find(&frames->kind->options, key->name);
        snprintf(name, sizeof name, "frames.%s", key->name);
        for (size_t i = 0; i < pipeline->stage_count; i++) {
            struct pipeline_stage *stage = &pipeline->stages[i];
            const bool known = stage->kind && option_find_any(&stage->kind->options, name);
            if (known && (!option->not_hashed || !strcmp(option->name, "store_limit")))
                pipeline_set(stage, name, key->value);
        }
    }
}

// Makes the run's directories and its lock, writes pipeline.yaml and the link to the metrics, and runs the supervisor.
// Machines may share the directory: the last stage's machine writes what all of them have.
static status run(struct deployment *deployment) {
    static const char *const dirs[] = {"logs", "nodes", "weights", "checkpoints"}; // the stores are made by the stages
    enum { DIRS = sizeof dirs / sizeof *dirs, TRAINING_DIRS = 2 };                 // the last ones are optim's
    const struct pipeline *pipeline = deployment->pipeline;
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    const char *machine = deployment_machine(deployment, deployment->here);
    const bool last_here = pipeline_stage_runs_on(&pipeline->stages[pipeline->stage_count - 1], deployment->here);
    struct buf path = {0}, target = {0};
    int lock = -1;
    status result;
    uint64_t fds = fd_raise_limit();
    if (fds < deployment_max_fds(deployment))
        return fail(UNAVAILABLE,
                    "a process of this run may need %zu file descriptors, but only %llu are allowed (ulimit -Hn)",
                    deployment_max_fds(deployment), (unsigned long long)fds);
    TRY_TO(result, done, dir_make(pipeline->run));
    // Each machine has one run in a directory. The kernel drops the lock when this process ends; no child inherits it.
    buf_printf(&path, "%s/lock%s%s", pipeline->run, *machine ? "-" : "", machine);
    lock = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB)) {
        result = lock >= 0 && errno == EWOULDBLOCK
                     ? fail(USAGE, "%s: another caravan run is using this directory", pipeline->run)
                     : fail(UNAVAILABLE, "%s: %s", path.data, strerror(errno));
        goto done;
    }
    for (size_t i = 0; i < (optim ? DIRS : DIRS - TRAINING_DIRS); i++) {
        buf_clear(&path);
        buf_printf(&path, "%s/%s", pipeline->run, dirs[i]);
        TRY_TO(result, done, dir_make(path.data));
    }
    TRY_TO(result, done, run_make_sockets(deployment->sockets));
    TRY_TO(result, done, run_set_steps(deployment));
    subcommand_set_publish(deployment->pipeline);
    if (last_here) TRY_TO(result, done, run_settings_write(pipeline));
    run_set_stores(deployment);
    run_set_frames_options(deployment->pipeline);
    if (optim && last_here) {
        // Optim writes its metrics beside its checkpoints; people look for them in the run's directory.
        const char *out = pipeline_value(optim, "out"); // the default is below the run's directory
        size_t length = strlen(pipeline->run);
        assert(out);
        bool inside = !strncmp(out, pipeline->run, length) && out[length] == '/';
        buf_clear(&path);
        buf_printf(&path, "%s/metrics.jsonl", pipeline->run);
        buf_printf(&target, "%s/metrics.jsonl", inside ? out + length + 1 : out);
        if (symlink(target.data, path.data) && errno != EEXIST)
            TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path.data, strerror(errno)));
    }
    result = supervisor_run(deployment);
done:
    if (lock >= 0) close(lock);
    buf_release(&path);
    buf_release(&target);
    return result;
}

status run_main(struct subcommand_call *call) {
    const struct run_member_options *given = call->given;
    struct pipeline *pipeline = call->pipeline;
    struct deployment deployment = {0};
    struct diagnostics warnings = {0};
    struct inspection inspection = {.pipeline = pipeline, .diagnostics = &warnings};
    struct buf text = {0};
    status result = OK;
    if (pipeline->slurm_job && pipeline->machine_count > 1 && !given->key) result = run_make_key(pipeline);
    if (result == OK) result = deployment_init(&deployment, pipeline, given->machine, given->key);
    if (result == OK) {
        // Says what makes no sense in what this machine is to run; the stages themselves refuse what is wrong.
        inspection.here = deployment.here;
        inspect_values(&inspection);
        inspect_chat_templates(&inspection);
        result = diagnostics_report(&warnings, call->path, &text);
        if (text.size) fwrite(text.data, 1, text.size, stderr);
    }
    if (result == OK) result = run(&deployment);
    deployment_release(&deployment);
    diagnostics_release(&warnings);
    buf_release(&text);
    return result;
}
