#include "tools/serve/chat.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/stage_options.h"
#include "shared/model/safetensors.h"

// ---- the model ----

status chat_read_run(struct pipeline **out, struct arena *arena, const char *run) {
    struct buf diagnostics = {0};
    const status result = pipeline_read(out, path_join(arena, run, "pipeline.yaml"), true, NULL, 0, &diagnostics);
    if (result != OK)
        fail_prefix(result, "%.*s", (int)strcspn(diagnostics.data ? diagnostics.data : "", "\n"),
                    diagnostics.data ? diagnostics.data : "");
    buf_release(&diagnostics);
    return result;
}

bool chat_is_run(struct arena *arena, const char *name) {
    return path_exists(path_join(arena, name, "pipeline.yaml"));
}

const void *chat_stage_options(const struct chat *chat, const char *stage) {
    const struct pipeline_stage *found = chat->pipeline ? pipeline_find_stage(chat->pipeline, stage) : NULL;
    return found && found->kind ? pipeline_options(found) : NULL;
}

// Copies the frames that the prompt has to where a stage would get them from another process.
static status chat_request_frames(void *self, const char *key, struct buf *record, bool *found) {
    const struct chat_prompt *prompt = ((const struct chat *)self)->prompt;
    *found = false;
    for (size_t i = 0; i < prompt->frames_count && !*found; i++) {
        const struct chat_frames *frames = &prompt->frames[i];
        if (strcmp(frames->key, key) != 0) continue;
        TRY(buf_reserve_large(record, frames->record.size));
        buf_append(record, frames->record.data, frames->record.size);
        *found = true;
    }
    return OK;
}

// *initial = whether all normalisation weights are 1 and all biases 0, as initialised. A training of all weights
// changes them; merged adapters do not. DATAERR.
static status chat_is_initial(const struct chat *chat, bool *initial) {
    struct safetensors *store = NULL;
    size_t norms = 0;
    *initial = true;
    TRY(safetensors_open_dir(&store, chat->dir));
    for (size_t i = 0; i < safetensors_count(store) && *initial; i++) {
        const struct stored_tensor *tensor = safetensors_at(store, i);
        const char *dot = strrchr(tensor->name, '.');
        const bool bias = dot && !strcmp(dot, ".bias"), norm = dot && !strcmp(dot, ".weight") && tensor->rank == 1;
        const uint32_t wide = norm ? 0x3f800000 : 0; // the bits of 1 and 0
        const uint16_t narrow = (uint16_t)(!norm ? 0 : tensor->type == ELEMENT_F16 ? 0x3c00 : 0x3f80);
        const bool is_wide = tensor->type == ELEMENT_F32;
        const void *value = is_wide ? (const void *)&wide : (const void *)&narrow;
        const size_t size = is_wide ? sizeof wide : sizeof narrow;
        for (size_t at = 0; (bias || norm) && at < tensor->size && *initial; at += size)
            *initial = !memcmp((const char *)tensor->data + at, value, size);
        norms += norm;
    }
    *initial = *initial && norms;
    safetensors_close(&store);
    return OK;
}

