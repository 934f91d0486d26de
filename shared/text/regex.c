#include "shared/text/regex.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "shared/base/memory.h"

enum { JIT_STACK_MIN = 64 << 10, JIT_STACK_MAX = 64 << 20 };

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
    struct regex_program fast, full; // without and with the new letters and numbers
    const struct regex_program *program;
    pcre2_match_data *match;
};

// Rewrites a pattern for PCRE2: \s and \S, because PCRE2's own \s matches U+180E, which is no longer white space; and
// with `full` \p{L} and \p{N}. Appends to *out, whose data is not NULL afterwards.
static void regex_translate(const char *pattern, size_t size, bool full, struct buf *out) {
    bool in_class = false;
    size_t used;
    for (size_t at = 0; at < size; at += used) {
        const char *rest = pattern + at;
        size_t left = size - at;
        if (*rest == '[') in_class = true;
        if (*rest == ']') in_class = false;
        if (full && left >= 5 && (!memcmp(rest, "\\p{L}", 5) || !memcmp(rest, "\\p{N}", 5))) {
            used = 5;
            buf_printf(out, in_class ? "%.5s%s" : "[%.5s%s]", rest,
                       rest[3] == 'L' ? regex_new_letters : regex_new_numbers);
        } else if (*rest == '\\' && left >= 2) {
            used = 2;
            if (rest[1] == 's')
                buf_puts(out, "\\p{White_Space}");
            else if (rest[1] == 'S')
                buf_puts(out, "\\P{White_Space}");
            else
                buf_append(out, rest, used);
        } else {
            used = 1;
            buf_append(out, rest, used);
        }
    }
    buf_puts(out, "");
}

static status regex_compile(struct regex_program *p, const char *pattern, size_t size) {
    int code;
    size_t offset;
    p->code = pcre2_compile((PCRE2_SPTR)pattern, size,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    if (!p->code) {
        char reason[256] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return fail(DATAERR, "the pattern is not a regular expression: %s, at byte %zu of %.*s", reason, offset,
                    (int)size, pattern);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); // without JIT, pcre2_match interprets
    p->context = mem_checked(pcre2_match_context_create(NULL));
    p->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (p->stack) pcre2_jit_stack_assign(p->context, NULL, p->stack);
    return OK;
}

static void regex_release(struct regex_program *p) {
    pcre2_jit_stack_free(p->stack);
    pcre2_match_context_free(p->context);
    pcre2_code_free(p->code);
}

status regex_new(struct regex **out, const char *pattern, size_t size) {
    *out = NULL;
    struct regex *r = NULL;
    struct buf translated = {0};
    status result;
    NEW(&r, 1);
    regex_translate(pattern, size, false, &translated);
    TRY_TO(result, done, regex_compile(&r->fast, translated.data, translated.size));
    buf_clear(&translated);
    regex_translate(pattern, size, true, &translated);
    TRY_TO(result, done, regex_compile(&r->full, translated.data, translated.size));
    r->program = &r->fast;
    r->match = mem_checked(pcre2_match_data_create(1, NULL));
    *out = r;
    r = NULL;
done:
    buf_release(&translated);
    regex_free(&r);
    return result;
}

void regex_free(struct regex **r) {
    if (!*r) return;
    regex_release(&(*r)->fast);
    regex_release(&(*r)->full);
    pcre2_match_data_free((*r)->match);
    free(*r);
    *r = NULL;
}

void regex_prepare(struct regex *r, const char *text, size_t size) {
    r->program = &r->fast;
    for (size_t at = 0; at < size; at++) {
        unsigned char lead = (unsigned char)text[at];
        // U+1C89 starts with E1 B2, U+A7CB with EA 9F. All the other new characters are outside the first plane.
        bool may_be_new = lead >= 0xF0 || (lead == 0xE1 && (unsigned char)text[at + 1] == 0xB2) ||
                          (lead == 0xEA && (unsigned char)text[at + 1] == 0x9F);
        if (!may_be_new) continue;
        r->program = &r->full;
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
