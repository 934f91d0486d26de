// What a caller says about one step of AdamW.
#ifndef SHARED_MODEL_OPTIMIZER_OPTIONS_H
#define SHARED_MODEL_OPTIMIZER_OPTIONS_H

struct optimizer_options {
    double lr, beta1, beta2, eps, weight_decay;
    double max_grad_norm; // 0: off
};

#endif
