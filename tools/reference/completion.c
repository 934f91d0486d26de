// The completion scripts. In that of bash an array says which words may follow a program, a subcommand or an option,
// and one function looks them up; FILE stands for the names of files. Those of zsh and fish describe each option to the
// shell's own functions.
#include "tools/reference/completion.h"

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
static void completion_words(const char *text, struct buf *out) {
    while (*text) {
        size_t size = strcspn(text, "| ,[]");
        if (size && islower((unsigned char)*text) && strncmp(text, "or ", 3) != 0)
            buf_printf(out, " %.*s", (int)size, text);
        text += size + (text[size] != 0);
    }
}

static void completion_name(const struct option *option, struct buf *out) {
    for (const char *at = option->name; *at; at++) buf_printf(out, "%c", *at == '_' ? '-' : *at);
}

// Whether the option's value may be the name of a file.
static bool completion_takes_file(const struct option *option) {
    return option->type == OPTION_FILE || option->type == OPTION_PATH;
}

// Appends what may follow a program or subcommand, and what may follow each of its options.
static void completion_table(const struct option_table *table, struct buf *out) {
    buf_printf(out, "['%s']='", table->program);
    if (table->operands) {
        buf_puts(out, "FILE");
        completion_words(table->operands, out);
    }
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        buf_puts(out, " --");
        completion_name(option, out);
        if (option->type == OPTION_BOOL) buf_puts(out, " --no-");
        if (option->type == OPTION_BOOL) completion_name(option, out);
    }
    buf_puts(out, " --help --version'\n");
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        if (option->type == OPTION_BOOL) continue;
        buf_printf(out, "['%s --", table->program);
        completion_name(option, out);
        buf_puts(out, completion_takes_file(option) ? "']='FILE" : "']='");
        if (option->choices) completion_words(option->choices, out);
        buf_puts(out, "'\n");
    }
}

status completion_bash(struct buf *out) {
    buf_puts(out, completion_head);
    buf_puts(out, "['caravan']='");
    for (const struct subcommand *at = subcommands; at->name; at++) buf_printf(out, "%s ", at->name);
    buf_puts(out, "--help --version'\n");
    for (const struct subcommand *at = subcommands; at->name; at++) completion_table(at->options, out);
    for (int i = 0; i < STAGE_COUNT; i++) completion_table(&stage_kinds[i].options, out);
    buf_puts(out, completion_function);
    for (int i = 0; i < STAGE_COUNT; i++) buf_printf(out, " %s", stage_kinds[i].options.program);
    buf_puts(out, "\n");
    return OK;
}

// Appends a text for the inside of single quotes: in zsh that of the [] of an option, in fish any text.
static void completion_quoted(const char *text, bool zsh, struct buf *out) {
    for (; *text; text++) {
        if (strchr(zsh ? "[]:\\" : "\\'", *text)) buf_puts(out, "\\");
        if (zsh && *text == '\'')
            buf_puts(out, "'\\''");
        else
            buf_append(out, text, 1);
    }
}

// ---- zsh ----

static const char zsh_function[] = "    esac\n"
                                   "}\n"
                                   "_caravan \"$@\"\n";

static void completion_zsh_option(const struct option *option, const char *prefix, struct buf *out) {
    buf_printf(out, " \\\n        '%s--%s", option->repeatable ? "*" : "", prefix);
    completion_name(option, out);
    buf_puts(out, option->type == OPTION_BOOL ? "[" : "=[");
    completion_quoted(option->help, true, out);
    if (option->type == OPTION_BOOL) {
        buf_puts(out, "]'");
        return;
    }
    buf_puts(out, "]: :{");
    if (option->choices) buf_puts(out, "compadd --");
    if (option->choices) completion_words(option->choices, out);
    buf_puts(out, completion_takes_file(option) ? "; _files}'" : "}'");
}

