#include "shared/data/consistency_pair.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "shared/data/format.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"

static const char *const consistency_names[2] = {"{answer}", "{option}"};

status consistency_template_read(struct arena *memory, const char *path, struct string *template) {
    struct buf text = {0};
    status result;
    if (!path) {
        *template = string_of("The final answer is {answer}");
        return OK;
    }
    TRY_TO(result, done, template_read(path, &text));
    if (text.size && text.data[text.size - 1] == '\n')
        text.size -= text.size > 1 && text.data[text.size - 2] == '\r' ? 2 : 1;
    const struct string content = {text.data, text.size};
    if (string_find(content, consistency_names[0], 0) == SIZE_MAX &&
        string_find(content, consistency_names[1], 0) == SIZE_MAX)
        TRY_TO(result, done, fail(DATAERR, "%s: neither {answer} nor {option}", path));
    arena_string(memory, template, content.data, content.size);
done:
    buf_release(&text);
    return result;
}

status consistency_pair_make(struct consistency_pair *pair, struct arena *memory, const struct group *group, size_t i,
                             struct string template) {
    const struct prompt *prompt = &group->prompt;
    struct buf text = {0};
    *pair = (struct consistency_pair){0};
    assert(i < group->completion_count);
    if (!prompt->question.data) return fail(DATAERR, "not a group: prompt.question: missing");
    const struct string completion = group->completions[i].text, answer = answer_extract(completion);
    struct string thinking = thinking_extract(completion);
    if (thinking.data) thinking = python_strip(thinking);
    if (!thinking.size || !answer.size) return OK;
    // The option whose letter the answer is, or else the answer.
    struct string option = answer;
    const size_t index = answer.size == 1 && answer.data[0] >= 'A' ? (size_t)(answer.data[0] - 'A') : SIZE_MAX;
    if (index < 26 && index < prompt->options.count && prompt->options.data[index].data)
        option = prompt->options.data[index];

    buf_append(&text, prompt->question.data, prompt->question.size);
    buf_puts(&text, "\n");
    pair->thinking = text.size;
    buf_append(&text, thinking.data, thinking.size);
    arena_string(memory, &pair->premise, text.data, text.size);
    buf_clear(&text);
    template_fill(&text, template, consistency_names, (const struct string[2]){answer, option});
    arena_string(memory, &pair->hypothesis, text.data, text.size);
    buf_release(&text);
    return OK;
}

size_t consistency_thinking_begin(struct string premise, struct string question) {
    const size_t size = question.size;
    if (!question.data) return 0;
    const bool begins = premise.size > size && premise.data[size] == '\n' && !memcmp(premise.data, question.data, size);
    return begins ? size + 1 : 0;
}

status consistency_tokenizer_check(const struct tokenizer *tokenizer, const char *dir, int64_t vocab_size) {
    const int64_t tokens = tokenizer_vocab_size(tokenizer);
    struct token_list none = {0}, special = {0};
    tokenizer_add_special_tokens(tokenizer, &none, &none, &special);
    const size_t count = special.count;
    token_list_release(&special);
    if (tokens > vocab_size)
        return fail(DATAERR, "%s: the tokenizer has %lld tokens, but vocab_size is %lld", dir, (long long)tokens,
                    (long long)vocab_size);
    if (count != 3)
        return fail(DATAERR,
                    "%s: the tokenizer gives a pair %zu special tokens, not the 3 of [CLS] premise [SEP] hypothesis "
                    "[SEP]",
                    dir, count);
    return OK;
}

status consistency_pair_encode(const struct consistency_pair *pair, const struct tokenizer *tokenizer,
                               size_t max_tokens, struct token_list *out, size_t *cut) {
    const struct string thinking = string_slice(pair->premise, pair->thinking, pair->premise.size);
    struct token_list premise = {0}, hypothesis = {0}, alone = {0};
    const size_t before = out->count;
    status result;
    assert(pair->premise.data && pair->hypothesis.data && pair->thinking <= pair->premise.size);
    *cut = 0;
    TRY_TO(result, done, tokenizer_encode(tokenizer, pair->premise.data, pair->premise.size, &premise));
    TRY_TO(result, done, tokenizer_encode(tokenizer, pair->hypothesis.data, pair->hypothesis.size, &hypothesis));
    tokenizer_add_special_tokens(tokenizer, &premise, &hypothesis, out);
    if (out->count - before <= max_tokens) goto done;
    *cut = out->count - before - max_tokens;
    out->count = before;
    // Removes the first tokens of the thinking from those of the premise.
    TRY_TO(result, done, tokenizer_encode(tokenizer, thinking.data, thinking.size, &alone));
    const size_t count = alone.count < premise.count ? alone.count : premise.count;
    if (*cut > count)
        TRY_TO(result, done,
               fail(BAD_SAMPLE, "question and hypothesis alone have %zu tokens, but max_tokens is %zu",
                    max_tokens + *cut - count, max_tokens));
    int64_t *first = premise.data + (premise.count - count);
    memmove(first, first + *cut, (count - *cut) * sizeof *first);
    premise.count -= *cut;
    tokenizer_add_special_tokens(tokenizer, &premise, &hypothesis, out);
done:
    token_list_release(&premise);
    token_list_release(&hypothesis);
    token_list_release(&alone);
    return result;
}
