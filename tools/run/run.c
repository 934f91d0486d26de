// caravan run FILE: this machine's part of a pipeline, from making the run's directory to its end.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
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

// Sets `steps` where a stage of this machine needs it: for the learning rate's schedule and for that of cora's beta. It
// is optim's `steps`, or what the data and max_steps make.
static status run_set_steps(struct deployment *deployment) {
    struct pipeline *pipeline = deployment->pipeline;
    const struct pipeline_stage *last = pipeline_optim(pipeline), *first = &pipeline->stages[0];
    if (!last || first->kind != &stage_kinds[STAGE_SOURCE]) return OK;
    const struct optim_options *optim = pipeline_options(last);
    const struct source_options *source = pipeline_options(first);
    int64_t steps = optim->steps;
    deployment->steps_given = steps != 0;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        bool needed = false; // it computes with a number of steps that the file does not give
        char text[32];
        size_t groups;
        if (!pipeline_stage_runs_on(stage, deployment->here)) continue;
        if (stage == last && pipeline_stage_machine(last, 0) == deployment->here) // of ranks only rank 0 does
            needed = !optim->steps && (optim->schedule != OPTIM_SCHEDULE_CONSTANT || optim->warmup_ratio > 0);
        if (stage->kind == &stage_kinds[STAGE_REWARD]) {
            const struct reward_options *reward = pipeline_options(stage);
            needed = !reward->steps && reward->beta_schedule != REWARD_BETA_SCHEDULE_CONSTANT;
        }
        if (!needed) continue;
        if (!steps) {
            const status result = dataset_count_groups(source, &groups);
            if (result != OK && deployment->machines > 1)
                return fail_prefix(
                    result,
                    "this machine cannot count the steps: set optim's `steps`, or copy the data to this machine");
            TRY(result);
            steps = (int64_t)groups / source->groups_per_step;
            if (source->max_steps && source->max_steps < steps) steps = source->max_steps;
            if (steps < 1) steps = 1;
        }
        snprintf(text, sizeof text, "%lld", (long long)steps);
        pipeline_set(stage, "steps", text);
    }
    return OK;
}

// Sets what pipeline.yaml, which is the same for all machines, does not have.
static void run_set_own_values(struct deployment *deployment) {
    struct pipeline *pipeline = deployment->pipeline;
    struct arena *arena = &pipeline->arena;
    // Several machines may share the run's directory, but LMDB files cannot be shared: instead of the default RUN/store
    // each machine has RUN/store-MACHINE.
    const char *common = path_join(arena, pipeline->run, "store");
    const char *own = arena_printf(arena, "%s-%s", common, deployment_machine(deployment, deployment->here));
    for (size_t i = 0; i < pipeline->stage_count && deployment->machines > 1; i++) {
        const char *store = pipeline_value(&pipeline->stages[i], "store");
        if (store && !strcmp(store, common)) pipeline_set(&pipeline->stages[i], "store", own);
    }
    subcommand_set_frames(pipeline);
}

