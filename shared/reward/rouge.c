#include "shared/reward/accuracy.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/reward/python_text.h"

// A token of the target and one of the prediction have the same id if they are equal.
struct rouge_tokens {
    struct string_array words;
    size_t *ids;
};

static void rouge_tokenize(struct arena *arena, struct string text, struct rouge_tokens *out) {
    enum { DOTTED_CAPITAL_I = 0x130 };
    char *folded = arena_alloc(arena, text.size * 2 + 1);
    size_t size = 0, length;
    for (size_t at = 0; at < text.size; at += length) {
        // Two characters beyond ASCII have a lower case in ASCII: the Kelvin sign, and the dotted capital I, whose dot
        // becomes a character of its own and ends the token.
        int32_t code = python_char_at(text, at, &length), lower = utf8proc_tolower(code);
        bool kept = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
        folded[size++] = kept ? (char)lower : ' ';
        if (code == DOTTED_CAPITAL_I) folded[size++] = ' ';
    }
    assert(size <= text.size * 2);
    python_split(arena, (struct string){folded, size}, &out->words);
    for (size_t i = 0; i < out->words.count; i++) {
        struct string *word = &out->words.data[i];
        if (word->size > 3) word->size = porter_stem(folded + (word->data - folded), word->size);
    }
}

static double rouge_fmeasure(size_t common, size_t target, size_t prediction) {
    double precision = (double)common / (double)(prediction ? prediction : 1);
    double recall = (double)common / (double)(target ? target : 1);
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

// The F-measure of n-grams.
static double rouge_n(struct arena *arena, const struct rouge_tokens *target, const struct rouge_tokens *prediction,
                      size_t n) {
    const size_t a_count = target->words.count >= n ? target->words.count - n + 1 : 0;
    const size_t b_count = prediction->words.count >= n ? prediction->words.count - n + 1 : 0;
    bool *used = arena_alloc(arena, b_count + 1);
    size_t common = 0;
    for (size_t i = 0; i < a_count; i++) {
        size_t j = 0;
        while (j < b_count && (used[j] || memcmp(target->ids + i, prediction->ids + j, n * sizeof *target->ids) != 0))
            j++;
        if (j == b_count) continue;
        used[j] = true;
        common++;
    }
    return rouge_fmeasure(common, a_count, b_count);
}

double rouge_mean(struct string target, struct string prediction) {
    struct arena arena = {0};
    struct rouge_tokens a = {0}, b = {0};
    rouge_tokenize(&arena, target, &a);
    rouge_tokenize(&arena, prediction, &b);

    // The id of a word is the place of the first one in the target that equals it. The prediction's other words, which
    // may be many, have the next one together: no word of the target has it.
    const size_t count = a.words.count + b.words.count;
    const struct string **words = arena_alloc(&arena, (count + 1) * sizeof *words);
    a.ids = arena_alloc(&arena, (count + 1) * sizeof *a.ids);
    b.ids = a.ids + a.words.count;
    for (size_t i = 0; i < a.words.count; i++) words[i] = &a.words.data[i];
    for (size_t i = 0; i < b.words.count; i++) words[a.words.count + i] = &b.words.data[i];
    for (size_t i = 0; i < count; i++) {
        size_t first = 0;
        while (first < a.words.count && (words[first]->size != words[i]->size ||
                                         memcmp(words[first]->data, words[i]->data, words[i]->size) != 0))
            first++;
        a.ids[i] = first;
    }

    const double rouge1 = rouge_n(&arena, &a, &b, 1), rouge2 = rouge_n(&arena, &a, &b, 2);
    // The longest common subsequence, one row of its table at a time.
    size_t *length = arena_alloc(&arena, (b.words.count + 1) * sizeof *length);
    for (size_t i = 0; i < a.words.count; i++) {
        size_t diagonal = 0;
        for (size_t j = 1; j <= b.words.count; j++) {
            size_t above = length[j];
            if (a.ids[i] == b.ids[j - 1])
                length[j] = diagonal + 1;
            else if (length[j - 1] > above)
                length[j] = length[j - 1];
            diagonal = above;
        }
    }
    const double longest = rouge_fmeasure(length[b.words.count], a.words.count, b.words.count);
    const double mean = (rouge1 + rouge2 + longest) / 3;
    arena_release(&arena);
    return mean;
}

double word_error_rate(struct string target, struct string prediction) {
    struct arena arena = {0};
    struct string_array a = {0}, b = {0};
    python_split(&arena, target, &a);
    python_split(&arena, prediction, &b);
    size_t *cost = arena_alloc(&arena, (b.count + 1) * sizeof *cost); // one row of the edit distance's table
    for (size_t j = 0; j <= b.count; j++) cost[j] = j;
    for (size_t i = 0; i < a.count; i++) {
        size_t diagonal = cost[0];
        cost[0] = i + 1;
        for (size_t j = 1; j <= b.count; j++) {
            struct string x = a.data[i], y = b.data[j - 1];
            size_t best = diagonal + (x.size != y.size || memcmp(x.data, y.data, x.size) != 0);
            diagonal = cost[j];
            if (cost[j] + 1 < best) best = cost[j] + 1;
            if (cost[j - 1] + 1 < best) best = cost[j - 1] + 1;
            cost[j] = best;
        }
    }
    const double rate = (double)cost[b.count] / (double)(a.count ? a.count : 1);
    arena_release(&arena);
    return rate;
}

// ---- porter ----

// M. F. Porter, "An algorithm for suffix stripping" (Program 14(3), 1980). The measure of a stem is the number of times
// that a consonant follows a vowel in it. NLTK's variant differs in these points, which are marked where they are made:
// irregular words; -ies and -ied of words of four letters; y becomes i only after a consonant; alli before bli; bli,
// fulli and logi; a stem of a vowel and a consonant counts as ending in "cvc".

struct porter_word {
    char *letters;
    size_t size;
};

static bool porter_is_vowel(char letter) {
    return letter == 'a' || letter == 'e' || letter == 'i' || letter == 'o' || letter == 'u';
}

// A y is a consonant at the start and after a vowel.
static bool porter_is_consonant(const char *letters, size_t at) {
    size_t run = 0;
    while (at - run > 0 && letters[at - run] == 'y') run++;
    return porter_is_vowel(letters[at - run]) == (run % 2 == 1);
}

static size_t porter_measure(const char *letters, size_t size) {
    size_t measure = 0;
    bool before = true; // whether the letter before is a consonant
    for (size_t i = 0; i < size; i++) {
        const bool now = letters[i] == 'y' ? i == 0 || !before : !porter_is_vowel(letters[i]);
        measure += i > 0 && now && !before;
        before = now;
    }
    return measure;
}

static bool porter_has_vowel(const char *stem, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!porter_is_consonant(stem, i)) return true;
    return false;
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

// A step's rules, up to NULL: suffixes and what takes their places.
typedef const char *const porter_rules[][2];

static porter_rules porter_irregular = {
    // NLTK; a stem is a prefix of the word but for three in -ying
    {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
    {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
    {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
    {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"}};

static porter_rules porter_step_1a = {{"sses", "ss"}, {"ies", "i"}, {"ss", "ss"}, {"s", ""}, {NULL, NULL}};

static porter_rules porter_step_2 = {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"},   {"anci", "ance"},
                                     {"izer", "ize"},    {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"},
                                     {"eli", "e"},       {"ousli", "ous"},   {"ization", "ize"}, {"ation", "ate"},
                                     {"ator", "ate"},    {"alism", "al"},    {"iveness", "ive"}, {"fulness", "ful"},
                                     {"ousness", "ous"}, {"aliti", "al"},    {"iviti", "ive"},   {"biliti", "ble"},
                                     {"fulli", "ful"},   {NULL, NULL}};

static porter_rules porter_step_3 = {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"},
                                     {"ical", "ic"},  {"ful", ""},   {"ness", ""},    {NULL, NULL}};

static porter_rules porter_step_4 = {{"al", ""},   {"ance", ""}, {"ence", ""}, {"er", ""},    {"ic", ""},
                                     {"able", ""}, {"ible", ""}, {"ant", ""},  {"ement", ""}, {"ment", ""},
                                     {"ent", ""},  {"ion", ""},  {"ou", ""},   {"ism", ""},   {"ate", ""},
                                     {"iti", ""},  {"ous", ""},  {"ive", ""},  {"ize", ""},   {NULL, NULL}};

// Applies a step's rules. The first one whose suffix matches decides, whether the letters before it have the measure
// `least` or not. In step 4, -ion goes only behind s and t.
static void porter_apply(struct porter_word *word, porter_rules rules, size_t least) {
    size_t i = 0;
    while (rules[i][0] && !porter_ends_with(word, rules[i][0])) i++;
    if (!rules[i][0]) return;
    const size_t size = word->size - strlen(rules[i][0]);
    if (porter_measure(word->letters, size) < least) return;
    if (rules == porter_step_4 && !strcmp(rules[i][0], "ion") && !strchr("st", word->letters[size - 1])) return;
    porter_replace(word, rules[i][0], rules[i][1]);
}

// The second half of step 1b: restores an e or removes a doubled letter after -ed and -ing have been removed.
static void porter_step_1b_repair(struct porter_word *word) {
    const char *letters = word->letters;
    size_t size = word->size;
    const bool lost = porter_ends_with(word, "at") || porter_ends_with(word, "bl") || porter_ends_with(word, "iz");
    if (!lost && size >= 2 && letters[size - 1] == letters[size - 2] && porter_is_consonant(letters, size - 1)) {
        if (!strchr("lsz", letters[size - 1])) word->size--;
    } else if (lost || (porter_measure(letters, size) == 1 && porter_ends_cvc(letters, size))) {
        porter_replace(word, "", "e");
    }
}

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
        porter_apply(&word, porter_step_1a, 0);

    // Step 1b
    if (porter_ends_with(&word, "ied")) { // NLTK
        porter_replace(&word, "ied", word.size == 4 ? "ie" : "i");
    } else if (porter_ends_with(&word, "eed")) {
        if (porter_measure(letters, word.size - 3) > 0) word.size--;
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
    while (porter_ends_with(&word, "alli") && porter_measure(letters, word.size - 4) > 0)
        porter_replace(&word, "alli", "al");
    if (!porter_ends_with(&word, "logi"))
        porter_apply(&word, porter_step_2, 1);
    else if (porter_measure(letters, word.size - 3) > 0)
        word.size--;

    porter_apply(&word, porter_step_3, 1);
    porter_apply(&word, porter_step_4, 2);

    // Step 5a
    if (porter_ends_with(&word, "e")) {
        size_t measure = porter_measure(letters, word.size - 1);
        if (measure > 1 || (measure == 1 && !porter_ends_cvc(letters, word.size - 1))) word.size--;
    }

    // Step 5b
    if (porter_ends_with(&word, "ll") && porter_measure(letters, word.size - 1) > 1) word.size--;
    assert(word.size <= size);
    return word.size;
}
