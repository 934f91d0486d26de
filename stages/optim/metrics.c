// What a step's groups say about the run: means over completions, groups and tokens. They are written to
// OUT/metrics.jsonl, a line for each step, and for TensorBoard to OUT/events.out.tfevents.N.caravan. Each process of
// optim writes an event file of its own, whose first record says from which step on the steps of earlier files count no
// more: those that are trained again.
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/reward/accuracy.h"
#include "stages/optim/event_file.h"
#include "stages/optim/optim.h"

static const char metrics_name[] = "metrics.jsonl";

// TensorBoard reads the files in the order of their names.
#define EVENTS_NAME "events.out.tfevents.%010lld.caravan"

void metrics_release(struct step_metrics *metrics) {
    free(metrics->lengths);
    free(metrics->rewards);
    metrics->lengths = metrics->rewards = NULL;
}

static void metrics_add_mean(struct step_mean *mean, double sum, size_t count) {
    mean->sum += sum;
    mean->count += (int64_t)count;
}

double metrics_mean(const struct step_mean *mean) {
    return mean->count ? mean->sum / (double)mean->count : NAN;
}

static double metrics_sum(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return sum;
}

void metrics_add(struct step_metrics *metrics, const struct step_group *added, double weight, double share) {
    const struct group *group = added->group;
    const struct train_result *trained = &added->trained;
    const int64_t version = metrics->step - 1; // that was trained
    const struct double_array *consistency = &group->consistency.probability, *verdict = &group->consistency.verdict;
    const size_t count = group->completion_count;
    for (size_t i = 0; i < count; i++) {
        const struct string *finish = &group->completions[i].finish;
        GROW(&metrics->lengths, (size_t)metrics->completions);
        metrics->lengths[metrics->completions++] = (double)added->lengths[i];
        metrics_add_mean(&metrics->truncated, finish->data && !strcmp(finish->data, "length"), 1);
        const struct int_array *versions = &group->completions[i].versions;
        for (size_t t = 0; t < versions->count; t++) {
            const int64_t from = versions->data[t];
            const int64_t age = from < 0 ? version + 1 : from < version ? version - from : 0;
            metrics->ages += (double)age;
            if (age > metrics->age_max) metrics->age_max = age;
        }
    }
    metrics->loss += weight * trained->loss;
    metrics->nll += weight * trained->nll;
    metrics->kl += share * trained->kl;
    metrics->logprob_diff_mean += share * trained->logprob_diff_mean;
    metrics->logprob_diff_max = fmax(metrics->logprob_diff_max, trained->logprob_diff_max);
    metrics->tokens += trained->tokens;
    metrics->prompt_tokens += trained->prompt_tokens;
    for (size_t i = 0; i < consistency->count; i++)
        if (isfinite(consistency->data[i])) metrics_add_mean(&metrics->consistency, consistency->data[i], 1);
    for (size_t i = 0; i < verdict->count; i++)
        if (isfinite(verdict->data[i])) metrics_add_mean(&metrics->consistent, verdict->data[i], 1);

    const struct rewards *rewards = &group->rewards;
    if (!rewards->present) return; // a supervised group
    const size_t accuracies = rewards->accuracy.count;
    bool all_correct = true, all_wrong = true;
    for (size_t i = 0; i < accuracies; i++) {
        all_correct = all_correct && rewards->accuracy.data[i] == 1;
        all_wrong = all_wrong && rewards->accuracy.data[i] == 0;
    }
    if (accuracies) metrics_add_mean(&metrics->all_correct, all_correct, 1);
    if (accuracies) metrics_add_mean(&metrics->all_wrong, all_wrong, 1);
    metrics_add_mean(&metrics->reward, metrics_sum(&rewards->total), rewards->total.count);
    metrics_add_mean(&metrics->accuracy, metrics_sum(&rewards->accuracy), accuracies);
    for (size_t i = 0; i < accuracies && i < count; i++)
        metrics_add_mean(&metrics->uncounted, answer_is_uncounted(group, i, rewards->accuracy.data[i]), 1);
    metrics_add_mean(&metrics->bonus, metrics_sum(&rewards->bonus), count);
    metrics_add_mean(&metrics->format, metrics_sum(&rewards->format), rewards->format.count);
    metrics_add_mean(&metrics->bonus_rate, 0, count);
    for (size_t i = 0; i < rewards->bonus.count; i++) metrics->bonus_rate.sum += rewards->bonus.data[i] > 0;
    if (rewards->total.count > 1) { // the unbiased standard deviation
        const double others = (double)(rewards->total.count - 1), mean = metrics_sum(&rewards->total) / (others + 1);
        double squares = 0;
        for (size_t i = 0; i < rewards->total.count; i++)
            squares += (rewards->total.data[i] - mean) * (rewards->total.data[i] - mean);
        metrics_add_mean(&metrics->reward_std, sqrt(squares / others), 1);
    }
    for (size_t i = 0; i < rewards->total.count && i < count; i++) {
        GROW(&metrics->rewards, metrics->reward_count);
        metrics->rewards[metrics->reward_count++] = rewards->total.data[i];
    }
    metrics_add_mean(&metrics->entropy, trained->entropy * (double)trained->tokens, (size_t)trained->tokens);
}

