// The emulator itself: right kernels give right results on each of its devices, and each misuse is caught. Also the
// sums of tensor cores, against cases that were computed by hand.
#include "kernels/cuda/device.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#include "tests/emulate/emulate_internal.h"

extern "C" {
#include "tests/unit/unit.h"
}

enum { threads = 64, row = 16, devices = 4, natural = 0, late = 1, early = 2, sm_80 = 3 };

// ---- running a kernel ----

// A device's stream and `threads` numbers of its memory, which begin as 0.
struct machine {
    cudaStream_t stream;
    float *data;
    float results[threads];

    explicit machine(int device) {
        assert_int_equal(cudaSetDevice(device), cudaSuccess);
        assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        assert_int_equal(cudaMalloc((void **)&data, sizeof results), cudaSuccess);
        assert_int_equal(cudaMemsetAsync(data, 0, sizeof results, stream), cudaSuccess);
    }
    void download() {
        assert_int_equal(cudaGetLastError(), cudaSuccess);
        assert_int_equal(cudaMemcpyAsync(results, data, sizeof results, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    }
    ~machine() {
        cudaStreamDestroy(stream);
        cudaFree(data);
    }
};

static bool is_permuted(const float *results, int by) {
    for (int i = 0; i < threads; i++)
        if (results[i] != (float)(i ^ by)) return false;
    return true;
}

// Whether `work` ends a child process by a signal, or by a report of a sanitizer; *text = its messages.
static bool ends_badly(const std::function<void()> &work, char (&text)[4096]) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_set_report_path("stderr"); // what is reported here is wanted
#endif
        work();
        _exit(0);
    }
    close(ends[1]);
    size_t size = 0;
    for (ssize_t got; (got = read(ends[0], text + size, sizeof text - 1 - size)) > 0;) size += (size_t)got;
    text[size] = 0;
    close(ends[0]);
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFSIGNALED(how) || WEXITSTATUS(how) != 0;
}

// The kernel must be refused with a message that has `word` in it, on every device.
template <void (*kernel)(float *)> static void assert_misuse(const char *word, size_t shared_bytes) {
    for (int device = 0; device < devices; device++) {
        char text[4096];
        bool bad = ends_badly(
            [=] {
                struct machine m(device);
                LAUNCH(kernel, 2, threads, shared_bytes, m.stream, m.data);
                m.download();
            },
            text);
        if (bad && strstr(text, word)) continue;
        print_error("device %d: expected \"%s\", got: %s\n", device, word, text);
        assert_non_null(bad ? strstr(text, word) : nullptr);
    }
}

// ---- barriers ----

template <bool with_barrier> static void exchange_kernel(float *out) {
    auto *values = (float *)dynamic_shared();
    values[threadIdx.x] = (float)threadIdx.x;
    if (with_barrier) __syncthreads();
    out[threadIdx.x] = values[threadIdx.x ^ 33];
}

template <bool with_barrier> static bool exchange_works(int device) {
    struct machine m(device);
    LAUNCH(exchange_kernel<with_barrier>, 1, threads, sizeof(float) * threads, m.stream, m.data);
    m.download();
    return is_permuted(m.results, 33);
}

TEST(values_pass_a_barrier_and_only_a_barrier) {
    for (int device = 0; device < devices; device++) {
        assert_true(exchange_works<true>(device));
        assert_false(exchange_works<false>(device));
    }
}

