#include "shared/reward/verdict.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"

status verdict_init(struct group *group, const char *judge) {
    struct consistency *consistency = &group->consistency;
    const size_t count = group->completion_count;
    enum problem_type type;
    TRY(group_check(group, NEED_COMPLETIONS));
    TRY(problem_type_of(group, &type));
    GROUP_ARRAY(group, &consistency->verdict, count);
    for (size_t i = 0; i < count; i++) consistency->verdict.data[i] = NAN;
    GROUP_ARRAY(group, &consistency->reason, count);
    consistency->present = true;
    group_string(group, &consistency->judge, judge, strlen(judge));
    return OK;
}

void verdict_set(struct group *group, size_t i, double verdict, const char *format, ...) {
    char reason[256];
    va_list arguments;
    assert(i < group->consistency.verdict.count && i < group->consistency.reason.count);
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    group->consistency.verdict.data[i] = verdict;
    group_string(group, &group->consistency.reason.data[i], reason, strlen(reason));
}

status verdict_check(const struct group *group) {
    const struct double_array *verdict = &group->consistency.verdict;
    if (!verdict->data) return OK;
    if (verdict->count != group->completion_count)
        return fail(DATAERR, "not a group: consistency.verdict: %zu for %zu completions", verdict->count,
                    group->completion_count);
    for (size_t i = 0; i < verdict->count; i++)
        if (verdict->data[i] != 0 && verdict->data[i] != 1 && !isnan(verdict->data[i]))
            return fail(DATAERR, "not a group: consistency.verdict[%zu]: not 0 or 1", i);
    return OK;
}

const char *verdict_obstacle(const struct group *group, size_t i, struct string *thinking, char *answer) {
    const struct prompt *prompt = &group->prompt;
    const struct string text = group->completions[i].text;
    if (!string_equals(prompt->problem_type, problem_type_name(PROBLEM_CHOICE)))
        return "the question is no multiple choice";
    if (!prompt->options.count) return "the question has no options";
    *thinking = thinking_extract(text);
    if (!thinking->data) return "there is no thinking";
    *answer = option_of_answer(answer_extract(text), &prompt->options);
    return *answer ? NULL : "the answer names no option";
}

// ---- concludes ----

// Sentence by sentence, since a letter counts or not by its place in the sentence. Of all mentions in a sentence the
// one that ends last is wanted, and of those that end together the longest one; so no mention inside a longer one is
// found.

// The mention of an option in a sentence. letter 0: there is none.
struct mention {
    size_t begin, end;
    char letter;
};

// Returns the character at a byte, 0 at the end.
static int32_t concludes_char_at(struct string text, size_t at) {
    size_t length;
    return at < text.size ? python_char_at(text, at, &length) : 0;
}

// Moves *at to the character before and returns it, 0 at the beginning.
static int32_t concludes_step_back(struct string text, size_t *at) {
    if (!*at) return 0;
    do *at -= 1;
    while (*at && ((unsigned char)text.data[*at] & 0xc0) == 0x80);
    return concludes_char_at(text, *at);
}

static int32_t concludes_char_before(struct string text, size_t at) {
    return concludes_step_back(text, &at);
}

// Whether a letter next to this character is part of a longer word.
static bool concludes_joins(int32_t code) {
    return is_word_character(code) || code == '\'' || code == 0x2019;
}

// ---- sentences ----

// Returns where the sentence that begins at `from` ends: behind a line break, or a stop that white space follows.
static size_t concludes_sentence_end(struct string text, size_t from) {
    size_t length;
    for (size_t at = from; at < text.size; at += length) {
        const int32_t code = python_char_at(text, at, &length);
        const size_t next = at + length;
        if (code == ' ' || (code >= 'A' && code <= 'z')) continue; // most characters
        if ((code >= '\n' && code <= '\r') || code == 0x85 || code == 0x2028 || code == 0x2029) return next;
        const bool stop = code == '.' || code == '!' || code == '?' || code == 0x2026 || code == 0x3002 ||
                          code == 0xff01 || code == 0xff1f; // . ! ? and their relatives
        if (!stop || !python_isspace(concludes_char_at(text, next))) continue;
        size_t capital = at - from; // a full stop behind a capital that stands alone, as in "B. wash", ends none
        const struct string sentence = string_slice(text, from, next);
        if (code != '.' || utf8proc_category(concludes_step_back(sentence, &capital)) != UTF8PROC_CATEGORY_LU ||
            concludes_joins(concludes_step_back(sentence, &capital)))
            return next;
    }
    return text.size;
}

