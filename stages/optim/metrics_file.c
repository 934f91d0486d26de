// OUT/metrics.jsonl: a line for each step.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "stages/optim/optim.h"

static const char metrics_name[] = "metrics.jsonl";

// Sets queue->path to OUT/metrics.jsonl.
static void metrics_set_path(struct append_queue *queue, const char *out) {
    struct arena arena = {0};
    const char *path = path_join(&arena, out, metrics_name);
    queue->path = mem_strdup(path);
    arena_release(&arena);
}

status metrics_append(struct optim *optim, const struct step_metrics *metrics) {
    struct event_scalar list[METRIC_COUNT];
    struct buf line = {0};
    if (!optim->metrics.path) metrics_set_path(&optim->metrics, optim->options->out);
    buf_printf(&line, "{\"step\": %lld", (long long)metrics->step);
    metrics_list(metrics, list);
    for (size_t i = 0; i < METRIC_COUNT; i++) {
        if (isfinite(list[i].value))
            buf_printf(&line, ", \"%s\": %.9g", list[i].tag, list[i].value);
        else
            buf_printf(&line, ", \"%s\": null", list[i].tag);
    }
    buf_printf(&line, ", \"time\": %.3f", metrics->time);
    const char *device = model_get_info(optim->model)->device_kind; // another kind may give other bits
    buf_puts(&line, ", \"device\": ");
    json_print_string(&line, device, strlen(device));
    buf_puts(&line, "}\n");
    const status result = append_queue_add(&optim->metrics, line.data, line.size);
    buf_release(&line);
    return result;
}

bool metrics_exist(const char *out) {
    struct arena arena = {0};
    const char *path = path_join(&arena, out, metrics_name);
    const bool exist = path_exists(path);
    arena_release(&arena);
    return exist;
}

status metrics_truncate(const char *out, int64_t step) {
    struct arena arena = {0};
    struct buf old = {0}, kept = {0};
    status result = OK;
    char *path = path_join(&arena, out, metrics_name);
    if (!path_exists(path)) goto done;
    TRY_TO(result, done, file_read(path, &old));
    for (size_t at = 0; at < old.size;) {
        const char *line = old.data + at, *newline = memchr(line, '\n', old.size - at);
        if (!newline) break; // a crash cut this line short
        size_t size = (size_t)(newline + 1 - line);
        struct json *object = NULL;
        int64_t number;
        const bool keep = json_parse_object(&object, &arena, line, size, metrics_name) == OK &&
                          json_int(json_at(object, "step"), &number) && number <= step;
        if (keep) buf_append(&kept, line, size);
        at += size;
    }
    if (kept.size != old.size) result = file_write_atomic(path, kept.data ? kept.data : "", kept.size);
done:
    buf_release(&old);
    buf_release(&kept);
    arena_release(&arena);
    return result;
}
