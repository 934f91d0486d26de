#include "stages/frames/decode_again.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/store/frame_store.h"

enum { KEYS_MAX = 64 }; // a key that finds no place is asked for again later

struct decode_again {
    pthread_t thread;
    bool started;
    status (*decode)(void *context, const char *key);
    void *context;
    pthread_mutex_t lock; // of all below
    pthread_cond_t changed;
    bool stopping;
    char queue[KEYS_MAX][frame_key_size]; // the first one is being decoded
    int queue_count;
    char asked[KEYS_MAX][frame_key_size]; // the last keys that were asked for once, as a ring
    int asked_next;
};

static void *decode_again_run(void *argument) {
    struct decode_again *again = argument;
    pthread_mutex_lock(&again->lock);
    for (;;) {
        while (!again->queue_count && !again->stopping) pthread_cond_wait(&again->changed, &again->lock);
        if (again->stopping) break;
        char key[frame_key_size];
        memcpy(key, again->queue[0], sizeof key);
        pthread_mutex_unlock(&again->lock);
        if (again->decode(again->context, key) != OK)
            log_info("frames %s cannot be decoded again: %s", key, fail_text());
        pthread_mutex_lock(&again->lock);
        again->queue_count--;
        memmove(again->queue[0], again->queue[1], (size_t)again->queue_count * sizeof again->queue[0]);
    }
    pthread_mutex_unlock(&again->lock);
    return NULL;
}

status decode_again_new(struct decode_again **out, status (*decode)(void *context, const char *key), void *context) {
    struct decode_again *again;
    *out = NULL;
    NEW(&again, 1);
    again->decode = decode;
    again->context = context;
    pthread_mutex_init(&again->lock, NULL);
    pthread_cond_init(&again->changed, NULL);
    again->started = pthread_create(&again->thread, NULL, decode_again_run, again) == 0;
    *out = again;
    if (again->started) return OK;
    decode_again_free(out);
    return fail(UNAVAILABLE, "cannot start a thread");
}

void decode_again_free(struct decode_again **pointer) {
    struct decode_again *again = *pointer;
    if (!again) return;
    pthread_mutex_lock(&again->lock);
    again->stopping = true;
    pthread_cond_signal(&again->changed);
    pthread_mutex_unlock(&again->lock);
    if (again->started) pthread_join(again->thread, NULL);
    pthread_cond_destroy(&again->changed);
    pthread_mutex_destroy(&again->lock);
    free(again);
    *pointer = NULL;
}

// Returns the place of a key in a list, -1 if it is not there.
static int decode_again_find(char (*keys)[frame_key_size], int count, const char *key) {
    for (int i = 0; i < count; i++)
        if (!strcmp(keys[i], key)) return i;
    return -1;
}

void decode_again_asked(struct decode_again *again, const char *key) {
    if (strlen(key) >= frame_key_size) return;
    pthread_mutex_lock(&again->lock);
    if (decode_again_find(again->queue, again->queue_count, key) < 0) {
        const int asked = decode_again_find(again->asked, KEYS_MAX, key);
        if (asked < 0) {
            strcpy(again->asked[again->asked_next], key);
            again->asked_next = (again->asked_next + 1) % KEYS_MAX;
        } else if (again->queue_count < KEYS_MAX) {
            again->asked[asked][0] = 0;
            strcpy(again->queue[again->queue_count++], key);
            pthread_cond_signal(&again->changed);
        }
    }
    pthread_mutex_unlock(&again->lock);
}