// Makes the run's directories and its lock, writes pipeline.yaml and the link to the metrics, and runs the supervisor.
// Machines may share the directory: the last stage's machine writes what all of them have.
static status run(struct deployment *deployment) {
    static const char *const dirs[] = {"logs", "nodes", "weights", "checkpoints"}; // the stores are made by the stages
    enum { DIRS = sizeof dirs / sizeof *dirs, TRAINING_DIRS = 2 };                 // the last ones are optim's
    const struct pipeline *pipeline = deployment->pipeline;
    const struct pipeline_stage *optim = pipeline_optim(pipeline);
    const char *machine = deployment_machine(deployment, deployment->here);
    const bool last_here = pipeline_stage_machine(&pipeline->stages[pipeline->stage_count - 1], 0) == deployment->here;
    // A process without peers has about 20 descriptors: standard streams, libzmq's own, stores, logs, a clip or a
    // checkpoint. A connection to a process and one from it have 3.
    enum { OWN_FDS = 40, CONNECTION_FDS = 3, LOCK_TRIES = 20, LOCK_PAUSE_US = 100000 };
    const size_t needed = OWN_FDS + CONNECTION_FDS * deployment->count;
    struct buf path = {0}, target = {0};
    char before[PATH_MAX];
    int locks[2] = {-1, -1}, sockets = -1;
    status result;
    uint64_t fds = fd_raise_limit();
    if (fds < needed)
        return fail(UNAVAILABLE,
                    "a process of this run may need %zu file descriptors, but only %llu are allowed (ulimit -Hn)",
                    needed, (unsigned long long)fds);
    TRY_TO(result, done, dir_make(pipeline->run));
    // Each machine has one run in a directory, for which RUN/lock is locked. Machines that share the directory lock
    // that for all of them, and each locks RUN/lock-MACHINE for itself. The kernel drops a lock when this process ends;
    // no child inherits it.
    for (int i = 0; i < (*machine ? 2 : 1); i++) {
        const int kind = *machine && !i ? LOCK_SH : LOCK_EX;
        buf_clear(&path);
        buf_printf(&path, "%s/lock%s%s", pipeline->run, i ? "-" : "", i ? machine : "");
        const int lock = locks[i] = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        bool locked = false;
        for (int tries = 0; lock >= 0 && !locked && tries < LOCK_TRIES; tries++) {
            if (tries) usleep(LOCK_PAUSE_US); // a run that has said goodbye to `caravan stop` has still to exit
            locked = !flock(lock, kind | LOCK_NB);
            if (!locked && errno != EWOULDBLOCK) break;
        }
        if (locked) continue;
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
    // No other user may enter the directory of the local endpoints, which must not be a link to another one.
    TRY_TO(result, done, dir_make(deployment->sockets));
    sockets = open(deployment->sockets, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sockets < 0 || fchmod(sockets, 0700))
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", deployment->sockets, strerror(errno)));
    TRY_TO(result, done, run_set_steps(deployment));
    subcommand_set_publish(deployment->pipeline);
    if (last_here) TRY_TO(result, done, run_settings_write(pipeline));
    run_set_own_values(deployment);
    if (optim && last_here) {
        // Optim writes its metrics beside its checkpoints; people look for them in the run's directory.
        const char *out = pipeline_value(optim, "out"); // the default is below the run's directory
        size_t length = strlen(pipeline->run);
        assert(out);
        bool inside = !strncmp(out, pipeline->run, length) && out[length] == '/';
        buf_clear(&path);
        buf_printf(&path, "%s/metrics.jsonl", pipeline->run);
        buf_printf(&target, "%s/metrics.jsonl", inside ? out + length + 1 : out);
        const ssize_t size = readlink(path.data, before, sizeof before);
        const bool same = size == (ssize_t)target.size && !memcmp(before, target.data, target.size);
        if (size > 0 && !same) unlink(path.data); // a link to another `out`
        if (symlink(target.data, path.data) && errno != EEXIST)
            TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path.data, strerror(errno)));
    }
    result = supervisor_run(deployment, locks[*machine != 0]);
done:
    if (sockets >= 0) close(sockets);
    for (int i = 0; i < 2; i++)
        if (locks[i] >= 0) close(locks[i]);
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
    struct wire_security keys = {0};
    struct utsname host = {0};
    struct buf text = {0};
    status result;
    // A run's own file says where the run was, before its directory was moved or copied.
    char here[PATH_MAX], there[PATH_MAX];
    const char *beside = path_parent(&call->arena, call->path);
    if (pipeline->run_at.line && !strcmp(path_base_name(call->path), "pipeline.yaml") &&
        path_exists(path_join(&call->arena, beside, "ledger.lmdb")) && realpath(beside, here) &&
        (!realpath(pipeline->run, there) || strcmp(here, there) != 0))
        return fail(USAGE, "%s: its run was in %s and is now in %s: say so with --set run=%s", call->path,
                    pipeline->run, here, here);
    const char *path = deployment_shared_key_file(&call->arena, pipeline);
    if (pipeline->slurm_job && pipeline->machine_count > 1 && !given->key && !path_exists(path)) {
        // The nodes of a Slurm job share a key. They start at the same time, and the first one makes it.
        uname(&host);
        const char *own = arena_printf(&call->arena, "%s.%s.%d", path, host.nodename, (int)getpid());
        TRY_TO(result, done, dir_make(pipeline->run));
        TRY_TO(result, done, wire_key_make(&keys));
        TRY_TO(result, done, wire_key_write(&keys, own));
        const bool made = !link(own, path) || errno == EEXIST;
        result = made ? OK : fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
        unlink(own);
        if (!made) goto done;
    }
    TRY_TO(result, done, deployment_init(&deployment, pipeline, given->machine, given->key));
    // Says what makes no sense in what this machine is to run; the stages themselves refuse what is wrong.
    inspection.here = deployment.here;
    inspect_files(&inspection);
    if (!warnings.count) {
        inspect_values(&inspection);
        inspect_chat_templates(&inspection);
    }
    result = diagnostics_report(&warnings, call->path, &text);
    if (text.size) fwrite(text.data, 1, text.size, stderr);
    if (result == OK) result = run(&deployment);
done:
    wire_security_release(&keys);
    deployment_release(&deployment);
    diagnostics_release(&warnings);
    buf_release(&text);
    return result;
}
