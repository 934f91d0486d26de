// The training methods: what each adds to the reward, which KL term its loss has, and what its reference is. The reward
// stage computes by this table, and a pipeline's other stages are set and checked by it.
#pragma once

// What is added to the rewards for accuracy, format and length.
enum method_bonus {
    BONUS_NONE,
    BONUS_LIKELY,      // for answers that are likelier under the reference than the mean of the accurate ones
    BONUS_LIKELIHOOD,  // in proportion to the answer's likelihood under the reference
    BONUS_GENERATED,   // for the accuracy of the answer that the reference writes after the same reasoning
    BONUS_CONSISTENCY, // the consistency model's probability, normalised on its own
};

enum method_kl {
    METHOD_KL_NONE,
    METHOD_KL_OPTIONAL, // if optim's `kl` is above 0
    METHOD_KL_ALL,
    METHOD_KL_ACCURATE,       // on accurate completions only
    METHOD_KL_ACCURATE_PARTS, // the same, with separate means over thinking and answer
};

enum method_reference {
    METHOD_REFERENCE_NONE, // it needs none
    METHOD_REFERENCE_FROZEN,
    METHOD_REFERENCE_EMA,
};

struct method {
    const char *name;
    enum method_bonus bonus;
    enum method_kl kl;
    enum method_reference reference;
};

// Indexes of methods[], in the order of METHOD_NAMES.
enum method_id {
    METHOD_CARE,
    METHOD_GRPO,
    METHOD_NOKL,
    METHOD_DENSECONS,
    METHOD_KL_EMA,
    METHOD_KL_EMA_HA,
    METHOD_SEPKL_EMA_HA,
    METHOD_REFGEN,
    METHOD_CORA,
    METHOD_COUNT,
};
#define METHOD_NAMES "care|grpo|nokl|densecons|kl-ema|kl-ema-ha|sepkl-ema-ha|refgen|cora"

extern const struct method methods[METHOD_COUNT];
