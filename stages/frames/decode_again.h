// Decodes frames that were evicted again, when another machine asks for them: a thread with a queue of keys.
#ifndef STAGES_FRAMES_DECODE_AGAIN_H
#define STAGES_FRAMES_DECODE_AGAIN_H

#include "shared/base/status.h"

struct decode_again;

// Starts the thread, which calls decode(context, key) for each key; a failure of it is logged. UNAVAILABLE when the
// thread cannot be started. The caller frees it with decode_again_free.
status decode_again_new(struct decode_again **out, status (*decode)(void *context, const char *key), void *context);

// Waits for the key that is being decoded, ends the thread and frees; sets *again to NULL. NULL is fine.
void decode_again_free(struct decode_again **again);

// Says that a process asked for a key that the store lacks. The key is decoded when it is asked for a second time,
// because a process on a machine that has the file decodes it itself and does not ask again. From any thread.
void decode_again_asked(struct decode_again *again, const char *key);

#endif
