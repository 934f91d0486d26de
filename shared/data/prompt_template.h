// The wording of a prompt: the question, then how to answer. A template is a text:
//
//     {question}
//     Think first, inside <think> and </think>, then answer inside <answer> and </answer>.{how}
//
//     [multiple choice]
//      Answer with the letter of the right option.
//
//     [numerical]
//      ...
//
// What stands before the first line that is a problem type in brackets is the body; {question} must be in it. A
// section's text, without the empty lines at its end, takes the place of {how}, or follows the body if there is no
// {how}. A template without sections has one wording for every type; one with sections must have one for every type
// that the data has. The empty lines at the body's end are not part of it either.
#ifndef SHARED_DATA_PROMPT_TEMPLATE_H
#define SHARED_DATA_PROMPT_TEMPLATE_H

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"
#include "shared/reward/accuracy.h"

struct prompt_template {
    struct string body;
    struct string sections[PROBLEM_TYPES]; // data == NULL: there is none
};

// The wording that caravan ships, a text of the form above.
extern const char prompt_template_default[];

// Cuts a template; slices point into `whole`. DATAERR with "NAME:LINE: what is wrong".
status prompt_template_parse(struct prompt_template *out, const char *name, struct string whole);

// Appends the prompt's text. DATAERR when there are sections and none for this type.
status prompt_template_render(const struct prompt_template *template, enum problem_type type, struct string question,
                              struct buf *out);

#endif
