// What a library call answers: a named code, and one line of text for a person.
//
// Libraries return a status and never exit; only a program's main turns it into an exit code.
// The text of the last failure belongs to the calling thread and is valid until its next fail().
#ifndef SHARED_BASE_STATUS_H
#define SHARED_BASE_STATUS_H

typedef enum status {
    OK = 0,
    BAD_SAMPLE = 1,   // this sample's own defect: quarantine the group, go on
    END = 2,          // asked to stop, or the end of the input: not a failure
    USAGE = 64,       // wrong usage: unknown key, value out of range
    DATAERR = 65,     // bad input: a line that is not a group, a broken file
    UNAVAILABLE = 69, // a missing service, device, memory or disk space
    BUG = 70,         // a broken promise of our own
} status;

// Keeps the formatted line as this thread's failure text and returns code, so `return fail(DATAERR, ...)` reads well.
status fail(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Puts "PREFIX: " in front of the thread's failure text and returns code: who called adds where it happened.
status fail_prefix(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Fails with "out of memory". Returns UNAVAILABLE.
status fail_oom(void);

#ifdef __clang_analyzer__ // it cannot see that what goes in comes out
#define fail(code, ...)        ((fail)((code), __VA_ARGS__), (code))
#define fail_prefix(code, ...) ((fail_prefix)((code), __VA_ARGS__), (code))
#define fail_oom()             ((fail_oom)(), UNAVAILABLE)
#endif

// The thread's last failure text, never NULL.
const char *fail_text(void);

// Logs, at debug level, which expression failed and where. Called by TRY.
void fail_trace(status code, const char *expression, const char *file, int line);

// Returns from the enclosing function with the status of `expression` unless it is OK.
#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        status try_status = (expression);                                                                              \
        if (try_status != OK) {                                                                                        \
            fail_trace(try_status, #expression, __FILE__, __LINE__);                                                   \
            return try_status;                                                                                         \
        }                                                                                                              \
    } while (0)

// The same where there is something to release: sets `result` and jumps to `label`.
#define TRY_TO(result, label, expression)                                                                              \
    do {                                                                                                               \
        (result) = (expression);                                                                                       \
        if ((result) != OK) {                                                                                          \
            fail_trace((result), #expression, __FILE__, __LINE__);                                                     \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

#endif
