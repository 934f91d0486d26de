// Qwen2.5-VL's chat template, and a group's prompt as the token sequence that the model sees.
#ifndef SHARED_TEXT_CHAT_TEMPLATE_H
#define SHARED_TEXT_CHAT_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"
#include "shared/text/tokenizer.h"

// Appends the messages as the chat template writes them, one placeholder a medium, the assistant's turn begun at the
// end. A system message is put before them unless the first one is the system's.
status chat_template_render(const struct message *messages, size_t count, struct buf *out);

// Appends the tokens of the rendered messages, one placeholder a medium. DATAERR when a text is not UTF-8.
status chat_template_encode(const struct tokenizer *t, const struct message *messages, size_t count,
                            struct token_list *out);

// What one placeholder stands for: `unit` x `unit` pixels (patch size x merge size, 28) of `time` frames (2).
struct vision_grid {
    int64_t unit;
    int64_t time;
};

// Appends a group's prompt with as many placeholders as each of its media has vision tokens: an image
// height/unit * width/unit, a clip frames/time times as many. Needs the group's media. BAD_SAMPLE when a text of the
// prompt holds a placeholder itself, so that they do not match the media; DATAERR when a medium's size fits no whole
// token.
status chat_template_encode_prompt(const struct tokenizer *t, const struct group *group, struct vision_grid grid,
                                   struct token_list *out);

#endif
