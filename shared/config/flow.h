// The order in which groups flow through a draft's stages, and the pipeline made of a draft without mistakes.
#ifndef SHARED_CONFIG_FLOW_H
#define SHARED_CONFIG_FLOW_H

#include "shared/config/draft.h"

// Orders draft->stages along the flow: from source, each stage once, to optim. What does not fit becomes a mistake.
void flow_order(struct draft *draft);

// Fills draft->pipeline. To be called without mistakes alone.
void flow_build(struct draft *draft);

#endif
