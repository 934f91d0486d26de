#include "shared/stage/letters.h"

#include <stdlib.h>
#include <string.h>

status letters_add(struct letters *letters, int64_t seq, const char *id, uint64_t readers, struct buf *data) {
    struct letter *fresh = calloc(1, sizeof *fresh);
    char *name = strdup(id);
    if (!fresh || !name) {
        free(fresh);
        free(name);
        buf_release(data);
        return fail_oom();
    }
    *fresh = (struct letter){.seq = seq, .id = name, .data = *data, .readers = readers};
    *data = (struct buf){0};
    struct letter **place = &letters->first;
    while (*place && (*place)->seq <= seq) place = &(*place)->next;
    fresh->next = *place;
    *place = fresh;
    return OK;
}

struct letter *letters_for(const struct letters *letters, int reader) {
    struct letter *at = letters->first;
    while (at && !(at->readers >> reader & 1)) at = at->next;
    return at;
}

static void letter_free(struct letter *letter) {
    buf_release(&letter->data);
    free(letter->id);
    free(letter);
}

void letters_give(struct letters *letters, struct letter *given, int reader) {
    given->readers &= ~((uint64_t)1 << reader);
    if (given->readers) return;
    struct letter **place = &letters->first;
    while (*place != given) place = &(*place)->next;
    *place = given->next;
    letter_free(given);
}

int64_t letters_count(const struct letters *letters, int reader) {
    int64_t count = 0;
    for (const struct letter *at = letters->first; at; at = at->next)
        if (reader < 0 || at->readers >> reader & 1) count++;
    return count;
}

bool letters_have(const struct letters *letters, const char *id) {
    for (const struct letter *at = letters->first; at; at = at->next)
        if (!strcmp(at->id, id)) return true;
    return false;
}

void letters_release(struct letters *letters) {
    while (letters->first) {
        struct letter *next = letters->first->next;
        letter_free(letters->first);
        letters->first = next;
    }
}
