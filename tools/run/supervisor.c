// One event loop over one wire: messages, signals (read from a descriptor) and time.
//
// The run ends in one way only, whatever the reason: the processes are asked to stop, and the loop continues until the
// last one has ended and the other machines know of the end. If the wire itself fails, the same is done without it.
#include "tools/run/run.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/wire/wire.h"
#include "shared/wire/transport.h"
#include "tools/deployment.h"
#include "tools/run/processes.h"
#include "tools/run/run_status.h"

// ---- machines ----

// The other machines of a run, as a supervisor sees them: which of them are there, for how long one has been away, and
// which of them know that the run has ended.

struct machine {
    int index; // in the pipeline
    const char *name, *address;
    struct wire_peer *peer; // connection to its supervisor
    double away_since;      // clock_monotonic() since when it is not there; 0: it is there
    bool joined;            // it has been there
    bool stopped;           // its supervisor has said goodbye
    bool ended;             // its supervisor has said that the run has ended
};

// ---- notices ----

// Lines for the terminal that come in floods, as one for each of 3,000 missing clips: the first few of a sender are
// written, then one line a second says how many more there were.

enum { NOTICE_SENDERS = 32, NOTICE_BURST = 4 };

struct notice_sender {
    char name[64];     // a stage; "": free
    int64_t replica;   // 0: the whole stage
    double spare, now; // lines that may be written; clock_monotonic() as of then
    int64_t left_out;  // lines since the last one
};

static void notice_sender_refill(struct notice_sender *sender, double now) {
    sender->spare += now - sender->now;
    if (sender->spare > NOTICE_BURST) sender->spare = NOTICE_BURST;
    sender->now = now;
}

// Whether a line about this replica (0: about the whole stage) may be written at `now`, in seconds; otherwise counts
// it. More senders than there is room for are not limited.
static bool notice_passes(struct notice_sender senders[NOTICE_SENDERS], const char *name, int64_t replica, double now) {
    struct notice_sender *sender = NULL;
    for (int i = 0; i < NOTICE_SENDERS && !sender; i++) {
        struct notice_sender *at = &senders[i];
        if (!*at->name) {
            *at = (struct notice_sender){.replica = replica, .spare = NOTICE_BURST, .now = now};
            snprintf(at->name, sizeof at->name, "%s", name);
        }
        if (at->replica == replica && !strncmp(at->name, name, sizeof at->name - 1)) sender = at;
    }
    if (!sender) return true;
    notice_sender_refill(sender, now);
    if (sender->left_out || sender->spare < 1) {
        sender->left_out++;
        return false;
    }
    sender->spare--;
    return true;
}

// ---- events ----

// What the terminal is told about the run also goes to RUN/events.jsonl (with machines: events-MACHINE.jsonl), an
// object a line: time in seconds since 1970, kind, the name of the process, stage or machine that it is about, and the
// text.
enum event_kind {
    EVENT_NONE,         // only for the terminal: what it says stands in another event, or is no news
    EVENT_STARTED,      // this program
    EVENT_RESTARTED,    // a process that had ended
    EVENT_SLOW,         // a replica has had a group for too long, or nothing is done
    EVENT_QUARANTINED,  // a sample
    EVENT_NOTICE,       // of a stage
    EVENT_CONNECTED,    // a machine
    EVENT_DISCONNECTED, // a machine
    EVENT_STOPPED,
    EVENT_FAILED,
    EVENT_DONE,
};

static const char *const event_kinds[] = {"",          "started",      "restarted", "slow",   "quarantined", "notice",
                                          "connected", "disconnected", "stopped",   "failed", "done"};
static_assert(sizeof event_kinds / sizeof *event_kinds == EVENT_DONE + 1, "a name for each kind");

// ---- supervisor ----

enum {
    TICK_MS = 200,
    STOP_SECONDS = 60,      // given to the processes to end by themselves
    PLAIN_SECONDS = 10,     // between two lines of progress that do not go to a terminal
    STEP_SECONDS = 2,       // the same after a new step
    END_SECONDS = 2,        // between two announcements of the end
    LINGER_SECONDS = 180,   // given to a machine that is away to come back and hear of the end
    FOUND_SECONDS = 10,     // given to the machines to connect when this one was killed after the end
    RANK_SECONDS = 5,       // a rank that runs for less belongs to a later start than one that ended elsewhere
    METRICS_SECONDS = 5,    // between two metrics.prom, and looks at the sizes of the logs
    LAST_REPORTS_MS = 3000, // without one: no more of the reports that processes send as they end will come
    REPORT_MS = 20,         // the same when all processes have said goodbye
    MESSAGE_SIZE = 1024,
};

// In this order, of which some may be left out.
enum supervisor_state {
    SUPERVISOR_WAITING,   // for the other machines: no process has been started
    SUPERVISOR_RUNNING,   // processes are started, and started again
    SUPERVISOR_STOPPING,  // they have been asked to stop
    SUPERVISOR_KILLING,   // those that did not end in time, or all, have been killed
    SUPERVISOR_LINGERING, // none is left: the other machines are told of the end
};

// When something is due, of which the time is kept.
enum supervisor_deadline {
    DUE_WAITING,      // a line about the machines that are waited for
    DUE_PROGRESS,     // a line of progress
    DUE_METRICS,      // metrics.prom, and a look at the sizes of the logs
    DUE_ANNOUNCEMENT, // of the end
    DUE_KILL,         // of the processes that have not ended by themselves
    DUE_END,          // of this program, whoever does not know yet that the run has ended
    DEADLINES
};

