#include "shared/data/prompt_template.h"

#include <stdio.h>
#include <string.h>

// The same text stands in pipelines/templates/default.txt, to start one's own from.
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

// Whether the line is a section's head.
static bool is_head(struct string line, enum problem_type *type) {
    if (line.size && line.data[line.size - 1] == '\r') line.size--;
    if (line.size < 2 || line.data[0] != '[' || line.data[line.size - 1] != ']') return false;
    return problem_type_parse(string_slice(line, 1, line.size - 1), type);
}

static struct string without_line_ends(struct string part) {
    while (part.size && (part.data[part.size - 1] == '\n' || part.data[part.size - 1] == '\r')) part.size--;
    return part;
}

status prompt_template_parse(struct prompt_template *out, const char *name, struct string whole) {
    *out = (struct prompt_template){.body = {whole.data, 0}};
    struct string *part = &out->body;
    size_t line = 1;
    for (size_t at = 0; at < whole.size; line++) {
        size_t end = string_find(whole, "\n", at);
        end = end == SIZE_MAX ? whole.size : end;
        enum problem_type type;
        size_t next = end + (end < whole.size);
        if (is_head(string_slice(whole, at, end), &type)) {
            part = &out->sections[type];
            if (part->data) return fail(DATAERR, "%s:%zu: a second [%s]", name, line, problem_type_name(type));
            *part = string_slice(whole, next, next);
        } else {
            part->size += next - at;
        }
        at = next;
    }
    out->body = without_line_ends(out->body);
    for (int i = 0; i < PROBLEM_TYPES; i++) out->sections[i] = without_line_ends(out->sections[i]);
    if (string_find(out->body, "{question}", 0) == SIZE_MAX)
        return fail(DATAERR, "%s: no {question} before the sections", name);
    return OK;
}

// The section of a type: empty where a template has no sections at all.
static status find_section(const struct prompt_template *template, enum problem_type type, struct string *section) {
    bool any = false;
    for (int i = 0; i < PROBLEM_TYPES; i++) any |= template->sections[i].data != NULL;
    *section = template->sections[type];
    if (any && !section->data) return fail(DATAERR, "the template has no section [%s]", problem_type_name(type));
    return OK;
}

status prompt_template_render(const struct prompt_template *template, enum problem_type type, struct string question,
                              struct buf *out) {
    struct string section, body = template->body;
    TRY(find_section(template, type, &section));
    bool placed = false;
    size_t from = 0;
    for (;;) {
        size_t asked = string_find(body, "{question}", from), how = string_find(body, "{how}", from);
        size_t at = asked < how ? asked : how;
        if (at == SIZE_MAX) break;
        TRY(buf_append(out, body.data + from, at - from));
        if (at == asked) {
            TRY(buf_append(out, question.data, question.size));
            from = at + sizeof "{question}" - 1;
        } else {
            TRY(buf_append(out, section.data, section.size));
            from = at + sizeof "{how}" - 1;
            placed = true;
        }
    }
    TRY(buf_append(out, body.data + from, body.size - from));
    return placed ? OK : buf_append(out, section.data, section.size);
}
