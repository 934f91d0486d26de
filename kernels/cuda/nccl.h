// The part of NCCL that nccl.c uses, as NCCL 2.14 and later have it, so that building needs nothing of NCCL; and the
// emulator's NCCL has these functions (tests/emulate/nccl.cpp).
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>

enum {
    NCCL_SUCCESS = 0,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7
};
enum { NCCL_INT8 = 0 }; // a type of data

#define NCCL_CONFIG_MAGIC   0xcafebeefu // of struct nccl_config
#define NCCL_CONFIG_VERSION 21400u

struct nccl_id {
    char bytes[128];
};

// As of version 2.14, but for the last member, which follows in later ones: those have more, and take what is missing
// as not set.
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
    int not_set; // INT_MIN
};

struct ncclComm;

// X(type, name, parameters) for each function ncclNAME; an int is one of the results above.
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(int, GetVersion, (int *version))                                                                                 \
    X(int, GetUniqueId, (struct nccl_id * out))                                                                        \
    X(int, CommInitRankConfig,                                                                                         \
      (struct ncclComm * *out, int count, struct nccl_id id, int own, struct nccl_config *config))                     \
    X(int, CommGetAsyncError, (struct ncclComm * comm, int *error))                                                    \
    X(int, CommAbort, (struct ncclComm * comm))                                                                        \
    X(int, GroupStart, (void))                                                                                         \
    X(int, GroupEnd, (void))                                                                                           \
    X(int, Send, (const void *data, size_t count, int type, int rank, struct ncclComm *comm, cudaStream_t stream))     \
    X(int, Recv, (void *data, size_t count, int type, int rank, struct ncclComm *comm, cudaStream_t stream))           \
    X(const char *, GetErrorString, (int result))
