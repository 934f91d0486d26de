#include "tools/run/notice_limit.h"

#include <stdio.h>
#include <string.h>

static void notice_sender_refill(struct notice_sender *sender, double now) {
    sender->spare += now - sender->now;
    if (sender->spare > NOTICE_BURST) sender->spare = NOTICE_BURST;
    sender->now = now;
}

bool notice_limit_pass(struct notice_limit *limit, const char *name, int64_t replica, double now) {
    struct notice_sender *sender = NULL;
    for (int i = 0; i < NOTICE_SENDERS && !sender; i++) {
        struct notice_sender *at = &limit->senders[i];
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

const struct notice_sender *notice_limit_due(struct notice_limit *limit, double now, bool all) {
    static struct notice_sender due;
    for (int i = 0; i < NOTICE_SENDERS && *limit->senders[i].name; i++) {
        struct notice_sender *sender = &limit->senders[i];
        if (!sender->left_out) continue;
        notice_sender_refill(sender, now);
        if (sender->spare < 1 && !all) continue;
        due = *sender;
        sender->spare = sender->spare < 1 ? 0 : sender->spare - 1;
        sender->left_out = 0;
        return &due;
    }
    return NULL;
}
