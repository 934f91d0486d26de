// What tests/bench/view.sh needs. `make` writes what a run of so many groups would have left: groups.lmdb, the ledger,
// metrics.jsonl, metrics.prom and events.jsonl, with 64 replicas and 10 groups a step, each group with 8 short
// completions; RUN/pipeline.yaml is there already. `ask` and `watch` are clients of a viewer.
#include <arpa/inet.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/store/group_store.h"
#include "shared/store/ledger.h"

enum { PER_STEP = 10, SAMPLES = 50000, AT_ONCE = 256, EVERY_QUARANTINED = 500 };

static const struct {
    const char *name;
    int replicas;
} bench_stages[] = {{"source", 1}, {"frames", 2}, {"rollout", 48}, {"refscore", 8}, {"reward", 4}, {"optim", 1}};
enum { STAGES = sizeof bench_stages / sizeof *bench_stages };

static double bench_issued(int64_t i) {
    return 1764000000 + (double)i / 30;
}

// Appends group i as JSON.
static void bench_print_group(struct buf *out, int64_t i) {
    buf_printf(out,
               "{\"v\":1,\"id\":\"e%lld-%06lld\",\"sample_id\":\"s%lld\",\"prompt\":{\"messages\":[],\"question\":"
               "\"Which colour has shape %lld?\",\"problem_type\":\"multiple choice\",\"solution\":"
               "\"<answer>B</answer>\"},\"requires\":{\"policy\":0,\"reference\":0,\"exact\":0,\"order\":%lld},",
               (long long)(i / SAMPLES), (long long)(i % SAMPLES), (long long)(i % SAMPLES), (long long)(i % SAMPLES),
               (long long)i);
    if (i % EVERY_QUARANTINED == 7) {
        buf_printf(out, "\"quarantine\":{\"stage\":\"frames\",\"reason\":\"clip %lld.mp4: cannot be decoded\"},",
                   (long long)i);
    } else {
        static const char *const lists[] = {"accuracy", "format", "bonus", "total"};
        const int right = (int)(i * 7919 % 9);
        buf_puts(out, "\"completions\":[");
        for (int k = 0; k < 8; k++)
            buf_printf(out, "%s{\"text\":\"<think>t</think><answer>%s</answer>\",\"finish\":\"eos\"}", k ? "," : "",
                       k < right ? "B" : "A");
        buf_puts(out, "],\"reference\":{\"version\":0,\"answer_logprob\":[");
        for (int k = 0; k < 8; k++) buf_printf(out, "%s-%d.5", k ? "," : "", k % 3);
        buf_puts(out, "]},\"rewards\":{");
        for (int list = 0; list < 4; list++) {
            buf_printf(out, "%s\"%s\":[", list ? "," : "", lists[list]);
            for (int k = 0; k < 8; k++) buf_printf(out, "%s%d", k ? "," : "", list == 1 || k < right);
            buf_puts(out, "]");
        }
        buf_printf(out, "},\"advantages\":[1,1,1,1,-1,-1,-1,-1],\"trained\":{\"step\":%lld},",
                   (long long)i / PER_STEP + 1);
    }
    buf_puts(out, "\"times\":{");
    double at = bench_issued(i);
    for (int k = 0; k < STAGES; k++) {
        const double seconds = k == 2 ? 1.5 : 0.01;
        buf_printf(out, "%s\"%s\":[%.4f,%.4f,%d]", k ? "," : "", bench_stages[k].name, at, at + seconds,
                   (int)(1 + i % bench_stages[k].replicas));
        at += seconds + 0.002;
    }
    buf_puts(out, "}}");
}

