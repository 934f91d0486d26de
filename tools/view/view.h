// caravan view: the page of a run. One thread answers the routes that ROUTES.md states; nothing of a run is written.
//
// view.c opens what the command line names, listens, and finds the function of a route. The routes are in view_groups.c
// (those over all groups; view_search.c has their conditions, view_blocks.c what a thousand groups have together),
// view_group.c (one group), view_run.c and view_live.c (the run as a whole, and how far it is), view_trace.c (times)
// and view_compare.c (two sources beside each other). view_html.c writes the answers of all into one file.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/config/pipeline.h"
#include "shared/http/http.h"
#include "shared/store/group_store.h"
#include "shared/text/tokenizer.h"

enum view_kind { VIEW_RUN, VIEW_STORE, VIEW_FILE };

// The groups of a source: a summary of each, in the order in which they were saved. The groups themselves stay in the
// store or the file, and are read when somebody looks at them.
struct view_groups {
    const char *path;              // of the source
    struct group_store *store;     // NULL: they are in a file, or there is no store yet
    char *store_file;              // of the store, on the heap
    uint64_t device, inode;        // of that file when it was opened
    struct numbered_summary *list; // number -1: the group was removed, or saved again and is further behind
    size_t count, capacity;
    int64_t total;    // groups of the list that are there
    int64_t next;     // the number from which on nothing was read yet
    size_t alive;     // the first index that may be there
    bool trains;      // some group was trained
    double opened_at; // clock_monotonic() of the last try to open a store
    int64_t *by_seq;  // the index of the group with this seq, -1: none
    size_t seq_count, seq_capacity;
    struct view_file *file;     // of a file, and of a store without summaries: where each group is
    struct view_search *search; // what was found lately, see view_search.h
    struct view_block *blocks;  // see view_block_at
    size_t block_count;
};

// What an operand of the command line names.
struct view_source {
    const char *name; // in the page and in addresses
    const char *path;
    enum view_kind kind;
    const char *run;           // the run's directory; NULL: it is no run
    struct pipeline *pipeline; // of a run, as of its last start
    struct string_list frames; // the directories that have frames.lmdb, when they were sought
    bool frames_sought;
    const char *trace_file; // the name under which its trace is saved; NULL: nobody asked yet
    struct view_groups groups;
};

struct view {
    struct arena arena; // lives as long as the view
    struct view_source *sources;
    size_t source_count;
    const char *machine, *key;          // of this machine in the first source's run, for deployment_init
    struct view_live *live;             // what the supervisors of the first source report; see view_run.c
    struct view_opened *opened;         // stores of frames and tokenizers, see view_group.c
    struct view_comparison *comparison; // the last one, see view_compare.c
    struct http_server *server;
    struct view_waiting *waiting; // requests whose routes are unfinished, see view.c
    char token[HTTP_TOKEN_SIZE], cookie[32];
};

// A request as a route sees it. A route that has much to do does a part of it, as long as view_may_go_on says so, and
// returns OK with `unfinished`: then other requests are answered, and it is called again with what it keeps in `work`.
struct view_call {
    struct view *view;
    struct view_source *source; // that `of` names, else the first
    const char *rest;           // of the path, behind that of the route: an id; never part of a file's path
    const struct http_argument *arguments;
    size_t argument_count;
    struct buf out;        // the answer
    const char *type;      // its media type, application/json unless the route sets it
    const char *file_name; // under which a browser saves it; NULL: it shows it
    bool immutable;        // what is under this address never changes
    bool whole;            // for the page as one file: every row, every step
    int64_t column;        // at which byte of `where` a mistake is; -1: elsewhere
    double until;          // clock_monotonic() at which a route leaves off
    bool unfinished;
    void *work; // of a route between its calls; NULL at the first one
    void (*free_work)(void *work);
};

// Answers into call->out. USAGE: 400; END: 404; DATAERR, UNAVAILABLE: 503; each with fail_text().
typedef status view_route(struct view_call *call);

// ---- view.c ----

// Answers a path as for a request; the caller has set `view`, `arguments`, `whole` and `until`, and calls it again
// while it is `unfinished`. As view_route; END, too, if there is no such route. Release the call with
// view_call_release.
status view_ask(struct view_call *call, const char *path);

// Returns a file that is part of the program: "index.html", "view.css" or "view.js".
struct string view_page_file(const char *name);

// ---- view_call.c ----

// Whether a route may go on now. If not, the call is unfinished: the route returns OK, and is called again.
bool view_may_go_on(struct view_call *call);

// Frees the answer and what a route keeps.
void view_call_release(struct view_call *call);

// Returns the value of an argument, NULL if it is not given.
const char *view_argument(const struct view_call *call, const char *name);

// *out = an integral argument from `low` to `high`, `otherwise` if it is not given. USAGE.
status view_int_argument(const struct view_call *call, const char *name, int64_t low, int64_t high, int64_t otherwise,
                         int64_t *out);

// *out = an argument that is a number, NaN if it is not given. USAGE.
status view_number_argument(const struct view_call *call, const char *name, double *out);

// Appends a number; NaN and infinities as null.
void view_print(struct buf *out, double value);

// The same with the fewest digits that read back as the same float32.
void view_print_float(struct buf *out, float value);

// Appends a string, an absent one as null. What is not UTF-8 becomes U+FFFD.
void view_print_string(struct buf *out, struct string text);

