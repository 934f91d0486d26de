#include "shared/text/pre_tokenizer.h"

#include <string.h>

#include "shared/base/utf8.h"

const char pre_tokenizer_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                                   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char pre_tokenizer_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void pre_tokenizer_release(struct pre_tokenizer *s) {
    for (size_t i = 0; i < s->count; i++) {
        regex_free(&s->steps[i].pattern);
        buf_release(&s->steps[i].spaced);
    }
    *s = (struct pre_tokenizer){0};
}

// A fresh step, NULL if there are too many.
static struct pre_tokenizer_step *add_step(struct pre_tokenizer *s) {
    if (s->count < PRE_TOKENIZER_STEPS) return &s->steps[s->count++];
    fail(DATAERR, "more than %d steps", PRE_TOKENIZER_STEPS);
    return NULL;
}

status pre_tokenizer_add_split(struct pre_tokenizer *s, const char *regex, size_t size, enum split_behavior rule) {
    struct pre_tokenizer_step *step = add_step(s);
    if (!step) return DATAERR;
    step->rule = rule;
    return regex_new(&step->pattern, regex, size);
}

status pre_tokenizer_add_byte_level(struct pre_tokenizer *s, bool prefix_space, bool gpt2_pattern) {
    struct pre_tokenizer_step *step = add_step(s);
    if (!step) return DATAERR;
    step->prefix_space = prefix_space;
    return gpt2_pattern ? regex_new(&step->pattern, pre_tokenizer_gpt2, sizeof pre_tokenizer_gpt2 - 1) : OK;
}

struct taker {
    status (*take)(void *context, const char *word, size_t size);
    void *context;
};

static status run_from(struct pre_tokenizer *s, size_t index, const char *text, size_t size, const struct taker *taker);

static status split_by(struct pre_tokenizer *s, size_t index, const char *text, size_t size,
                       const struct taker *taker) {
    struct pre_tokenizer_step *step = &s->steps[index];
    size_t done = 0, from = 0;
    while (from < size) {
        bool found;
        size_t start, end;
        TRY(regex_find(step->pattern, text, size, from, &found, &start, &end));
        if (!found) break;
        if (start > done && step->rule != SPLIT_REMOVED_INVERT)
            TRY(run_from(s, index + 1, text + done, start - done, taker));
        if (end > start && step->rule != SPLIT_REMOVED) TRY(run_from(s, index + 1, text + start, end - start, taker));
        done = from = end;
        if (end == start && end < size)
            from += (size_t)utf8_step(text + end, size - end);
        else if (end == start)
            break;
    }
    return done < size && step->rule != SPLIT_REMOVED_INVERT ? run_from(s, index + 1, text + done, size - done, taker)
                                                             : OK;
}

static status run_from(struct pre_tokenizer *s, size_t index, const char *text, size_t size,
                       const struct taker *taker) {
    if (index == s->count) return taker->take(taker->context, text, size);
    struct pre_tokenizer_step *step = &s->steps[index];
    if (step->prefix_space && text[0] != ' ') {
        buf_clear(&step->spaced);
        TRY(buf_append(&step->spaced, " ", 1));
        TRY(buf_append(&step->spaced, text, size));
        text = step->spaced.data;
        size = step->spaced.size;
    }
    return step->pattern ? split_by(s, index, text, size, taker) : run_from(s, index + 1, text, size, taker);
}

status pre_tokenizer_run(struct pre_tokenizer *s, const char *text, size_t size,
                         status (*take)(void *context, const char *word, size_t size), void *context) {
    for (size_t i = 0; i < s->count; i++)
        if (s->steps[i].pattern) regex_prepare(s->steps[i].pattern, text, size);
    return size ? run_from(s, 0, text, size, &(struct taker){take, context}) : OK;
}
