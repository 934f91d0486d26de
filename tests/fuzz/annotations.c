// Reads any bytes as an annotation file in each format, and as a prompt template. A group that a format makes of a
// record must survive being written and read.
#include "tests/fuzz/fuzz.h"

#include "shared/data/format.h"
#include "shared/data/records.h"

// Checks that the group can be written and read.
static void check_group(struct group *group) {
    struct group *again = NULL;
    struct buf json = {0};
    group_string(group, &group->id, "e0-000000", 9);
    group_to_json(group, &json);
    fuzz_must(group_from_json(&again, json.data, json.size) == OK);
    group_free(&again);
    buf_release(&json);
}

static void try_record(const struct format_options *options, const struct record *record) {
    struct arena arena = {0};
    struct json *json = NULL;
    if (json_parse(&json, &arena, record->data, record->size) == OK && json_is(json, JSON_OBJECT)) {
        for (size_t i = 0; i < format_count; i++) {
            struct group *group = NULL;
            if (format_read(&format_all[i], options, json, record->place, &group) == OK) check_group(group);
            group_free(&group);
        }
    }
    arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct prompt_template template = {0};
    struct format_options options = {
        .seed = size, .media_root = size % 2 ? "/root" : NULL, .cut = size % 5 > 2, .no_frames = size % 7 == 0};
    struct records records = {0};
    if (prompt_template_parse(&template, "fuzz", (struct string){(const char *)data, size}) != OK &&
        prompt_template_parse(&template, "default", string_of(prompt_template_default)) != OK)
        abort();
    if (size % 3) options.template = &template;
    if (records_parse(&records, "fuzz", (const char *)data, size) == OK)
        for (size_t i = 0; i < records.count; i++) try_record(&options, &records.items[i]);
    records_release(&records);
    return 0;
}