// Values are read before the barrier that the second writes are behind. In natural order this is never seen.
template <bool with_barrier> static void overwrite_kernel(float *out) {
    auto *values = (float *)dynamic_shared();
    values[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    float value = values[threadIdx.x / 32 * 32];
    if (with_barrier) __syncthreads();
    values[threadIdx.x] = -1;
    out[threadIdx.x] = value;
}

template <bool with_barrier> static bool overwrite_works(int device) {
    bool works = true;
    for (int i = 0; i < 3; i++) {
        struct machine m(device);
        LAUNCH(overwrite_kernel<with_barrier>, 1, threads, sizeof(float) * threads, m.stream, m.data);
        m.download();
        for (int t = 0; t < threads; t++) works = works && m.results[t] == (float)(t / 32 * 32);
    }
    return works;
}

TEST(a_missing_barrier_before_an_overwrite_is_found) {
    for (int device = 0; device < devices; device++) assert_true(overwrite_works<true>(device));
    assert_false(overwrite_works<false>(late));
    assert_false(overwrite_works<false>(early));
}

static void divergent_kernel(float *out) {
    if (threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = 1;
}

static void two_barriers_kernel(float *out) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

static void waiting_kernel(float *out) {
    if (threadIdx.x < 32) __syncthreads();
    sync_warp();
    if (threadIdx.x >= 32) {
        sync_warp();
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

static void returning_kernel(float *out) {
    if (threadIdx.x == 5) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

TEST(threads_that_diverge_at_a_barrier_are_found) {
    assert_misuse<divergent_kernel>("barrier", 0);
    assert_misuse<two_barriers_kernel>("a barrier that is not the one where others wait", 0);
    assert_misuse<waiting_kernel>("emulator.cpp", 0);
    assert_misuse<returning_kernel>("barrier", 0);
}

// ---- collectives ----

static void shuffle_kernel(float *out) {
    float value = (float)threadIdx.x;
    float sum = shuffle_xor(value, 3) + shuffle(value, 31);
    uint32_t odd = ballot(threadIdx.x % 2 == 1);
    out[threadIdx.x] = sum + (odd == 0xaaaaaaaa ? 0.5f : 0);
}

TEST(a_shuffle_reads_the_lane_that_it_names) {
    for (int device = 0; device < devices; device++) {
        struct machine m(device);
        LAUNCH(shuffle_kernel, 1, threads, 0, m.stream, m.data);
        m.download();
        for (int t = 0; t < threads; t++) assert_true(m.results[t] == (float)((t ^ 3) + (t | 31)) + 0.5f);
    }
}

static void wrong_lane_kernel(float *out) {
    out[threadIdx.x] = shuffle(1.0f, (int)threadIdx.x % 32 + 1);
}

static void wrong_xor_kernel(float *out) {
    out[threadIdx.x] = shuffle_xor(1.0f, 32);
}

static void half_warp_kernel(float *out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = shuffle_xor(1.0f, 1);
}

static void two_shuffles_kernel(float *out) {
    if (threadIdx.x % 2)
        out[threadIdx.x] = shuffle_xor(1.0f, 1);
    else
        out[threadIdx.x] = shuffle_xor(2.0f, 1);
}

TEST(a_wrong_collective_is_found) {
    assert_misuse<wrong_lane_kernel>("a shuffle from lane 32", 0);
    assert_misuse<wrong_xor_kernel>("a shuffle_xor by 32", 0);
    assert_misuse<half_warp_kernel>("collective", 0);
    assert_misuse<two_shuffles_kernel>("a collective that is not the one where other lanes wait", 0);
}

// ---- asynchronous copies ----

// Each thread copies a row of 16 bytes, then another one. groups_left 0 is right for the second.
template <int groups_left> static void copying_kernel(float *out) {
    char *rows = dynamic_shared() + 2 * row * threadIdx.x;
    cp_async16(rows, out + threadIdx.x / 4 * 4, 16);
    cp_async_commit();
    cp_async16(rows + row, out + threadIdx.x / 4 * 4, 4 * (threadIdx.x % 4));
    cp_async_commit();
    cp_async_wait<groups_left>();
    float first = ((const float *)rows)[threadIdx.x % 4], second = ((const float *)(rows + row))[0];
    cp_async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = first + second;
}

template <int groups_left> static bool copying_works(int device) {
    struct machine m(device);
    for (int t = 0; t < threads; t++) m.results[t] = (float)(t + 1);
    cudaMemcpyAsync(m.data, m.results, sizeof m.results, cudaMemcpyHostToDevice, m.stream);
    LAUNCH(copying_kernel<groups_left>, 1, threads, 2 * row * threads, m.stream, m.data);
    m.download();
    for (int t = 0; t < threads; t++) {
        float second = t % 4 ? (float)(t / 4 * 4 + 1) : 0; // 0 bytes are copied: zeros
        if (!(m.results[t] == (float)(t + 1) + second)) return false;
    }
    return true;
}

// Each thread copies two numbers to the first half of a row, and one or none to the second half.
static void small_copies_kernel(float *out) {
    char *to = dynamic_shared() + row * threadIdx.x;
    cp_async8(to, out + threadIdx.x / 2 * 2, 8);
    cp_async8(to + 8, out + threadIdx.x / 2 * 2, 4 * (threadIdx.x % 2));
    cp_async_commit();
    cp_async_wait<0>();
    const float *copied = (const float *)to;
    float sum = copied[0] + 100 * copied[1] + 10000 * copied[2] + 1e6f * copied[3];
    __syncthreads();
    out[threadIdx.x] = sum;
}

TEST(small_asynchronous_copies_arrive) {
    for (int device = 0; device < devices; device++) {
        struct machine m(device);
        for (int t = 0; t < threads; t++) m.results[t] = (float)(t + 1);
        cudaMemcpyAsync(m.data, m.results, sizeof m.results, cudaMemcpyHostToDevice, m.stream);
        LAUNCH(small_copies_kernel, 1, threads, row * threads, m.stream, m.data);
        m.download();
        for (int t = 0; t < threads; t++) {
            int first = t / 2 * 2 + 1;
            assert_true(m.results[t] == (float)(first + 100 * (first + 1) + (t % 2 ? 10000 * first : 0)));
        }
    }
}

TEST(an_asynchronous_copy_that_is_not_waited_for_is_found) {
    for (int device = 0; device < devices; device++) assert_true(copying_works<0>(device));
    assert_false(copying_works<1>(natural));
    assert_false(copying_works<1>(late));
    assert_true(copying_works<1>(early)); // the copy may be there in time, which is why it is tested late
}

static void forgotten_copy_kernel(float *out) {
    cp_async16(dynamic_shared() + row * threadIdx.x, out, 16);
    cp_async_commit();
}

static void unaligned_copy_kernel(float *out) {
    cp_async16(dynamic_shared() + row * threadIdx.x, out + 1, 16);
    cp_async_commit();
    cp_async_wait<0>();
}

static void good_copy_kernel(float *out) {
    cp_async16(dynamic_shared() + row * threadIdx.x, out, 16);
    cp_async_commit();
    cp_async_wait<0>();
}

static void unaligned_small_copy_kernel(float *out) {
    cp_async8(dynamic_shared() + row * threadIdx.x, out + 1, 8);
    cp_async_commit();
    cp_async_wait<0>();
}

TEST(a_wrong_asynchronous_copy_is_found) {
    assert_misuse<forgotten_copy_kernel>("before its asynchronous copies are waited for", row * threads);
    assert_misuse<unaligned_copy_kernel>("no multiple of 16", row * threads);
    assert_misuse<unaligned_small_copy_kernel>("no multiple of 8", row * threads);
    assert_misuse<good_copy_kernel>("of shared memory", row * (threads - 1));
}

// ---- shared memory ----

static void stale_kernel(float *out) {
    auto *values = (float *)dynamic_shared();
    out[threadIdx.x] = std::isnan(values[threadIdx.x]) ? 1 : 0;
    values[threadIdx.x] = 3;
}

static void storing_kernel(float *out) {
    auto *values = (float *)dynamic_shared(); // a row for each thread
    values[threadIdx.x * 4] = 1;
    out[threadIdx.x] = values[threadIdx.x * 4];
}

static void unaligned_matrix_kernel(float *out) {
    uint32_t words[4];
    ldmatrix_x4<false>(words, dynamic_shared() + 2 * (threadIdx.x % 32));
    out[threadIdx.x] = (float)words[0];
}

TEST(shared_memory_begins_with_what_a_block_before_left) {
    for (int device = 0; device < devices; device++) {
        struct machine m(device);
        LAUNCH(stale_kernel, 2, threads, threads * sizeof(float), m.stream, m.data);
        m.download();
        for (int t = 0; t < threads; t++) assert_true(m.results[t] == 1); // the second block's is poisoned again
        LAUNCH(storing_kernel, 1, threads, threads * row, m.stream, m.data);
        m.download();
        char text[4096];
        assert_true(ends_badly(
            [&] {
                LAUNCH(storing_kernel, 1, threads, (threads - 1) * row, m.stream, m.data);
                m.download();
            },
            text));
    }
    assert_misuse<unaligned_matrix_kernel>("a row of ldmatrix", threads * row);
}

// ---- tensor cores ----

// The sum of c and the products a[i] * b[i], as a tensor core of sm_90 or sm_80 adds them.
struct products {
    uint16_t a[16], b[16][8];
    int count;

    products() : a(), b(), count(0) {
    }
    // Adds `times` products x * y. Both must be bfloat16 numbers.
    struct products &add(int times, float x, float y) {
        for (int i = 0; i < times; i++, count++) {
            assert_true(f32_from_bf16(bf16_from_f32(x)) == x && f32_from_bf16(bf16_from_f32(y)) == y);
            a[count] = bf16_from_f32(x).bits;
            for (int j = 0; j < 8; j++) b[count][j] = bf16_from_f32(y).bits;
        }
        return *this;
    }
    float sum(int device, float c) const {
        float sums[8] = {c, c, c, c, c, c, c, c};
        emulate::add_products(&sums, &a, 1, b, device == sm_80 ? 8 : 16, device == sm_80 ? 24 : 25);
        for (int j = 1; j < 8; j++) assert_memory_equal(&sums[j], &sums[0], sizeof sums[0]);
        return sums[0];
    }
};

TEST(tensor_cores_sum_as_hardware_does) {
    // Plain sums.
    assert_true(products().add(3, 2, 0.5f).add(1, -4, 4).sum(natural, 10) == -3);
    assert_true(products().sum(natural, 1.5f) == 1.5f);
    assert_true(products().add(16, 255, 255).sum(natural, 0) == 16.0f * 255 * 255);
    assert_true(products().add(1, 1, 1).add(1, -1, 1).sum(natural, 0) == 0);
    // Beside 1, sm_90 keeps 25 fractional bits of each term and sm_80 keeps 24.
    assert_true(products().add(8, 0x1p-13f, 0x1p-12f).sum(natural, 1) == 1 + 0x1p-22f);
    assert_true(products().add(8, 0x1p-13f, 0x1p-12f).sum(sm_80, 1) == 1);
    assert_true(products().add(8, 0x1p-12f, 0x1p-12f).sum(sm_80, 1) == 1 + 0x1p-21f);
    assert_true(products().add(16, 0x1p-13f, 0x1p-13f).sum(natural, 1) == 1);
    // Terms are cut towards zero, and so is the sum: to nearest these would be 1 + 2^-23 and -1 - 2^-23.
    assert_true(products().add(1, 0x1p-12f, 0x1p-12f).add(1, 0x1p-13f, 0x1p-12f).sum(natural, 1) == 1);
    assert_true(products().add(1, -0x1p-12f, 0x1p-12f).add(1, -0x1p-13f, 0x1p-12f).sum(natural, -1) == -1);
    assert_true(products().add(8, -0x1p-13f, 0x1p-13f).sum(natural, -1) == -1);
    // The exponent of 1.5 * 1.5 is 0, that of 1 * 1, though the product is above 2: 2^-25 is kept.
    assert_true(products().add(1, 1.5f, 1.5f).add(8, 0x1p-13f, 0x1p-12f).sum(natural, 0) == 2.25f + 0x1p-22f);
    // sm_90 adds all 16 products at once; sm_80 has lost the large ones before it adds the last 8.
    auto order = products().add(1, 1024, 1024).add(1, -1024, 1024).add(6, 0, 0).add(1, 0x1p-8f, 0x1p-7f);
    assert_true(order.sum(natural, 0) == 0);
    assert_true(order.sum(sm_80, 0) == 0x1p-15f);
    // Numbers below the normal ones are not taken for zero.
    assert_true(products().add(1, 0x1p-130f, 0x1p100f).sum(natural, 0) == 0x1p-30f);
    assert_true(products().add(1, 0, 0).sum(natural, 0x1p-140f) == 0x1p-140f);
    // What is not finite.
    assert_true(std::isinf(products().add(1, INFINITY, 2).sum(natural, 1)));
    assert_true(std::isnan(products().add(1, INFINITY, 0).sum(natural, 1)));
    assert_true(std::isnan(products().add(1, 1, 1).sum(natural, NAN)));
}

// c[16,8] = a[16,16] b[16,8], with a from ldmatrix; b holds columns as rows, so that they are loaded without
// `transpose`.
static void matrix_kernel(float *out, const uint16_t *a, const uint16_t *b) {
    auto *rows = (uint16_t *)dynamic_shared();
    for (unsigned i = threadIdx.x; i < 256; i += 32) rows[i] = a[i];
    for (unsigned i = threadIdx.x; i < 128; i += 32) rows[256 + i] = b[i];
    __syncthreads();
    int lane = lane_id();
    uint32_t left[4], right[4];
    float c[4] = {};
    ldmatrix_x4<false>(left, rows + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4<false>(right, rows + 256 + lane % 8 * 16 + lane / 8 % 2 * 8);
    mma_bf16(c, left, right);
    for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2] = c[i];
}

TEST(matrices_of_tensor_cores_have_their_layout) {
    uint16_t operands[384];
    for (int i = 0; i < 384; i++) operands[i] = bf16_from_f32((float)((i * 37 + i / 16) % 23 - 11)).bits;
    for (int device = 0; device < devices; device++) {
        struct machine m(device);
        float got[128], *out;
        uint16_t *in;
        assert_int_equal(cudaMalloc((void **)&out, sizeof got), cudaSuccess);
        assert_int_equal(cudaMalloc((void **)&in, sizeof operands), cudaSuccess);
        cudaMemcpyAsync(in, operands, sizeof operands, cudaMemcpyHostToDevice, m.stream);
        LAUNCH(matrix_kernel, 1, 32, 768, m.stream, out, in, in + 256);
        cudaMemcpyAsync(got, out, sizeof got, cudaMemcpyDeviceToHost, m.stream);
        for (int i = 0; i < 128; i++) {
            float want = 0;
            for (int k = 0; k < 16; k++)
                want += f32_from_bf16({operands[i / 8 * 16 + k]}) * f32_from_bf16({operands[256 + i % 8 * 16 + k]});
            assert_true(got[i] == want);
        }
        cudaFree(out);
        cudaFree(in);
    }
}

// ---- the runtime ----

static void add_kernel(float *out, float value) {
    out[threadIdx.x] += value;
}

// Pinned memory that is changed before the copy is waited for: on a device with late streams the change arrives.
TEST(a_stream_may_run_late) {
    for (int device = 0; device < devices; device++) {
        struct machine m(device);
        float *pinned;
        assert_int_equal(cudaMallocHost((void **)&pinned, sizeof m.results), cudaSuccess);
        for (int t = 0; t < threads; t++) pinned[t] = 1;
        cudaMemcpyAsync(m.data, pinned, sizeof m.results, cudaMemcpyHostToDevice, m.stream);
        for (int t = 0; t < threads; t++) pinned[t] = 2;
        m.download();
        assert_true(m.results[7] == (device == late || device == early ? 2 : 1));
        cudaFreeHost(pinned);
    }
}

TEST(an_event_is_reached_with_what_was_before_it) {
    for (int device = 0; device < devices; device++) {
        struct machine m(device);
        float *pinned;
        cudaEvent_t event;
        cudaMallocHost((void **)&pinned, sizeof m.results);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        assert_int_equal(cudaEventSynchronize(event), cudaSuccess); // never recorded
        LAUNCH(add_kernel, 1, threads, 0, m.stream, m.data, 2.0f);
        cudaMemcpyAsync(pinned, m.data, sizeof m.results, cudaMemcpyDeviceToHost, m.stream);
        cudaEventRecord(event, m.stream);
        LAUNCH(add_kernel, 1, threads, 0, m.stream, m.data, 1.0f);
        cudaEventSynchronize(event);
        assert_true(pinned[5] == 2);
        cudaEventDestroy(event);
        cudaFreeHost(pinned);
    }
}

// Kernels, copies and memsets of a stream are recorded, and run whenever the graph is launched.
TEST(a_graph_runs_what_was_recorded) {
    for (int device = 0; device < devices; device++) {
        struct machine m(device);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        float value = 1, *zeroed, *pinned;
        assert_int_equal(cudaMalloc((void **)&zeroed, sizeof m.results), cudaSuccess);
        assert_int_equal(cudaMallocHost((void **)&pinned, sizeof m.results), cudaSuccess);
        assert_int_equal(cudaStreamBeginCapture(m.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        LAUNCH(add_kernel, 1, threads, 0, m.stream, m.data, value);
        value = 100; // the argument has been copied
        assert_int_equal(cudaMemsetAsync(zeroed, 0, sizeof m.results, m.stream), cudaSuccess);
        LAUNCH(add_kernel, 1, threads, 0, m.stream, zeroed, 7.0f);
        assert_int_equal(cudaMemcpyAsync(pinned, m.data, sizeof m.results, cudaMemcpyDeviceToHost, m.stream),
                         cudaSuccess);
        assert_int_equal(cudaStreamEndCapture(m.stream, &graph), cudaSuccess);
        assert_int_equal(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
        cudaGraphDestroy(graph);
        m.download();
        assert_true(m.results[5] == 0); // it was recorded only
        for (int i = 1; i <= 3; i++) {
            assert_int_equal(cudaGraphLaunch(exec, m.stream), cudaSuccess);
            assert_int_equal(cudaStreamSynchronize(m.stream), cudaSuccess);
            assert_true(pinned[5] == (float)i);
            assert_int_equal(cudaMemcpyAsync(m.results, zeroed, sizeof m.results, cudaMemcpyDeviceToHost, m.stream),
                             cudaSuccess);
            assert_true(m.results[5] == 7);
        }
        cudaGraphExecDestroy(exec);
        cudaFree(zeroed);
        cudaFreeHost(pinned);
    }
}

// Each of them is refused while a stream is recorded, and what was recorded is lost.
TEST(what_no_graph_can_have_is_refused) {
    struct machine m(late);
    float *memory, *refused;
    cudaEvent_t event;
    assert_int_equal(cudaMalloc((void **)&memory, 4), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    const std::function<cudaError_t()> calls[] = {
        [&] { return cudaMalloc((void **)&refused, 4); }, [&] { return cudaFree(memory); },
        [&] { return cudaStreamSynchronize(m.stream); },  [&] { return cudaEventRecord(event, m.stream); },
        [&] { return cudaEventSynchronize(event); },      [&] { return cudaStreamWaitEvent(m.stream, event, 0); },
    };
    for (const auto &call : calls) {
        cudaGraph_t graph;
        assert_int_equal(cudaStreamBeginCapture(m.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        assert_int_equal(call(), cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
        LAUNCH(add_kernel, 1, threads, 0, m.stream, m.data, 1.0f);
        assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(m.stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    }
    LAUNCH(add_kernel, 1, threads, 0, m.stream, m.data, 1.0f); // the stream works again
    m.download();
    assert_true(m.results[5] == 1);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

// Memory of another process may be used to its end, and is closed, not freed.
TEST(imported_memory_is_used_to_its_end_and_closed) {
    int ends[2];
    cudaIpcMemHandle_t handle;
    assert_int_equal(pipe(ends), 0);
    pid_t exporter = fork();
    if (exporter == 0) {
        struct machine other(natural);
        bool exported = cudaIpcGetMemHandle(&handle, other.data + 1) == cudaErrorInvalidValue &&
                        cudaIpcGetMemHandle(&handle, other.data) == cudaSuccess;
        if (exported && write(ends[1], &handle, sizeof handle) == sizeof handle) pause();
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &handle, sizeof handle), sizeof handle);
    close(ends[0]);
    {
        struct machine m(natural);
        void *data, *again;
        assert_int_equal(cudaIpcOpenMemHandle(&data, handle, 0), cudaErrorInvalidValue);
        assert_int_equal(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess), cudaSuccess);
        assert_int_equal(cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess), cudaSuccess);
        assert_ptr_equal(again, data);
        assert_int_equal(cudaIpcCloseMemHandle(again), cudaSuccess);
        float *results = m.results;
        cudaMemcpyAsync(results, data, sizeof m.results, cudaMemcpyDeviceToHost, m.stream);
        for (int t = 0; t < threads; t++) assert_true(results[t] == 0);
        char text[4096];
        auto beyond = [&] { cudaMemsetAsync(data, 0, sizeof m.results + 1, m.stream); };
        assert_true(ends_badly(beyond, text));
        assert_non_null(strstr(text, "not the device's memory"));
        assert_true(ends_badly([&] { cudaFree(data); }, text));
        assert_non_null(strstr(text, "freed what was not allocated"));
        auto outside = [&] { static_cast<char *>(data)[4096] = 1; };
        assert_true(ends_badly(outside, text));
        assert_int_equal(cudaIpcCloseMemHandle(data), cudaSuccess);
        assert_int_equal(cudaIpcCloseMemHandle(data), cudaErrorInvalidValue);
        (void)cudaGetLastError();
    }
    kill(exporter, SIGKILL);
    assert_int_equal(waitpid(exporter, nullptr, 0), exporter);
}

TEST(an_impossible_launch_is_refused) {
    struct machine m(sm_80);
    LAUNCH(add_kernel, 1, 2048, 0, m.stream, m.data, 1.0f);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(add_kernel, 0, 32, 0, m.stream, m.data, 1.0f);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(add_kernel, 1, 32, 164 << 10, m.stream, m.data, 1.0f);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    char text[4096];
    assert_true(ends_badly([&] { cudaMemcpyAsync(m.results, m.results, 4, cudaMemcpyHostToDevice, m.stream); }, text));
    assert_non_null(strstr(text, "not the device's memory"));
}
