// The result of a library call: a named code, and one line of text for a person.
//
// Library functions return a status; only a program's main turns it into an exit code. The library ends the process in
// three cases only: a failed assert, which is a bug, an LMDB file whose structure is broken (lmdb_env.c), and small
// memory that cannot be had (memory.h). Functions that take memory whose size a user or a file decides (weights,
// caches, clips, tensors) may return UNAVAILABLE because it is short, also where their comments do not say so.
// The message of the last failure belongs to the calling thread and is valid until its next failure.
#pragma once

// From 64 on the values are the exit codes of <sysexits.h>.
typedef enum status {
    OK = 0,
    BAD_SAMPLE = 1,   // this sample cannot be used: quarantine its group and go on
    END = 2,          // the end of the input, or a request to stop: not a failure
    USAGE = 64,       // a bad command line or pipeline file
    DATAERR = 65,     // bad input: a line that is not a group, a broken file
    UNAVAILABLE = 69, // a service, a device, memory or disk space is missing
    BUG = 70,         // an error in this program
    STOPPED = 75,     // somebody has stopped a run before its end; the same command resumes it
} status;

// Sets this thread's failure message and returns `code`: return fail(DATAERR, "%s: empty", path).
status fail(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Puts "PREFIX: " in front of the failure message and returns `code`. So a caller adds where the failure happened.
status fail_prefix(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Sets the failure message "out of memory" and returns UNAVAILABLE.
#define fail_oom() fail(UNAVAILABLE, "out of memory")

#ifdef __clang_analyzer__ // it does not see that these functions return their argument
#define fail(code, ...)        ((fail)((code), __VA_ARGS__), (code))
#define fail_prefix(code, ...) ((fail_prefix)((code), __VA_ARGS__), (code))
#endif

// Returns the exit code of a program that ends with `result`: 0 for OK and END, BUG for what should not reach main.
int status_exit_code(status result);

// Returns this thread's failure message, "" if nothing has failed.
const char *fail_text(void);

// Logs, at debug level, which expression failed and where. TRY and TRY_TO call it.
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

// Sets `result` to the status of `expression` and jumps to `label`, where things are released, unless it is OK.
#define TRY_TO(result, label, expression)                                                                              \
    do {                                                                                                               \
        (result) = (expression);                                                                                       \
        if ((result) != OK) {                                                                                          \
            fail_trace((result), #expression, __FILE__, __LINE__);                                                     \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)
