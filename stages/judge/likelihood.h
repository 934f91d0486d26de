// The judge `likelihood`: whether a completion answers with the option that a model finds most likely given the
// question without its media, the completion's thinking, and the beginning of an answer.
#ifndef STAGES_JUDGE_LIKELIHOOD_H
#define STAGES_JUDGE_LIKELIHOOD_H

#include "shared/group/group.h"
#include "shared/stage/stage_model.h"

// Writes the verdicts of this judge into the group. A completion whose thinking the model cannot be asked about is not
// judged. DATAERR as verdict_init.
status likelihood_group(struct stage_model *model, struct group *group);

#endif
