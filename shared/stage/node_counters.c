#include "shared/stage/node_counters.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/memory.h"

void node_counters_init(struct node_counters *counters) {
    pthread_mutex_init(&counters->lock, NULL);
}

void node_counters_release(struct node_counters *counters) {
    free(counters->groups);
    pthread_mutex_destroy(&counters->lock);
}

void node_counters_begin_wait(struct node_counters *counters, const char *what) {
    pthread_mutex_lock(&counters->lock);
    if (!counters->waits_for) counters->waiting_since = clock_monotonic();
    counters->waits_for = what;
    pthread_mutex_unlock(&counters->lock);
}

void node_counters_end_wait(struct node_counters *counters) {
    pthread_mutex_lock(&counters->lock);
    if (counters->waits_for) counters->waited += clock_monotonic() - counters->waiting_since;
    counters->waits_for = NULL;
    pthread_mutex_unlock(&counters->lock);
}

void node_counters_receive(struct node_counters *counters, int64_t seq, int64_t issue) {
    pthread_mutex_lock(&counters->lock);
    RESIZE(&counters->groups, counters->group_count + 1);
    counters->groups[counters->group_count++] = (struct node_group){seq, issue, clock_monotonic()};
    pthread_mutex_unlock(&counters->lock);
}

// Locked. Returns the seconds for which the worker had the group.
static double node_counters_remove(struct node_counters *counters, int64_t seq) {
    size_t at = 0;
    assert(mutex_is_held(&counters->lock));
    while (at < counters->group_count && counters->groups[at].seq != seq) at++;
    if (at == counters->group_count) return 0;
    const double seconds = clock_monotonic() - counters->groups[at].since;
    counters->group_count--;
    memmove(&counters->groups[at], &counters->groups[at + 1], (counters->group_count - at) * sizeof *counters->groups);
    return seconds;
}

void node_counters_drop(struct node_counters *counters, int64_t seq) {
    pthread_mutex_lock(&counters->lock);
    (void)node_counters_remove(counters, seq);
    pthread_mutex_unlock(&counters->lock);
}

void node_counters_take(struct node_counters *counters) {
    pthread_mutex_lock(&counters->lock);
    counters->taken++;
    pthread_mutex_unlock(&counters->lock);
}

int64_t node_counters_give_back(struct node_counters *counters, int64_t seq) {
    int64_t issue = 0;
    pthread_mutex_lock(&counters->lock);
    for (size_t i = counters->group_count; i-- > 0;)
        if (counters->groups[i].seq == seq) issue = counters->groups[i].issue;
    counters->taken--;
    pthread_mutex_unlock(&counters->lock);
    return issue;
}

void node_counters_deliver(struct node_counters *counters, const struct group *group, size_t found,
                           size_t quarantined) {
    pthread_mutex_lock(&counters->lock);
    for (size_t i = 0; i < group->completion_count; i++)
        counters->tokens += (int64_t)group->completions[i].tokens.count;
    counters->done++;
    counters->done_at = clock_monotonic();
    const double seconds = node_counters_remove(counters, group->requires.order);
    if (!group->quarantine.present && counters->found == (int64_t)found) {
        counters->worked++;
        counters->work_seconds += seconds;
    }
    counters->quarantined = (int64_t)quarantined;
    counters->found = (int64_t)found;
    pthread_mutex_unlock(&counters->lock);
}

void node_counters_set_failed_saves(struct node_counters *counters, int64_t count) {
    pthread_mutex_lock(&counters->lock);
    counters->failed_saves = count;
    pthread_mutex_unlock(&counters->lock);
}

void node_counters_report(struct node_counters *counters, double started, struct message_status *report) {
    const double now = clock_monotonic();
    pthread_mutex_lock(&counters->lock);
    report->reward = report->accuracy = NAN;
    report->taken = counters->taken;
    report->done = counters->done;
    report->quarantined = counters->quarantined;
    report->found = counters->found;
    report->tokens = counters->tokens;
    report->up = now - started;
    report->busy = report->up - counters->waited - (counters->waits_for ? now - counters->waiting_since : 0);
    report->state = counters->waits_for ? counters->waits_for : "working";
    report->failed_saves = counters->failed_saves;
    report->worked = counters->worked;
    report->work_seconds = counters->work_seconds;
    report->oldest_seq = counters->group_count ? counters->groups[0].seq : -1;
    report->oldest_age = counters->group_count ? now - counters->groups[0].since : -1;
    report->done_age = counters->done ? now - counters->done_at : -1;
    pthread_mutex_unlock(&counters->lock);
}
