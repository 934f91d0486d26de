// OUT/metrics.jsonl: a line a step.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "stages/optim/optim.h"

static status add_number(struct buf *line, const char *name, double number) {
    if (!isfinite(number)) return buf_printf(line, ", \"%s\": null", name);
    return buf_printf(line, ", \"%s\": %.9g", name, number);
}

static status format_line(struct buf *line, const struct step_facts *facts) {
    TRY(buf_printf(line, "{\"step\": %lld", (long long)facts->step));
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"loss", facts->loss},
        {"nll", facts->nll},
        {"grad_norm", facts->norm},
        {"lr", facts->rate},
        {"tokens", (double)facts->tokens},
        {"reward", facts->reward},
        {"accuracy", facts->accuracy},
        {"format", facts->format},
        {"bonus", facts->bonus},
        {"kl", facts->kl},
        {"logprob_difference", facts->difference},
        {"logprob_difference_max", facts->largest},
        {"age_mean", facts->age_mean},
        {"age_max", (double)facts->age_most},
        {"groups", (double)facts->groups},
        {"completions", (double)facts->completions},
        {"prompt_tokens", (double)facts->prompt_tokens},
        {"seconds", facts->seconds},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        TRY(add_number(line, numbers[i].name, numbers[i].value));
    return buf_puts(line, "}\n");
}

static status append(const char *path, const struct buf *line) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(errno));
    ssize_t put = write(fd, line->data, line->size); // one write: a reader never sees half a line
    int why = put < 0 ? errno : ENOSPC;
    close(fd);
    return put == (ssize_t)line->size ? OK : fail(UNAVAILABLE, "%s: cannot write: %s", path, strerror(why));
}

status metrics_add(const struct optim *optim, const struct step_facts *facts) {
    struct arena memory = {0};
    struct buf line = {0};
    char *path = path_join(&memory, optim->options->out, "metrics.jsonl");
    status result = path ? format_line(&line, facts) : fail_oom();
    if (result == OK) result = append(path, &line);
    buf_release(&line);
    arena_release(&memory);
    return result;
}

static status keep_until(const struct buf *old, int64_t step, struct buf *kept) {
    const char *at = old->data, *end = old->data + old->size;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) break; // a line cut short by a crash
        const char *number = memmem(at, (size_t)(newline - at), "\"step\": ", 8);
        if (number && atoll(number + 8) <= step) TRY(buf_append(kept, at, (size_t)(newline + 1 - at)));
        at = newline + 1;
    }
    return OK;
}

bool metrics_exist(const char *out) {
    struct arena memory = {0};
    char *path = path_join(&memory, out, "metrics.jsonl");
    bool exist = path && path_exists(path);
    arena_release(&memory);
    return exist;
}

status metrics_cut(const char *out, int64_t step) {
    struct arena memory = {0};
    struct buf old = {0}, kept = {0};
    char *path = path_join(&memory, out, "metrics.jsonl");
    status result = path ? OK : fail_oom();
    if (result == OK && path_exists(path)) {
        result = file_read(path, &old);
        if (result == OK) result = keep_until(&old, step, &kept);
        if (result == OK && kept.size != old.size)
            result = file_write_atomic(path, kept.data ? kept.data : "", kept.size);
    }
    buf_release(&old);
    buf_release(&kept);
    arena_release(&memory);
    return result;
}
