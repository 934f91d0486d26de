#include "shared/stage/times.h"

#include <json.h>
#include <stdio.h>
#include <string.h>

static struct json_object *moment(double seconds) {
    char text[64];
    snprintf(text, sizeof text, "%.3f", seconds);
    return json_object_new_double_s(seconds, text);
}

status times_add(struct group *group, const char *stage, double taken, double done) {
    struct json_object *times = group->times.data ? json_tokener_parse(group->times.data) : NULL;
    struct json_object *pair = json_object_new_array_ext(2);
    if (!times) times = json_object_new_object();
    status result = times && pair ? OK : fail_oom();
    if (result == OK) {
        json_object_array_add(pair, moment(taken));
        json_object_array_add(pair, moment(done));
        json_object_object_add(times, stage, pair);
        pair = NULL;
        size_t size;
        const char *text = json_object_to_json_string_length(times, JSON_C_TO_STRING_PLAIN, &size);
        result = group_string(group, &group->times, text, size);
    }
    json_object_put(pair);
    json_object_put(times);
    return result;
}
