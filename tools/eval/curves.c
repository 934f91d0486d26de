// caravan curves: learning curves of trainings as an SVG picture: a panel for each figure of metrics.jsonl, a line for
// each method, the mean over its seeds, between the least and the greatest of them.
#include <assert.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/base/signals.h"
#include "tools/tools.h"

struct curves_options {
    struct string_list field;
    int64_t smooth;
};

static const struct option curves_options[] = {
    TOOL_OPTION(curves_options, field, OPTION_STRING,
                "a figure of metrics.jsonl to draw, such as entropy; may be repeated (default: reward, accuracy,\n"
                "consistent, bonus_rate, completion_length, entropy, kl, grad_norm, all_correct, all_wrong)",
                .repeatable = true, .not_hashed = true),
    TOOL_OPTION(curves_options, smooth, OPTION_INT, "steps of which each point is the mean", .default_value = "10",
                .low = 1, .high = 1000000),
    {0},
};

const struct option_table curves_table = {
    .program = "caravan curves",
    .operands = "NAME=RUN[,RUN...]...",
    .help = "draws learning curves of trainings as an SVG picture",
    .details = "A RUN is the directory of a training; those of a NAME differ in their seeds: its\n"
               "line is their mean, the band goes from the least to the greatest. The picture is\n"
               "written to standard output.\n",
    .options = curves_options,
    .size = sizeof(struct curves_options),
};

enum {
    PANEL_COLUMNS = 2,
    PANEL_WIDTH = 440,
    PANEL_HEIGHT = 200,
    PANEL_LEFT = 56, // of the panel, the room for the numbers
    PANEL_TOP = 30,
    PANEL_BOTTOM = 26,
    PANEL_RIGHT = 12,
    LEGEND_HEIGHT = 22,
    LEGEND_WIDTH = 140,
    TICKS = 4
};

static const char *const curve_colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9",
                                            "#e69f00", "#000000", "#8c564b", "#7f7f7f", "#9467bd"};
enum { CURVE_COLOURS = sizeof curve_colours / sizeof *curve_colours };

// A training.
struct curve_run {
    struct json **lines; // of metrics.jsonl, for each step; NULL: missing
    size_t steps;
};

// A method.
struct curve {
    struct string name;
    struct curve_run *runs;
    size_t count;
};

// Reads a run's metrics.jsonl. A step that stands twice, after a restart, counts as it stands last.
static status curve_read(struct curve_run *curve_run, struct arena *memory, const char *run) {
    const char *path = path_join(memory, run, "metrics.jsonl");
    struct line_reader lines = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    struct json ***steps = &curve_run->lines;
    size_t *count = &curve_run->steps;
    status result = OK;
    if (lines.fd < 0) return fail(DATAERR, "%s: there is none", path);
    while (result == OK) {
        const char *text = NULL;
        struct json *line;
        size_t size;
        int64_t step = 0;
        result = line_reader_next(&lines, -1, &text, &size);
        if (result != OK || !text) continue;
        result = json_parse_object(&line, memory, text, size, path);
        const char *end = lines.buffer.data + lines.buffer.size;
        if (result != OK && text + size >= end) result = END; // a last line that a run is just writing
        if (result == OK && (!json_int(json_at(line, "step"), &step) || step < 1 || step > 100000000))
            result = fail(DATAERR, "%s: line %zu: step: missing", path, lines.number);
        if (result != OK) break;
        if ((size_t)step > *count) {
            RESIZE(steps, (size_t)step);
            for (size_t i = *count; i < (size_t)step; i++) (*steps)[i] = NULL;
            *count = (size_t)step;
        }
        (*steps)[step - 1] = line;
    }
    close(lines.fd);
    line_reader_release(&lines);
    if (result != END) return result;
    return *count ? OK : fail(DATAERR, "%s: no steps", path);
}

// Where a panel's numbers are drawn.
struct panel {
    double left, top, low, high; // of the numbers; low < high
    size_t steps;
};

static double panel_x(const struct panel *panel, size_t step) {
    const double width = PANEL_WIDTH - PANEL_LEFT - PANEL_RIGHT;
    return panel->left + PANEL_LEFT + width * (double)step / (double)(panel->steps > 1 ? panel->steps - 1 : 1);
}

