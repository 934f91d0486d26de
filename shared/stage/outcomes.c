#include "shared/stage/outcomes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct outcome {
    struct outcome *next;
    struct wire_message message; // its strings are in `arena`
    struct arena arena;
};

struct outcomes {
    pthread_mutex_t lock;
    struct outcome *first; // under the lock
};

void outcomes_new(struct outcomes **out) {
    NEW(out, 1);
    pthread_mutex_init(&(*out)->lock, NULL);
}

// Locked. Removes what the source has recorded: the groups below a seq.
static void outcomes_remove_below(struct outcomes *outcomes, int64_t seq) {
    for (struct outcome **link = &outcomes->first; *link;) {
        struct outcome *outcome = *link;
        if (outcome->message.seq >= seq) {
            link = &outcome->next;
            continue;
        }
        *link = outcome->next;
        arena_release(&outcome->arena);
        free(outcome);
    }
}

void outcomes_free(struct outcomes **outcomes) {
    if (!*outcomes) return;
    outcomes_remove_below(*outcomes, INT64_MAX);
    pthread_mutex_destroy(&(*outcomes)->lock);
    free(*outcomes);
    *outcomes = NULL;
}

status outcomes_tell(struct outcomes *outcomes, struct io_thread *io, const struct group *group) {
    enum { STRING_MAX = 1000 }; // bytes of a string that is sent
    const struct string given[3] = {group->id, group->quarantine.stage, group->quarantine.reason};
    char strings[3][STRING_MAX + 1];
    for (int i = 0; i < 3; i++) snprintf(strings[i], sizeof strings[i], "%s", given[i].data ? given[i].data : "");
    const struct wire_message message = {.kind = group->quarantine.present ? MESSAGE_QUARANTINED : MESSAGE_TRAINED,
                                         .seq = group->requires.order,
                                         .id = strings[0],
                                         .name = strings[1],
                                         .reason = strings[2]};
    struct outcome *outcome;
    NEW(&outcome, 1);
    status result = message_copy(&message, &outcome->message, &outcome->arena);
    if (result != OK) {
        arena_release(&outcome->arena);
        free(outcome);
        return result;
    }
    pthread_mutex_lock(&outcomes->lock);
    outcomes_remove_below(outcomes, io_thread_settled(io));
    outcome->next = outcomes->first;
    outcomes->first = outcome;
    pthread_mutex_unlock(&outcomes->lock);
    return io_thread_broadcast(io, "ledger", &message);
}

status outcomes_tell_again(struct outcomes *outcomes, struct io_thread *io, struct wire_peer *peer) {
    status result = OK;
    pthread_mutex_lock(&outcomes->lock);
    outcomes_remove_below(outcomes, io_thread_settled(io));
    for (const struct outcome *outcome = outcomes->first; outcome && result == OK; outcome = outcome->next)
        result = io_thread_reply(io, peer, &outcome->message);
    pthread_mutex_unlock(&outcomes->lock);
    return result;
}