status chat_open(struct chat **out, const char *name, const char *settings, const struct chat_options *given,
                 int rows) {
    bool initial = false;
    NEW(out, 1);
    struct chat *chat = *out;
    pthread_mutex_init(&chat->lock, NULL);
    chat->dir = arena_strndup(&chat->arena, name, strlen(name));
    if (access(path_join(&chat->arena, name, "."), F_OK)) return fail(DATAERR, "%s: %s", name, strerror(errno));
    const bool is_run = chat_is_run(&chat->arena, name);
    if (is_run)
        TRY(chat_read_run(&chat->pipeline, &chat->arena, name));
    else if (settings && chat_is_run(&chat->arena, settings))
        TRY(chat_read_run(&chat->pipeline, &chat->arena, settings));
    const struct rollout_options *rollout = chat_stage_options(chat, "rollout");
    const struct pipeline_stage *optim = is_run ? pipeline_optim(chat->pipeline) : NULL;
    if (optim) {
        chat->dir = path_join(&chat->arena, path_join(&chat->arena, name, "checkpoints"), "latest");
        // The run may have been moved; or its checkpoints are elsewhere.
        if (!path_exists(chat->dir)) chat->dir = path_join(&chat->arena, pipeline_value(optim, "out"), "latest");
        char *checkpoint = realpath(chat->dir, NULL); // once: the link may get another step's while files are opened
        if (!checkpoint) return fail(DATAERR, "%s: the run has no checkpoint yet", name);
        chat->dir = arena_strndup(&chat->arena, checkpoint, strlen(checkpoint));
        free(checkpoint);
    } else if (is_run) {
        if (!rollout) return fail(DATAERR, "%s: no stage of this run has a model", name);
        chat->dir = rollout->model.dir;
    }
    if (is_run && !optim) chat->given.adapter = rollout->model.adapter;
    const char *base;
    TRY(model_find_base(&base, &chat->arena, chat->dir));
    if (base) chat->given.adapter = chat->dir;
    if (base) chat->dir = base;
    // Of the frames stage: the defaults, what the run has, and what the user gives, the last word last.
    const struct pipeline_stage *stage = chat->pipeline ? pipeline_find_stage(chat->pipeline, "frames") : NULL;
    options_init(&chat->frames, &stage_kinds[STAGE_FRAMES].options, &chat->given.frames);
    chat->frames.any_files = true;
    for (const struct key *key = stage ? stage->options.given.first : NULL; key; key = key->next)
        if (key->value) TRY(options_set(&chat->frames, key->name, key->value));
    for (size_t i = 0; i < given->frames.count; i++) {
        const char *text = given->frames.data[i], *equals = strchr(text, '=');
        if (!equals) return fail(USAGE, "frames: '%s' is not key=value", text);
        const char *key = arena_strndup(&chat->arena, text, (size_t)(equals - text));
        const status result = options_set(&chat->frames, key, equals + 1);
        if (result != OK) return fail_prefix(result, "frames");
    }
    chat->max_new_tokens = given->max_new_tokens ? given->max_new_tokens : rollout ? rollout->max_new_tokens : 768;
    chat->max_prompt_tokens = given->max_prompt_tokens;
    chat->given.dir = chat->dir;
    chat->given.common =
        (struct common_options){.device = given->device, .threads = given->threads, .precision = given->precision};
    NEW(&chat->model, 1);
    TRY(stage_model_open_alone(chat->model, &chat->given, chat_request_frames, chat));
    chat->model->input.max_prompt_tokens = (size_t)chat->max_prompt_tokens;
    if (!chat->given.adapter) TRY(chat_is_initial(chat, &initial));
    if (initial)
        log_info(
            "%s: all norms are 1 and all biases 0, as in a model that was never trained: unless adapters were merged "
            "into it, nothing sensible can be expected",
            chat->dir);
    chat->rows = rows;
    return chat_new_generator(chat);
}

status chat_new_generator(struct chat *chat) {
    const struct generator_options options = {.rows = chat->rows, .max_new_tokens = (int)chat->max_new_tokens};
    return generator_new(&chat->generator, chat->model->model, &options);
}

void chat_close(struct chat **chat) {
    struct chat *closing = *chat;
    if (!closing) return;
    generator_free(&closing->generator); // before the model
    stage_model_close(closing->model);
    pthread_mutex_destroy(&closing->lock);
    options_release(&closing->frames);
    pipeline_free(&closing->pipeline);
    arena_release(&closing->arena);
    free(closing);
    *chat = NULL;
}

// ---- prompts ----

void chat_prompt_init(struct chat_prompt *prompt) {
    *prompt = (struct chat_prompt){0};
    group_new(&prompt->group);
    struct group *group = prompt->group;
    group_string(group, &group->id, CHAT_GROUP_ID, strlen(CHAT_GROUP_ID));
    group_string(group, &group->sample_id, CHAT_GROUP_ID, strlen(CHAT_GROUP_ID));
    group_string(group, &group->prompt.solution, "", 0);
    group->prompt.present = true;
}

void chat_prompt_drop_media(struct chat_prompt *prompt) {
    for (size_t i = 0; i < prompt->frames_count; i++) buf_release(&prompt->frames[i].record);
    free(prompt->frames);
    free(prompt->data);
    prompt->frames = NULL;
    prompt->data = NULL;
    prompt->frames_count = prompt->data_count = 0;
}

void chat_prompt_release(struct chat_prompt *prompt) {
    chat_prompt_drop_media(prompt);
    stage_input_release(&prompt->input); // before the group
    group_free(&prompt->group);
    *prompt = (struct chat_prompt){0};
}

struct part *chat_add_message(struct chat_prompt *prompt, const char *role, size_t count) {
    struct group *group = prompt->group;
    struct prompt *own = &group->prompt;
    const size_t before = own->message_count;
    if (!(before & (before - 1))) { // full: the array doubles
        struct message *messages = arena_alloc(&group->arena, (2 * before + 1) * sizeof *messages);
        if (before) memcpy(messages, own->messages, before * sizeof *messages);
        own->messages = messages;
    }
    struct message *message = &own->messages[own->message_count++];
    group_string(group, &message->role, role, strlen(role));
    message->parts = arena_alloc(&group->arena, (count + 1) * sizeof *message->parts);
    message->part_count = count;
    return message->parts;
}