static double panel_y(const struct panel *panel, double value) {
    const double height = PANEL_HEIGHT - PANEL_TOP - PANEL_BOTTOM;
    return panel->top + PANEL_TOP + height * (panel->high - value) / (panel->high - panel->low);
}

enum curve_edge { EDGE_MEAN, EDGE_LEAST, EDGE_GREATEST };

// Returns a point of the line, or of the band's edges: a run's value is the mean of the figure over the `smooth` steps
// that end with `step`, of those that have it. NaN where no run has the figure.
static double curve_point(const struct curve *curve, size_t step, size_t smooth, const char *field,
                          enum curve_edge edge) {
    double sum = 0, least = INFINITY, greatest = -INFINITY;
    size_t count = 0;
    for (size_t i = 0; i < curve->count; i++) {
        const struct curve_run *run = &curve->runs[i];
        double run_sum = 0, value;
        size_t run_count = 0;
        for (size_t k = step + 1 > smooth ? step + 1 - smooth : 0; k <= step && step < run->steps; k++) {
            if (!run->lines[k] || !json_double(json_at(run->lines[k], field), &value)) continue;
            run_sum += value;
            run_count++;
        }
        if (!run_count) continue;
        value = run_sum / (double)run_count;
        sum += value;
        least = fmin(least, value);
        greatest = fmax(greatest, value);
        count++;
    }
    if (!count) return NAN;
    return edge == EDGE_MEAN ? sum / (double)count : edge == EDGE_LEAST ? least : greatest;
}

// Appends the points of a line to a path, from the first step to the last or the other way.
static void curve_draw_line(struct buf *out, const struct curve *curve, const struct panel *panel, size_t smooth,
                            const char *field, enum curve_edge edge, bool backwards) {
    const size_t stride = panel->steps > 400 ? panel->steps / 400 : 1; // a point for each pixel is enough
    for (size_t i = 0; i < panel->steps; i += stride) {
        const size_t step = backwards ? panel->steps - 1 - i : i;
        const double value = curve_point(curve, step, smooth, field, edge);
        if (!isnan(value)) buf_printf(out, "%.1f,%.1f ", panel_x(panel, step), panel_y(panel, value));
    }
}

static void curve_draw_panel(struct buf *out, const struct curve *curves, size_t count, struct panel *panel,
                             size_t smooth, const char *field) {
    panel->low = INFINITY;
    panel->high = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        for (size_t step = 0; step < panel->steps; step++) {
            const double least = curve_point(&curves[i], step, smooth, field, EDGE_LEAST);
            if (isnan(least)) continue;
            panel->low = fmin(panel->low, least);
            panel->high = fmax(panel->high, curve_point(&curves[i], step, smooth, field, EDGE_GREATEST));
        }
    }
    buf_printf(out, "<text x=\"%.0f\" y=\"%.0f\" font-weight=\"bold\">", panel->left + PANEL_LEFT, panel->top + 20);
    for (const char *c = field; *c; c++) buf_append(out, *c == '<' || *c == '&' || *c == '_' ? " " : c, 1);
    buf_puts(out, "</text>\n");
    if (panel->low > panel->high) {
        buf_printf(out, "<text x=\"%.0f\" y=\"%.0f\" fill=\"#666\">no run has it</text>\n",
                   panel->left + PANEL_LEFT + 8, panel->top + PANEL_HEIGHT / 2.0);
        return;
    }
    // A tick is 1, 2 or 5 times a power of ten.
    const double least = fmax((panel->high - panel->low) / TICKS, 1e-6) * (1 - 1e-9);
    const double power = pow(10, floor(log10(least)));
    const double tick = power * (least <= power ? 1 : least <= 2 * power ? 2 : least <= 5 * power ? 5 : 10);
    panel->low = floor(panel->low / tick) * tick;
    panel->high = fmax(ceil(panel->high / tick) * tick, panel->low + tick);
    const int ticks = (int)lround((panel->high - panel->low) / tick);
    for (int i = 0; i <= ticks; i++) {
        const double value = panel->low + i * tick;
        const double y = panel_y(panel, value);
        buf_printf(out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>", panel->left + PANEL_LEFT, y,
                   panel->left + PANEL_WIDTH - PANEL_RIGHT);
        buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#444\">%.4g</text>\n",
                   panel->left + PANEL_LEFT - 6, y + 4, fabs(value) < tick / 2 ? 0 : value);
    }
    for (int end = 0; end < 2; end++) {
        const size_t step = end ? panel->steps - 1 : 0;
        buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"#444\">%s%zu</text>\n",
                   panel_x(panel, step), panel->top + PANEL_HEIGHT - 8, end ? "end" : "start", end ? "step " : "",
                   step + 1);
    }
    for (size_t i = 0; i < count; i++) {
        const char *colour = curve_colours[i % CURVE_COLOURS];
        if (curves[i].count > 1) {
            buf_printf(out, "<polygon fill=\"%s\" fill-opacity=\"0.12\" points=\"", colour);
            curve_draw_line(out, &curves[i], panel, smooth, field, EDGE_LEAST, false);
            curve_draw_line(out, &curves[i], panel, smooth, field, EDGE_GREATEST, true);
            buf_puts(out, "\"/>\n");
        }
        buf_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"", colour);
        curve_draw_line(out, &curves[i], panel, smooth, field, EDGE_MEAN, false);
        buf_puts(out, "\"/>\n");
    }
}