static status bench_write_groups(const char *run, int64_t count) {
    struct group_store *store = NULL;
    struct ledger *ledger = NULL;
    struct arena arena = {0};
    struct buf json = {0};
    const struct ledger_config config = {.data = 1, .groups_per_step = PER_STEP};
    struct group *groups[AT_ONCE] = {NULL};
    status result;
    TRY_TO(result, done, group_store_open(&store, path_join(&arena, run, "store"), false));
    TRY_TO(result, done, ledger_open(&ledger, path_join(&arena, run, "ledger.lmdb"), &config));
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        struct group_record records[AT_ONCE];
        size_t size = 0;
        for (int64_t i = first; i < count && i < first + AT_ONCE; i++) {
            buf_clear(&json);
            bench_print_group(&json, i);
            TRY_TO(result, done, group_from_json(&groups[size], json.data, json.size));
            const struct group *group = groups[size];
            const struct ledger_entry entry = {.seq = i,
                                               .state = group->quarantine.present ? LEDGER_QUARANTINED : LEDGER_TRAINED,
                                               .step = group->trained.present ? group->trained.step : -1,
                                               .id = group->id.data,
                                               .stage = group->quarantine.stage.data,
                                               .reason = group->quarantine.reason.data};
            TRY_TO(result, done, ledger_settle(ledger, &entry, NULL));
            records[size] = (struct group_record){.group = groups[size], .section = -1};
            size++;
        }
        result = group_store_save_all(store, records, size);
        for (size_t i = 0; i < size; i++) group_free(&groups[i]);
        if (result != OK) break;
    }
done:
    for (size_t i = 0; i < AT_ONCE; i++) group_free(&groups[i]);
    ledger_close(&ledger);
    group_store_close(&store);
    buf_release(&json);
    arena_release(&arena);
    return result;
}

static status bench_write_texts(const char *run, int64_t count) {
    static const char *const keys[] = {"groups",          "completions",     "loss",
                                       "reward",          "reward_std",      "accuracy",
                                       "format",          "bonus",           "length_reward",
                                       "all_correct",     "all_wrong",       "kl",
                                       "clip_fraction",   "grad_norm",       "lr",
                                       "entropy",         "advantage",       "completion_length",
                                       "longest",         "truncated",       "gap_mean",
                                       "gap_max",         "staleness",       "stale_share",
                                       "tokens",          "quarantined",     "seconds",
                                       "compute_seconds", "wait_seconds",    "publish_seconds",
                                       "likelihood_gap",  "named_but_wrong", "ratio_max",
                                       "surprise",        "group_seconds",   "memory"};
    struct arena arena = {0};
    struct buf text = {0};
    status result;
    for (int64_t step = 1; step <= count / PER_STEP; step++) {
        buf_printf(&text, "{\"step\": %lld, \"time\": %.3f, \"device\": \"cpu\"", (long long)step,
                   bench_issued(step * PER_STEP) + 2);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            buf_printf(&text, ", \"%s\": %.7g", keys[k],
                       k ? (double)(step * (int64_t)(k + 7) % 1009) / 1009 : PER_STEP);
        buf_puts(&text, "}\n");
    }
    TRY_TO(result, done, file_write_atomic(path_join(&arena, run, "metrics.jsonl"), text.data, text.size));
    buf_clear(&text);
    buf_printf(&text, "{\"time\": %.3f, \"kind\": \"started\", \"name\": null, \"text\": \"started\"}\n",
               bench_issued(0));
    for (int64_t i = 0; i < count; i += EVERY_QUARANTINED)
        buf_printf(
            &text,
            "{\"time\": %.3f, \"kind\": \"quarantined\", \"name\": \"frames\", \"text\": \"group %lld: cannot be "
            "decoded\"}\n",
            bench_issued(i), (long long)i);
    TRY_TO(result, done, file_write_atomic(path_join(&arena, run, "events.jsonl"), text.data, text.size));
    buf_clear(&text);
    buf_printf(&text, "caravan_trained_steps{run=\"r\"} %lld\n", (long long)(count / PER_STEP));
    buf_printf(&text, "caravan_groups{run=\"r\",state=\"trained\"} %lld\n", (long long)count);
    for (int k = 0; k < STAGES; k++)
        for (int i = 1; i <= bench_stages[k].replicas; i++) {
            static const char *const samples[] = {"uptime_seconds",     "restarts_total",      "done_groups_total",
                                                  "tokens_total",       "worked_groups_total", "work_seconds_total",
                                                  "busy_seconds_total", "held_groups",         "waiting_groups"};
            for (size_t s = 0; s < sizeof samples / sizeof *samples; s++)
                buf_printf(&text, "caravan_replica_%s{run=\"r\",stage=\"%s\",replica=\"%d\",machine=\"m\"} %d\n",
                           samples[s], bench_stages[k].name, i, 1000 - 100 * (int)s);
        }
    result = file_write_atomic(path_join(&arena, run, "metrics.prom"), text.data, text.size);
done:
    buf_release(&text);
    arena_release(&arena);
    return result;
}

