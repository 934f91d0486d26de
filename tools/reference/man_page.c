// Manual pages: caravan(1) has every subcommand, since caravan-frames(1) is the stage of that name; each stage has a
// page.
#include "tools/reference/man_page.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "shared/config/stage_kinds.h"
#include "tools/tools.h"

static const char man_tool_description[] =
    ".PP\n"
    "A pipeline file names the stages of a training or an evaluation. caravan run starts them as processes, which "
    "pass\n"
    "groups of completions to each other. Each stage is also a filter of groups as JSON lines.\n";

static const char man_files[] =
    ".SH FILES\n"
    ".TP\n.I RUN/store\nframes and groups of a run\n"
    ".TP\n.I RUN/checkpoints\nmodel directories in the layout of Hugging Face, and metrics\n"
    ".TP\n.I RUN/logs\none log for each process\n"
    ".TP\n.I ~/.config/caravan/machine.key\nthe secret key of this machine\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B CARAVAN_LIB\na directory with the plug\\-in for GPUs\n"
    ".TP\n.B CARAVAN_CUBLASLT\nthe file of cuBLASLt, or none\n"
    ".TP\n.B CARAVAN_AMX\nnone leaves AMX unused\n"
    ".TP\n.B CARAVAN_DEBUG\n1 logs where an error came from\n";

static const char man_exit_status[] =
    ".SH EXIT STATUS\n"
    "0 done, 64 wrong usage, 65 bad input, 69 a missing service or device, 70 a bug, 75 a stopped run.\n";

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

static void man_capitalized(const char *text, struct buf *out) {
    const char first[] = {(char)toupper((unsigned char)*text), 0};
    man_text(first, out);
    man_text(text + 1, out);
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

// Appends usage, help, options and details under `heading`, the request of a section or subsection.
static void man_table(const char *heading, const struct option_table *table, struct buf *out) {
    const bool keys = table->options || table->common;
    buf_printf(out, "%s \"", heading);
    man_text(table->program, out);
    buf_printf(out, "%s%s", keys ? " [\\-\\-KEY VALUE]..." : "", table->operands ? " " : "");
    man_text(table->operands ? table->operands : "", out);
    buf_puts(out, "\"\n");
    man_capitalized(table->help, out);
    buf_puts(out, ".\n");
    man_options(table->options, out);
    if (!table->details) return;
    buf_puts(out, ".PP\n.nf\n");
    man_text(table->details, out);
    buf_puts(out, ".fi\n");
}

// Appends the title and the name of a page.
static void man_head(const char *program, const char *help, struct buf *out) {
    buf_puts(out, ".TH \"");
    for (const char *at = program; *at; at++) man_text((char[]){(char)toupper((unsigned char)*at), 0}, out);
    buf_puts(out, "\" 1 \"\" \"caravan " CARAVAN_VERSION "\" \"User Commands\"\n.SH NAME\n");
    man_text(program, out);
    buf_puts(out, " \\- ");
    man_text(help, out);
    buf_puts(out, "\n");
}

static void man_see_also(const char *program, struct buf *out) {
    const char *separator = "";
    buf_puts(out, ".SH SEE ALSO\n");
    for (int i = -1; i < STAGE_COUNT; i++) {
        const char *other = i < 0 ? "caravan" : stage_kinds[i].options.program;
        if (strcmp(other, program) == 0) continue;
        buf_printf(out, "%s.BR ", separator);
        man_text(other, out);
        buf_puts(out, " (1)");
        separator = ",\n";
    }
    buf_puts(out, "\n");
}

static void man_tool(struct buf *out) {
    man_head("caravan", "consistency-aware reinforcement learning for video-language models", out);
    buf_puts(out, ".SH SYNOPSIS\n.B caravan\n.I SUBCOMMAND\n[...]\n.br\n.B caravan\n.I SUBCOMMAND\n.B \\-\\-help\n"
                  ".br\n.B caravan\n.B \\-\\-version\n.SH DESCRIPTION\n");
    buf_puts(out, "caravan trains Qwen2.5\\-VL and Qwen2\\-VL on video question answering by GRPO\\-CARE.\n");
    buf_puts(out, man_tool_description);
    buf_puts(out, ".SH SUBCOMMANDS\n");
    for (const struct subcommand *at = subcommands; at->name; at++) man_table(".SS", at->options, out);
    buf_puts(out, man_files);
    buf_puts(out, man_exit_status);
    man_see_also("caravan", out);
}

static void man_stage(const struct option_table *table, struct buf *out) {
    man_head(table->program, table->help, out);
    buf_puts(out, ".SH SYNOPSIS\n.B ");
    man_text(table->program, out);
    buf_puts(out, "\n.B \\-\\-stdio\n[\\fB\\-\\-\\fIKEY VALUE\\fR]...\n.SH DESCRIPTION\nA stage of caravan: ");
    man_text(table->help, out);
    buf_puts(out, ".\nWith \\-\\-stdio it reads groups as JSON lines from standard input and writes them to standard\n"
                  "output. In a pipeline file the same keys, with underscores, belong to the stage.\n.SH OPTIONS\n");
    man_options(table->options, out);
    buf_puts(out, ".SH OPTIONS OF EVERY STAGE\n");
    man_options(table->common, out);
    buf_puts(out, ".PP\nA true\\-or\\-false option may stand alone (true) or as \\-\\-no\\-NAME (false).\n");
    buf_puts(out, man_exit_status);
    man_see_also(table->program, out);
}

status man_page(const char *program, struct buf *out) {
    if (strcmp(program, "caravan") == 0) {
        man_tool(out);
        return OK;
    }
    for (int i = 0; i < STAGE_COUNT; i++)
        if (strcmp(program, stage_kinds[i].options.program) == 0) {
            man_stage(&stage_kinds[i].options, out);
            return OK;
        }
    return fail(USAGE, "%s: there is no such program; write caravan or caravan-STAGE", program);
}