status curves_main(struct subcommand_call *call) {
    static const char *const usual[] = {"reward",  "accuracy", "consistent", "completion_length", "bonus_rate",
                                        "entropy", "kl",       "grad_norm",  "all_correct",       "all_wrong"};
    const struct curves_options *given = call->given;
    const char *const *fields = given->field.count ? given->field.data : usual;
    const size_t field_count = given->field.count ? given->field.count : sizeof usual / sizeof *usual;
    const size_t count = (size_t)call->count, legend_columns = PANEL_COLUMNS * PANEL_WIDTH / LEGEND_WIDTH;
    const size_t legend = (count + legend_columns - 1) / legend_columns * LEGEND_HEIGHT + 10;
    struct curve *curves = arena_alloc(&call->arena, count * sizeof *curves);
    struct panel panel = {0};
    struct buf *out = &call->out;
    status result = OK;
    for (size_t i = 0; i < count; i++) {
        struct string_list runs;
        TRY_TO(result, done, subcommand_read_runs(call->list[i], &call->arena, &curves[i].name, &runs));
        curves[i].runs = arena_alloc(&call->arena, runs.count * sizeof *curves[i].runs);
        for (size_t k = 0; k < runs.count; k++) {
            struct curve_run *run = &curves[i].runs[curves[i].count++];
            TRY_TO(result, done, curve_read(run, &call->arena, runs.data[k]));
            if (panel.steps < run->steps) panel.steps = run->steps;
        }
    }
    const size_t rows = (field_count + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" font-family=\"sans-serif\" "
               "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
               PANEL_COLUMNS * PANEL_WIDTH, legend + rows * PANEL_HEIGHT);
    for (size_t i = 0; i < count; i++) {
        const size_t row = i / legend_columns;
        const double x = (double)(i % legend_columns * LEGEND_WIDTH + 16), y = (double)(row * LEGEND_HEIGHT + 16);
        buf_printf(out, "<path d=\"M%.0f %.0fh22\" stroke=\"%s\" stroke-width=\"3\"/><text x=\"%.0f\" y=\"%.0f\">", x,
                   y, curve_colours[i % CURVE_COLOURS], x + 28, y + 4);
        for (size_t k = 0; k < curves[i].name.size; k++)
            buf_append(out, strchr("<>&", curves[i].name.data[k]) ? "?" : &curves[i].name.data[k], 1);
        buf_puts(out, "</text>\n");
    }
    for (size_t i = 0; i < field_count; i++) {
        const size_t row = i / PANEL_COLUMNS, top = legend + row * PANEL_HEIGHT;
        panel.left = (double)(i % PANEL_COLUMNS * PANEL_WIDTH);
        panel.top = (double)top;
        curve_draw_panel(out, curves, count, &panel, (size_t)given->smooth, fields[i]);
    }
    buf_puts(out, "</svg>\n");
done:
    for (size_t i = 0; i < count; i++)
        for (size_t run = 0; run < curves[i].count; run++) free(curves[i].runs[run].lines);
    return result;
}
