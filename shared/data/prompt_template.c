#include "shared/data/prompt_template.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

// pipelines/templates/default.txt has the same text, as a start for users' own templates.
const char prompt_template_default[] =
    "{question}\n"
    "Look closely at what is shown and reason step by step before you answer: say what you see, compare the "
    "possibilities, and check your conclusion. Write your reasoning between <think> and </think>, and after it your "
    "final answer between <answer> and </answer>.{how}\n"
    "\n"
    "[multiple choice]\n"
    " Between <answer> and </answer> write the letter of the right option and nothing else.\n"
    "\n"
    "[numerical]\n"
    " Between <answer> and </answer> write one number, such as 42 or 3.14, and nothing else.\n"
    "\n"
    "[OCR]\n"
    " Between <answer> and </answer> write the text exactly as it can be read, and nothing else.\n"
    "\n"
    "[free-form]\n"
    " Between <answer> and </answer> write your answer as a short text.\n"
    "\n"
    "[regression]\n"
    " Between <answer> and </answer> write your estimate as one number, and nothing else.\n";

static struct string prompt_template_strip(struct string text) {
    while (text.size && (text.data[text.size - 1] == '\n' || text.data[text.size - 1] == '\r')) text.size--;
    return text;
}

status prompt_template_parse(struct prompt_template *out, const char *name, struct string text) {
    *out = (struct prompt_template){.body = {text.data, 0}};
    struct string *part = &out->body;
    size_t number = 1;
    for (size_t at = 0; at < text.size; number++) {
        size_t end = string_find(text, "\n", at);
        end = end == SIZE_MAX ? text.size : end;
        size_t next = end + (end < text.size);
        struct string line = string_slice(text, at, end);
        if (line.size && line.data[line.size - 1] == '\r') line.size--;
        enum problem_type type;
        bool header = line.size >= 2 && line.data[0] == '[' && line.data[line.size - 1] == ']' &&
                      problem_type_parse(string_slice(line, 1, line.size - 1), &type);
        if (header) {
            part = &out->sections[type];
            if (part->data) return fail(DATAERR, "%s:%zu: a second [%s]", name, number, problem_type_name(type));
            *part = string_slice(text, next, next);
        } else {
            part->size += next - at;
        }
        at = next;
    }
    out->body = prompt_template_strip(out->body);
    for (int i = 0; i < PROBLEM_TYPES; i++) out->sections[i] = prompt_template_strip(out->sections[i]);
    if (string_find(out->body, "{question}", 0) == SIZE_MAX)
        return fail(DATAERR, "%s: no {question} before the sections", name);
    return OK;
}

status prompt_template_render(const struct prompt_template *template, enum problem_type type, struct string question,
                              struct buf *out) {
    assert(type < PROBLEM_TYPES);
    struct string section = template->sections[type], body = template->body;
    bool has_sections = false, how_replaced = false;
    for (int i = 0; i < PROBLEM_TYPES; i++) has_sections |= template->sections[i].data != NULL;
    if (has_sections && !section.data)
        return fail(DATAERR, "the template has no section [%s]", problem_type_name(type));
    size_t from = 0;
    for (;;) {
        size_t next_question = string_find(body, "{question}", from), next_how = string_find(body, "{how}", from);
        size_t at = next_question < next_how ? next_question : next_how;
        if (at == SIZE_MAX) break;
        buf_append(out, body.data + from, at - from);
        if (at == next_question) {
            buf_append(out, question.data, question.size);
            from = at + sizeof "{question}" - 1;
        } else {
            buf_append(out, section.data, section.size);
            from = at + sizeof "{how}" - 1;
            how_replaced = true;
        }
    }
    buf_append(out, body.data + from, body.size - from);
    if (!how_replaced) buf_append(out, section.data, section.size);
    return OK;
}
