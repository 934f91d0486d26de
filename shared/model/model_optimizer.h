// AdamW over the parameters of a table: gradients, both moments, step counts. A failure is the backend's.
#ifndef SHARED_MODEL_MODEL_OPTIMIZER_H
#define SHARED_MODEL_MODEL_OPTIMIZER_H

#include "shared/model/param_array.h"

// What a caller says about one step of AdamW.
struct optimizer_options {
    double lr, beta1, beta2, eps, weight_decay;
    double max_grad_norm; // 0: off
};

struct optimizer {
    struct backend *backend;
    const struct parameter_table *table;
    struct param_array grads, exp_avg, exp_avg_sq; // of the trained ranges; those of vectors are float32
    int64_t steps[MAX_PARAM_GROUPS];               // of each group; every step is one of group 0
};

// Makes zeros for the first `ranges` ranges of the table, with gradients and moments of matrices in these types. The
// caller calls optimizer_release, also after a failure. UNAVAILABLE when memory is short.
status optimizer_init(struct optimizer *optimizer, struct backend *backend, const struct parameter_table *table,
                      int ranges, enum element grads, enum element moments);

// Frees the arrays. A zeroed struct is fine.
void optimizer_release(struct optimizer *optimizer);

// *norm = the norm of all gradients. DATAERR if it is not finite.
status optimizer_norm(struct optimizer *optimizer, double *norm);

// One step of the first `groups` groups, with the gradients scaled by max_grad_norm / norm if that is below 1; then
// zeroes all gradients. A group without gradient keeps its weights, moments and step count, as in PyTorch.
// `remainders`: a zeroed struct unless the weights are pairs.
status optimizer_step(struct optimizer *optimizer, const struct param_array *values,
                      const struct param_array *remainders, int groups, const struct optimizer_options *options,
                      double norm);

#endif
