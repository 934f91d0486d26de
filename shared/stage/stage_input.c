#include "shared/stage/stage_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/media/media_source.h"
#include "shared/store/frame_store.h"
#include "shared/text/chat_template.h"

struct input_builder {
    struct tokenizer *tokenizer;
    struct frame_store *store; // NULL without --store
    struct media_source media;
    const struct model_info *facts;
};

struct input_memory {
    struct arena arena;
    struct frames_view *views;
    size_t view_count;
};

// What the context is for: asking the frames stage for what this machine's store lacks.
static status request_frames(void *context, const char *key, struct buf *record, bool *found) {
    return stage_fetch(context, key, record, found);
}

status input_builder_new(struct input_builder **out, struct stage_context *context) {
    const struct stage_model_options *options = stage_options(context);
    const char *store = options->common.store;
    struct input_builder *self;
    TRY(NEW(&self, 1));
    *out = self;
    status result = tokenizer_open(&self->tokenizer, options->dir);
    if (result == OK && store) result = frame_store_open(&self->store, store, 0, false);
    self->media = (struct media_source){
        .store = self->store, .request = request_frames, .context = context, .media_root = options->media_root};
    if (result != OK) input_builder_free(out);
    return result;
}

void input_builder_free(struct input_builder **builder) {
    struct input_builder *self = *builder;
    if (!self) return;
    frame_store_close(&self->store);
    tokenizer_free(&self->tokenizer);
    free(self);
    *builder = NULL;
}

const struct tokenizer *input_builder_tokenizer(const struct input_builder *inputs) {
    return inputs->tokenizer;
}

void input_builder_set_model(struct input_builder *inputs, const struct model_info *facts) {
    inputs->facts = facts;
}

static status check_tokens(const struct input_builder *inputs, const int64_t *tokens, size_t count, const char *where) {
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= inputs->facts->vocab_size)
            return fail(DATAERR, "not a group: %s[%zu]: token %lld is outside the model's vocabulary of %lld", where, i,
                        (long long)tokens[i], (long long)inputs->facts->vocab_size);
    return OK;
}

static status make_prompt(struct input_builder *inputs, struct group *group) {
    const struct model_info *facts = inputs->facts;
    struct token_list list = {0};
    status result = chat_template_encode_prompt(
        inputs->tokenizer, group,
        (struct vision_grid){facts->patch_size * facts->spatial_merge_size, facts->temporal_patch_size}, &list);
    if (result == OK) result = group_ints(group, &group->prompt_tokens, list.count);
    if (result == OK && list.count) memcpy(group->prompt_tokens.data, list.data, list.count * sizeof *list.data);
    token_list_release(&list);
    return result;
}

static status add_media(struct input_builder *inputs, struct group *group, struct stage_input *input) {
    struct input_memory *memory = input->memory;
    struct model_medium *media = arena_alloc(&memory->arena, group->media_count * sizeof *media);
    memory->views = arena_alloc(&memory->arena, group->media_count * sizeof *memory->views);
    if (!media || !memory->views) return fail_oom();
    for (size_t i = 0; i < group->media_count; i++) {
        const struct medium *medium = &group->media[i];
        TRY(media_get(&memory->views[memory->view_count++], &inputs->media, group, i));
        const struct frames *frames = &memory->views[i].frames;
        media[i] = (struct model_medium){.video = string_equals(medium->kind, "video"),
                                         .frames = frames->count,
                                         .height = frames->height,
                                         .width = frames->width,
                                         .seconds_per_grid = medium->seconds_per_grid,
                                         .pixels = frames->pixels};
    }
    input->prompt.media = media;
    input->prompt.media_count = group->media_count;
    return OK;
}

// The tokens of a completion that has only a text.
static status tokenize(struct input_builder *inputs, struct group *group, struct completion *completion,
                       struct int_array *out) {
    struct token_list list = {0};
    status result = tokenizer_encode(inputs->tokenizer, completion->text.data, completion->text.size, &list);
    if (result == OK && string_equals(completion->finish, "eos")) {
        result = inputs->facts->eos_count ? token_list_append(&list, inputs->facts->eos_ids[0])
                                          : fail(DATAERR, "the model names no end-of-sequence token");
    }
    if (result == OK) result = group_ints(group, out, list.count);
    if (result == OK && list.count) memcpy(out->data, list.data, list.count * sizeof *list.data);
    token_list_release(&list);
    return result;
}

// What stands beside a completion's tokens is one a token.
static status check_lengths(const struct completion *completion, size_t tokens, size_t i) {
    const size_t logprobs = completion->logprobs.count, versions = completion->versions.count;
    if (completion->logprobs.data && logprobs != tokens)
        return fail(DATAERR, "not a group: completions[%zu].logprobs: %zu for %zu tokens", i, logprobs, tokens);
    if (completion->versions.data && versions != tokens)
        return fail(DATAERR, "not a group: completions[%zu].versions: %zu for %zu tokens", i, versions, tokens);
    return OK;
}

static status add_completions(struct input_builder *inputs, struct group *group, struct stage_input *input) {
    struct input_memory *memory = input->memory;
    input->completions = arena_alloc(&memory->arena, group->completion_count * sizeof *input->completions);
    if (!input->completions) return fail_oom();
    for (size_t i = 0; i < group->completion_count; i++) {
        struct completion *completion = &group->completions[i];
        char where[64];
        snprintf(where, sizeof where, "completions[%zu].tokens", i);
        if (completion->tokens.data) {
            input->completions[i] = completion->tokens;
        } else {
            TRY(tokenize(inputs, group, completion, &input->completions[i]));
        }
        if (!input->completions[i].count) return fail(DATAERR, "not a group: %s: empty", where);
        TRY(check_tokens(inputs, input->completions[i].data, input->completions[i].count, where));
        TRY(check_lengths(completion, input->completions[i].count, i));
    }
    return OK;
}

status stage_input_open(struct input_builder *inputs, struct group *group, enum input_parts parts,
                        struct stage_input *input) {
    *input = (struct stage_input){0};
    TRY(NEW(&input->memory, 1));
    TRY(group_check(group, NEED_MEDIA));
    if (!group->prompt_tokens.data) TRY(make_prompt(inputs, group));
    TRY(check_tokens(inputs, group->prompt_tokens.data, group->prompt_tokens.count, "prompt_tokens"));
    TRY(add_media(inputs, group, input));
    input->prompt.tokens = group->prompt_tokens.data;
    input->prompt.count = group->prompt_tokens.count;
    return parts & INPUT_COMPLETIONS ? add_completions(inputs, group, input) : OK;
}

void stage_input_release(struct stage_input *input) {
    struct input_memory *memory = input->memory;
    for (size_t i = 0; memory && i < memory->view_count; i++) frames_view_release(&memory->views[i]);
    if (memory) arena_release(&memory->arena);
    free(memory);
    *input = (struct stage_input){0};
}
