#include "shared/stage/stage_model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/stage/stage_media.h"
#include "shared/text/chat_template.h"

struct input_builder {
    struct tokenizer *tokenizer;
    struct stage_media *media;
    const struct model_info *info;
};

struct input_memory {
    struct arena arena;
    struct frames_view *views;
    size_t view_count;
};

status input_builder_new(struct input_builder **out, struct stage_context *context) {
    const struct stage_model_options *options = stage_options(context);
    struct input_builder *builder;
    NEW(&builder, 1);
    *out = builder;
    status result = tokenizer_open(&builder->tokenizer, options->dir);
    if (result == OK) result = chat_template_check(builder->tokenizer, options->dir);
    if (result == OK) result = stage_media_open(&builder->media, context);
    if (result != OK) input_builder_free(out);
    return result;
}

void input_builder_free(struct input_builder **pointer) {
    struct input_builder *builder = *pointer;
    if (!builder) return;
    stage_media_close(&builder->media);
    tokenizer_free(&builder->tokenizer);
    free(builder);
    *pointer = NULL;
}

const struct tokenizer *input_builder_tokenizer(const struct input_builder *builder) {
    return builder->tokenizer;
}

void input_builder_set_model(struct input_builder *builder, const struct model_info *info) {
    builder->info = info;
}

static status stage_input_check_tokens(const struct input_builder *builder, const int64_t *tokens, size_t count,
                                       const char *where) {
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= builder->info->vocab_size)
            return fail(DATAERR, "not a group: %s[%zu]: token %lld is outside the model's vocabulary of %lld", where, i,
                        (long long)tokens[i], (long long)builder->info->vocab_size);
    return OK;
}

// Copies a list of tokens into an array in the group.
static void stage_input_set_tokens(struct group *group, struct int_array *out, const struct token_list *list) {
    group_ints(group, out, list->count);
    if (list->count) memcpy(out->data, list->data, list->count * sizeof *list->data);
}

static status stage_input_add_completions(struct input_builder *builder, struct group *group,
                                          struct stage_input *input) {
    struct input_memory *memory = input->memory;
    input->completions = arena_alloc(&memory->arena, group->completion_count * sizeof *input->completions);
    for (size_t i = 0; i < group->completion_count; i++) {
        struct completion *completion = &group->completions[i];
        char where[64];
        snprintf(where, sizeof where, "completions[%zu].tokens", i);
        if (completion->tokens.data) {
            input->completions[i] = completion->tokens;
        } else { // it has only a text
            struct token_list list = {0};
            status result = tokenizer_encode(builder->tokenizer, completion->text.data, completion->text.size, &list);
            const bool ended = result == OK && string_equals(completion->finish, "eos");
            if (ended && !builder->info->eos_count)
                result = fail(DATAERR, "the model has no end-of-sequence token");
            else if (ended)
                token_list_append(&list, builder->info->eos_ids[0]);
            if (result == OK) stage_input_set_tokens(group, &input->completions[i], &list);
            token_list_release(&list);
            TRY(result);
        }
        const size_t tokens = input->completions[i].count;
        if (!tokens) return fail(DATAERR, "not a group: %s: empty", where);
        TRY(stage_input_check_tokens(builder, input->completions[i].data, tokens, where));
        if (completion->logprobs.data && completion->logprobs.count != tokens)
            return fail(DATAERR, "not a group: completions[%zu].logprobs: %zu for %zu tokens", i,
                        completion->logprobs.count, tokens);
        if (completion->versions.data && completion->versions.count != tokens)
            return fail(DATAERR, "not a group: completions[%zu].versions: %zu for %zu tokens", i,
                        completion->versions.count, tokens);
    }
    return OK;
}

status stage_input_open(struct input_builder *builder, struct group *group, enum input_parts parts,
                        struct stage_input *input) {
    *input = (struct stage_input){0};
    assert(builder->info);
    NEW(&input->memory, 1);
    TRY(group_check(group, NEED_MEDIA));
    if (!group->prompt_tokens.data) {
        const struct model_info *info = builder->info;
        const struct vision_grid grid = {info->patch_size * info->spatial_merge_size, info->temporal_patch_size};
        struct token_list list = {0};
        status result = chat_template_encode_prompt(builder->tokenizer, group, grid, &list);
        if (result == OK) stage_input_set_tokens(group, &group->prompt_tokens, &list);
        token_list_release(&list);
        TRY(result);
    }
    TRY(stage_input_check_tokens(builder, group->prompt_tokens.data, group->prompt_tokens.count, "prompt_tokens"));
    struct input_memory *memory = input->memory;
    struct model_medium *media = arena_alloc(&memory->arena, group->media_count * sizeof *media);
    memory->views = arena_alloc(&memory->arena, group->media_count * sizeof *memory->views);
    for (size_t i = 0; i < group->media_count; i++) {
        const struct medium *medium = &group->media[i];
        TRY(stage_media_get(builder->media, &memory->views[memory->view_count++], group, i));
        const struct frames *frames = &memory->views[i].frames;
        media[i] = (struct model_medium){.video = string_equals(medium->kind, "video"),
                                         .frames = frames->count,
                                         .height = frames->height,
                                         .width = frames->width,
                                         .seconds_per_grid = medium->seconds_per_grid,
                                         .pixels = frames->pixels};
    }
    input->prompt = (struct model_prompt){.tokens = group->prompt_tokens.data,
                                          .count = group->prompt_tokens.count,
                                          .media = media,
                                          .media_count = group->media_count};
    return parts & INPUT_COMPLETIONS ? stage_input_add_completions(builder, group, input) : OK;
}

void stage_input_release(struct stage_input *input) {
    struct input_memory *memory = input->memory;
    for (size_t i = 0; memory && i < memory->view_count; i++) frames_view_release(&memory->views[i]);
    if (memory) arena_release(&memory->arena);
    free(memory);
    *input = (struct stage_input){0};
}

// ---- the model ----

status stage_model_open(struct stage_model *model, struct stage_context *context) {
    const struct stage_model_options *given = stage_options(context);
    TRY(input_builder_new(&model->input, context));
    const struct model_options options = {
        .device = given->common.device,
        .threads = (int)given->common.threads,
        .precision = given->common.precision,
        .no_weights = stage_follows_optim(context),
    };
    TRY(model_open(&model->model, given->dir, &options));
    input_builder_set_model(model->input, model_get_info(model->model));
    return options.no_weights ? OK : model_hash(model->model, &model->hash);
}

uint64_t stage_model_hash(void *model) {
    return ((const struct stage_model *)model)->hash;
}

status stage_model_load(void *state, const struct stage_weights *weights) {
    struct stage_model *model = state;
    if (weights->path) {
        TRY(model_swap(model->model, weights->path, weights->version, weights->hash));
    } else {
        TRY(model_reset(model->model, weights->hash));
    }
    model->hash = weights->hash;
    return OK;
}

status stage_model_return(void *state) {
    struct stage_model *model = state;
    model->hash = 0;
    model_return_weights(model->model);
    return OK;
}

bool stage_model_intact(void *model) {
    return model_weights_intact(((const struct stage_model *)model)->model);
}

status stage_model_close(void *state) {
    struct stage_model *model = state;
    if (!model) return OK;
    model_free(&model->model);
    input_builder_free(&model->input);
    free(model);
    return OK;
}
