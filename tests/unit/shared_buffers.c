// Buffers that two processes share: the test exports them, and a child process, which opens the device for itself,
// imports them. On two of the emulator's devices, or on MODEL_DEVICE. An argument selects tests by a pattern: a process
// can start the other one only before it has opened a GPU itself.
#include "tests/unit/unit.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/ops.h"

enum { NUMBERS = 5000, DEVICES = 2 };

// Returns NULL after the last one.
static const char *device_of(int number) {
    static const char *const emulated[DEVICES] = {"emulated:0", "emulated:1"};
    const char *given = getenv("MODEL_DEVICE");
    return given ? (number == 0 ? given : NULL) : number < DEVICES ? emulated[number] : NULL;
}

// False where there is no emulator. MODEL_DEVICE must be there.
static bool opened(struct backend **out, const char *device) {
    status result = backend_open(out, &(struct backend_options){.device = device});
    if (result != OK) print_message("%s: %s\n", getenv("MODEL_DEVICE") ? "failed" : "left out", fail_text());
    assert_true(result == OK || (result == UNAVAILABLE && !getenv("MODEL_DEVICE")));
    return result == OK;
}

static struct tensor numbers(struct buffer *buffer) {
    return (struct tensor){buffer, 0, ELEMENT_I32, 1, NUMBERS, NUMBERS};
}

static bool fill(struct backend *backend, struct buffer *buffer, int first) {
    int32_t values[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) values[i] = first + i;
    return backend->ops->upload(backend, numbers(buffer), values, ELEMENT_I32) == OK &&
           backend->ops->wait(backend) == OK;
}

static bool holds(struct backend *backend, struct buffer *buffer, int first) {
    int32_t values[NUMBERS];
    if (backend->ops->download(backend, values, ELEMENT_I32, numbers(buffer)) != OK) return false;
    for (int i = 0; i < NUMBERS; i++)
        if (values[i] != first + i) return false;
    return true;
}

// The other process: gets handles, and after each says whether all was as expected.
struct other {
    pid_t process;
    int to, from;
};

// What the other process does with a handle.
typedef bool use(struct backend *backend, const unsigned char *handle);

static void other_run(struct other pipes, const char *device, use *const *uses, size_t count) {
    struct backend *backend = NULL;
    unsigned char handle[IPC_HANDLE_BYTES];
    if (backend_open(&backend, &(struct backend_options){.device = device}) != OK) _exit(1);
    for (size_t i = 0; i < count; i++) {
        if (read(pipes.from, handle, sizeof handle) != sizeof handle) _exit(2);
        bool right = uses[i](backend, handle);
        if (!right) fprintf(stderr, "other process, use %zu: %s\n", i, fail_text());
        if (write(pipes.to, &right, 1) != 1) _exit(3);
    }
    backend_close(&backend);
    _exit(0);
}

// Starts it before this process opens the device: a child cannot go on with a GPU of its parent.
static struct other other_start(const char *device, use *const *uses, size_t count) {
    int there[2], back[2];
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(back), 0);
    pid_t process = fork();
    if (process == 0) {
        close(there[1]);
        close(back[0]);
        other_run((struct other){.to = back[1], .from = there[0]}, device, uses, count);
    }
    close(there[0]);
    close(back[1]);
    return (struct other){process, there[1], back[0]};
}

static void other_give(const struct other *other, const unsigned char *handle) {
    bool right = false;
    assert_int_equal(write(other->to, handle, IPC_HANDLE_BYTES), IPC_HANDLE_BYTES);
    assert_int_equal(read(other->from, &right, 1), 1);
    assert_true(right);
}

static void other_end(const struct other *other) {
    int how = -1;
    close(other->to);
    assert_int_equal(waitpid(other->process, &how, 0), other->process);
    assert_int_equal(how, 0);
    close(other->from);
}

static status import(struct backend *backend, const unsigned char *handle, struct buffer **out) {
    return backend->ops->buffer_import(backend, handle, NUMBERS * sizeof(int32_t), out);
}

static bool reads_and_writes(struct backend *backend, const unsigned char *handle) {
    struct buffer *buffer;
    if (import(backend, handle, &buffer) != OK) return false;
    struct tensor longer = numbers(buffer);
    longer.columns = longer.stride = NUMBERS + 1;
    bool right = holds(backend, buffer, 100) && fill(backend, buffer, 700) &&
                 backend->ops->zero(backend, longer) == BUG && backend->ops->wait(backend) == OK;
    backend->ops->buffer_free(backend, &buffer);
    return right;
}

