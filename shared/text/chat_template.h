// The chat template of Qwen2.5-VL: messages as text, and a group's prompt as the token sequence that the model gets.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"
#include "shared/text/tokenizer.h"

// The template as published, in Jinja. chat_template_render gives the same text.
extern const char chat_template_jinja[];

// Checks that the tokenizer of a model directory suits the chat template. DATAERR with the directory when it lacks a
// token that the template needs, or its post-processor adds tokens to a text.
status chat_template_check(const struct tokenizer *t, const char *dir);

// Appends how the model directory's own chat template differs from the one above, which alone is used: "FILE: ...";
// nothing if it is the same or there is none. It is looked for as Hugging Face's processors do: chat_template.jinja,
// else the key of chat_template.json, else of tokenizer_config.json. White space, kinds of quotes and the marks of
// Jinja that strip white space do not count; a template with other statements differs, even if it would render the same
// text, for nothing here renders Jinja. DATAERR when a file cannot be read.
status chat_template_compare(const char *dir, struct buf *difference);

// Appends the rendered messages, with one placeholder for each medium, and the start of the assistant's message. Starts
// with a default system message unless the first message is the system's.
void chat_template_render(const struct message *messages, size_t count, struct buf *out);

// Appends the tokens of the rendered messages. DATAERR and BAD_SAMPLE as tokenizer_encode.
status chat_template_encode(const struct tokenizer *t, const struct message *messages, size_t count,
                            struct token_list *out);

// One vision token covers `pixels` x `pixels` pixels (patch_size x merge_size, 28) of `frames` frames
// (temporal_patch_size, 2).
struct vision_grid {
    int64_t pixels;
    int64_t frames;
};

// Appends the tokens of a group's prompt with as many placeholders for each medium as it has vision tokens: for an
// image (height / grid.pixels) * (width / grid.pixels), for a video (its frames / grid.frames) times as many. The group
// must have its media.
// BAD_SAMPLE when a text of the prompt contains a placeholder, so that the placeholders do not match the media, or when
// there are more than out->most tokens before they are expanded; DATAERR when the size of a medium is not a multiple of
// the grid, or the number of media is not that of the prompt.
status chat_template_encode_prompt(const struct tokenizer *t, const struct group *group, struct vision_grid grid,
                                   struct token_list *out);
