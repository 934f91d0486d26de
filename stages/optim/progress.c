// The file `progress` of a checkpoint or a state: where the training stands, and with which weights it began. Version
// 1, of earlier versions of caravan, ends after the third line.
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "stages/optim/optim.h"

// For printf and scanf.
#define PROGRESS_HEAD  "caravan-progress %d\nstep %lld\ncursor %lld\naveraged %lld\n"
#define PROGRESS_STEPS "steps %lld\n"
#define PROGRESS_MODEL "model %llx "

status progress_write(const struct progress *progress, const char *path) {
    struct buf text = {0};
    buf_printf(&text, PROGRESS_HEAD PROGRESS_STEPS "lr %.16e\n" PROGRESS_MODEL "%s\n", 2, (long long)progress->step,
               (long long)progress->cursor, (long long)progress->ema_step, (long long)progress->schedule_steps,
               progress->lr, (unsigned long long)progress->model_hash, progress->model);
    const status result = file_write_atomic(path, text.data, text.size);
    buf_release(&text);
    return result;
}

status progress_read(struct progress *progress, struct arena *arena, const char *path) {
    struct buf text = {0};
    int version = 0, head = 0, model = 0;
    long long step, cursor, ema_step, steps;
    unsigned long long hash;
    double lr;
    status result = OK;
    *progress = (struct progress){0};
    TRY_TO(result, done, file_read(path, &text));
    if (!text.data || sscanf(text.data, PROGRESS_HEAD "%n", &version, &step, &cursor, &ema_step, &head) != 4 ||
        version < 1 || version > 2 || step < 0 || cursor < 0 || ema_step < 0)
        TRY_TO(result, done, fail(DATAERR, "%s: not a caravan-progress file of version 1 or 2", path));
    *progress = (struct progress){.step = step, .cursor = cursor, .ema_step = ema_step};
    if (version == 1) goto done;
    if (sscanf(text.data + head, PROGRESS_STEPS "lr %lf\n" PROGRESS_MODEL "%n", &steps, &lr, &hash, &model) != 3)
        TRY_TO(result, done, fail(DATAERR, "%s: its last lines are not those of version 2", path));
    const char *name = text.data + head + model;
    const size_t size = strlen(name);
    progress->schedule_steps = steps;
    progress->lr = lr;
    progress->model_hash = hash;
    progress->model = arena_strndup(arena, name, size && name[size - 1] == '\n' ? size - 1 : size);
done:
    buf_release(&text);
    return result;
}
