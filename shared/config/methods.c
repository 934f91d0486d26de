// The training methods, and what the reward's `method` means for the other stages of a pipeline: the keys that it sets
// where they are not given, the given ones that contradict it, and the stages that must come before.
#include "shared/config/methods.h"

#include <stdio.h>
#include <string.h>

#include "shared/config/pipeline_parse.h"
#include "shared/config/stage_options.h"

const struct method methods[METHOD_COUNT] = {
    [METHOD_CARE] = {"care", BONUS_LIKELY, METHOD_KL_NONE, METHOD_REFERENCE_EMA},
    [METHOD_GRPO] = {"grpo", BONUS_NONE, METHOD_KL_ALL, METHOD_REFERENCE_FROZEN},
    [METHOD_NOKL] = {"nokl", BONUS_NONE, METHOD_KL_NONE, METHOD_REFERENCE_NONE},
    [METHOD_DENSECONS] = {"densecons", BONUS_LIKELIHOOD, METHOD_KL_NONE, METHOD_REFERENCE_EMA},
    [METHOD_KL_EMA] = {"kl-ema", BONUS_NONE, METHOD_KL_ALL, METHOD_REFERENCE_EMA},
    [METHOD_KL_EMA_HA] = {"kl-ema-ha", BONUS_NONE, METHOD_KL_ACCURATE, METHOD_REFERENCE_EMA},
    [METHOD_SEPKL_EMA_HA] = {"sepkl-ema-ha", BONUS_NONE, METHOD_KL_ACCURATE_PARTS, METHOD_REFERENCE_EMA},
    [METHOD_REFGEN] = {"refgen", BONUS_GENERATED, METHOD_KL_NONE, METHOD_REFERENCE_EMA},
    [METHOD_CORA] = {"cora", BONUS_CONSISTENCY, METHOD_KL_OPTIONAL, METHOD_REFERENCE_NONE},
};

// The weight of the KL term where it is not given: the papers do not say theirs; this is the usual one.
#define DEFAULT_KL "0.04"

static const char needs_logprobs[] = "the KL term, which needs every token's log-probability";

static struct pipeline_stage *method_find_stage(const struct parsed_file *file, enum stage_id id) {
    struct pipeline_stage *stage = pipeline_find_stage(file->pipeline, stage_kinds[id].name);
    return stage && stage->kind == &stage_kinds[id] ? stage : NULL;
}

// Gives the stage `value` for a key that it lacks. A value that contradicts it is diagnosed for the reason `why`; NULL:
// any value may be given.
static void method_set_key(struct parsed_file *file, enum stage_id id, const char *name, const char *value,
                           struct location at, const char *why) {
    struct pipeline_stage *stage = method_find_stage(file, id);
    if (!stage) return;
    const struct option *option = option_find(&stage_kinds[id].options, name);
    const struct key *key = key_list_find(&stage->options.given, name);
    if (!key) {
        if (strcmp(value, option->default_value) != 0) pipeline_set_at(stage, name, value, at, at);
        return;
    }
    if (!why || !key->value) return;
    // The same word, or for a number that both are above 0 or not.
    const bool agree = option->type == OPTION_CHOICE
                           ? !strcmp(key->value, value)
                           : !key->stored || (options_number(&stage->options, option) > 0) == (strcmp(value, "0") != 0);
    if (!agree)
        diagnostic_add(&file->diagnostics, key->value_at, "%s: %s: %s contradicts %s; leave it out or set %s",
                       stage->name, name, key->value, why, value);
}

// Whether a stage before `end` writes scores under the reference; a program may write them as well.
static bool method_is_scored(const struct pipeline *pipeline, const struct pipeline_stage *end) {
    for (const struct pipeline_stage *stage = pipeline->stages; stage < end; stage++)
        if (key_list_find(&stage->options.given, "program") || (stage->kind && stage->kind->scores)) return true;
    return false;
}