struct supervisor {
    struct deployment *deployment;
    struct service service; // the service manager that started this program, if there is one
    struct processes processes;
    struct run_status *run_status;
    struct wire *wire;
    struct machine *machines; // the other ones
    size_t machine_count;
    const char *end_note; // the path of the note that the run is over
    struct notice_sender notices[NOTICE_SENDERS];
    char optim_notice[MESSAGE_SIZE]; // the last thing that optim told the user
    struct node_config config;       // our own
    int signal_fd, run_fd, lock;     // run_fd: the run's directory; lock: its file
    enum supervisor_state state;
    double due[DEADLINES];            // clock_monotonic()
    double began;                     // clock_monotonic() of the start
    bool everywhere;                  // once it is stopping: the run stops on all machines
    bool end_found;                   // the run had ended before this program was started
    bool interrupted;                 // by a signal
    bool gone;                        // the run's directory was moved, or it or the files in it were removed
    bool metrics_failed, logs_failed; // metrics.prom could not be written, or a log not be moved, the last time
    struct append_queue events;
    status result; // of the run, once it is stopping
    char reason[MESSAGE_SIZE];
    int64_t settled; // groups that the run is done with, as far as it was reported
    int64_t progress_step;
    bool terminal;
    struct buf line;
};

// Logs a line for the user. On a terminal it breaks between words, and replaces the line of progress, which is written
// again later.
static void supervisor_write(const struct supervisor *supervisor, const char *text) {
    enum { INDENT = 2 };
    struct buf clean = {0}, lines = {0};
    int columns;
    if (!supervisor->terminal) {
        log_info("%s", text);
        return;
    }
    buf_printf(&clean, "%s", text);
    log_clean(clean.data);
    terminal_size(STDERR_FILENO, &columns, NULL);
    fputs("\r\033[K", stderr);
    text_wrap(clean.data, (int)strlen(log_name()) + INDENT, INDENT, columns, &lines);
    log_lines("%s", lines.size ? lines.data : clean.data);
    buf_release(&clean);
    buf_release(&lines);
}

// Whether the files in the run's directory were removed, with the lock: another run may begin there.
static bool supervisor_is_emptied(const struct supervisor *supervisor) {
    struct stat lock;
    return !fstat(supervisor->lock, &lock) && !lock.st_nlink;
}

// Adds an event about `name` to events.jsonl. A disk that is full for a while ends nothing. The text may be cut within
// a character.
static void supervisor_add_event(struct supervisor *supervisor, enum event_kind kind, const char *name,
                                 const char *text) {
    struct buf line = {0}, clean = {0};
    const bool failing = supervisor->events.failing;
    if (!supervisor->events.path || supervisor_is_emptied(supervisor)) return;
    utf8_replace(text, strlen(text), &clean);
    buf_printf(&line, "{\"time\": %.3f, \"kind\": \"%s\", \"name\": ", clock_realtime(), event_kinds[kind]);
    json_print_string(&line, name, strlen(name));
    buf_puts(&line, ", \"text\": ");
    json_print_string(&line, clean.data ? clean.data : "", clean.size);
    buf_puts(&line, "}\n");
    buf_release(&clean);
    if (append_queue_add(&supervisor->events, line.data, line.size) != OK && !failing)
        supervisor_write(supervisor, fail_text());
    buf_release(&line);
}