// ---- files ----

// Appends the record to the queue's file, after those that could not be written earlier. While the file cannot be
// written they stay in the queue, and the log says so once.
static void metrics_queue(struct append_queue *queue, const void *data, size_t size) {
    const bool failing = queue->failing;
    const status result = append_queue_add(queue, data, size);
    if (result == OK && failing)
        log_info("%s: can be written again; nothing is missing", queue->path);
    else if (result != OK && !failing)
        log_info("%s; training goes on, and the file is completed when there is room", fail_text());
}

void metrics_flush(struct optim *optim) {
    if (optim->metrics.waiting.size) metrics_queue(&optim->metrics, "", 0);
    if (optim->events.waiting.size) metrics_queue(&optim->events, "", 0);
}

status metrics_write(struct optim *optim, const struct step_metrics *metrics) {
    const double now = clock_realtime();
    const struct step_mean lengths = {(double)metrics->tokens, metrics->completions};
    const struct event_histogram histograms[] = {
        {"completion_lengths", metrics->lengths, (size_t)metrics->completions},
        {"rewards", metrics->rewards, metrics->reward_count},
    };
    // Every metric but step and time, by its name in metrics.jsonl. What no group has is not finite.
    const struct event_scalar list[] = {
        {"loss", metrics->loss},
        {"nll", metrics->nll},
        {"grad_norm", metrics->grad_norm},
        {"lr", metrics->lr},
        {"tokens", (double)metrics->tokens},
        {"reward", metrics_mean(&metrics->reward)},
        {"accuracy", metrics_mean(&metrics->accuracy)},
        {"format", metrics_mean(&metrics->format)},
        {"bonus", metrics_mean(&metrics->bonus)},
        {"kl", metrics->kl},
        {"reward_std", metrics_mean(&metrics->reward_std)},
        {"all_correct", metrics_mean(&metrics->all_correct)},
        {"all_wrong", metrics_mean(&metrics->all_wrong)},
        {"uncounted", metrics_mean(&metrics->uncounted)},
        {"bonus_rate", metrics_mean(&metrics->bonus_rate)},
        {"completion_length", metrics_mean(&lengths)},
        {"truncated", metrics_mean(&metrics->truncated)},
        {"entropy", metrics_mean(&metrics->entropy)},
        {"consistency", metrics_mean(&metrics->consistency)},
        {"consistent", metrics_mean(&metrics->consistent)},
        {"logprob_difference", metrics->logprob_diff_mean},
        {"logprob_difference_max", metrics->logprob_diff_max},
        {"age_mean", metrics->tokens ? metrics->ages / (double)metrics->tokens : 0},
        {"age_max", (double)metrics->age_max},
        {"groups", (double)metrics->groups},
        {"completions", (double)metrics->completions},
        {"prompt_tokens", (double)metrics->prompt_tokens},
        {"seconds", metrics->seconds},
        {"rank_wait", metrics->rank_wait},
        {"epoch", metrics->epoch},
    };
    const size_t count = sizeof list / sizeof *list;
    struct buf line = {0}, records = {0};
    buf_printf(&line, "{\"step\": %lld", (long long)metrics->step);
    for (size_t i = 0; i < count; i++) {
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
    metrics_queue(&optim->metrics, line.data, line.size);
    buf_release(&line);

    if (!optim->events.path) { // the one with the next number
        const char *out = optim->options->out;
        const size_t size = strlen(out) + sizeof "/" EVENTS_NAME + 20; // a number of 20 digits at most
        long long number, last = 0;
        DIR *dir = opendir(out);
        if (!dir) return fail(UNAVAILABLE, "%s: %s", out, strerror(errno));
        for (struct dirent *entry; (entry = readdir(dir));)
            if (sscanf(entry->d_name, EVENTS_NAME, &number) == 1 && number > last) last = number;
        closedir(dir);
        NEW(&optim->events.path, size);
        snprintf(optim->events.path, size, "%s/" EVENTS_NAME, out, last + 1);
        event_file_begin(&records, now, metrics->step);
    }
    event_file_step(&records, now, metrics->step, list, count, histograms, sizeof histograms / sizeof *histograms);
    metrics_queue(&optim->events, records.data, records.size);
    buf_release(&records);
    return OK;
}

status metrics_open(struct optim *optim, bool *exists) {
    struct arena arena = {0};
    struct buf old = {0}, kept = {0};
    status result = OK;
    const char *path = optim->metrics.path = mem_strdup(path_join(&arena, optim->options->out, metrics_name));
    *exists = path_exists(path);
    if (!*exists) goto done;
    TRY_TO(result, done, file_read(path, &old));
    for (size_t at = 0; at < old.size;) {
        const char *line = old.data + at, *newline = memchr(line, '\n', old.size - at);
        if (!newline) break; // a crash cut this line short
        size_t size = (size_t)(newline + 1 - line);
        struct json *object = NULL;
        int64_t number;
        const bool keep = json_parse_object(&object, &arena, line, size, metrics_name) == OK &&
                          json_int(json_at(object, "step"), &number) && number <= model_version(optim->model);
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
