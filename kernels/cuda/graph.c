// Recorded sequences of operations: CUDA graphs, captured from the backend's stream.
//
// A graph keeps the addresses of the scratch memory that was there when it was recorded. So while there is a graph,
// scratch memory that is outgrown is not freed (cuda_scratch).
#include <stdlib.h>

#include "kernels/cuda/decode_batch.h"
#include "kernels/cuda/products.h"

struct graph {
    cudaGraphExec_t exec;
    struct decode_batch **steps; // of these batches, in order, that a launch computes
    size_t step_count;
};

static void graph_release(struct graph *graph) {
    if (graph->exec) (void)cudaGraphExecDestroy(graph->exec);
    free(graph->steps);
    free(graph);
}

status cuda_graph_begin(struct backend *backend) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(!cuda->recording);
    struct graph *graph;
    if (cuda->lt) gemm_bf16_load();
    NEW(&graph, 1);
    cudaError_t error = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) {
        graph_release(graph);
        return cuda_failed(error, "graph_begin");
    }
    cuda->recording = graph;
    return OK;
}

status graph_add_step(struct cuda_backend *cuda, struct decode_batch *batch) {
    struct graph *graph = cuda->recording;
    RESIZE(&graph->steps, graph->step_count + 1);
    graph->steps[graph->step_count++] = batch;
    return OK;
}

status cuda_graph_end(struct backend *backend, struct graph **out) {
    struct cuda_backend *cuda = cuda_of(backend);
    *out = NULL;
    CHECK(cuda->recording);
    struct graph *graph = cuda->recording;
    cuda->recording = NULL;
    cudaGraph_t captured = NULL;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &captured);
    if (error == cudaSuccess) error = cudaGraphInstantiateWithFlags(&graph->exec, captured, 0);
    if (captured) (void)cudaGraphDestroy(captured);
    if (error != cudaSuccess) {
        graph_release(graph);
        return cuda_failed(error, "graph_end");
    }
    cuda->graphs++;
    *out = graph;
    return OK;
}

status cuda_graph_launch(struct backend *backend, const struct graph *graph) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(!cuda->recording);
    CUDA_TRY(cudaGraphLaunch(graph->exec, cuda->stream));
    for (size_t i = 0; i < graph->step_count; i++) TRY(decode_batch_asked(cuda, cuda_decode_batch_of(graph->steps[i])));
    return OK;
}

void cuda_graph_free(struct backend *backend, struct graph **pointer) {
    if (!*pointer) return;
    struct cuda_backend *cuda = cuda_of(backend);
    (void)cudaStreamSynchronize(cuda->stream); // a launch may be under way
    graph_release(*pointer);
    *pointer = NULL;
    if (--cuda->graphs == 0) cuda_scratch_free_outgrown(cuda);
}
