// Manual pages: caravan(1) has every subcommand, since caravan-frames(1) is the stage of that name; each stage has a
// page.
#include "tools/man_page.h"

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
static status man_text(const char *text, struct buf *out) {
    static const char from[] = "\\-'`^~\"";
    static const char *const to[] = {"\\e", "\\-", "\\(aq", "\\(ga", "\\(ha", "\\(ti", "\\(dq"};
    for (bool line_start = true; *text; line_start = *text == '\n', text++) {
        const char *found = strchr(from, *text);
        if (line_start && *text == '.') TRY(buf_puts(out, "\\&"));
        TRY(found ? buf_puts(out, to[found - from]) : buf_append(out, text, 1));
    }
    return OK;
}

static status man_capitalized(const char *text, struct buf *out) {
    const char first[] = {(char)toupper((unsigned char)*text), 0};
    TRY(man_text(first, out));
    return man_text(text + 1, out);
}

static status man_options(const struct option *option, struct buf *out) {
    struct arena arena = {0};
    status result = OK;
    for (; option && option->name; option++) {
        if (option->hidden) continue;
        TRY_TO(result, done, buf_puts(out, ".TP\n\\fB\\-\\-"));
        for (const char *at = option->name; *at; at++)
            TRY_TO(result, done, man_text((char[]){*at == '_' ? '-' : *at, 0}, out));
        TRY_TO(result, done, buf_puts(out, "\\fR"));
        if (option->type != OPTION_BOOL) {
            const char *argument = option_argument(option, &arena);
            if (!argument) TRY_TO(result, done, fail_oom());
            TRY_TO(result, done, buf_puts(out, " \\fI"));
            TRY_TO(result, done, man_text(argument, out));
            TRY_TO(result, done, buf_puts(out, "\\fR"));
        }
        TRY_TO(result, done, buf_puts(out, "\n"));
        TRY_TO(result, done, man_text(option->help, out));
        if (option->required) TRY_TO(result, done, buf_puts(out, " (required)"));
        if (option->default_value) {
            TRY_TO(result, done, buf_puts(out, " (default: "));
            TRY_TO(result, done, man_text(option->default_value, out));
            TRY_TO(result, done, buf_puts(out, ")"));
        }
        TRY_TO(result, done, buf_puts(out, "\n"));
    }
done:
    arena_release(&arena);
    return result;
}

// Appends usage, help, options and details under `heading`, the request of a section or subsection.
static status man_table(const char *heading, const struct option_table *table, struct buf *out) {
    const bool keys = table->options || table->common;
    TRY(buf_printf(out, "%s \"", heading));
    TRY(man_text(table->program, out));
    TRY(buf_printf(out, "%s%s", keys ? " [\\-\\-KEY VALUE]..." : "", table->operands ? " " : ""));
    TRY(man_text(table->operands ? table->operands : "", out));
    TRY(buf_puts(out, "\"\n"));
    TRY(man_capitalized(table->help, out));
    TRY(buf_puts(out, ".\n"));
    TRY(man_options(table->options, out));
    if (!table->details) return OK;
    TRY(buf_puts(out, ".PP\n.nf\n"));
    TRY(man_text(table->details, out));
    return buf_puts(out, ".fi\n");
}

// Appends the title and the name of a page.
static status man_head(const char *program, const char *help, struct buf *out) {
    TRY(buf_puts(out, ".TH \""));
    for (const char *at = program; *at; at++) TRY(man_text((char[]){(char)toupper((unsigned char)*at), 0}, out));
    TRY(buf_puts(out, "\" 1 \"\" \"caravan " CARAVAN_VERSION "\" \"User Commands\"\n.SH NAME\n"));
    TRY(man_text(program, out));
    TRY(buf_puts(out, " \\- "));
    TRY(man_text(help, out));
    return buf_puts(out, "\n");
}

static status man_see_also(const char *program, struct buf *out) {
    const char *separator = "";
    TRY(buf_puts(out, ".SH SEE ALSO\n"));
    for (int i = -1; i < STAGE_COUNT; i++) {
        const char *other = i < 0 ? "caravan" : stage_kinds[i].options.program;
        if (strcmp(other, program) == 0) continue;
        TRY(buf_printf(out, "%s.BR ", separator));
        TRY(man_text(other, out));
        TRY(buf_puts(out, " (1)"));
        separator = ",\n";
    }
    return buf_puts(out, "\n");
}

static status man_tool(struct buf *out) {
    TRY(man_head("caravan", "consistency-aware reinforcement learning for video-language models", out));
    TRY(buf_puts(out, ".SH SYNOPSIS\n.B caravan\n.I SUBCOMMAND\n[...]\n.br\n.B caravan\n.I SUBCOMMAND\n.B \\-\\-help\n"
                      ".br\n.B caravan\n.B \\-\\-version\n.SH DESCRIPTION\n"));
    TRY(buf_puts(out, "caravan trains Qwen2.5\\-VL and Qwen2\\-VL on video question answering by GRPO\\-CARE.\n"));
    TRY(buf_puts(out, man_tool_description));
    TRY(buf_puts(out, ".SH SUBCOMMANDS\n"));
    for (const struct subcommand *at = subcommands; at->name; at++) TRY(man_table(".SS", at->options, out));
    TRY(buf_puts(out, man_files));
    TRY(buf_puts(out, man_exit_status));
    return man_see_also("caravan", out);
}

static status man_stage(const struct option_table *table, struct buf *out) {
    TRY(man_head(table->program, table->help, out));
    TRY(buf_puts(out, ".SH SYNOPSIS\n.B "));
    TRY(man_text(table->program, out));
    TRY(buf_puts(out, "\n.B \\-\\-stdio\n[\\fB\\-\\-\\fIKEY VALUE\\fR]...\n.SH DESCRIPTION\nA stage of caravan: "));
    TRY(man_text(table->help, out));
    TRY(buf_puts(out,
                 ".\nWith \\-\\-stdio it reads groups as JSON lines from standard input and writes them to standard\n"
                 "output. In a pipeline file the same keys, with underscores, belong to the stage.\n.SH OPTIONS\n"));
    TRY(man_options(table->options, out));
    TRY(buf_puts(out, ".SH OPTIONS OF EVERY STAGE\n"));
    TRY(man_options(table->common, out));
    TRY(buf_puts(out, ".PP\nA true\\-or\\-false option may stand alone (true) or as \\-\\-no\\-NAME (false).\n"));
    TRY(buf_puts(out, man_exit_status));
    return man_see_also(table->program, out);
}

status man_page(const char *program, struct buf *out) {
    if (strcmp(program, "caravan") == 0) return man_tool(out);
    for (int i = 0; i < STAGE_COUNT; i++)
        if (strcmp(program, stage_kinds[i].options.program) == 0) return man_stage(&stage_kinds[i].options, out);
    return fail(USAGE, "%s: there is no such program; write caravan or caravan-STAGE", program);
}