void chat_set_text(struct chat_prompt *prompt, struct part *part, const char *text, size_t size) {
    *part = (struct part){.kind = PART_TEXT, .type = string_of("text"), .start = NAN, .end = NAN, .frame_rate = NAN};
    group_string(prompt->group, &part->text, text, size);
}

void chat_set_medium(struct chat_prompt *prompt, struct part *part, bool video, const char *path) {
    *part = (struct part){.start = NAN, .end = NAN, .frame_rate = NAN};
    part->kind = video ? PART_VIDEO : PART_IMAGE;
    part->type = string_of(video ? "video" : "image");
    group_string(prompt->group, video ? &part->video : &part->image, path, strlen(path));
}

// A medium that is no file is named so in the group, with its number.
static const char chat_data_name[] = "data:";

void chat_set_data(struct chat_prompt *prompt, struct part *part, bool video, struct string base64) {
    char name[32];
    snprintf(name, sizeof name, "%s%zu", chat_data_name, prompt->data_count);
    GROW(&prompt->data, prompt->data_count);
    prompt->data[prompt->data_count++] = base64;
    chat_set_medium(prompt, part, video, name);
}

bool chat_decode_base64(struct string text, struct buf *out) {
    if (!text.size || text.size % 4) return false;
    for (size_t at = 0; at < text.size; at += 4) {
        const char *digits = text.data + at;
        const bool last = at + 4 == text.size;
        const int padding = !last || digits[3] != '=' ? 0 : digits[2] == '=' ? 2 : 1;
        uint32_t bits = 0;
        for (int i = 0; i < 4; i++) {
            const char c = i < 4 - padding ? digits[i] : 'A';
            const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                              : c >= 'a' && c <= 'z' ? c - 'a' + 26
                              : c >= '0' && c <= '9' ? c - '0' + 52
                              : c == '+'             ? 62
                              : c == '/'             ? 63
                                                     : -1;
            if (digit < 0) return false;
            bits = bits << 6 | (uint32_t)digit;
        }
        const char bytes[] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        buf_append(out, bytes, (size_t)(3 - padding));
    }
    return true;
}

// *path, in the arena = where a medium can be opened; *fd = what is to be closed then, -1: nothing.
static status chat_open_medium(const struct chat *chat, const struct chat_prompt *prompt, const struct part *part,
                               struct arena *arena, char **path, int *fd) {
    const struct string name = media_uri(part);
    const size_t length = strlen(chat_data_name);
    *fd = -1;
    if (!prompt->data_count || strncmp(name.data, chat_data_name, length) != 0) {
        TRY(media_path(path, arena, chat->given.media_root, name));
        if (!prompt->inside) return OK;
        const status opened = media_open_inside(fd, chat->given.media_root, *path);
        // A client does not learn which files there are outside.
        if (opened == BAD_SAMPLE) return fail(BAD_SAMPLE, "there is no such file below the media root");
        if (opened == OK) *path = arena_printf(arena, "/proc/self/fd/%d", *fd);
        return opened;
    }
    const struct string base64 = prompt->data[strtoull(name.data + length, NULL, 10)];
    struct buf data = {0};
    status result;
    TRY_TO(result, done, buf_reserve_large(&data, base64.size / 4 * 3));
    if (!chat_decode_base64(base64, &data)) TRY_TO(result, done, fail(BAD_SAMPLE, "%s: this is not base64", name.data));
    *fd = memfd_create("medium", MFD_CLOEXEC);
    if (*fd < 0 || !fd_write_all(*fd, data.data, data.size))
        TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", name.data, strerror(errno)));
    *path = arena_printf(arena, "/proc/self/fd/%d", *fd);
done:
    buf_release(&data);
    return result;
}

// Decodes a medium, unless the prompt has its frames already, and describes it in the group.
static status chat_prepare_medium(struct chat *chat, struct chat_prompt *prompt, size_t index, struct arena *arena) {
    const struct part *part = media_part(prompt->group, index);
    struct sampling_config all;
    struct frames_view view = {0};
    struct frames frames;
    struct chat_frames made = {0};
    const struct buf *record = NULL;
    const bool video = part->kind == PART_VIDEO;
    char *path = NULL;
    int fd;
    status result;
    TRY(stage_media_sampling(&all, &chat->given.frames));
    const struct sampling_config sampling = media_sampling(&all, part);
    TRY_TO(result, done, chat_open_medium(chat, prompt, part, arena, &path, &fd));
    TRY_TO(result, done, media_key(made.key, path, video, &sampling, NULL));
    for (size_t i = 0; i < prompt->frames_count; i++)
        if (!strcmp(prompt->frames[i].key, made.key)) record = &prompt->frames[i].record;
    if (!record) {
        const struct media_options options = {.threads = (int)chat->given.common.threads};
        TRY_TO(result, done, media_decode(&view, path, video, &sampling, &options));
        TRY_TO(result, done, buf_reserve_large(&made.record, frames_record_size(&view.frames)));
        made.record.size = frames_record_size(&view.frames);
        frames_record_write(&view.frames, (uint8_t *)made.record.data);
        GROW(&prompt->frames, prompt->frames_count);
        prompt->frames[prompt->frames_count] = made;
        record = &prompt->frames[prompt->frames_count++].record;
    }
    TRY_TO(result, done, frames_from_record(&frames, record->data, record->size));
    media_describe(prompt->group, index, made.key, &frames, chat->given.frames.seconds_per_grid);
done:
    if (result != OK && path) (void)fail_prefix(result, "%s", fd < 0 && !prompt->inside ? path : media_uri(part).data);
    if (fd >= 0) close(fd);
    frames_view_release(&view);
    return result;
}

