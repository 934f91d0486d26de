#include "shared/reward/option_letter.h"

#include <string.h>
#include <utf8proc.h>

#include "shared/reward/python_text.h"

bool is_word_character(int32_t code) {
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return code == '_';
    }
}

char option_letter(struct string answer) {
    size_t at = answer.size && (answer.data[0] == '(' || answer.data[0] == '['), length;
    if (at >= answer.size || answer.data[at] < 'A' || answer.data[at] > 'Z') return 0;
    if (at + 1 < answer.size && is_word_character(python_char_at(answer, at + 1, &length))) return 0;
    return answer.data[at];
}

char option_of_answer(struct string answer, const struct string_array *options) {
    const char letter = option_letter(answer);
    for (size_t i = 0; !letter && answer.size && i < options->count && i < 26; i++) {
        const struct string text = options->data[i];
        if (text.data && text.size == answer.size && !memcmp(text.data, answer.data, text.size)) return (char)('A' + i);
    }
    return letter;
}
