// M. F. Porter, "An algorithm for suffix stripping" (Program 14(3), 1980). The measure of a stem is the number of times
// that a consonant follows a vowel in it. NLTK's variant differs in these points, which are marked where they are made:
// irregular words; -ies and -ied of words of four letters; y becomes i only after a consonant; alli before bli; bli,
// fulli and logi; a stem of a vowel and a consonant counts as ending in "cvc".
#include "shared/reward/porter.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

struct porter_word {
    char *letters;
    size_t size;
};

// In a step the first rule whose suffix matches decides, whether its condition holds or not.
struct porter_rule {
    const char *suffix;
    const char *replacement;
    bool (*condition)(const char *stem, size_t size); // on the letters before the suffix; NULL: always
};

// A y is a consonant at the start and after a vowel.
static bool porter_is_consonant(const char *letters, size_t at) {
    size_t run = 0;
    while (at - run > 0 && letters[at - run] == 'y') run++;
    char last = letters[at - run];
    bool consonant = last != 'a' && last != 'e' && last != 'i' && last != 'o' && last != 'u';
    return consonant != (run % 2 == 1);
}

// Returns the measure; sets *vowels, if not NULL, to whether there is a vowel.
static size_t porter_measure(const char *letters, size_t size, bool *vowels) {
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

static bool porter_m_over_0(const char *stem, size_t size) {
    return porter_measure(stem, size, NULL) > 0;
}

static bool porter_m_over_1(const char *stem, size_t size) {
    return porter_measure(stem, size, NULL) > 1;
}

// The condition for -ion.
static bool porter_s_or_t(const char *stem, size_t size) {
    return porter_m_over_1(stem, size) && (stem[size - 1] == 's' || stem[size - 1] == 't');
}

static bool porter_has_vowel(const char *stem, size_t size) {
    bool vowels;
    porter_measure(stem, size, &vowels);
    return vowels;
}

// Returns whether the stem ends in consonant, vowel, consonant other than w, x, y; or is vowel, consonant (NLTK).
static bool porter_ends_cvc(const char *stem, size_t size) {
    if (size == 2) return !porter_is_consonant(stem, 0) && porter_is_consonant(stem, 1);
    return size >= 3 && porter_is_consonant(stem, size - 3) && !porter_is_consonant(stem, size - 2) &&
           porter_is_consonant(stem, size - 1) && !strchr("wxy", stem[size - 1]);
}

static bool porter_ends_with(const struct porter_word *word, const char *suffix) {
    size_t length = strlen(suffix);
    return word->size >= length && !memcmp(word->letters + word->size - length, suffix, length);
}

// The suffix must match. A replacement is never longer than the letters that it and earlier steps have removed.
static void porter_replace(struct porter_word *word, const char *suffix, const char *replacement) {
    size_t length = strlen(replacement);
    assert(porter_ends_with(word, suffix));
    word->size -= strlen(suffix);
    memcpy(word->letters + word->size, replacement, length);
    word->size += length;
}

// Applies a step's rules, which end with a zeroed one.
static void porter_apply(struct porter_word *word, const struct porter_rule *rules) {
    for (; rules->suffix; rules++) {
        if (!porter_ends_with(word, rules->suffix)) continue;
        if (!rules->condition || rules->condition(word->letters, word->size - strlen(rules->suffix)))
            porter_replace(word, rules->suffix, rules->replacement);
        return;
    }
}

// The second half of step 1b: restores an e or removes a doubled letter after -ed and -ing have been removed.
static void porter_step_1b_repair(struct porter_word *word) {
    static const struct porter_rule rules[] = {{"at", "ate", NULL}, {"bl", "ble", NULL}, {"iz", "ize", NULL}, {0}};
    const char *letters = word->letters;
    size_t size = word->size;
    if (porter_ends_with(word, "at") || porter_ends_with(word, "bl") || porter_ends_with(word, "iz")) {
        porter_apply(word, rules);
    } else if (size >= 2 && letters[size - 1] == letters[size - 2] && porter_is_consonant(letters, size - 1)) {
        if (!strchr("lsz", letters[size - 1])) word->size--;
    } else if (porter_measure(letters, size, NULL) == 1 && porter_ends_cvc(letters, size)) {
        porter_replace(word, "", "e");
    }
}

static const char *const porter_irregular[][2] = {
    // NLTK; a stem is a prefix of the word but for three in -ying
    {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
    {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
    {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
    {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"},
};

static const struct porter_rule porter_step_1a[] = {
    {"sses", "ss", NULL}, {"ies", "i", NULL}, {"ss", "ss", NULL}, {"s", "", NULL}, {0}};

static const struct porter_rule porter_step_2[] = {
    {"ational", "ate", porter_m_over_0}, {"tional", "tion", porter_m_over_0},
    {"enci", "ence", porter_m_over_0},   {"anci", "ance", porter_m_over_0},
    {"izer", "ize", porter_m_over_0},    {"bli", "ble", porter_m_over_0},
    {"alli", "al", porter_m_over_0},     {"entli", "ent", porter_m_over_0},
    {"eli", "e", porter_m_over_0},       {"ousli", "ous", porter_m_over_0},
    {"ization", "ize", porter_m_over_0}, {"ation", "ate", porter_m_over_0},
    {"ator", "ate", porter_m_over_0},    {"alism", "al", porter_m_over_0},
    {"iveness", "ive", porter_m_over_0}, {"fulness", "ful", porter_m_over_0},
    {"ousness", "ous", porter_m_over_0}, {"aliti", "al", porter_m_over_0},
    {"iviti", "ive", porter_m_over_0},   {"biliti", "ble", porter_m_over_0},
    {"fulli", "ful", porter_m_over_0},   {0},
};

static const struct porter_rule porter_step_3[] = {
    {"icate", "ic", porter_m_over_0}, {"ative", "", porter_m_over_0},
    {"alize", "al", porter_m_over_0}, {"iciti", "ic", porter_m_over_0},
    {"ical", "ic", porter_m_over_0},  {"ful", "", porter_m_over_0},
    {"ness", "", porter_m_over_0},    {0},
};

static const struct porter_rule porter_step_4[] = {
    {"al", "", porter_m_over_1},    {"ance", "", porter_m_over_1},
    {"ence", "", porter_m_over_1},  {"er", "", porter_m_over_1},
    {"ic", "", porter_m_over_1},    {"able", "", porter_m_over_1},
    {"ible", "", porter_m_over_1},  {"ant", "", porter_m_over_1},
    {"ement", "", porter_m_over_1}, {"ment", "", porter_m_over_1},
    {"ent", "", porter_m_over_1},   {"ion", "", porter_s_or_t},
    {"ou", "", porter_m_over_1},    {"ism", "", porter_m_over_1},
    {"ate", "", porter_m_over_1},   {"iti", "", porter_m_over_1},
    {"ous", "", porter_m_over_1},   {"ive", "", porter_m_over_1},
    {"ize", "", porter_m_over_1},   {0},
};

size_t porter_stem(char *letters, size_t size) {
    struct porter_word word = {letters, size};
    for (size_t i = 0; i < sizeof porter_irregular / sizeof *porter_irregular; i++) {
        const char *irregular = porter_irregular[i][0], *stem = porter_irregular[i][1];
        if (size != strlen(irregular) || memcmp(letters, irregular, size) != 0) continue;
        assert(strlen(stem) <= size);
        memcpy(letters, stem, strlen(stem));
        return strlen(stem);
    }
    if (size <= 2) return size;

    // Step 1a
    if (word.size == 4 && porter_ends_with(&word, "ies")) // NLTK: dies becomes die
        porter_replace(&word, "ies", "ie");
    else
        porter_apply(&word, porter_step_1a);

    // Step 1b
    if (porter_ends_with(&word, "ied")) { // NLTK
        porter_replace(&word, "ied", word.size == 4 ? "ie" : "i");
    } else if (porter_ends_with(&word, "eed")) {
        if (porter_m_over_0(letters, word.size - 3)) word.size--;
    } else if (porter_ends_with(&word, "ed") && porter_has_vowel(letters, word.size - 2)) {
        word.size -= 2;
        porter_step_1b_repair(&word);
    } else if (porter_ends_with(&word, "ing") && porter_has_vowel(letters, word.size - 3)) {
        word.size -= 3;
        porter_step_1b_repair(&word);
    }

    // Step 1c. NLTK: only after a consonant that is not the first letter.
    if (word.size > 2 && porter_ends_with(&word, "y") && porter_is_consonant(letters, word.size - 2))
        letters[word.size - 1] = 'i';

    // Step 2. NLTK: -alli is removed first, and -logi keeps its l.
    while (porter_ends_with(&word, "alli") && porter_m_over_0(letters, word.size - 4))
        porter_replace(&word, "alli", "al");
    if (!porter_ends_with(&word, "logi"))
        porter_apply(&word, porter_step_2);
    else if (porter_m_over_0(letters, word.size - 3))
        word.size--;

    porter_apply(&word, porter_step_3);
    porter_apply(&word, porter_step_4);

    // Step 5a
    if (porter_ends_with(&word, "e")) {
        size_t measure = porter_measure(letters, word.size - 1, NULL);
        if (measure > 1 || (measure == 1 && !porter_ends_cvc(letters, word.size - 1))) word.size--;
    }

    // Step 5b
    if (porter_ends_with(&word, "ll") && porter_m_over_1(letters, word.size - 1)) word.size--;
    assert(word.size <= size);
    return word.size;
}