// ---- asking ----

// A viewer that is asked.
struct bench_viewer {
    clockid_t clock; // of its processor time
    const char *port, *token;
};

static double bench_seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Sends a request; returns the connection.
static int bench_send(const struct bench_viewer *viewer, const char *path) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(viewer->port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address)) {
        perror("view_bench: connect");
        exit(69);
    }
    dprintf(fd, "GET %s HTTP/1.1\r\nHost: localhost:%s\r\nCookie: caravan-%s=%s\r\nConnection: close\r\n\r\n", path,
            viewer->port, viewer->port, viewer->token);
    return fd;
}

// Reads the whole answer, which must be a good one, into `out`.
static void bench_receive(int fd, const char *path, struct buf *out) {
    buf_clear(out);
    for (ssize_t size = 1; size > 0; out->size += (size_t)size) {
        buf_reserve(out, 1 << 16);
        size = read(fd, out->data + out->size, 1 << 16);
        if (size < 0) size = 0;
    }
    close(fd);
    if (out->size < 12 || memcmp(out->data + 9, "200", 3) != 0) {
        fprintf(stderr, "view_bench: %s: %.*s\n", path, (int)(out->size < 300 ? out->size : 300), out->data);
        exit(70);
    }
}

static int bench_compare(const void *a, const void *b) {
    const double one = *(const double *)a, two = *(const double *)b;
    return (one > two) - (one < two);
}

// Asks for a path: the median and the 99th percentile of `count` requests, each by itself, in seconds and in seconds of
// the viewer's processor; then how long the first answer took, and how long another request waited meanwhile at most.
static void bench_ask(const struct bench_viewer *viewer, const char *path, size_t count) {
    static const char other[] = "/api/groups?limit=0";
    struct buf answer = {0};
    double *seconds[2], blocked = 0; // by the clock and of the processor
    const double begin = bench_seconds(CLOCK_MONOTONIC);
    const int fd = bench_send(viewer, path);
    struct pollfd input = {.fd = fd, .events = POLLIN};
    do {
        const double sent = bench_seconds(CLOCK_MONOTONIC);
        bench_receive(bench_send(viewer, other), other, &answer);
        blocked = fmax(blocked, bench_seconds(CLOCK_MONOTONIC) - sent);
    } while (!poll(&input, 1, 0));
    bench_receive(fd, path, &answer);
    const double first = bench_seconds(CLOCK_MONOTONIC) - begin;
    const clockid_t clocks[2] = {CLOCK_MONOTONIC, viewer->clock};
    for (int k = 0; k < 2; k++) NEW(&seconds[k], count);
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < 2; k++) seconds[k][i] = -bench_seconds(clocks[k]);
        bench_receive(bench_send(viewer, path), path, &answer);
        for (int k = 0; k < 2; k++) seconds[k][i] += bench_seconds(clocks[k]);
    }
    printf("%-46s", path);
    for (int k = 0; k < 2; k++) {
        qsort(seconds[k], count, sizeof *seconds[k], bench_compare);
        printf(" %7.1f %7.1f", 1e3 * seconds[k][count / 2], 1e3 * seconds[k][(count - 1) * 99 / 100]);
        free(seconds[k]);
    }
    printf(" %7.1f %7.1f\n", 1e3 * first, 1e3 * blocked);
    fflush(stdout);
    buf_release(&answer);
}

