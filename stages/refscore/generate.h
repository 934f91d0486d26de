// The answers that the reference itself writes: behind what each completion has up to its last <answer>.
#ifndef STAGES_REFSCORE_GENERATE_H
#define STAGES_REFSCORE_GENERATE_H

#include "shared/config/stage_options.h"
#include "shared/stage/stage_model.h"

struct answer_generator;

// Makes a generator over the model, to be freed before the model.
status answer_generator_new(struct answer_generator **out, const struct stage_model *model,
                            const struct refscore_options *options);

// NULL is fine; sets *generator to NULL.
void answer_generator_free(struct answer_generator **generator);

// Computes the logprobs of model_score, and sets the group's reference.generated: each answer's text before its closing
// tag without white space at both ends, null for a completion without <answer>. ended[i]: the last token of completion
// i is an end-of-sequence token. BAD_SAMPLE as in model_check.
status answer_generator_run(struct answer_generator *generator, struct group *group, const struct model_prompt *prompt,
                            const struct model_completion *completions, const bool *ended,
                            const struct token_range *wanted, float *const *logprobs);

#endif
