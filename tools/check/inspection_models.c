// The inspections of model directories.
#include <string.h>

#include "shared/config/stage_options.h"
#include "shared/data/consistency_pair.h"
#include "shared/model/classifier.h"
#include "shared/model/model.h"
#include "shared/text/chat_template.h"
#include "tools/check/inspection.h"

enum model_use inspection_model_use(const struct pipeline_stage *stage) {
    const char *judge = pipeline_value(stage, "judge"), *format = pipeline_value(stage, "format");
    if (!stage->kind || !pipeline_value(stage, "model")) return MODEL_USE_NONE;
    if (stage->kind == &stage_kinds[STAGE_SOURCE])
        return format && !strcmp(format, "sft") ? MODEL_USE_TOKENIZER : MODEL_USE_NONE;
    if (stage->kind == &stage_kinds[STAGE_JUDGE])
        return judge && !strcmp(judge, "likelihood") ? MODEL_USE_ALL : MODEL_USE_NONE;
    return stage->kind == &stage_kinds[STAGE_CONSISTENCY] ? MODEL_USE_CLASSIFIER : MODEL_USE_ALL;
}

// Whether no stage before this one uses the same model in the same way at the same place of the file.
static bool inspection_is_first(const struct inspection *inspection, const struct pipeline_stage *stage) {
    const struct key *model = key_list_find(&stage->options.given, "model");
    for (const struct pipeline_stage *other = inspection->pipeline->stages; other < stage; other++) {
        const struct key *key = key_list_find(&other->options.given, "model");
        if (inspection_covers(inspection, other) && inspection_model_use(other) == inspection_model_use(stage) &&
            !strcmp(key->value, model->value) && key->value_at.line == model->value_at.line &&
            key->value_at.column == model->value_at.column)
            return false;
    }
    return true;
}

void inspect_chat_templates(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const enum model_use use = inspection_model_use(stage);
        struct buf difference = {0};
        if (!inspection_covers(inspection, stage) || use == MODEL_USE_NONE || use == MODEL_USE_CLASSIFIER) continue;
        if (chat_template_compare(pipeline_value(stage, "model"), &difference) != OK)
            inspection_warning(inspection, stage, "model", "%s", fail_text());
        else if (difference.size)
            inspection_warning(inspection, stage, "model",
                               "%s; prompts are always written with the template of Qwen2.5-VL", difference.data);
        buf_release(&difference);
    }
}

// Looks at the files of a Qwen2.5-VL as a stage that computes with it does, without its weights.
static status inspection_open_model(struct inspection *inspection, const struct pipeline_stage *stage, const char *dir,
                                    const struct tokenizer *tokenizer) {
    const struct model_options options = {.device = "cpu", .threads = 1, .no_weights = true};
    struct model *model;
    TRY(model_open(&model, dir, &options));
    const long long tokens = tokenizer ? (long long)tokenizer_vocab_size(tokenizer) : 0,
                    rows = (long long)model_get_info(model)->vocab_size;
    if (tokens > rows)
        inspection_warning(inspection, stage, "model",
                           "%s: the tokenizer has %lld tokens, but vocab_size is %lld; a text with one of the others "
                           "ends the run",
                           dir, tokens, rows);
    model_free(&model);
    return OK;
}

static void inspection_look_at_model(struct inspection *inspection, const struct pipeline_stage *stage) {
    const enum model_use use = inspection_model_use(stage);
    const char *dir = pipeline_value(stage, "model");
    struct tokenizer *tokenizer = NULL;
    int64_t vocab_size = 0;
    status result = tokenizer_open(&tokenizer, dir);
    if (result == OK && use != MODEL_USE_CLASSIFIER) result = chat_template_check(tokenizer, dir);
    if (result != OK) inspection_mistake(inspection, stage, "model", "%s", fail_text());
    if (use == MODEL_USE_ALL) result = inspection_open_model(inspection, stage, dir, tokenizer);
    if (use == MODEL_USE_CLASSIFIER) result = classifier_check_files(dir, &vocab_size);
    if (use == MODEL_USE_CLASSIFIER && result == OK && tokenizer)
        result = consistency_tokenizer_check(tokenizer, dir, vocab_size);
    if (result != OK) inspection_mistake(inspection, stage, "model", "%s", fail_text());
    tokenizer_free(&tokenizer);
}

void inspect_models(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (!inspection_covers(inspection, stage) || inspection_model_use(stage) == MODEL_USE_NONE) continue;
        if (inspection_is_first(inspection, stage)) inspection_look_at_model(inspection, stage);
        if (inspection_model_use(stage) != MODEL_USE_CLASSIFIER) continue;
        struct arena arena = {0};
        struct string hypothesis;
        if (consistency_template_read(&arena, pipeline_value(stage, "hypothesis"), &hypothesis) != OK)
            inspection_mistake(inspection, stage, "hypothesis", "%s", fail_text());
        arena_release(&arena);
    }
}
