// The first values of what a checkpoint lacks, as transformers draws them.
#ifndef SHARED_MODEL_CLASSIFIER_FRESH_H
#define SHARED_MODEL_CLASSIFIER_FRESH_H

#include "shared/model/modernbert/classifier_internal.h"

// Sets classifier.weight to numbers from N(0, C^-1/2), with PART_HEAD also head.dense.weight to those from
// N(0, 0.02 / sqrt(2 L)), all cut at two standard deviations, and head.norm.weight to 1. Biases stay 0. Each number is
// a function of the seed, the tensor's name and the index.
status classifier_fill_fresh(struct classifier *classifier, enum classifier_part fresh, uint64_t seed);

#endif
