// Loops over ranges, shared among the threads of the pool.
#include <assert.h>
#include <limits.h>

#include "kernels/cpu/cpu.h"

struct parallel_job {
    int64_t count, block;
    void (*work)(void *context, int64_t first, int64_t end, int thread);
    void *context;
};

static void parallel_task(void *context, int task, int thread) {
    const struct parallel_job *job = context;
    int64_t first = task * job->block;
    int64_t end = first + job->block < job->count ? first + job->block : job->count;
    job->work(job->context, first, end, thread);
}

void parallel_for(struct cpu_backend *cpu, int64_t count, int64_t block,
                  void (*work)(void *context, int64_t first, int64_t end, int thread), void *context) {
    if (count <= 0) return;
    if (block < 1) block = 1;
    struct parallel_job job = {.count = count, .block = block, .work = work, .context = context};
    int64_t tasks = (count + block - 1) / block;
    assert(tasks <= INT_MAX);
    pool_run(cpu->pool, (int)tasks, parallel_task, &job);
}
