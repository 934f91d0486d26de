// The wording of a prompt: the question, and how to answer it. A template is text of this form:
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
// The text before the first line that is a problem type in brackets is the body, which must contain {question}. The
// text of a problem's section replaces {how}, or follows the body if there is no {how}. Empty lines at the end of the
// body and of a section do not belong to it. A template without sections has one wording for all types; a template with
// sections must have one for each type that occurs in the data.
#ifndef SHARED_DATA_PROMPT_TEMPLATE_H
#define SHARED_DATA_PROMPT_TEMPLATE_H

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/reward/accuracy.h"

struct prompt_template {
    struct string body;
    struct string sections[PROBLEM_TYPES]; // data == NULL: no such section
};

// The default template, in the form above.
extern const char prompt_template_default[];

// Parses a template; the strings are slices of `text`. DATAERR with "NAME:LINE: what is wrong".
status prompt_template_parse(struct prompt_template *out, const char *name, struct string text);

// Appends the text of a prompt. DATAERR when there are sections but none for this type.
status prompt_template_render(const struct prompt_template *template, enum problem_type type, struct string question,
                              struct buf *out);

#endif
