#include "shared/stage/stage_model.h"

status stage_model_open(struct stage_model *model, struct stage_context *context) {
    const struct stage_model_options *given = stage_options(context);
    TRY(input_builder_new(&model->input, context));
    const struct model_options options = {
        .device = given->common.device,
        .threads = (int)given->common.threads,
        .precision = given->common.precision,
    };
    TRY(model_open(&model->model, given->dir, &options));
    input_builder_set_model(model->input, model_get_info(model->model));
    return model_hash(model->model, &model->hash);
}

status stage_model_load(struct stage_model *model, const struct stage_weights *weights) {
    if (weights->path) {
        TRY(model_swap(model->model, weights->path, weights->version, weights->hash));
    } else {
        TRY(model_reset(model->model, weights->hash));
    }
    model->hash = weights->hash;
    return OK;
}

void stage_model_release(struct stage_model *model) {
    model_free(&model->model);
    input_builder_free(&model->input);
}
