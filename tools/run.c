// caravan run FILE: this machine's part of a pipeline, from making the run's directory to its end.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/data/dataset.h"
#include "tools/supervisor.h"
#include "tools/tools.h"

struct run_options {
    struct pipeline_file_options file;
    const char *machine, *key;
};

static const struct option run_options[] = {
    PIPELINE_SET,
    {.name = "machine",
     .offset = offsetof(struct run_options, machine),
     .type = OPTION_STRING,
     .help = "name of this machine in the file"},
    {.name = "key",
     .offset = offsetof(struct run_options, key),
     .type = OPTION_FILE,
     .help = "key file of this machine (default: the file that caravan keygen writes)"},
    {0},
};
static const struct option_table run_table = {.program = "caravan run",
                                              .operands = "FILE",
                                              .help =
                                                  "starts a pipeline; Ctrl-C stops it, and the same command resumes it",
                                              .options = run_options,
                                              .size = sizeof(struct run_options)};

// If the file does not set optim's `steps`, sets it to the number of steps that the data make.
static status run_set_steps(struct deployment *deployment) {
    struct pipeline *pipeline = deployment->pipeline;
    struct pipeline_stage *last = &pipeline->stages[pipeline->stage_count - 1];
    struct optim_options optim;
    struct source_options source;
    struct options optim_parsed = {0}, source_parsed = {0};
    struct dataset *data = NULL;
    if (last->kind != &stage_kinds[STAGE_OPTIM] || pipeline->stages[0].kind != &stage_kinds[STAGE_SOURCE]) return OK;
    status result = pipeline_options(last, &optim_parsed, &optim);
    if (result != OK || optim.steps || optim.schedule == OPTIM_SCHEDULE_CONSTANT ||
        deployment_find(deployment, last->name, 1)->machine != deployment->here)
        goto done;
    result = pipeline_options(&pipeline->stages[0], &source_parsed, &source);
    if (result == OK) result = dataset_open(&data, &source);
    if (result == OK) {
        char steps[32];
        int64_t count = (int64_t)dataset_count(data) / source.groups_per_step;
        snprintf(steps, sizeof steps, "%lld", (long long)(count > 0 ? count : 1));
        result = pipeline_set(pipeline, last, "steps", steps);
    } else if (deployment->machines > 1) {
        result = fail_prefix(
            result, "this machine cannot count the steps: set optim's `steps`, or copy the data to this machine");
    }
done:
    dataset_free(&data);
    options_release(&source_parsed);
    options_release(&optim_parsed);
    return result;
}

// Makes the run's directories and its lock, writes pipeline.yaml and the link to the metrics, and runs the supervisor.
static status run(struct deployment *deployment) {
    static const char *const dirs[] = {"store", "logs", "wiring", "weights", "checkpoints"};
    const struct pipeline *pipeline = deployment->pipeline;
    const char *machine = deployment_machine(deployment, deployment->here), *sockets = deployment->sockets;
    struct buf path = {0}, text = {0}, target = {0};
    int lock = -1;
    status result;
    uint64_t fds = fd_raise_limit();
    if (fds < deployment_max_fds(deployment))
        return fail(UNAVAILABLE,
                    "a process of this run may need %zu file descriptors, but only %llu are allowed (ulimit -Hn)",
                    deployment_max_fds(deployment), (unsigned long long)fds);
    TRY_TO(result, done, dir_make(pipeline->run));
    // Each machine has one run in a directory. The kernel drops the lock when this process ends; no child inherits it.
    TRY_TO(result, done, buf_printf(&path, "%s/lock%s%s", pipeline->run, *machine ? "-" : "", machine));
    lock = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB)) {
        result = lock >= 0 && errno == EWOULDBLOCK
                     ? fail(USAGE, "%s: another caravan run is using this directory", pipeline->run)
                     : fail(UNAVAILABLE, "%s: %s", path.data, strerror(errno));
        goto done;
    }
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        buf_clear(&path);
        TRY_TO(result, done, buf_printf(&path, "%s/%s", pipeline->run, dirs[i]));
        TRY_TO(result, done, dir_make(path.data));
    }
    TRY_TO(result, done, dir_make(sockets));
    if (chmod(sockets, 0700)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", sockets, strerror(errno)));
    TRY_TO(result, done, run_set_steps(deployment));
    TRY_TO(result, done, subcommand_set_publish(deployment->pipeline));
    buf_clear(&path);
    TRY_TO(result, done, buf_printf(&path, "%s/pipeline.yaml", pipeline->run));
    TRY_TO(result, done, pipeline_write(pipeline, &text));
    TRY_TO(result, done, file_write_atomic(path.data, text.data, text.size));
    // Optim writes its metrics beside its checkpoints; people look for them in the run's directory.
    const char *out = pipeline_value(&pipeline->stages[pipeline->stage_count - 1], "out");
    size_t length = strlen(pipeline->run);
    if (!out) out = "checkpoints";
    bool inside = !strncmp(out, pipeline->run, length) && out[length] == '/';
    buf_clear(&path);
    TRY_TO(result, done, buf_printf(&path, "%s/metrics.jsonl", pipeline->run));
    TRY_TO(result, done, buf_printf(&target, "%s/metrics.jsonl", inside ? out + length + 1 : out));
    if (symlink(target.data, path.data) && errno != EEXIST)
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path.data, strerror(errno)));
    result = supervisor_run(deployment);
done:
    if (lock >= 0) close(lock);
    buf_release(&path);
    buf_release(&text);
    buf_release(&target);
    return result;
}

int run_main(int argc, char **argv) {
    struct run_options given;
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    const char *path;
    status result = subcommand_open_pipeline(&pipeline, &options, &run_table, &given, argc, argv, &path);
    if (result == OK) {
        struct deployment deployment;
        result = deployment_init(&deployment, pipeline, given.machine, given.key);
        if (result == OK) result = run(&deployment);
        deployment_release(&deployment);
    }
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