// ---- mentions ----

// Whether white space and a small letter follow, as behind the words I and A.
static bool concludes_goes_on(struct string sentence, size_t at) {
    size_t length, from = at;
    while (at < sentence.size && python_isspace(python_char_at(sentence, at, &length))) at += length;
    return at > from && utf8proc_category(concludes_char_at(sentence, at)) == UTF8PROC_CATEGORY_LL;
}

// Whether the ASCII letter at `at` names an option.
static bool concludes_is_letter(struct string sentence, size_t at) {
    const int32_t before = concludes_char_before(sentence, at), after = concludes_char_at(sentence, at + 1);
    const char letter = sentence.data[at];
    if (concludes_joins(before) || concludes_joins(after)) return false;
    if (letter >= 'a') { // in brackets, or behind the word `option` and white space
        if (before == '(' && after == ')') return true;
        static const char word[] = "ption";
        const struct string head = python_strip(string_slice(sentence, 0, at));
        const size_t end = (size_t)(head.data - sentence.data) + head.size, size = sizeof word;
        if (end == at || head.size < size || memcmp(sentence.data + end - size + 1, word, size - 1) != 0) return false;
        const char first = sentence.data[end - size];
        return (first == 'o' || first == 'O') && !is_word_character(concludes_char_before(sentence, end - size));
    }
    if (letter == 'I') return !concludes_goes_on(sentence, at + 1);
    if (letter != 'A' || !concludes_goes_on(sentence, at + 1)) return true;
    size_t length;
    for (size_t first = 0; first < at; first += length) // A is an article if it is the first word
        if (is_word_character(python_char_at(sentence, first, &length))) return true;
    return false;
}

// Sets *last to the mention unless the one in *last ends later, or ends with it and is longer.
static void concludes_offer(struct mention *last, size_t begin, size_t end, char letter) {
    if (last->letter && (end < last->end || (end == last->end && begin >= last->begin))) return;
    *last = (struct mention){begin, end, letter};
}

// The last sentences are looked at first, as mostly one of them names an option.
char concludes_option(struct string thinking, const struct string_array *options) {
    struct buf buf = {0}; // where each sentence begins
    char option = 0;
    for (size_t at = 0; at < thinking.size; at = concludes_sentence_end(thinking, at)) buf_append(&buf, &at, sizeof at);
    const size_t *begins = (const void *)buf.data;
    for (size_t i = buf.size / sizeof *begins, end = thinking.size; i-- > 0 && !option; end = begins[i]) {
        const struct string sentence = string_slice(thinking, begins[i], end);
        const size_t count = options->count < 26 ? options->count : 26;
        struct mention last = {0};
        for (size_t at = sentence.size; at-- > 0 && !last.letter;) {
            const char capital = sentence.data[at] >= 'a' ? (char)(sentence.data[at] - 'a' + 'A') : sentence.data[at];
            if (capital < 'A' || capital >= 'A' + (int)count || !concludes_is_letter(sentence, at)) continue;
            concludes_offer(&last, at, at + 1, capital);
        }
        for (size_t k = 0; k < count; k++) {
            const struct string text = options->data[k].data ? python_strip(options->data[k]) : options->data[k];
            if (!text.data || !text.size) continue;
            const char *found = sentence.data, *stop = sentence.data + sentence.size;
            while ((found = memmem(found, (size_t)(stop - found), text.data, text.size)) != NULL) {
                const size_t begin = (size_t)(found - sentence.data), behind = begin + text.size;
                if (!is_word_character(concludes_char_before(sentence, begin)) && // it cuts no word in two
                    !is_word_character(concludes_char_at(sentence, behind)))
                    concludes_offer(&last, begin, behind, (char)('A' + k));
                found++;
            }
        }
        option = last.letter;
    }
    buf_release(&buf);
    return option;
}

// ---- the judge ----

status concludes_group(struct group *group) {
    TRY(verdict_init(group, "concludes"));
    for (size_t i = 0; i < group->completion_count; i++) {
        struct string thinking;
        char answer;
        const char *obstacle = verdict_obstacle(group, i, &thinking, &answer);
        const char option = obstacle ? 0 : concludes_option(thinking, &group->prompt.options);
        if (obstacle)
            verdict_set(group, i, NAN, "%s", obstacle);
        else if (!option)
            verdict_set(group, i, NAN, "the thinking names no option");
        else
            verdict_set(group, i, option == answer, "the last option named is %c, the answer is %c", option, answer);
    }
    return OK;
}
