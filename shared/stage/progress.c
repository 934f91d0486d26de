#include "shared/stage/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"

// For printf and scanf. The rest of the last line is the model's directory.
#define PROGRESS_COUNTERS "caravan-progress 3\nstep %lld\ncursor %lld\nema_step %lld\nsteps %lld\n"
#define PROGRESS_MODEL    "model %llx "

status progress_read(struct progress *progress, struct arena *arena, const char *path) {
    struct buf text = {0};
    int model = 0;
    *progress = (struct progress){0};
    status result = file_read(path, &text);
    if (result == OK &&
        (!text.data ||
         sscanf(text.data, PROGRESS_COUNTERS "lr %lf\n" PROGRESS_MODEL "%n", &progress->step, &progress->cursor,
                &progress->ema_step, &progress->schedule_steps, &progress->lr, &progress->model_hash, &model) != 6 ||
         progress->step < 0 || progress->cursor < 0 || progress->ema_step < 0))
        result = fail(DATAERR, "%s: not a caravan-progress file of version 3", path);
    if (result == OK) progress->model = arena_strndup(arena, text.data + model, strcspn(text.data + model, "\n"));
    buf_release(&text);
    return result;
}

void progress_print(const struct progress *progress, struct buf *out) {
    buf_printf(out, PROGRESS_COUNTERS "lr %.16e\n" PROGRESS_MODEL "%s\n", progress->step, progress->cursor,
               progress->ema_step, progress->schedule_steps, progress->lr, progress->model_hash, progress->model);
}

int64_t checkpoint_number(const char *name, const char *prefix) {
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0 || name[length] != '-') return -1;
    char *end;
    long long number = strtoll(name + length + 1, &end, 10);
    return end == name + length + 1 || *end ? -1 : number;
}
