#include "shared/stage/follower.h"

status follower_open(struct follower *follower, struct stage_context *context) {
    const struct settings *settings = stage_settings(context);
    TRY(inputs_new(&follower->inputs, context));
    const struct model_options options = {
        .device = settings_text(settings, "device"),
        .threads = settings_int(settings, "threads") > 0 ? (int)settings_int(settings, "threads") : 0,
        .precision = settings_text(settings, "precision"),
    };
    TRY(model_open(&follower->model, settings_text(settings, "model"), &options));
    inputs_set_model(follower->inputs, model_get_info(follower->model));
    return model_hash(follower->model, &follower->hash);
}

status follower_use(struct follower *follower, const struct stage_weights *weights) {
    if (weights->path) {
        TRY(model_swap(follower->model, weights->path, weights->version, weights->hash));
    } else {
        TRY(model_reset(follower->model, weights->hash));
    }
    follower->hash = weights->hash;
    return OK;
}

void follower_release(struct follower *follower) {
    model_free(&follower->model);
    inputs_free(&follower->inputs);
}
