// The training of a consistency model on labelled pairs (CORA, arXiv 2606.14691): cross entropy, AdamW with betas 0.9
// and 0.98, epsilon 1e-6 and weight decay 0.01, gradients clipped to norm 1, a linear schedule.
#ifndef TOOLS_CONSISTENCY_CONSISTENCY_TRAINER_H
#define TOOLS_CONSISTENCY_CONSISTENCY_TRAINER_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "tools/consistency/consistency_training.h"

struct consistency_trainer_options {
    const char *data, *model, *out; // the pairs, the model that it starts from, the directory of the trained one
    const char *device, *precision; // NULL: the default
    int64_t epochs, pairs_per_step, seed, max_tokens, threads;
    double lr, held_out, threshold;
};

struct consistency_trainer;

// Reads the pairs and opens the model; says on standard error which pairs are left out or cut. The options must outlive
// the trainer. DATAERR names the file and what is wrong, also when no pair is left to train on; USAGE, UNAVAILABLE.
// Free with consistency_trainer_free.
status consistency_trainer_new(struct consistency_trainer **out, const struct consistency_trainer_options *options);

// NULL is fine; sets *trainer to NULL.
void consistency_trainer_free(struct consistency_trainer **trainer);

// Returns a hash of everything that the result depends on: the pairs, the model, the options.
uint64_t consistency_trainer_settings(const struct consistency_trainer *trainer);

// Takes the steps that are left after the newest state in the options' `out`, scores what is held out, and writes the
// model there; the last state stays. *trained = the number of pairs trained on. USAGE when `out` has another model or
// another training's state.
status consistency_trainer_run(struct consistency_trainer *trainer, size_t *trained, struct classification *figures);

#endif
