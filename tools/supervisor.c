// One loop over one wire: messages, signals (by a descriptor) and time.
#include "tools/supervisor.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/wire/wire.h"
#include "tools/run_status.h"
#include "tools/processes.h"

enum {
    TICK_MS = 200,
    STOP_SECONDS = 60, // for stages to end by themselves
    PLAIN_SECONDS = 10,
};

struct supervisor {
    struct deployment *deployment;
    struct processes processes;
    struct run_status *run_status;
    struct wire *wire;
    struct wire_peer *source;  // our visit to the source's ledger
    struct wire_peer **others; // our visits to other machines' supervisors
    size_t other_count;
    struct node_config config; // our own: for its security
    int signals;
    bool home;    // the source is on this machine
    bool started; // the other machines are there
    bool ending, stopped, killed;
    status result;
    char *reason; // of a failed end
    double ended, told, waited;
    int64_t step;
    bool terminal;
    struct buf line;
};

// ---- talk ----

// A line for the person, above the progress if that stands on the terminal.
static void supervisor_log(const struct supervisor *supervisor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void supervisor_log(const struct supervisor *supervisor, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (supervisor->terminal) fputs("\r\033[K", stderr);
    log_info("%s", text);
}

static status supervisor_show_progress(struct supervisor *supervisor) {
    double time = clock_monotonic();
    int64_t step = run_status_step(supervisor->run_status);
    bool news = step != supervisor->step;
    double pause = supervisor->terminal ? 0.5 : news ? 2 : PLAIN_SECONDS;
    if (supervisor->ending || time - supervisor->told < pause) return OK;
    supervisor->told = time;
    supervisor->step = step;
    buf_clear(&supervisor->line);
    TRY(run_status_line(supervisor->run_status, time, &supervisor->line));
    if (supervisor->terminal) {
        struct winsize size = {0};
        int width = !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : 80;
        fprintf(stderr, "\r\033[K%.*s", width - 1, supervisor->line.data);
        fflush(stderr);
    } else {
        log_info("%s", supervisor->line.data);
    }
    return OK;
}

// ---- the end ----

// Sends a message to those who watch and, if it comes from this machine, to the other machines' supervisors. A peer
// that is gone gets nothing.
static void supervisor_publish(struct supervisor *supervisor, const struct wire_message *message, bool from_here) {
    struct wire *wire = supervisor->wire;
    struct wire_peer *peer = from_here ? wire_first_peer(wire, "report", false) : NULL;
    for (; peer; peer = wire_next_peer(peer))
        if (!strcmp(wire_peer_name(peer), SUPERVISOR_NAME)) (void)wire_send(wire, peer, message, NULL);
    for (peer = wire_first_peer(wire, "watch", true); peer; peer = wire_next_peer(peer))
        (void)wire_send(wire, peer, message, NULL);
}

// Begins the end, once: every process is asked to stop.
static void supervisor_begin_stop(struct supervisor *supervisor, status result, const char *reason) {
    if (supervisor->ending) return;
    supervisor->ending = true;
    supervisor->ended = clock_monotonic();
    supervisor->result = result;
    supervisor->reason = strdup(reason);
    const struct wire_message end = {.kind = MESSAGE_END, .code = result, .reason = reason};
    if (!supervisor->stopped) supervisor_publish(supervisor, &end, true);
    processes_signal(&supervisor->processes, SIGTERM);
}

static void supervisor_on_stop_signal(struct supervisor *supervisor) {
    if (supervisor->stopped) {
        supervisor->killed = true;
        processes_signal(&supervisor->processes, SIGKILL);
        return;
    }
    supervisor->stopped = true;
    supervisor_log(supervisor, "stopping; the same command goes on (Ctrl-C once more: stop at once)");
    supervisor_begin_stop(supervisor, END, "stopped");
}

// ---- messages ----

static status supervisor_on_status(struct supervisor *supervisor, const struct wire_message *message) {
    TRY(run_status_update(supervisor->run_status, message, clock_monotonic()));
    const struct replica *replica = deployment_find(supervisor->deployment, message->name, (int)message->replica);
    for (size_t i = 0; i < supervisor->processes.count; i++) {
        struct process *process = &supervisor->processes.list[i];
        if (process->replica != replica || process->pid != message->counters.pid) continue;
        process->ready = true;
    }
    return OK;
}

static status supervisor_on_message(struct supervisor *supervisor, const struct wire_peer *peer,
                                    const struct wire_message *message) {
    bool from_here = strcmp(wire_peer_name(peer), SUPERVISOR_NAME) != 0;
    switch (message->kind) {
    case MESSAGE_STATUS:
        supervisor_publish(supervisor, message, from_here);
        return supervisor_on_status(supervisor, message);
    case MESSAGE_NOTICE:
        supervisor_publish(supervisor, message, from_here);
        supervisor_log(supervisor, "%s: %s", message->name, message->reason);
        return OK;
    case MESSAGE_END:
        supervisor_begin_stop(supervisor, message->code == 0 ? OK : (status)message->code, message->reason);
        return OK;
    default:
        return OK;
    }
}

static status supervisor_on_event(struct supervisor *supervisor, const struct wire_event *event) {
    bool other = event->peer && !strcmp(wire_peer_name(event->peer), SUPERVISOR_NAME);
    switch (event->kind) {
    case WIRE_JOINED:
        if (other && wire_peer_is_client(event->peer))
            supervisor_log(supervisor, "%s is there", wire_peer_machine(event->peer));
        return OK;
    case WIRE_GONE:
        if (other && wire_peer_is_client(event->peer) && !supervisor->ending)
            supervisor_log(supervisor, "%s is gone; waiting for it", wire_peer_machine(event->peer));
        return OK;
    case WIRE_REFUSED:
        return fail(UNAVAILABLE, "%s", event->message.reason);
    case WIRE_MESSAGE:
        return supervisor_on_message(supervisor, event->peer, &event->message);
    default:
        return OK;
    }
}

// ---- processes ----

static status supervisor_reap(struct supervisor *supervisor) {
    for (;;) {
        struct process *ended;
        const char *how;
        status result = processes_reap(&supervisor->processes, clock_monotonic(), &ended, &how);
        if (!ended) return OK;
        run_status_forget(supervisor->run_status, ended->replica);
        if (supervisor->ending) continue;
        if (result != OK) {
            supervisor_log(supervisor, "%s", fail_text());
            supervisor_begin_stop(supervisor, result, fail_text());
        } else {
            supervisor_log(supervisor, "%s %s; starting it again", ended->name, how);
        }
    }
}

static status supervisor_read_signals(struct supervisor *supervisor) {
    struct signalfd_siginfo info;
    while (read(supervisor->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue;
        // Only a second Ctrl-C stops at once: service managers and batch systems repeat SIGTERM.
        if (!supervisor->stopped || info.ssi_signo == SIGINT) supervisor_on_stop_signal(supervisor);
    }
    return supervisor_reap(supervisor);
}

static status supervisor_reissue(void *context, int64_t seq) {
    struct supervisor *supervisor = context;
    const struct wire_message reissue = {.kind = MESSAGE_REISSUE, .seq = seq, .reason = "nobody has it any more"};
    return wire_send(supervisor->wire, supervisor->source, &reissue, NULL);
}

// ---- time ----

// Stages start when the other machines are there: their sockets find each other anyway, but a person wants to know.
static status supervisor_wait_for_machines(struct supervisor *supervisor) {
    struct buf missing = {0};
    status result = OK;
    for (size_t i = 0; i < supervisor->other_count && result == OK; i++) {
        size_t machine = i < (size_t)supervisor->deployment->here ? i : i + 1;
        if (!wire_peer_open(supervisor->others[i]))
            result = buf_printf(&missing, "%s%s (%s)", missing.size ? ", " : "",
                                deployment_machine(supervisor->deployment, (int)machine),
                                supervisor->deployment->pipeline->machines[machine].address);
    }
    supervisor->started = result == OK && missing.size == 0;
    if (result == OK && missing.size && clock_monotonic() - supervisor->waited > PLAIN_SECONDS) {
        supervisor->waited = clock_monotonic();
        supervisor_log(supervisor, "waiting for %s", missing.data);
    }
    buf_release(&missing);
    return result;
}

// Stages that do not end are killed, which costs nothing but time, but for optim: it may be writing a checkpoint.
static status supervisor_kill_late(struct supervisor *supervisor) {
    const struct pipeline *pipeline = supervisor->deployment->pipeline;
    const struct pipeline_stage *last = &pipeline->stages[pipeline->stage_count - 1];
    if (supervisor->killed || clock_monotonic() - supervisor->ended < STOP_SECONDS) return OK;
    supervisor->killed = true;
    for (size_t i = 0; i < supervisor->processes.count; i++) {
        const struct process *process = &supervisor->processes.list[i];
        if (!process->pid) continue;
        bool spared = process->replica->stage == last;
        supervisor_log(supervisor, spared ? "waiting for %s to end" : "%s did not end in time: killed", process->name);
        if (!spared) kill(process->pid, SIGKILL);
    }
    return OK;
}

static status supervisor_on_tick(struct supervisor *supervisor) {
    if (supervisor->ending) {
        return supervisor_kill_late(supervisor);
    }
    if (!supervisor->started) TRY(supervisor_wait_for_machines(supervisor));
    if (!supervisor->started) return OK;
    TRY(processes_start(&supervisor->processes, clock_monotonic()));
    if (supervisor->home)
        TRY(run_status_find_lost(supervisor->run_status, clock_monotonic(), supervisor_reissue, supervisor));
    return supervisor_show_progress(supervisor);
}

static status supervisor_run_once(struct supervisor *supervisor) {
    struct wire_event event;
    TRY(wire_poll(supervisor->wire, TICK_MS, &event));
    TRY(event.kind == WIRE_READABLE ? supervisor_read_signals(supervisor) : supervisor_on_event(supervisor, &event));
    return supervisor_on_tick(supervisor);
}

// ---- opening and closing ----

static status supervisor_open_signals(struct supervisor *supervisor) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return fail(BUG, "sigprocmask: %s", strerror(errno));
    supervisor->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return supervisor->signals < 0 ? fail(UNAVAILABLE, "signalfd: %s", strerror(errno)) : OK;
}

static status supervisor_connect_machines(struct supervisor *supervisor) {
    const struct deployment *deployment = supervisor->deployment;
    TRY(NEW(&supervisor->others, deployment->machines));
    for (size_t i = 0; i < deployment->machines; i++) {
        const struct replica *other = deployment_supervisor(deployment, (int)i);
        if ((int)i == deployment->here) continue;
        TRY(wire_connect(supervisor->wire, deployment_endpoint(deployment, other),
                         deployment->pipeline->machines[i].key, "report",
                         &supervisor->others[supervisor->other_count++]));
    }
    return OK;
}

static status supervisor_open_wire(struct supervisor *supervisor) {
    struct deployment *deployment = supervisor->deployment;
    const struct replica *own = deployment_supervisor(deployment, deployment->here),
                         *source = deployment_find(deployment, "source", 1);
    const char *path =
        arena_printf(&deployment->arena, "%s/wiring/" SUPERVISOR_NAME "-%d", deployment->pipeline->run, own->number);
    if (!path) return fail_oom();
    TRY(deployment_write_config(deployment, own, path));
    TRY(node_config_read(&supervisor->config, path));
    const struct wire_self self = {.run = deployment->run,
                                   .name = SUPERVISOR_NAME,
                                   .replica = own->number,
                                   .machine = deployment_machine(deployment, deployment->here),
                                   .security = node_config_security(&supervisor->config)};
    TRY(wire_open(&supervisor->wire, &self));
    TRY(wire_add_fd(supervisor->wire, supervisor->signals));
    for (size_t i = 0; i < supervisor->config.listen_count; i++)
        TRY(wire_bind(supervisor->wire, supervisor->config.listen[i]));
    supervisor->home = source && source->machine == deployment->here;
    const char *key = deployment->machines > 1 && source ? deployment->pipeline->machines[source->machine].key : NULL;
    if (supervisor->home)
        TRY(wire_connect(supervisor->wire, deployment_endpoint(deployment, source), key, "ledger",
                         &supervisor->source));
    return supervisor_connect_machines(supervisor);
}

static status supervisor_open(struct supervisor *supervisor) {
    TRY(supervisor_open_signals(supervisor));
    TRY(processes_init(&supervisor->processes, supervisor->deployment));
    TRY(run_status_new(&supervisor->run_status, supervisor->deployment));
    return supervisor_open_wire(supervisor);
}

// Nothing that we started outlives us.
static void supervisor_kill_all(struct supervisor *supervisor) {
    processes_signal(&supervisor->processes, SIGKILL);
    while (processes_running(&supervisor->processes)) {
        struct process *ended;
        const char *how;
        (void)processes_reap(&supervisor->processes, clock_monotonic(), &ended,
                             &how); // how they end does not matter any more
        if (!ended) usleep(10000);
    }
}

static void supervisor_close(struct supervisor *supervisor) {
    if (supervisor->processes.list) supervisor_kill_all(supervisor);
    wire_close(&supervisor->wire);
    node_config_release(&supervisor->config);
    run_status_free(&supervisor->run_status);
    processes_release(&supervisor->processes);
    if (supervisor->signals >= 0) close(supervisor->signals);
    buf_release(&supervisor->line);
    free(supervisor->others);
    free(supervisor->reason);
}

status supervisor_run(struct deployment *deployment) {
    struct supervisor supervisor = {.deployment = deployment,
                                    .signals = -1,
                                    .step = -1,
                                    .terminal = isatty(STDERR_FILENO),
                                    .waited = -PLAIN_SECONDS};
    status result = supervisor_open(&supervisor);
    while (result == OK && !(supervisor.ending && processes_running(&supervisor.processes) == 0))
        result = supervisor_run_once(&supervisor);
    if (result == OK && supervisor.result == OK) supervisor_log(&supervisor, "done: %s", supervisor.reason);
    if (result == OK && supervisor.result != OK)
        result = supervisor.result == END ? END : fail(supervisor.result, "%s", supervisor.reason);
    supervisor_close(&supervisor);
    return result;
}
