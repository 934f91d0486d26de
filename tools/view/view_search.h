// Figures of a group, and searches among the groups of a source: conditions of `caravan groups select` and on figures,
// joined by `and` and `or`, with parentheses, and a text.
#pragma once

#include "tools/groups/condition.h"
#include "tools/view/view.h"

// ---- figures ----

// What `where` calls group.NAME, what the rows have, and what they can be sorted by.

enum view_figure_type {
    FIGURE_FLOAT,
    FIGURE_COUNT,
    FIGURE_SCORED, // a count that a group without accuracy has not
    FIGURE_COUNT32,
    FIGURE_OTHER
};

struct view_figure {
    const char *name, *where; // as a column, and behind `group.`; NULL: not there
    enum view_figure_type type;
    size_t offset;
};

enum { FIGURE_NUMBER, FIGURE_STEP, FIGURE_BONUS, FIGURE_IN_FLIGHT, FIGURE_FIRST_STORED };

enum { VIEW_FIGURES = 19 };
extern const struct view_figure view_figures[VIEW_FIGURES];

// Returns a figure of the group at an index, NaN if it has none.
double view_figure_of(const struct view_source *source, size_t index, int figure);

// ---- search ----

// A part of `where`: a condition on a figure of the group, one of `caravan groups select`, or two parts.
enum view_part_kind { PART_FIGURE, PART_FIELD, PART_AND, PART_OR };

struct view_part {
    enum view_part_kind kind;
    int figure, sign; // PART_FIGURE: indexes of view_figures and view_signs
    double number;
    struct condition field;
    struct view_part *left, *right;
};

// What was found with a `where` and a `text`. A group is tried once, the newest first; those that come later are tried
// when somebody asks again.
struct view_search {
    char *where, *text;     // "" if not given
    struct arena arena;     // of the parts and their texts
    struct view_part *root; // must hold for one completion of the group; NULL: no condition
    size_t fields;          // parts of it for which the group must be read
    uint8_t *verdicts;      // of the groups in [low, high) of the list: whether it was found
    size_t low, high, capacity;
    int64_t scanned, matched;
    double used; // clock_monotonic()
};

// *out = the search of the call, as far as it has come; `found` gets the indexes of what it has found now. NULL:
// everything is asked for. USAGE: a mistake in `where`, of which call->column has the place.
status view_search_of(struct view_call *call, struct view_search **out, struct buf *found);

// Whether the group at an index is there, found (`search` NULL: asked for), and in the steps from steps[0] to steps[1].
bool view_search_counts(const struct view_source *source, const struct view_search *search, size_t index,
                        const int64_t steps[2]);

// Appends the fields of which no group had a value, as the elements of an array; *listed counts them.
void view_part_print_missing(const struct view_part *part, struct buf *out, size_t *listed);

// Says that the group at an index is not there any more.
void view_searches_forget(struct view_search *searches, size_t index);

// Frees the searches of a source, and sets *searches to NULL; NULL is fine.
void view_searches_free(struct view_search **searches);
