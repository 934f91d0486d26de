#include "shared/text/regex.h"

#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "shared/base/memory.h"

enum { JIT_STACK_FIRST = 64 << 10, JIT_STACK_LAST = 64 << 20 };

// Letters and numbers that Unicode 15 to 16 added. Debian's PCRE2 knows version 14, published tokenizers count by 16;
// a newer PCRE2 has them already. They slow matching down, so a text without any of them is matched without them.
static const char new_letters[] =
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}"
    "\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}"
    "\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}"
    "\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"
    "\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}";
static const char new_numbers[] = "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
                                  "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
                                  "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

struct program {
    pcre2_code *code;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

struct regex {
    struct program usual, newer;
    const struct program *chosen;
    pcre2_match_data *match;
};

// The class at regex[at..size), if `at` is at \p{L} or \p{N}, as one that has the newer characters too.
static const char *newer_class(const char *regex, size_t size) {
    if (size < 5) return NULL;
    return !memcmp(regex, "\\p{L}", 5) ? new_letters : !memcmp(regex, "\\p{N}", 5) ? new_numbers : NULL;
}

// Rewrites an escape at regex[0..size), *used bytes long. PCRE2's own \s has U+180E, which is no white space any more.
static status translate_escape(const char *regex, size_t size, bool newer, bool in_class, struct buf *out,
                               size_t *used) {
    const char *more = newer ? newer_class(regex, size) : NULL;
    *used = more ? 5 : size < 2 ? 1 : 2;
    if (more) return buf_printf(out, in_class ? "%.5s%s" : "[%.5s%s]", regex, more);
    if (*used == 2 && regex[1] == 's') return buf_puts(out, "\\p{White_Space}");
    if (*used == 2 && regex[1] == 'S') return buf_puts(out, "\\P{White_Space}");
    return buf_append(out, regex, *used);
}

static status translate(const char *regex, size_t size, bool newer, struct buf *out) {
    bool in_class = false;
    size_t used;
    buf_clear(out);
    for (size_t at = 0; at < size; at += used) {
        used = 1;
        if (regex[at] == '\\') {
            TRY(translate_escape(regex + at, size - at, newer, in_class, out, &used));
            continue;
        }
        if (regex[at] == '[') in_class = true;
        if (regex[at] == ']') in_class = false;
        TRY(buf_append(out, regex + at, 1));
    }
    return buf_append(out, "", 0);
}

static status compile(struct program *p, const char *regex, size_t size) {
    int code;
    size_t offset;
    p->code = pcre2_compile((PCRE2_SPTR)regex, size, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &offset, NULL);
    if (!p->code) {
        char reason[256] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return fail(DATAERR, "the pattern is no regular expression: %s, at byte %zu of %.*s", reason, offset, (int)size,
                    regex);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); // where there is no JIT, pcre2_match interprets
    p->context = pcre2_match_context_create(NULL);
    p->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_LAST, NULL);
    if (!p->context) return fail_oom();
    if (p->stack) pcre2_jit_stack_assign(p->context, NULL, p->stack);
    return OK;
}

static void release(struct program *p) {
    pcre2_jit_stack_free(p->stack);
    pcre2_match_context_free(p->context);
    pcre2_code_free(p->code);
}

status regex_new(struct regex **out, const char *regex, size_t size) {
    *out = NULL;
    struct regex *p = NULL;
    struct buf translated = {0};
    status result;
    TRY_TO(result, done, NEW(&p, 1));
    TRY_TO(result, done, translate(regex, size, false, &translated));
    TRY_TO(result, done, compile(&p->usual, translated.data ? translated.data : "", translated.size));
    TRY_TO(result, done, translate(regex, size, true, &translated));
    TRY_TO(result, done, compile(&p->newer, translated.data ? translated.data : "", translated.size));
    p->chosen = &p->usual;
    p->match = pcre2_match_data_create(1, NULL);
    if (!p->match) TRY_TO(result, done, fail_oom());
    *out = p;
    p = NULL;
done:
    buf_release(&translated);
    regex_free(&p);
    return result;
}

void regex_free(struct regex **p) {
    if (!*p) return;
    release(&(*p)->usual);
    release(&(*p)->newer);
    pcre2_match_data_free((*p)->match);
    free(*p);
    *p = NULL;
}

void regex_prepare(struct regex *p, const char *text, size_t size) {
    p->chosen = &p->usual;
    for (size_t at = 0; at < size; at++) {
        unsigned char lead = (unsigned char)text[at];
        // U+1C89 and U+A7CB start with E1 B2 and EA 9F; the others are beyond the first plane.
        bool newer = lead >= 0xF0 || (lead == 0xE1 && (unsigned char)text[at + 1] == 0xB2) ||
                     (lead == 0xEA && (unsigned char)text[at + 1] == 0x9F);
        if (!newer) continue;
        p->chosen = &p->newer;
        return;
    }
}

status regex_find(struct regex *p, const char *text, size_t size, size_t from, bool *found, size_t *start,
                  size_t *end) {
    int code =
        pcre2_match(p->chosen->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, p->match, p->chosen->context);
    *found = code >= 0;
    if (code == PCRE2_ERROR_NOMATCH) return OK;
    if (code < 0) {
        char reason[256] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return fail(DATAERR, "the tokenizer's pattern cannot split this text: %s", reason);
    }
    const size_t *place = pcre2_get_ovector_pointer(p->match);
    *start = place[0];
    *end = place[1];
    if (*start < from || *end < *start)
        return fail(DATAERR, "the tokenizer's pattern gives a match that runs backwards");
    return OK;
}
