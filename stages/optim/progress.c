// The file `progress` of a checkpoint or a state: where the training stands, and with which weights it began.
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "stages/optim/optim.h"

// For printf and scanf. The rest of the last line is the model's directory.
#define PROGRESS_COUNTERS "caravan-progress 3\nstep %lld\ncursor %lld\nema_step %lld\nsteps %lld\n"
#define PROGRESS_MODEL    "model %llx "

status progress_write(const struct progress *progress, const char *path) {
    struct buf text = {0};
    buf_printf(&text, PROGRESS_COUNTERS "lr %.16e\n" PROGRESS_MODEL "%s\n", (long long)progress->step,
               (long long)progress->cursor, (long long)progress->ema_step, (long long)progress->schedule_steps,
               progress->lr, (unsigned long long)progress->model_hash, progress->model);
    const status result = file_write_atomic(path, text.data, text.size);
    buf_release(&text);
    return result;
}

status progress_read(struct progress *progress, struct arena *arena, const char *path) {
    struct buf text = {0};
    int model = 0;
    long long step, cursor, ema_step, steps;
    unsigned long long hash;
    double lr;
    *progress = (struct progress){0};
    status result = file_read(path, &text);
    if (result == OK && (!text.data ||
                         sscanf(text.data, PROGRESS_COUNTERS "lr %lf\n" PROGRESS_MODEL "%n", &step, &cursor, &ema_step,
                                &steps, &lr, &hash, &model) != 6 ||
                         step < 0 || cursor < 0 || ema_step < 0))
        result = fail(DATAERR, "%s: not a caravan-progress file of version 3", path);
    if (result == OK) {
        const char *name = text.data + model;
        const size_t size = strlen(name);
        *progress = (struct progress){
            .step = step,
            .cursor = cursor,
            .ema_step = ema_step,
            .schedule_steps = steps,
            .lr = lr,
            .model_hash = hash,
            .model = arena_strndup(arena, name, size && name[size - 1] == '\n' ? size - 1 : size),
        };
    }
    buf_release(&text);
    return result;
}
