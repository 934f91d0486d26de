// The command lines of a machine's stage processes: which replica gets which GPU.
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/wire/security.h"
#include "tools/processes.h"

// Returns the value of --device in a command line, "" for none.
static const char *device_of(const struct process *process) {
    static const char option[] = "--device=";
    for (char **word = process->argv; *word; word++)
        if (!strncmp(*word, option, strlen(option))) return *word + strlen(option);
    return "";
}

// Rollout's replicas on a machine (NULL: there is only one) must have these devices, with a space behind each.
static void check_devices(const char *options, const char *machine, const char *want) {
    char dir[] = "/tmp/caravan-processes-XXXXXX", wiring[64], text[1024], key[64];
    struct pipeline *pipeline;
    struct deployment deployment;
    struct processes processes;
    struct wire_security keys = {0};
    struct buf mistakes = {0}, got = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(wiring, sizeof wiring, "%s/wiring", dir);
    assert_int_equal(dir_make(wiring), OK);
    snprintf(key, sizeof key, "%s/key", dir);
    assert_int_equal(wire_key_make(&keys), OK);
    assert_int_equal(wire_key_write(&keys, key), OK);
    const char *const known = keys.public; // both machines have one key
    int size = snprintf(text, sizeof text,
                        "run: %s\nmodel: /\nstages:\n  - source: {data: /dev/null}\n  - frames: {}\n"
                        "  - rollout: {%s}\n  - refscore: {}\n  - reward: {}\n  - optim: {device: cpu}\n",
                        dir, options);
    if (machine)
        size += snprintf(
            text + size, sizeof text - (size_t)size,
            "machines:\n  a: {address: 127.0.0.1, key: '%s'}\n  b: {address: 127.0.0.1, port: 7000, key: '%s'}\n",
            known, known);
    if (pipeline_parse(&pipeline, "/p.yaml", text, (size_t)size, NULL, 0, &mistakes) != OK)
        assert_string_equal(mistakes.data, "");
    assert_int_equal(deployment_init(&deployment, pipeline, machine, key), OK);
    assert_int_equal(processes_init(&processes, &deployment), OK);
    for (size_t i = 0; i < processes.count; i++)
        if (!strcmp(processes.list[i].replica->stage->name, "rollout"))
            assert_int_equal(buf_printf(&got, "%s ", device_of(&processes.list[i])), OK);
    assert_string_equal(got.data, want);
    buf_release(&got);
    buf_release(&mistakes);
    processes_release(&processes);
    deployment_release(&deployment);
    pipeline_free(&pipeline);
    wire_security_release(&keys);
    assert_int_equal(dir_remove(dir), OK);
}

static void replicas_take_the_gpus_of_the_list(void **state) {
    (void)state;
    check_devices("replicas: 2", NULL, "  ");
    check_devices("replicas: 3, device: 'cuda:1'", NULL, "cuda:1 cuda:1 cuda:1 ");
    check_devices("replicas: 4, device: 'cuda:[0-3]'", NULL, "cuda:0 cuda:1 cuda:2 cuda:3 ");
    check_devices("replicas: 5, device: 'cuda:[4-5,7]'", NULL, "cuda:4 cuda:5 cuda:7 cuda:4 cuda:5 ");
    check_devices("replicas: 1, device: 'cuda:[2]'", NULL, "cuda:2 ");
}

static void each_machine_begins_anew(void **state) {
    (void)state;
    check_devices("replicas: 2, device: 'cuda:[0-2]', on: [a, b]", "a", "cuda:0 cuda:1 ");
    check_devices("replicas: 2, device: 'cuda:[0-2]', on: [a, b]", "b", "cuda:0 cuda:1 ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_take_the_gpus_of_the_list),
        cmocka_unit_test(each_machine_begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
