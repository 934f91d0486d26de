#include "shared/stage/stage_model.h"

#include <assert.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "shared/stage/stage.h"
#include "shared/text/chat_template.h"

// ---- frames ----

struct stage_media {
    struct stage_context *context;
    struct frame_store *store; // NULL without --store
    struct sampling_config sampling;
    struct media_source source;
    double logged_at; // monotonic seconds of the last line about frames that are missing
};

status stage_media_sampling(struct sampling_config *sampling, const struct frames_options *options) {
    *sampling = (struct sampling_config){
        .fps = options->fps,
        .min_frames = options->min_frames,
        .max_frames = options->max_frames,
        .min_pixels = (double)options->min_pixels,
        .max_pixels = (double)options->max_pixels,
        .total_pixels = options->total_pixels ? (double)options->total_pixels : NAN,
        .image_min_pixels = (double)options->image_min_pixels,
        .image_max_pixels = (double)options->image_max_pixels,
        .start = NAN,
        .end = NAN,
        .frame_rate = NAN,
    };
    return sampling_config_check(sampling);
}

static status stage_media_request(void *self, const char *key, struct buf *record, bool *found) {
    return stage_fetch(((struct stage_media *)self)->context, key, record, found);
}

// Asks again a little later. In a run only: there the frames come sooner or later.
static status stage_media_wait(void *self, const char *key) {
    enum { RETRY_MS = 100, LOG_SECONDS = 60 };
    struct stage_media *media = self;
    const double now = clock_monotonic();
    struct pollfd stop = {.fd = signals_fd(), .events = POLLIN};
    (void)key; // the message names it
    if (now - media->logged_at >= LOG_SECONDS) {
        log_info("%s; asking again until they can be had", fail_text());
        media->logged_at = now;
    }
    (void)poll(&stop, 1, RETRY_MS);
    return signals_stopping() ? END : OK;
}

// Opens the store and says how frames are found, as these options say.
static status stage_media_start(struct stage_media **out, const struct stage_model_options *given) {
    NEW(out, 1);
    struct stage_media *media = *out;
    media->logged_at = -INFINITY;
    TRY(stage_media_sampling(&media->sampling, &given->frames));
    if (given->frames_store)
        TRY(frame_store_open(&media->store, given->frames_store, 0, true));
    else if (given->common.store)
        TRY(frame_store_open(&media->store, given->common.store, (uint64_t)given->frames.store_limit, false));
    media->source = (struct media_source){.store = media->store,
                                          .media_root = given->media_root,
                                          .inside = given->media_outside == MEDIA_OUTSIDE_REFUSE,
                                          .sampling = &media->sampling};
    return OK;
}

status stage_media_open(struct stage_media **out, struct stage_context *context) {
    TRY(stage_media_start(out, stage_options(context)));
    struct stage_media *media = *out;
    media->context = context;
    media->source.request = stage_media_request;
    media->source.wait = stage_in_pipeline(context) ? stage_media_wait : NULL;
    media->source.context = media;
    return OK;
}

void stage_media_close(struct stage_media **media) {
    if (!*media) return;
    frame_store_close(&(*media)->store);
    free(*media);
    *media = NULL;
}

// ---- inputs ----

static status input_builder_open_tokenizer(struct input_builder *builder, const struct stage_model_options *options) {
    TRY(model_check_dir(options->dir));
    TRY(tokenizer_open(&builder->tokenizer, options->dir));
    return chat_template_check(builder->tokenizer, options->dir);
}

status input_builder_open(struct input_builder *builder, struct stage_context *context) {
    TRY(input_builder_open_tokenizer(builder, stage_options(context)));
    return stage_media_open(&builder->media, context);
}

void input_builder_close(struct input_builder *builder) {
    stage_media_close(&builder->media);
    tokenizer_free(&builder->tokenizer);
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
    GROUP_ARRAY(group, out, list->count);
    if (list->count) memcpy(out->data, list->data, list->count * sizeof *list->data);
}

