#include "shared/text/pre_tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

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

status pre_tokenizer_add(struct pre_tokenizer *p, const char *pattern, size_t size, enum split_behavior behavior,
                         bool add_prefix_space) {
    if (p->count == MAX_PRE_TOKENIZER_STEPS) return fail(DATAERR, "more than %d steps", MAX_PRE_TOKENIZER_STEPS);
    struct pre_tokenizer_step *step = &p->steps[p->count++];
    step->behavior = behavior;
    step->add_prefix_space = add_prefix_space;
    return pattern ? regex_new(&step->regex, pattern, size) : OK;
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

// ---- normalize ----

// The tables of the published tokenizers are those of Unicode 9. A character that was assigned later is left as it is
// and separates the text before it from the text after it, whatever the newer tables of utf8proc say.

struct normalize_range {
    utf8proc_int32_t first, last;
};

// Characters assigned after Unicode 9 that have a combining class or a decomposition today, in ascending order.
static const struct normalize_range normalize_after_unicode9[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

static_assert(sizeof(utf8proc_int32_t) == 4, "code points are 32 bits wide");

static const utf8proc_option_t normalize_options[] = {
    [NORMALIZE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [NORMALIZE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [NORMALIZE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [NORMALIZE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

// Appends the normalized text[0..size), which has no newer character.
static status normalize_append(enum normalize_form form, const char *text, size_t size, struct buf *buffer) {
    utf8proc_uint8_t *mapped = NULL;
    if (size == 0) return OK;
    utf8proc_ssize_t length =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &mapped, normalize_options[form]);
    if (length < 0) return fail(UNAVAILABLE, "cannot normalize text: %s", utf8proc_errmsg(length));
    buf_append(buffer, mapped, (size_t)length);
    free(mapped);
    return OK;
}

status normalize_text(enum normalize_form form, const char *text, size_t size, struct buf *buffer, const char **out,
                      size_t *out_size) {
    assert((size_t)form < sizeof normalize_options / sizeof *normalize_options);
    const struct normalize_range *const ranges = normalize_after_unicode9;
    const size_t count = sizeof normalize_after_unicode9 / sizeof *ranges;
    size_t ascii = 0; // no form changes these bytes
    while (ascii < size && (unsigned char)text[ascii] < 0x80) ascii++;
    *out = text;
    *out_size = size;
    if (form == NORMALIZE_NONE || ascii == size) return OK;
    buf_clear(buffer);
    size_t done = 0;
    for (size_t at = 0; at < size;) {
        utf8proc_int32_t character;
        utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &character);
        if (length < 1) return fail(UNAVAILABLE, "cannot normalize text: %s", utf8proc_errmsg(length));
        size_t i = 0;
        while (i < count && character > ranges[i].last) i++;
        if (i < count && character >= ranges[i].first) {
            TRY(normalize_append(form, text + done, at - done, buffer));
            buf_append(buffer, text + at, (size_t)length);
            done = at + (size_t)length;
        }
        at += (size_t)length;
    }
    TRY(normalize_append(form, text + done, size - done, buffer));
    *out = buffer->data;
    *out_size = buffer->size;
    return OK;
}

// ---- regex ----

enum { MIN_JIT_STACK = 64 << 10, MAX_JIT_STACK = 64 << 20 };

// Letters and numbers that Unicode 15 to 16 added. The published tokenizers know version 16, Debian's PCRE2 knows
// version 14, and in a newer PCRE2 these classes are redundant. They slow matching down, so a text that has none of
// them is matched by a program without them.
static const char regex_new_letters[] =
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}"
    "\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}"
    "\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}"
    "\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"
    "\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}";
static const char regex_new_numbers[] =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

struct regex_program {
    pcre2_code *code;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

struct regex {
    struct regex_program programs[2]; // without and with the new letters and numbers
    const struct regex_program *program;
    pcre2_match_data *match;
};

status regex_new(struct regex **out, const char *pattern, size_t size) {
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    struct buf translated = {0};
    struct regex *r;
    status result = OK;
    NEW(&r, 1);
    for (int full = 0; full < 2; full++) {
        struct regex_program *p = &r->programs[full];
        int code;
        size_t offset;
        buf_clear(&translated);
        // The pattern is rewritten for PCRE2: \s and \S, because PCRE2's own \s matches U+180E, which is no longer
        // white space; and with `full` \p{L} and \p{N}.
        bool in_class = false;
        size_t used;
        for (size_t at = 0; at < size; at += used) {
            const char *rest = pattern + at;
            size_t left = size - at;
            if (*rest == '[') in_class = true;
            if (*rest == ']') in_class = false;
            if (full && left >= 5 && (!memcmp(rest, "\\p{L}", 5) || !memcmp(rest, "\\p{N}", 5))) {
                used = 5;
                buf_printf(&translated, in_class ? "%.5s%s" : "[%.5s%s]", rest,
                           rest[3] == 'L' ? regex_new_letters : regex_new_numbers);
            } else if (*rest == '\\' && left >= 2) {
                used = 2;
                if (rest[1] == 's')
                    buf_puts(&translated, "\\p{White_Space}");
                else if (rest[1] == 'S')
                    buf_puts(&translated, "\\P{White_Space}");
                else
                    buf_append(&translated, rest, used);
            } else {
                used = 1;
                buf_append(&translated, rest, used);
            }
        }
        buf_puts(&translated, "");
        p->code = pcre2_compile((PCRE2_SPTR)translated.data, translated.size, options, &code, &offset, NULL);
        if (!p->code) {
            char reason[256] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
            result = fail(DATAERR, "the pattern is not a regular expression: %s, at byte %zu of %.*s", reason, offset,
                          (int)translated.size, translated.data);
            break;
        }
        pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); // without JIT, pcre2_match interprets
        p->context = mem_checked(pcre2_match_context_create(NULL));
        p->stack = pcre2_jit_stack_create(MIN_JIT_STACK, MAX_JIT_STACK, NULL);
        if (p->stack) pcre2_jit_stack_assign(p->context, NULL, p->stack);
    }
    r->program = r->programs;
    r->match = mem_checked(pcre2_match_data_create(1, NULL));
    if (result != OK) regex_free(&r);
    *out = r;
    buf_release(&translated);
    return result;
}

void regex_free(struct regex **r) {
    if (!*r) return;
    for (int full = 0; full < 2; full++) {
        const struct regex_program *p = &(*r)->programs[full];
        pcre2_jit_stack_free(p->stack);
        pcre2_match_context_free(p->context);
        pcre2_code_free(p->code);
    }
    pcre2_match_data_free((*r)->match);
    free(*r);
    *r = NULL;
}

void regex_prepare(struct regex *r, const char *text, size_t size) {
    r->program = &r->programs[0];
    for (size_t at = 0; at < size; at++) {
        unsigned char lead = (unsigned char)text[at];
        // U+1C89 starts with E1 B2, U+A7CB with EA 9F. All the other new characters are outside the first plane.
        bool may_be_new = lead >= 0xF0 || (lead == 0xE1 && (unsigned char)text[at + 1] == 0xB2) ||
                          (lead == 0xEA && (unsigned char)text[at + 1] == 0x9F);
        if (!may_be_new) continue;
        r->program = &r->programs[1];
        return;
    }
}

status regex_find(struct regex *r, const char *text, size_t size, size_t from, bool *found, size_t *start,
                  size_t *end) {
    assert(from <= size);
    const struct regex_program *p = r->program;
    int code = pcre2_match(p->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, r->match, p->context);
    *found = code >= 0;
    if (code == PCRE2_ERROR_NOMATCH) return OK;
    if (code < 0) {
        char reason[256] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return fail(DATAERR, "the tokenizer's pattern cannot split this text: %s", reason);
    }
    const size_t *range = pcre2_get_ovector_pointer(r->match);
    *start = range[0];
    *end = range[1];
    if (*start < from || *end < *start)
        return fail(DATAERR, "the tokenizer's pattern has a match that ends before it starts");
    return OK;
}
