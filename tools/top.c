// caravan top FILE: shows a run while it works. A terminal is redrawn, other outputs get plain lines. It connects to
// the supervisor of this machine, which forwards the reports of all replicas.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/wire/wire.h"
#include "tools/run_status.h"
#include "tools/tools.h"

enum { NOTICES = 8, NOTICE = 200, ANSWER_SECONDS = 5 };

struct top_options {
    struct pipeline_file_options file;
    const char *machine, *key;
    double seconds;
    bool once;
};

static const struct option top_options[] = {
    PIPELINE_SET,
    {.name = "machine",
     .offset = offsetof(struct top_options, machine),
     .type = OPTION_STRING,
     .help = "which of the file's machines this is"},
    {.name = "key",
     .offset = offsetof(struct top_options, key),
     .type = OPTION_FILE,
     .help = "this machine's key file (default: where caravan keygen puts it)"},
    {.name = "seconds",
     .offset = offsetof(struct top_options, seconds),
     .type = OPTION_NUMBER,
     .default_value = "1",
     .low = 0.1,
     .high = 3600,
     .help = "seconds between two views"},
    {.name = "once",
     .offset = offsetof(struct top_options, once),
     .type = OPTION_BOOL,
     .default_value = "false",
     .help = "print one view and exit"},
    {0},
};
static const struct option_table top_table = {.program = "caravan top",
                                              .operands = "FILE",
                                              .help = "shows a run while it works",
                                              .options = top_options,
                                              .size = sizeof(struct top_options)};

struct top {
    struct deployment *deployment;
    struct run_status *run_status;
    struct wire *wire;
    struct node_config config;
    bool terminal, once, heard, over;
    double pause, shown, began;
    char notices[NOTICES][NOTICE]; // the last ones
    size_t notice_count;
    struct buf text;
};

static volatile sig_atomic_t asked_to_stop;

static void top_on_stop(int number) {
    (void)number;
    asked_to_stop = 1;
}

// Appends reward, accuracy and loss of the last steps, from the last lines of metrics.jsonl.
static status top_add_steps(const struct top *top, struct buf *out) {
    enum { STEPS = 5, TAIL = 8192 };
    char path[4096], tail[TAIL + 1];
    snprintf(path, sizeof path, "%s/metrics.jsonl", top->deployment->pipeline->run);
    FILE *file = fopen(path, "r");
    if (!file) return OK; // before the first step, or on a machine without optim
    if (fseek(file, -TAIL, SEEK_END)) rewind(file);
    size_t size = fread(tail, 1, TAIL, file);
    fclose(file);
    tail[size] = 0;
    const char *lines[STEPS] = {0};
    size_t count = 0;
    for (const char *line = strstr(tail, "{\"step\""); line; line = strstr(line + 1, "{\"step\""))
        lines[count++ % STEPS] = line;
    for (size_t i = count > STEPS ? count - STEPS : 0; i < count; i++) {
        const char *line = lines[i % STEPS], *reward = strstr(line, "\"reward\": "), *end = strchr(line, '\n');
        const char *accuracy = strstr(line, "\"accuracy\": "), *loss = strstr(line, "\"loss\": ");
        if (!end || !reward || !accuracy || !loss || reward > end || accuracy > end) continue;
        TRY(buf_printf(out, "step %-6lld reward %7.3f  accuracy %6.3f  loss %9.3g\n", atoll(line + 9),
                       atof(reward + 10), atof(accuracy + 12), atof(loss + 8)));
    }
    return OK;
}

static status top_show(struct top *top) {
    buf_clear(&top->text);
    if (top->terminal) TRY(buf_puts(&top->text, "\033[H\033[J"));
    TRY(run_status_table(top->run_status, clock_monotonic(), &top->text));
    TRY(top_add_steps(top, &top->text));
    size_t first = top->notice_count > NOTICES ? top->notice_count - NOTICES : 0;
    for (size_t i = first; i < top->notice_count; i++) TRY(buf_printf(&top->text, "%s\n", top->notices[i % NOTICES]));
    if (!top->terminal) TRY(buf_puts(&top->text, "\n"));
    fwrite(top->text.data, 1, top->text.size, stdout);
    return fflush(stdout) ? fail(END, "standard output is closed") : OK;
}

