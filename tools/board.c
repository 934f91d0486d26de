#include "tools/board.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/wire/seq_set.h"

enum { NAME = 64, FRESH = 5, STALE = 2, DEAD = 10 }; // seconds but the first
static const double missing_seconds = 1.5;           // three reports

struct row {
    const struct replica *replica;
    bool known;
    double heard;
    struct message_status status; // its texts are those below
    char state[64];
    char *in_hand, *in_flight;
};

// A group in flight that nobody has in hand.
struct missing {
    int64_t seq;
    double since;
};

struct board {
    const struct deployment *deployment;
    struct row *rows;
    size_t count;
    struct missing *missing;
    size_t missing_count;
    double began;       // when the source was first heard, 0: not yet
    int64_t began_with; // settled orders then
};

status board_new(struct board **out, const struct deployment *deployment) {
    struct board *board;
    *out = NULL;
    TRY(NEW(&board, 1));
    status result = NEW(&board->rows, deployment->count);
    if (result != OK) {
        free(board);
        return result;
    }
    board->deployment = deployment;
    for (size_t i = 0; i < deployment->count; i++)
        if (deployment->replicas[i].stage) board->rows[board->count++].replica = &deployment->replicas[i];
    *out = board;
    return OK;
}

void board_free(struct board **board) {
    if (!*board) return;
    for (size_t i = 0; i < (*board)->count; i++) {
        free((*board)->rows[i].in_hand);
        free((*board)->rows[i].in_flight);
    }
    free((*board)->rows);
    free((*board)->missing);
    free(*board);
    *board = NULL;
}

static struct row *find_row(const struct board *board, const struct replica *replica) {
    for (size_t i = 0; i < board->count; i++)
        if (board->rows[i].replica == replica) return &board->rows[i];
    return NULL;
}

static status set_text(char **place, const char *text) {
    free(*place);
    *place = strdup(text);
    return *place ? OK : fail_oom();
}

static bool is_source(const struct row *row) {
    return !strcmp(row->replica->stage->name, "source");
}

static const struct row *source_row(const struct board *board) {
    return board->count && is_source(&board->rows[0]) && board->rows[0].known ? &board->rows[0] : NULL;
}

static const struct row *last_row(const struct board *board) {
    return board->rows[board->count - 1].known ? &board->rows[board->count - 1] : NULL;
}

status board_hear(struct board *board, const struct wire_message *message, double now) {
    struct row *row = find_row(board, deployment_find(board->deployment, message->name, (int)message->replica));
    if (!row) return OK;
    TRY(set_text(&row->in_hand, message->status.in_hand));
    TRY(set_text(&row->in_flight, message->status.in_flight));
    snprintf(row->state, sizeof row->state, "%s", message->status.state);
    row->status = message->status;
    row->status.state = row->state;
    row->status.in_hand = row->in_hand;
    row->status.in_flight = row->in_flight;
    row->known = true;
    row->heard = now;
    if (is_source(row) && !board->began && *row->in_flight) {
        board->began = now;
        board->began_with = row->status.settled;
    }
    return OK;
}

void board_forget(struct board *board, const struct replica *replica) {
    struct row *row = find_row(board, replica);
    if (row) row->known = false;
}

bool board_knows(const struct board *board, const struct replica *replica) {
    const struct row *row = find_row(board, replica);
    return row && row->known;
}

int64_t board_step(const struct board *board) {
    const struct row *source = source_row(board);
    return source ? source->status.step : -1;
}

// ---- words ----

