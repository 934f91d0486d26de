// What a stage asks of the run around it. Under --stdio there is none.
#include "shared/stage/runner.h"

status stage_publish(stage_context *context, const stage_weights *weights) {
    (void)weights;
    return context->pipeline ? fail(BUG, "no run to publish to") : OK;
}

const char *stage_weights_folder(const stage_context *context) {
    (void)context;
    return NULL;
}

status stage_fetch(stage_context *context, const char *key, bytes *record, bool *found) {
    (void)key;
    (void)record;
    *found = false;
    return context->pipeline ? fail(BUG, "no run to fetch from") : OK;
}