// One import outlives the other one of the same handle, with the operations that use it.
static bool imports_twice(struct backend *backend, const unsigned char *handle) {
    struct buffer *first, *second;
    if (import(backend, handle, &first) != OK || import(backend, handle, &second) != OK) return false;
    backend->ops->buffer_free(backend, &first);
    bool right = holds(backend, second, 200);
    int32_t zeros[NUMBERS] = {0};
    right &= backend->ops->upload(backend, numbers(second), zeros, ELEMENT_I32) == OK;
    backend->ops->buffer_free(backend, &second);
    return right;
}

static bool still_reads(struct backend *backend, const unsigned char *handle) {
    struct buffer *buffer;
    if (import(backend, handle, &buffer) != OK) return false;
    const bool right = holds(backend, buffer, 400);
    backend->ops->buffer_free(backend, &buffer);
    return right;
}

static bool is_another_size(struct backend *backend, const unsigned char *handle) {
    struct buffer *buffer;
    return backend->ops->buffer_import(backend, handle, 4, &buffer) == BUG && !buffer;
}

TEST(what_one_process_writes_the_other_reads) {
    use *const uses[] = {reads_and_writes, imports_twice, is_another_size, still_reads};
    const char *device;
    for (int d = 0; (device = device_of(d)); d++) {
        struct other other = other_start(device, uses, sizeof uses / sizeof *uses);
        struct backend *backend;
        struct buffer *buffer, *own;
        unsigned char handle[IPC_HANDLE_BYTES], again[IPC_HANDLE_BYTES];
        if (!opened(&backend, device)) {
            close(other.to);
            assert_int_equal(waitpid(other.process, NULL, 0), other.process);
            continue;
        }
        const struct operations *ops = backend->ops;
        assert_int_equal(ops->buffer_new(backend, NUMBERS * sizeof(int32_t), &buffer), OK);
        assert_true(fill(backend, buffer, 100));
        assert_int_equal(ops->buffer_export(backend, buffer, handle), OK);
        assert_true(holds(backend, buffer, 100));
        assert_int_equal(import(backend, handle, &own), UNAVAILABLE); // a process cannot import its own memory
        assert_null(own);
        other_give(&other, handle);
        assert_true(holds(backend, buffer, 700));
        assert_true(fill(backend, buffer, 200));
        assert_int_equal(ops->buffer_export(backend, buffer, again), OK);
        assert_memory_equal(again, handle, sizeof handle);
        other_give(&other, again);
        int32_t values[NUMBERS], zeros[NUMBERS] = {0};
        assert_int_equal(ops->download(backend, values, ELEMENT_I32, numbers(buffer)), OK);
        assert_memory_equal(values, zeros, sizeof zeros);
        other_give(&other, handle);
        assert_true(fill(backend, buffer, 400));
        ops->buffer_free(backend, &buffer);
        other_give(&other, handle); // the memory stays to the end of the process
        backend_close(&backend);
        other_end(&other);
    }
}

// The exporter is killed: its handle is refused, and what was imported stays as it was.
TEST(memory_of_a_killed_exporter_stays) {
    int ends[2];
    struct backend *backend;
    struct buffer *buffer, *none;
    unsigned char handle[IPC_HANDLE_BYTES];
    assert_int_equal(pipe(ends), 0);
    pid_t exporter = fork();
    if (exporter == 0) {
        bool right = backend_open(&backend, &(struct backend_options){.device = device_of(0)}) == OK &&
                     backend->ops->buffer_new(backend, NUMBERS * sizeof(int32_t), &buffer) == OK &&
                     fill(backend, buffer, 300) && backend->ops->buffer_export(backend, buffer, handle) == OK;
        if (right && write(ends[1], handle, sizeof handle) == sizeof handle) pause();
        _exit(1);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], handle, sizeof handle);
    if (opened(&backend, device_of(0))) {
        assert_int_equal(got, sizeof handle);
        assert_int_equal(import(backend, handle, &buffer), OK);
        kill(exporter, SIGKILL);
        assert_int_equal(waitpid(exporter, NULL, 0), exporter);
        assert_true(holds(backend, buffer, 300));
        backend->ops->buffer_free(backend, &buffer);
        assert_int_equal(import(backend, handle, &none), UNAVAILABLE);
        struct backend *another = NULL; // another device than that of the handle
        if (device_of(1)) {
            assert_true(opened(&another, device_of(1)));
            assert_int_equal(import(another, handle, &none), UNAVAILABLE);
            assert_non_null(strstr(fail_text(), "another device"));
            backend_close(&another);
        }
        backend_close(&backend);
    } else {
        assert_int_equal(waitpid(exporter, NULL, 0), exporter);
    }
    close(ends[0]);
}