static status add_time(struct buf *out, double seconds) {
    long long whole = (long long)seconds;
    return buf_printf(out, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

static status add_rate(const struct board *board, const struct row *source, double now, struct buf *out) {
    const struct message_status *said = &source->status;
    double seconds = board->began ? now - board->began : 0;
    int64_t done = said->settled - board->began_with;
    if (seconds < 1 || done <= 0) return OK;
    double rate = (double)done / seconds;
    TRY(rate >= 1 ? buf_printf(out, ", %.1f groups/s", rate) : buf_printf(out, ", %.1f groups/min", rate * 60));
    if (said->settled >= said->total) return OK;
    TRY(buf_puts(out, ", "));
    TRY(add_time(out, (double)(said->total - said->settled) / rate));
    return buf_puts(out, " left");
}

static const char *state_of(const struct row *row, double now) {
    if (!row->known) return "starting";
    return now - row->heard > FRESH ? "silent" : row->status.state;
}

// One stage's states: one word if all replicas do the same.
static status add_states(const struct board *board, double now, struct buf *out) {
    for (size_t i = 0; i < board->count; i++) {
        const struct row *row = &board->rows[i];
        bool same = i > 0 && board->rows[i - 1].replica->stage == row->replica->stage &&
                    !strcmp(state_of(&board->rows[i - 1], now), state_of(row, now));
        if (same || is_source(row)) continue;
        TRY(buf_printf(out, "; %s", row->replica->stage->name));
        if (row->replica->stage->replicas > 1 && row->replica->number > 1)
            TRY(buf_printf(out, "-%d", row->replica->number));
        TRY(buf_printf(out, " %s", state_of(row, now)));
    }
    return OK;
}

status board_line(struct board *board, double now, struct buf *out) {
    const struct row *source = source_row(board), *last = last_row(board);
    if (source) {
        const struct message_status *said = &source->status;
        TRY(buf_printf(out, "step %lld, %lld of %lld groups", (long long)said->step, (long long)said->settled,
                       (long long)said->total));
        TRY(add_rate(board, source, now, out));
        if (said->run_quarantined) TRY(buf_printf(out, ", %lld quarantined", (long long)said->run_quarantined));
    } else {
        TRY(buf_puts(out, "starting"));
    }
    if (last && !isnan(last->status.reward))
        TRY(buf_printf(out, ", reward %.3f, accuracy %.3f", last->status.reward, last->status.accuracy));
    return add_states(board, now, out);
}

static status add_row(const struct row *row, double now, struct buf *out) {
    char name[NAME];
    const struct message_status *said = &row->status;
    snprintf(name, sizeof name, row->replica->number > 1 ? "%s-%d" : "%s", row->replica->stage->name,
             row->replica->number);
    TRY(buf_printf(out, "%-14s", name));
    if (!row->known) return buf_puts(out, " starting\n");
    double rate = said->up > 0 ? (double)said->done / said->up * 60 : 0;
    double tokens = said->busy > 0 ? (double)said->tokens / said->busy : 0;
    TRY(buf_printf(out, "%9.1f %7lld %7lld %6lld %6lld %5.0f%%", rate, (long long)said->done, (long long)said->found,
                   (long long)said->held, (long long)said->waiting, said->up > 0 ? 100 * said->busy / said->up : 0));
    TRY(tokens >= 1 ? buf_printf(out, "%10.0f", tokens) : buf_printf(out, "%10s", ""));
    return buf_printf(out, "  %s\n", state_of(row, now));
}

status board_table(struct board *board, double now, struct buf *out) {
    const struct row *source = source_row(board), *last = last_row(board);
    TRY(buf_printf(out, "%s", board->deployment->pipeline->name));
    if (source) {
        const struct message_status *said = &source->status;
        TRY(buf_printf(out, ": step %lld, %lld of %lld groups", (long long)said->step, (long long)said->settled,
                       (long long)said->total));
        TRY(add_rate(board, source, now, out));
        TRY(buf_printf(out, "\n%lld in flight, %lld quarantined, %lld left over", (long long)said->held,
                       (long long)said->run_quarantined, (long long)said->run_unused));
    }
    if (last && !isnan(last->status.reward))
        TRY(buf_printf(out, "; last step: reward %.3f, accuracy %.3f", last->status.reward, last->status.accuracy));
    TRY(buf_printf(out, "\n%-14s%9s %7s %7s %6s %6s %6s%10s  %s\n", "stage", "groups/min", "done", "stored", "held",
                   "queue", "busy", "tokens/s", "state"));
    for (size_t i = 0; i < board->count; i++) TRY(add_row(&board->rows[i], now, out));
    return OK;
}

// ---- lost groups ----

// A replica that is not there has nothing in hand.
static bool alive(const struct row *row, double now) {
    return row->known && now - row->heard <= DEAD;
}

// Whether what is known of all replicas is fresh enough to say that a group is nowhere.
static bool all_fresh(const struct board *board, double now) {
    for (size_t i = 0; i < board->count; i++)
        if (alive(&board->rows[i], now) && now - board->rows[i].heard > STALE) return false;
    return true;
}

static status list_hands(const struct board *board, double now, int64_t **seqs, size_t *count, int *whole) {
    *whole = 1;
    for (size_t i = 0; i < board->count; i++) {
        int all = 1;
        if (!alive(&board->rows[i], now)) continue;
        TRY(seq_set_parse(board->rows[i].in_hand, seqs, count, &all));
        *whole = *whole && all;
    }
    return OK;
}

static bool has(const int64_t *seqs, size_t count, int64_t seq) {
    for (size_t i = 0; i < count; i++)
        if (seqs[i] == seq) return true;
    return false;
}

static double missing_since(const struct board *board, int64_t seq, double now) {
    for (size_t i = 0; i < board->missing_count; i++)
        if (board->missing[i].seq == seq) return board->missing[i].since;
    return now;
}

// Replaces the list of missing groups by the flying that are in nobody's hands.
static status update_missing(struct board *board, double now, const int64_t *flying, size_t flying_count,
                             const int64_t *hands, size_t hand_count) {
    struct missing *fresh;
    size_t count = 0;
    TRY(NEW(&fresh, flying_count));
    for (size_t i = 0; i < flying_count; i++)
        if (!has(hands, hand_count, flying[i]))
            fresh[count++] = (struct missing){flying[i], missing_since(board, flying[i], now)};
    free(board->missing);
    board->missing = fresh;
    board->missing_count = count;
    return OK;
}

status board_find_lost(struct board *board, double now, status (*lost)(void *context, int64_t seq), void *context) {
    const struct row *source = source_row(board);
    int64_t *flying = NULL, *hands = NULL;
    size_t flying_count = 0, hand_count = 0;
    int whole = 0;
    status result = OK;
    if (!source || !all_fresh(board, now)) return OK;
    TRY_TO(result, done, seq_set_parse(source->in_flight, &flying, &flying_count, NULL));
    TRY_TO(result, done, list_hands(board, now, &hands, &hand_count, &whole));
    if (!whole) goto done;
    TRY_TO(result, done, update_missing(board, now, flying, flying_count, hands, hand_count));
    for (size_t i = 0; i < board->missing_count && result == OK; i++) {
        if (now - board->missing[i].since < missing_seconds) continue;
        board->missing[i].since = now;
        result = lost(context, board->missing[i].seq);
    }
done:
    free(flying);
    free(hands);
    return result;
}