// Shows the run until it ends or the user stops this program.
static status top_watch(struct top *top) {
    enum { WAIT_MS = 100 };
    while (!asked_to_stop && !top->over) {
        struct wire_event event;
        const struct wire_message *message = &event.message;
        TRY(wire_poll(top->wire, WAIT_MS, &event));
        if (event.kind == WIRE_REFUSED) return fail(UNAVAILABLE, "%s", message->reason);
        if (event.kind == WIRE_GONE) top->over = true;
        if (event.kind == WIRE_MESSAGE) {
            top->heard = true;
            if (message->kind == MESSAGE_STATUS) TRY(run_status_update(top->run_status, message, clock_monotonic()));
            if (message->kind == MESSAGE_NOTICE)
                snprintf(top->notices[top->notice_count++ % NOTICES], NOTICE, "%s: %s", message->name, message->reason);
            if (message->kind == MESSAGE_END) {
                printf("%s\n", message->reason);
                top->over = true;
            }
        }
        if (!top->heard && clock_monotonic() - top->began > ANSWER_SECONDS)
            return fail(UNAVAILABLE, "no run of this file is active in %s", top->deployment->pipeline->run);
        if (!top->heard || clock_monotonic() - top->shown < top->pause) continue;
        // All replicas have reported after a second.
        if (top->once && clock_monotonic() - top->began < 2) continue;
        top->shown = clock_monotonic();
        TRY(top_show(top));
        if (top->once) return OK;
    }
    return OK;
}

static status top_run(struct deployment *deployment, const struct top_options *given) {
    struct top top = {.deployment = deployment,
                      .terminal = isatty(STDOUT_FILENO),
                      .once = given->once,
                      .pause = given->seconds,
                      .began = clock_monotonic()};
    struct sigaction stop = {.sa_handler = top_on_stop};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    const struct replica *supervisor = deployment_supervisor(deployment, deployment->here);
    const char *run = deployment->pipeline->run;
    const char *key = deployment->machines > 1 ? deployment->pipeline->machines[deployment->here].key : NULL;
    status result;
    TRY_TO(result, done, run_status_new(&top.run_status, deployment));
    const char *path = arena_printf(&deployment->arena, "%s/wiring/" SUPERVISOR_NAME "-%d", run, supervisor->number);
    if (!path) TRY_TO(result, done, fail_oom());
    if (!path_exists(path)) TRY_TO(result, done, fail(UNAVAILABLE, "no run of this file was started in %s", run));
    TRY_TO(result, done, node_config_read(&top.config, path));
    const struct wire_self self = {.run = deployment->run,
                                   .name = "top",
                                   .replica = 1,
                                   .machine = deployment_machine(deployment, deployment->here),
                                   .security = node_config_security(&top.config)};
    TRY_TO(result, done, wire_open(&top.wire, &self));
    TRY_TO(result, done, wire_connect(top.wire, deployment_endpoint(deployment, supervisor), key, "watch", NULL));
    result = top_watch(&top);
done:
    wire_close(&top.wire);
    node_config_release(&top.config);
    run_status_free(&top.run_status);
    buf_release(&top.text);
    return result;
}

int top_main(int argc, char **argv) {
    struct top_options given;
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    const char *path;
    status result = subcommand_open_pipeline(&pipeline, &options, &top_table, &given, argc, argv, &path);
    if (result == OK) {
        struct deployment deployment;
        result = deployment_init(&deployment, pipeline, given.machine, given.key);
        if (result == OK) result = top_run(&deployment, &given);
        deployment_release(&deployment);
    }
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