// Asks what an overview asks that somebody looks at: how far the run is every 2 s, all curves and counts every 10 s.
static void bench_watch(const struct bench_viewer *viewer, int rounds) {
    static const char *const paths[] = {
        "/api/metrics?points=400",
        "/api/map?columns=400",
        "/api/quarantine",
        "/api/groups?limit=0&where=group.right%20%3D%200",
        "/api/groups?limit=0&where=group.std%20%3E%200.5",
        "/api/groups?limit=0&where=group.named%20%3E%200",
        "/api/groups?limit=0&where=group.truncated%20%3E%200",
        "/api/groups?limit=0&where=group.likelihood%20%3C%200.1",
        "/api/groups?limit=0&where=group.right%20%3E%200%20and%20group.right%20%3C%208",
    };
    struct buf answer = {0};
    double begin = 0, before = 0;
    long long seq = -1;
    for (int i = -1; i <= rounds; i++) { // round -1: the page is opened
        char path[64] = "/api/live";
        if (seq >= 0) snprintf(path, sizeof path, "/api/live?after=%lld", seq);
        bench_receive(bench_send(viewer, path), path, &answer);
        const char *found = strstr(answer.data, "\"seq\": ");
        seq = found ? strtoll(found + strlen("\"seq\": "), NULL, 10) : 0;
        for (size_t k = 0; k < sizeof paths / sizeof *paths && (i < 0 || i % 5 == 4); k++)
            bench_receive(bench_send(viewer, paths[k]), paths[k], &answer);
        if (i < 0) {
            begin = bench_seconds(CLOCK_MONOTONIC);
            before = bench_seconds(viewer->clock);
        }
        if (i < rounds) (void)poll(NULL, 0, 2000);
    }
    printf("a page that is looked at: %.2f %% of a core\n",
           100 * (bench_seconds(viewer->clock) - before) / (bench_seconds(CLOCK_MONOTONIC) - begin));
    buf_release(&answer);
}

int main(int argc, char **argv) {
    const bool makes = argc == 4 && !strcmp(argv[1], "make"), asks = argc > 6 && !strcmp(argv[1], "ask"),
               watches = argc == 6 && !strcmp(argv[1], "watch");
    struct bench_viewer viewer = {0};
    if (!makes && !asks && !watches) {
        fprintf(stderr, "view_bench make RUN GROUPS\nview_bench ask PID PORT TOKEN COUNT PATH...\n"
                        "view_bench watch PID PORT TOKEN ROUNDS\n");
        return 64;
    }
    if (makes) {
        const int64_t count = strtoll(argv[3], NULL, 10);
        status result = bench_write_groups(argv[2], count);
        if (result == OK) result = bench_write_texts(argv[2], count);
        if (result != OK) fprintf(stderr, "view_bench: %s\n", fail_text());
        return status_exit_code(result);
    }
    viewer.port = argv[3];
    viewer.token = argv[4];
    if (clock_getcpuclockid(atoi(argv[2]), &viewer.clock)) {
        fprintf(stderr, "view_bench: there is no process %s\n", argv[2]);
        return 69;
    }
    if (watches) {
        bench_watch(&viewer, atoi(argv[5]));
        return 0;
    }
    printf("%-46s %7s %7s %7s %7s %7s %7s\n", "milliseconds", "median", "99 %", "cpu", "99 %", "first", "others");
    for (int i = 6; i < argc; i++) bench_ask(&viewer, argv[i], (size_t)atoi(argv[5]));
    return 0;
}
