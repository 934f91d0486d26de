// Records for the end of a file, which wait in memory while they cannot be written, for example on a full disk.
#include <stdlib.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "stages/optim/optim.h"

status append_queue_add(struct append_queue *queue, const void *data, size_t size) {
    buf_append(&queue->waiting, data, size);
    const status result = file_append(queue->path, queue->waiting.data, queue->waiting.size);
    if (result == OK) {
        if (queue->failing) log_info("%s: can be written again; nothing is missing", queue->path);
        buf_clear(&queue->waiting);
    } else if (!queue->failing) {
        log_info("%s; training goes on, and the file is completed when there is room", fail_text());
    }
    queue->failing = result != OK;
    return OK;
}

void append_queue_release(struct append_queue *queue) {
    if (queue->waiting.size && file_append(queue->path, queue->waiting.data, queue->waiting.size) != OK)
        log_info("%s: the last steps are missing", fail_text());
    buf_release(&queue->waiting);
    free(queue->path);
    *queue = (struct append_queue){0};
}
