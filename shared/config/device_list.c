#include "shared/config/device_list.h"

#include <string.h>

#include "shared/config/name_list.h"

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
