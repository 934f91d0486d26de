// The pair of texts that the consistency model reads (CORA, arXiv 2606.14691): the premise is the question and the
// thinking, the hypothesis says what the answer is. The model says whether the premise supports the hypothesis.
#pragma once

#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"
#include "shared/text/tokenizer.h"

// Both are absent where the completion has no thinking or no answer: then nothing is asked, and it is not consistent.
struct consistency_pair {
    struct string premise, hypothesis;
    size_t thinking; // the byte of the premise at which the thinking begins
};

// Sets *template to the template of the hypothesis: a file without the newline at its end, or the default "The final
// answer is {answer}" if `path` is NULL. DATAERR with the path as template_read, and when it has neither {answer} nor
// {option}.
status consistency_template_read(struct arena *memory, const char *path, struct string *template);

// Makes the pair of completion i, in the arena. The thinking stands between the first <think> and the first </think>
// after it, and the answer in the first <answer>…</answer>; both are stripped, and an empty one is none. The premise is
// prompt.question, a newline and the thinking. In the hypothesis every {answer} and {option} of the template
// is replaced: by the answer, and by the option whose letter the answer is, or else by the answer, too; the same words
// in an answer or an option stay. DATAERR when the group has no question.
status consistency_pair_make(struct consistency_pair *pair, struct arena *memory, const struct group *group, size_t i,
                             struct string template);

// Returns where the thinking begins in a premise whose question is known: behind the question and a newline. 0 if the
// premise does not begin with them.
size_t consistency_thinking_begin(struct string premise, struct string question);

// Checks that a tokenizer suits a consistency model: it makes [CLS] premise [SEP] hypothesis [SEP] of a pair, and has
// no more tokens than the model's vocab_size. DATAERR names `dir`.
status consistency_tokenizer_check(const struct tokenizer *tokenizer, const char *dir, int64_t vocab_size);

// Appends the tokens of a pair that has both texts, with the special tokens, `max_tokens` at most: the first tokens of
// the thinking are left out as far as needed, and *cut is their number. The tokens of the thinking are the last ones of
// the premise, as many as the thinking has alone; the premise is tokenized as a whole all the same. BAD_SAMPLE when the
// other tokens alone are more than `max_tokens`, DATAERR when a text is not UTF-8.
status consistency_pair_encode(const struct consistency_pair *pair, const struct tokenizer *tokenizer,
                               size_t max_tokens, struct token_list *out, size_t *cut);
