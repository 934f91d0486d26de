// caravan top FILE|RUN: shows a run while it works. It redraws a terminal, in which everything fits, and prints all of
// it as plain lines elsewhere. It connects to the supervisor of this machine, which forwards the reports of all
// replicas.
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/signals.h"
#include "shared/wire/wire.h"
#include "tools/run/run_status.h"
#include "tools/run/watcher.h"
#include "tools/tools.h"

// ---- keyboard ----

// The keys that somebody types while the terminal is redrawn: they come one by one, and are not echoed. The settings
// belong to the terminal and outlive the process, so everything that ends or stops it restores them first.

static struct termios keyboard_before, keyboard_ours;
static volatile sig_atomic_t keyboard_is_open;

// Besides SIGINT and SIGTERM, which signals_open handles.
static const int keyboard_signals[] = {SIGTSTP, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

// Whether tcsetattr would be allowed: a process in the background would be stopped by it.
static bool keyboard_in_foreground(void) {
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

static void keyboard_on_signal(int number);

static void keyboard_handle(int number) {
    struct sigaction action = {.sa_handler = keyboard_on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(number, &action, NULL);
}

// Restores the terminal and lets the signal do what it does without a handler. After SIGTSTP the program comes back
// here when it goes on.
static void keyboard_on_signal(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    if (keyboard_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_before);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL); // it takes effect here
    if (number != SIGTSTP) return;
    keyboard_handle(number);
    if (keyboard_is_open && keyboard_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_ours);
}

// Restores the terminal. Nothing if it was not set up.
static void keyboard_close(void) {
    if (!keyboard_is_open) return;
    keyboard_is_open = 0;
    if (keyboard_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_before);
}

// Sets standard input up if it is a terminal and this process is in its foreground; returns false otherwise. However
// the program ends, by a signal too, the terminal is then as it was before; also while it is stopped (Ctrl-Z). Called
// once, after signals_open.
static bool keyboard_open(void) {
    if (!isatty(STDIN_FILENO) || !keyboard_in_foreground() || tcgetattr(STDIN_FILENO, &keyboard_before)) return false;
    keyboard_ours = keyboard_before;
    keyboard_ours.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    keyboard_ours.c_cc[VMIN] = keyboard_ours.c_cc[VTIME] = 0; // a read does not wait
    keyboard_is_open = 1;
    atexit(keyboard_close);
    for (size_t i = 0; i < sizeof keyboard_signals / sizeof *keyboard_signals; i++) {
        struct sigaction before;
        if (!sigaction(keyboard_signals[i], NULL, &before) && before.sa_handler != SIG_IGN)
            keyboard_handle(keyboard_signals[i]);
    }
    return !tcsetattr(STDIN_FILENO, TCSANOW, &keyboard_ours);
}

// ---- top ----

enum { NOTICES = 8, NOTICE = 200 };

struct top_options {
    struct run_member_options run;
    double seconds;
    bool once;
};

static const struct option top_options[] = {
    RUN_MEMBER,
    TOOL_OPTION(top_options, seconds, OPTION_NUMBER, "seconds between two updates", .default_value = "1", .low = 0.1,
                .high = 3600),
    TOOL_OPTION(top_options, once, OPTION_BOOL, "print the run's state once and exit", .default_value = "false"),
    {0},
};
const struct option_table top_table = {.program = "caravan top",
                                       .operands = "FILE|RUN",
                                       .help = "shows a run while it works; q ends it, the run goes on",
                                       .details =
                                           "The table of the processes has as many of these columns as fit:\n"
                                           "groups/min  groups finished, in the last minute\n"
                                           "done        groups finished, since the process started\n"
                                           "stored      of these, groups whose section was in the store already\n"
                                           "dropped     groups that came twice or too late\n"
                                           "held        groups that it has (source: that are in flight)\n"
                                           "queue       groups finished that the next stage has not taken\n"
                                           "busy        share of the last minute in which it was at work\n"
                                           "tokens/s    tokens of completions a second of this work\n"
                                           "typical     time for a group in the last minute\n"
                                           "oldest      how long it has had the group that it has had for longest\n"
                                           "restarts    times that its process was started again\n"
                                           "The bottleneck is the stage that is at work most while the others wait.\n",
                                       .options = top_options,
                                       .size = sizeof(struct top_options)};

struct top {
    struct watcher watcher;
    struct run_status *run_status;
    bool terminal;
    bool redraws;                  // a terminal, until the user types q
    char notices[NOTICES][NOTICE]; // the last ones
    size_t notice_count;
    struct buf text;
};

// The columns of the table of steps, by their names in metrics.jsonl. Where not all fit, those of the lowest rank do.
static const struct {
    const char *name, *title;
    int width, digits, rank;
} top_columns[] = {
    {"reward", "reward", 6, 3, 0},
    {"reward_std", "std", 5, 3, 2},
    {"accuracy", "acc", 5, 3, 1},
    {"all_correct", "right", 5, 2, 9},
    {"all_wrong", "wrong", 5, 2, 10},
    {"bonus_rate", "bonus", 5, 2, 6},
    {"consistency", "cons", 5, 3, 5},
    {"completion_length", "length", 6, 1, 3},
    {"truncated", "trunc", 5, 2, 7},
    {"entropy", "entr", 5, 2, 11},
    {"kl", "kl", 5, 3, 8},
    {"loss", "loss", 7, 4, 4},
};
enum { TOP_COLUMNS = sizeof top_columns / sizeof *top_columns, STEP_WIDTH = 5 };

// Appends the table of the last steps, in so many columns, from the last lines of metrics.jsonl, which is missing
// before the first step and on a machine without optim. A line that is none gives no row; a null is a dash.
static void top_show_steps(struct buf *text, const char *path, int columns) {
    enum { STEPS = 5, TAIL = 8192 };
    char tail[TAIL];
    const char *lines[STEPS] = {0};
    size_t count = 0;
    bool shown[TOP_COLUMNS] = {0};
    columns -= STEP_WIDTH;
    for (int rank = 0; rank < TOP_COLUMNS; rank++)
        for (int i = 0; i < TOP_COLUMNS; i++) {
            if (top_columns[i].rank != rank || columns <= top_columns[i].width) continue;
            shown[i] = true;
            columns -= top_columns[i].width + 1;
        }
    file_read_tail(path, tail, sizeof tail);
    for (const char *line = strstr(tail, "{\"step\""); line && strchr(line, '\n'); line = strstr(line + 1, "{\"step\""))
        lines[count++ % STEPS] = line;
    if (!count) return;
    buf_printf(text, "%-*s", STEP_WIDTH, "step");
    for (int i = 0; i < TOP_COLUMNS; i++)
        if (shown[i]) buf_printf(text, " %*s", top_columns[i].width, top_columns[i].title);
    buf_puts(text, "\n");
    for (size_t i = count > STEPS ? count - STEPS : 0; i < count; i++) {
        const char *line = lines[i % STEPS];
        const size_t size = (size_t)(strchr(line, '\n') - line);
        struct arena arena = {0};
        struct json *metrics;
        int64_t step;
        double value;
        const bool known = json_parse_object(&metrics, &arena, line, size, "metrics.jsonl") == OK &&
                           json_int(json_at(metrics, "step"), &step);
        if (known) buf_printf(text, "%-*lld", STEP_WIDTH, (long long)step);
        for (int k = 0; known && k < TOP_COLUMNS; k++) {
            if (!shown[k]) continue;
            if (json_double(json_at(metrics, top_columns[k].name), &value))
                buf_printf(text, " %*.*f", top_columns[k].width, top_columns[k].digits, value);
            else
                buf_printf(text, " %*s", top_columns[k].width, "-");
        }
        if (known) buf_puts(text, "\n");
        arena_release(&arena);
    }
}

// Prints the table of the stages, that of the last steps and the last notices that fit. Nothing that a terminal redraws
// is wider or longer than it.
static status top_show(struct top *top) {
    char path[4096];
    const size_t last = top->notice_count, first = last > NOTICES ? last - NOTICES : 0;
    struct buf *text = &top->text, notice = {0};
    int columns = INT_MAX, rows = INT_MAX;
    if (top->terminal) terminal_size(STDOUT_FILENO, &columns, &rows);
    if (!top->redraws) rows = INT_MAX;
    rows--; // the last one says how to end
    buf_clear(text);
    run_status_table(top->run_status, clock_monotonic(), columns, rows, text);
    snprintf(path, sizeof path, "%s/metrics.jsonl", top->watcher.deployment.pipeline->run);
    top_show_steps(text, path, columns);
    int left = rows;
    for (size_t i = 0; i < text->size; i++) left -= text->data[i] == '\n';
    size_t from = last;
    for (; from > first; from--) {
        buf_clear(&notice);
        text_wrap(top->notices[(from - 1) % NOTICES], 0, 2, columns, &notice);
        for (size_t i = 0; i < notice.size; i++) left -= notice.data[i] == '\n';
        if (--left < 0) break;
    }
    buf_release(&notice);
    for (; from < last; from++) {
        text_wrap(top->notices[from % NOTICES], 0, 2, columns, text);
        buf_puts(text, "\n");
    }
    if (!top->redraws) {
        fwrite(text->data, 1, text->size, stdout);
        if (!top->terminal) putchar('\n');
        return fflush(stdout) ? fail(END, "standard output is closed") : OK;
    }
    fputs("\033[H\033[J", stdout);
    for (const char *line = text->data, *end; rows > 0 && *line; rows--, line = end + 1) {
        end = strchr(line, '\n');
        fwrite(line, 1, text_cut(line, (size_t)(end - line), columns), stdout);
        putchar('\n');
    }
    fputs("q ends this view; the run goes on", stdout);
    return fflush(stdout) ? fail(END, "standard output is closed") : OK;
}

// Removes the last line of a terminal, and redraws it no more.
static void top_leave(struct top *top) {
    if (!top->redraws) return;
    top->redraws = false;
    fputs("\r\033[K", stdout);
    fflush(stdout);
}

status top_main(struct subcommand_call *call) {
    enum { WAIT_MS = 100 };
    const struct top_options *given = call->given;
    struct top top = {.terminal = isatty(STDOUT_FILENO)};
    const double began = clock_monotonic();
    double shown = 0;
    struct wire_peer *supervisor = NULL;
    double lost_at = 0;     // when the supervisor has gone without a goodbye, 0: it is there
    double answered_at = 0; // when the supervisor has first sent something, 0: it has not
    bool ended = false;     // the run has, or the user of this program wants no more
    status result;
    TRY_TO(result, done, signals_open());
    TRY_TO(result, done, watcher_open(&top.watcher, call->pipeline, given->run.machine, given->run.key, "top"));
    run_status_new(&top.run_status, &top.watcher.deployment);
    TRY_TO(result, done, watcher_connect(&top.watcher, top.watcher.deployment.here, &supervisor));
    top.redraws = top.terminal && !given->once;
    if (top.redraws && keyboard_open()) wire_add_fd(top.watcher.wire, STDIN_FILENO);
    while (!signals_stopping() && !ended) {
        struct wire_event event;
        const struct wire_message *message = &event.message;
        char key;
        TRY_TO(result, done, wire_poll(top.watcher.wire, WAIT_MS, &event));
        if (event.kind == WIRE_REFUSED) TRY_TO(result, done, fail(UNAVAILABLE, "%s", message->reason));
        if (event.kind == WIRE_GONE && event.orderly) ended = true;
        if (event.kind == WIRE_GONE) lost_at = clock_monotonic();
        if (event.kind == WIRE_JOINED) lost_at = 0; // again, if this program was stopped by Ctrl-Z for a while
        if (event.kind == WIRE_READABLE && keyboard_in_foreground() && read(STDIN_FILENO, &key, 1) == 1 && key == 'q')
            break;
        if (event.kind == WIRE_MESSAGE) {
            if (answered_at <= 0) answered_at = clock_monotonic();
            if (message->kind == MESSAGE_STATUS) run_status_update(top.run_status, message, clock_monotonic());
            if (message->kind == MESSAGE_NOTICE)
                snprintf(top.notices[top.notice_count++ % NOTICES], NOTICE, "%s: %s", message->name, message->reason);
            if (message->kind == MESSAGE_END) {
                top_leave(&top);
                printf("%s\n", message->reason);
                ended = true;
            }
        }
        const double now = clock_monotonic();
        const bool answered = answered_at > 0;
        const double since = !answered ? began : lost_at > 0 ? lost_at : now; // nothing was heard
        // One that waits for other machines has nothing to show.
        const bool starting = !answered && supervisor->open && top.watcher.deployment.machines > 1;
        const bool waits = starting ? now - since <= WATCHER_ANSWER_SECONDS : watcher_waits(&top.watcher, since);
        if (!waits && !ended && !answered) TRY_TO(result, done, watcher_not_active(&top.watcher));
        if (!waits && !ended)
            TRY_TO(result, done,
                   fail(UNAVAILABLE, "lost the run in %s: its supervisor was killed or does not answer",
                        top.watcher.deployment.pipeline->run));
        // All replicas have reported a second later.
        if (!answered || now - shown < given->seconds || (given->once && now - answered_at < 2)) continue;
        shown = now;
        // A table that is redrawn says who is silent.
        top.watcher.told |= top.redraws;
        while (run_status_warning(top.run_status, now, &top.text)) // as the supervisor writes it
            snprintf(top.notices[top.notice_count++ % NOTICES], NOTICE, "%s", top.text.data);
        TRY_TO(result, done, top_show(&top));
        ended |= given->once;
    }
done:
    top_leave(&top);
    keyboard_close();
    run_status_free(&top.run_status);
    watcher_close(&top.watcher);
    buf_release(&top.text);
    return result;
}
