// caravan reference: the texts that are made from the tables which the programs themselves read: the reference page in
// Markdown, manual pages, completion.
#include <ctype.h>
#include <string.h>

#include "shared/config/pipeline.h"
#include "shared/config/stage_kinds.h"
#include "shared/group/group.h"
#include "tools/tools.h"

// ---- completion ----

// In the script of bash an array says which words may follow a program, a subcommand or an option, and one function
// looks them up; FILE stands for the names of files. Those of zsh and fish describe each option to the shell's own
// functions.

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

static void completion_bash(struct buf *out) {
    buf_puts(out, "# Completion of caravan's programs in bash: the output of `caravan reference --completion bash`.\n"
                  "declare -gA _caravan_words=(\n['caravan']='");
    for (const struct subcommand *at = subcommands; at->name; at++) buf_printf(out, "%s ", at->name);
    buf_puts(out, "--help --version'\n");
    for (const struct subcommand *at = subcommands; at->name; at++) completion_table(at->options, out);
    for (int i = 0; i < STAGE_COUNT; i++) completion_table(&stage_kinds[i].options, out);
    buf_puts(out, ")\n"
                  "_caravan() {\n"
                  "    local program=${1##*/} word=$2 option=${3//_/-} words\n"
                  "    [[ $program = caravan && $COMP_CWORD -gt 1 ]] && program=\"caravan ${COMP_WORDS[1]}\"\n"
                  "    words=${_caravan_words[$program]-FILE}\n"
                  "    [[ $option = --* ]] && words=${_caravan_words[$program $option]-$words}\n"
                  "    mapfile -t COMPREPLY < <(compgen -W \"${words//FILE/}\" -- \"$word\"; [[ $words = *FILE* ]] && "
                  "compgen -f -- \"$word\")\n"
                  "    [[ $words = *FILE* ]] && compopt -o filenames 2>/dev/null\n"
                  "    return 0\n"
                  "}\n"
                  "complete -F _caravan caravan");
    for (int i = 0; i < STAGE_COUNT; i++) buf_printf(out, " %s", stage_kinds[i].options.program);
    buf_puts(out, "\n");
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

static void completion_zsh(struct buf *out) {
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
    buf_puts(out, "    esac\n"
                  "}\n"
                  "_caravan \"$@\"\n");
}

static void completion_fish_table(const struct option_table *table, const char *name, struct buf *out) {
    struct buf begin = {0}; // of a line about the program, or about the subcommand `name` of caravan
    if (name)
        buf_printf(&begin, "complete -c caravan -n '__fish_seen_subcommand_from %s'", name);
    else
        buf_printf(&begin, "complete -c %s", table->program);
    buf_puts(out, begin.data);
    if (table->operands) {
        buf_puts(out, " -a '");
        completion_words(table->operands, out);
        buf_puts(out, "'\n");
    } else {
        buf_puts(out, " -f\n");
    }
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        for (int negated = 0; negated <= (option->type == OPTION_BOOL); negated++) {
            buf_puts(out, begin.data);
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
    buf_release(&begin);
}

static void completion_fish(struct buf *out) {
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
}

// ---- man ----

// caravan(1) has every subcommand, since caravan-frames(1) is the stage of that name; each stage has a page.

// Appends a text, in which troff would take some characters for its own.
static void man_text(const char *text, struct buf *out) {
    static const char from[] = "\\-'`^~\"";
    static const char *const to[] = {"\\e", "\\-", "\\(aq", "\\(ga", "\\(ha", "\\(ti", "\\(dq"};
    for (bool line_start = true; *text; line_start = *text == '\n', text++) {
        const char *found = strchr(from, *text);
        if (line_start && *text == '.') buf_puts(out, "\\&");
        if (found)
            buf_puts(out, to[found - from]);
        else
            buf_append(out, text, 1);
    }
}

static void man_options(const struct option *option, struct buf *out) {
    struct arena arena = {0};
    for (; option && option->name; option++) {
        buf_puts(out, ".TP\n\\fB\\-\\-");
        for (const char *at = option->name; *at; at++) man_text((char[]){*at == '_' ? '-' : *at, 0}, out);
        buf_puts(out, "\\fR");
        if (option->type != OPTION_BOOL) {
            const char *argument = option_argument(option, &arena);
            buf_puts(out, " \\fI");
            man_text(argument, out);
            buf_puts(out, "\\fR");
        }
        buf_puts(out, "\n");
        man_text(option->help, out);
        if (option->required) buf_puts(out, " (required)");
        if (option->default_value) {
            buf_puts(out, " (default: ");
            man_text(option->default_value, out);
            buf_puts(out, ")");
        }
        buf_puts(out, "\n");
    }
    arena_release(&arena);
}

// Appends the manual page of a program, "caravan" or "caravan-STAGE", as troff with the macros of man(7). USAGE for
// another name.
static status man_page(const char *program, struct buf *out) {
    const bool tool = strcmp(program, "caravan") == 0;
    const struct option_table *table = NULL; // of the stage
    for (int i = 0; i < STAGE_COUNT; i++)
        if (strcmp(program, stage_kinds[i].options.program) == 0) table = &stage_kinds[i].options;
    if (!tool && !table) return fail(USAGE, "%s: there is no such program; write caravan or caravan-STAGE", program);
    buf_puts(out, ".TH \"");
    for (const char *at = program; *at; at++) man_text((char[]){(char)toupper((unsigned char)*at), 0}, out);
    buf_puts(out, "\" 1 \"\" \"caravan " CARAVAN_VERSION "\" \"User Commands\"\n.SH NAME\n");
    man_text(program, out);
    buf_puts(out, " \\- ");
    man_text(tool ? "consistency-aware reinforcement learning for video-language models" : table->help, out);
    buf_puts(out, "\n.SH SYNOPSIS\n.B ");
    if (tool) {
        buf_puts(out, "caravan\n.I SUBCOMMAND\n[...]\n.br\n.B caravan\n.I SUBCOMMAND\n.B \\-\\-help\n"
                      ".br\n.B caravan\n.B \\-\\-version\n.SH DESCRIPTION\n");
        buf_puts(out, "caravan trains Qwen2.5\\-VL and Qwen2\\-VL on video question answering by GRPO\\-CARE.\n.PP\n"
                      "A pipeline file names the stages of a training or an evaluation. caravan run starts them as "
                      "processes, which pass\n"
                      "groups of completions to each other. Each stage is also a filter of groups as JSON lines.\n"
                      ".SH SUBCOMMANDS\n");
    } else {
        man_text(program, out);
        buf_puts(out, "\n.B \\-\\-stdio\n[\\fB\\-\\-\\fIKEY VALUE\\fR]...\n.SH DESCRIPTION\nA stage of caravan: ");
        man_text(table->help, out);
        buf_puts(out,
                 ".\nWith \\-\\-stdio it reads groups as JSON lines from standard input and writes them to standard\n"
                 "output. In a pipeline file the same keys, with underscores, belong to the stage.\n.SH OPTIONS\n");
        man_options(table->options, out);
        buf_puts(out, ".SH OPTIONS OF EVERY STAGE\n");
        man_options(table->common, out);
        buf_puts(out, ".PP\nA true\\-or\\-false option may stand alone (true) or as \\-\\-no\\-NAME (false).\n");
    }
    for (const struct subcommand *at = subcommands; tool && at->name; at++) { // usage, help, options and details
        const struct option_table *own = at->options;
        buf_puts(out, ".SS \"");
        man_text(own->program, out);
        buf_puts(out, own->options || own->common ? " [\\-\\-KEY VALUE]..." : "");
        if (own->operands) buf_puts(out, " ");
        if (own->operands) man_text(own->operands, out);
        buf_puts(out, "\"\n");
        man_text((char[]){(char)toupper((unsigned char)*own->help), 0}, out);
        man_text(own->help + 1, out);
        buf_puts(out, ".\n");
        man_options(own->options, out);
        if (!own->details) continue;
        buf_puts(out, ".PP\n.nf\n");
        man_text(own->details, out);
        buf_puts(out, ".fi\n");
    }
    if (tool)
        buf_puts(out, ".SH FILES\n"
                      ".TP\n.I RUN/store\nframes and groups of a run\n"
                      ".TP\n.I RUN/checkpoints\nmodel directories in the layout of Hugging Face, and metrics\n"
                      ".TP\n.I RUN/logs\none log for each process\n"
                      ".TP\n.I ~/.config/caravan/machine.key\nthe secret key of this machine\n"
                      ".SH ENVIRONMENT\n"
                      ".TP\n.B CARAVAN_LIB\na directory with the plug\\-in for GPUs\n"
                      ".TP\n.B CARAVAN_CUBLASLT\nthe file of cuBLASLt, or none\n"
                      ".TP\n.B CARAVAN_NCCL\nthe file of NCCL, or none\n"
                      ".TP\n.B CARAVAN_AMX\nnone leaves AMX unused\n"
                      ".TP\n.B CARAVAN_ONEDNN\nnone leaves oneDNN unused\n"
                      ".TP\n.B CARAVAN_DEBUG\n1 logs where an error came from\n");
    buf_puts(out,
             ".SH EXIT STATUS\n0 done, 64 wrong usage, 65 bad input, 69 a missing service or device, 70 a bug, 75 a "
             "stopped run.\n.SH SEE ALSO\n");
    const char *separator = "";
    for (int i = -1; i < STAGE_COUNT; i++) {
        const char *other = i < 0 ? "caravan" : stage_kinds[i].options.program;
        if (strcmp(other, program) == 0) continue;
        buf_printf(out, "%s.BR ", separator);
        man_text(other, out);
        buf_puts(out, " (1)");
        separator = ",\n";
    }
    buf_puts(out, "\n");
    return OK;
}

// ---- reference ----

struct reference_options {
    const char *man, *completion;
};

static const char reference_shells[] = "bash|zsh|fish";

static const struct option reference_options[] = {
    TOOL_OPTION(reference_options, man, OPTION_STRING,
                "print the manual page of this program, caravan or caravan-STAGE"),
    TOOL_OPTION(reference_options, completion, OPTION_NAME, "print the completion script of this shell",
                .choices = reference_shells, .rule = RULE_INSTEAD_OF, .other = "man"),
    {0},
};
const struct option_table reference_table = {
    .program = "caravan reference",
    .help = "prints the keys of stages and pipeline files and the group's fields as Markdown",
    .options = reference_options,
    .size = sizeof(struct reference_options),
};

status reference_main(struct subcommand_call *call) {
    const struct reference_options *given = call->given;
    struct buf *page = &call->out;
    if (given->man) return man_page(given->man, page);
    if (given->completion) {
        static void (*const scripts[])(struct buf *) = {completion_bash, completion_zsh, completion_fish};
        scripts[choice_index(reference_shells, given->completion)](page);
    } else {
        buf_puts(page, "# Reference\n\nThis page is the output of `caravan reference`; `make reference` writes "
                       "it anew.\n\n## The stages' keys\n\n");
        stage_kinds_markdown(page);
        buf_puts(page, "## The pipeline file\n\n");
        pipeline_keys_markdown(page);
        buf_puts(page, "## The group\n\n");
        group_reference_page(page);
    }
    return OK;
}