status chat_prepare(struct chat *chat, struct chat_prompt *prompt) {
    const struct model_info *info = chat->model->input.info;
    const int64_t pixels = (int64_t)info->patch_size * info->spatial_merge_size;
    struct group *group = prompt->group;
    struct arena arena = {0};
    int64_t tokens = (int64_t)media_part_count(group); // at least
    status result = OK;
    group_media(group, media_part_count(group));
    for (size_t i = 0; i < group->media_count && result == OK && tokens <= chat->max_prompt_tokens; i++) {
        const struct medium *medium = &group->media[i];
        result = chat_prepare_medium(chat, prompt, i, &arena);
        if (result != OK) break;
        tokens +=
            (medium->frames + 1) / info->temporal_patch_size * (medium->height / pixels) * (medium->width / pixels) - 1;
    }
    arena_release(&arena);
    TRY(result);
    if (tokens > chat->max_prompt_tokens)
        return fail(BAD_SAMPLE, "prompt too long: its media alone have more tokens than max_prompt_tokens, %lld",
                    (long long)chat->max_prompt_tokens);
    group->prompt_tokens = (struct int_array){0};
    stage_input_release(&prompt->input);
    pthread_mutex_lock(&chat->lock);
    chat->prompt = prompt;
    result = stage_input_open(&chat->model->input, group, INPUT_PROMPT, &prompt->input);
    pthread_mutex_unlock(&chat->lock);
    TRY(result);
    if ((int64_t)prompt->input.prompt.count > chat->max_prompt_tokens)
        return fail(BAD_SAMPLE, "prompt too long: %zu tokens, max_prompt_tokens is %lld", prompt->input.prompt.count,
                    (long long)chat->max_prompt_tokens);
    return model_check(chat->model->model, &prompt->input.prompt, NULL, 0);
}

status chat_add(struct chat *chat, struct chat_prompt *prompt, const struct generate_request *request) {
    struct generate_request whole = *request;
    whole.prompt = prompt->input.prompt;
    const status result = generator_add(chat->generator, &whole);
    stage_input_release(&prompt->input);
    return result;
}

// ---- texts of answers ----

// Looks for the stops in what was not returned yet, and ends the text before the first of them. Returns the next part:
// all, or what is not the beginning of a stop.
static struct string chat_text_take(struct chat_text *text, const struct string *stops, size_t stop_count, bool all) {
    const struct string whole = {text->text.data, text->text.size};
    size_t first = SIZE_MAX, end = whole.size;
    for (size_t i = 0; i < stop_count; i++) {
        const size_t at = string_find(whole, stops[i].data, text->sent);
        if (at < first) first = at;
        size_t begin = whole.size > stops[i].size ? whole.size - stops[i].size : 0;
        if (begin < text->sent) begin = text->sent;
        while (begin < end && memcmp(whole.data + begin, stops[i].data, whole.size - begin) != 0) begin++;
        if (begin < end && !all) end = begin;
    }
    if (first != SIZE_MAX) {
        text->stopped = true;
        text->text.size = end = first;
    }
    const struct string part = {whole.data + text->sent, end - text->sent};
    text->sent = end;
    return part;
}

struct string chat_text_add(struct chat_text *text, const struct tokenizer *tokenizer, int64_t token,
                            const struct string *stops, size_t stop_count) {
    buf_puts(&text->text, "");
    tokenizer_decode_next(tokenizer, &text->rest, token, &text->text);
    return chat_text_take(text, stops, stop_count, false);
}

struct string chat_text_end(struct chat_text *text, const struct tokenizer *tokenizer, const struct string *stops,
                            size_t stop_count) {
    buf_puts(&text->text, "");
    if (!text->stopped) tokenizer_decode_end(tokenizer, &text->rest, &text->text);
    return chat_text_take(text, text->stopped ? NULL : stops, text->stopped ? 0 : stop_count, true);
}

void chat_text_release(struct chat_text *text) {
    buf_release(&text->rest.bytes);
    buf_release(&text->text);
}
