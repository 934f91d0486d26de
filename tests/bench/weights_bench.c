// Weights over a wire, without a model: one process publishes a file as optim does, another one downloads it as rollout
// does. See weights.sh.
//   weights_bench CONFIG serve FILE     until its client has gone
//   weights_bench CONFIG fetch DIR SIZE COUNT
//   weights_bench difference BASE FILE    how fast their difference is made and applied, and its size
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/stage/node.h"
#include "tests/bench/usage.h"

enum { HASH = 0x77 };

struct bench {
    struct node node; // the hooks' self
    bool gone;        // the client
};

static status bench_gone(void *self, struct wire_peer *peer) {
    struct bench *bench = self;
    (void)peer;
    bench->gone = true;
    return OK;
}

static const struct io_hooks bench_hooks = {
    .peers = {{.purpose = "weights", .clients = true, .gone = bench_gone}},
    .messages = {[MESSAGE_FETCH] = weights_publisher_fetch},
};

static status bench_serve(struct bench *bench, const char *path) {
    const struct stage_weights weights = {.version = 1, .hash = HASH, .path = path};
    TRY(weights_publish(bench->node.publisher, NULL, &weights));
    while (!bench->gone) TRY(io_thread_step(bench->node.io, 50));
    printf("%.3f\n", bench_processor_seconds());
    return OK;
}

static status bench_fetch(struct bench *bench, const char *dir, int64_t size, int count) {
    const struct wire_message message = {.policy = 1, .version = 1, .hash = HASH, .size = size, .path = "/published"};
    double seconds = 0;
    TRY(io_thread_connect(bench->node.io, "optim", "weights"));
    TRY(io_thread_start(bench->node.io));
    for (int i = 0; i <= count; i++) { // the first one also connects
        struct remote_weights remote;
        remote_weights_set(&remote, &message);
        const double begin = clock_monotonic();
        TRY(weights_fetch(bench->node.io, dir, true, &remote));
        if (i) seconds += clock_monotonic() - begin;
        (void)unlink(remote.local);
    }
    printf("%.3f %.3f\n", seconds / count, bench_processor_seconds());
    return OK;
}

static status bench_difference(const char *base_path, const char *path) {
    enum { REPEATS = 3 };
    static const atomic_bool never;
    const int base = open(base_path, O_RDONLY), file = open(path, O_RDONLY);
    const int difference = memfd_create("difference", 0), copy = memfd_create("copy", 0);
    struct stat whole, made;
    double seconds[3];
    if (base < 0 || file < 0 || difference < 0 || copy < 0 || fstat(file, &whole))
        return fail(DATAERR, "%s, %s: cannot be read", base_path, path);
    seconds[0] = bench_processor_seconds();
    for (int i = 0; i < REPEATS; i++) TRY(weights_difference_make(base, file, whole.st_size, &never, difference));
    seconds[1] = bench_processor_seconds();
    for (int i = 0; i < REPEATS; i++) {
        if (lseek(difference, 0, SEEK_SET)) return fail(UNAVAILABLE, "lseek");
        TRY(weights_difference_apply(difference, base, whole.st_size, copy));
    }
    seconds[2] = bench_processor_seconds();
    if (fstat(difference, &made)) return fail(UNAVAILABLE, "fstat");
    const double gigabytes = REPEATS * (double)whole.st_size / 1e9;
    printf("%lld %lld %.3f %.3f\n", (long long)whole.st_size, (long long)made.st_size,
           (seconds[1] - seconds[0]) / gigabytes, (seconds[2] - seconds[1]) / gigabytes);
    return OK;
}

static status bench_run(struct bench *bench, int argc, char **argv) {
    const bool serve = argc == 4 && !strcmp(argv[2], "serve"), fetch = argc == 6 && !strcmp(argv[2], "fetch");
    struct transport *transport;
    if (argc == 4 && !strcmp(argv[1], "difference")) return bench_difference(argv[2], argv[3]);
    if (!serve && !fetch)
        return fail(USAGE, "weights_bench CONFIG serve FILE | CONFIG fetch DIR SIZE COUNT | difference BASE FILE");
    TRY(node_config_read(&bench->node.config, argv[1]));
    if (serve) weights_publisher_new(&bench->node.publisher);
    TRY(zmq_transport_open(&transport, &bench->node.config.security));
    TRY(io_thread_open(&bench->node.io, &bench->node.config, &bench_hooks, bench, transport));
    return serve ? bench_serve(bench, argv[3]) : bench_fetch(bench, argv[3], atoll(argv[4]), atoi(argv[5]));
}

int main(int argc, char **argv) {
    struct bench bench = {0};
    const status result = bench_run(&bench, argc, argv);
    if (result != OK) log_info("%s", fail_text());
    io_thread_close(&bench.node.io);
    weights_publisher_free(&bench.node.publisher);
    buf_release(&bench.node.bulk);
    node_config_release(&bench.node.config);
    return result == OK ? 0 : 1;
}