status stage_input_open(struct input_builder *builder, struct group *group, enum input_parts parts,
                        struct stage_input *input) {
    const struct model_info *info = builder->info;
    *input = (struct stage_input){0};
    assert(info);
    TRY(group_check(group, NEED_MEDIA));
    if (!group->prompt_tokens.data) {
        const struct vision_grid grid = {info->patch_size * info->spatial_merge_size, info->temporal_patch_size};
        struct token_list list = {.most = builder->max_prompt_tokens};
        status result = chat_template_encode_prompt(builder->tokenizer, group, grid, &list);
        if (result == OK) stage_input_set_tokens(group, &group->prompt_tokens, &list);
        token_list_release(&list);
        TRY(result);
    }
    TRY(stage_input_check_tokens(builder, group->prompt_tokens.data, group->prompt_tokens.count, "prompt_tokens"));
    struct model_medium *media = arena_alloc(&input->arena, group->media_count * sizeof *media);
    input->views = arena_alloc(&input->arena, group->media_count * sizeof *input->views);
    for (size_t i = 0; i < group->media_count; i++) {
        const struct medium *medium = &group->media[i];
        TRY(media_get(&input->views[input->view_count++], &builder->media->source, group, i));
        const struct frames *frames = &input->views[i].frames;
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
    if (!(parts & INPUT_COMPLETIONS)) return OK;
    input->completions = arena_alloc(&input->arena, group->completion_count * sizeof *input->completions);
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
            if (ended && !info->eos_count)
                result = fail(DATAERR, "the model has no end-of-sequence token");
            else if (ended)
                token_list_append(&list, info->eos_ids[0]);
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

void stage_input_set_completions(const struct input_builder *builder, struct group *group,
                                 const struct generated *generated, int count) {
    group_completions(group, (size_t)count);
    for (int i = 0; i < count; i++, generated++) {
        struct completion *completion = &group->completions[i];
        GROUP_ARRAY(group, &completion->tokens, generated->count);
        GROUP_ARRAY(group, &completion->logprobs, generated->count);
        GROUP_ARRAY(group, &completion->versions, generated->count);
        for (size_t t = 0; t < generated->count; t++) {
            completion->tokens.data[t] = generated->tokens[t];
            completion->logprobs.data[t] = generated->logprobs[t];
            completion->versions.data[t] = generated->versions[t];
        }
        const struct string finish = string_of(generated->ended ? "eos" : "length");
        group_string(group, &completion->finish, finish.data, finish.size);
        struct buf text = {0};
        buf_puts(&text, ""); // present even if no token is visible
        tokenizer_decode_utf8(builder->tokenizer, generated->tokens, generated->count, true, &text);
        group_string(group, &completion->text, text.data, text.size);
        buf_release(&text);
    }
}

void stage_input_release(struct stage_input *input) {
    for (size_t i = 0; i < input->view_count; i++) frames_view_release(&input->views[i]);
    arena_release(&input->arena);
    *input = (struct stage_input){0};
}

// ---- the model ----

// Opens the model; one that follows optim gets its weights later.
static status stage_model_start(struct stage_model *model, const struct stage_model_options *given, bool follows) {
    const struct model_options options = {
        .device = given->common.device,
        .threads = (int)given->common.threads,
        .precision = given->common.precision,
        .no_weights = follows || given->weights,
        .lora = given->lora,
        .lora_alpha = given->lora_alpha,
        .lora_seed = (uint64_t)given->lora_seed,
        .adapter = given->adapter,
    };
    TRY(model_open(&model->model, given->dir, &options));
    model->input.info = model_get_info(model->model);
    if (given->files_hash) {
        uint64_t hash;
        TRY(model_hash_files(model->model, &hash));
        if (hash != strtoull(given->files_hash, NULL, 16))
            return fail(DATAERR, "%s has other weights (hash %016llx) than those with which the run began (hash %s)",
                        given->dir, (unsigned long long)hash, given->files_hash);
    }
    if (given->weights) {
        const char *prefix = given->weights_prefix ? given->weights_prefix : "";
        TRY(model_load_stored(model->model, given->weights, prefix, given->weights_version));
    }
    return follows ? OK : model_hash(model->model, &model->hash);
}

status stage_model_open(struct stage_model *model, struct stage_context *context) {
    TRY(input_builder_open(&model->input, context));
    return stage_model_start(model, stage_options(context), stage_follows_optim(context));
}

status stage_model_open_alone(struct stage_model *model, const struct stage_model_options *options,
                              status (*request)(void *context, const char *key, struct buf *record, bool *found),
                              void *context) {
    TRY(input_builder_open_tokenizer(&model->input, options));
    TRY(stage_media_start(&model->input.media, options));
    model->input.media->source.request = request;
    model->input.media->source.context = context;
    return stage_model_start(model, options, false);
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
    generator_free(&model->generator); // before the model, which it refers to
    model_free(&model->model);
    input_builder_close(&model->input);
    free(model);
    return OK;
}
