// Tokens in the order in which sampling keeps them: by logit from the highest, equal ones by number.
#ifndef TESTS_OPS_RANKED_H
#define TESTS_OPS_RANKED_H

#include <stdint.h>

struct ranked {
    double logit, weight; // the weight is the test's own
    int32_t token;
};

// For qsort.
static inline int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

#endif