// The same for a C string; NULL is absent.
void view_print_text(struct buf *out, const char *text);

// Appends the marks of a group's first completions as an array, null for each without accuracy.
void view_print_marks(struct buf *out, const struct group_summary *summary);

// ---- view_blocks.c ----

enum { VIEW_BLOCK = 1024 }; // groups of a block, one after the other in the list

// Figures that some group has, as bits.
enum view_has {
    HAS_REWARDS = 1,
    HAS_BONUS = 2, // above 0
    HAS_FORMAT = 4,
    HAS_LOGPROBS = 8,
    HAS_REFERENCE = 16,
    HAS_TIMES = 32,
    HAS_SCORES = 64, // it is an evaluation
};

// What the groups of a block that are there have together.
struct view_block {
    bool current, trains; // how it was made
    size_t end;           // index behind its last group, as far as it was made
    size_t alive, times;  // groups that are there, and of these those with times
    double first_issued, last_issued, first_settled, last_settled; // NaN: unknown
    double seconds;                                                // that they were under way, together
    int64_t first_step, last_step; // as of view_groups_step, of those with a step; INT64_MAX and -1: none
    int completions;               // of the group that has most
    unsigned has;
    struct view_block_step { // of groups with a likelihood that one step trained, one after the other
        int64_t step;
        size_t count;
        double likelihood; // their sum
    } * steps;
    size_t step_count;
};

// Returns how many blocks there are: block i begins with group i * VIEW_BLOCK.
size_t view_block_count(const struct view_groups *groups);

// Returns the index behind the last group of a block.
size_t view_block_end(const struct view_groups *groups, size_t block);

// Returns a block as it is now. It is valid until the groups change.
const struct view_block *view_block_at(struct view_groups *groups, size_t block);

// Says that the group at an index has changed.
void view_block_forget(struct view_groups *groups, size_t index);

// Frees all blocks.
void view_blocks_free(struct view_groups *groups);

// ---- view_groups.c ----

// Opens the groups of the source. UNAVAILABLE, DATAERR.
status view_groups_open(struct view_source *source);

// Frees what view_groups_open has made; a zeroed struct is fine.
void view_groups_close(struct view_groups *groups);

// Reads the summaries of what was saved since the last time, and forgets what was removed.
status view_groups_refresh(struct view_groups *groups);

// *out = the row of the group at an index, with its strings in `bytes`; *found says whether it is still there.
status view_groups_row(struct view_groups *groups, size_t index, struct group_row *out, struct buf *bytes, bool *found);

// *out = the group at an index, owned by the caller; NULL if it is no longer there.
status view_groups_get(struct view_groups *groups, size_t index, struct group **out);

// *index = that of the group with this id; SIZE_MAX if there is none.
status view_groups_find(struct view_groups *groups, const char *id, size_t *index);

// Returns the step that a group counts with: the one that trained it, in a source where nothing is trained its number.
int64_t view_groups_step(const struct view_source *source, size_t index);

// Whether any group of the source was trained.
bool view_groups_trains(const struct view_source *source);

enum { VIEW_WHOLE_ROWS = 20000 }; // of the page as one file

// indexes[0..*count) = at most `most` groups for which the call's `where` holds, those first that tell something: all
// wrong, mixed, right without bonus and so on in turn. As view_route.
status view_groups_telling(struct view_call *call, size_t most, size_t *indexes, size_t *count);

view_route view_groups_list, view_groups_map;

// ---- view_run.c ----

// Begins to listen to the supervisors of the first source, if it is a run that is active. UNAVAILABLE.
status view_live_open(struct view *view);

// Frees what view_live_open has made; a NULL view->live is fine.
void view_live_close(struct view *view);

// Waits until `fd` can be read or `timeout_ms` have passed (-1: for ever), and takes what the supervisors report
// meanwhile. UNAVAILABLE.
status view_live_wait(struct view *view, int fd, int timeout_ms);

view_route view_run_about, view_run_live, view_run_metrics, view_run_quarantine, view_run_log;

// ---- view_group.c ----

// Frees what the functions of view_group.c keep open.
void view_group_close(struct view *view);

// Returns the tokenizer of a source's model, which stays open; NULL, and a sentence in *why, if it cannot be read.
const struct tokenizer *view_group_tokenizer(struct view *view, const struct view_source *source, const char **why);

view_route view_group_show, view_group_frame;

// ---- view_compare.c, view_trace.c ----

// Frees what view_compare_show keeps.
void view_compare_close(struct view *view);

view_route view_compare_show, view_trace_show, view_trace_export;

// ---- view_html.c ----

// Writes the page with its data as one file, with the texts and frames of at most `groups` groups for which `where`
// (NULL: any) holds. USAGE: the file would be larger than 20 MB; UNAVAILABLE.
status view_html_write(struct view *view, const char *path, int64_t groups, const char *where);

// ---- token_cuts.c ----

// Sets cuts[i] to where the text of token i ends, in UTF-16 units of the completion's text. A token without text (a
// special one, or one with only a part of a character) ends where the one before it does; a character belongs to the
// token that has its last byte. Returns false if the completion has no tokens or no text, or if its tokens do not give
// its text; the cuts then mean nothing.
bool token_cuts_find(const struct tokenizer *tokenizer, const struct completion *completion, int64_t *cuts);
