#include "shared/text/pre_tokenizer.h"

#include <assert.h>
#include <string.h>

#include "shared/base/memory.h"

const char pre_tokenizer_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                                   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char pre_tokenizer_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void pre_tokenizer_release(struct pre_tokenizer *p) {
    for (size_t i = 0; i < p->count; i++) {
        regex_free(&p->steps[i].regex);
        buf_release(&p->steps[i].prefixed);
    }
    *p = (struct pre_tokenizer){0};
}

static status pre_tokenizer_add_step(struct pre_tokenizer *p, struct pre_tokenizer_step **step) {
    if (p->count == PRE_TOKENIZER_STEPS) return fail(DATAERR, "more than %d steps", PRE_TOKENIZER_STEPS);
    *step = &p->steps[p->count++];
    return OK;
}

status pre_tokenizer_add_split(struct pre_tokenizer *p, const char *pattern, size_t size,
                               enum split_behavior behavior) {
    struct pre_tokenizer_step *step = NULL;
    TRY(pre_tokenizer_add_step(p, &step));
    step->behavior = behavior;
    return regex_new(&step->regex, pattern, size);
}

status pre_tokenizer_add_byte_level(struct pre_tokenizer *p, bool add_prefix_space, bool use_regex) {
    struct pre_tokenizer_step *step = NULL;
    TRY(pre_tokenizer_add_step(p, &step));
    step->add_prefix_space = add_prefix_space;
    return use_regex ? regex_new(&step->regex, pre_tokenizer_gpt2, sizeof pre_tokenizer_gpt2 - 1) : OK;
}

struct pre_tokenizer_sink {
    status (*on_word)(void *context, const char *word, size_t size);
    void *context;
};

// Runs the steps from `index` on over one word, which is not empty.
static status pre_tokenizer_run_from(struct pre_tokenizer *p, size_t index, const char *text, size_t size,
                                     const struct pre_tokenizer_sink *sink) {
    assert(size);
    if (index == p->count) return sink->on_word(sink->context, text, size);
    struct pre_tokenizer_step *step = &p->steps[index];
    if (step->add_prefix_space && text[0] != ' ') {
        buf_clear(&step->prefixed);
        buf_append(&step->prefixed, " ", 1);
        buf_append(&step->prefixed, text, size);
        text = step->prefixed.data;
        size = step->prefixed.size;
    }
    if (!step->regex) return pre_tokenizer_run_from(p, index + 1, text, size, sink);
    size_t done = 0, from = 0;
    while (from < size) {
        bool found;
        size_t start, end;
        TRY(regex_find(step->regex, text, size, from, &found, &start, &end));
        if (!found) break;
        if (start > done && step->behavior != SPLIT_REMOVED_INVERT)
            TRY(pre_tokenizer_run_from(p, index + 1, text + done, start - done, sink));
        if (end > start && step->behavior != SPLIT_REMOVED)
            TRY(pre_tokenizer_run_from(p, index + 1, text + start, end - start, sink));
        done = from = end;
        if (end == start) { // an empty match: go on behind the next character
            if (end == size) break;
            from += (size_t)utf8_step(text + end, size - end);
        }
    }
    if (done == size || step->behavior == SPLIT_REMOVED_INVERT) return OK;
    return pre_tokenizer_run_from(p, index + 1, text + done, size - done, sink);
}

status pre_tokenizer_run(struct pre_tokenizer *p, const char *text, size_t size,
                         status (*on_word)(void *context, const char *word, size_t size), void *context) {
    for (size_t i = 0; i < p->count; i++)
        if (p->steps[i].regex) regex_prepare(p->steps[i].regex, text, size);
    return size ? pre_tokenizer_run_from(p, 0, text, size, &(struct pre_tokenizer_sink){on_word, context}) : OK;
}