// Logs a line for the user, which is an event about `name` unless the kind is EVENT_NONE.
__attribute__((format(printf, 4, 5))) static void supervisor_log(struct supervisor *supervisor, enum event_kind kind,
                                                                 const char *name, const char *format, ...) {
    char text[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    supervisor_write(supervisor, text);
    if (kind != EVENT_NONE) supervisor_add_event(supervisor, kind, name, text);
}

// Logs a failure of something that is tried again and again, when it begins.
static void supervisor_log_failure(const struct supervisor *supervisor, status result, bool *failed) {
    if (result != OK && !*failed) supervisor_write(supervisor, fail_text());
    *failed = result != OK;
}

// Logs how many notices were left out since the last one of the same stage, where it is time (`all`: everywhere). A
// quarantined sample stands in the source's log, whichever stage found it. The last one of optim is logged itself: it
// may say what the run waits for.
static void supervisor_sum_up(struct supervisor *supervisor, bool all) {
    for (int i = 0; i < NOTICE_SENDERS && *supervisor->notices[i].name; i++) {
        struct notice_sender *sender = &supervisor->notices[i];
        char number[24] = "";
        if (!sender->left_out) continue;
        notice_sender_refill(sender, clock_monotonic());
        if (sender->spare < 1 && !all) continue;
        const bool last = sender->replica && !strcmp(sender->name, stage_kinds[STAGE_OPTIM].name);
        if (last) sender->left_out--;
        if (sender->replica > 1) snprintf(number, sizeof number, "-%lld", (long long)sender->replica);
        if (sender->left_out)
            supervisor_log(supervisor, sender->replica ? EVENT_NOTICE : EVENT_QUARANTINED, sender->name,
                           "%s: and %lld more: see %s/logs/%s%s.log", sender->name, (long long)sender->left_out,
                           supervisor->deployment->pipeline->run, sender->replica ? sender->name : "source", number);
        if (last)
            supervisor_log(supervisor, EVENT_NOTICE, sender->name, "%s: %s", sender->name, supervisor->optim_notice);
        sender->spare = sender->spare < 1 ? 0 : sender->spare - 1;
        sender->left_out = 0;
    }
}

// ---- stopping ----

// Sends a message to the other machines' supervisors. One that is gone gets nothing.
static void supervisor_tell(struct supervisor *supervisor, const struct wire_message *message) {
    struct wire_peer *peer = wire_first_peer(supervisor->wire, "report", false);
    for (; peer; peer = wire_next_peer(peer))
        if (!strcmp(peer->name, SUPERVISOR_NAME)) (void)wire_send(supervisor->wire, peer, message, NULL);
}

// Sends a message to the clients that watch the run and, if it comes from this machine, to the other machines'
// supervisors. A peer that is gone gets nothing.
static void supervisor_publish(struct supervisor *supervisor, const struct wire_message *message, bool from_here) {
    if (from_here) supervisor_tell(supervisor, message);
    struct wire_peer *peer = wire_first_peer(supervisor->wire, "watch", true);
    for (; peer; peer = wire_next_peer(peer)) (void)wire_send(supervisor->wire, peer, message, NULL);
}

static struct wire_message supervisor_end(const struct supervisor *supervisor) {
    return (struct wire_message){.kind = MESSAGE_END, .code = supervisor->result, .reason = supervisor->reason};
}

// Says that the run has ended, to all machines and to the clients that watch it.
static void supervisor_announce(struct supervisor *supervisor) {
    const struct wire_message end = supervisor_end(supervisor);
    supervisor->due[DUE_ANNOUNCEMENT] = clock_monotonic() + END_SECONDS;
    supervisor_publish(supervisor, &end, true);
}

// Asks every process to stop; the first call decides the result of the run, and says a failure. `everywhere`: the run
// ends on all machines; otherwise the others wait for this one.
static void supervisor_stop(struct supervisor *supervisor, status result, bool everywhere, const char *reason) {
    if (supervisor->state >= SUPERVISOR_STOPPING) return;
    supervisor->everywhere = everywhere;
    supervisor->due[DUE_KILL] = clock_monotonic() + STOP_SECONDS;
    supervisor->result = result;
    snprintf(supervisor->reason, sizeof supervisor->reason, "%s", reason);
    supervisor_sum_up(supervisor, true);
    supervisor->state = SUPERVISOR_STOPPING;
    supervisor->processes.ending = true;
    if (result != OK && result != END) supervisor_log(supervisor, EVENT_FAILED, "", "%s", supervisor->reason);
    service_notify(&supervisor->service, "STOPPING=1");
    const char *here = deployment_machine(supervisor->deployment, supervisor->deployment->here);
    // Each of several machines notes that the run is over and what it has come to before anybody is told, until it has
    // told the others: one that is killed between would wait for ever for machines that have ended.
    if (result == OK && everywhere && *here) {
        struct buf note = {0};
        buf_printf(&note, "%s\n%s\n", supervisor->deployment->settings, reason);
        if (file_write_atomic(supervisor->end_note, note.data, note.size) != OK)
            supervisor_write(supervisor, fail_text());
        buf_release(&note);
    }
    const struct wire_message notice = {
        .kind = MESSAGE_NOTICE, .name = *here ? here : SUPERVISOR_NAME, .machine = here, .reason = supervisor->reason};
    const struct wire_message goodbye = supervisor_end(supervisor);
    if (everywhere) {
        supervisor_announce(supervisor);
    } else { // the clients' run ends, too, and the goodbye at the very end may be lost
        supervisor_tell(supervisor, &notice);
        supervisor_publish(supervisor, &goodbye, false);
    }
    for (size_t i = 0; i < supervisor->processes.count; i++)
        if (supervisor->processes.list[i].pid) kill(supervisor->processes.list[i].pid, SIGTERM);
    // Ranks end when rank 0 lets them, which is on another machine.
    const struct pipeline_stage *optim = pipeline_optim(supervisor->deployment->pipeline);
    const bool follow = optim && pipeline_stage_runs_on(optim, supervisor->deployment->here) &&
                        pipeline_stage_machine(optim, 0) != supervisor->deployment->here;
    const struct wire_message end = {.kind = MESSAGE_RANK_ENDED, .name = follow ? optim->name : ""};
    if (follow && !everywhere) supervisor_tell(supervisor, &end);
}

// Whether the run is over here: no process is left, and the other machines know it or had the time to hear of it.
static bool supervisor_finished(struct supervisor *supervisor) {
    const double now = clock_monotonic();
    const bool all = supervisor->end_found && now - supervisor->began < FOUND_SECONDS; // also those not heard of yet
    const struct machine *unaware = NULL;
    if (supervisor->state < SUPERVISOR_STOPPING || processes_running(&supervisor->processes)) return false;
    for (size_t i = 0; i < supervisor->machine_count && supervisor->everywhere && !unaware; i++) {
        const struct machine *machine = &supervisor->machines[i];
        if ((all || machine->joined) && !machine->ended && !machine->stopped) unaware = machine;
    }
    if (!unaware || supervisor->interrupted) return true;
    double *due = supervisor->due;
    if (supervisor->state != SUPERVISOR_LINGERING) {
        supervisor->state = SUPERVISOR_LINGERING;
        due[DUE_END] = now + LINGER_SECONDS;
        if (due[DUE_WAITING] < now + END_SECONDS) due[DUE_WAITING] = now + END_SECONDS;
    }
    if (now > due[DUE_WAITING]) {
        due[DUE_WAITING] = now + PLAIN_SECONDS;
        supervisor_log(supervisor, EVENT_NONE, "", "%s; %s does not know it yet: waiting for it (Ctrl-C ends this)",
                       supervisor->reason, unaware->name);
    }
    return now > due[DUE_END];
}

// Kills all processes at once.
static void supervisor_kill(struct supervisor *supervisor) {
    supervisor->state = SUPERVISOR_KILLING;
    for (size_t i = 0; i < supervisor->processes.count; i++)
        if (supervisor->processes.list[i].pid) process_kill(&supervisor->processes.list[i]);
}

// Kills the processes that have not ended STOP_SECONDS after they were asked to. Optim is spared: it may be writing a
// checkpoint. Every other process can be killed at any time without loss.
static void supervisor_kill_late(struct supervisor *supervisor) {
    const struct pipeline_stage *optim = pipeline_optim(supervisor->deployment->pipeline);
    struct run_summary run;
    if (supervisor->state != SUPERVISOR_STOPPING || clock_monotonic() < supervisor->due[DUE_KILL]) return;
    supervisor->state = SUPERVISOR_KILLING;
    for (size_t i = 0; i < supervisor->processes.count; i++) {
        const struct process *process = &supervisor->processes.list[i];
        if (!process->pid) continue;
        if (process->replica->stage == optim) {
            if (i && process[-1].replica->stage == optim) continue; // of ranks the first one here says it for all
            run_status_summary(supervisor->run_status, clock_monotonic(), &run);
            const bool failing = run.failed_saves > 0 && *supervisor->optim_notice;
            supervisor_log(supervisor, EVENT_NOTICE, process->name, "waiting for %s to end%s%s", process->name,
                           failing ? ": " : "", failing ? supervisor->optim_notice : "");
        } else {
            supervisor_log(supervisor, EVENT_NOTICE, process->name, "%s did not end in time: killed", process->name);
            process_kill(process);
        }
    }
}

// ---- events ----

// Reads the pending signals and reaps the processes that have ended.
static void supervisor_on_signals(struct supervisor *supervisor) {
    struct signalfd_siginfo info;
    while (read(supervisor->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (!supervisor->interrupted) {
            supervisor->interrupted = true;
            if (supervisor->state < SUPERVISOR_STOPPING) // otherwise it may be done, and only waits for a machine
                supervisor_log(supervisor, EVENT_STOPPED, "",
                               "stopping; the same command resumes the run (Ctrl-C again: stop at once)");
            supervisor_stop(supervisor, END, false,
                            supervisor->machine_count ? "stopped by a signal; the other machines wait for it"
                                                      : "stopped by a signal");
            continue;
        }
        // Only a second Ctrl-C stops at once: service managers and batch systems repeat SIGTERM.
        if (info.ssi_signo == SIGINT) supervisor_kill(supervisor);
    }
    for (;;) {
        struct process *ended;
        const char *how;
        status result = processes_reap(&supervisor->processes, clock_monotonic(), supervisor->settled, &ended, &how);
        if (!ended) return;
        const bool stopping = supervisor->state >= SUPERVISOR_STOPPING;
        // Rank 0 ends when all is saved: another one that is still there then hangs.
        // Another one that ends well was let go by rank 0, whose own end follows and says why.
        const bool first = ended->replica->number == 1;
        const bool ends_all =
            ended->replica->rank && (stopping ? first || (how && ended->failed) : how && (first || ended->failed));
        if (ends_all) {
            const struct wire_message end = {
                .kind = MESSAGE_RANK_ENDED, .name = ended->replica->stage->name, .replica = ended->replica->number};
            processes_end_ranks(&supervisor->processes, ended->replica->stage, INFINITY, ended->start_after);
            if (pipeline_stage_machine_count(ended->replica->stage) > 1) supervisor_tell(supervisor, &end);
        }
        if (stopping) { // its last report may still come; what optim could not save is lost
            if (first && how && ended->code &&
                ended->replica->stage == pipeline_optim(supervisor->deployment->pipeline))
                supervisor_log(supervisor, EVENT_NOTICE, ended->name, "%s %s", ended->name, how);
            continue;
        }
        run_status_forget(supervisor->run_status, ended->replica);
        if (result == OK) {
            run_status_restarted(supervisor->run_status, ended->replica);
            if (how)
                supervisor_log(supervisor, EVENT_RESTARTED, ended->name, "%s %s%s", ended->name, how,
                               ends_all ? ", and the other ranks with it" : "");
        } else {
            supervisor_stop(supervisor, result, true, fail_text());
        }
    }
}

// The source, another machine's supervisor or `caravan stop` ends the run; nobody else may.
static status supervisor_on_end(struct supervisor *supervisor, struct wire_peer *peer, struct machine *other,
                                const struct wire_message *message) {
    const int64_t code = message->code;
    char text[MESSAGE_SIZE];
    if (!strcmp(peer->purpose, "watch")) {
        snprintf(text, sizeof text, "stopped by `caravan stop`%s%.100s", *peer->machine ? " on " : "", peer->machine);
        if (supervisor->state < SUPERVISOR_STOPPING)
            supervisor_log(supervisor, EVENT_STOPPED, peer->machine, "%s; the same command resumes the run", text);
        supervisor_stop(supervisor, END, true, text);
        return OK;
    }
    if (code != OK && code != END && status_exit_code((status)code) != code)
        return wire_reject(supervisor->wire, peer, "END: code is no exit code");
    if (!other && strcmp(peer->name, "source") != 0)
        return wire_reject(supervisor->wire, peer, "END: only the source and the supervisors may end the run");
    if (other) other->ended = true;
    if (supervisor->state < SUPERVISOR_STOPPING && code == END)
        supervisor_log(supervisor, EVENT_STOPPED, peer->machine, "%s; the same command resumes the run",
                       message->reason);
    supervisor_stop(supervisor, (status)code, true, message->reason);
    if (!other || !supervisor->everywhere || !peer->client) return OK;
    // This machine's own connection to the other one may be cut, and this machine ends as soon as it has nothing to do.
    const struct wire_message end = supervisor_end(supervisor);
    return wire_send(supervisor->wire, peer, &end, NULL);
}

// Tells a supervisor that is there again what it may have missed: that the ranks here have ended, or are to end. They
// are not started before all their machines are there.
static void supervisor_repeat_rank_ended(struct supervisor *supervisor, struct wire_peer *peer) {
    const struct pipeline_stage *optim = pipeline_optim(supervisor->deployment->pipeline);
    const struct replica *first = NULL; // of the ranks here
    bool runs = false;
    for (size_t i = 0; i < supervisor->processes.count; i++) {
        const struct process *process = &supervisor->processes.list[i];
        if (!process->replica->rank || process->replica->stage != optim) continue;
        if (!first) first = process->replica;
        runs |= process->pid != 0;
    }
    if (!first || pipeline_stage_machine_count(optim) < 2) return;
    const bool asks = supervisor->state >= SUPERVISOR_STOPPING && !supervisor->everywhere && first->number > 1;
    const struct wire_message end = {
        .kind = MESSAGE_RANK_ENDED, .name = optim->name, .replica = runs ? 0 : first->number};
    if (asks || !runs) (void)wire_send(supervisor->wire, peer, &end, NULL);
}

// The ranks here end, too: at once, or well if the other machine stops. One that has begun again already stays.
static void supervisor_on_rank_ended(struct supervisor *supervisor, const struct machine *other,
                                     const struct wire_message *message) {
    const struct pipeline_stage *stage = pipeline_optim(supervisor->deployment->pipeline);
    const double now = clock_monotonic();
    const bool stopping = supervisor->state >= SUPERVISOR_STOPPING;
    if (stopping && message->replica != 1) return;
    if (!message->replica) {
        for (size_t i = 0; i < supervisor->processes.count; i++) {
            const struct process *process = &supervisor->processes.list[i];
            if (process->replica->stage == stage && process->replica->number == 1 && process->pid)
                kill(process->pid, SIGTERM);
        }
        return;
    }
    const double before = stopping ? now : now - RANK_SECONDS;
    if (processes_end_ranks(&supervisor->processes, stage, before, now) && !stopping)
        supervisor_log(supervisor, EVENT_RESTARTED, stage->name,
                       "%s: rank %lld has ended on %s; starting the ranks here again", stage->name,
                       (long long)message->replica - 1, other->name);
}

static status supervisor_on_event(struct supervisor *supervisor, const struct wire_event *event) {
    const struct wire_message *message = &event->message;
    struct wire_peer *peer = event->peer;
    struct run_status *run_status = supervisor->run_status;
    const double now = clock_monotonic();
    if (event->kind == WIRE_REFUSED) return fail(UNAVAILABLE, "%s", message->reason);
    if (event->kind == WIRE_READABLE) supervisor_on_signals(supervisor);
    if (!peer) return OK;
    const bool from_here = strcmp(peer->name, SUPERVISOR_NAME) != 0;
    struct machine *machine = NULL; // that whose supervisor it is
    for (size_t i = 0; i < supervisor->machine_count && !from_here && !machine; i++)
        if (!strcmp(supervisor->machines[i].name, peer->machine)) machine = &supervisor->machines[i];
    switch (event->kind) {
    case WIRE_JOINED:
        // Who begins to watch the run hears how it was a minute ago, and so knows the rates of the last minute.
        for (size_t i = 0; !strcmp(peer->purpose, "watch") && i < run_status_count(run_status); i++) {
            struct wire_message before;
            if (run_status_replay(run_status, i, now, &before)) (void)wire_send(supervisor->wire, peer, &before, NULL);
        }
        if (machine && !peer->client) supervisor_repeat_rank_ended(supervisor, peer);
        if (!machine || !peer->client) return OK;
        machine->stopped = machine->ended = false;
        supervisor_log(supervisor, EVENT_CONNECTED, machine->name, "%s is connected", machine->name);
        return OK;
    case WIRE_GONE:
        if (!machine || !peer->client) return OK;
        if (event->orderly) machine->stopped = true; // an old connection may be found dead later than that
        if (supervisor->state < SUPERVISOR_STOPPING)
            supervisor_log(supervisor, EVENT_DISCONNECTED, machine->name, "%s %s; waiting for it", machine->name,
                           event->orderly ? "has stopped" : "is disconnected");
        return OK;
    case WIRE_MESSAGE:
        break;
    default:
        return OK;
    }
    switch (message->kind) {
    case MESSAGE_STATUS: { // is taken over and forwarded
        const struct replica *replica = deployment_find(supervisor->deployment, message->name, (int)message->replica);
        struct wire_message report = *message;
        struct run_summary summary;
        const bool own = !strcmp(message->name, peer->name) && message->replica == peer->replica;
        if (!replica || (from_here && !own))
            return wire_reject(supervisor->wire, peer, "STATUS: it is about another process than its sender");
        if (from_here) report.counters.restarts = run_status_restarts(run_status, replica);
        run_status_update(run_status, &report, now);
        run_status_summary(run_status, now, &summary);
        if (summary.source && summary.settled > supervisor->settled) supervisor->settled = summary.settled;
        supervisor_publish(supervisor, &report, from_here);
        return OK;
    }
    case MESSAGE_NOTICE:
        supervisor_publish(supervisor, message, from_here);
        if (message->replica && !strcmp(message->name, stage_kinds[STAGE_OPTIM].name))
            snprintf(supervisor->optim_notice, sizeof supervisor->optim_notice, "%s", message->reason);
        if (notice_passes(supervisor->notices, message->name, message->replica, now))
            supervisor_log(supervisor, message->replica || *message->machine ? EVENT_NOTICE : EVENT_QUARANTINED,
                           message->name, "%s: %s", message->name, message->reason);
        return OK;
    case MESSAGE_END:
        return supervisor_on_end(supervisor, peer, machine, message);
    case MESSAGE_RANK_ENDED: {
        const struct pipeline_stage *optim = pipeline_optim(supervisor->deployment->pipeline);
        if (!machine) return wire_reject(supervisor->wire, peer, "RANK_ENDED: only a supervisor knows it");
        if (!optim || strcmp(message->name, optim->name) != 0 || message->replica < 0 ||
            message->replica > pipeline_stage_ranks(optim))
            return wire_reject(supervisor->wire, peer, "RANK_ENDED: there is no such rank");
        supervisor_on_rank_ended(supervisor, machine, message);
        return OK;
    }
    default:
        return OK;
    }
}

// ---- time ----

// Writes the run's counters for Prometheus. A disk that is full for a while ends nothing.
static void supervisor_write_metrics(struct supervisor *supervisor, double now) {
    const char *machine = deployment_machine(supervisor->deployment, supervisor->deployment->here);
    struct buf path = {0}, text = {0};
    buf_printf(&path, "%s/metrics%s%s.prom", supervisor->deployment->pipeline->run, *machine ? "-" : "", machine);
    run_metrics(supervisor->run_status, now, &text);
    supervisor_log_failure(supervisor, file_write_atomic(path.data, text.data, text.size), &supervisor->metrics_failed);
    buf_release(&path);
    buf_release(&text);
}

// Shows the progress to the user and to the service manager, when it is time.
static void supervisor_show_progress(struct supervisor *supervisor, double now) {
    static const char status_is[] = "STATUS="; // for the service manager
    struct buf *line = &supervisor->line;
    struct run_summary run;
    run_status_summary(supervisor->run_status, now, &run);
    const int64_t step = run.source ? run.source->step : -1;
    const bool earlier = !supervisor->terminal && step != supervisor->progress_step;
    if (now < supervisor->due[DUE_PROGRESS] - (earlier ? PLAIN_SECONDS - STEP_SECONDS : 0)) return;
    supervisor->due[DUE_PROGRESS] = now + (supervisor->terminal ? 0.5 : PLAIN_SECONDS);
    supervisor->progress_step = step;
    buf_clear(line);
    buf_puts(line, status_is);
    run_status_line(supervisor->run_status, now, line);
    service_notify(&supervisor->service, line->data);
    const char *progress = line->data + sizeof status_is - 1;
    if (!supervisor->terminal) {
        log_info("%s", progress);
        return;
    }
    int columns;
    terminal_size(STDERR_FILENO, &columns, NULL);
    fprintf(stderr, "\r\033[K%.*s", (int)text_cut(progress, strlen(progress), columns - 1), progress);
    fflush(stderr);
}

// Does what is due: announces the end, waits for the other machines, starts processes, shows the progress.
static void supervisor_on_tick(struct supervisor *supervisor) {
    const double now = clock_monotonic(), minutes = supervisor->deployment->pipeline->give_up_after;
    const char *run = supervisor->deployment->pipeline->run;
    const struct machine *longest_away = NULL; // that which has been away for longest
    struct stat own, found;                    // of the run's directory
    char text[MESSAGE_SIZE];
    struct buf *line = &supervisor->line;
    double *due = supervisor->due;
    buf_clear(line);
    for (size_t i = 0; i < supervisor->machine_count; i++) {
        struct machine *machine = &supervisor->machines[i];
        if (machine->peer->open) {
            machine->joined = true;
            machine->away_since = 0;
            continue;
        }
        if (machine->away_since == 0) machine->away_since = now;
        buf_printf(line, "%s%s (%s)", line->size ? ", " : "", machine->name, machine->address);
        if (!longest_away || machine->away_since < longest_away->away_since) longest_away = machine;
    }
    supervisor_sum_up(supervisor, false);
    // The run ends when its directory was moved or removed: its processes find files by their paths, and would wait for
    // ever to write them, or begin a new directory. They are killed, because none can save anything. Where the files in
    // it were removed, with the lock, another run may begin there.
    const bool works = supervisor->state < SUPERVISOR_STOPPING || processes_running(&supervisor->processes);
    const bool emptied = supervisor_is_emptied(supervisor);
    const bool moved = !fstat(supervisor->run_fd, &own) &&
                       (stat(run, &found) ? errno == ENOENT || errno == ENOTDIR
                                          : found.st_dev != own.st_dev || found.st_ino != own.st_ino);
    if (works && !supervisor->gone && (emptied || moved)) {
        supervisor->gone = true;
        snprintf(text, sizeof text, "the files in %.700s were removed. The run stops", run);
        if (moved)
            snprintf(
                text, sizeof text,
                "%.700s is gone: it was moved or removed. The run stops; it goes on with `run:` set to where it is",
                run);
        if (emptied) (void)append_queue_release(&supervisor->events); // the next run's events are its own
        supervisor->result = UNAVAILABLE;                             // also where it was being stopped
        if (supervisor->state >= SUPERVISOR_STOPPING) supervisor_write(supervisor, text);
        supervisor_stop(supervisor, UNAVAILABLE, true, text);
        supervisor_kill(supervisor);
    }
    if (works && supervisor->state != SUPERVISOR_WAITING && !supervisor->gone && now >= due[DUE_METRICS]) {
        due[DUE_METRICS] = now + METRICS_SECONDS;
        supervisor_write_metrics(supervisor, now);
        supervisor_log_failure(supervisor, processes_rotate_logs(&supervisor->processes), &supervisor->logs_failed);
    }
    if (supervisor->state >= SUPERVISOR_STOPPING) {
        supervisor_kill_late(supervisor);
        if (supervisor->everywhere && now > due[DUE_ANNOUNCEMENT]) supervisor_announce(supervisor);
        return;
    }
    if (minutes > 0 && longest_away && now - longest_away->away_since >= minutes * 60) {
        snprintf(text, sizeof text,
                 "%.200s has been away for %g minutes (give_up_after): this machine gives up; the same command resumes "
                 "the run",
                 longest_away->name, minutes);
        supervisor_stop(supervisor, UNAVAILABLE, false, text);
        return;
    }
    // The sockets of the processes would find each other anyway, but a user wants to know which machine is missing.
    if (supervisor->state == SUPERVISOR_WAITING && longest_away) {
        if (now <= due[DUE_WAITING]) return;
        due[DUE_WAITING] = now + PLAIN_SECONDS;
        supervisor_log(supervisor, EVENT_NONE, "", "waiting for %s", line->data);
        return;
    }
    supervisor->state = SUPERVISOR_RUNNING;
    // Ranks of which some are on a machine that is away would wait for those in vain.
    for (size_t i = 0; i < supervisor->processes.count && longest_away; i++) {
        struct process *process = &supervisor->processes.list[i];
        for (size_t m = 0; m < supervisor->machine_count && process->replica->rank; m++)
            if (!supervisor->machines[m].peer->open && process->start_after <= now &&
                pipeline_stage_runs_on(process->replica->stage, supervisor->machines[m].index))
                process->start_after = now + TICK_MS * 1e-3;
    }
    if (processes_start(&supervisor->processes, now) != OK)
        supervisor_log(supervisor, EVENT_NOTICE, "", "%s", fail_text());
    while (run_status_warning(supervisor->run_status, now, line))
        supervisor_log(supervisor, EVENT_SLOW, "", "%s", line->data);
    supervisor_show_progress(supervisor, now);
}

// Takes the last reports of the processes, which have all ended, writes the run's final counters, and says what the run
// has come to.
static void supervisor_finish(struct supervisor *supervisor) {
    struct wire_event event = {.kind = WIRE_READABLE};
    status result = OK;
    bool connected = true; // a process whose goodbye has not come; of one that was killed it never comes
    int64_t silent_ms = 0, looked_at = clock_monotonic_ms();
    while (result == OK && (connected || event.kind != WIRE_TIMEOUT) && silent_ms < LAST_REPORTS_MS) {
        result = wire_poll(supervisor->wire, REPORT_MS, &event);
        // Where this program was not scheduled, what they sent is still to be read. Other machines go on sending.
        const int64_t now = clock_monotonic_ms(), passed = now - looked_at;
        const struct wire_peer *sender = event.peer;
        const bool report = sender && !strcmp(sender->purpose, "report") && strcmp(sender->name, SUPERVISOR_NAME) != 0;
        silent_ms = report ? 0 : silent_ms + (passed < REPORT_MS ? passed : REPORT_MS);
        looked_at = now;
        if (result == OK) result = supervisor_on_event(supervisor, &event);
        struct wire_peer *peer = wire_first_peer(supervisor->wire, "report", true);
        while (peer && !strcmp(peer->name, SUPERVISOR_NAME)) peer = wire_next_peer(peer);
        connected = peer;
    }
    for (size_t i = 0; i < supervisor->processes.count; i++)
        run_status_forget(supervisor->run_status, supervisor->processes.list[i].replica);
    supervisor_sum_up(supervisor, true);
    if (!supervisor->gone) supervisor_write_metrics(supervisor, clock_monotonic());
    if (supervisor->result != OK) return;
    struct buf *lines = &supervisor->line;
    buf_clear(lines);
    run_end_lines(supervisor->deployment, supervisor->run_status, clock_monotonic() - supervisor->began, lines);
    for (char *line = lines->data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        supervisor_write(supervisor, line);
    }
    supervisor_log(supervisor, EVENT_DONE, "", "done: %s", supervisor->reason); // programs look for this line
}

// ---- opening, and the loop ----

// Opens the signals, the list of processes (none is started), the table of their reports, and the wire. The caller
// releases what was opened, after a failure too.
static status supervisor_open(struct supervisor *supervisor) {
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    struct deployment *deployment = supervisor->deployment;
    const struct pipeline *pipeline = deployment->pipeline;
    const struct replica *own = &deployment->replicas[deployment->here];
    // SIGCHLD and the signals that stop a run become readable from signal_fd. A signal that was ignored at the start
    // stays ignored: `nohup` ignores SIGHUP, a shell's background job SIGINT.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        struct sigaction before;
        if (sigaction(stops[i], NULL, &before)) return fail(BUG, "sigaction: %s", strerror(errno));
        if (before.sa_handler != SIG_IGN) sigaddset(&set, stops[i]);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return fail(BUG, "sigprocmask: %s", strerror(errno));
    supervisor->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (supervisor->signal_fd < 0) return fail(UNAVAILABLE, "signalfd: %s", strerror(errno));
    struct stat lock;
    if (fstat(supervisor->lock, &lock) || !lock.st_nlink) supervisor->lock = -1; // a file system that counts no links
    supervisor->run_fd = open(pipeline->run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (supervisor->run_fd < 0) return fail(UNAVAILABLE, "%s: %s", pipeline->run, strerror(errno));
    // The machines may share the run's directory.
    supervisor->end_note = arena_printf(&deployment->arena, "%s/ended-%s", pipeline->run,
                                        deployment_machine(deployment, deployment->here));
    TRY(processes_init(&supervisor->processes, deployment));
    run_status_new(&supervisor->run_status, deployment);
    const char *path = arena_printf(&deployment->arena, "%s/nodes/" SUPERVISOR_NAME "-%d", pipeline->run, own->number);
    TRY(deployment_write_config(deployment, own, path));
    TRY(node_config_read(&supervisor->config, path));
    const struct wire_self self = {.run = deployment->run,
                                   .name = SUPERVISOR_NAME,
                                   .replica = own->number,
                                   .machine = deployment_machine(deployment, deployment->here),
                                   .config = &supervisor->config};
    struct transport *transport;
    TRY(zmq_transport_open(&transport, &supervisor->config.security));
    wire_open(&supervisor->wire, &self, transport);
    wire_add_fd(supervisor->wire, supervisor->signal_fd);
    for (size_t i = 0; i < supervisor->config.listen_count; i++)
        TRY(wire_bind(supervisor->wire, supervisor->config.listen[i]));
    if (deployment->machines < 2) return OK;
    NEW(&supervisor->machines, deployment->machines);
    for (int i = 0; i < (int)deployment->machines; i++) {
        const struct pipeline_machine *other = &pipeline->machines[i];
        if (i == deployment->here) continue;
        struct machine *machine = &supervisor->machines[supervisor->machine_count++];
        *machine = (struct machine){
            .index = i, .name = other->name, .address = other->address, .away_since = clock_monotonic()};
        TRY(wire_connect(supervisor->wire, deployment_endpoint(deployment, &deployment->replicas[i]), other->key,
                         "report", &machine->peer));
    }
    // The others may have ended when this machine was killed after it had noted the end: it must not wait for them. A
    // run that was given other settings, for example more epochs, goes on.
    struct buf note = {0};
    const status result = path_exists(supervisor->end_note) ? file_read(supervisor->end_note, &note) : OK;
    const size_t size = strlen(deployment->settings);
    if (note.size > size + 1 && !strncmp(note.data, deployment->settings, size) && note.data[size] == '\n') {
        char *reason = note.data + size + 1;
        reason[strcspn(reason, "\n")] = 0;
        supervisor->end_found = true;
        supervisor_log(supervisor, EVENT_NONE, "",
                       "the run had ended when this machine was killed; the other ones are told");
        supervisor_stop(supervisor, OK, true, reason);
    }
    buf_release(&note);
    return result;
}

status supervisor_run(struct deployment *deployment, int lock) {
    struct supervisor supervisor = {.deployment = deployment,
                                    .lock = lock,
                                    .began = clock_monotonic(),
                                    .signal_fd = -1,
                                    .run_fd = -1,
                                    .settled = -1,
                                    .progress_step = -1,
                                    .terminal = isatty(STDERR_FILENO)};
    status result;
    TRY_TO(result, done, service_open(&supervisor.service));
    // No stage speaks for the run.
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    TRY_TO(result, done, supervisor_open(&supervisor));
    service_notify(&supervisor.service, "READY=1");
    // Goes on with this machine's events.jsonl, whose last line a power failure may have cut.
    const char *machine = deployment_machine(deployment, deployment->here);
    struct buf path = {0};
    char end[2] = "", settings[64] = "", text[128];
    buf_printf(&path, "%s/events%s%s.jsonl", deployment->pipeline->run, *machine ? "-" : "", machine);
    file_read_tail(path.data, end, sizeof end);
    supervisor.events.path = mem_strdup(path.data);
    buf_release(&path);
    if (*end && *end != '\n') (void)append_queue_add(&supervisor.events, "\n", 1);
    // Which of the settings' files this start has: RUN/pipeline.yaml is a link to it.
    const ssize_t size = readlinkat(supervisor.run_fd, "pipeline.yaml", settings, sizeof settings - 1);
    snprintf(text, sizeof text, "started%s%s", size > 0 ? " with " : "", settings);
    supervisor_add_event(&supervisor, EVENT_STARTED, machine, text);
    while (result == OK && !supervisor_finished(&supervisor)) {
        struct wire_event event;
        result = wire_poll(supervisor.wire, TICK_MS, &event);
        if (result == OK) result = supervisor_on_event(&supervisor, &event);
        if (result == OK) supervisor_on_tick(&supervisor);
        service_alive(&supervisor.service);
    }
    if (result != OK) {
        supervisor_stop(&supervisor, result, true, fail_text());
        while (processes_running(&supervisor.processes)) {
            struct pollfd signals = {.fd = supervisor.signal_fd, .events = POLLIN};
            (void)poll(&signals, 1, TICK_MS);
            supervisor_on_signals(&supervisor);
            supervisor_kill_late(&supervisor);
            service_alive(&supervisor.service);
        }
    }
    supervisor_finish(&supervisor);
    result = supervisor.result;
    if (deployment->machines > 1) unlink(supervisor.end_note);
    if (result == END) result = STOPPED;
    if (result != OK) result = fail(result, "%s", ""); // it was said
done:
    service_close(&supervisor.service);
    wire_close(&supervisor.wire);
    node_config_release(&supervisor.config);
    run_status_free(&supervisor.run_status);
    processes_release(&supervisor.processes);
    if (supervisor.signal_fd >= 0) close(supervisor.signal_fd);
    if (supervisor.run_fd >= 0) close(supervisor.run_fd);
    buf_release(&supervisor.line);
    if (append_queue_release(&supervisor.events) != OK) log_info("%s: the last events are missing", fail_text());
    free(supervisor.machines);
    return result;
}
