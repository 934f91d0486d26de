#include "shared/text/pattern.h"

#include <stdlib.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "shared/base/memory.h"

enum { JIT_STACK_FIRST = 64 << 10, JIT_STACK_LAST = 64 << 20 };

struct pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

// PCRE2's own \s has U+180E, which is no white space since Unicode 6.3.
static status translate(const char *regex, size_t size, bytes *out) {
    for (size_t at = 0; at < size; at++) {
        if (regex[at] != '\\' || at + 1 == size) {
            TRY(bytes_add(out, regex + at, 1));
            continue;
        }
        at++;
        if (regex[at] == 's' || regex[at] == 'S') {
            TRY(bytes_text(out, regex[at] == 's' ? "\\p{White_Space}" : "\\P{White_Space}"));
        } else {
            TRY(bytes_add(out, regex + at - 1, 2));
        }
    }
    return OK;
}

static status compile(pattern *p, const char *regex, size_t size) {
    int code;
    size_t offset;
    p->code = pcre2_compile((PCRE2_SPTR)regex, size, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &offset, NULL);
    if (!p->code) {
        char reason[256] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return fail(INPUT, "the pattern is no regular expression: %s, at byte %zu of %.*s", reason, offset, (int)size,
                    regex);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); // where there is no JIT, pcre2_match interprets
    p->match = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    p->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_LAST, NULL);
    if (!p->match || !p->context) return fail(SERVICE, "out of memory");
    if (p->stack) pcre2_jit_stack_assign(p->context, NULL, p->stack);
    return OK;
}

status pattern_new(pattern **out, const char *regex, size_t size) {
    *out = NULL;
    pattern *p = NULL;
    bytes translated = {0};
    status result;
    TRY_TO(result, done, NEW(&p, 1));
    TRY_TO(result, done, translate(regex, size, &translated));
    TRY_TO(result, done, compile(p, translated.data ? translated.data : "", translated.size));
    *out = p;
    p = NULL;
done:
    bytes_release(&translated);
    pattern_free(&p);
    return result;
}

void pattern_free(pattern **p) {
    if (!*p) return;
    pcre2_jit_stack_free((*p)->stack);
    pcre2_match_context_free((*p)->context);
    pcre2_match_data_free((*p)->match);
    pcre2_code_free((*p)->code);
    free(*p);
    *p = NULL;
}

status pattern_find(pattern *p, const char *text, size_t size, size_t from, bool *found, size_t *start, size_t *end) {
    int code = pcre2_match(p->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, p->match, p->context);
    *found = code >= 0;
    if (code == PCRE2_ERROR_NOMATCH) return OK;
    if (code < 0) {
        char reason[256] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return fail(INPUT, "the tokenizer's pattern cannot split this text: %s", reason);
    }
    const size_t *place = pcre2_get_ovector_pointer(p->match);
    *start = place[0];
    *end = place[1];
    if (*start < from || *end < *start) return fail(INPUT, "the tokenizer's pattern gives a match that runs backwards");
    return OK;
}
