// caravan-consistency: gives each completion the probability that its thinking supports its answer, by a ModernBERT
// classifier. The pairs of several groups are scored together; a pair's probability does not depend on its neighbours.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/data/consistency_pair.h"
#include "shared/model/classifier.h"
#include "shared/stage/stage.h"
#include "shared/text/tokenizer.h"

// A group that waits to be scored, or that is scored.
struct unscored_group {
    struct group *group;
    struct token_list *pairs; // of each completion; one without tokens has no pair
};

struct consistency_stage {
    const struct consistency_options *options;
    struct tokenizer *tokenizer;
    struct classifier *classifier;
    struct arena arena;     // of the template
    struct string template; // of the hypothesis
    uint64_t hash;          // of the weights and of the template
    char model[17];         // the weights' hash, as text
    struct unscored_group *waiting;
    size_t first, count;           // of waiting: those before `first` are returned
    struct classifier_text *texts; // the pairs of those that are not scored, in their order
    size_t text_count, tokens;     // of these pairs
    bool scored;                   // all of them are
    size_t cut;                    // pairs that were cut to max_tokens
};

static status consistency_open(void **state, struct stage_context *context) {
    const struct consistency_options *options = stage_options(context);
    const struct classifier_options classifier_options = {.device = options->model.common.device,
                                                          .threads = (int)options->model.common.threads,
                                                          .precision = options->model.common.precision};
    struct consistency_stage *self;
    uint64_t hashes[2];
    NEW(&self, 1);
    *state = self;
    self->options = options;
    TRY(consistency_template_read(&self->arena, options->hypothesis, &self->template));
    TRY(tokenizer_open(&self->tokenizer, options->model.dir));
    TRY(classifier_open(&self->classifier, options->model.dir, &classifier_options));
    TRY(consistency_tokenizer_check(self->tokenizer, options->model.dir,
                                    classifier_get_info(self->classifier)->vocab_size));
    TRY(classifier_hash(self->classifier, &hashes[0]));
    hashes[1] = XXH3_64bits(self->template.data, self->template.size);
    snprintf(self->model, sizeof self->model, "%016" PRIx64, hashes[0]);
    self->hash = XXH3_64bits(hashes, sizeof hashes);
    return OK;
}

static uint64_t consistency_fingerprint(void *state) {
    return ((const struct consistency_stage *)state)->hash;
}

// One group at a time until there are tokens for a batch; then none until those are scored.
static int consistency_capacity(void *state) {
    const struct consistency_stage *self = state;
    return !self->scored && self->tokens < (size_t)self->options->batch_tokens;
}

static void unscored_group_release(struct unscored_group *waiting) {
    for (size_t i = 0; waiting->pairs && i < waiting->group->completion_count; i++)
        token_list_release(&waiting->pairs[i]);
    free(waiting->pairs);
    *waiting = (struct unscored_group){0};
}

static status consistency_submit(void *state, struct group *group) {
    struct consistency_stage *self = state;
    struct unscored_group waiting = {.group = group};
    struct arena arena = {0};
    size_t shortened = 0;
    status result = OK;
    NEW(&waiting.pairs, group->completion_count);
    for (size_t i = 0; i < group->completion_count; i++) {
        struct consistency_pair pair;
        size_t cut = 0;
        TRY_TO(result, done, consistency_pair_make(&pair, &arena, group, i, self->template));
        if (!pair.premise.data) continue;
        TRY_TO(result, done,
               consistency_pair_encode(&pair, self->tokenizer, (size_t)self->options->max_tokens, &waiting.pairs[i],
                                       &cut));
        shortened += cut > 0;
    }
    GROW(&self->waiting, self->count);
    self->waiting[self->count++] = waiting;
    for (size_t i = 0; i < group->completion_count; i++) {
        if (!waiting.pairs[i].count) continue;
        GROW(&self->texts, self->text_count);
        self->texts[self->text_count++] = (struct classifier_text){waiting.pairs[i].data, waiting.pairs[i].count};
        self->tokens += waiting.pairs[i].count;
    }
    self->cut += shortened;
done:
    if (result != OK) unscored_group_release(&waiting);
    arena_release(&arena);
    return result;
}

// Returns a waiting group. The pairs of all of them are scored before the first is returned.
static status consistency_poll(void *state, bool draining, struct group **done) {
    struct consistency_stage *self = state;
    (void)draining; // the groups that it has are scored either way
    *done = NULL;
    if (!self->count) return END;
    if (!self->scored) {
        double *probabilities;
        size_t scored = 0;
        NEW(&probabilities, self->text_count);
        const status result =
            self->text_count ? classifier_score(self->classifier, self->texts, self->text_count, probabilities) : OK;
        for (size_t g = 0; result == OK && g < self->count; g++) {
            struct group *group = self->waiting[g].group;
            struct consistency *consistency = &group->consistency;
            GROUP_ARRAY(group, &consistency->probability, group->completion_count);
            group_string(group, &consistency->model, self->model, sizeof self->model - 1);
            for (size_t i = 0; i < group->completion_count; i++) // 0 where there is no pair
                if (self->waiting[g].pairs[i].count) consistency->probability.data[i] = probabilities[scored++];
            consistency->present = true;
        }
        free(probabilities);
        TRY(result);
        self->scored = true;
        self->tokens = self->text_count = 0;
    }
    *done = self->waiting[self->first].group;
    unscored_group_release(&self->waiting[self->first++]);
    if (self->first < self->count) return OK;
    self->first = self->count = 0;
    self->scored = false;
    return OK;
}

static status consistency_close(void *state) {
    struct consistency_stage *self = state;
    if (!self) return OK;
    if (self->cut) log_info("%zu pairs were cut to %lld tokens", self->cut, (long long)self->options->max_tokens);
    for (size_t i = self->first; i < self->count; i++) unscored_group_release(&self->waiting[i]);
    free(self->waiting);
    free(self->texts);
    arena_release(&self->arena);
    classifier_free(&self->classifier);
    tokenizer_free(&self->tokenizer);
    free(self);
    return OK;
}

static const struct stage consistency_stage = {
    .name = "consistency",
    .needs = NEED_COMPLETIONS,
    .section = SECTION_CONSISTENCY,
    .open = consistency_open,
    .fingerprint = consistency_fingerprint,
    .capacity = consistency_capacity,
    .submit = consistency_submit,
    .poll = consistency_poll,
    .close = consistency_close,
};

int main(int argc, char **argv) {
    return stage_main(&consistency_stage, argc, argv);
}
