// The completion script: an array says which words may follow a program, a subcommand or an option, and one function
// looks them up. FILE stands for the names of files.
#include "tools/completion.h"

#include <ctype.h>
#include <string.h>

#include "shared/config/stage_kinds.h"
#include "tools/tools.h"

static const char completion_head[] =
    "# Completion of caravan's programs in bash: the output of `caravan reference --completion bash`.\n"
    "declare -gA _caravan_words=(\n";

static const char completion_function[] =
    ")\n"
    "_caravan() {\n"
    "    local program=${1##*/} word=$2 option=${3//_/-} words\n"
    "    [[ $program = caravan && $COMP_CWORD -gt 1 ]] && program=\"caravan ${COMP_WORDS[1]}\"\n"
    "    words=${_caravan_words[$program]-FILE}\n"
    "    [[ $option = --* ]] && words=${_caravan_words[$program $option]-$words}\n"
    "    mapfile -t COMPREPLY < <(compgen -W \"${words//FILE/}\" -- \"$word\"; [[ $words = *FILE* ]] && compgen -f -- "
    "\"$word\")\n"
    "    [[ $words = *FILE* ]] && compopt -o filenames 2>/dev/null\n"
    "    return 0\n"
    "}\n"
    "complete -F _caravan caravan";

// Appends " WORD" for each word of "a|b". Those that begin with a capital (FILE, ID...) stand for something else.
static status completion_words(const char *text, struct buf *out) {
    while (*text) {
        size_t size = strcspn(text, "| ,[]");
        if (size && islower((unsigned char)*text) && strncmp(text, "or ", 3) != 0)
            TRY(buf_printf(out, " %.*s", (int)size, text));
        text += size + (text[size] != 0);
    }
    return OK;
}

static status completion_name(const struct option *option, struct buf *out) {
    for (const char *at = option->name; *at; at++) TRY(buf_printf(out, "%c", *at == '_' ? '-' : *at));
    return OK;
}

// Appends what may follow a program or subcommand, and what may follow each of its options.
static status completion_table(const struct option_table *table, struct buf *out) {
    TRY(buf_printf(out, "['%s']='", table->program));
    if (table->operands) {
        TRY(buf_puts(out, "FILE"));
        TRY(completion_words(table->operands, out));
    }
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        if (option->hidden) continue;
        TRY(buf_puts(out, " --"));
        TRY(completion_name(option, out));
        if (option->type == OPTION_BOOL) TRY(buf_puts(out, " --no-"));
        if (option->type == OPTION_BOOL) TRY(completion_name(option, out));
    }
    TRY(buf_puts(out, " --help --version'\n"));
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        if (option->hidden || option->type == OPTION_BOOL) continue;
        TRY(buf_printf(out, "['%s --", table->program));
        TRY(completion_name(option, out));
        TRY(buf_puts(out, option->type == OPTION_FILE || option->type == OPTION_PATH ? "']='FILE" : "']='"));
        if (option->choices) TRY(completion_words(option->choices, out));
        TRY(buf_puts(out, "'\n"));
    }
    return OK;
}

status completion_bash(struct buf *out) {
    TRY(buf_puts(out, completion_head));
    TRY(buf_puts(out, "['caravan']='"));
    for (const struct subcommand *at = subcommands; at->name; at++) TRY(buf_printf(out, "%s ", at->name));
    TRY(buf_puts(out, "--help --version'\n"));
    for (const struct subcommand *at = subcommands; at->name; at++) TRY(completion_table(at->options, out));
    for (int i = 0; i < STAGE_COUNT; i++) TRY(completion_table(&stage_kinds[i].options, out));
    TRY(buf_puts(out, completion_function));
    for (int i = 0; i < STAGE_COUNT; i++) TRY(buf_printf(out, " %s", stage_kinds[i].options.program));
    return buf_puts(out, "\n");
}
