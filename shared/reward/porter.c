// M. F. Porter, "An algorithm for suffix stripping" (Program 14(3), 1980): a stem's measure m counts how often a
// consonant follows a vowel. Departures, named where they are made: irregular words; -ies and -ied of words of four
// letters; y becomes i after a consonant only; alli before bli; bli, fulli and logi; a stem vowel-consonant ends "cvc".
#include "shared/reward/porter.h"

#include <stdbool.h>
#include <string.h>

struct word {
    char *letters;
    size_t size;
};

typedef bool condition(const char *stem, size_t size);

// In a step the first rule whose suffix fits decides, whether its condition holds or not.
struct rule {
    const char *suffix;
    const char *replacement;
    condition *holds; // of what stands before the suffix; NULL: always
};

// A y is a consonant at the beginning and after a vowel.
static bool is_consonant(const char *letters, size_t at) {
    size_t run = 0;
    while (at - run > 0 && letters[at - run] == 'y') run++;
    char last = letters[at - run];
    bool consonant = last != 'a' && last != 'e' && last != 'i' && last != 'o' && last != 'u';
    return consonant != (run % 2 == 1);
}

// How often a consonant follows a vowel; *vowels, if asked for, whether there is one.
static size_t count_measure(const char *letters, size_t size, bool *vowels) {
    size_t measure = 0;
    bool before = true, any = false;
    for (size_t i = 0; i < size; i++) {
        bool now;
        switch (letters[i]) {
        case 'a':
        case 'e':
        case 'i':
        case 'o':
        case 'u':
            now = false;
            break;
        case 'y':
            now = i == 0 || !before;
            break;
        default:
            now = true;
        }
        measure += i > 0 && now && !before;
        any |= !now;
        before = now;
    }
    if (vowels) *vowels = any;
    return measure;
}

static bool measure_over_0(const char *stem, size_t size) {
    return count_measure(stem, size, NULL) > 0;
}

static bool measure_over_1(const char *stem, size_t size) {
    return count_measure(stem, size, NULL) > 1;
}

static bool has_vowel(const char *stem, size_t size) {
    bool vowels;
    count_measure(stem, size, &vowels);
    return vowels;
}

static bool ends_double(const char *stem, size_t size) {
    return size >= 2 && stem[size - 1] == stem[size - 2] && is_consonant(stem, size - 1);
}

// Consonant, vowel, consonant other than w, x, y; or just vowel, consonant (a departure).
static bool ends_cvc(const char *stem, size_t size) {
    if (size == 2) return !is_consonant(stem, 0) && is_consonant(stem, 1);
    return size >= 3 && is_consonant(stem, size - 3) && !is_consonant(stem, size - 2) && is_consonant(stem, size - 1) &&
           !strchr("wxy", stem[size - 1]);
}

static bool ends_with(const struct word *word, const char *suffix) {
    size_t length = strlen(suffix);
    return word->size >= length && !memcmp(word->letters + word->size - length, suffix, length);
}

// The suffix fits already; no replacement is longer than what it replaces plus what was taken off before.
static void replace(struct word *word, const char *suffix, const char *replacement) {
    size_t length = strlen(replacement);
    word->size -= strlen(suffix);
    memcpy(word->letters + word->size, replacement, length);
    word->size += length;
}

static void apply(struct word *word, const struct rule *rules) {
    for (; rules->suffix; rules++) {
        if (!ends_with(word, rules->suffix)) continue;
        if (!rules->holds || rules->holds(word->letters, word->size - strlen(rules->suffix)))
            replace(word, rules->suffix, rules->replacement);
        return;
    }
}

static void plural(struct word *word) {
    static const struct rule rules[] = {
        {"sses", "ss", NULL}, {"ies", "i", NULL}, {"ss", "ss", NULL}, {"s", "", NULL}, {0}};
    if (word->size == 4 && ends_with(word, "ies")) // a departure: dies becomes die
        replace(word, "ies", "ie");
    else
        apply(word, rules);
}

// What is left of -ed and -ing gets its e back or loses a doubled letter.
static void mend(struct word *word) {
    static const struct rule rules[] = {{"at", "ate", NULL}, {"bl", "ble", NULL}, {"iz", "ize", NULL}, {0}};
    char last = word->letters[word->size - 1];
    if (ends_with(word, "at") || ends_with(word, "bl") || ends_with(word, "iz")) {
        apply(word, rules);
    } else if (ends_double(word->letters, word->size)) {
        if (!strchr("lsz", last)) word->size--;
    } else if (count_measure(word->letters, word->size, NULL) == 1 && ends_cvc(word->letters, word->size)) {
        replace(word, "", "e");
    }
}

