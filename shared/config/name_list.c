#include "shared/config/name_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 255, NUMBER_MAX_LENGTH = 9 };

struct name_list_expansion {
    const char *text; // of the whole list, for messages
    struct arena *arena;
    const char **names; // on the heap
    size_t count;
    char name[NAME_MAX_LENGTH + 1]; // the one that is being put together
};

static status name_list_append(struct name_list_expansion *expansion, size_t *length, const char *data, size_t size) {
    if (*length + size > NAME_MAX_LENGTH) return fail(USAGE, "a name is longer than %d bytes", NAME_MAX_LENGTH);
    memcpy(expansion->name + *length, data, size);
    *length += size;
    return OK;
}

// Reads a number of 1 to NUMBER_MAX_LENGTH digits and moves *at behind it. *digits is their number.
static status name_list_number(const struct name_list_expansion *expansion, const char **at, int *number, int *digits) {
    const size_t length = strspn(*at, "0123456789");
    if (!length || length > NUMBER_MAX_LENGTH)
        return fail(USAGE, "'%s': expected a number of 1 to %d digits at '%.20s'", expansion->text, NUMBER_MAX_LENGTH,
                    *at);
    *number = (int)strtol(*at, NULL, 10);
    *digits = (int)length;
    *at += length;
    return OK;
}

// Expands [at, end), which is the rest of a name whose first `length` bytes are known.
static status name_list_expand_name(struct name_list_expansion *expansion, const char *at, const char *end,
                                    size_t length) {
    const char *open = at;
    while (open < end && *open != '[' && *open != ']') open++;
    TRY(name_list_append(expansion, &length, at, (size_t)(open - at)));
    if (open == end) {
        if (!length) return fail(USAGE, "'%s': a name is empty", expansion->text);
        if (expansion->count == MAX_NAMES) return fail(USAGE, "'%s': more than %d names", expansion->text, MAX_NAMES);
        GROW(&expansion->names, expansion->count);
        expansion->names[expansion->count++] = arena_strndup(expansion->arena, expansion->name, length);
        return OK;
    }
    if (*open == ']') return fail(USAGE, "'%s': a bracket closes that is not open", expansion->text);
    const char *close = memchr(open, ']', (size_t)(end - open));
    if (!close) return fail(USAGE, "'%s': a bracket is not closed", expansion->text);
    at = open;
    do {
        int first, last, width, digits;
        at++; // '[' or ','
        TRY(name_list_number(expansion, &at, &first, &width));
        last = first;
        if (*at == '-') {
            at++;
            TRY(name_list_number(expansion, &at, &last, &digits));
        }
        if (last < first) return fail(USAGE, "'%s': %d is below %d", expansion->text, last, first);
        for (int number = first; number <= last; number++) {
            char text[16];
            size_t longer = length;
            const int size = snprintf(text, sizeof text, "%0*d", width, number);
            TRY(name_list_append(expansion, &longer, text, (size_t)size));
            TRY(name_list_expand_name(expansion, close + 1, end, longer));
        }
    } while (*at == ',');
    if (at != close) return fail(USAGE, "'%s': expected ',', '-' or ']' at '%.20s'", expansion->text, at);
    return OK;
}

status name_list_expand(const char *text, struct arena *arena, struct string_list *out) {
    struct name_list_expansion expansion = {.text = text, .arena = arena};
    const char *at = text;
    status result;
    bool more;
    *out = (struct string_list){0};
    do {
        const char *end = at;
        for (bool inside = false; *end && (inside || *end != ','); end++)
            inside = *end == '[' || (inside && *end != ']');
        const char *next = end;
        more = *end == ',';
        while (*at == ' ') at++;
        while (end > at && end[-1] == ' ') end--;
        TRY_TO(result, done, name_list_expand_name(&expansion, at, end, 0));
        at = next + 1;
    } while (more);
    out->data = arena_alloc(arena, expansion.count * sizeof *out->data);
    memcpy(out->data, expansion.names, expansion.count * sizeof *out->data);
    out->count = expansion.count;
done:
    free(expansion.names);
    return result;
}

// ---- device ----

bool device_is_list(const char *text) {
    return strchr(text, '[') != NULL;
}

// "emulated" is for tests: a GPU's code on the CPU.
static bool device_is_one(const char *text) {
    const char *colon = strchr(text, ':');
    const size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    const bool numbered = strncmp(text, "cuda:", 5) == 0 || strncmp(text, "emulated:", 9) == 0;
    if (!strcmp(text, "cpu") || !strcmp(text, "cuda") || !strcmp(text, "emulated")) return true;
    return numbered && digits >= 1 && digits <= 3 && !colon[1 + digits];
}

// Expands "cuda:[0-3,6]": one pair of brackets behind a colon, each number a device.
static status device_expand(const char *text, struct arena *arena, struct string_list *out) {
    const char *close = strchr(text, ']');
    const bool known = strncmp(text, "cuda:[", 6) == 0 || strncmp(text, "emulated:[", 10) == 0;
    if (device_is_list(text) && !(known && close && !close[1])) return fail(USAGE, "%s: no device", text);
    TRY(name_list_expand(text, arena, out));
    for (size_t i = 0; i < out->count; i++)
        if (!device_is_one(out->data[i])) return fail(USAGE, "%s: no device", out->data[i]);
    return OK;
}

bool device_is_valid(const char *text) {
    struct arena arena = {0};
    struct string_list devices;
    const bool valid = device_is_one(text) || (device_is_list(text) && device_expand(text, &arena, &devices) == OK);
    arena_release(&arena);
    return valid;
}

status device_of_slot(const char *text, int slot, struct arena *arena, const char **out) {
    struct string_list devices;
    TRY(device_expand(text, arena, &devices));
    *out = devices.data[(size_t)slot % devices.count];
    return OK;
}