// Appends the case of a program or subcommand.
static void completion_zsh_table(const struct option_table *table, struct buf *out) {
    buf_printf(out, "    '%s') _arguments -S", table->program);
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        completion_zsh_option(option, "", out);
        if (option->type == OPTION_BOOL) completion_zsh_option(option, "no-", out);
    }
    buf_puts(out, " \\\n        '--help[print help]' '--version[print the version]'");
    if (table->operands) {
        buf_puts(out, " '*: :{compadd --");
        completion_words(table->operands, out);
        buf_puts(out, "; _files}'");
    }
    buf_puts(out, " ;;\n");
}

status completion_zsh(struct buf *out) {
    buf_puts(out, "#compdef caravan");
    for (int i = 0; i < STAGE_COUNT; i++) buf_printf(out, " %s", stage_kinds[i].options.program);
    buf_puts(out, "\n# Completion of caravan's programs in zsh: the output of `caravan reference --completion zsh`.\n"
                  "_caravan() {\n"
                  "    local program=$service\n"
                  "    if [[ $program = caravan ]] && (( CURRENT > 2 )); then\n"
                  "        program=\"caravan $words[2]\"\n"
                  "        shift words\n"
                  "        (( CURRENT-- ))\n"
                  "    fi\n"
                  "    case $program in\n"
                  "    caravan) local -a subcommands=(--help --version");
    for (const struct subcommand *at = subcommands; at->name; at++) {
        buf_printf(out, " \\\n        '%s:", at->name);
        completion_quoted(at->help, true, out);
        buf_puts(out, "'");
    }
    buf_puts(out, ")\n        _describe subcommand subcommands ;;\n");
    for (const struct subcommand *at = subcommands; at->name; at++) completion_zsh_table(at->options, out);
    for (int i = 0; i < STAGE_COUNT; i++) completion_zsh_table(&stage_kinds[i].options, out);
    buf_puts(out, zsh_function);
    return OK;
}

// ---- fish ----

// Appends the beginning of a line about a program, or about the subcommand `name` of caravan.
static void completion_fish_begin(const struct option_table *table, const char *name, struct buf *out) {
    if (!name) {
        buf_printf(out, "complete -c %s", table->program);
        return;
    }
    buf_printf(out, "complete -c caravan -n '__fish_seen_subcommand_from %s'", name);
}

static void completion_fish_table(const struct option_table *table, const char *name, struct buf *out) {
    completion_fish_begin(table, name, out);
    if (table->operands) {
        buf_puts(out, " -a '");
        completion_words(table->operands, out);
        buf_puts(out, "'\n");
    } else {
        buf_puts(out, " -f\n");
    }
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        for (int negated = 0; negated <= (option->type == OPTION_BOOL); negated++) {
            completion_fish_begin(table, name, out);
            buf_puts(out, negated ? " -l no-" : " -l ");
            completion_name(option, out);
            buf_puts(out, option->type == OPTION_BOOL     ? " -d '"
                          : completion_takes_file(option) ? " -r -F -d '"
                                                          : " -x -d '");
            completion_quoted(option->help, false, out);
            buf_puts(out, option->choices ? "' -a '" : "'");
            if (option->choices) completion_words(option->choices, out);
            buf_puts(out, option->choices ? "'\n" : "\n");
        }
    }
}

status completion_fish(struct buf *out) {
    buf_puts(out, "# Completion of caravan's programs in fish: the output of `caravan reference --completion fish`.\n"
                  "complete -c caravan -n __fish_use_subcommand -f\n");
    for (const struct subcommand *at = subcommands; at->name; at++) {
        buf_printf(out, "complete -c caravan -n __fish_use_subcommand -a %s -d '", at->name);
        completion_quoted(at->help, false, out);
        buf_puts(out, "'\n");
    }
    for (const struct subcommand *at = subcommands; at->name; at++) completion_fish_table(at->options, at->name, out);
    for (int i = 0; i < STAGE_COUNT; i++) completion_fish_table(&stage_kinds[i].options, NULL, out);
    buf_puts(out, "for program in caravan");
    for (int i = 0; i < STAGE_COUNT; i++) buf_printf(out, " %s", stage_kinds[i].options.program);
    buf_puts(out, "\n    complete -c $program -l help -d 'print help'\n"
                  "    complete -c $program -l version -d 'print the version'\nend\n");
    return OK;
}