static void past(struct word *word) {
    if (ends_with(word, "ied")) { // a departure
        replace(word, "ied", word->size == 4 ? "ie" : "i");
    } else if (ends_with(word, "eed")) {
        if (measure_over_0(word->letters, word->size - 3)) word->size--;
    } else if (ends_with(word, "ed") && has_vowel(word->letters, word->size - 2)) {
        word->size -= 2;
        mend(word);
    } else if (ends_with(word, "ing") && has_vowel(word->letters, word->size - 3)) {
        word->size -= 3;
        mend(word);
    }
}

// A departure: only after a consonant that is not the first letter.
static void final_y(struct word *word) {
    if (word->size > 2 && ends_with(word, "y") && is_consonant(word->letters, word->size - 2))
        word->letters[word->size - 1] = 'i';
}

static void double_suffix(struct word *word) {
    static const struct rule rules[] = {
        {"ational", "ate", measure_over_0}, {"tional", "tion", measure_over_0},
        {"enci", "ence", measure_over_0},   {"anci", "ance", measure_over_0},
        {"izer", "ize", measure_over_0},    {"bli", "ble", measure_over_0},
        {"alli", "al", measure_over_0},     {"entli", "ent", measure_over_0},
        {"eli", "e", measure_over_0},       {"ousli", "ous", measure_over_0},
        {"ization", "ize", measure_over_0}, {"ation", "ate", measure_over_0},
        {"ator", "ate", measure_over_0},    {"alism", "al", measure_over_0},
        {"iveness", "ive", measure_over_0}, {"fulness", "ful", measure_over_0},
        {"ousness", "ous", measure_over_0}, {"aliti", "al", measure_over_0},
        {"iviti", "ive", measure_over_0},   {"biliti", "ble", measure_over_0},
        {"fulli", "ful", measure_over_0},   {0},
    };
    while (ends_with(word, "alli") && measure_over_0(word->letters, word->size - 4)) replace(word, "alli", "al");
    if (ends_with(word, "logi")) { // the l counts to the stem
        if (measure_over_0(word->letters, word->size - 3)) word->size--;
        return;
    }
    apply(word, rules);
}

static void adjective(struct word *word) {
    static const struct rule rules[] = {
        {"icate", "ic", measure_over_0}, {"ative", "", measure_over_0},
        {"alize", "al", measure_over_0}, {"iciti", "ic", measure_over_0},
        {"ical", "ic", measure_over_0},  {"ful", "", measure_over_0},
        {"ness", "", measure_over_0},    {0},
    };
    apply(word, rules);
}

static bool for_ion(const char *stem, size_t size) {
    return measure_over_1(stem, size) && (stem[size - 1] == 's' || stem[size - 1] == 't');
}

static void last_suffix(struct word *word) {
    static const struct rule rules[] = {
        {"al", "", measure_over_1},    {"ance", "", measure_over_1},
        {"ence", "", measure_over_1},  {"er", "", measure_over_1},
        {"ic", "", measure_over_1},    {"able", "", measure_over_1},
        {"ible", "", measure_over_1},  {"ant", "", measure_over_1},
        {"ement", "", measure_over_1}, {"ment", "", measure_over_1},
        {"ent", "", measure_over_1},   {"ion", "", for_ion},
        {"ou", "", measure_over_1},    {"ism", "", measure_over_1},
        {"ate", "", measure_over_1},   {"iti", "", measure_over_1},
        {"ous", "", measure_over_1},   {"ive", "", measure_over_1},
        {"ize", "", measure_over_1},   {0},
    };
    apply(word, rules);
}

static void final_e(struct word *word) {
    if (!ends_with(word, "e")) return;
    size_t measure = count_measure(word->letters, word->size - 1, NULL);
    if (measure > 1 || (measure == 1 && !ends_cvc(word->letters, word->size - 1))) word->size--;
}

static void double_l(struct word *word) {
    if (ends_with(word, "ll") && measure_over_1(word->letters, word->size - 1)) word->size--;
}

// A departure: words that the rules get wrong. The stem is the beginning of the word but for three in -ying.
static bool irregular(struct word *word) {
    static const char *const words[][2] = {
        {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
        {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
        {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
        {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (word->size != strlen(words[i][0]) || memcmp(word->letters, words[i][0], word->size) != 0) continue;
        word->size = strlen(words[i][1]);
        memcpy(word->letters, words[i][1], word->size);
        return true;
    }
    return false;
}

size_t porter_stem(char *letters, size_t size) {
    struct word word = {letters, size};
    if (irregular(&word) || size <= 2) return word.size;
    plural(&word);
    past(&word);
    final_y(&word);
    double_suffix(&word);
    adjective(&word);
    last_suffix(&word);
    final_e(&word);
    double_l(&word);
    return word.size;
}
