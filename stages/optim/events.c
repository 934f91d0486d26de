// OUT/events.out.tfevents.N.caravan: the metrics for TensorBoard. Each process of optim writes a file of its own, whose
// first record says from which step on the steps of earlier files count no more: those that are trained again.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "stages/optim/optim.h"

// TensorBoard reads the files in the order of their names.
#define EVENTS_NAME "events.out.tfevents.%010lld.caravan"

// Sets optim->events.path to the path with the next number.
static status events_choose_path(struct optim *optim) {
    const char *out = optim->options->out;
    const size_t size = strlen(out) + sizeof "/" EVENTS_NAME + 20; // a number of 20 digits at most
    long long last = 0;
    DIR *dir = opendir(out);
    if (!dir) return fail(UNAVAILABLE, "%s: %s", out, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        long long number;
        if (sscanf(entry->d_name, EVENTS_NAME, &number) == 1 && number > last) last = number;
    }
    closedir(dir);
    NEW(&optim->events.path, size);
    snprintf(optim->events.path, size, "%s/" EVENTS_NAME, out, last + 1);
    return OK;
}

status events_append(struct optim *optim, const struct step_metrics *metrics) {
    const double now = clock_realtime();
    const struct event_histogram histograms[] = {
        {"completion_lengths", metrics->lengths, (size_t)metrics->completions},
        {"rewards", metrics->rewards, metrics->reward_count},
    };
    struct event_scalar scalars[METRIC_COUNT];
    struct buf records = {0};
    status result = OK;
    metrics_list(metrics, scalars);
    if (!optim->events.path) {
        TRY_TO(result, done, events_choose_path(optim));
        event_file_begin(&records, now, metrics->step);
    }
    event_file_step(&records, now, metrics->step, scalars, METRIC_COUNT, histograms,
                    sizeof histograms / sizeof *histograms);
    result = append_queue_add(&optim->events, records.data, records.size);
done:
    buf_release(&records);
    return result;
}