void validate_method(struct parsed_file *file) {
    const struct pipeline_stage *reward = method_find_stage(file, STAGE_REWARD), *judge = file->pipeline->stages;
    const struct pipeline_stage *optim = method_find_stage(file, STAGE_OPTIM);
    if (reward) {
        const struct reward_options *options = pipeline_options(reward);
        const struct method *method = &methods[options->method];
        const struct key *key = key_list_find(&reward->options.given, "method");
        const struct location at = key ? key->value_at : reward->at;
        if (key && key->value && !key->stored) return; // diagnosed already
        // The stages that write what the method reads.
        const bool used = method->bonus != BONUS_NONE || optim; // the reference
        if (used && method->reference != METHOD_REFERENCE_NONE && !method_is_scored(file->pipeline, reward))
            diagnostic_add(&file->diagnostics, at, "%s: method %s needs %s before it", reward->name, method->name,
                           stage_kinds[STAGE_REFSCORE].name);
        while (judge < reward && !key_list_find(&judge->options.given, "program") &&
               judge->kind != &stage_kinds[STAGE_CONSISTENCY])
            judge++;
        if (method->bonus == BONUS_CONSISTENCY && judge == reward)
            diagnostic_add(&file->diagnostics, at,
                           "%s: method %s needs %s before it, or a program that writes consistency.probability",
                           reward->name, method->name, stage_kinds[STAGE_CONSISTENCY].name);
        // What the method says of other stages is set and checked.
        const bool frozen = method->reference == METHOD_REFERENCE_FROZEN,
                   ema = method->reference == METHOD_REFERENCE_EMA;
        const bool term = method->kl > METHOD_KL_OPTIONAL, accurate = method->kl > METHOD_KL_ALL;
        const bool parts = method->kl == METHOD_KL_ACCURATE_PARTS;
        const struct option *ema_every = option_find(&stage_kinds[STAGE_OPTIM].options, "ema_every");
        char why[128];
        snprintf(why, sizeof why, "method %s, which needs an answer of the reference's own", method->name);
        if (method->bonus == BONUS_GENERATED) method_set_key(file, STAGE_REFSCORE, "generate", "answer", at, why);
        snprintf(why, sizeof why, "method %s, which has %s KL term", method->name, term ? "a" : "no");
        if (method->kl != METHOD_KL_OPTIONAL) method_set_key(file, STAGE_OPTIM, "kl", term ? DEFAULT_KL : "0", at, why);
        if (term) {
            method_set_key(file, STAGE_REFSCORE, "logprobs", "all", at, needs_logprobs);
            snprintf(why, sizeof why, "method %s, whose KL term counts %s completions", method->name,
                     accurate ? "the accurate" : "all");
            method_set_key(file, STAGE_OPTIM, "kl_on", accurate ? "accurate" : "all", at, why);
            snprintf(why, sizeof why, "method %s, whose KL term has %s", method->name,
                     parts ? "a mean for the thinking and one for the answer" : "one mean over all tokens");
            method_set_key(file, STAGE_OPTIM, "kl_parts", parts ? "separate" : "whole", at, why);
        }
        snprintf(why, sizeof why, "method %s, whose reference %s", method->name,
                 frozen ? "is frozen" : "follows the policy");
        method_set_key(file, STAGE_OPTIM, "ema_every", ema ? ema_every->default_value : "0", at,
                       frozen || ema ? why : NULL);
        if (method->kl != METHOD_KL_OPTIONAL) return;
    }
    // A `kl` that no method asks for.
    const struct key *kl = optim ? key_list_find(&optim->options.given, "kl") : NULL;
    const struct optim_options *options = optim ? pipeline_options(optim) : NULL;
    if (!kl || !kl->stored || options->kl <= 0) return;
    if (!method_is_scored(file->pipeline, optim))
        diagnostic_add(&file->diagnostics, kl->value_at, "%s: kl above 0 needs %s before it", optim->name,
                       stage_kinds[STAGE_REFSCORE].name);
    method_set_key(file, STAGE_REFSCORE, "logprobs", "all", kl->value_at, needs_logprobs);
}
